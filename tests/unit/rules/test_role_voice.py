"""Heartbeats of dispatcher and trainer come from a thread of their own, and change nothing where they fail."""

from __future__ import annotations

import pytest
from prometheus_client import Gauge
from support.waiting import wait_until

from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.ports import TopicSpec
from rollog.kernel.errors import Superseded
from rollog.rules.role_voice import RoleHeartbeats, RoleVoice, StartingRole
from rollog.rules.standing_still import Cause
from schemas import RoleStatus, RunRole
from schemas.codec import decode_as

topic = "workers"


def a_broker() -> MemoryBroker:
    broker = MemoryBroker()
    broker.add_topic(TopicSpec(name=topic, num_partitions=1))
    return broker


def a_voice(now: float = 0.0) -> RoleVoice:
    gauge = Gauge("still", "seconds", registry=None)
    return RoleVoice(RunRole.TRAINER, "t", epoch=2, version=3, clock=lambda: now, gauge=gauge)


def values(broker: MemoryBroker) -> list[bytes | None]:
    return [record.value for record in broker.log(topic, 0).read(0, 10_000)[0]]


def statuses(broker: MemoryBroker) -> list[RoleStatus]:
    return [decode_as(RoleStatus, value) for value in values(broker) if value is not None]


def test_the_newest_status_is_written_again_and_again_while_the_loop_is_away_and_a_tombstone_last() -> None:
    broker, voice = a_broker(), a_voice()
    with RoleHeartbeats(broker, topic, lambda: voice.status, every_seconds=0.005):
        wait_until(lambda: len(values(broker)) >= 3, message="heartbeats of a loop that does not turn")
        voice.busy(Cause(what="the trainer computes version 4", waits_on="trainer"))
        wait_until(lambda: statuses(broker)[-1].waiting_for, message="what the role does now")
    found = statuses(broker)
    assert {(status.role, status.epoch, status.version) for status in found} == {(RunRole.TRAINER, 2, 3)}
    assert values(broker)[-1] is None
    assert {record.key for record in broker.log(topic, 0).read(0, 10_000)[0]} == {b"trainer"}


def test_one_that_was_overtaken_does_not_write_the_tombstone_of_its_successor() -> None:
    broker, voice = a_broker(), a_voice()

    def work_until_overtaken() -> None:
        with RoleHeartbeats(broker, topic, lambda: voice.status, every_seconds=0.005):
            wait_until(lambda: values(broker), message="a heartbeat")
            raise Superseded("another one took over")

    with pytest.raises(Superseded):
        work_until_overtaken()
    assert None not in values(broker)


def test_what_is_waited_for_is_asked_after_ten_seconds_and_once_a_second() -> None:
    voice, asked = a_voice(), []

    def cause() -> Cause:
        asked.append(1)
        return Cause(what="group 3 lacks 1 of 4", waits_on="worker", remedy="look")

    for tenth in range(120):
        voice.look(3, tenth / 10, cause)
    assert len(asked) == 2
    assert (voice.status.waits_on, voice.status.waiting_for) == ("worker", "group 3 lacks 1 of 4; look")
    voice.look(4, 12.0, cause)
    assert (voice.status.version, voice.status.waiting_for) == (4, "")


def test_a_role_says_its_phase_before_it_has_a_voice() -> None:
    broker, starting, voice = a_broker(), StartingRole(RunRole.TRAINER), a_voice()
    with RoleHeartbeats(broker, topic, lambda: starting.status, every_seconds=0.005) as heartbeats:
        starting.enters("loading the model")
        wait_until(lambda: any(each.phase for each in statuses(broker)), message="its phase")
        heartbeats.speak_for(lambda: voice.status)
        wait_until(lambda: statuses(broker)[-1].version == 3, message="what its voice says")
    assert {each.phase for each in statuses(broker)} <= {"", "loading the model"}
    assert statuses(broker)[-1].phase == ""
    assert values(broker)[-1] is None
