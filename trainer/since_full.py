"""What changed since the last full form, patch by patch, kept until it is stored in one.

Whoever has nothing reads the last full form and the patches since. So that these do not become too many, a version is
stored every so often as changes since the full form as well: a cumulative patch. It is made of the blocks that were
published since, not of tensors. They wait in a file of this machine that has no name: they take no memory, and leave
nothing behind.

    published    full 0   1   2  ...  15   16
    kept                  1   2  ...  15   16      16 as changes since 15; of all of them 16 as changes since 0
    kept then                              16 as changes since 0

Sixteen patches take longer to put together than one takes to be written. So between two versions `fold` makes one of
those that wait since the full or cumulative form, tensor by tensor: what it got done before it had to give way stays.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rollog.kernel.errors import WeightsError
from rollog.kernel.logs import get_logger
from rollog.kernel.versions.blocks import Layout
from rollog.kernel.versions.patches import GivenUpError, TensorPatch, combine
from rollog.kernel.versions.threads import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollog.kernel.versions.tensors import TensorSpec

_log = get_logger("weights")
_most_loose = 4
"""So many patches of a tensor wait as they are: with fewer all would be read and coded again more often."""


class ChangesLostError(Exception):
    """The file with the patches since the last full form takes or gives no more."""


class ChangesSinceFull:
    """The patches since the last full form; for one thread, but for `restart`, which any may call meanwhile.

    Where its file takes no more, that is logged, and it has nothing until the next full form.
    """

    def __init__(self) -> None:
        self._kept: _Blocks | None = None
        self._together: _Blocks | None = None
        self._lock = threading.Lock()

    @property
    def has_all(self) -> bool:
        """Whether it has every patch since a full form, with what came of the version at hand."""
        return self._kept is not None

    def restart(self) -> None:
        """A full form was stored: what was kept is of no use."""
        new = self._new()
        with self._lock:
            self._kept, self._together = new, None

    def begin(self, *, together: bool = False) -> None:
        """The patch of a further version comes; one that was not kept is forgotten.

        With `together` all patches are asked for together, and stand for all that was kept once this one is.
        """
        self._together = self._new() if together else None
        if self._kept is not None:
            self._kept.begin()

    def add(self, spec: TensorSpec, patch: TensorPatch) -> None:
        """One tensor of it."""
        try:
            if self._kept is not None:
                self._kept.add(spec, patch)
        except OSError as error:
            self._lose(error)

    def newest(self, spec: TensorSpec) -> TensorPatch:
        """A tensor of it as it was added. Raises ChangesLostError."""
        return self._of(spec)[-1]

    def together(self, spec: TensorSpec) -> TensorPatch:
        """What all patches change of a tensor, the one at hand included. Raises ChangesLostError."""
        try:
            found = _together(spec, self._of(spec))
        except WeightsError as error:
            self._lose(error)
            raise ChangesLostError from error
        try:
            if self._together is not None:
                self._together.add(spec, found)
        except OSError as error:
            self._lose(error)
        return found

    def keep(self) -> None:
        """The version is stored."""
        is_cumulative = self._together is not None
        if self._together is not None:
            self._kept, self._together = self._together, None
        if self._kept is not None:
            self._kept.keep(stays=is_cumulative)

    def fold(self, is_over: Callable[[], bool], *, is_next: bool = False) -> None:
        """Make one of the patches that wait, until it `is_over`: nothing depends on it.

        A few may stay, but one alone where the next version `is_next`, a cumulative one.
        """
        kept = self._kept
        if kept is None or not kept.may_fold:
            return
        try:
            kept.fold(is_over, most_loose=1 if is_next else _most_loose)
        except OSError as error:
            kept.may_fold = False
            _log.warning(
                "changes since the last full form wait as they are: the version that is stored as all of them takes "
                "longer; make room there",
                directory=tempfile.gettempdir(),
                error=str(error),
            )
        except WeightsError as error:
            with self._lock:
                if self._kept is kept:
                    self._lose(error)

    def _of(self, spec: TensorSpec) -> list[TensorPatch]:
        try:
            if self._kept is not None:
                return self._kept.of(spec)
        except OSError as error:
            self._lose(error)
        raise ChangesLostError

    def _new(self) -> _Blocks | None:
        try:
            return _Blocks()
        except OSError as error:
            self._lose(error)
            return None

    def _lose(self, error: OSError | WeightsError) -> None:
        self._kept = self._together = None
        _log.warning(
            "changes since the last full form are not kept: the next version that would be stored as these is stored "
            "in full; make room there",
            directory=tempfile.gettempdir(),
            error=str(error),
        )


@dataclass(frozen=True, slots=True)
class _Row:
    """How a tensor is stored, and where in the file its block is."""

    form: Literal["same", "changed", "dense"]
    begin: int
    num_bytes: int


class _Blocks:
    """Blocks of patches in a file without a name, one behind the other. Everything raises OSError."""

    def __init__(self) -> None:
        self.may_fold = True
        self._file = tempfile.TemporaryFile(prefix="rollog-since-full-", buffering=0)  # noqa: SIM115 - as long as this
        self._end = self._kept_end = 0
        self._fixed: dict[TensorSpec, list[_Row]] = {}
        self._loose: dict[TensorSpec, list[_Row]] = {}
        """In all versions that were kept, oldest first; the fixed ones are older."""
        self._last: dict[TensorSpec, _Row] = {}
        weakref.finalize(self, self._file.close)

    def begin(self) -> None:
        """What was added since `keep` is forgotten."""
        self._last, self._end = {}, self._kept_end

    def add(self, spec: TensorSpec, patch: TensorPatch) -> None:
        """One tensor."""
        self._last[spec] = self._write(patch, self._end)
        self._end += len(patch.block)

    def keep(self, *, stays: bool = False) -> None:
        """All that was added is kept; what `stays` is not folded: it is large, and would be written again each time."""
        kept = self._fixed if stays else self._loose
        for spec, row in self._last.items():
            kept.setdefault(spec, []).append(row)
        self._last, self._kept_end = {}, self._end

    def fold(self, is_over: Callable[[], bool], *, most_loose: int) -> None:
        """Keep one patch of each tensor that has more loose ones, behind all in the file, until it `is_over`.

        Raises WeightsError for a block that is damaged.
        """
        for spec, rows in self._loose.items():
            if len(rows) <= most_loose:
                continue
            if is_over():
                return
            try:
                folded = self._write(_together(spec, [*map(self._patch, rows)], is_over), self._kept_end)
            except GivenUpError:
                return
            self._kept_end += folded.num_bytes
            rows[:] = [folded]

    def of(self, spec: TensorSpec) -> list[TensorPatch]:
        """A tensor in all versions that were kept, and in the last one, oldest first."""
        kept = (*self._fixed.get(spec, ()), *self._loose.get(spec, ()))
        return [self._patch(row) for row in (*kept, self._last[spec])]

    def _write(self, patch: TensorPatch, at: int) -> _Row:
        left, position = memoryview(patch.block), at
        while left:
            num_written = os.pwrite(self._file.fileno(), left, position)
            position += num_written
            left = left[num_written:]
        return _Row(patch.form, at, len(patch.block))

    def _patch(self, row: _Row) -> TensorPatch:
        return TensorPatch(row.form, self._read(row))

    def _read(self, row: _Row) -> bytes:
        block = os.pread(self._file.fileno(), row.num_bytes, row.begin)
        if len(block) != row.num_bytes:
            raise OSError(f"{len(block)} bytes were read where {row.num_bytes} were written")
        return block


def _together(
    spec: TensorSpec, patches: list[TensorPatch], is_over: Callable[[], bool] = lambda: False
) -> TensorPatch:
    """One patch for those of consecutive versions. Raises WeightsError, and GivenUpError where it `is_over`."""
    if any(patch.form == "dense" for patch in patches):
        return TensorPatch("dense")
    changed = [patch for patch in patches if patch.form == "changed"]
    if len(changed) < 2:  # noqa: PLR2004 - one is what it is
        return changed[0] if changed else TensorPatch("same")
    layout = Layout.of(spec)
    with threads("since-full") as pool:
        return combine([patch.block for patch in changed], layout, name=spec.name, pool=pool, is_over=is_over)
