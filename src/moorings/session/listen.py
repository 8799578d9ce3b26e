"""``subscriptions/listen``: how a modern server tells of changes, kept open.

One listener per filter, run in a task of the server's life and ended with it. The limit of requests holds for the
acknowledgement only; an ended stream is opened again after a wait that grows on rapid ends and starts anew after a
long life. Each opening after the first says that something may have been missed. Source: MCP ``subscriptions``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ..errors import CallError, Refused
from ..wire.eras import METHOD_NOT_FOUND
from ..wire.types import SubscriptionFilter
from .clock import CallClock
from .session import Session

__all__ = ["Listener", "reopen_wait"]

_log = logging.getLogger("moorings")

FIRST_WAIT = 0.5
LONGEST_WAIT = 15.0
LONG_LIFE = 30.0
"""Seconds; a stream that lived that long starts the waits anew."""
FOREVER = 10 * 365 * 24 * 3600.0


def reopen_wait(before: float | None, lived: float) -> float:
    """Seconds until a stream is opened again, from the last wait and the life of the stream that ended."""
    if before is None or lived >= LONG_LIFE:
        return FIRST_WAIT
    return min(before * 2, LONGEST_WAIT)


class Listener:
    """Keeps one subscription open. Made and run by a life of a server; ended by cancelling the task that runs it."""

    def __init__(
        self, session: Session, wanted: dict[str, Any], *, limit: float, on_open: Callable[[bool], None]
    ) -> None:
        """``on_open`` is told of each opening, and whether it was the first attempt: after any other, something may
        have been missed."""
        self._session = session
        self._wanted = wanted
        self._limit = limit
        self._on_open = on_open
        self._id: int | None = None
        self._acknowledged: asyncio.Future[SubscriptionFilter] | None = None
        self._first: asyncio.Future[CallError | None] = asyncio.get_running_loop().create_future()
        """Done when the first attempt is: with None if it was opened, or given up by us."""
        self.granted: SubscriptionFilter | None = None
        """What the server agreed to tell; None while the stream is not open."""

    async def opened(self, until: float) -> tuple[SubscriptionFilter | None, CallError | None]:
        """Wait for the first attempt to open it, until the loop's time ``until``.

        Returns what was granted and None, or None and why it was not opened; None twice where it is not known.
        """
        left = max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait({self._first}, timeout=left)
        return self.granted, self._first.result() if self._first.done() else None

    def abandon(self) -> None:
        """It will be cancelled: who waits for it need not wait any more."""
        if not self._first.done():
            self._first.set_result(None)

    def acknowledge(self, id_: int, granted: SubscriptionFilter) -> bool:
        """An acknowledgement came; True if it is for this listener."""
        if id_ != self._id or self._acknowledged is None:
            return False
        if not self._acknowledged.done():
            self._acknowledged.set_result(granted)
        return True

    async def run(self) -> None:
        """Keep it open until cancelled, until the session ends, or until the server says that it has no such thing."""
        loop = asyncio.get_running_loop()
        wait: float | None = None
        first = True
        while self._session.end is None:
            began = loop.time()
            try:
                await self._once(first=first)
            except CallError as error:
                if not self._first.done():
                    self._first.set_result(error)
                if isinstance(error, Refused) and error.rpc_code == METHOD_NOT_FOUND:
                    _log.info("server %s: it has no subscriptions", self._session.server)
                    return
            finally:
                self.granted = None
            first = False
            wait = reopen_wait(wait, loop.time() - began)
            await asyncio.sleep(wait)

    def _sent(self, id_: int) -> None:
        self._id = id_
        self._acknowledged = asyncio.get_running_loop().create_future()

    async def _once(self, *, first: bool) -> None:
        """One stream, from its opening to its end."""
        loop = asyncio.get_running_loop()
        clock = CallClock.of(loop.time(), self._limit, FOREVER)
        pending = self._session.begin(
            "subscriptions/listen", {"notifications": self._wanted}, clock, on_sent=self._sent
        )
        acknowledged = self._acknowledged
        assert acknowledged is not None
        try:
            either: set[asyncio.Future[Any]] = {pending.future, acknowledged}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if acknowledged.done():
                pending.limited = False
                self._granted(acknowledged.result())
                self.abandon()
                self._on_open(first)
            await pending.wait()
        except asyncio.CancelledError:
            if not pending.done:
                self._session.cancel(pending, "no longer wanted")
            raise

    def _granted(self, granted: SubscriptionFilter) -> None:
        self.granted = granted
        missing = [
            key
            for key, given in (
                ("toolsListChanged", granted.tools_list_changed),
                ("promptsListChanged", granted.prompts_list_changed),
                ("resourcesListChanged", granted.resources_list_changed),
            )
            if self._wanted.get(key) and not given
        ]
        left = set(self._wanted.get("resourceSubscriptions") or ()) - set(
            granted.resource_subscriptions or ()
        )
        missing.extend(sorted(left))
        if missing:
            _log.warning("server %s will not tell of: %s", self._session.server, ", ".join(missing))
