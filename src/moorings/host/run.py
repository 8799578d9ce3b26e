"""Agent runs: a deadline over everything that is begun inside.

Made by ``AsyncHost.run`` (the blocking twin is in ``blocking_run.py``); begun and finished on the loop. What was begun
in it ends when it ends: calls are cancelled and their servers told, starts that it alone wanted are given up with
their processes; shared servers live on.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from .._checks import seconds
from .._tasks import TaskOwner, outlast
from ..errors import CallCancelled, CallError, CallTimeout, MisuseError, RunTimeout
from ..session.cancelled import CancelNote, note_cancel
from ..session.clock import CallClock
from ..wire.types import CallToolResult
from .outcome import as_cancelled, outcome_of

if TYPE_CHECKING:
    from .async_host import AsyncHost

__all__ = ["Run", "current_run"]

T = TypeVar("T")

current_run: contextvars.ContextVar[Run | None] = contextvars.ContextVar("moorings_run", default=None)
"""The run in whose block the caller stands; its calls belong to it."""


class Run:
    """One agent run. Use it as ``async with host.run(timeout=…) as run``; calls of the host made inside, in tasks
    begun inside too, belong to it.

    At its deadline the calls in flight end as ``CallTimeout``, and a body that waits for something else is
    interrupted; either way ``RunTimeout`` comes out of the block.
    """

    def __init__(self, host: AsyncHost, timeout: float | None) -> None:
        self.host = host
        self.timeout = None if timeout is None else seconds(timeout, "the timeout of a run")
        self.expired = False
        """True once the deadline has passed."""
        self.until: float | None = None
        """The loop's time of the deadline."""
        self._outer: Run | None = None
        """The run of the same host in whose block this one was entered; its deadline holds here too."""
        self._owner: TaskOwner | None = None
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._body: asyncio.Task[Any] | None = None
        """The task of the block, which the deadline interrupts; None where the block is in another thread."""
        self._body_calls = 0
        self._interrupted = False
        self._cancels_before = 0
        self._token: contextvars.Token[Run | None] | None = None
        self._over = False

    async def call(
        self, name: str | tuple[str, str], arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> CallToolResult:
        """Call a tool within this run, also from a task that was begun outside of it; see ``AsyncHost.call``."""
        token = current_run.set(self)
        try:
            return await self.host.call(name, arguments, **options)
        finally:
            current_run.reset(token)

    async def begin(self, body: asyncio.Task[Any] | None) -> None:
        """Start the deadline and wait for the required servers.

        Raises:
            RequiredServerMissing: one of them is not ready.
            MisuseError: it was begun before.
        """
        if self._owner is not None:
            raise MisuseError("a run is entered once; make another")
        loop = asyncio.get_running_loop()
        outer = current_run.get()
        self._outer = outer if outer is not None and outer.host is self.host else None
        self._owner = TaskOwner("run")
        self._began = loop.time()
        if self.timeout is not None:
            self.until = self._began + self.timeout
            self._timer = loop.call_at(self.until, self._expire)
        try:
            await self.host.require_ready(self.deadline())
        except BaseException:  # boundary: undone, and raised again
            self._disarm()
            self._over = True
            raise
        self._body = body
        self._cancels_before = body.cancelling() if body is not None else 0

    async def finish(self) -> None:
        """End all that was begun here and is not done; the servers are told."""
        self._disarm()
        self._over = True
        if self._owner is not None:
            await self._owner.aclose()

    async def __aenter__(self) -> Self:
        await self.begin(asyncio.current_task())
        self._token = current_run.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_run.reset(self._token)
        await self.finish()
        body = self._body
        ours = self._interrupted and body is not None and body.uncancel() <= self._cancels_before
        if ours and isinstance(error, asyncio.CancelledError):
            raise self.timed_out() from None
        # A body that swallowed the end of its last call, or its interruption, is late all the same.
        if self.expired and (error is None or _of_calls(error)):
            raise self.timed_out() from error

    def timed_out(self) -> RunTimeout:
        """What comes out of the block after the deadline."""
        elapsed = asyncio.get_running_loop().time() - self._began
        return RunTimeout(
            f"the run passed its deadline: {elapsed:.2f} s of {self.timeout:g} s allowed; all it had begun was ended",
            elapsed=elapsed,
            allowed=self.timeout or 0.0,
        )

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """The deadline. Calls in flight end by their own clocks at this moment; a body that waits for something else
        is interrupted now, one that waits for a call when it waits for the next thing."""
        self.expired = True
        self._timer = None
        if not self._body_calls:
            self._interrupt()

    def _interrupt(self) -> None:
        if not self._over and not self._interrupted and self._body is not None and not self._body.done():
            self._interrupted = True
            self._body.cancel()

    def deadline(self) -> float | None:
        """The loop's time by which all in it must be over: its own, or that of a run around it."""
        outer = self._outer.deadline() if self._outer is not None else None
        if self.until is None or outer is None:
            return outer if self.until is None else self.until
        return min(self.until, outer)

    def clock(self, silence: float, total: float) -> CallClock:
        """A clock for a call of this run, which the deadline of the run ends."""
        now = asyncio.get_running_loop().time()
        return CallClock.of(now, silence, total, until=self.deadline(), why="the deadline of its run")

    async def own(self, make: Callable[[], Coroutine[Any, Any, T]], label: str) -> T:
        """Make a call as the run's own: it ends with the run, whoever awaits it.

        Raises:
            CallCancelled: the run ended first.
            CallTimeout: it ended at its deadline.
        """
        if self._over or self._owner is None:
            raise CallCancelled("the run it belongs to is over", tool=label, sent=False)
        in_body = self._body is not None and asyncio.current_task() is self._body
        task = self._owner.start(outcome_of(make, lambda note: self._ended(label, note)), name=label)
        self._body_calls += in_body
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as cancelled:
            task.cancel()
            # The call tells its server and ends at once; nothing in it waits longer than that.
            await outlast(task, asyncio.get_running_loop().time() + 5.0)
            if task.done() and not task.cancelled() and isinstance(error := task.exception(), CallError):
                note_cancel(
                    cancelled, server=error.server, tool=error.tool, sent=error.sent, elapsed=error.elapsed
                )
            raise
        finally:
            self._body_calls -= in_body
            if self.expired and in_body:
                asyncio.get_running_loop().call_soon(self._interrupt)
        if task.cancelled():
            raise self._ended(label, None)
        return task.result()

    def _ended(self, label: str, note: CancelNote | None) -> CallError:
        """How a call comes out that the end of the run cancelled.

        At the deadline the clocks of the calls and the end of the block race; whichever is first, a call that the
        deadline ended is a ``CallTimeout``.
        """
        if not self._late:
            return as_cancelled("the run it belongs to ended", label, note)
        elapsed = asyncio.get_running_loop().time() - self._began if note is None else note.elapsed
        return CallTimeout(
            "the deadline of its run passed",
            server=None if note is None else note.server,
            tool=label if note is None else note.tool,
            sent=note is not None and note.sent,
            elapsed=elapsed,
            allowed=elapsed,
        )

    @property
    def _late(self) -> bool:
        """Whether its deadline has passed, or that of a run around it."""
        return self.expired or (self._outer is not None and self._outer._late)


def _of_calls(error: BaseException) -> bool:
    """Whether an error is how calls ended: one, or what a TaskGroup made of several."""
    if isinstance(error, BaseExceptionGroup):
        return all(_of_calls(each) for each in error.exceptions)
    return isinstance(error, CallError)
