"""One port at which browsers come back: its sockets, its connections, and what is answered.

Made by ``callback.Listeners`` for the first seat on it, ended by the last one's ``leave``; then no socket, task or
timer of it is left. Connections are few and short. Where somebody opens many, the oldest makes room that has its answer
or says nothing, after a moment in which it could have spoken: a browser's own speaks at once.

A task a connection, on plain sockets, and accepting is one synchronous step: there is no moment in which a connection
is nobody's.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from .._tasks import TaskOwner
from .callback_http import (
    MOST_HEAD,
    BadHead,
    Head,
    begin,
    head_end,
    may_be_http,
    read_head,
    redirect,
    respond,
)
from .callback_sockets import IPV4, IPV6
from .pages import rest_of, stray_page

if TYPE_CHECKING:
    from .callback import Seat

__all__ = ["CLOSE_WITHIN", "HEAD_WITHIN", "MOST", "Limits", "Port"]

HEAD_WITHIN = 5.0
"""Seconds for the head of a request."""
CLOSE_WITHIN = 2.0
"""Seconds for what is on its way to a browser, when a login ends or a response is out."""
MOST = 32
"""Connections of one port at once."""
GRACE = 0.2
"""Seconds that each connection has in however great a throng; those that come meanwhile wait to be accepted."""
AGAIN = 0.2
"""Seconds until the system is asked again that could not give a connection."""
MOST_IGNORED = 64 * 1024
"""Bytes that are read, and dropped, after a response."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a port bears."""

    head_within: float
    """Seconds for the head of a request."""
    close_within: float
    """Seconds for what is on its way to a browser."""
    most: int
    """Connections at once."""


class Stage(IntEnum):
    """How far a connection is, in the order in which they go where there are too many."""

    ANSWERED = 0
    """Its response is out; the other side has yet to close."""
    SILENT = 1
    """No whole head yet."""
    WAITING = 2
    """For an outcome to be shown."""


class Connection:
    """One of a browser, or of anybody."""

    __slots__ = ("since", "sock", "stage", "task")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock = sock
        self.since = since
        self.stage = Stage.SILENT
        self.task: asyncio.Task[None] | None = None


class Port:
    """The sockets of one port, their connections, and the seats that share them. Ends with the last seat."""

    def __init__(self, number: int, limits: Limits, ports: dict[int, Port]) -> None:
        """``ports`` are those that are held, where it strikes itself off at its end."""
        self.number = number
        self.seats: list[Seat] = []
        self.sockets: dict[str, socket.socket] = {}
        self._limits = limits
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(f"login listener {number}")
        self._connections: dict[Connection, None] = {}
        """The oldest first."""
        self._rest: asyncio.TimerHandle | None = None
        """Set while nothing is accepted."""
        self._is_over = False

    def listen(self, opened: dict[str, socket.socket]) -> None:
        """Serve these addresses too."""
        self.sockets |= opened
        for sock in opened.values():
            if self._rest is None:
                self._watch(sock)

    async def leave(self, seat: Seat) -> None:
        """A seat is no more. With the last one all is closed, and the port free."""
        if seat in self.seats:
            self.seats.remove(seat)
        if self.seats:
            return
        self._stop()
        await self._tasks.aclose(1.0)

    def forget_after_fork(self) -> None:
        """In a forked child, where the loop does not run: these descriptors are copies."""
        self._is_over = True
        for sock in [*self.sockets.values(), *(each.sock for each in self._connections)]:
            sock.close()

    def _stop(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        del self._ports[self.number]
        if self._rest is not None:
            self._rest.cancel()
        for sock in self.sockets.values():
            self._unwatch(sock)
            sock.close()

    # Accepting

    def _watch(self, sock: socket.socket) -> None:
        try:
            self._loop.add_reader(sock, self._accept, sock)
        except NotImplementedError:
            # Windows' own loop. There a connection may be lost that comes in the very moment of the end.
            self._tasks.start(self._accept_each(sock), name="accept")

    def _unwatch(self, sock: socket.socket) -> None:
        with suppress(NotImplementedError):
            self._loop.remove_reader(sock)

    def _accept(self, listening: socket.socket) -> None:
        """One at a time, so that each is read once before the next one comes."""
        until = self._make_room()
        if until is not None:
            self._pause(until)
            return
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError:
            # No more descriptors, or memory: the least useful connection gives its own back.
            self._drop_oldest()
            self._pause(self._loop.time() + AGAIN)
            return
        self._take(sock)

    async def _accept_each(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(AGAIN)
                continue
            if self._make_room() is None:
                self._take(sock)
            else:
                sock.close()

    def _make_room(self) -> float | None:
        """See that there is room for one more. Else returns until when there is none."""
        if len(self._connections) < self._limits.most:
            return None
        oldest = self._oldest()
        until = oldest.since + GRACE
        if self._loop.time() < until:
            return until
        self._drop(oldest)
        return None

    def _oldest(self) -> Connection:
        """The first to go."""
        return min(self._connections, key=lambda each: each.stage)

    def _drop_oldest(self) -> None:
        if self._connections:
            self._drop(self._oldest())

    def _drop(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if connection.task is not None:
            connection.task.cancel()

    def _pause(self, until: float) -> None:
        if self._rest is None and not self._is_over:
            for sock in self.sockets.values():
                self._unwatch(sock)
            self._rest = self._loop.call_at(until, self._resume)

    def _resume(self) -> None:
        if self._rest is not None and not self._is_over:
            self._rest.cancel()
            self._rest = None
            for sock in self.sockets.values():
                self._watch(sock)

    def _take(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        connection = Connection(sock, self._loop.time())
        self._connections[connection] = None
        connection.task = self._tasks.start(self._serve(connection), name="connection")
        # Here, as a task that is cancelled before its first step never gets to a ``finally``.
        connection.task.add_done_callback(lambda _: self._gone(connection))

    def _gone(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        connection.sock.close()
        self._resume()

    # Answering

    async def _serve(self, connection: Connection) -> None:
        try:
            try:
                async with asyncio.timeout(self._limits.head_within):
                    raw = await self._read(connection.sock)
                if raw:
                    await self._answer(connection, read_head(raw))
            except BadHead as fault:
                await self._send(connection, respond(fault.status))
        except OSError:  # TimeoutError is one
            return  # Whoever it was has gone, or was too slow.

    async def _read(self, sock: socket.socket) -> bytes:
        """A whole head; empty if there comes none."""
        buffer = bytearray()
        while True:
            data = await self._loop.sock_recv(sock, 4096)
            if not data:
                return b""
            searched = len(buffer)
            buffer += data
            if not may_be_http(bytes(buffer[:32])):
                raise BadHead
            end = head_end(buffer, searched)
            if (end or len(buffer)) > MOST_HEAD:
                raise BadHead(431)
            if end:
                return bytes(buffer[:end])

    async def _answer(self, connection: Connection, head: Head) -> None:
        if head.host not in self._places():
            await self._send(connection, respond(421, bodiless=head.method == "HEAD"))
        elif head.method != "GET":
            await self._send(connection, respond(405, bodiless=head.method == "HEAD"))
        elif head.is_prefetch:
            await self._send(connection, respond(503))
        elif (seat := next((each for each in self.seats if each.page_path == head.path), None)) is not None:
            connection.stage = Stage.WAITING
            with seat.delivering():
                await self._show(connection, seat)
        else:
            await self._answer_callback(connection, head)

    async def _show(self, connection: Connection, seat: Seat) -> None:
        """The outcome, as soon as it is known.

        Until then a browser has something to show. Without it the page of before stays, where the person clicks once
        more, or reloads it, and is told of an error by the authorization server while the login goes well. And a second
        tab would wait for the first one's response, and come when nobody listens any more.
        """
        waiting = seat.waiting_page
        if waiting:
            async with asyncio.timeout(self._limits.close_within):
                await self._loop.sock_sendall(connection.sock, begin(waiting))
        page = await seat.page()
        await self._send(connection, rest_of(page).encode() if waiting else respond(200, page), seat)

    async def _answer_callback(self, connection: Connection, head: Head) -> None:
        seats = [seat for seat in self.seats if unquote(seat.path) == unquote(head.path)]
        if not seats:
            await self._send(connection, respond(404))
            return
        query = head.query.reveal()
        seat = next((seat for seat in seats if seat.is_answer(query)), None)
        if seat is None:
            await self._send(connection, respond(400, stray_page()))
            return
        seat.take(head.query)
        with seat.delivering():
            await self._send(connection, redirect(f"http://{head.host}{seat.page_path}"))

    async def _send(self, connection: Connection, response: bytes, shown: Seat | None = None) -> None:
        """Send it, and wait a little for the other side to close: what it has not read must not be lost.

        RFC 9112 §9.6.
        """
        sock = connection.sock
        async with asyncio.timeout(self._limits.close_within):
            await self._loop.sock_sendall(sock, response)
            connection.stage = Stage.ANSWERED
            if shown is not None:
                shown.shown()
            sock.shutdown(socket.SHUT_WR)
            ignored = 0
            while ignored < MOST_IGNORED and (data := await self._loop.sock_recv(sock, 4096)):
                ignored += len(data)
                await asyncio.sleep(0)  # Where there is more already, it was not waited for.

    def _places(self) -> set[str]:
        """What a browser may call us; another name is that of a page that made its own point here (DNS rebinding)."""
        hosts = [IPV4, f"[{IPV6}]", "localhost"]
        places = {f"{host}:{self.number}" for host in hosts} | {seat.place for seat in self.seats}
        return places | {place.removesuffix(":80") for place in places} if self.number == 80 else places
