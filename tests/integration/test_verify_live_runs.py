"""Whole runs with real workers, verified: clean ones are clean, and a worker whose reloads go wrong is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings, whole_run

from consumers.verification.selection import Selection
from producers.rollout.role import make_parts
from producers.rollout.worker import open_worker
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from rollog.run.recorded_run import RecordedRun
from rollog.run.role_settings import rollout_settings, trainer_settings
from rollog.run.verifying import VerifyRequest, verify_recorded
from trainer.recorded.prefill import PolicyPrefill

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from support.threaded_run import WholeRun

    from producers.engines.ports import Engine, Generation, GenerationRequest
    from rollog.run.verifying import VerifyOutcome
    from rollog.settings.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

num_steps = 5
faulty = "faulty-worker"


class WrongReloads:
    """An engine that labels what follows a reload as it is told, and loads what `file_for` says instead."""

    def __init__(self, engine: Engine, file_for: Callable[[int, Path, Path], Path]) -> None:
        self._engine = engine
        self._file_for = file_for
        self._asked_before: Path | None = None
        self.name = engine.name
        self.engine_version = engine.engine_version
        self.max_context_tokens = engine.max_context_tokens

    async def start(self) -> None:
        await self._engine.start()

    async def generate(self, request: GenerationRequest) -> Generation:
        return await self._engine.generate(request)

    async def prompt_logprobs(self, token_ids: Sequence[int], request_id: str) -> None:
        """None, or it would be found out when it loads its first weights."""

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

    async def pause(self) -> None:
        await self._engine.pause()

    async def load_weights(self, path: Path, version: int) -> None:
        before, self._asked_before = self._asked_before or path, path
        await self._engine.load_weights(self._file_for(version, path, before), version)

    async def resume(self) -> None:
        await self._engine.resume()

    async def close(self) -> None:
        await self._engine.close()


def start_faulty_worker(run: WholeRun, file_for: Callable[[int, Path, Path], Path]) -> None:
    async def work(stop: threading.Event) -> None:
        settings = rollout_settings(run.settings, run.manifest, run.home, "rollout")
        parts = make_parts(settings, run.broker, Metrics(), faulty)
        parts = replace(parts, engine=WrongReloads(parts.engine, file_for))
        async with open_worker(settings, parts, worker_id=faulty, stop=stop) as worker:
            await worker.run()

    run.wait_for_version(0)
    run._start(faulty, lambda stop: asyncio.run(work(stop)))


def settings_of(home: Path, seed: int, **sections: dict[str, object]) -> Settings:
    common: dict[str, dict[str, object]] = {
        "run": {"num_steps": num_steps, "seed": seed},
        "rollout": {"capacity": 4},
        "optimizer": {"learning_rate": 3e-3},
        "groups": {"filter_zero_signal": False},
        "trainer": {"engine": "torch"},
    }
    merged = {name: common.get(name, {}) | sections.get(name, {}) for name in common.keys() | sections.keys()}
    return small_settings(home, f"verified-{seed}", **merged)


def verified(run: WholeRun, home: Path) -> VerifyOutcome:
    settings = trainer_settings(run.settings, run.manifest, home)
    recorded = RecordedRun(
        broker=run.broker,
        topics=run.topics,
        store=WeightsStore(settings.weights_uri),
        settings=run.settings,
        manifest=run.manifest,
        is_archive=False,
    )
    scorer = PolicyPrefill(
        settings.model_path, dtype="float32", temperature=1.0, micro_batch_tokens=4096, device="cpu"
    )
    request = VerifyRequest(selection=Selection(with_untrained=True))
    return verify_recorded(recorded, settings, scorer, request, home / "verify")


@pytest.mark.parametrize("seed", range(10))
def test_clean_runs_give_no_alarm(tmp_path: Path, seed: int) -> None:
    reload = ("keep", "drain", "abort")[seed % 3]
    settings = settings_of(tmp_path, seed, rollout={"reload": reload})
    with whole_run(MemoryBroker(), tmp_path, settings) as run:
        run.to_its_end()
        outcome = verified(run, tmp_path)
    assert outcome.exit_status == 0, list(outcome.lines())
    assert outcome.num_samples >= num_steps * 8
    assert outcome.report.is_complete


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_worker_that_skips_a_reload_is_named_at_the_version_it_skipped(
    tmp_path: Path, skipped: int
) -> None:
    with whole_run(MemoryBroker(), tmp_path, settings_of(tmp_path, 100 + skipped)) as run:
        run.dispatcher()
        run.trainer()
        start_faulty_worker(run, lambda version, path, before: before if version == skipped else path)
        run.wait_until_closed()
        outcome = verified(run, tmp_path)
    found = {(finding.version, finding.worker_id, *finding.fits) for finding in outcome.report.findings}
    assert found == {(skipped, faulty, skipped - 1)}, list(outcome.lines())


def test_of_two_workers_the_one_whose_labels_run_ahead_is_named(tmp_path: Path) -> None:
    with whole_run(MemoryBroker(), tmp_path, settings_of(tmp_path, 200)) as run:
        run.dispatcher()
        run.trainer()
        start_faulty_worker(run, lambda _version, _path, before: before)
        run.worker()
        run.wait_until_closed()
        outcome = verified(run, tmp_path)
    found = {(finding.version, finding.worker_id, *finding.fits) for finding in outcome.report.findings}
    assert found, list(outcome.lines())
    assert found <= {(version, faulty, version - 1) for version in range(1, num_steps + 1)}, list(
        outcome.lines()
    )
