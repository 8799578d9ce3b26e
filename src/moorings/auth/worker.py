"""The thread on which a broker works: an event loop of its own, there while anybody uses the broker.

Callers live in any loop or thread, and may leave at any time; what must be done once runs here and is finished here.
Made by a broker; started by the first ``join``, ended and joined by the last ``leave``. A forked child starts anew.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .._tasks import TaskOwner
from ..errors import MisuseError

__all__ = ["Worker"]

T = TypeVar("T")

START_WITHIN = 10.0
"""Seconds in which a thread must run."""
END_WITHIN = 10.0
"""Seconds that work which is under way has when the last user leaves; a transaction that holds a lock ends whole."""


class Worker:
    """See the module. ``closing`` is awaited on the loop as its last work."""

    def __init__(self, name: str, closing: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._closing = closing
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: TaskOwner | None = None
        self._thread: threading.Thread | None = None
        self._over: threading.Event | None = None

    @property
    def running(self) -> bool:
        """True while its thread is there."""
        return self._thread is not None

    def join(self) -> None:
        """Use it until ``leave``. One synchronous step of a millisecond where the thread has to be started."""
        with self._gate:
            self._users += 1
            if self._thread is not None:
                return
            ready = threading.Event()
            over = self._over = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(ready, over), name=f"moorings-{self._name}", daemon=True
            )
            self._thread.start()
        if not ready.wait(START_WITHIN):
            raise MisuseError(f"the thread of {self._name} does not run after {START_WITHIN:g} s")

    def _run(self, ready: threading.Event, over: threading.Event) -> None:
        async def live() -> None:
            self._loop = asyncio.get_running_loop()
            self._owner = TaskOwner(self._name)
            self._ended: asyncio.Future[None] = self._loop.create_future()
            ready.set()
            try:
                await self._ended
            finally:
                await self._owner.drained(self._loop.time() + END_WITHIN)
                await self._owner.aclose(1.0)
                await self._closing()
                self._loop = self._owner = None

        try:
            asyncio.run(live())
        finally:
            over.set()

    def start(self, make: Callable[[], Coroutine[Any, Any, T]], *, name: str) -> concurrent.futures.Future[T]:
        """Run something on its loop, from any thread; whoever waits for the outcome may stop waiting.

        Raises:
            MisuseError: nobody uses it.
        """
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        # From here on nobody can cancel it: callers only wait.
        outcome.set_running_or_notify_cancel()

        async def work() -> None:
            try:
                result = await make()
            except (
                BaseException
            ) as error:  # boundary: the outcome is for whoever waits, the end of the loop included
                outcome.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                outcome.set_result(result)

        def begin() -> None:
            if self._owner is None or self._owner.closed:
                outcome.set_exception(MisuseError(f"{self._name} is closed"))
                return
            self._owner.start(work(), name=name)

        loop = self._loop
        if loop is None:
            raise MisuseError(f"{self._name} is not in use")
        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            raise MisuseError(f"{self._name} is closed") from None
        return outcome

    def leave(self) -> threading.Event | None:
        """Use it no more. The last one to leave ends it; returns what is set when that is done, else None."""
        with self._gate:
            self._users -= 1
            if self._users or self._thread is None:
                return None
            loop, over = self._loop, self._over
            self._thread = None
        if loop is not None:
            loop.call_soon_threadsafe(self._end)
        return over

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def forget_after_fork(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._gate = threading.Lock()
        self._users = 0
        self._loop = self._owner = self._thread = self._over = None
