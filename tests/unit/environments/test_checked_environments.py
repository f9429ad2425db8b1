"""What is told of an environment before it is played, under this interpreter or another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.bare_interpreter import bare_interpreter
from support.pool_scenarios import environments, with_pool

from producers.environments.names import EnvironmentSpec
from rollog.kernel.errors import DataError

if TYPE_CHECKING:
    from producers.environments.pool import EnvironmentPool


@pytest.mark.parametrize(
    ("environment", "parameters", "message"),
    [
        ("gess_number", {}, "is no name of an environment .guess_number, nim"),
        ("nowhere:made", {}, "cannot be imported by .*python.*No module named 'nowhere'"),
        (f"{environments}:no_such_name", {}, "cannot be imported"),
        (f"{environments}:module", {}, "cannot be imported"),
        (f"{environments}:Lacking", {}, "of type Lacking, which lacks declaration, reset, step, close"),
        (f"{environments}:no_snapshots", {}, "lacks snapshot"),
        ("guess_number", {"largest": 0}, "largest = 0 is below 1"),
        ("guess_number", {"largst": 3}, "unexpected keyword argument 'largst'"),
    ],
)
def test_what_cannot_be_made_is_told_before_anything_is_played(
    environment: str, parameters: dict[str, Any], message: str
) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(DataError, match=message):
            await pool.check(EnvironmentSpec(environment=environment, parameters=parameters))

    with_pool(scenario)


@pytest.mark.parametrize(("num_times", "is_given_up"), [(2, False), (9, True)])
def test_a_process_that_ends_during_the_check_is_no_failure_unless_it_does_so_again_and_again(
    tmp_path: Path, num_times: int, is_given_up: bool
) -> None:
    parameters = {"mark": str(tmp_path / "made"), "num_times": num_times}
    spec = EnvironmentSpec(environment=f"{environments}:dies_while_it_is_made", parameters=parameters)

    async def scenario(pool: EnvironmentPool) -> None:
        if is_given_up:
            with pytest.raises(DataError, match="process ended with status 3"):
                await pool.check(spec)
        else:
            assert (await pool.check(spec)).restore == "replay"

    with_pool(scenario)


def test_what_can_be_made_says_what_it_is() -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        declaration = await pool.check(EnvironmentSpec(environment="nim"))
        assert (declaration.num_seats, declaration.restore) == (2, "replay")

    with_pool(scenario)


def test_another_interpreter_sees_nothing_of_ours_but_the_host(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(source_of_one_elsewhere, encoding="utf-8")
    python = bare_interpreter(tmp_path)

    async def scenario(pool: EnvironmentPool) -> None:
        here = Path.cwd()
        os.chdir(tmp_path)
        try:
            own = EnvironmentSpec(environment="elsewhere:Elsewhere", python=str(python))
            episode = await pool.open(own, 1)
            assert (await episode.reset()).text == "[]"
            built_in = await pool.open(EnvironmentSpec(environment="guess_number", python=str(python)), 1)
            assert (await built_in.reset()).text.startswith("I think of a number")
        finally:
            os.chdir(here)

    with_pool(scenario)


source_of_one_elsewhere = """
import importlib.util
from producers.environments.ports import Declaration, Observation, StepResult

class Elsewhere:
    declaration = Declaration()

    def reset(self, seed):
        names = ("rollog", "schemas", "numpy", "ports", "host")
        return Observation.of(str([name for name in names if importlib.util.find_spec(name)]))

    def step(self, action):
        return StepResult.of("", done=True)

    def close(self):
        pass
"""


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_an_interpreter_that_cannot_run_the_host_is_named(python: str) -> None:
    async def scenario(pool: EnvironmentPool) -> None:
        with pytest.raises(DataError, match=f"ended with status .*python = '{python}', .* Python 3.10"):
            await pool.check(EnvironmentSpec(environment="nim", python=python))

    with_pool(scenario)
