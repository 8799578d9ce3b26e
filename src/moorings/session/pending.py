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
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from ..transport.base import Outgoing
from ..wire.types import ProgressParams
from .cancelled import note_cancel
from .clock import CallClock

if TYPE_CHECKING:
    from .session import Session

__all__ = ["OnProgress", "Pending"]

OnProgress = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Told ``progress, total, message``."""

_log = logging.getLogger("moorings")

KEPT_PROGRESS = 256
"""Progress that waits for a slow callback; older ones are dropped, the newest says all."""


class Pending:
    """A request that was sent and has no outcome yet."""

    __slots__ = (
        "_loop",
        "_news",
        "_on_progress",
        "_progress",
        "_questions",
        "_session",
        "clock",
        "context",
        "future",
        "id",
        "label",
        "limited",
        "method",
        "outgoing",
    )

    def __init__(
        self,
        session: Session,
        id_: int,
        method: str,
        label: str,
        clock: CallClock,
        on_progress: OnProgress | None,
    ) -> None:
        self._session = session
        self.id = id_
        self.method = method
        self.label = label
        self.clock = clock
        self.outgoing: Outgoing | None = None
        self.context: contextvars.Context | None = session.capture_context()
        self.limited = True
        """False once no clock ends it any more: a stream that was acknowledged."""
        self._loop = session.loop
        self.future: asyncio.Future[Raw] = self._loop.create_future()
        self._on_progress = on_progress
        self._progress: deque[ProgressParams] | None = deque(maxlen=KEPT_PROGRESS) if on_progress else None
        self._news: asyncio.Future[None] | None = None
        self._questions = 0

    @property
    def done(self) -> bool:
        """True once it has an outcome."""
        return self.future.done()

    # The clock

    def question_begins(self, now: float) -> None:
        """The server asks something: the clock stands still."""
        self._questions += 1
        if self._questions == 1:
            self.clock.pause(now)

    def question_ends(self, now: float) -> None:
        """A question was answered; the clock goes on with the last one."""
        self._questions -= 1
        if self._questions == 0:
            self.clock.resume(now)
            self._session.look_at(self.clock.next_look())

    # The outcome

    def succeed(self, result: Raw) -> None:
        """The answer came."""
        if not self.future.done():
            self.future.set_result(result)
            self._wake()

    def fail(self, error: BaseException) -> None:
        """It ended otherwise."""
        if not self.future.done():
            self.future.set_exception(error)
            # A waiter that was cancelled in this very turn will not fetch it any more; that is no fault to log.
            self.future.exception()
            self._wake()

    def on_progress_notice(self, progress: ProgressParams, now: float) -> None:
        """The server reports progress on this request."""
        self.clock.progress(now)
        if self._progress is not None:
            self._progress.append(progress)
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self) -> Raw:
        """The result.

        Raises:
            CallError: every other outcome.
            asyncio.CancelledError: the caller was cancelled; the server was told.
        """
        try:
            if self._progress is None:
                return await self.future
            return await self._wait_with_progress()
        except asyncio.CancelledError as cancelled:
            # A cancel that crossed the answer finds nothing to give up.
            sent = True
            if self._session.is_waiting(self):
                sent = self._session.give_up(self, "cancelled by the caller")
            if not self.future.done():
                self.future.cancel()
            note_cancel(
                cancelled,
                server=self._session.server,
                tool=self.label,
                sent=sent,
                elapsed=self.clock.elapsed(self._loop.time()),
            )
            raise

    async def _wait_with_progress(self) -> Raw:
        assert self._progress is not None
        while True:
            while self._progress:
                await self._tell(self._progress.popleft())
            if self.future.done():
                return self.future.result()
            self._news = self._loop.create_future()
            try:
                await self._news
            finally:
                self._news = None

    async def _tell(self, progress: ProgressParams) -> None:
        """Run the user's callback once, within the limit of the call."""
        assert self._on_progress is not None
        try:
            told: Any = self._on_progress(progress.progress, progress.total, progress.message)
            if inspect.isawaitable(told):
                async with asyncio.timeout_at(self.clock.expires):
                    await told
        except TimeoutError:
            self._session.counters.handler_errors += 1
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
        ) as error:  # boundary: the user's callback must not decide the outcome of the call, nor end the loop
            self._session.counters.handler_errors += 1
            _log.warning("server %s: the progress callback failed: %r", self._session.server, error)
