"""Publishing takes no memory for a version: the model's, and in a store elsewhere two shards, are all there is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

publishing = """
import json, resource, sys, tempfile, time
import numpy as np
from rollog.kernel.versions.manifest import new_manifest_name
from rollog.kernel.versions.shards import ShardedSink
from rollog.kernel.versions.targets import ElsewhereFiles
from rollog.kernel.versions.tensors import TensorSpec
from rollog.kernel.weights import WeightsStore

mib = 1 << 20
form, model_mib, shard_mib, tensor_mib = sys.argv[1], *map(int, sys.argv[2:])


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def arrive(name, data):
    arrived.append(len(data))
    time.sleep(0.01)


def export(sink):
    table = [TensorSpec(f"layer-{number:03}", "F32", (tensor_mib * mib // 4,)) for number in range(len(model))]
    sink.begin(table)
    for spec, tensor in zip(table, model, strict=True):
        sink.add(spec, tensor.view(np.uint8).data)


model = [np.full(tensor_mib * mib // 4, 0.5, np.float32) for _ in range(model_mib // tensor_mib)]
before, arrived, began = peak(), [], time.monotonic()
with tempfile.TemporaryDirectory() as directory:
    if form == "disk":
        WeightsStore(directory).publish_tensors(1, export, most_bytes=shard_mib * mib)
    elif form == "file":
        WeightsStore(directory).publish(1, export)
    else:
        files = ElsewhereFiles(arrive, print, most_bytes=2 * shard_mib * mib)
        with ShardedSink(files, new_manifest_name(1), most_bytes=shard_mib * mib) as sink:
            export(sink)
            sink.finish()
        assert sum(arrived) > model_mib * mib
print(json.dumps({"before": before, "beyond": peak() - before, "seconds": time.monotonic() - began}))
"""


def beyond_the_model_mib(form: str, model_mib: int, shard_mib: int, tensor_mib: int = 8) -> int:
    ended = subprocess.run(
        [sys.executable, "-c", publishing, form, str(model_mib), str(shard_mib), str(tensor_mib)],
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["before"] > model_mib
    beyond: int = found["beyond"]
    return beyond


slack_mib = 24
"""Threads, their stacks, and what the allocator keeps."""


@pytest.mark.parametrize(("form", "num_shards"), [("disk", 0), ("file", 0), ("elsewhere", 2)])
def test_memory_beyond_the_model_is_that_of_two_shards(form: str, num_shards: int) -> None:
    assert beyond_the_model_mib(form, 192, 32) <= num_shards * 32 + slack_mib


def test_of_tensors_larger_than_a_shard_one_is_gathered_when_the_one_before_has_arrived() -> None:
    assert beyond_the_model_mib("elsewhere", 180, 40, tensor_mib=60) <= 60 + slack_mib


@pytest.mark.slow
@pytest.mark.parametrize(("form", "num_shards"), [("disk", 0), ("elsewhere", 2)])
def test_memory_beyond_a_model_of_one_gibibyte_is_that_of_two_shards(form: str, num_shards: int) -> None:
    assert beyond_the_model_mib(form, 1024, 64) <= num_shards * 64 + slack_mib
