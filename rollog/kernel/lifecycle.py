"""The one life cycle of everything that holds something open: made whole, entered, turned, closed.

| state   | reached by | what holds there |
| --- | --- | --- |
| made    | a constructor, or a start-up that returns the whole | every attribute has its value, nothing is half built |
| entered | `with` | one thread uses it, and it is closed however the block ends |
| turned  | `run_once`, any number of times; `run` repeats it | one turn does what is due now, and returns |
| closed  | the end of `with`, or `close` | what it held is released; it is not used again |

Example: a start-up takes the run over and returns a trainer; `with` enters it; every `run_once` takes one batch or
publishes verdicts or does nothing; the end of `with` closes consumers, producer and engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Component(ABC):
    """Base of what is closed at the end of its `with` block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what is held. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
