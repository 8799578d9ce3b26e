"""What a user gave us to talk to people runs on the loop of theirs, though a broker on another one waits for it.

Made by whoever was given such a function, on the loop where it is to run; its tasks belong to the owner that it is
given. Whoever stops waiting ends the function's run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .._outcome import Outcome
from .._tasks import TaskOwner
from ..auth.faults import NotAsync
from ..errors import HostClosedError

__all__ = ["Asking"]

T = TypeVar("T")

LOOK = 1.0
"""Seconds between two looks whether the other loop is still there."""


class Asking:
    """See the module."""

    def __init__(self, owner: TaskOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()

    async def run(self, make: Callable[[], Awaitable[T]], *, limit: float, name: str) -> T:
        """From another loop: run it over there, for at most ``limit`` seconds, and bring what came of it.

        Raises:
            HostClosedError: its owner is closed.
            TimeoutError: it took longer.
            Exception: what it raised.
        """
        outcome: Outcome[T] = Outcome()
        running: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                made = make()
                if not inspect.isawaitable(made):  # programs that are not type-checked
                    raise NotAsync(
                        f"what was to show the login is no async function: it returned {type(made).__name__}",
                        fix="write it with 'async def'",
                    )
                outcome.settle(await made)
            except Exception as error:  # boundary: the user's function; its failure is that of the login
                outcome.settle(None, error)
            except BaseException:  # boundary: the end of its owner; raised again
                outcome.settle(None, HostClosedError("what showed the login was ended"))
                raise

        def begin() -> None:
            if self._owner.closed:
                outcome.settle(None, HostClosedError("the host was closed"))
            else:
                running.append(self._owner.start(run(), name=name))

        def end() -> None:
            for task in running:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            raise HostClosedError("the host was closed") from None
        clock = asyncio.get_running_loop().time
        until = clock() + limit
        try:
            while True:
                try:
                    return await outcome.outcome(min(until, clock() + LOOK))
                except TimeoutError:
                    if outcome.done:
                        # It came in the very moment, or is what the function itself raised.
                        return outcome.result()
                    if clock() >= until:
                        raise
                    if self._loop.is_closed():
                        # It was closed over what ran on it, and such a loop tells nobody.
                        raise HostClosedError("what showed the login was ended with its loop") from None
        finally:
            # Nobody waits for it any more, however this ended: it must not hold up the close of its owner.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(end)
