"""An agent that others wrote, at a worker with real vLLM: its log-probabilities are those of the trainer's model.

The model knows nothing: what is recorded is how the agent takes nonsense. ROLLOG_AGENT_TURNS is about how many turns
are trained.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.chat_models import saved_chat_model
from support.threaded_run import small_settings, whole_run
from support.waiting import wait_until

from consumers.verification.selection import Selection
from rollog.kernel.weights import WeightsStore
from rollog.run.recorded_run import RecordedRun
from rollog.run.role_settings import trainer_settings
from rollog.run.verifying import VerifyRequest, verify_recorded
from trainer.recorded.prefill import PolicyPrefill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.threaded_run import WholeRun

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics
    from rollog.run.verifying import VerifyOutcome

_root = Path(__file__).parents[2]
num_turns = int(os.environ.get("ROLLOG_AGENT_TURNS", "32"))
context_tokens = 8192
sessions_per_step = 8
most_turns = 2
run_seconds = 600 + 10 * num_turns

pytestmark = [
    pytest.mark.broker,
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.timeout(2 * run_seconds),
]


@contextmanager
def worker_process(run: WholeRun, broker: KafkaBroker, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with an engine in processes of its own, which ends when the run is closed."""
    words = ["rollout", "--run", run.topics.run, "--broker", broker.address, "--home", str(run.home)]
    path = os.pathsep.join(path for path in sys.path if path)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rollog.cli.main", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=_root,
            env=os.environ | {"PYTHONPATH": path},
        )
    try:
        yield process
        assert process.wait(120) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def verified(run: WholeRun) -> VerifyOutcome:
    """The log-probabilities of every finished sample, computed again with the trainer's model."""
    settings = trainer_settings(run.settings, run.manifest, run.home)
    recorded = RecordedRun(
        broker=run.broker,
        topics=run.topics,
        store=WeightsStore(settings.weights_uri),
        settings=run.settings,
        manifest=run.manifest,
        is_archive=False,
    )
    scorer = PolicyPrefill(
        settings.model_path,
        dtype="float32",
        temperature=1.0,
        micro_batch_tokens=2 * context_tokens,
        device="cpu",
    )
    request = VerifyRequest(selection=Selection(with_untrained=True), require_all=True)
    return verify_recorded(recorded, settings, scorer, request, run.home / "verify")


def test_what_the_engine_said_of_an_agents_turns_is_what_the_trainer_computes(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path
) -> None:
    python = _root / ".venv" / "agents" / "verifiers" / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"{python} is missing: make agents")
    settings = small_settings(
        tmp_path,
        run_topics.run,
        run={"prefix": "rollog", "num_steps": -(-num_turns // (most_turns * sessions_per_step))},
        model={
            "path": str(
                saved_chat_model(
                    tmp_path / "chat", hidden_size=64, num_heads=1, max_position_embeddings=context_tokens
                )
            ),
            "max_context_tokens": context_tokens,
        },
        agent={
            "function": "tests.support.outside_verifiers:run",
            "python": str(python),
            "max_turns": most_turns,
            "max_tokens": 64 * most_turns,
        },
        groups={"groups_per_batch": 2, "group_size": sessions_per_step // 2, "filter_zero_signal": False},
        sampling={"max_tokens": 64},
        rollout={"engine": "vllm", "capacity": 4},
        trainer={"micro_batch_tokens": 2 * context_tokens},
    )
    with whole_run(kafka_broker, tmp_path, settings) as run:
        run.dispatcher()
        run.trainer()
        run.wait_for_version(0)
        with worker_process(run, kafka_broker, tmp_path / "worker.log") as worker:
            # A worker that has failed ends the wait.
            wait_until(lambda: run._all_ended() or bool(worker.poll()), run_seconds, "every role to end")
        samples = run.finished_samples()
        run.audited()
        outcome = verified(run)
    assert outcome.exit_status == 0, list(outcome.lines())
    assert sum(len(sample.turns) for sample in samples) >= num_turns
    forks = Counter(fork.reason for sample in samples for fork in sample.forks)
    turns = sum(len(sample.turns) for sample in samples)
    figures = f"{len(samples)} sessions, {turns} turns, forks {dict(forks)}"
    print("\n".join([figures, *outcome.lines()]))  # noqa: T201  # the figures of a long run
