"""Agents that others wrote, at a worker's endpoint: `make agents` installs them, each with its own packages.

ROLLOG_AGENT_TURNS is about how many turns of each are recorded and checked.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.agent_sessions import a_session, agents_of
from support.chat_models import a_chat_tokenizer
from support.served_session import endpoint_process
from support.waiting import wait_until
from support.worker_thread import Stage, a_stage, running

from producers.agents.process import FunctionAgents
from producers.engines.simulated import SimulatedEngine
from producers.sessions.text_tokens import TextTokens
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.metrics import Metrics
from schemas import Sample, Status
from schemas.sample_checks import check_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from producers.engines.ports import GenerationRequest

_root = Path(__file__).parents[2]
num_turns = int(os.environ.get("ROLLOG_AGENT_TURNS", "60"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + num_turns)]


def call_of(name: str, arguments: dict[str, object]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"I go on.<tool_call>{call}</tool_call><|im_end|>"


def bash(command: str) -> str:
    return call_of("bash", {"command": command})


# mini-swe-agent leaves an answer without a call out of what it sends next, which makes one fork.
mini_swe_says = [
    bash("seq 5 > numbers; ls"),
    "There is no call in this answer.<|im_end|>",
    bash("wc -l numbers"),
    bash("cat missing"),
    bash("printf 'a\\tb <tool_call> <|im_end|>\\n'"),
    bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && wc -l < numbers"),
]
openai_agents_says = [
    call_of("add", {"a": 1, "b": 2}),
    call_of("add", {"a": 3, "b": 4}).replace("I go on.", "<think>\nthree and four\n</think>\n\n"),
    call_of("add", {"a": "x"}),
    "It is seven.<|im_end|>",
]
# A long result makes its harness ask for a summary without tools, and go on from that alone: two forks.
verifiers_says = [
    bash("seq 5 > numbers; ls"),
    call_of("edit", {"path": "numbers", "old_str": "5\n", "new_str": "five\n"}).replace(
        "I go on.", "<think>\nin words\n</think>\n\n"
    ),
    bash("cat numbers").replace("<|im_end|>", "") + call_of("bash", {"command": "wc -l < numbers"}),
    call_of("look", {"at": "numbers"}),
    bash("printf 'a\\tb <tool_call> <|im_end|>\\n'"),
    *(bash(f"sed -n {line}p numbers") for line in range(1, 6)),
    "There are five.<|im_end|>",
    bash("seq 1500"),
    "There were five numbers.<|im_end|>",
    *(bash(f"tail -n +{line} numbers | wc -l") for line in range(1, 7)),
    "There are four.<|im_end|>",
]


@dataclass
class Remembered:
    """What the engine was given and what it said, by request."""

    texts: Sequence[str]
    calls: dict[str, tuple[array[int], array[int]]] = field(default_factory=dict)

    def say(self, request: GenerationRequest) -> list[int]:
        """The text of the session's call of this number, the last one from its end on."""
        number = int(request.request_id.rpartition("#")[2])
        said = TextTokens(a_chat_tokenizer()).added_ids(self.texts[min(number, len(self.texts) - 1)])
        assert request.request_id not in self.calls
        self.calls[request.request_id] = (array("i", request.prompt_token_ids), array("i", said))
        return said

    def of_session(self, sample: Sample) -> list[tuple[list[int], list[int]]]:
        """The calls of a sample's session, in the order in which they were begun."""
        prefix = f"{sample.task_id}/{sample.replica}#"
        numbered = {
            int(name.removeprefix(prefix)): (given.tolist(), said.tolist())
            for name, (given, said) in self.calls.items()
            if name.startswith(prefix)
        }
        return [numbered[number] for number in sorted(numbered)]


@dataclass
class Totals:
    """Of all sessions: forks and untrained tokens by reason, the rest in tokens."""

    turns: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    sampled: int = 0
    trained: int = 0
    untrained: Counter[str] = field(default_factory=Counter)
    wasted: int = 0


def check_session(sample: Sample, remembered: Remembered, totals: Totals) -> None:
    """Each call goes on from the ids of the one before it, or begins a fork that is counted; tokens add up."""
    check_sample(sample)
    calls = remembered.of_session(sample)
    assert len(calls) == len(sample.turns)
    rows = sample.rows()
    newest: dict[int, list[int]] = {}
    for turn, (given, said) in zip(sample.turns, calls, strict=True):
        row = rows[turn.sequence]
        ids = [*row.prompt_token_ids.tolist(), *row.token_ids.tolist()]
        first = len(row.prompt_token_ids)
        assert ids[: first + turn.start] == given
        assert ids[first + turn.start : first + turn.end] == said
        before = newest.get(turn.sequence, [])
        assert given[: len(before)] == before
        newest[turn.sequence] = [*given, *said]
    assert len(newest) == 1 + len(sample.forks)
    trained, untrained = 0, Counter[str]()
    for turn in sample.turns:
        if turn.untrained is None:
            trained += turn.end - turn.start
        else:
            untrained[str(turn.untrained)] += turn.end - turn.start
    sampled = sum(len(said) for _, said in calls)
    assert sampled == trained + untrained.total() + sample.wasted_tokens
    assert trained == sum(int(row.loss_mask.sum()) for row in rows)
    totals.turns += len(sample.turns)
    totals.forks.update(fork.reason for fork in sample.forks)
    totals.sampled += sampled
    totals.trained += trained
    totals.untrained += untrained
    totals.wasted += sample.wasted_tokens


def sessions_of(stage: Stage, name: str, module: str, remembered: Remembered, count: int) -> list[Sample]:
    """Samples of so many sessions of an agent with an interpreter of its own."""
    python = _root / ".venv" / "agents" / name / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"{python} is missing: make agents")
    runner = FunctionAgents(f"tests.support.{module}:run", str(python))
    served = agents_of(runner, endpoint_process(), max_turns=100, max_tokens=100_000, timeout_seconds=300.0)
    engine = SimulatedEngine(tokens_per_second=100_000, max_context_tokens=40_000, tokens_of=remembered.say)
    metrics = Metrics()
    with running(stage, agents=served, engine=engine, tokenizer=a_chat_tokenizer(), metrics=metrics):
        stage.give_grant()
        for group in range(count):
            stage.order(a_session(stage, group, text=f"Count to {group}.", max_tokens=2000))
        # Reading the topic again and again would take the worker's processor.
        wait_until(lambda: num_ended(metrics) >= count, 300.0 + num_turns, message=f"{count} sessions")
        return stage.samples(count)


def num_ended(metrics: Metrics) -> float:
    """How many samples a worker has made."""
    found = [each for family in metrics.rollout_samples.collect() for each in family.samples]
    return sum(each.value for each in found if each.name.endswith("_total"))


@pytest.mark.parametrize(
    ("name", "module", "script"),
    [
        ("mini-swe", "outside_mini_swe", (mini_swe_says, "Submitted: 5", {"branched": 1})),
        ("openai", "outside_openai", (openai_agents_says, "It is seven.", {})),
        (
            "verifiers",
            "outside_verifiers",
            (verifiers_says, "user_closed 1.0: There are four.", {"tools": 1, "edited": 1}),
        ),
    ],
)
def test_an_agent_of_the_package_index_is_recorded_exactly(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    module: str,
    script: tuple[list[str], str, dict[str, int]],
) -> None:
    monkeypatch.chdir(_root)
    texts, answer, forks = script
    remembered, totals = Remembered(texts), Totals()
    with a_stage(MemoryBroker(), RunTopics("rollog", "first"), tmp_path) as stage:
        samples = sessions_of(stage, name, module, remembered, -(-num_turns // len(texts)))
    assert {(sample.status, sample.error_message) for sample in samples} == {(Status.FINISHED, None)}
    for sample in samples:
        check_session(sample, remembered, totals)
    print(f"{module}: {len(samples)} sessions, {totals}")  # noqa: T201  # the figures of a long run
    assert {sample.response_text.strip() for sample in samples} == {answer}
    assert totals.turns == len(remembered.calls) == len(texts) * len(samples)
    assert totals.forks == {reason: number * len(samples) for reason, number in forks.items()}
