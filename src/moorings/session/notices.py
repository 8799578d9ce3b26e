"""Notifications on their way to the user's handlers: a bounded queue and one owned task.

The reader only puts; the task, which exists only while something waits, hands over one after another. What nobody
listens to is counted and dropped at once; what cannot be read is the server's fault and reaches no listener. Owned by
the session.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from .._log import Fold, log
from .._tasks import TaskOwner
from ..wire.types import InvalidAnswer, LogParams, ResourceUpdatedParams, decode_result, load_raw
from .handlers import Handlers

if TYPE_CHECKING:
    from .session import Counters

__all__ = ["Notices"]

MAX_WAITING = 16 * 1024 * 1024
"""Bytes of all that wait together; a single one that is larger may wait alone (``Bounds.max_message`` bounds it)."""


class Notices:
    """The queue of notifications of one session."""

    __slots__ = (
        "_bytes",
        "_counters",
        "_failures",
        "_limit",
        "_malformed",
        "_max_bytes",
        "_owner",
        "_task",
        "queue",
    )

    def __init__(
        self, owner: TaskOwner, counters: Counters, *, limit: int, max_bytes: int = MAX_WAITING
    ) -> None:
        self._owner = owner
        self._counters = counters
        self._limit = limit
        self._max_bytes = max_bytes
        self.queue: deque[tuple[str, str, Raw | None, Handlers, int]] = deque()
        self._bytes = 0
        self._failures = Fold()
        self._malformed = Fold()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.queue)

    @property
    def malformed(self) -> int:
        """Notifications that could not be read: the server's fault, and not one of the listener."""
        return self._malformed.count

    def put(self, server: str, method: str, params: Raw | None, handlers: Handlers) -> None:
        """Queue a notification for its handler; the oldest is dropped when too many wait."""
        if self._handler(method, handlers) is None:
            self._counters.unheard_notifications += 1
            return
        size = len(method) + (len(memoryview(params)) if params is not None else 0)
        while self.queue and (len(self.queue) >= self._limit or self._bytes + size > self._max_bytes):
            self._take()
            self._counters.dropped_notifications += 1
        # The frame they stand in may be large: what waits holds its own bytes only.
        self.queue.append((server, method, params.copy() if params is not None else None, handlers, size))
        self._bytes += size
        if self._task is None or self._task.done():
            self._task = self._owner.start(self._run(), name="notifications")

    def _take(self) -> tuple[str, str, Raw | None, Handlers]:
        server, method, params, handlers, size = self.queue.popleft()
        self._bytes -= size
        return server, method, params, handlers

    @staticmethod
    def _handler(method: str, handlers: Handlers) -> Any:
        if method == "notifications/message" and handlers.on_log is not None:
            return handlers.on_log
        if method == "notifications/resources/updated" and handlers.on_resource_updated is not None:
            return handlers.on_resource_updated
        return handlers.on_notification

    async def _run(self) -> None:
        while self.queue:
            server, method, params, handlers = self._take()
            try:
                tell = self._reading(server, method, params, handlers)
            except InvalidAnswer as error:
                if self._malformed.due():
                    log.warning(
                        "server %s: %s cannot be read, so nobody is told (%d by now): %s",
                        server,
                        method[:80],
                        self._malformed.count,
                        error,
                    )
                # A server may send many of them: let the others of the loop have their turn.
                await asyncio.sleep(0)
                continue
            try:
                told = tell()
                if inspect.isawaitable(told):
                    await told
            except (
                Exception,
                SystemExit,
                KeyboardInterrupt,
                asyncio.CancelledError,
            ) as error:  # boundary: a listener is the user's code; its failure is counted, no more
                me = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                    raise
                self._counters.handler_errors += 1
                if self._failures.due():
                    log.warning(
                        "server %s: the listener of %s failed: %r (%d by now)",
                        server,
                        method[:80],
                        error,
                        self._failures.count,
                    )
            # Plain listeners do not yield: let the others of the loop have their turn.
            await asyncio.sleep(0)

    @staticmethod
    def _reading(server: str, method: str, params: Raw | None, handlers: Handlers) -> Callable[[], Any]:
        """What tells the listener, its arguments read. Raises InvalidAnswer."""
        body = params if params is not None else Raw(b"{}")
        if method == "notifications/message" and handlers.on_log is not None:
            on_log, params_of_log = handlers.on_log, decode_result(body, LogParams)
            return lambda: on_log(server, params_of_log)
        if method == "notifications/resources/updated" and handlers.on_resource_updated is not None:
            on_updated, uri = handlers.on_resource_updated, decode_result(body, ResourceUpdatedParams).uri
            return lambda: on_updated(server, uri)
        assert handlers.on_notification is not None
        on_other, value = handlers.on_notification, load_raw(body)
        return lambda: on_other(server, method, value)
