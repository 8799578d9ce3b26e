"""Notifications on their way to the user's handlers: a bounded queue and one owned task.

The reader only puts; the task, which exists only while something waits, hands over one after another. What nobody
listens to is counted and dropped at once. Owned by the session.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from .._tasks import TaskOwner
from ..wire.types import LogParams, ResourceUpdatedParams, decode_result
from .handlers import Handlers

if TYPE_CHECKING:
    from .session import Counters

__all__ = ["Notices"]

_log = logging.getLogger("moorings")


class Notices:
    """The queue of notifications of one session."""

    __slots__ = ("_counters", "_limit", "_owner", "_queue", "_task")

    def __init__(self, owner: TaskOwner, counters: Counters, *, limit: int) -> None:
        self._owner = owner
        self._counters = counters
        self._limit = limit
        self._queue: deque[tuple[str, str, Raw | None, Handlers]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, server: str, method: str, params: Raw | None, handlers: Handlers) -> None:
        """Queue a notification for its handler; the oldest is dropped when too many wait."""
        if self._handler(method, handlers) is None:
            self._counters.unheard_notifications += 1
            return
        if len(self._queue) >= self._limit:
            self._queue.popleft()
            self._counters.dropped_notifications += 1
        # The frame they stand in may be large: what waits holds its own bytes only.
        self._queue.append((server, method, params.copy() if params is not None else None, handlers))
        if self._task is None or self._task.done():
            self._task = self._owner.start(self._run(), name="notifications")

    @staticmethod
    def _handler(method: str, handlers: Handlers) -> Any:
        if method == "notifications/message" and handlers.on_log is not None:
            return handlers.on_log
        if method == "notifications/resources/updated" and handlers.on_resource_updated is not None:
            return handlers.on_resource_updated
        return handlers.on_notification

    async def _run(self) -> None:
        while self._queue:
            server, method, params, handlers = self._queue.popleft()
            try:
                told = self._tell(server, method, params, handlers)
                if inspect.isawaitable(told):
                    await told
            except (
                Exception,
                asyncio.CancelledError,
            ) as error:  # boundary: a listener is the user's code; its failure is counted, no more
                me = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                    raise
                self._counters.handler_errors += 1
                _log.warning("server %s: the listener of %s failed: %r", server, method, error)
            # Plain listeners do not yield: let the others of the loop have their turn.
            await asyncio.sleep(0)

    @staticmethod
    def _tell(server: str, method: str, params: Raw | None, handlers: Handlers) -> Any:
        body = params if params is not None else Raw(b"{}")
        if method == "notifications/message" and handlers.on_log is not None:
            return handlers.on_log(server, decode_result(body, LogParams))
        if method == "notifications/resources/updated" and handlers.on_resource_updated is not None:
            return handlers.on_resource_updated(server, decode_result(body, ResourceUpdatedParams).uri)
        assert handlers.on_notification is not None
        return handlers.on_notification(server, method, msgspec.json.decode(body))
