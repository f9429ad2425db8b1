"""Places of calls in the engine: none is lost, and no session takes them all while another waits."""

from __future__ import annotations

import asyncio

from producers.rollout.call_places import CallPlaces


class Calls:
    """Calls that hold a place until they are told to end."""

    def __init__(self, num_places: int) -> None:
        self.places = CallPlaces(num_places)
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def ask(self, name: str) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name))
        await _turns()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await _turns()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await _turns()

    async def _call(self, name: str) -> None:
        async with self.places.place(name[0]):
            self.began.append(name)
            await self.ends[name].wait()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_free_place_goes_to_the_session_that_holds_the_fewest() -> None:
    async def scenario() -> None:
        calls = Calls(2)
        for name in ("a1", "a2", "a3", "b1"):
            await calls.ask(name)
        assert calls.began == ["a1", "a2"]
        await calls.end("a1")
        assert calls.began == ["a1", "a2", "b1"]
        await calls.end("b1")
        assert calls.began[-1] == "a3"

    asyncio.run(scenario())


def test_of_sessions_that_hold_as_few_the_first_to_ask_comes_first() -> None:
    async def scenario() -> None:
        calls = Calls(1)
        for name in ("a1", "b1", "c1"):
            await calls.ask(name)
        await calls.end("a1")
        await calls.end("b1")
        assert calls.began == ["a1", "b1", "c1"]

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_loses_no_place_whether_it_waited_or_held_one() -> None:
    async def scenario() -> None:
        calls = Calls(1)
        for name in ("a1", "b1", "c1", "d1"):
            await calls.ask(name)
        await calls.cancel("b1")
        await calls.cancel("a1")
        assert calls.began == ["a1", "c1"]
        calls.ends["c1"].set()
        await _turns()
        assert calls.began == ["a1", "c1", "d1"]
        await calls.end("d1")
        await calls.ask("e1")
        assert calls.began[-1] == "e1"

    asyncio.run(scenario())


def test_a_place_given_in_the_turn_in_which_its_wait_is_cancelled_goes_on_to_the_next() -> None:
    async def scenario() -> None:
        calls = Calls(1)
        for name in ("a1", "b1", "c1"):
            await calls.ask(name)
        calls.ends["a1"].set()
        await asyncio.sleep(0)
        await calls.cancel("b1")
        assert calls.began[-1] == "c1"

    asyncio.run(scenario())
