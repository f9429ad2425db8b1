"""One thing that was looked at before it is needed, and what to do where it is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `remedy` is set when it is not as it should be."""

    what: str
    found: str
    remedy: str | None = None
    is_needed: bool = True

    @property
    def refuses(self) -> bool:
        """Whether nothing can run like this."""
        return self.remedy is not None and self.is_needed
