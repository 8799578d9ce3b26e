"""What the tests of the listener share: a listener that ends with the test, and a browser that is a bare socket."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from moorings._secret import Secret
from moorings.auth.callback import Listeners, Seat
from tests.ports import listens_here
from tests.secretgate import note

STATE = Secret("state-that-nobody-guesses-0123456789")
CODE = "code-that-nobody-sees-0123456789"
note(STATE.reveal(), CODE)
ANSWER = f"code={CODE}&state={STATE.reveal()}"

LONG = 20.0
"""Seconds until a test gives up."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    @property
    def place(self) -> str:
        """The target that it sends the browser to."""
        parts = urlsplit(self.headers["location"])
        return parts.path


def port_of(seat: Seat) -> int:
    port = urlsplit(seat.redirect_uri).port
    assert port
    return port


def request(seat: Seat, target: str, *more: str, method: str = "GET", host: str = "") -> bytes:
    host = host or urlsplit(seat.redirect_uri).netloc
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *more, "", ""]).encode()


def right(seat: Seat, query: str = ANSWER) -> bytes:
    """The request that a browser makes for what the authorization server told it."""
    return request(seat, f"{seat.path}?{query}", "User-Agent: Browser/1", "Accept: text/html")


def read(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(headers) == len(lines) and headers["connection"] == "close"
    # Where it does not say how long it is, it is a page that was begun before its end was known.
    assert int(headers.get("content-length", len(body))) in (
        len(body),
        *([len(body)] if body else range(99999)),
    )
    return Answer(int(status), headers, body.decode())


@asynccontextmanager
async def connected(seat: Seat, address: str = "127.0.0.1") -> AsyncIterator[Any]:
    """A plain connection, as (reader, writer)."""
    reader, writer = await asyncio.open_connection(address, port_of(seat))
    try:
        yield reader, writer
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


async def send(seat: Seat, raw: bytes, address: str = "127.0.0.1") -> bytes:
    """All that comes back for these bytes."""
    async with asyncio.timeout(LONG), connected(seat, address) as (reader, writer):
        writer.write(raw)
        return bytes(await reader.read())


async def ask(seat: Seat, raw: bytes, address: str = "127.0.0.1") -> Answer:
    return read(await send(seat, raw, address))


async def get(seat: Seat, target: str, *more: str, **wishes: str) -> Answer:
    return await ask(seat, request(seat, target, *more, **wishes))


async def answered(seat: Seat) -> str:
    """What the person sees who has come back, from the right request to the page."""
    sent_on = await ask(seat, right(seat))
    assert sent_on.status == 303
    page = await get(seat, sent_on.place)
    assert page.status == 200
    return page.body


def reset(writer: asyncio.StreamWriter) -> None:
    """Make the end of this connection an abrupt one."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def can_bind(port: int, address: str = "127.0.0.1") -> bool:
    """Whether a program that starts now could have the port; or has it, as another test may by now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
            sock.listen()
        except OSError as taken:
            return taken.errno == errno.EADDRINUSE and not listens_here(port)
    return True


def taken(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Another program's socket."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((address, port))
    sock.listen()
    return sock


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", port: int = 0, path: str = "", *, server: str = "demo", **limits: Any
) -> AsyncIterator[Seat]:
    """A seat that waits for ``STATE``; afterwards its port is free."""
    listeners = Listeners(**limits)
    seat = await listeners.seat(host, port, path)
    number = port_of(seat)
    try:
        seat.expect(STATE, server)
        yield seat
    finally:
        await seat.aclose(0.0)  # for the page, too, nobody waits any more
        await listeners.aclose()
        assert can_bind(number)
