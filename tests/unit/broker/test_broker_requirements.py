"""What a cluster must be able to do, and what is said of one that cannot."""

from __future__ import annotations

from rollog.kernel.broker.requirements import refusal, unmet_needs

newest = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 10: (0, 6), 19: (2, 7), 22: (0, 6), 24: (0, 5),
    25: (0, 4), 26: (0, 5), 28: (0, 5), 32: (1, 4),
}  # fmt: skip


def test_a_cluster_that_knows_every_request_is_fine() -> None:
    assert not unmet_needs(newest)


def test_a_request_that_is_missing_is_named_with_its_purpose() -> None:
    (line,) = unmet_needs({key: versions for key, versions in newest.items() if key != 26})
    assert line == "EndTxn version 0 (transactions): the broker does not know it"


def test_a_request_that_is_too_old_is_named_with_the_version_there_is() -> None:
    (line,) = unmet_needs(newest | {1: (0, 3)})
    assert line == "Fetch version 4 (reading committed records only): the broker knows it up to version 3"


def test_a_refusal_names_address_version_and_way_out() -> None:
    said = refusal("kafka:9092", "2.8", unmet_needs({}))
    for word in ("kafka:9092", "Apache Kafka 2.8", "InitProducerId", "3.9 or later"):
        assert word in said
