"""The one error of this package."""

from __future__ import annotations


class SchemaError(ValueError):
    """Bytes are not a valid record of ours, or a record cannot be written as one."""
