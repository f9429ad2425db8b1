"""`rollog plan`, from flags and from a written run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from support.builders import a_sample
from support.written_run import WrittenRun

from consumers.durations import measure_durations
from rollog.cli.main import cli
from rollog.cli.plan import Measured, figures_of, plan_lines, played_plan, workload_of
from rollog.kernel.broker.memory import MemoryBroker
from rollog.kernel.broker.topics import RunTopics
from rollog.kernel.errors import ConfigError
from rollog.planning.protocol_simulation import GroupRules
from schemas import Timings

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

topics = RunTopics("rollog", "first")

enough = {
    "--mean-seconds": "3",
    "--max-seconds": "4",
    "--train-seconds-per-sample": "2",
    "--batch": "10",
    "--alpha": "1",
    "--devices": "10",
}


flags_of_a_workload: dict[str, float | None] = {
    "mean_seconds": 3.0,
    "max_seconds": 4.0,
    "train_seconds_per_sample": 0.2,
    "batch": 10,
    "alpha": 1.0,
    "num_devices": 10,
}


def plan(*more: str, without: str = "", **changes: str) -> Result:
    flags = {**enough, **{f"--{name}": value for name, value in changes.items()}}
    words = [word for flag, value in flags.items() if flag != without for word in (flag, value)]
    return CliRunner().invoke(cli, ["plan", *words, *more])


def a_measured_run() -> Measured:
    """Rollouts of 1 s to 3 s, a training step of 4 s for two samples, all on four slots."""
    run = WrittenRun(MemoryBroker(), topics)
    run.genesis()
    for number, seconds in enumerate((1.0, 2.0, 3.0, 2.0)):
        run.write(topics.samples, a_sample(number // 2, timings=Timings(generation_seconds=seconds)))
    run.step(1, reward=0.0, lags={}, train_seconds=4.0, num_epochs=1)
    return a_measured(run)


def a_measured(run: WrittenRun) -> Measured:
    times = measure_durations(run.broker, topics)
    return Measured(run="first", times=times, slots_per_device=4, group_size=2, rules=GroupRules())


def no_flags(**given: float) -> dict[str, float | None]:
    return {"num_devices": 8, "mean_seconds": None, **given}


def figures(measured: Measured | None, **given: float) -> dict[str, Any]:
    workload = workload_of(no_flags(**given), measured)
    played = played_plan(workload, measured, alphas=(0.0, workload.alpha))
    return figures_of(played, workload, measured)


def test_one_split_is_advised_with_the_time_it_needs() -> None:
    result = plan()

    assert result.exit_code == 0, result.output
    (advice,) = [line for line in result.output.splitlines() if line.startswith("advice: ")]
    # Ten rollouts of 3 s on six devices take 5 s and more, ten samples of 2 s on four devices 5 s.
    assert advice.startswith("advice: 6 devices generate and 4 train; at alpha 1 a step then takes ")
    (row,) = [line.split() for line in result.output.splitlines() if line.split()[:1] == ["1"]]
    assert row[1:3] == ["6", "4"]
    assert f"takes {row[3]} s, {row[4]} times as fast" in advice


def test_proposition_2_stands_beside_the_tighter_equation() -> None:
    # a = 3, b = 2, c = 2: 7 by the paper; the equation's share is (7 - sqrt(33)) / 4.
    output = plan().output

    assert output.splitlines()[3].split()[-4:] == ["equation", "s", "paper", "s"]
    (row,) = [line.split() for line in output.splitlines() if line.split()[:1] == ["1"]]
    assert [float(number) for number in row[-2:]] == [pytest.approx(2 / 0.31386, rel=1e-3), 7]


def test_the_figures_are_written_as_json(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"

    assert plan("--json", str(path)).exit_code == 0

    written = json.loads(path.read_text())
    assert written["completion_seconds"] == 7
    assert written["synchronous"]["turns_seconds"] == 9
    whole = written["asynchronous"]["whole"]
    assert (whole["num_rollout_devices"], whole["num_train_devices"]) == (7, 3)
    assert whole["split"]["step_seconds"] == pytest.approx(20 / 3)
    assert [each["alpha"] for each in written["by_alpha"]] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert (written["run"], written["simulated"]["durations"]) == (None, "log-normal")
    assert written["proposition_2"] == {"beta": pytest.approx(2 / 7), "step_seconds_at_most": 7}
    asked = next(each for each in written["by_alpha"] if each["alpha"] == 1.0)
    assert {key: asked[key] for key in written["advice"]} == written["advice"]
    assert written["simulated"]["best_num_train_devices"] == asked["num_train_devices"] == 4


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    result = plan("--json", str(tmp_path / "nowhere" / "plan.json"))

    assert isinstance(result.exception, ConfigError)
    assert "nowhere" in str(result.exception)


@pytest.mark.parametrize("flag", enough)
def test_what_is_missing_is_named(flag: str) -> None:
    error = plan(without=flag).exception

    assert isinstance(error, ConfigError)
    assert str(error) == f"{flag} missing and no run is named: give them, or --run NAME of a recorded run"


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("mean-seconds", "0", "--mean-seconds = 0"),
        ("max-seconds", "2", "--max-seconds = 2 is below --mean-seconds = 3"),
        ("train-seconds-per-sample", "-1", "--train-seconds-per-sample = -1"),
        ("alpha", "nan", "--alpha = nan"),
        ("devices", "1", "--devices = 1 cannot be shared out"),
        ("epochs", "0", "--epochs = 0"),
        ("batch", "0", "--batch = 0"),
    ],
)
def test_what_no_run_can_have_is_refused_by_flag(flag: str, value: str, said: str) -> None:
    error = plan(**{flag: value}).exception

    assert isinstance(error, ConfigError)
    assert said in str(error)


@pytest.mark.parametrize(("batch", "given", "group_size"), [("64", "", 8), ("10", "", 2), ("64", "4", 4)])
def test_a_prompt_has_eight_samples_unless_the_batch_or_a_flag_says_otherwise(
    batch: str, given: str, group_size: int
) -> None:
    more = ["--group-size", given] if given else []

    assert f"{batch} samples a step, {group_size} of a prompt" in plan(*more, batch=batch).output


def test_alpha_0_is_planned_like_any_other() -> None:
    output = plan(alpha="0").output

    assert "at alpha 0 a step then takes " in output


def test_rollouts_that_are_not_trained_lengthen_the_step() -> None:
    workload = workload_of(flags_of_a_workload, None)
    more = workload_of({**flags_of_a_workload, "rollouts_per_sample": 2.0}, None)

    steps = [
        played_plan(each, None, alphas=(1.0,)).by_alpha[1.0].advised.step_seconds for each in (workload, more)
    ]
    assert steps[1] > 1.3 * steps[0]


def test_a_recorded_run_tells_everything_but_the_devices() -> None:
    workload = workload_of(no_flags(), a_measured_run())

    assert (workload.mean_seconds, workload.max_seconds) == (2.0, 3.0)
    assert (workload.train_seconds_per_sample, workload.batch, workload.num_epochs) == (2.0, 2, 1)
    assert (workload.alpha, workload.num_devices, workload.slots_per_device) == (1.0, 8, 4)
    assert workload.group_size == 2
    assert workload.score_seconds == 0.0


def test_a_judge_that_takes_its_time_makes_steps_longer_and_takes_no_slots() -> None:
    quick = workload_of(flags_of_a_workload, None)
    slow = workload_of({**flags_of_a_workload, "score_seconds": 30.0}, None)

    assert slow.generating == quick.generating
    assert slow.tail == quick.tail + 30.0 / 2
    steps = [
        played_plan(each, None, alphas=(1.0,)).by_alpha[1.0].advised.step_seconds for each in (quick, slow)
    ]
    assert steps[0] < steps[1]


def test_flags_win_over_the_run() -> None:
    workload = workload_of(no_flags(alpha=4.0, slots_per_device=1, batch=64), a_measured_run())

    assert (workload.alpha, workload.slots_per_device, workload.batch) == (4.0, 1, 64)
    assert workload.mean_seconds == 2.0


def test_a_run_that_tells_too_little_says_what_to_give() -> None:
    run = WrittenRun(MemoryBroker(), topics)
    run.genesis()
    young = a_measured(run)

    with pytest.raises(ConfigError, match=r"--mean-seconds, .*--batch missing and the records of run first"):
        workload_of(no_flags(), young)


def test_the_splits_are_played_on_the_rollouts_of_the_run() -> None:
    simulated = figures(a_measured_run())["simulated"]

    assert simulated["durations"] == "recorded"
    assert simulated["best_step_seconds"] <= simulated["step_seconds"]
    assert 1 <= simulated["best_num_train_devices"] <= 7


def test_given_durations_are_not_mixed_with_recorded_ones() -> None:
    assert figures(a_measured_run(), mean_seconds=2.5)["simulated"]["durations"] == "log-normal"


def test_the_lines_of_a_recorded_run_name_it_and_what_was_played() -> None:
    measured = a_measured_run()
    workload = workload_of(no_flags(), measured)
    played = played_plan(workload, measured, alphas=(0.0, workload.alpha))

    told = "\n".join(plan_lines(played, workload, measured))

    assert "workload (run first)" in told
    assert "by playing the protocol on recorded rollout times" in told


def test_a_run_is_looked_for_where_the_state_directory_keeps_its_broker(tmp_path: Path) -> None:
    """As an audit does it: the embedded broker is started for that time, but none is made where none was."""
    answer = plan("--run", "first", "--home", str(tmp_path))
    assert answer.exit_code == 1
    assert f"no runs in the state directory {tmp_path}" in str(answer.exception)
    assert list(tmp_path.iterdir()) == []
