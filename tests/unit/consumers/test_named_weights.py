"""Which weights a log names, which were let go, and which of what is said there counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumers.named_weights import NamedWeights, initial_weights, read_named_weights
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics, topic_specs
from rollog.kernel.errors import LedgerError, VersionPruned, WeightsError
from rollog.settings.run import BrokerConfig
from schemas import WeightsBase, WeightsPruned, WeightVersion
from schemas.codec import encode

digests = {version: f"{version:064x}" for version in range(5)}


def a_notice(version: int, *, name: str = "", sha256: str | None = None) -> WeightVersion:
    return WeightVersion(
        version=version,
        sha256=digests.get(version, "f" * 64) if sha256 is None else sha256,
        name=name or f"v{version:06d}-0123456789abcdef.manifest",
        num_bytes=1,
    )


def named(*records: object) -> NamedWeights:
    found = NamedWeights(digests)
    for record in records:
        found.add(record)
    return found


def test_of_several_notices_of_a_version_the_last_counts_and_all_files_are_its_own() -> None:
    first, again = a_notice(1, name="a.manifest"), a_notice(1, name="b.manifest")
    found = named(a_notice(0), first, again)
    assert found.of(1) == found.get(1) == again
    assert found.names >= {"a.manifest", "b.manifest"}


def test_what_a_kept_version_is_based_on_is_kept_too() -> None:
    def patch(version: int, base: int) -> WeightVersion:
        return replace(a_notice(version), base=WeightsBase(version=base, sha256=digests[base]))

    found = named(a_notice(0), patch(1, 0), patch(2, 1), a_notice(3), patch(4, 3))
    assert found.with_bases([2]) == {0, 1, 2}
    assert found.with_bases([4]) == {3, 4}
    assert found.with_bases([0, 3]) == {0, 3}
    # The store lost version 2, which was written again in full; version 4 may be based on either form.
    again = named(a_notice(0), patch(1, 0), patch(2, 1), a_notice(2, name="again"), patch(4, 2))
    assert again.with_bases([4]) == {0, 1, 2, 4}


def test_of_a_base_that_is_named_only_that_form_is_kept() -> None:
    def patch(version: int, base: WeightVersion, name: str) -> WeightVersion:
        named_base = WeightsBase(version=base.version, sha256=base.sha256, name=base.name)
        return replace(a_notice(version, name=name), base=named_base)

    full = a_notice(0)
    first, second = patch(1, full, "b"), patch(2, a_notice(1, name="b"), "c")
    third, cumulative = patch(3, second, "d"), patch(3, full, "e")
    found = named(full, first, second, third, cumulative, patch(4, cumulative, "f"))
    assert found.with_bases([4]) == {0, 3, 4}
    assert found.with_bases([3]) == {0, 1, 2, 3}, "who keeps it for itself keeps every form"
    unknown = named(full, first, second, patch(3, a_notice(2, name="never noticed"), "d"))
    assert unknown.with_bases([3]) == {0, 1, 2, 3}


def test_a_pruned_version_is_told_from_one_that_was_never_noticed() -> None:
    found = named(*map(a_notice, range(3)), WeightsPruned(versions=(1,)))
    assert (found.pruned, sorted(found.stored), found.pruned_names) == ({1}, [0, 2], {a_notice(1).name})
    with pytest.raises(VersionPruned, match=r"version 1 were pruned.*rollog weights list"):
        found.of(1)
    with pytest.raises(WeightsError, match="no notice names") as raised:
        found.of(3)
    assert not isinstance(raised.value, VersionPruned)


def test_a_notice_after_the_pruning_stands_for_files_that_are_there() -> None:
    again = a_notice(1, name="b.manifest")
    found = named(*map(a_notice, range(3)), WeightsPruned(versions=(1,)), again)
    assert (found.get(1), found.pruned) == (again, set())


def test_what_no_trainer_lets_go_is_not_pruned_and_other_digests_are_no_notices() -> None:
    forged = a_notice(4, sha256="f" * 64)
    found = named(a_notice(0), a_notice(1), a_notice(2), forged, WeightsPruned(versions=(1, 2, 3, 4)))
    assert found.pruned == {1}
    assert found.get(4) is None


def test_the_log_is_read_past_what_nobody_can_read_which_is_counted() -> None:
    broker, topics = MemoryBroker(), RunTopics("rollog", "r")
    with broker.admin() as admin:
        admin.create_topics(topic_specs(topics, BrokerConfig(samples_partitions=1)))
    with broker.producer(client_id="test") as producer:
        for value in (encode(a_notice(0)), b"garbage", encode(a_notice(1))):
            producer.send(topics.weights, 0, value).offset(10.0)
    found = read_named_weights(broker, topics, digests)
    assert (sorted(found.stored), found.num_unreadable) == ([0, 1], 1)
    assert initial_weights(broker, topics, digests) == a_notice(0)
    with pytest.raises(LedgerError, match="no notice of version 0"):
        initial_weights(broker, topics, {0: "e" * 64})
