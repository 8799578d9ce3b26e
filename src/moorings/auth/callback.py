"""Where a browser comes back to at the end of a login: a listener on this machine (RFC 8252 §7.3, §8.3).

``Listeners`` is made by the auth service, for one event loop, and owns each socket, connection and timer. A ``Seat`` is
one login's place in it: taken before the login's URL exists, given back by ``Seat.aclose``. Whatever runs on this
machine can send requests here, so only one that has the path and the state of a seat means anything to it, the first of
them is the answer, and everything else is turned away and disturbs nothing. The answer's URL leaves the address bar at
once: the browser is sent on to a page that waits for the outcome, and shows that.

The sockets are ``callback_port``'s and ``callback_sockets``', the HTTP is ``callback_http``'s, what people see is
``pages``'.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from .._secret import Secret
from .._urls import is_loopback
from .authorization import is_for
from .callback_port import CLOSE_WITHIN, HEAD_WITHIN, MOST, Limits, Port
from .callback_sockets import PortTaken, open_sockets
from .faults import LoginAbandoned, LoginFault
from .pages import failed_page, succeeded_page, waiting_page

__all__ = ["Listeners", "PortTaken", "Seat"]

_WRITABLE = "".join(map(chr, range(0x21, 0x7F)))


class Listeners:
    """See the module. Used on one loop at a time; there may be another after ``aclose``."""

    def __init__(
        self, *, head_within: float = HEAD_WITHIN, close_within: float = CLOSE_WITHIN, most: int = MOST
    ) -> None:
        """Opens nothing. ``head_within`` and ``close_within`` are in seconds, ``most`` counts connections of a port."""
        self._limits = Limits(head_within=head_within, close_within=close_within, most=most)
        self._ports: dict[int, Port] = {}

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
        target = path or f"/callback/{secrets.token_urlsafe(12)}"
        if not target.startswith("/"):
            raise LoginFault("the path of a redirect URI begins with a slash")
        opened = open_sockets(host, port, self._ports[port].sockets if port in self._ports else ())
        port = port or next(iter(opened.values())).getsockname()[1]
        if port not in self._ports:
            self._ports[port] = Port(port, self._limits, self._ports)
        held = self._ports[port]
        held.listen(opened)
        shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
        seat = Seat(held, f"{shown}:{port}", target, self._limits.close_within)
        held.seats.append(seat)
        return seat

    async def aclose(self) -> None:
        """End all logins that have a seat, and leave nothing."""
        seats = [seat for port in self._ports.values() for seat in port.seats]
        for seat in seats:
            seat.end()
        until = asyncio.get_running_loop().time() + self._limits.close_within
        struck: asyncio.CancelledError | None = None
        for seat in seats:
            try:
                await seat.aclose(until)
            except asyncio.CancelledError as error:  # raised again, when the others are closed too
                struck, until = error, 0.0
        if struck is not None:
            raise struck

    def forget_after_fork(self) -> None:
        """In a forked child: the logins are the parent's, whose ports must not stay taken for the child's life."""
        for port in self._ports.values():
            port.forget_after_fork()
        self._ports.clear()


class Seat:
    """One login's place at a listener: made by ``Listeners.seat``, ended by ``aclose``, which leaves nothing of it."""

    def __init__(self, port: Port, place: str, target: str, close_within: float) -> None:
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

    @property
    def waiting_page(self) -> str:
        """What is shown until the outcome is known; empty if it is."""
        return "" if self._told.is_set() else waiting_page(self._server)

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
