"""What HTTP costs in asyncio at least: requests written and answers cut apart by hand, on a protocol of our own.

It knows no more of HTTP than the scripted server says: a body has a ``Content-Length``, a connection is kept. For
information: no mark hangs on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import urlsplit

import measure
from floor_http import HttpFloor

LENGTH = b"\r\nContent-Length: "
SESSION = b"\r\nMcp-Session-Id: "
Answer = tuple[bytes | bytearray, Mapping[str, str]]


def value(head: bytes | bytearray, name: bytes) -> bytes | None:
    """The value of a header, by its line's beginning."""
    at = head.find(name)
    if at < 0:
        return None
    at += len(name)
    return bytes(head[at : head.index(b"\r", at)])


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._whole = 0
        """Bytes of the answer with its head; 0 before its head is there."""
        self._head = 0
        self._waiting: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.set_exception(error or ConnectionError("the server ended the connection"))

    def request(self, data: bytes) -> asyncio.Future[Answer]:
        """Send one; its answer is awaited."""
        self._transport.write(data)
        self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def data_received(self, data: bytes) -> None:
        have: bytes | bytearray = data
        if self._rest:
            self._rest += data
            have = self._rest
        if not self._whole:
            blank = have.find(b"\r\n\r\n")
            if blank >= 0:
                self._head = blank + 4
                self._whole = self._head + int(value(have[: blank + 2], LENGTH) or 0)
        if not self._whole or len(have) < self._whole:
            if have is data:
                self._rest += data
            return
        head, body = have[: self._head - 2], have[self._head :]
        waiting, self._waiting = self._waiting, None
        self._whole, self._rest = 0, bytearray()
        session = value(head, SESSION)
        assert waiting is not None
        waiting.set_result((body, {} if session is None else {"Mcp-Session-Id": session.decode()}))

    def close(self) -> None:
        """Its end."""
        self._transport.close()


class Client(HttpFloor):
    """Over sockets."""

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        super().__init__(servers, state)
        self._idle: dict[str, list[Connection]] = {url: [] for url in self._urls}

    async def _send(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Answer:
        parts = urlsplit(url)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{lines}"
        idle = self._idle[url]
        if idle:
            connection = idle.pop()
        else:
            loop = asyncio.get_running_loop()
            assert parts.hostname is not None and parts.port is not None
            _, connection = await loop.create_connection(Connection, parts.hostname, parts.port)
        answer = await connection.request(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        idle.append(connection)
        return answer

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        return await self._send("POST", url, headers, body)

    async def delete(self, url: str, headers: dict[str, str]) -> None:
        await self._send("DELETE", url, headers, b"")

    async def close(self) -> None:
        await super().close()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()


if __name__ == "__main__":
    measure.main(Client)
