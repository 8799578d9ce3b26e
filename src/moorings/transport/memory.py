"""The transport to a server that is an object in this process: no process, no socket, no thread of its own.

Made, started and stopped by one life of a server. What crosses is bytes, framed as on stdio, so that sessions and
codecs are those of real servers. Nothing is handed over inside ``send`` or ``say``: each side hears in a later turn of
the loop, in the order in which it was said, as over a pipe. The server's own tasks belong to the transport; a stop
cancels them, asks once more, and reports those that do not end within the bounds of the server.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from .._tasks import TaskOwner, outlast, put_back_cancellation, run_in_thread
from ..config.memory import MemoryApp, MemoryPeer
from ..wire.framing import LineFramer, Oversize
from .base import Closed, OutboxFull, Outgoing, Receiver, Request, StopRecord

__all__ = ["MemoryTransport"]

_log = logging.getLogger("moorings")

LAST_WAIT = 0.1
"""Seconds that a task gets in every case between its cancellation and the report that it is stuck."""


class MemoryTransport:
    """One connection to an object. See the module; nothing is left after ``stop`` but the tasks that it reports.

    Args:
        name: the server's, for the names of its tasks.
        max_message, max_outbox: in bytes; see ``Bounds``.
        patience: seconds from the first request to end until the second, and from that until the report.
    """

    pid = None
    listens = True
    has_headers = False
    reads_between_tasks = False

    def __init__(
        self,
        name: str,
        app: MemoryApp,
        receiver: Receiver,
        *,
        max_message: int,
        max_outbox: int,
        patience: tuple[float, float],
    ) -> None:
        self._app = app
        self._receiver = receiver
        self._framer = LineFramer(max_message)
        self._max_outbox = max_outbox
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        # Not that of the caller who happened to send: a server knows nothing of who asks it.
        self._context = contextvars.copy_context()
        self._peer: MemoryPeer | None = None
        self._outbox: deque[Outgoing] = deque()
        self._waiting = 0
        """Bytes in the outbox."""
        self._tail = ""
        self._over = False
        self._tasks = TaskOwner(f"in-process server {name}")
        self._running: set[asyncio.Task[Any]] = set()
        self._left: set[threading.Thread] = set()
        """Threads of plain functions that go on though nobody waits for them."""
        self._stop_by = float("inf")
        self._turn: asyncio.Future[None] | None = None
        """What a stop waits for at this moment."""

    def start(self) -> None:
        self._peer = self._app.open_line(self)

    # From the client to the server

    def send(self, frame: bytes, request: Request | None = None, method: str = "") -> Outgoing:
        if self._peer is None or self._over:
            raise ConnectionError("it is not running")
        if frame.find(b"\n") != len(frame) - 1:
            raise ValueError("a frame holds a line break: raw JSON must stand in one line")
        if self._waiting + len(frame) > self._max_outbox:
            raise OutboxFull("too much waits to be written to it already")
        outgoing = Outgoing(frame)
        if not self._outbox:
            self._loop.call_soon(self._hand_over, context=self._context)
        self._outbox.append(outgoing)
        self._waiting += len(frame)
        return outgoing

    def withdraw(self, outgoing: Outgoing) -> bool:
        if outgoing.started or outgoing not in self._outbox:
            return False
        self._outbox.remove(outgoing)
        self._waiting -= len(outgoing.frame)
        return True

    async def prepare(self) -> None:
        """All is there."""

    def let_go(self, outgoing: Outgoing) -> bool:
        return False

    def settled(self, revision: str, *, modern: bool) -> None:
        """Both eras look the same here."""

    def _hand_over(self) -> None:
        """All that waits reaches the server."""
        waiting, self._outbox, self._waiting = self._outbox, deque(), 0
        for outgoing in waiting:
            if self._over or self._peer is None:
                return
            frame, size = outgoing.frame, len(outgoing.frame)
            outgoing.offset, outgoing.frame = size, b""
            try:
                self._peer.hear(frame[:-1])
            except (
                Exception
            ) as error:  # boundary: the object is not ours; its failure is the end of its connection
                _log.exception("the in-process server failed on a message")
                self.end(f"failed on a message: {error!r}")

    # From the server to the client

    def say(self, data: bytes) -> None:
        self._soon(self._on_data, data)

    def end(self, reason: str, *, exit_code: int | None = None, stderr: str = "") -> None:
        self._soon(self._end, Closed(reason, exit_code, stderr))

    def post(self, function: Callable[[], object]) -> None:
        if _get_running_loop() is self._loop:
            self._if_open(function)
            return
        try:
            self._loop.call_soon_threadsafe(self._if_open, function, context=self._context)
        except RuntimeError:
            # The loop is closed, and with it the connection is over.
            pass

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon(function, *args, context=self._context)

    def _if_open(self, function: Callable[[], object]) -> None:
        if not self._over:
            function()

    def _on_data(self, data: bytes) -> None:
        if self._over:
            return
        for frame in self._framer.feed(data):
            if isinstance(frame, Oversize):
                self._receiver.oversize(frame)
            elif frame:
                self._receiver.message(frame)

    def _end(self, how: Closed) -> None:
        """The connection is over: say so, once."""
        if self._over:
            return
        self._over = True
        self._tail = how.stderr_tail
        self._tell_peer()
        self._receiver.closed(how)

    def _tell_peer(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            try:
                peer.closed()
            except Exception:  # boundary: the object is not ours, and this is its end in any case
                _log.exception("the in-process server failed at its end")
        for task in self._running:
            # One that was cancelled already is putting its things away: that is not to be interrupted.
            if not task.cancelling():
                task.cancel()

    # What a session and its owner want besides

    def stderr_tail(self) -> str:
        return self._tail

    def note(self, text: bytes) -> None:
        """There is no log to keep it in."""

    def give_up(self, reason: str) -> None:
        self._end(Closed(reason, None, self._tail))

    # The server's own work

    def run(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        if self._over:
            work.close()
            raise ConnectionError("the connection is over")
        task = self._tasks.start(work, name=name, context=self._context.copy())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not self._running and self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def in_thread(self, function: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        return run_in_thread(function, *args, name="moorings-memory-server", left=self._left)

    # The end

    def hasten(self, deadline: float) -> None:
        self._stop_by = min(self._stop_by, deadline)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def stop(self, deadline: float) -> StopRecord:
        """End the server's tasks (see the module). Never cut short by a cancellation, which is put back."""
        began = self._loop.time()
        self.hasten(deadline)
        # The last that was sent is still heard: the calls that were taken back.
        self._hand_over()
        self._over = True
        self._tell_peer()
        first, second = self._patience
        cancelled = await self._ended_within(first, then=second)
        if self._running:
            for task in self._running:
                # Whoever swallowed the first request to end gets a second.
                task.cancel()
            cancelled = await self._ended_within(second, then=0.0) or cancelled
        stuck = await self._tasks.aclose(LAST_WAIT)
        threads = sum(thread.is_alive() for thread in self._left)
        stuck += [f"{self._tasks.name}: a plain function that does not return"] * threads
        if cancelled:
            put_back_cancellation()
        return StopRecord(elapsed=self._loop.time() - began, stuck=tuple(stuck))

    async def _ended_within(self, seconds: float, *, then: float) -> bool:
        """Wait until all tasks have ended, for at most ``seconds``; a near deadline shortens that in proportion to
        what is planned after it. Returns whether the waiting task was cancelled meanwhile."""
        began = self._loop.time()
        cancelled = False
        while self._running:
            now = self._loop.time()
            left, planned = began + seconds - now, began + seconds - now + then
            share = min(1.0, max(0.0, self._stop_by - now) / planned) if planned > 0 else 1.0
            if left * share <= 0:
                break
            self._turn = self._loop.create_future()
            _, was_cancelled = await outlast(self._turn, now + left * share)
            cancelled = cancelled or was_cancelled
            if not self._turn.done():
                break
        self._turn = None
        return cancelled
