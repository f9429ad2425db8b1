"""What every inference engine promises, over real tiny random models (tied and untied) and all engines."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.exports import export_of
from support.tiny_engine import (
    Bench,
    LentEngine,
    SmallTokenizer,
    close_to,
    end_token_id,
    in_flight,
    makers,
    max_context_tokens,
    save_versions,
    tokens_per_pass,
)
from support.vllm_server import vllm_server
from support.worker_thread import a_stage, a_worker

from producers.engines.ports import Generation, GenerationRequest, VersionSpan
from producers.engines.remote import RemoteEngine
from producers.engines.stop_texts import StopTexts
from producers.rollout.resumption import ResumableResponse
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.errors import EngineError, WeightsError
from rollog.kernel.metrics import Metrics
from rollog.kernel.weights import WeightsStore
from schemas import FinishReason, SamplingParameters, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.worker_thread import Stage

    from producers.engines.ports import Engine
    from rollog.kernel.broker.topics import RunTopics
    from schemas import Float32Array, Sample, WorkerStatus

# vLLM leaves the socket context of its start-up to the garbage collector.
pytestmark = [pytest.mark.filterwarnings("ignore:Unclosed context:ResourceWarning"), pytest.mark.timeout(300)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (name, tied),
            id=f"{name}-{'tied' if tied else 'untied'}",
            # A second vLLM takes most of a minute to start; the first one's weights are those of the demo's kind.
            marks=[
                pytest.mark.engine,
                *([pytest.mark.slow] if (name, tied) == ("vllm", False) else []),
                *([pytest.mark.slow, pytest.mark.timeout(900)] if name == "remote" else []),
            ],
        )
        for name in (*makers, "remote")
        for tied in (True, False)
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    name, tied = request.param
    if name in {"vllm", "remote"}:
        pytest.importorskip("vllm", reason="vLLM is not installed")
    model = tmp_path_factory.mktemp("model")
    versions = save_versions(model, tied)
    with asyncio.Runner() as runner, made(name, model, tmp_path_factory.getbasetemp()) as engine:
        runner.run(engine.start())
        sockets = os.environ.get("VLLM_RPC_BASE_PATH")
        yield Bench(engine, model, tied, versions, runner)
        runner.run(engine.close())
    # Neither the directory nor its name stays: a server of vLLM started next would look for it.
    assert "VLLM_RPC_BASE_PATH" not in os.environ
    if name == "vllm":
        assert sockets is not None
        assert not Path(sockets).exists()


@contextmanager
def made(name: str, model: Path, weights: Path) -> Iterator[Engine]:
    """An engine that is not started, and what it needs while it lives."""
    if name != "remote":
        yield makers[name](str(model))
        return
    with vllm_server(model, weights, model / "server.log", tokens_per_pass=tokens_per_pass) as server:
        yield RemoteEngine(server.settings, str(model), max_context_tokens=max_context_tokens)


def test_sockets_and_files_of_vllm_lie_in_its_private_directory(bench: Bench) -> None:
    if bench.engine.name != "vllm":
        pytest.skip("has neither")
    directory = Path(os.environ["VLLM_RPC_BASE_PATH"])
    found = list(directory.iterdir())
    assert any(each.is_socket() for each in found)
    assert any(each.name.startswith("vllm_dist_") for each in found)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_nothing_is_generated_before_weights_are_loaded(bench: Bench) -> None:
    if bench.loaded:
        pytest.skip("weights were loaded by an earlier test of this engine")
    with pytest.raises(EngineError, match="no weights"):
        bench.run(bench.engine.generate(bench.request()))


def test_many_concurrent_requests_end_with_covering_spans_and_matching_logprobs(bench: Bench) -> None:
    async def scenario() -> list[tuple[GenerationRequest, Generation]]:
        await bench.swap(1)
        requests = [bench.request(seed=seed) for seed in range(32)]
        return await bench.generated(requests)

    for request, generation in bench.run(scenario()):
        assert 1 <= len(generation.token_ids) <= request.sampling.max_tokens
        assert [(span.version, span.start, span.end) for span in generation.spans] == [
            (1, 0, len(generation.token_ids))
        ]
        ended = generation.token_ids[-1] == end_token_id
        assert generation.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        close_to(bench, request, generation)


def test_more_prompt_tokens_than_one_forward_pass_takes_are_generated_from(bench: Bench) -> None:
    assert tokens_per_pass < 48 * 100

    async def scenario() -> list[tuple[GenerationRequest, Generation]]:
        await bench.swap(1)
        requests = [bench.request(seed=seed, num_prompt_tokens=100, max_tokens=4) for seed in range(48)]
        return await bench.generated(requests)

    for request, generation in bench.run(scenario()):
        close_to(bench, request, generation)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_logprobs_are_of_the_sampling_temperature_and_right_after_each_reload(
    bench: Bench, temperature: float
) -> None:
    for version in (2, 3):
        request = bench.request(seed=3, temperature=temperature)

        async def scenario(request: GenerationRequest = request, version: int = version) -> Generation:
            await bench.swap(version)
            return await bench.engine.generate(request)

        generation = bench.run(scenario())
        assert {span.version for span in generation.spans} == {version}
        close_to(bench, request, generation)


def test_log_probabilities_of_a_prompt_are_those_of_the_weights_loaded_last(bench: Bench) -> None:
    request = bench.request(seed=4, num_prompt_tokens=40)

    async def scenario(version: int) -> Float32Array | None:
        await bench.swap(version)
        return await bench.engine.prompt_logprobs(request.prompt_token_ids, f"prompt-{version}")

    for version in (2, 3):
        found = bench.run(scenario(version))
        if bench.engine.name == "simulated":
            assert found is None
            continue
        tokens = torch.tensor([list(request.prompt_token_ids)])
        with torch.inference_mode():
            every = bench.reference(version)(tokens).logits[0, :-1].log_softmax(-1)
        expected = every.gather(1, tokens[0, 1:, None])[:, 0].numpy()
        assert found[0] == 0
        np.testing.assert_allclose(found[1:], expected, rtol=0, atol=1e-4)


def test_greedy_and_sampled_requests_share_a_batch(bench: Bench) -> None:
    async def scenario() -> list[tuple[GenerationRequest, Generation]]:
        await bench.swap(1)
        requests = [bench.request(seed=seed, temperature=float(seed % 2)) for seed in range(8)]
        return await bench.generated(requests)

    for request, generation in bench.run(scenario()):
        close_to(bench, request, generation)


def test_the_same_seed_gives_the_same_tokens_whatever_else_runs(bench: Bench) -> None:
    async def scenario() -> tuple[Generation, list[Generation]]:
        await bench.swap(1)
        alone = await bench.engine.generate(bench.request(seed=5))
        return alone, await asyncio.gather(
            *(bench.engine.generate(bench.request(seed=seed)) for seed in (5, 6, 7, 5))
        )

    alone, together = bench.run(scenario())
    assert together[0].token_ids.tolist() == alone.token_ids.tolist() == together[3].token_ids.tolist()
    assert together[1].token_ids.tolist() != alone.token_ids.tolist()


def test_a_response_ends_with_the_token_that_completes_a_stop_text(bench: Bench) -> None:
    texts_of = "{:03d}".format

    async def scenario() -> tuple[list[Generation], list[tuple[GenerationRequest, Generation]]]:
        await bench.swap(1)
        requests = [bench.request(seed=seed, max_tokens=60) for seed in range(16)]
        whole = await asyncio.gather(*map(bench.engine.generate, requests))
        # Half a token of text, so that it is completed in the middle of one.
        stop = StopTexts(("07", "21"), lambda token_ids: "".join(map(texts_of, token_ids)))
        return whole, await bench.generated(
            [replace(request, request_id=f"{request.request_id}-stop", stop=stop) for request in requests]
        )

    whole, ended = bench.run(scenario())
    stopped = 0
    for free, (request, generation) in zip(whole, ended, strict=True):
        tokens = free.token_ids.tolist()
        texts = ["".join(map(texts_of, tokens[: count + 1])) for count in range(len(tokens))]
        at = next((count + 1 for count, text in enumerate(texts) if "07" in text or "21" in text), None)
        stopped += at is not None
        assert generation.token_ids.tolist() == tokens[:at]
        assert generation.finish_reason is (free.finish_reason if at is None else FinishReason.STOP)
        assert sum(span.end - span.start for span in generation.spans) == len(generation.token_ids)
        close_to(bench, request, generation)
    assert stopped > 2


def test_an_aborted_request_returns_what_it_has(bench: Bench) -> None:
    async def scenario() -> list[tuple[GenerationRequest, Generation]]:
        await bench.swap(1)
        async with in_flight(bench, 16) as running:
            # When the first has ended, the others are in the middle.
            await asyncio.wait([task for _, task in running], return_when=asyncio.FIRST_COMPLETED)
            for request, _ in running:
                await bench.engine.abort(request.request_id)
        return [(request, task.result()) for request, task in running]

    ended = bench.run(scenario())
    aborted = [generation for _, generation in ended if generation.finish_reason is FinishReason.ABORT]
    assert any(len(generation.token_ids) > 0 for generation in aborted)
    for request, generation in ended:
        assert sum(span.end - span.start for span in generation.spans) == len(generation.token_ids)
        close_to(bench, request, generation)


def test_aborting_an_unknown_request_does_nothing(bench: Bench) -> None:
    bench.run(bench.engine.abort("never heard of"))


def test_a_paused_request_can_be_aborted(bench: Bench) -> None:
    async def scenario() -> list[Generation]:
        await bench.swap(1)
        async with in_flight(bench, 4) as running:
            await bench.engine.pause()
            for request, _ in running:
                await bench.engine.abort(request.request_id)
            generations = await asyncio.gather(*(task for _, task in running))
        await bench.engine.resume()
        return generations

    assert len(bench.run(scenario())) == 4


def test_every_token_carries_the_version_that_made_it_across_many_swaps(bench: Bench) -> None:
    async def scenario() -> list[tuple[GenerationRequest, Generation]]:
        await bench.swap(0)
        async with in_flight(bench, 48) as running:
            for version in range(1, 7):
                await asyncio.sleep(0.003)
                await bench.swap(version)
        return [(request, task.result()) for request, task in running]

    ended = bench.run(scenario())
    assert any(len(generation.spans) > 2 for _, generation in ended)
    for request, generation in ended:
        versions = [span.version for span in generation.spans]
        assert versions == sorted(set(versions))
        assert [span.start for span in generation.spans[1:]] == [span.end for span in generation.spans[:-1]]
        close_to(bench, request, generation)


async def resumed(bench: Bench, response: ResumableResponse) -> list[Generation]:
    """The parts of a response that is handed in again, in between, until it is complete."""
    parts: list[Generation] = []
    while not (parts and response.is_complete):
        parts.append(await bench.engine.generate(response.next_request()))
        response.add(parts[-1])
        # A request that was aborted waits for the swap, as a worker would.
        await bench.swapped.wait()
    return parts


async def abort_and_swap(bench: Bench, responses: list[ResumableResponse], version: int) -> None:
    bench.swapped.clear()
    for response in responses:
        await bench.engine.abort(response.next_request().request_id)
    await bench.swap(version)
    bench.swapped.set()


def test_an_aborted_response_goes_on_under_new_weights_with_its_tokens_and_logprobs(bench: Bench) -> None:
    requests = [bench.request(seed=seed, max_tokens=90) for seed in range(32)]
    responses = [ResumableResponse(each, max_context_tokens=max_context_tokens) for each in requests]

    async def scenario() -> list[list[Generation]]:
        await bench.swap(0)
        bench.swapped.set()
        tasks = [asyncio.create_task(resumed(bench, response)) for response in responses]
        for version in range(1, 7):
            await asyncio.sleep(0.02)
            await abort_and_swap(bench, responses, version)
        return await asyncio.gather(*tasks)

    all_parts = bench.run(scenario())
    assert any(len(parts) > 2 for parts in all_parts)
    for request, response, parts in zip(requests, responses, all_parts, strict=True):
        whole = response.generation
        assert {part.finish_reason for part in parts[:-1]} <= {FinishReason.ABORT}
        assert end_token_id not in whole.token_ids[:-1]
        ended = whole.token_ids[-1] == end_token_id
        assert whole.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert len(whole.token_ids) == 90 or ended
        at = 0
        for part in parts:
            end = at + len(part.token_ids)
            assert part.token_ids.tobytes() == whole.token_ids[at:end].tobytes()
            assert part.behaviour_logprobs.tobytes() == whole.behaviour_logprobs[at:end].tobytes()
            at = end
        close_to(bench, request, whole)


def test_a_prompt_that_leaves_no_room_is_refused_and_the_engine_goes_on(bench: Bench) -> None:
    async def scenario() -> Generation:
        await bench.swap(1)
        too_long = GenerationRequest(
            request_id="too-long",
            prompt_token_ids=[3] * (max_context_tokens + 1),
            sampling=SamplingParameters(temperature=1.0, max_tokens=4),
            seed=0,
        )
        with pytest.raises(EngineError):
            await bench.engine.generate(too_long)
        return await bench.engine.generate(bench.request())

    assert bench.run(scenario()).finish_reason in {FinishReason.STOP, FinishReason.LENGTH}


@pytest.mark.parametrize("damage", ["missing", "shape", "unknown", "not safetensors"])
def test_weights_that_do_not_fit_are_refused_and_nothing_old_is_served(
    bench: Bench, damage: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.safetensors"
    _damage(bench.versions[1], bad, damage)

    async def scenario() -> None:
        await bench.swap(1)
        await bench.engine.pause()
        with pytest.raises(WeightsError, match=r"bad\.safetensors"):
            await bench.engine.load_weights(bad, 99)
        with pytest.raises(EngineError):
            await bench.engine.generate(bench.request())
        await bench.swap(2)
        request = bench.request(seed=2)
        generation = await bench.engine.generate(request)
        assert {span.version for span in generation.spans} == {2}
        close_to(bench, request, generation)

    bench.run(scenario())


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_version_without_a_whole_shard_is_refused_by_the_name_of_the_shard(
    bench: Bench, damage: str, tmp_path: Path
) -> None:
    store = WeightsStore(str(tmp_path / "store"))
    notice = store.publish_tensors(1, export_of(load_file(bench.versions[1])))
    manifest = store.fetch(notice, tmp_path)
    (shard,) = manifest.parent.glob("*.safetensors")
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1])

    async def scenario() -> None:
        await bench.swap(1)
        await bench.engine.pause()
        with pytest.raises(WeightsError, match=re.escape(shard.name)):
            await bench.engine.load_weights(manifest, 99)
        await bench.swap(2)
        generation = await bench.engine.generate(bench.request(seed=2))
        assert {span.version for span in generation.spans} == {2}

    bench.run(scenario())


def _damage(source: Path, target: Path, damage: str) -> None:
    tensors = load_file(source)
    name = "model.layers.1.self_attn.k_proj.weight"
    match damage:
        case "missing":
            del tensors[name]
        case "shape":
            tensors[name] = tensors[name][:, :-1].contiguous()
        case "unknown":
            tensors["model.surprise"] = torch.zeros(1)
        case _:
            target.write_bytes(b"not a weights file")
            return
    save_file(tensors, target)


def order_and_publish(stage: Stage, bench: Bench, num_tasks: int) -> None:
    """What dispatcher and trainer do meanwhile, on a thread; at the end the worker is stopped."""
    try:
        stage.give_grant()
        stage.wait_until_serving(0)
        sampling = SamplingParameters(temperature=1.0, max_tokens=90)
        share = num_tasks // 3
        for version in range(1, 4):
            tensors = load_file(bench.versions[version])
            # Shards of a few tensors each, and of one that is larger. Before tasks are there: the disk may take longer
            # to sync them than a response lasts.
            notice = stage.store.publish_tensors(version, export_of(tensors), most_bytes=40_000)
            assert len(stage.store.file_names(notice)) > 3
            for group in range((version - 1) * share, version * share):
                stage.order(stage.task(group, seed=group, sampling=sampling))
            # A fast engine may be done before this thread comes to look.
            ordered = version * share
            stage.wait_for_status(partial(has_begun, ordered))
            stage.send(stage.topics.weights, notice)
            stage.wait_until_serving(version)
        stage.samples(num_tasks)
    finally:
        stage.stop.set()


def has_begun(num_ordered: int, status: WorkerStatus) -> bool:
    return status.num_running > 0 or status.num_ended >= num_ordered


def check_sample(bench: Bench, sample: Sample) -> None:
    assert sample.status is Status.FINISHED, sample.error_message
    request = GenerationRequest(
        request_id=sample.task_id,
        prompt_token_ids=sample.prompt_token_ids.tolist(),
        sampling=SamplingParameters(temperature=sample.temperature, max_tokens=90),
        seed=sample.seed,
    )
    assert sample.finish_reason is not None
    spans = tuple(VersionSpan(version=s.version, start=s.start, end=s.end) for s in sample.segments)
    generation = Generation(
        token_ids=sample.token_ids,
        behaviour_logprobs=sample.behaviour_logprobs,
        spans=spans,
        finish_reason=sample.finish_reason,
    )
    assert spans[-1].end == sample.num_tokens
    close_to(bench, request, generation)


@pytest.mark.parametrize("mode", ["keep", "drain", "abort"])
def test_a_worker_reloads_in_mid_generation(
    bench: Bench, run_topics: RunTopics, tmp_path: Path, mode: str
) -> None:
    num_tasks = 96
    metrics = Metrics()
    engine = LentEngine(bench.engine)
    with a_stage(MemoryBroker(), run_topics, tmp_path, bench.versions[0].read_bytes()) as stage:
        driver = threading.Thread(name="driver", target=order_and_publish, args=(stage, bench, num_tasks))

        async def work() -> None:
            settings = stage.settings(capacity=24, reload=mode)
            async with a_worker(
                stage, engine=engine, settings=settings, metrics=metrics, tokenizer=SmallTokenizer()
            ) as worker:
                driver.start()
                await worker.run()

        try:
            bench.run(work())
        finally:
            driver.join()
        bench.loaded = 3
        samples = stage.samples(num_tasks)
    assert len({segment.version for sample in samples for segment in sample.segments}) > 1
    most_segments = max(len(sample.segments) for sample in samples)
    assert most_segments == 1 if mode == "drain" else most_segments > 1
    for sample in samples:
        check_sample(bench, sample)
        parts = engine.parts[f"{sample.task_id}/0"]
        made = b"".join(part.behaviour_logprobs.tobytes() for part in parts)
        assert sample.behaviour_logprobs.tobytes() == made
        assert sample.token_ids.tobytes() == b"".join(part.token_ids.tobytes() for part in parts)
    assert any(len(parts) > 1 for parts in engine.parts.values()) == (mode == "abort")
    value = metrics.registry.get_sample_value
    assert value("rollog_rollout_reload_stall_seconds_count", {"mode": mode}) == 4
