"""Ways of bringing samples from one process to another: rollog's log through each client, and what others use.

The others are shapes, not their packages: the same serialisation and the same pattern of sockets or queues as in their
sources, written anew, with a relay of our own where they have a server. None of them keeps anything.

    redis           ServiceNow/PipelineRL, pipelinerl/streams.py
                    pickle; a server acknowledges each entry, and is asked for one after the other
    zmq             PrimeIntellect-ai/prime-rl, src/prime_rl/transport/zmq.py
                    msgpack by msgspec; batches are pushed to the reader
    queue           huggingface/trl, trl/experimental/async_grpo
                    the standard library's queue between processes
    transfer_queue  TransferQueue/TransferQueue, transfer_queue/utils/zmq_utils.py
                    pickle; batches are put to a storage process and got from it
"""

from __future__ import annotations

import pickle
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import zmq

from rollog.kernel.broker.kafka import KafkaBroker
from rollog.kernel.broker.ports import TopicPartition
from schemas.codec import decode, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollog.kernel.broker.clients import ClientName
    from schemas import Sample

    Write = Callable[[Any], None]
    Reading = Callable[[], Iterator[Any]]

topic = "data-plane-transports"
_entry, _batch = 8, 64
"""Samples of one message: a group for redis, a batch where batches travel."""


class Place(NamedTuple):
    """Where a way meets: the broker's address, that of a socket, and a queue."""

    kafka: str
    socket: str
    queue: Any


class Way(NamedTuple):
    """How samples travel. `write` and `read` hand over and yield messages of `size` samples each."""

    prepared: Callable[[Sample], Any]
    """A sample as its writer holds it; not timed."""
    dumps: Callable[[list[Any]], Any]
    loads: Callable[[Any], object]
    writer: Callable[[Place], Any]
    reader: Callable[[Place], Any]
    size: int = 1
    has_relay: bool = False


def kafka(client: ClientName) -> Way:
    """Through the broker port."""

    @contextmanager
    def writer(place: Place) -> Iterator[Write]:
        with KafkaBroker(place.kafka, client=client).producer(client_id="writer") as producer:

            def write(message: Any) -> None:
                producer.send(topic, 0, message[0], headers=message[1])

            # To a partition that nobody reads: what is asked once about a topic is no part of the time.
            producer.send(topic, 1, b"").offset(60.0)
            yield write
            producer.flush(120.0)

    @contextmanager
    def reader(place: Place) -> Iterator[Reading]:
        at = TopicPartition(topic, 0)
        with KafkaBroker(place.kafka, client=client).consumer(client_id="reader") as consumer:
            consumer.assign(consumer.end_offsets([at]))
            consumer.poll(0.3)

            def read() -> Iterator[Any]:
                while True:
                    yield from (record.value for record in consumer.poll(1.0))

            yield read

    return Way(
        prepared=lambda sample: sample,
        dumps=lambda samples: (encode(samples[0]), headers_of(samples[0])),
        loads=decode,
        writer=writer,
        reader=reader,
    )


def _as_lists(sample: Sample) -> dict[str, Any]:
    """As those hold a sample that know no arrays."""
    return {
        "sample_id": sample.sample_id,
        "group_id": sample.group_id,
        "prompt_ids": sample.prompt_token_ids.tolist(),
        "completion_ids": sample.token_ids.tolist(),
        "logprobs": sample.behaviour_logprobs.tolist(),
        "mask": sample.loss_mask.tolist(),
        "text": sample.response_text,
        "reward": sample.reward,
    }


def _as_arrays(sample: Sample) -> dict[str, Any]:
    lists = _as_lists(sample)
    return lists | {
        "prompt_ids": sample.prompt_token_ids,
        "completion_ids": sample.token_ids,
        "logprobs": sample.behaviour_logprobs,
        "mask": sample.loss_mask,
    }


@contextmanager
def _put(place: Place) -> Iterator[Write]:
    """To a relay, which acknowledges each message."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(place.socket)

        def write(message: bytes) -> None:
            socket.send_multipart([b"put", message])
            socket.recv()

        yield write


@contextmanager
def _got(place: Place) -> Iterator[Reading]:
    """From a relay, one message for each question."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(place.socket)

        def read() -> Iterator[bytes]:
            while True:
                socket.send_multipart([b"get", b""])
                yield socket.recv()

        yield read


def relay(place: Place) -> None:
    """Keeps what was put until it is asked for. Ends with its process."""
    waiting: deque[bytes] = deque()
    asking: deque[bytes] = deque()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(place.socket)
        while True:
            who, what, message = socket.recv_multipart()
            if what == b"put":
                waiting.append(message)
                socket.send_multipart([who, b"ok"])
            else:
                asking.append(who)
            while waiting and asking:
                socket.send_multipart([asking.popleft(), waiting.popleft()])


@contextmanager
def _pushed(place: Place) -> Iterator[Write]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.bind(place.socket)

        def write(message: bytes) -> None:
            socket.send_multipart([b"0", message], copy=False)

        yield write
        socket.close(linger=60_000)


@contextmanager
def _pulled(place: Place) -> Iterator[Reading]:
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.connect(place.socket)

        def read() -> Iterator[Any]:
            while True:
                yield socket.recv_multipart(copy=False)[1].buffer

        yield read


@contextmanager
def _queued(place: Place) -> Iterator[Write]:
    yield place.queue.put
    place.queue.close()
    place.queue.join_thread()


@contextmanager
def _taken(place: Place) -> Iterator[Reading]:
    def read() -> Iterator[Any]:
        while True:
            yield place.queue.get()

    yield read


def _unpickled(message: bytes) -> object:
    return pickle.loads(message)  # noqa: S301  # what this benchmark has pickled itself


def _same(message: Any) -> object:
    return message


def _first(samples: Sequence[Any]) -> object:
    return samples[0]


ways: dict[str, Way] = {
    "kafka_python": kafka("kafka-python"),
    "confluent": kafka("confluent"),
    "auto": kafka("auto"),
    "redis": Way(_as_lists, pickle.dumps, _unpickled, _put, _got, _entry, has_relay=True),
    "zmq": Way(_as_lists, msgspec.msgpack.encode, msgspec.msgpack.decode, _pushed, _pulled, _batch),
    "queue": Way(_as_lists, _first, _same, _queued, _taken),
    "transfer_queue": Way(_as_arrays, pickle.dumps, _unpickled, _put, _got, _batch, has_relay=True),
}
"""By name; the first three are rollog's."""
