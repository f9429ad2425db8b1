"""One verification: loads each version once, compares what names it, and looks for what fits where that does not.

Consumes pieces, produces a report. Holds the pieces of a few steps and, of each group, its figures and a few pieces.
Waits for nothing; on a crash it is done again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from consumers.verification.findings import findings_of
from consumers.verification.groups import Compared, Group, compared, probes
from consumers.verification.order import turns_by_version
from consumers.verification.report import Unchecked, VerificationReport
from consumers.verification.rule import compare_fit
from consumers.verification.search import fitting_versions
from rollog.kernel.errors import WeightsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from consumers.verification.findings import Finding
    from consumers.verification.groups import GroupName
    from consumers.verification.order import Part, Turn
    from consumers.verification.pieces import Piece
    from consumers.verification.ports import PublishedWeights, Scorer
    from consumers.verification.rule import Differences, Tolerances

    Calibrate = Callable[[Path, Sequence[Piece]], Tolerances]

_sha256_digits_named = 16


class Verifier:
    """Turned once, by `run`. `calibrate` says, with the first weights and pieces, how far noise goes."""

    def __init__(self, scorer: Scorer, weights: PublishedWeights, calibrate: Calibrate) -> None:
        self._scorer = scorer
        self._weights = weights
        self._calibrate = calibrate
        self._tolerances: Tolerances | None = None
        self._groups: dict[GroupName, Group] = {}
        self._foreign: Counter[GroupName] = Counter()
        self._unchecked: dict[int, Unchecked] = {}
        self._probes_before: list[Compared] = []
        self._ahead: dict[Piece, Differences] = {}

    def run(self, parts: Iterable[Part]) -> VerificationReport:
        """Compare everything."""
        for turn in turns_by_version(parts):
            self._take(turn)
        groups = [self._groups[name] for name in sorted(self._groups)]
        found: Sequence[Finding] = []
        if self._tolerances is not None:
            searched = fitting_versions(groups, self._scorer, self._weights, self._tolerances)
            found = findings_of(groups, searched, self._tolerances)
        return VerificationReport(
            tolerances=self._tolerances,
            groups=groups,
            findings=found,
            foreign=dict(self._foreign),
            unchecked=[self._unchecked[version] for version in sorted(self._unchecked)],
        )

    def _take(self, turn: Turn) -> None:
        """One version: its own pieces, and some of those that name its neighbours."""
        pieces = self._of_the_ledger(turn)
        before, self._probes_before = self._probes_before, []
        ahead, self._ahead = self._ahead, {}
        if not self._load(turn, pieces):
            return
        found = self._compared(pieces)
        for each in found:
            self._group(each.piece).add(each, self._known_tolerances)
        under_this = [each.differences for each in self._compared([each.piece for each in before])]
        self._note_fits(list(zip(before, under_this, strict=True)), by=1)
        self._note_fits([(each, ahead[each.piece]) for each in found if each.piece in ahead], by=-1)
        if self._tolerances is not None:
            num_tokens = self._tolerances.num_probe_tokens
            chosen = set(probes(pieces, num_tokens))
            self._probes_before = [each for each in found if each.piece in chosen]
            self._ahead = {
                each.piece: each.differences for each in self._compared(probes(turn.ahead, num_tokens))
            }

    def _of_the_ledger(self, turn: Turn) -> list[Piece]:
        """The pieces whose segments name the very weights that the ledger has under this version."""
        sha256 = self._weights.digest(turn.version)
        pieces = []
        for piece in turn.pieces:
            if sha256 is not None and piece.weights_digest == sha256[:_sha256_digits_named]:
                pieces.append(piece)
            else:
                self._foreign[turn.version, piece.worker_id] += 1
        return pieces

    def _load(self, turn: Turn, pieces: Sequence[Piece]) -> bool:
        """Put a version in place; where that cannot be, its pieces count as not checked."""
        version = turn.version
        if self._weights.digest(version) is None:
            return False
        try:
            with self._weights.file(version) as path:
                if self._tolerances is None and (pieces or turn.ahead):
                    self._tolerances = self._calibrate(path, pieces or turn.ahead)
                self._scorer.load(path)
        except WeightsError as error:
            if pieces:
                # A piece that came too late for the first round has its version loaded again in a second one.
                before = self._unchecked.get(version)
                num_before = 0 if before is None else before.num_samples
                self._unchecked[version] = Unchecked(
                    version=version, num_samples=num_before + len(pieces), reason=str(error)
                )
            return False
        return True

    def _compared(self, pieces: Sequence[Piece]) -> list[Compared]:
        logprobs = self._scorer.logprobs(pieces) if pieces else []
        return [compared(piece, values) for piece, values in zip(pieces, logprobs, strict=True)]

    def _note_fits(self, pairs: Sequence[tuple[Compared, Differences]], *, by: int) -> None:
        """Pieces with their differences under another version, `by` versions from the one that they name."""
        for worker in {each.piece.worker_id for each, _ in pairs}:
            of_worker = [(each, other) for each, other in pairs if each.piece.worker_id == worker]
            own = np.concatenate([each.differences for each, _ in of_worker])
            others = np.concatenate([other for _, other in of_worker])
            self._group(of_worker[0][0].piece).neighbours[by] = compare_fit(own, others)

    def _group(self, piece: Piece) -> Group:
        name = (piece.version, piece.worker_id)
        if name not in self._groups:
            self._groups[name] = Group(version=piece.version, worker_id=piece.worker_id)
        return self._groups[name]

    @property
    def _known_tolerances(self) -> Tolerances:
        assert self._tolerances is not None
        return self._tolerances
