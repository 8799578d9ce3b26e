"""Where a browser comes back to at the end of a login: a listener on this machine (RFC 8252 §7.3, §8.3).

``Listeners`` is made by the auth service, for one event loop, and owns each socket, connection and timer. A ``Seat`` is
one login's place in it: taken before the login's URL exists, given back by ``Seat.aclose``. Whatever runs on this
machine can send requests here, so only one that has the path and the state of a seat means anything to it, the first of
them is the answer, and everything else is turned away and disturbs nothing. The answer's URL leaves the address bar at
once: the browser is sent on to a page that waits for the outcome, and shows that.

Connections are few and short. Where many are held open by somebody who says nothing, the oldest of those makes room,
after a moment in which it could have spoken; a browser's own is not one of them.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, unquote

from .._secret import Secret
from .._tasks import TaskOwner
from .._urls import is_loopback
from .authorization import is_for
from .callback_http import MOST_HEAD, BadHead, Head, head_end, may_be_http, read_head, redirect, respond
from .callback_sockets import IPV4, IPV6, PortTaken, open_sockets
from .faults import LoginAbandoned, LoginFault
from .pages import failed_page, stray_page, succeeded_page

__all__ = ["Listeners", "PortTaken", "Seat"]

HEAD_WITHIN = 5.0
"""Seconds for the head of a request."""
CLOSE_WITHIN = 2.0
"""Seconds for what is on its way to a browser, when a login ends or a response is out."""
MOST = 32
"""Connections of one port at once."""
GRACE = 0.2
"""Seconds that a connection may be silent in however great a throng."""
AGAIN = 0.2
"""Seconds until the system is asked again that could not give a connection."""
MOST_IGNORED = 64 * 1024
"""Bytes that are read, and dropped, after a response."""

_WRITABLE = "".join(map(chr, range(0x21, 0x7F)))


class Listeners:
    """See the module. Used on one loop at a time; there may be another after ``aclose``."""

    def __init__(
        self, *, head_within: float = HEAD_WITHIN, close_within: float = CLOSE_WITHIN, most: int = MOST
    ) -> None:
        """Opens nothing. ``head_within`` and ``close_within`` are in seconds, ``most`` counts connections of a port."""
        self._head_within = head_within
        self._close_within = close_within
        self._most = most
        self._ports: dict[int, _Port] = {}

    async def seat(self, host: str, port: int = 0, path: str = "") -> Seat:
        """Listen for one login. Waits for nothing.

        Args:
            host: a name or address of this machine, with or without brackets. ``localhost`` is both families, where the
                machine has them; ``127.0.0.1`` and ``::1`` are the other one too if that can be had.
            port: 0 for any that is free. Seats with the same one share it.
            path: as it was registered, with its query if it has one; empty for one that nobody can guess.

        Raises:
            PortTaken: another program has the port, or it is not ours to have.
            LoginFault: there is no listening on this host.
        """
        if not is_loopback(host):
            raise LoginFault(f"{host} is not this machine, so no login can come back to it here")
        place = path or f"/callback/{secrets.token_urlsafe(12)}"
        if not place.startswith("/"):
            raise LoginFault("the path of a redirect URI begins with a slash")
        opened = open_sockets(host, port, self._ports[port].sockets if port in self._ports else ())
        port = port or next(iter(opened.values())).getsockname()[1]
        if port not in self._ports:
            self._ports[port] = _Port(self, port)
        held = self._ports[port]
        held.listen(opened)
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        seat = Seat(held, f"{shown}:{port}", place, self._close_within)
        held.seats.append(seat)
        return seat

    async def aclose(self) -> None:
        """End all logins that have a seat, and leave nothing."""
        seats = [seat for port in self._ports.values() for seat in port.seats]
        for seat in seats:
            seat.end()
        until = asyncio.get_running_loop().time() + self._close_within
        struck: asyncio.CancelledError | None = None
        for seat in seats:
            try:
                await seat.aclose(until)
            except asyncio.CancelledError as error:  # raised again, when the others are closed too
                struck, until = error, 0.0
        if struck is not None:
            raise struck


class Seat:
    """One login's place at a listener: made by ``Listeners.seat``, ended by ``aclose``, which leaves nothing of it."""

    def __init__(self, port: _Port, place: str, target: str, close_within: float) -> None:
        self.redirect_uri = f"http://{place}{target}"
        """Where the browser comes back to, with the host as it was given."""
        self.place = place.lower()
        """Host and port, as they stand in a ``Host`` header."""
        self.path = target.partition("?")[0]
        self.page_path = f"{quote(self.path.rstrip('/'), safe=_WRITABLE)}/done-{secrets.token_urlsafe(12)}"
        """Where the outcome is shown. Only who brought the answer knows it."""
        self._port = port
        self._close_within = close_within
        self._state: Secret | None = None
        self._server = ""
        self._query: Secret | None = None
        self._arrived = asyncio.Event()
        self._page = ""
        self._told = asyncio.Event()
        self._is_over = False
        self._delivering = 0
        self._is_page_due = False
        """A browser was sent to the page, and has not got it yet."""
        self._quiet = asyncio.Event()
        self._quiet.set()

    def __repr__(self) -> str:
        return f"Seat({self._port.number})"

    def expect(self, state: Secret, server: str) -> None:
        """From now on a request with this state is the answer. ``server`` is the name that people see."""
        self._state = state
        self._server = server

    async def arrived(self) -> str:
        """The query of the answer, as it came: the first right one. It holds a code.

        Raises:
            LoginAbandoned: the seat was closed before there was one.
        """
        await self._arrived.wait()
        if self._query is None:
            raise LoginAbandoned("the login was ended")
        return self._query.reveal()

    def succeeded(self) -> None:
        """Tell the browser that the login is done and stored. What was told first counts."""
        self._tell(succeeded_page(self._server))

    def failed(self, reason: str) -> None:
        """Tell the browser why it came to nothing. What was told first counts."""
        self._tell(failed_page(self._server, reason))

    def end(self) -> None:
        """Nobody waits for this login any more. Waits for nothing; ``aclose`` gives the place back."""
        self.failed("the login was ended")
        self._is_over = True
        self._arrived.set()

    async def aclose(self, until: float | None = None) -> None:
        """Give the place back; the port is free when the last one on it has.

        What is on its way to a browser gets there first, if that takes no longer than two seconds, or than until the
        loop's time ``until``. A cancellation cuts that short.
        """
        self.end()
        if until is None:
            until = asyncio.get_running_loop().time() + self._close_within
        try:
            async with asyncio.timeout_at(until):
                await self._quiet.wait()
        except TimeoutError:
            pass
        finally:
            await self._port.leave(self)

    # From the port

    def is_answer(self, query: str) -> bool:
        """Whether a request to its path is for this login."""
        return self._state is not None and is_for("?" + query, self._state)

    def take(self, query: Secret) -> None:
        """An answer: the first one counts, and each is led to the page."""
        if self._query is None and not self._is_over:
            self._query = query
            self._arrived.set()
        self._is_page_due = True
        self._look()

    async def page(self) -> str:
        """What is shown, as soon as it is known."""
        await self._told.wait()
        return self._page

    def shown(self) -> None:
        """The page is out."""
        self._is_page_due = False

    @contextmanager
    def delivering(self) -> Iterator[None]:
        """While something is on its way to a browser."""
        self._delivering += 1
        self._look()
        try:
            yield
        finally:
            self._delivering -= 1
            self._look()

    def _tell(self, page: str) -> None:
        if not self._told.is_set():
            self._page = page
            self._told.set()

    def _look(self) -> None:
        if self._delivering or self._is_page_due:
            self._quiet.clear()
        else:
            self._quiet.set()


class _Connection:
    """One of a browser, or of anybody."""

    __slots__ = ("has_head", "since", "sock", "task")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock = sock
        self.since = since
        self.has_head = False
        self.task: asyncio.Task[None] | None = None


class _Port:
    """The sockets of one port, their connections, and the seats that share them. Ends with the last seat."""

    def __init__(self, owner: Listeners, number: int) -> None:
        self.number = number
        self.seats: list[Seat] = []
        self.sockets: dict[str, socket.socket] = {}
        self._listeners = owner
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(f"login listener {number}")
        self._connections: dict[_Connection, None] = {}
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

    def _stop(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        del self._listeners._ports[self.number]
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
        if len(self._connections) < self._listeners._most:
            return None
        oldest = self._oldest()
        until = oldest.since + GRACE
        if not oldest.has_head and self._loop.time() < until:
            return until
        self._drop(oldest)
        return None

    def _oldest(self) -> _Connection:
        """The first to go: of those that have said nothing yet, if there are any."""
        silent = (each for each in self._connections if not each.has_head)
        return next(silent, None) or next(iter(self._connections))

    def _drop_oldest(self) -> None:
        if self._connections:
            self._drop(self._oldest())

    def _drop(self, connection: _Connection) -> None:
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
        connection = _Connection(sock, self._loop.time())
        self._connections[connection] = None
        connection.task = self._tasks.start(self._serve(connection), name="connection")
        # Here, as a task that is cancelled before its first step never gets to a ``finally``.
        connection.task.add_done_callback(lambda _: self._gone(connection))

    def _gone(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        connection.sock.close()
        self._resume()

    # Answering

    async def _serve(self, connection: _Connection) -> None:
        try:
            try:
                async with asyncio.timeout(self._listeners._head_within):
                    raw = await self._read(connection.sock)
                connection.has_head = True
                if raw:
                    await self._answer(connection.sock, read_head(raw))
            except BadHead as fault:
                connection.has_head = True
                await self._send(connection.sock, respond(fault.status))
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

    async def _answer(self, sock: socket.socket, head: Head) -> None:
        seats = [seat for seat in self.seats if head.path == seat.page_path]
        if head.host not in self._places():
            await self._send(sock, respond(421, bodiless=head.method == "HEAD"))
        elif head.method != "GET":
            await self._send(sock, respond(405, bodiless=head.method == "HEAD"))
        elif head.is_prefetch:
            await self._send(sock, respond(503))
        elif seats:
            seat = seats[0]
            with seat.delivering():
                page = await seat.page()
                await self._send(sock, respond(200, page), seat)
        else:
            await self._answer_callback(sock, head)

    async def _answer_callback(self, sock: socket.socket, head: Head) -> None:
        seats = [seat for seat in self.seats if unquote(seat.path) == unquote(head.path)]
        if not seats:
            await self._send(sock, respond(404))
            return
        query = head.query.reveal()
        seat = next((seat for seat in seats if seat.is_answer(query)), None)
        if seat is None:
            await self._send(sock, respond(400, stray_page()))
            return
        seat.take(head.query)
        with seat.delivering():
            await self._send(sock, redirect(f"http://{head.host}{seat.page_path}"))

    async def _send(self, sock: socket.socket, response: bytes, shown: Seat | None = None) -> None:
        """Send it, and wait a little for the other side to close: what it has not read must not be lost.

        RFC 9112 §9.6.
        """
        async with asyncio.timeout(self._listeners._close_within):
            await self._loop.sock_sendall(sock, response)
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
