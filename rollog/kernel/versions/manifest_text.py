"""Reading the text of a manifest: whatever is not as a writer makes it is refused before memory is taken for it."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rollog.kernel.errors import WeightsError
from rollog.kernel.versions.adapter import adapter_in, matrix_names
from rollog.kernel.versions.identity import TensorDigest, content_text, first_line, num_leaves
from rollog.kernel.versions.safetensors import metadata_name
from rollog.kernel.versions.tensors import TensorSpec, type_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollog.kernel.versions.adapter import Adapter

_float_types = {"BF16", "F16", "F32", "F64"}
most_manifest_bytes = 64 << 20
"""A model of 10^12 parameters takes a tenth of it."""
most_shards = 10_000
_most_name_characters = 1000
_most_dimensions = 16
_most_bytes = 1 << 60
_sha256 = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """What is wrong with a manifest."""


@contextmanager
def naming_manifest(name: str) -> Iterator[None]:
    """Makes Refused a WeightsError about the manifest of this name."""
    try:
        yield
    except Refused as refused:
        raise WeightsError(
            f"the manifest {name} cannot be used: {refused}; it was not written by this release of rollog, or altered"
        ) from None


def lines_of(data: bytes) -> tuple[bytes, bytes]:
    """The second and the third line."""
    if len(data) > most_manifest_bytes:
        raise Refused(f"it has {len(data)} bytes, at most {most_manifest_bytes} are read")
    lines = data.split(b"\n", 4)
    if len(lines) != 4 or lines[3] or lines[0] + b"\n" != first_line:  # noqa: PLR2004 - three lines and an end
        raise Refused(f"it is not {first_line.decode().strip()} and two lines of JSON")
    return lines[1], lines[2]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"it holds what is no JSON ({error})") from None


def object_of(text: bytes, keys: set[str]) -> dict[str, Any]:
    """The JSON object in `text`, which has exactly these keys."""
    found = _json(text)
    if not isinstance(found, dict) or found.keys() != keys:
        raise Refused(f"it is expected to have {', '.join(sorted(keys))}")
    return found


def list_of(value: Any, what: str, length: int | None = None) -> list[Any]:
    """`value`, if it is a list, of this length where one is given."""
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise Refused(f"{what} is {value!r:.80}, a list{'' if length is None else f' of {length}'} is needed")
    return value


def count_of(value: Any, what: str, most: int = _most_bytes) -> int:
    """`value`, if it is a whole number from 0 to `most`."""
    if type(value) is not int or not 0 <= value <= most:
        raise Refused(f"{what} is {value!r:.80}, a number from 0 to {most} is needed")
    return value


def digest_in(value: Any, what: str) -> str:
    """`value`, if it is a sha256 in hexadecimal digits."""
    if not isinstance(value, str) or not _sha256.fullmatch(value):
        raise Refused(f"{what} has the sha256 {value!r:.80}, 64 hexadecimal digits are needed")
    return value


def content_of(text: bytes) -> tuple[list[TensorDigest], Adapter | None]:
    """Tensors and adapter in the second line, which is written as the content digest wants it."""
    content = object_of(text, {"adapter", "tensors"})
    try:
        adapter = adapter_in(content["adapter"])
    except ValueError as error:
        raise Refused(f"its adapter cannot be used: {error}") from None
    tensors = [_tensor(list_of(row, "a tensor", 4)) for row in list_of(content["tensors"], "tensors")]
    if len({tensor.spec.name for tensor in tensors}) != len(tensors):
        raise Refused("it has a tensor twice")
    if sum(tensor.spec.num_bytes for tensor in tensors) > _most_bytes:
        raise Refused(f"its tensors have more than {_most_bytes} bytes")
    if content_text(tensors, adapter) != first_line + text:
        raise Refused("its second line is not written as the content digest wants it")
    if adapter is not None:
        _check_matrices({tensor.spec.name: tensor.spec for tensor in tensors}, adapter)
    return tensors, adapter


def _check_matrices(specs: Mapping[str, TensorSpec], adapter: Adapter) -> None:
    """Every layer of an adapter has a weight and two matrices, whose shapes fit each other."""
    for layer in adapter.targets:
        first, second = (specs.get(name) for name in matrix_names(layer))
        weight = specs.get(f"{layer}.weight")
        if first is None or second is None or weight is None:
            raise Refused(f"its adapter has the layer {layer!r:.80}, of which a tensor is missing")
        is_matrix = len(weight.shape) == len(("inputs", "outputs"))
        if not is_matrix or not {each.dtype for each in (first, second, weight)} <= _float_types:
            raise Refused(f"its adapter has the layer {layer!r:.80}, whose weight cannot be adapted")
        shapes = (first.shape, second.shape)
        inputs_outputs = weight.shape if adapter.rule == "transposed" else weight.shape[::-1]
        if shapes != ((adapter.rank, inputs_outputs[0]), (inputs_outputs[1], adapter.rank)):
            raise Refused(
                f"the matrices of layer {layer!r:.80} have shapes {shapes}, its weight {weight.shape}"
            )


def _tensor(row: list[Any]) -> TensorDigest:
    name, dtype, dimensions, leaves = row
    if not isinstance(name, str) or not 0 < len(name) <= _most_name_characters or not _is_text(name):
        raise Refused(f"a tensor is called {name!r:.80}, 1 to {_most_name_characters} characters are needed")
    if name == metadata_name:
        raise Refused(f"a tensor is called {name}, which in a safetensors file is no tensor")
    if not isinstance(dtype, str) or dtype not in type_bytes:
        raise Refused(f"tensor {name!r:.80} has elements of type {dtype!r:.80}, which is not known")
    shape = tuple(
        count_of(size, f"a dimension of tensor {name!r:.80}") for size in list_of(dimensions, "a shape")
    )
    if len(shape) > _most_dimensions:
        raise Refused(f"tensor {name!r:.80} has {len(shape)} dimensions, at most {_most_dimensions} are read")
    spec = TensorSpec(name, dtype, shape)
    digests = list_of(leaves, f"the leaves of tensor {name!r:.80}")
    if spec.num_bytes > _most_bytes or len(digests) != num_leaves(spec):
        raise Refused(f"tensor {name!r:.80} of {spec.num_bytes} bytes has {len(digests)} leaves")
    return TensorDigest(spec, tuple(digest_in(leaf, f"tensor {name!r:.80}") for leaf in digests))


def _is_text(name: str) -> bool:
    """Whether it can be written: JSON can hold halves of characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
