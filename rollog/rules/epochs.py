"""Who works: one dispatcher and one trainer at a time, told from `control`.

A role that takes over commits its epoch, one more than the highest of its kind, before it writes anything else. So the
log itself says whether a process that may not write any more was replaced, or only took too long:

| `control` holds, of its kind                 | the process       | what it raises                                    |
| ---                                          | ---               | ---                                               |
| a higher epoch than its own                  | was replaced      | Superseded: it ends for good                      |
| none higher                                  | took too long     | Expired: it is started again and takes over       |

Kafka refuses both alike, and from the moment at which a successor begins, which commits its epoch a little later: so
whoever is refused waits a moment for that epoch. An epoch is committed by its own transactional id, so a successor that
was fenced before its commit has not taken over: of two that start again at once, the one that commits first stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from rollog.kernel.broker.ports import TopicPartition
from rollog.kernel.broker.reading import read_until
from rollog.kernel.errors import BrokerError, BrokerTimeout, Expired, ProducerFenced, Superseded
from rollog.kernel.logs import get_logger
from rollog.rules.reading import control_record
from schemas import DispatcherEpoch, TrainerEpoch
from schemas.codec import encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from rollog.kernel.broker.ports import Broker, TransactionalProducer

Epoch = DispatcherEpoch | TrainerEpoch
Kind = TypeVar("Kind", DispatcherEpoch, TrainerEpoch)

log = get_logger("epochs")

commit_seconds = 30.0
successor_seconds = 2.0
"""How long a process that the broker refuses waits for the epoch of whoever may have taken over."""
_num_looks = 10


def taken_epoch(broker: Broker, control: str, producer: TransactionalProducer, own: Kind) -> Kind:
    """Commit the next epoch of the kind and name of `own` and return it; `producer` has fenced the earlier ones.

    On return everything up to that record can be read: no open transaction of another role hides a part of it.

    Raises Superseded where another process took the epoch first, Expired where `producer` ended without one,
    BrokerTimeout where an outcome is unknown.
    """
    newest = newest_epoch(broker, control, type(own))
    while True:
        own = replace(own, epoch=1 if newest is None else newest.epoch + 1)
        try:
            producer.begin()
            sent = producer.send(control, 0, encode(own), headers=headers_of(own))
            producer.commit(commit_seconds)
        except (ProducerFenced, BrokerTimeout) as error:
            raise why_ended(broker, control, own, error) from error
        # A role that was suspended in a transaction of its own hides what follows; that may be a higher epoch.
        newest = newest_epoch(broker, control, type(own), end=sent.offset(0.0) + 1)
        if newest == own:
            return own


def newest_epoch(broker: Broker, control: str, kind: type[Kind], end: int | None = None) -> Kind | None:
    """The newest epoch of one kind, read up to `end` or what is committed now; None before any.

    Epochs count up by one, and of two records of one epoch the first counts: another one cannot be
    (`rollog.rules.control_log`), whoever wrote it.
    """
    place = TopicPartition(control, 0)
    with broker.consumer(client_id="epochs") as consumer:
        ends = consumer.end_offsets([place]) if end is None else {place: end}
        records = map(control_record, read_until(consumer, consumer.beginning_offsets([place]), ends))
        newest: Kind | None = None
        for record in records:
            if isinstance(record, kind) and record.epoch == (1 if newest is None else newest.epoch + 1):
                newest = record
    return newest


def why_ended(
    broker: Broker, control: str, own: Kind, error: BrokerError
) -> Superseded | Expired | BrokerError:
    """What `error`, met in writing under the epoch `own`, means: Superseded, or Expired where no other took over.

    An error that does not say that the broker refused, a time-out say, stays what it is unless another took over. So it
    does where `control` cannot be read.
    """
    try:
        num_looks = _num_looks if isinstance(error, ProducerFenced) else 0
        successor = _successor(broker, control, own, num_looks)
    except BrokerError as unread:
        log.warning("cannot tell whether another process took over", error=unread)
        return error
    if successor is not None:
        return superseded(successor, own)
    return expired(own, error) if isinstance(error, ProducerFenced) else error


def _successor(broker: Broker, control: str, own: Kind, num_looks: int) -> Kind | None:
    """Who took over from `own`, looked for until so many looks in a row found nothing new; None where nobody did."""
    place = TopicPartition(control, 0)
    with broker.consumer(client_id="successor") as consumer:
        consumer.assign(consumer.end_offsets([place]))
        newest = newest_epoch(broker, control, type(own))
        while num_looks > 0 and not (newest is not None and is_successor(newest, own)):
            if not consumer.poll(successor_seconds / _num_looks):
                num_looks -= 1
            else:
                newest = newest_epoch(broker, control, type(own))
    return newest if newest is not None and is_successor(newest, own) else None


def is_successor(other: Epoch, own: Epoch) -> bool:
    """Whether the process of `other` took over from that of `own`, or took the epoch that `own` was about to take."""
    return other.epoch > own.epoch or (other.epoch == own.epoch and _name(other) != _name(own))


def superseded(other: Epoch, own: Epoch) -> Superseded:
    """What a process raises when it reads of its successor."""
    role = _role(own)
    return Superseded(
        f"the {role} {_name(other)} with epoch {other.epoch} has taken over from this one, {_name(own)} (epoch "
        f"{own.epoch}); only one may run: leave the newer one alone"
    )


def expired(own: Epoch, error: BaseException) -> Expired:
    """What a process raises that may not write any more although nobody took over."""
    return Expired(
        f"the {_role(own)} {_name(own)} (epoch {own.epoch}) was suspended, or waited, longer than the broker allows, "
        f"and no other has taken over: start it again, it goes on where it was ({error})"
    )


def _name(record: Epoch) -> str:
    return record.trainer_id if isinstance(record, TrainerEpoch) else record.dispatcher_id


def _role(record: Epoch) -> str:
    return "trainer" if isinstance(record, TrainerEpoch) else "dispatcher"
