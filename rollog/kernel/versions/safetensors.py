"""Headers of safetensors files, as the library writes them, byte for byte.

    8 bytes             length of the header, little-endian
    header              JSON: __metadata__, then name -> {dtype, shape, data_offsets}, spaces up to a multiple of 8
    data                the tensors, one behind the other without gaps

The library itself writes a file from all its tensors at once; a version is written while they are gathered.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollog.kernel.versions.tensors import TensorSpec

metadata_name = "__metadata__"
"""What no tensor can be called: it stands beside the names of tensors."""
_metadata = {"format": "pt"}
"""Without it transformers does not load a file."""
_alignment = 8


def file_header(specs: Sequence[TensorSpec]) -> bytes:
    """All that stands before the data of these tensors, which are in `file_order`."""
    entries: dict[str, object] = {metadata_name: _metadata}
    begin = 0
    for spec in specs:
        end = begin + spec.num_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _alignment)
    return len(text).to_bytes(8, "little") + text
