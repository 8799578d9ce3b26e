"""The thread on which a broker works: an event loop of its own, there while anybody uses the broker.

Callers live in any loop or thread, and may leave at any time; what must be done once runs here and is finished here.
Made by a broker; started by the first ``join``, ended by the last ``leave``. No call of a user waits for the thread.

Users are known by what they are, not counted: Ctrl-C may strike any of these steps, and each can be done once more.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from .._flag import Flag
from .._outcome import Outcome
from .._tasks import TaskOwner
from ..errors import MisuseError

__all__ = ["Ending", "Worker"]

T = TypeVar("T")

LAST_STEP = 2.0
"""Seconds for the interpreter to put a thread away that has done all of its work."""
END_WITHIN = 10.0
"""Seconds that work which is under way has when the last user leaves; a transaction that holds a lock ends whole."""


class Worker:
    """See the module."""

    def __init__(self, name: str, closing: Callable[[], Awaitable[None]]) -> None:
        """``closing`` is awaited on the loop as its last work."""
        self._name = name
        self._closing = closing
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._users: weakref.WeakSet[object] = weakref.WeakSet()
        """Weakly, as Ctrl-C may strike its maker before anybody holds one."""
        self._now: _Thread | None = None
        self._last: _Thread | None = None
        """The latest one, which may still be ending."""

    @property
    def running(self) -> bool:
        """True while somebody uses it."""
        return self._now is not None

    def join(self, user: object = None) -> None:
        """Be a user of it until ``leave``. Waits for nothing.

        Raises:
            RuntimeError: no thread is to be had.
        """
        with self._gate:
            self._users.add(user or self)
            if self._now is not None and not self._now.is_to_end:
                return
            try:
                self._begin()
            except BaseException:  # boundary: nobody uses what does not run; raised again
                self._users.discard(user or self)
                raise

    def _begin(self) -> _Thread:
        made = _Thread(self._name, self._closing, self._last)
        try:
            made.thread.start()
            self._now = self._last = made
        except BaseException:  # boundary: nobody may wait for what does not run; raised again
            if not made.give_up():
                # It was struck when the thread ran already. That ends, and those after it wait for its end.
                self._last = made
                made.end()
            raise
        return made

    def start(self, make: Callable[[], Coroutine[Any, Any, T]], *, name: str) -> Outcome[T]:
        """Run something on its loop, from any thread; whoever waits for the outcome may stop waiting.

        Raises:
            MisuseError: nobody uses it.
        """
        now = self._now
        if now is None:
            raise MisuseError(f"the {self._name} is not in use")
        if now.gone:
            # An exit, or the like, in a step of some task ended it under its users: they get another.
            with self._gate:
                now = self._begin() if self._now is now else self._now
            if now is None:
                raise MisuseError(f"the {self._name} is not in use")
        outcome: Outcome[T] = Outcome()
        now.put(make, outcome, name)
        return outcome

    def leave(self, user: object = None) -> Ending | None:
        """Use it no more. The last one to leave ends it; returns what tells when that is done, else None."""
        with self._gate:
            self._users.discard(user or self)
            now = self._now
            if self._users or now is None:
                return None
            now.end()
            self._now = None
        return Ending(now)

    def forget_after_fork(self) -> None:
        """In a forked child: the thread is the parent's. Those who use it get one of their own."""
        self._gate = threading.Lock()
        self._last = None
        if self._now is not None:
            self._now.gone = True


class Ending:
    """The end of a thread that nobody uses any more."""

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    def wait(self, timeout: float) -> bool:
        """Block until it is gone. Raises TimeoutError: it is not yet, after so many seconds."""
        self._thread.over.wait(timeout)
        return self._joined()

    async def outcome(self, until: float) -> bool:
        """Wait until it is gone, until the loop's time ``until``. Raises TimeoutError: it is not yet."""
        await self._thread.over.outcome(until)
        return self._joined()

    def _joined(self) -> bool:
        # It is at its last step.
        self._thread.thread.join(LAST_STEP)
        return True


class _Thread:
    """One thread from its start to its end."""

    def __init__(self, name: str, closing: Callable[[], Awaitable[None]], before: _Thread | None) -> None:
        self._name = name
        self._closing = closing
        self._before: Outcome[bool] | None = None if before is None else before.over
        self.over: Outcome[bool] = Outcome()
        """There as the last thing it does."""
        self._inbox: deque[tuple[Callable[[], Coroutine[Any, Any, Any]], Outcome[Any], str]] = deque()
        self.open: set[Outcome[Any]] = set()
        """What was asked for and has no outcome. Whatever ends the thread, each has one then."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner: TaskOwner | None = None
        self._ended: asyncio.Future[None] | None = None
        self.is_to_end = False
        self._turn = [True]
        """Whoever takes it says whether it runs: the thread itself, or who gives it up."""
        self.gone = False
        """True once it does nothing more, whatever ended it."""
        self.thread = threading.Thread(target=self._run, name=f"moorings-{name}", daemon=True)
        # ``Thread.start`` waits for the thread's first step, and Ctrl-C must not take that step from it.
        self.thread._started = Flag()  # type: ignore[attr-defined]

    # From any thread

    def put(self, make: Callable[[], Coroutine[Any, Any, T]], outcome: Outcome[T], name: str) -> None:
        """Have work done."""
        self.open.add(outcome)
        outcome.on_done(lambda: self.open.discard(outcome))
        self._inbox.append((make, outcome, name))
        self._wake()
        if self.gone:
            # The end came meanwhile, and may have looked before this stood there.
            self._refuse()

    def end(self) -> None:
        """It is used no more: finish and end."""
        self.is_to_end = True
        self._wake()

    def give_up(self) -> bool:
        """It could not be started. False if it runs all the same."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        self.over.settle(True)
        return True

    def _wake(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                pass  # It is over.

    # On its own

    def _run(self) -> None:
        try:
            self._turn.pop()
        except IndexError:
            return
        try:
            if self._before is not None:
                # Never two at once on one store. It is bounded: ``END_WITHIN``, and the bounds of the store.
                self._before.wait(None)
            asyncio.run(self._live())
        finally:
            self.gone = True
            self._refuse()
            self.over.settle(True)

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        self._owner = TaskOwner(self._name)
        self._ended = loop.create_future()
        # What was put in before this line is found by the look below it, the rest wakes the loop.
        self._loop = loop
        self._look()
        try:
            await self._ended
        finally:
            await self._owner.drained(loop.time() + END_WITHIN)
            await self._owner.aclose(1.0)
            await self._closing()

    def _look(self) -> None:
        assert self._owner is not None and self._ended is not None
        while self._inbox and not self._owner.closed:
            make, outcome, name = self._inbox.popleft()
            self._owner.start(self._do(make, outcome), name=name)
        if self.is_to_end and not self._ended.done():
            self._ended.set_result(None)

    async def _do(self, make: Callable[[], Coroutine[Any, Any, Any]], outcome: Outcome[Any]) -> None:
        try:
            result = await make()
        except Exception as error:  # boundary: the outcome is for whoever waits
            outcome.settle(None, error)
        except BaseException:  # boundary: the end of the loop; raised again
            outcome.settle(None, self._closed())
            raise
        else:
            outcome.settle(result)

    def _refuse(self) -> None:
        for outcome in list(self.open):
            outcome.settle(None, self._closed())

    def _closed(self) -> MisuseError:
        return MisuseError(f"the {self._name} was closed meanwhile")
