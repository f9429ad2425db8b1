"""A worker whose model is computed by a real vLLM server, which is killed and started again under it."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from support.threaded_run import small_settings, verdict_counts, whole_run
from support.tiny_engine import Bench, close_to, max_context_tokens, save_versions
from support.vllm_server import VllmServer, server_key, vllm_server
from support.waiting import wait_until

from producers.engines.ports import Generation
from producers.engines.remote import RemoteEngine
from rollog.kernel.errors import EngineDied, WeightsError
from rollog.run.preflight.servers import inference
from schemas import Disposition, LedgerKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rollog.kernel.broker.kafka import KafkaBroker
    from rollog.kernel.broker.topics import RunTopics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.timeout(1500),
    # A connection that a killed server leaves is closed by the garbage collector.
    pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    model = tmp_path_factory.mktemp("model")
    save_versions(model, tied=True, num_versions=3)
    with vllm_server(model, model, model / "server.log") as started:
        yield started


@contextmanager
def a_bench(server: VllmServer, runner: asyncio.Runner) -> Iterator[Bench]:
    """An engine that has loaded version 1."""
    engine = RemoteEngine(
        server.settings, str(server.model), max_context_tokens=max_context_tokens, watch_seconds=3600.0
    )
    versions = {version: server.model / f"v{version}.safetensors" for version in range(3)}
    bench = Bench(engine, server.model, True, versions, runner)
    try:
        runner.run(engine.start())
        runner.run(bench.swap(1))
        yield bench
    finally:
        runner.run(engine.close())


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


def test_two_engines_on_one_server_never_share_their_weights(
    server: VllmServer, runner: asyncio.Runner
) -> None:
    async def overtaken(first: Bench, second: Bench) -> None:
        running = [
            asyncio.create_task(first.engine.generate(first.request(seed=seed, max_tokens=100)))
            for seed in range(8)
        ]
        await second.swap(1)
        request = second.request(seed=3)
        close_to(second, request, await second.engine.generate(request))
        for each in await asyncio.gather(*running, return_exceptions=True):
            is_lost = isinstance(each, EngineDied)
            assert is_lost or (isinstance(each, Generation) and {span.version for span in each.spans} == {1})
        with pytest.raises(EngineDied, match="one worker to a server"):
            await first.engine.generate(first.request())

    with a_bench(server, runner) as second, a_bench(server, runner) as first:
        runner.run(overtaken(first, second))


def test_a_file_of_another_directory_is_refused_by_the_server(
    server: VllmServer, runner: asyncio.Runner, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "v1.safetensors"
    elsewhere.write_bytes((server.model / "v1.safetensors").read_bytes())

    async def refused(bench: Bench) -> None:
        await bench.engine.pause()
        with pytest.raises(WeightsError, match="is not below ROLLOG_SERVED_WEIGHTS of the server"):
            await bench.engine.load_weights(elsewhere, 2)

    with a_bench(server, runner) as bench:
        runner.run(refused(bench))


@pytest.mark.parametrize("path", ["/pause", "/weight_info", "/collective_rpc", "/sleep", "/v1/models"])
def test_the_real_server_answers_nothing_without_the_key(server: VllmServer, path: str) -> None:
    request = urllib.request.Request(server.address + path, data=json.dumps({"method": "sleep"}).encode())
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    assert raised.value.code == (404 if path == "/sleep" else 401)
    raised.value.close()


def test_a_server_started_again_between_two_requests_is_not_credited_with_weights_it_lost(
    server: VllmServer, runner: asyncio.Runner
) -> None:
    with a_bench(server, runner) as bench:
        runner.run(bench.engine.generate(bench.request()))
        server.kill()
        server.start()
        with pytest.raises(EngineDied, match="'default', which this worker did not load"):
            runner.run(bench.engine.generate(bench.request()))
    with a_bench(server, runner) as bench:
        request = bench.request(seed=1)
        close_to(bench, request, runner.run(bench.engine.generate(request)))


def test_requests_that_are_in_a_server_that_is_killed_end_with_it(
    server: VllmServer, runner: asyncio.Runner
) -> None:
    async def killed(bench: Bench) -> None:
        requests = [bench.request(seed=seed, max_tokens=100) for seed in range(16)]
        running = [asyncio.create_task(bench.engine.generate(request)) for request in requests]
        await asyncio.sleep(0)
        server.kill()
        ended = await asyncio.gather(*running, return_exceptions=True)
        assert {type(each) for each in ended} == {EngineDied}
        with pytest.raises(EngineDied):
            await bench.engine.pause()

    with a_bench(server, runner) as bench:
        runner.run(killed(bench))


@pytest.mark.broker
def test_a_run_goes_on_when_its_server_is_killed_and_started_again(
    kafka_broker: KafkaBroker, run_topics: RunTopics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.setenv("KEY_OF_THE_SERVER", server_key)
    rollout = {
        "engine": "remote",
        "server_variable": "KEY_OF_THE_SERVER",
        "server_address": "http://127.0.0.1:1",
    }
    settings = small_settings(tmp_path, run_topics.run, run={"num_steps": 6}, rollout=rollout)
    model = tmp_path / "model"
    with vllm_server(model, tmp_path, tmp_path / "server.log", max_context_tokens=64) as server:
        settings = settings.changed(rollout={"server_address": server.address})
        assert [finding.remedy for finding in inference(settings)] == [None]
        with whole_run(kafka_broker, tmp_path, settings) as run:
            run.dispatcher()
            run.trainer()
            worker = run.worker()
            run.wait_for_version(2)
            server.kill()
            wait_until(lambda: not worker.thread.is_alive(), 60.0, "the worker to leave")
            assert [type(error) for error in worker.error] == [EngineDied]
            worker.error.clear()
            server.start()
            run.worker()
            ledger = run.wait_until_closed()
            samples = run.read_samples()
        run.audited()
    assert ledger[-1].kind is LedgerKind.CLOSE
    num_trained = verdict_counts(ledger)[Disposition.TRAINED]
    assert num_trained == 6 * 2 * 4
    finished = [sample for sample in samples if sample.status is Status.FINISHED]
    assert len(finished) >= num_trained
    assert not [sample.error_message for sample in samples if sample.status is Status.FAILED]
    assert server_key not in settings.to_manifest()
    assert "KEY_OF_THE_SERVER" in settings.to_manifest()
