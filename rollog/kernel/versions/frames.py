"""zstd frames whose size is known before they are decompressed.

One frame of RFC 8878, section 3.1.1, and nothing behind it. Its header tells the content's size, names no dictionary,
and asks for a window of at most 8 MiB. A frame that says otherwise is refused by its header, before memory is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import zstandard

if TYPE_CHECKING:
    from rollog.kernel.versions.bit_patterns import Buffer
    from schemas.arrays import UInt8Array

level = 1
"""Levels 3 and 9 save 1 to 3 % of a patch and take 1.5 and 8 times as long."""

largest_window = 8 << 20
"""What every decoder should support (RFC 8878, section 3.1.1.1.2)."""


class FrameRefused(ValueError):
    """Bytes are no frame of the expected size."""


class Compressor:
    """Makes frames; for one thread."""

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=level, write_checksum=False)

    def frame(self, content: Buffer) -> bytes:
        """One frame with this content."""
        return self._zstd.compress(content)


def check_frame(frame: memoryview, num_bytes: int) -> None:
    """Raise FrameRefused unless the header of `frame` promises exactly `num_bytes` bytes."""
    # Skippable frames and those of zstd before 0.8 begin otherwise.
    if bytes(frame[:4]) != zstandard.FRAME_HEADER:
        raise FrameRefused("there is no zstd frame")
    try:
        header = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise FrameRefused(f"the header of a zstd frame cannot be read ({error})") from error
    if header.content_size != num_bytes:
        is_unknown = header.content_size == zstandard.CONTENTSIZE_UNKNOWN
        said = "does not say its size" if is_unknown else f"holds {header.content_size} bytes"
        raise FrameRefused(f"a zstd frame {said} where {num_bytes} are due")
    if header.window_size > largest_window:
        raise FrameRefused(
            f"a zstd frame needs a window of {header.window_size} bytes; the most is {largest_window}"
        )
    if header.dict_id:
        raise FrameRefused(f"a zstd frame needs dictionary {header.dict_id}")


def content(frame: memoryview, num_bytes: int) -> UInt8Array:
    """The `num_bytes` bytes in a checked frame, which nothing follows. Raises FrameRefused."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=largest_window)
    try:
        data = decompressor.decompress(
            frame, max_output_size=num_bytes, read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise FrameRefused(f"a zstd frame cannot be decompressed ({error})") from error
    assert len(data) == num_bytes  # zstd holds a frame to what its header says
    return np.frombuffer(data, dtype=np.uint8)
