"""The audit tells versions that a run let go from those that are lost, and from what nobody lets go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.audited_run import check, findings

from consumers.audit.auditor import audit_run
from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.weights import WeightsStore
from schemas import WeightsPruned
from schemas.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from support.altered_topics import RecordedTopics
    from support.audited_run import AuditedRun

    from schemas import WeightVersion


def with_pruned(run: AuditedRun, *versions: int) -> RecordedTopics:
    place = TopicPartition(run.topics.weights, 0)
    return run.recorded.with_more(place, encode(WeightsPruned(versions=versions)))


def without_files(run: AuditedRun, tmp_path: Path, *versions: int) -> Path:
    weights = run.copied_weights(tmp_path)
    for version in versions:
        for path in weights.glob(f"v{version:06d}-*"):
            path.unlink()
    return weights


def test_pruned_versions_are_not_looked_for_and_said_apart_from_lost_ones(
    run: AuditedRun, tmp_path: Path
) -> None:
    weights = without_files(run, tmp_path, 1, 2, 3)
    report = run.audit(with_pruned(run, 1, 2), weights=weights)
    assert report.is_clean, "\n".join(report.lines())
    assert [missing.what.split(" in ")[0] for missing in report.missing] == [
        "weights of 2 version(s) (1-2), which the run let go by its rule",
        "weights files of 1 version(s) (3)",
    ]
    assert (check(report, "I4 files").num_checked, check(report, "I4 files").num_unchecked) == (2, 3)


def test_the_files_of_a_pruned_version_may_still_be_there_in_part(run: AuditedRun, tmp_path: Path) -> None:
    weights = run.copied_weights(tmp_path)
    next(weights.glob("v000001-*.safetensors")).unlink()
    assert run.audit(with_pruned(run, 1), weights=weights).is_clean
    assert not run.audit(weights=weights).is_clean


def test_a_pruning_of_the_newest_or_of_an_unknown_version_is_named(run: AuditedRun) -> None:
    found = findings(run.audit(with_pruned(run, 3, 4, 77)), "I4")
    assert [finding.record_id for finding in found] == ["version 4", "version 77"]


class PruningStore(WeightsStore):
    """A store from which a version leaves as soon as anybody looks at it."""

    def check(self, notice: WeightVersion) -> None:
        if notice.version == 2:
            for name in self.file_names(notice):
                self.delete(name)
        super().check(notice)


def test_a_version_that_leaves_under_the_audit_is_no_finding(run: AuditedRun, tmp_path: Path) -> None:
    place = TopicPartition(run.topics.weights, 0)
    growing = with_pruned(run, 2).growing(place, run.recorded.ends[place])
    store = PruningStore(str(run.copied_weights(tmp_path)))
    report = audit_run(growing, run.topics, store, settles_within_seconds=0.0)
    assert report.is_clean, "\n".join(report.lines())
    assert ["(2), which the run let go" in missing.what for missing in report.missing] == [True]
