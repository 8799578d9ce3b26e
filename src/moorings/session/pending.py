"""One request in flight: its future, its clock, its progress. Made and dropped by the session.

The caller's own task runs the progress callback, with the caller's context variables, in order and before the result:
a slow callback delays its own call and nobody else's, and the limit of the call holds for it too.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from ..transport.base import Outgoing
from ..wire.types import ProgressParams
from .cancelled import note_cancel
from .clock import CallClock
from .waiter import DirectWaiter, Waiter

if TYPE_CHECKING:
    from .session import Session

__all__ = ["KEPT_PROGRESS", "OnProgress", "Pending"]

OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Told ``progress, total, message``."""

_log = logging.getLogger("moorings")

KEPT_PROGRESS = 256
"""Progress that waits for a slow callback; older ones are dropped, the newest says all."""


class Pending(msgspec.Struct, eq=False):
    """A request that was sent and has no outcome yet. A struct, because one is made for each call."""

    session: Session
    id: int
    method: str
    label: str
    clock: CallClock
    waiter: Waiter
    context: contextvars.Context | None
    """The caller's, where a question of the server may want it."""
    on_progress: OnProgress | None = None
    progress: deque[ProgressParams] | None = None
    """What waits for the callback; None without one."""
    outgoing: Outgoing | None = None
    limited: bool = True
    """False once no clock ends it any more: a stream that was acknowledged."""
    news: asyncio.Future[None] | None = None
    """Done when there is progress or an outcome."""
    questions: int = 0
    """Questions of the server that are being answered."""
    headers: Mapping[str, str] | None = None
    """Headers that repeat its arguments, over HTTP."""

    @property
    def future(self) -> asyncio.Future[Raw]:
        """The waiter of a request that ``Session.begin`` sent."""
        assert isinstance(self.waiter, asyncio.Future)
        return self.waiter

    @property
    def done(self) -> bool:
        """True once it has an outcome."""
        return self.waiter.done()

    # The clock

    def question_begins(self, now: float) -> None:
        """The server asks something: the clock stands still."""
        self.questions += 1
        if self.questions == 1:
            self.clock.pause(now)

    def question_ends(self, now: float) -> None:
        """A question was answered; the clock goes on with the last one."""
        self.questions -= 1
        if self.questions == 0:
            self.clock.resume(now)
            self.session.look_at(self.clock.next_look())

    def login_begins(self, now: float, limit: float) -> None:
        """A person is asked to log in, for at most so many seconds: the clock stands still."""
        self.clock.login = max(self.clock.login, limit)
        self.question_begins(now)
        self.session.look_at(self.clock.next_look())

    # The outcome

    def succeed(self, result: Raw) -> None:
        """The answer came."""
        if not self.waiter.done():
            if isinstance(self.waiter, DirectWaiter):
                # What came before it is begun before the call goes on: a log line of the tool, a question.
                self.waiter.set_result_soon(result)
            else:
                self.waiter.set_result(result)
            if self.news is not None:
                self._wake()

    def fail(self, error: BaseException) -> None:
        """It ended otherwise."""
        waiter = self.waiter
        if not waiter.done():
            waiter.set_exception(error)
            if isinstance(waiter, asyncio.Future):
                # Who was cancelled in this very turn will not fetch it any more; that is no fault to log.
                waiter.exception()
            self._wake()

    def on_progress_notice(self, progress: ProgressParams, now: float) -> None:
        """The server reports progress on this request."""
        self.clock.progress(now)
        if self.progress is not None:
            self.progress.append(progress)
            self._wake()

    def _wake(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)

    async def wait(self) -> Raw:
        """The result.

        Raises:
            CallError: every other outcome.
            asyncio.CancelledError: the caller was cancelled; the server was told.
        """
        try:
            if self.progress is None:
                return await self.future
            return await self._wait_with_progress()
        except asyncio.CancelledError as cancelled:
            self.cancelled_by_caller(cancelled)
            raise

    def cancelled_by_caller(self, cancelled: asyncio.CancelledError) -> None:
        """Whoever awaited it was cancelled: tell the server, and write down what is known of the call."""
        # A cancel that crossed the answer finds nothing to give up.
        sent = True
        if self.session.is_waiting(self):
            sent = self.session.give_up(self, "cancelled by the caller")
        if isinstance(self.waiter, asyncio.Future | DirectWaiter):
            self.waiter.cancel()
        note_cancel(
            cancelled,
            server=self.session.server,
            tool=self.label,
            sent=sent,
            elapsed=self.clock.elapsed(self.session.loop.time()),
        )

    async def _wait_with_progress(self) -> Raw:
        assert self.progress is not None
        while True:
            while self.progress:
                await self._tell(self.progress.popleft())
            if self.future.done():
                return self.future.result()
            self.news = self.session.loop.create_future()
            try:
                await self.news
            finally:
                self.news = None

    async def _tell(self, progress: ProgressParams) -> None:
        """Run the user's callback once, within the limit of the call."""
        assert self.on_progress is not None
        try:
            told: Any = self.on_progress(progress.progress, progress.total, progress.message)
            if inspect.isawaitable(told):
                async with asyncio.timeout_at(self.clock.expires):
                    await told
        except TimeoutError:
            self.session.counters.handler_errors += 1
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # boundary: the user's callback must not decide the outcome of the call, nor end the loop
            self.session.counters.handler_errors += 1
            _log.warning("server %s: the progress callback failed: %r", self.session.server, error)
