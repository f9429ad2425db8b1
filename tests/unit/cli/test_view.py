"""What is shown and summed up about a run."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from consumers.evaluation import EvaluationScore
from consumers.progress import ProgressView
from rollog.run.display import Lines, Picture
from rollog.run.request import RunRequest
from rollog.run.summary import step_split, summarize, write_summary
from rollog.run.summary_words import next_commands, summary_lines
from rollog.run.supervisor import RoleSpec, RoleState, SupervisedRole
from rollog.run.view import RunFacts, evaluation_line, picture, sparkline, worker_line
from rollog.settings.settings import Settings
from schemas import RoleStatus, RunRole, StepTimings, WorkerState, WorkerStatus

if TYPE_CHECKING:
    import pytest

facts = RunFacts(run="calm-otter", num_steps=60, broker="127.0.0.1:9092", state_directory=".rollog")


def a_score(mean: float) -> EvaluationScore:
    return EvaluationScore(mean_reward=mean, num_prompts=256, num_failed=0, num_rollouts=256)


def test_an_evaluation_of_games_says_what_each_seat_earned() -> None:
    score = EvaluationScore(
        mean_reward=0.0, num_prompts=4, num_failed=0, num_rollouts=8, seat_rewards={0: 0.5, 1: -0.5}
    )
    line = evaluation_line("greedy", 3, score)
    assert (
        line == "held-out reward (greedy) at version 3: 0.000 over 4 prompts, seat 0: 0.500, seat 1: -0.500"
    )
    lacking = evaluation_line("greedy", 3, replace(score, num_incomplete=2, seat_rewards={}))
    assert lacking.endswith("0.000 over 4 prompts (2 lack a seat and are left out)")
    many = replace(score, seat_rewards=dict.fromkeys(range(100_000), 1.0))
    assert len(evaluation_line("greedy", 3, many)) < 250


def a_view(*, steps: int = 2) -> ProgressView:
    timings = StepTimings(wait_seconds=0.25, train_seconds=0.125, commit_seconds=0.0625)
    worker = WorkerStatus(
        worker_id="w",
        state=WorkerState.SERVING,
        capacity=64,
        served_version=1,
        engine="vllm",
        num_running=60,
        open_tasks=("1.1", "1.2"),
        pid=17,
    )
    return ProgressView(
        version=steps,
        alpha=1.0,
        reward_history=tuple(0.25 * step for step in range(steps)),
        lags={0: 10, 1: 5, 2: 0},
        dispositions={"trained": 15, "filtered": 3},
        reasons={"filtered: no signal": 3},
        groups={"trained": 5, "filtered": 1},
        samples_produced=18,
        tokens_generated=1000,
        tokens_per_second=512.0,
        tokens_trained=900,
        held_out={("greedy", 0): a_score(0.5), ("greedy", 2): a_score(0.9), ("sampled", 0): a_score(0.4)},
        workers=(worker,),
        engines=("vllm",),
        versions={"torch": "2"},
        step_timings=(timings,) * steps,
        is_closed=True,
        close_reason="all steps done",
        ledger_head="ab" * 32,
        wall_seconds=20.0,
        generating_seconds=10.0,
    )


def a_role(tmp_path: Path, state: RoleState = RoleState.RUNNING) -> SupervisedRole:
    spec = RoleSpec(name="trainer", kind="train", command=("x",), log_path=tmp_path / "x")
    return SupervisedRole(spec, state=state, num_restarts=1, reason="killed by SIGKILL")


def drawn(view: ProgressView, roles: list[SupervisedRole]) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(picture(facts, view, roles, 75.0))
    return console.export_text()


def test_what_rollouts_fail_with_is_shown_and_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "the reward function raised KeyError at my_rewards.py, line 7"
    view = replace(a_view(), failures={where: 12, "EngineError": 1})
    assert f"12 rollouts failed: {where}" in drawn(view, [a_role(tmp_path)])
    lines = Lines(facts, num_evaluated=256)
    lines.show(view, [], 0.0)
    lines.show(replace(view, failures={where: 14, "EngineError": 1}), [], 1.0)
    printed = capsys.readouterr().out
    assert printed.count(where) == 1
    assert "1 rollouts failed: EngineError" in printed


def test_the_picture_names_every_stage_and_its_numbers(tmp_path: Path) -> None:
    text = drawn(a_view(), [a_role(tmp_path)])

    for words in (
        *("run calm-otter", "1:15", "dataset", "dispatcher", "1 worker(s)", "weights", "version 2"),
        *("60/64 in flight", "serving v1", "2 open tasks", "alpha 1", "step 2/60", "18 samples"),
        *("0.900 at version 2 (from 0.500)", "max 1 (0: 10, 1: 5)", "15 trained, 3 filtered"),
        *("512", "restarted 1 times, killed by SIGKILL"),
    ):
        assert words in text


def test_the_picture_can_be_drawn_before_anything_happened(tmp_path: Path) -> None:
    view = replace(
        a_view(steps=0), version=-1, held_out={}, workers=(), lags={}, dispositions={}, samples_produced=0
    )

    text = drawn(replace(view, is_closed=False), [a_role(tmp_path, RoleState.WAITING)])

    assert "none yet" in text
    assert "step 0/60" in text
    assert "not heard" in text
    assert "alpha" not in text


def starting(role: RunRole, phase: str) -> RoleStatus:
    return RoleStatus(role=role, role_id="r", phase=phase, host="node-1", pid=18)


def test_what_roles_do_before_they_can_work_is_shown_and_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (worker,) = a_view().workers
    view = replace(
        a_view(steps=0),
        version=-1,
        is_closed=False,
        held_out={},
        workers=(replace(worker, served_version=None, phase="starting its engine"),),
        roles=(starting(RunRole.TRAINER, "loading the model"), starting(RunRole.DISPATCHER, "")),
    )

    assert drawn(view, [a_role(tmp_path)]).count("loading the model") == 1
    assert "starting its engine" in drawn(view, [a_role(tmp_path)])
    lines = Lines(facts, num_evaluated=256)
    for _ in range(3):
        lines.show(view, [], 0.0)
    lines.show(replace(view, roles=()), [], 1.0)
    assert capsys.readouterr().out.splitlines() == [
        "trainer: loading the model",
        "1 worker(s): starting its engine",
    ]


def test_roles_that_run_elsewhere_are_listed_as_they_are_heard() -> None:
    (worker,) = a_view().workers
    view = replace(
        a_view(),
        workers=(worker,) * 20,
        roles=(starting(RunRole.TRAINER, ""),),
    )

    text = drawn(view, [])

    assert "node-1" in text
    assert "at work" in text
    assert "and 9 more" in text


markup = "h[/x] [red]w"


def test_text_of_records_and_addresses_is_shown_as_it_is(tmp_path: Path) -> None:
    (worker,) = a_view().workers
    view = replace(
        a_view(),
        is_closed=False,
        workers=(replace(worker, worker_id=markup, host=markup, phase=markup, served_version=None),),
        roles=(replace(starting(RunRole.TRAINER, markup), host=markup),),
        dispositions={markup: 3},
        failures={markup: 1},
        standing_still=markup,
    )
    named = replace(facts, run=markup, broker=markup, state_directory=markup)
    role = SupervisedRole(
        RoleSpec(name=markup, kind="train", command=("x",), log_path=tmp_path / "x"), reason=markup
    )
    console = Console(width=300, record=True, file=io.StringIO())

    for roles in ([], [role]):
        console.print(picture(named, view, roles, 75.0))

    text = console.export_text()
    assert f"run {markup} " in text
    assert f"broker {markup} · {markup}" in text
    assert f"3 {markup}" in text
    assert text.count(markup) > 12


def test_a_long_list_of_lags_is_cut(tmp_path: Path) -> None:
    view = replace(a_view(), lags=dict.fromkeys(range(30), 2))

    assert "max 29 (0: 2, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2, above: 48)" in drawn(view, [a_role(tmp_path)])


def test_the_picture_is_redrawn_in_place(tmp_path: Path) -> None:
    console = Console(width=160, record=True, file=io.StringIO())

    with Picture(facts, console) as display:
        display.show(a_view(), [a_role(tmp_path)], 1.0)
        display.tell("stopping")

    text = console.export_text()
    assert "calm-otter" in text
    assert "stopping" in text


def test_each_step_and_each_evaluation_is_one_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(facts, num_evaluated=256) as display:
        display.show(a_view(steps=1), [], 0.0)
        display.show(a_view(steps=2), [], 0.0)
        display.show(a_view(steps=2), [], 0.0)

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines if line.startswith("step")] == [
        "step 1/60",
        "step 2/60",
    ]
    assert lines.count("held-out reward (greedy) at version 2: 0.900 over 256 prompts") == 1


waiting = "no step for 30 s: worker \x1b[2Jw has 3 task(s); look into its log"


def test_what_is_waited_for_is_one_line_of_the_picture_that_steers_no_terminal(tmp_path: Path) -> None:
    text = drawn(replace(a_view(), is_closed=False, standing_still=waiting), [a_role(tmp_path)])

    assert "no step for 30 s: worker \\x1b[2Jw has 3 task(s); look into its log" in text
    assert "no step for" not in drawn(a_view(), [])


def test_what_is_waited_for_is_printed_as_it_begins_each_minute_and_when_it_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    still = replace(a_view(steps=0), is_closed=False, held_out={}, standing_still=waiting)

    with Lines(facts, num_evaluated=256) as display:
        for second in range(100):
            display.show(still, [], float(second))
        display.show(replace(still, standing_still=""), [], 100.0)

    told = "no step for 30 s: worker \\x1b[2Jw has 3 task(s); look into its log"
    assert capsys.readouterr().out.splitlines() == [told, told, "the run goes on"]


def test_a_step_tells_its_alpha_where_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(facts, num_evaluated=256) as display:
        display.show(replace(a_view(steps=4), alpha_history=(0.0, 0.0, 1.5, 1.5)), [], 0.0)

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert ["alpha" in line for line in lines] == [False, False, True, False]
    assert "alpha 1.5" in lines[2]


def test_the_summary_tells_the_alphas_of_all_steps() -> None:
    settings = Settings().changed(run={"name": "calm-otter"})

    steady = summarize(settings, replace(a_view(), alpha_history=(1.0, 1.0)), kafka_version="4.3.1")
    changing = summarize(settings, replace(a_view(), alpha_history=(0.0, 2.0)), kafka_version="4.3.1")

    assert changing["alpha_by_step"] == [0.0, 2.0]
    assert "  largest lag         1 version, alpha 1" in summary_lines(steady)
    assert "  largest lag         1 version, alpha 0 to 2" in summary_lines(changing)


def test_an_evaluation_is_told_when_it_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    partial = replace(a_view(), is_closed=False)

    with Lines(facts, num_evaluated=257) as display:
        display.show(partial, [], 0.0)
        assert "held-out" not in capsys.readouterr().out
        display.show(a_view(), [], 0.0)

    assert "held-out" in capsys.readouterr().out


def test_a_sparkline_spans_smallest_to_largest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([]) == ""


def test_the_summary_has_every_promised_figure(tmp_path: Path) -> None:
    settings = Settings().changed(run={"name": "calm-otter"})

    summary = summarize(settings, a_view(), kafka_version="4.3.1", up_seconds=33.0)
    stored = json.loads(write_summary(summary, tmp_path).read_text())

    expected = {
        "run": "calm-otter",
        "closed": True,
        "steps": 2,
        "held_out_before": 0.5,
        "held_out_after": 0.9,
        "held_out_before_sampled": 0.4,
        "held_out_after_sampled": None,
        "samples_produced": 18,
        "samples_trained": 15,
        "samples_by_disposition": {"trained": 15, "filtered": 3},
        "groups_by_outcome": {"trained": 5, "filtered": 1},
        "max_lag": 1,
        "alpha": 1.0,
        "wall_seconds": 20.0,
        "up_seconds": 33.0,
        "tokens_per_second": 100.0,
        "engine": "vllm",
        "trainer": "deepspeed",
        "kafka_version": "4.3.1",
        "ledger_head": "ab" * 32,
    }
    assert expected.items() <= stored.items()
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_the_end_of_a_run_is_words_and_a_table() -> None:
    settings = Settings().changed(run={"name": "calm-otter"})
    summary = summarize(settings, a_view(), kafka_version="4.3.1", up_seconds=133.0)

    assert summary_lines(summary) == [
        "run calm-otter is over (all steps done): 2 steps in 20.0 s, 2 min 13 s with start and end of all roles",
        "  held-out reward     0.500 -> 0.900 greedy, 0.400 -> - sampled (256 prompts)",
        "  reward of a step    0.000 in the first, 0.250 in the last",
        "  samples             18 produced: 15 trained, 3 filtered",
        "  groups              5 trained, 1 filtered",
        "  largest lag         1 version, alpha 1",
        "  generated           1,000 tokens, 100 per second",
        "  a step              0.44 s: 0.25 waiting, 0.12 training, 0.06 log",
        f"  ledger head         {'ab' * 32}",
    ]


def test_the_end_of_a_run_without_a_step_says_so_and_shows_no_empty_figures() -> None:
    settings = Settings().changed(run={"name": "calm-otter"})
    nothing = replace(
        a_view(steps=0),
        version=-1,
        held_out={},
        dispositions={},
        groups={},
        samples_produced=0,
        tokens_generated=0,
        is_closed=False,
        lags={},
    )
    lines = summary_lines(summarize(settings, nothing, kafka_version="4.3.1", up_seconds=9.0))

    assert lines == [
        "run calm-otter is not over: no step was trained",
        "  samples             0 produced",
    ]


def test_the_commands_that_go_on_from_a_run_find_it(tmp_path: Path) -> None:
    settings = Settings().changed(run={"name": "calm-otter"})
    usual = RunRequest(config=None, home=Path(".rollog"), assignments=(), run=None, broker=None)
    elsewhere = replace(usual, home=tmp_path / "a b", broker="kafka-1:9092")

    assert next_commands(usual, settings, has_model=True, is_over=True) == [
        "  rollog export calm-otter --model DIR  a model for transformers and vLLM",
        "  rollog audit calm-otter               check that nothing was lost, or trained twice",
    ]
    export, _ = next_commands(usual, settings, has_model=True, is_over=True, program=".venv/bin/rollog")
    assert export.startswith("  .venv/bin/rollog export calm-otter --model DIR")
    (resume,) = next_commands(elsewhere, settings, has_model=False, is_over=False)
    assert resume.startswith(
        f"  rollog resume calm-otter --home '{tmp_path}/a b' --broker kafka-1:9092  go on"
    )


def test_the_split_of_a_step_adds_up() -> None:
    slow_start = StepTimings(wait_seconds=60.0)

    assert step_split((slow_start, *a_view().step_timings)) == {
        "waiting": 0.25,
        "training": 0.125,
        "publishing": 0.0,
        "log": 0.0625,
        "checkpoint": 0.0,
        "total": 0.4375,
    }
    assert step_split(()) == {}


def test_rollouts_that_are_scored_are_told_beside_those_in_slots() -> None:
    (worker,) = a_view().workers
    assert worker_line(worker) == "serving, version 1, 60/64 rollouts in flight"
    failed = replace(worker, error="version 2 could not be fetched: 404")
    assert worker_line(failed).endswith("60/64 rollouts in flight, version 2 could not be fetched: 404")
    assert worker_line(replace(worker, num_scoring=12)).endswith("60/64 rollouts in flight, 12 being scored")
