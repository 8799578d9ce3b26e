"""An event loop whose clock a test can move: what would take hours happens at once.

The code under test asks its loop for the time and for timers, and nothing else; moving the loop's clock moves all of
them. Between two moves it stands still, however busy the machine is. Pipes and processes stay real and need real time:
there a test waits for what it wants to see. Where it waits for something that itself waits for a timer, the clock has
to run too: ``on_running_clock``.

::

    @on_movable_clock
    async def test_a_day_passes(tmp_path):
        ...
        await pass_time(24 * 3600, step=60)
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

__all__ = [
    "MovableLoop",
    "RunningLoop",
    "advance",
    "on_movable_clock",
    "on_running_clock",
    "pass_time",
    "turns",
]


class MovableLoop(asyncio.SelectorEventLoop):
    """``time()`` is moved by ``advance`` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.began = super().time()
        self.offset = 0.0

    def time(self) -> float:
        return self.began + self.offset

    def advance(self, seconds: float) -> None:
        """Move the clock. From the loop's own thread; what is due now runs in the loop's next turn."""
        assert seconds >= 0
        self.offset += seconds


class RunningLoop(MovableLoop):
    """``time()`` is the real one and what ``advance`` added."""

    def time(self) -> float:
        return asyncio.SelectorEventLoop.time(self) + self.offset


def on_movable_clock(
    test: Callable[..., Coroutine[Any, Any, None]], loop: type[MovableLoop] = MovableLoop
) -> Callable[..., None]:
    """Runs an async test on a ``MovableLoop``, and demands that the loop be empty when it returns."""

    @functools.wraps(test)
    def on_own_loop(*args: Any, **kwargs: Any) -> None:
        debug = os.environ.get("MOORINGS_TEST_DEBUG") == "1"
        with asyncio.Runner(debug=debug, loop_factory=loop) as runner:
            runner.run(test(*args, **kwargs))
            left = sorted(repr(task) for task in asyncio.all_tasks(runner.get_loop()))
        if left:
            pytest.fail("the test ended, but these tasks did not:\n" + "\n".join(left), pytrace=False)

    return on_own_loop


def on_running_clock(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The same on a ``RunningLoop``."""
    return on_movable_clock(test, RunningLoop)


def advance(seconds: float) -> None:
    """Move the clock of the running loop at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableLoop), "the test is not on a clock that can be moved"
    loop.advance(seconds)


async def turns(count: int = 5) -> None:
    """Let the loop turn so often: what is ready runs, nothing is waited for."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pass_time(seconds: float, *, step: float = 1.0) -> None:
    """Let time pass in steps, with some turns of the loop after each, so that a timer may lead to the next.

    What the machine itself takes meanwhile counts, so that on a busy one no more passes than this.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        advance(min(step, left))
        await turns()
