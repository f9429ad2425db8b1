"""Numeric arrays inside records: little-endian bytes on the wire, numpy views in memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

type_codes: dict[str, str] = {"int32": "<i4", "float32": "<f4", "uint8": "u1"}

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]
UInt8Array = npt.NDArray[np.uint8]

array_types: dict[Any, str] = {Int32Array: "int32", Float32Array: "float32", UInt8Array: "uint8"}
"""The name in `type_codes` (and in the attribute `array` of a schema) for each array annotation."""


def int32_array(values: npt.ArrayLike = ()) -> Int32Array:
    """A one-dimensional little-endian int32 array of `values`."""
    return np.asarray(values, dtype="<i4")


def float32_array(values: npt.ArrayLike = ()) -> Float32Array:
    """A one-dimensional little-endian float32 array of `values`."""
    return np.asarray(values, dtype="<f4")


def uint8_array(values: npt.ArrayLike = ()) -> UInt8Array:
    """A one-dimensional uint8 array of `values`."""
    return np.asarray(values, dtype="u1")


class ArrayEquality:
    """Field-wise equality for dataclasses that hold numpy arrays (declare them with `eq=False`).

    Arrays are equal when shape, dtype and every bit agree, NaN included.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # arrays are mutable, so such records have no hash

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # only dataclasses mix this in
        )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    return bool(left == right)
