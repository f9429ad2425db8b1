"""Sessions take turns on the one thread."""

from __future__ import annotations

import asyncio
import threading

from producers.sessions.rendering_thread import RenderingThread


def test_a_session_with_much_to_render_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        thread, gate, order = RenderingThread(), threading.Event(), []
        first = asyncio.create_task(thread.run("a", gate.wait))
        await asyncio.sleep(0)
        many = [asyncio.create_task(thread.run("a", lambda: order.append("a"))) for _ in range(5)]
        await asyncio.sleep(0)
        one = asyncio.create_task(thread.run("b", lambda: order.append("b")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *many, one)
        assert order.index("b") <= 1
        thread.close()

    asyncio.run(scenario())


def test_who_no_longer_waits_gives_its_turn_to_the_next() -> None:
    async def scenario() -> None:
        thread, gate = RenderingThread(), threading.Event()
        first = asyncio.create_task(thread.run("a", gate.wait))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(thread.run(name, lambda: None)) for name in "abc"]
        await asyncio.sleep(0)
        for each in waiting[:2]:
            each.cancel()
        gate.set()
        await asyncio.wait_for(asyncio.gather(first, waiting[2]), 20)
        # The turn is free again.
        await asyncio.wait_for(thread.run("d", lambda: None), 20)
        thread.close()

    asyncio.run(scenario())
