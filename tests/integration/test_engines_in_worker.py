"""A real worker process with a real engine on a real broker: it works, leaves cleanly, and dies completely."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load, save
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage

from producers.processes.ending import process_tree
from rollog.demo.model import load_tokenizer, model_config, new_model, save_tokenizer
from schemas import Sample, SamplingParameters, Status, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.session_kafka import SessionKafka

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from schemas import RolloutTask

pytestmark = [pytest.mark.broker, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]
start_seconds = 200.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_tokenizer(directory)
    model_config().save_pretrained(directory)
    return directory


@pytest.fixture
def stage(kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path) -> Iterator[Stage]:
    with a_stage(kafka_broker, replace(run_topics, prefix="rollog-test"), tmp_path, weights_of(0)) as built:
        yield built


def weights_of(seed: int) -> bytes:
    parameters = new_model(seed).named_parameters()
    data: bytes = save({name: parameter.detach().clone() for name, parameter in parameters})
    return data


@contextmanager
def starting_process(
    stage: Stage, kafka: SessionKafka, model: Path, engine: str, *extension: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that was heard; it is killed at the end, if it still runs."""
    tests = Path(__file__).parents[1]
    paths = [str(tests.parent), str(tests), str(tests / "unit" / "rollout")]
    arguments = [kafka.address, stage.topics.run, str(stage.home), str(model), engine, *extension]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.rollout_process", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )
    try:
        found = wait_until(lambda: stage.status() or process.poll(), start_seconds, "a heartbeat")
        assert isinstance(found, WorkerStatus), "the worker process ended"
        stage.worker_id = found.worker_id
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def worker_process(stage: Stage, kafka: SessionKafka, model: Path, engine: str) -> Iterator[int]:
    """The pid of a worker that serves."""
    with starting_process(stage, kafka, model, engine) as process:
        stage.give_grant()
        stage.wait_until_serving(0, start_seconds)
        yield process.pid


def descendants(pid: int) -> set[int]:
    return set(process_tree(pid)) - {pid}


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def order_some(stage: Stage, count: int, first: int = 0, **changes: Any) -> list[RolloutTask]:
    sampling = SamplingParameters(temperature=1.0, max_tokens=16)
    tasks = [stage.task(first + n, seed=n, sampling=sampling, reward="", **changes) for n in range(count)]
    for task in tasks:
        stage.order(task)
    return tasks


def logprobs_of(sample: Sample, weights: bytes) -> torch.Tensor:
    model: Any = new_model(0)
    model.load_state_dict(load(weights), strict=False)
    sequence = torch.tensor([[*sample.prompt_token_ids.tolist(), *sample.token_ids.tolist()]])
    num_prompt = len(sample.prompt_token_ids)
    with torch.inference_mode():
        logprobs = model.eval()(sequence).logits[0, num_prompt - 1 : -1].log_softmax(-1)
    chosen: torch.Tensor = logprobs.gather(1, sequence[0, num_prompt:, None])[:, 0]
    return chosen


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_worker_makes_scored_samples_follows_a_reload_and_dies_with_all_its_processes(
    stage: Stage, embedded_kafka: SessionKafka, model: Path, engine: str
) -> None:
    with worker_process(stage, embedded_kafka, model, engine) as pid:
        order_some(stage, 20)
        before = stage.samples(20)
        newer = weights_of(1)
        stage.send(stage.topics.weights, stage.store.publish(1, newer))
        stage.wait_until_serving(1)
        order_some(stage, 20, first=20)
        after = stage.samples(40)[20:]
        everybody = {pid, *descendants(pid)}
        assert len(everybody) >= {"transformers": 2, "vllm": 3}[engine]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, everybody)), message=f"the end of {everybody}")
    tokenizer = load_tokenizer(model)
    for samples, weights, version in ((before, weights_of(0), 0), (after, newer, 1)):
        for sample in samples:
            assert sample.status is Status.FINISHED, sample.error_message
            assert sample.reward == len(tokenizer.decode(sample.token_ids.tolist(), skip_special_tokens=True))
            assert [segment.version for segment in sample.segments] == [version]
            expected = logprobs_of(sample, weights)
            torch.testing.assert_close(torch.tensor(sample.behaviour_logprobs), expected, rtol=0, atol=1e-4)


def test_sigterm_makes_a_worker_end_its_tasks_and_leave(
    stage: Stage, embedded_kafka: SessionKafka, model: Path
) -> None:
    with worker_process(stage, embedded_kafka, model, "transformers") as pid:
        order_some(stage, 8, min_version=7)
        stage.wait_for_status(lambda status: len(status.open_tasks) == 8)
        everybody = {pid, *descendants(pid)}
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(map(is_running, everybody)), 30, f"the end of {everybody}")
    assert {sample.status for sample in stage.samples(8)} == {Status.CANCELLED}
    assert stage.values(stage.topics.workers)[-1] is None


def engine_process_of(pid: int) -> int | None:
    """vLLM's process, once its parent has started it."""
    for child in descendants(pid):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


@pytest.mark.parametrize("moment", ["importing", "waiting for its process"])
def test_sigterm_ends_a_worker_whose_engine_would_never_come_up(
    stage: Stage, embedded_kafka: SessionKafka, model: Path, moment: str
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    with starting_process(stage, embedded_kafka, model, "vllm", "support.hanging_worker.Hanging") as process:
        if moment != "importing":
            wait_until(lambda: engine_process_of(process.pid), start_seconds, "vLLM's process")
        everybody = {process.pid, *descendants(process.pid)}
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, start_seconds, "the end of the worker")
        wait_until(lambda: not any(map(is_running, everybody)), 30, f"the end of {everybody}")
    assert process.returncode == 0
    assert stage.values(stage.topics.workers)[-1] is None


def test_a_model_that_vllm_starts_with_and_cannot_run_is_found_by_the_trial_request(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    save_tokenizer(model)
    config = model_config()
    config.num_attention_heads = config.num_key_value_heads = config.hidden_size // 16
    config.save_pretrained(model)
    started = subprocess.run(
        [sys.executable, "-c", start_vllm, str(model), str(tmp_path / "home")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=start_seconds,
        check=False,
    )
    assert "refused: vLLM's process ended" in started.stdout, started.stderr[-2000:]


start_vllm = """
import asyncio, sys
from pathlib import Path
from producers.engines.vllm import VllmEngine
from rollog.kernel.errors import EngineError

async def start():
    engine = VllmEngine(sys.argv[1], max_context_tokens=64, capacity=4, home=Path(sys.argv[2]))
    try:
        await engine.start()
    except EngineError as error:
        print(f"refused: {error}")
    finally:
        await engine.close()

if __name__ == "__main__":
    asyncio.run(start())
"""
