"""Every way of carrying samples gives back what was put in."""

from __future__ import annotations

import pickle
import random

import pytest

from benchmarks.data_plane.samples import a_sample
from benchmarks.data_plane.transports import nine_kilobytes
from benchmarks.data_plane.ways import ways
from schemas.codec import encode


@pytest.mark.parametrize("name", ways)
def test_samples_come_back(name: str) -> None:
    way = ways[name]
    noise = random.Random(0)
    held = [way.prepared(a_sample(number, noise, nine_kilobytes)) for number in range(way.size)]
    message = way.dumps(held)
    if name in {"kafka_python", "confluent", "auto"}:
        assert way.loads(message[0]) == held[0]
    elif way.size > 1:
        assert pickle.dumps(way.loads(message)) == pickle.dumps(held)
    else:
        assert way.loads(message) == held[0]


def test_the_samples_are_as_large_as_said() -> None:
    assert 8_900 < len(encode(a_sample(0, random.Random(0), nine_kilobytes))) < 9_100
