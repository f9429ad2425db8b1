"""Records with something wrong in them, drawn at random: bytes that were damaged, and records with other values."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas import (
    DatasetEnd,
    DeadLetter,
    DispatcherEpoch,
    Fence,
    Grant,
    LedgerRecord,
    Revoke,
    RolloutTask,
    RunClosed,
    RunManifest,
    Sample,
    Status,
    Stopped,
    TaskBatch,
    WeightVersion,
    WorkerStatus,
)
from schemas.codec import SchemaError, decode, encode
from schemas.headers import headers_of

if TYPE_CHECKING:
    import random

    from rollog.kernel.broker.ports import Record

_integers = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**62, 2**63 - 1)
_floats = (0.0, -1.0, 1e308, math.nan, math.inf, -math.inf)
_texts = ("", "\0", "x" * 300, "../../etc", "1.1", "9.9.9", "é\u2028")
_headers = (b"", b"9", b"-1", b"x\xff", b"9" * 40)


@dataclass(frozen=True)
class Mutants:
    """Mutants of good records, the same for the same seed."""

    draw: random.Random

    def value(self, value: bytes) -> bytes:
        """Other bytes in the place of these: about half of them can be decoded."""
        if self.draw.random() < 0.4:
            return self.damaged(value)
        try:
            return encode(self.altered(decode(value)))
        except SchemaError:
            return self.damaged(value)

    def impossible(self, record: Record, num_partitions: int) -> tuple[int, bytes, list[tuple[str, bytes]]]:
        """Partition, value and headers of a well-formed record in the place of this one: none that can be."""
        decoded = decode(record.value or b"")
        number = self.draw.randrange(1 << 20, 1 << 40)
        match decoded:
            case Sample():
                change: dict[str, Any] = self.draw.choice(
                    [
                        {"group_id": number, "task_id": f"1.{number}"},
                        {"task_id": f"{number}.1"},
                        {"worker_id": "nobody"},
                        {"grant_id": "9.9"},
                        {"seed": decoded.seed ^ 1, "status": Status.FINISHED},
                        {"attempt": decoded.attempt + 1000},
                    ]
                )
                sample = dataclasses.replace(decoded, **change)
                return sample.group_id % num_partitions, _encoded(sample, decoded), list(headers_of(sample))
            case WorkerStatus():
                changed: Any = dataclasses.replace(decoded, grant_id="9.9", epoch=number, num_scoring=1 << 40)
            case RolloutTask():
                changed = dataclasses.replace(decoded, epoch=number, task_id=f"{number}.1")
            case TaskBatch(tasks=tasks):
                changed = TaskBatch(
                    tasks=tuple(
                        dataclasses.replace(task, epoch=number, task_id=f"{number}.1") for task in tasks
                    )
                )
            case Fence():
                changed = Fence(epoch=number)
            case LedgerRecord():
                changed = dataclasses.replace(decoded, sequence=number)
            case WeightVersion():
                changed = self.draw.choice(
                    [
                        dataclasses.replace(decoded, version=number),
                        dataclasses.replace(decoded, version=decoded.version + 1),
                        dataclasses.replace(decoded, sha256="f" * 64),
                    ]
                )
            case DeadLetter():
                changed = dataclasses.replace(decoded, offset=number)
            case RunManifest():
                changed = dataclasses.replace(decoded, config_sha256="f" * 64, weights_uri="file:///nowhere")
            case _:
                changed = self.draw.choice(
                    [
                        DispatcherEpoch(epoch=2**63 - 1, dispatcher_id="x"),
                        DispatcherEpoch(epoch=number, dispatcher_id="x"),
                        Grant(grant_id="9.9", epoch=10**9, worker_id="worker-1", partition=0, start_offset=0),
                        Grant(grant_id="9.9", epoch=1, worker_id="x", partition=number, start_offset=0),
                        Revoke(grant_id="1.1", epoch=number, worker_id="worker-1", reason="x"),
                        DatasetEnd(epoch=number, last_group_id=0),
                        DatasetEnd(epoch=1, last_group_id=-7),
                        Stopped(epoch=number),
                        RunClosed(epoch=number),
                    ]
                )
        return record.partition, encode(changed), list(headers_of(changed))

    def headers(self, headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """Mostly the same headers."""
        if self.draw.random() < 0.8:
            return headers
        return [(name, self.draw.choice([*_headers, value])) for name, value in headers]

    def damaged(self, value: bytes) -> bytes:
        """Cut off, flipped, replaced, continued, or random."""
        data, draw = bytearray(value), self.draw
        match draw.randrange(5):
            case 0:
                return bytes(data[: draw.randrange(len(data))])
            case 1:
                for _ in range(draw.randint(1, 4)):
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            case 2:
                return draw.randbytes(draw.randrange(200))
            case 3:
                data += draw.randbytes(draw.randint(1, 9))
            case _:
                begin = draw.randrange(len(data))
                data[begin : begin + draw.randint(1, 20)] = draw.randbytes(draw.randint(0, 20))
        return bytes(data)

    def altered(self, record: Any) -> Any:
        """The record with one to three other values."""
        names = [field.name for field in dataclasses.fields(record)]
        chosen = self.draw.sample(names, min(len(names), self.draw.randint(1, 3)))
        return dataclasses.replace(record, **{name: self._other(getattr(record, name)) for name in chosen})

    def _other(self, value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            return self.altered(value)
        return self.draw.choice(self._others(value))

    def _others(self, value: Any) -> list[Any]:
        others: list[Any] = [value]
        match value:
            case bool():
                others = [not value]
            case Enum():
                others = list(type(value))
            case int():
                others = [*_integers, value + 1, value - 1]
            case float():
                others = list(_floats)
            case str():
                others = [*_texts, value + "x", value[:-1]]
            case np.ndarray():
                others = [value[:-1], np.concatenate([value, value]), value[:0], value[::-1].copy()]
            case dict():
                others = [{}]
            case tuple() if value:
                others = [(), value[:-1], value + value[-1:], value[::-1], tuple(map(self._other, value))]
            case None:
                others = [None, 0, 1.0, "x"]
        return others


def _encoded(sample: Sample, otherwise: Sample) -> bytes:
    """The sample, or the other one under a task of nobody's, where the first is not even valid."""
    try:
        return encode(sample)
    except SchemaError:
        return encode(dataclasses.replace(otherwise, task_id="7.7"))
