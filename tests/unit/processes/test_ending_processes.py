"""Ending a process with what it started, and what is told of its end and of errors."""

from __future__ import annotations

import asyncio
import os
import subprocess
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.waiting import wait_until

from producers.processes.ending import kill_group, kill_tree, way_of_ending
from producers.processes.error_texts import error_message, error_with_place, most_error_characters
from producers.processes.hosts import start_host
from rollog.kernel.processes import exists

if TYPE_CHECKING:
    from collections.abc import Callable

one_in_its_group_and_one_in_another = "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait"


@pytest.mark.parametrize(("kill", "num_left"), [(kill_group, 1), (kill_tree, 0)])
def test_a_group_is_killed_alone_and_a_tree_with_what_left_the_group(
    kill: Callable[[int], None], num_left: int
) -> None:
    command = ["sh", "-c", one_in_its_group_and_one_in_another]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        inside, outside = (int(parent.stdout.readline()) for _ in range(2))
        # It descends from the parent before it leaves the group, and is in a tree at any time.
        wait_until(lambda: os.getpgid(outside) == outside, message="the other process leads a group")
        kill(parent.pid)
        parent.wait()
        wait_until(lambda: not exists(inside), message="the process in the group is gone")
        if num_left:
            assert exists(outside)
            kill_tree(outside)
        wait_until(lambda: not exists(outside), message="the process in another group is gone")


@pytest.mark.parametrize(
    ("status", "words"), [(-9, "by signal 9"), (0, "with status 0"), (7, "with status 7")]
)
def test_how_a_process_ended_is_told(status: int, words: str) -> None:
    assert way_of_ending(status) == words


class UnprintableError(Exception):
    """An error whose own text raises."""

    def __str__(self) -> str:
        raise KeyError("text")


def raises() -> None:
    raise UnprintableError


def test_an_error_is_told_with_its_place_whatever_its_message_does() -> None:
    with pytest.raises(UnprintableError) as raised:
        raises()
    frames = traceback.extract_tb(raised.tb)
    assert error_with_place(raised.value, frames) == (
        f"UnprintableError at test_ending_processes.py, line {frames[-1].lineno}: (its message raised KeyError)"
    )


def test_what_is_told_of_an_error_can_be_sent_and_is_short() -> None:
    assert error_message(ValueError("\ud800 and more")) == "? and more"
    assert error_with_place(ValueError("x"), []) == "ValueError: x"
    assert len(error_message(ValueError("x" * 10_000))) == most_error_characters


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_host_that_cannot_be_started_leaves_no_socket_behind() -> None:
    async def scenario() -> None:
        before = num_open_files()
        with pytest.raises(OSError, match="too long"):
            await start_host("producers.environments.host", ["x" * (1 << 20)], variables={})
        assert num_open_files() == before

    asyncio.run(scenario())
