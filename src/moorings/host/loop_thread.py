"""The loop thread of the blocking host: one thread, one event loop, one ``AsyncHost``.

Made by ``Host`` at its start and ended by its close. The loop is made and run inside the thread; ``start`` returns
when it runs. Work (``handover.py``) is handed over through one inbox, without polling: the first that puts something
there wakes the loop, those that come before it has looked need not. When the thread ends, whatever was handed over
has an outcome.

The thread is a daemon so that it never holds up an interpreter that ends without ``close``; the exit hook below ends
it properly then, so it is never left behind.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .._flag import Flag
from .._tasks import TaskOwner
from ..errors import HostClosedError, WrongLoopError
from .async_host import DEFAULT_CLOSE, AsyncHost
from .handover import Handover
from .report import CloseReport

__all__ = ["LoopThread"]

_log = logging.getLogger("moorings")

CLOSE_TRIES = 5
"""How often a close that is struck in its middle is carried on."""
TAKEN_IN = 64
"""Hand-overs that are begun in one turn of the loop."""
JOIN_MARGIN = 2.0
"""Seconds beyond the bound of a close in which the thread must have ended."""


class LoopThread:
    """The thread and what runs on it. See the module for who makes and ends it."""

    def __init__(
        self,
        make_host: Callable[[], AsyncHost],
        *,
        make_thread: Callable[..., threading.Thread] = threading.Thread,
        make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self._make_host = make_host
        self._make_loop = make_loop or asyncio.new_event_loop
        self.host: AsyncHost | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Future[float] | None = None
        self._accepting = False
        self._open: set[Handover[Any]] = set()
        """Handed over and without an outcome.

        No lock guards these two: a finaliser or a signal handler may come here in the middle of ``submit``, in the
        same thread. ``submit`` adds, hands over, and then looks whether the end came meanwhile; the end says so
        first, and then gives whatever stands here its outcome."""
        self._inbox: deque[Handover[Any]] = deque()
        """Handed over and not begun."""
        self._wakes = itertools.count(1)
        self._woken = 0
        """The newest wake of the loop that is certain: written down after it was given, so that a signal handler that
        raises in the middle leaves none that never came."""
        self._looked = 0
        """The newest wake for which the loop has begun to look into the inbox. What was put in before is found."""
        self._running = Flag()
        self._ended = Flag()
        """Set as the last thing the thread does. Waited for in place of a join: a join that Ctrl-C interrupts takes
        a running thread for ended (CPython 3.11 and 3.12)."""
        self._failure: BaseException | None = None
        self._report: CloseReport | None = None
        self._stop_by = float("-inf")
        """The moment (``time.monotonic``) by which the close that came first is to be over."""
        self._owner: TaskOwner | None = None
        self._pid = os.getpid()
        self._main_task: asyncio.Task[Any] | None = None
        self._begun = threading.Lock()
        """Taken once and for all by the thread when it begins, or by a start that gives it up before that."""
        self._thread = make_thread(target=self._run, name="moorings-loop", daemon=True)
        # ``Thread.start`` waits for the thread's first step, and Ctrl-C must not take that step from it.
        self._thread._started = Flag()  # type: ignore[attr-defined]

    def start(self) -> None:
        """Start the thread; returns when its loop runs and the host on it is started. Waits for no server."""
        _live.add(self)
        try:
            self._thread.start()
        except (
            BaseException
        ) as error:  # boundary: no thread to be had; those who wait for this start must learn it
            if not self._begun.acquire(blocking=False):
                # Ctrl-C while ``Thread.start`` waited: the thread runs all the same, and a close finds and ends it.
                raise
            _live.discard(self)
            self._failure = error
            self._running.set()
            self._ended.set()
            raise
        # Bounded by what the thread does first, which waits for nothing; its failure sets the event too.
        self._running.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return not self._ended.is_set()

    def wait_running(self) -> None:
        """Wait until ``start`` of another thread has brought the loop up.

        Raises:
            WrongLoopError: called on the loop thread.
        """
        self.refuse_own_thread()
        self._running.wait()
        if self._failure is not None:
            raise self._failure

    # On the thread

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            # Given up by its start before this first step.
            return
        try:
            self._run_loop()
        finally:
            self._ended.set()

    def _run_loop(self) -> None:
        try:
            loop = self._make_loop()
        except BaseException as error:  # boundary: the starter must learn why there is no loop
            self._failure = error
            _live.discard(self)
            self._running.set()
            return
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(self._main(loop))
        except BaseException as error:  # boundary: the starter, or the log, must learn what ended the loop
            if not self._running.is_set():
                self._failure = self._failure or error
            self._close_struck(loop, error)
        finally:
            self._refuse_late_handovers(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()
            _live.discard(self)
            self._running.set()

    def _close_struck(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """An exit or the like, raised in a step of any task, ended the run of the loop: close the host on it."""
        for _ in range(CLOSE_TRIES):
            if self._running.is_set():
                _log.error("the loop thread was struck; its host is closed", exc_info=error)
            self._accepting = False
            main, stop = self._main_task, self._stop
            try:
                if main is not None and not main.done():
                    # It goes on where it waits, which is for this.
                    if stop is not None and not stop.done():
                        self._stop_by = time.monotonic() + DEFAULT_CLOSE
                        stop.set_result(DEFAULT_CLOSE)
                    loop.run_until_complete(main)
                elif self.host is not None and self._report is None:
                    loop.run_until_complete(self._close_host(self.host, DEFAULT_CLOSE))
                return
            except (
                BaseException
            ) as again:  # boundary: struck once more, or the outcome of what was struck before
                error = again

    async def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        self._main_task = asyncio.current_task()
        self._loop = loop
        self._stop = loop.create_future()
        self._owner = TaskOwner("blocking host")
        host = self.host = self._make_host()
        try:
            await host.start()
            self._accepting = not self._stop.done()
            self._running.set()
            timeout = await self._stop
        except BaseException:  # boundary: closed whole, and raised again
            await host.close()
            raise
        await self._close_host(host, timeout)

    async def _close_host(self, host: AsyncHost, timeout: float) -> None:
        assert self._owner is not None
        self._report = await host.close(timeout)
        stuck = await self._owner.aclose(max(self._stop_by - time.monotonic(), 0.1))
        if stuck:
            self._report = CloseReport(
                elapsed=self._report.elapsed,
                servers=self._report.servers,
                stuck=(*self._report.stuck, *stuck),
            )

    def _refuse_late_handovers(self, loop: asyncio.AbstractEventLoop) -> None:
        self._accepting = False
        # What was put on the loop before that runs in this turn, finds its owner closed, and is refused.
        loop.run_until_complete(_one_turn())
        for handover in list(self._open):
            handover.settle(None, HostClosedError("this host is closed"))

    # From other threads

    def refuse_own_thread(self) -> None:
        """A blocking wait on the loop's own thread would wait for itself.

        Raises:
            WrongLoopError: called there.
            HostClosedError: called in a forked child, where the thread does not run.
        """
        if self._pid != os.getpid():
            raise HostClosedError("this belongs to the parent process; after a fork the host starts anew")
        # Not by its number: that of a thread that ended is given to another.
        if threading.current_thread() is self._thread:
            raise WrongLoopError(
                "the blocking host was called on its own loop thread, where it would wait for itself",
                fix="call it from another thread",
            )

    def submit(self, handover: Handover[Any]) -> None:
        """Hand work over.

        Raises:
            HostClosedError: the thread takes no more work.
            WrongLoopError: called on the loop thread.
        """
        self.refuse_own_thread()
        loop = self._loop
        if not self._takes_work() or loop is None:
            raise HostClosedError("this host is closed")
        self._open.add(handover)
        self._inbox.append(handover)
        if self._woken <= self._looked:
            wake = next(self._wakes)
            try:
                loop.call_soon_threadsafe(self._take_in, wake)
                self._woken = wake
            except RuntimeError:
                # The loop was closed meanwhile.
                self.forget(handover)
                raise HostClosedError("this host is closed") from None
        if not self._takes_work():
            # The end came meanwhile and may have looked before this stood there; its owner is closed, so that the
            # work does not begin any more, and has its outcome from there or from here.
            handover.settle(None, HostClosedError("this host is closed"))

    def _take_in(self, wake: int) -> None:
        """On the loop: begin what was handed over, so much of it in one turn that others have theirs."""
        self._looked = max(self._looked, wake)
        assert self._owner is not None
        try:
            for _ in range(TAKEN_IN):
                if not self._inbox:
                    return
                handover = self._inbox.popleft()
                try:
                    handover.begin(self._owner)
                except (
                    BaseException
                ) as error:  # boundary: its thread waits for an outcome, whatever struck here
                    handover.settle(None, error)
                    if not isinstance(error, Exception):
                        raise
        finally:
            if self._inbox and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon(self._take_in, wake)

    def _takes_work(self) -> bool:
        return self._accepting

    def poke(self, callback: Callable[[], None]) -> None:
        """Run a callback on the loop, if it still runs."""
        if self._accepting and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nothing is left to do
                self._loop.call_soon_threadsafe(callback)

    def forget(self, handover: Handover[Any]) -> None:
        """A hand-over has its outcome."""
        self._open.discard(handover)

    def begin_stop(self, timeout: float = DEFAULT_CLOSE) -> None:
        """Ask the thread to close its host and end. Waits for nothing; harmless when asked twice."""

        def stop() -> None:
            if self._stop is not None and not self._stop.done():
                self._stop_by = time.monotonic() + timeout
                self._stop.set_result(timeout)

        if self._pid == os.getpid():
            self.poke(stop)

    def stop(self, timeout: float) -> CloseReport:
        """Close the host within ``timeout`` seconds and join the thread. From any other thread, any number of times.

        Raises:
            WrongLoopError: called on the loop thread.
        """
        self.refuse_own_thread()
        self.begin_stop(timeout)
        began = time.monotonic()
        ended = self._wait_ended(max(timeout, 0.0) + JOIN_MARGIN)
        # Where another close came first, its bound is the one that holds.
        if not ended and not self._wait_ended(max(self._stop_by + JOIN_MARGIN - time.monotonic(), 0.0)):
            # It takes nothing more, and nobody waits any longer for what it may never come to.
            self._accepting = False
            for handover in list(self._open):
                handover.settle(
                    None, HostClosedError("this host was closed; its loop thread is held by user code")
                )
            return CloseReport(
                elapsed=time.monotonic() - began, stuck=("the loop thread: user code on it does not return",)
            )
        return self._report or CloseReport(elapsed=time.monotonic() - began)

    def _wait_ended(self, timeout: float) -> bool:
        """Wait until the thread has done its work, and join it. False if it had not within ``timeout`` seconds."""
        if not self._ended.wait(timeout):
            return False
        self._thread.join()
        return True

    def disown_after_fork(self) -> None:
        """In a forked child: the thread and all that it owns are the parent's."""
        self._accepting = False


_live: set[LoopThread] = set()
"""Loop threads that run, in this process."""
_inherited: list[LoopThread] = []
"""Loop threads of the parent, after a fork: kept, so that nothing of them is finalized here."""


async def _one_turn() -> None:
    await asyncio.sleep(0)


def _close_all_at_exit() -> None:
    threads = list(_live)
    for thread in threads:
        thread.begin_stop()
    for thread in threads:
        if thread._thread is not threading.current_thread():
            thread._wait_ended(DEFAULT_CLOSE + JOIN_MARGIN)


def _after_fork_in_child() -> None:
    for thread in _live:
        thread.disown_after_fork()
        _inherited.append(thread)
    _live.clear()


atexit.register(_close_all_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
