"""The floor: a client by hand, asyncio and msgspec over pipes, with nothing in it that could be left out.

No deadline, no cancellation, no cap on a message, no restart, no watch over the processes: what a call costs in
asyncio at least. A message is read on the loop, decoded once into an envelope, its waiter resolved from the reader;
the caller decodes the typed result.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections import deque
from collections.abc import Sequence
from typing import Any

import measure
import msgspec

READ_SIZE = 64 * 1024
REVISION = "2025-11-25"


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class Image(msgspec.Struct, tag_field="type", tag="image", rename="camel"):
    """A picture; here so that the kind of each block is really looked at."""

    data: str
    mime_type: str


class CallToolResult(msgspec.Struct, rename="camel"):
    """What ``tools/call`` answers."""

    content: list[Text | Image]
    structured_content: dict[str, Any] | None = None
    is_error: bool = False


class Tool(msgspec.Struct, rename="camel"):
    """A tool; its schema stays as it came."""

    name: str
    input_schema: msgspec.Raw
    title: str | None = None
    description: str | None = None
    output_schema: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()


class ListToolsResult(msgspec.Struct, rename="camel"):
    """What ``tools/list`` answers."""

    tools: list[Tool]
    next_cursor: str | None = None


class Request(msgspec.Struct):
    """What goes out; a notification has no id."""

    method: str
    params: dict[str, Any]
    id: int | msgspec.UnsetType = msgspec.UNSET
    jsonrpc: str = "2.0"


class Message(msgspec.Struct):
    """What comes in: an answer if it has an id and no method."""

    id: int | None = None
    method: str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


encode = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(Message).decode
decode_call = msgspec.json.Decoder(CallToolResult).decode
decode_tools = msgspec.json.Decoder(ListToolsResult).decode


class Server:
    """One process and its pipes."""

    def __init__(self, command: list[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._out, self._in = self._stdin.fileno(), self._stdout.fileno()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._ids = 0
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._queue: deque[bytes | memoryview] = deque()
        self._rest = bytearray()
        self._loop.add_reader(self._in, self._read)

    def request(self, method: str, params: dict[str, Any]) -> asyncio.Future[msgspec.Raw]:
        """Send a request; its result comes raw."""
        self._ids = number = self._ids + 1
        future: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        self._waiting[number] = future
        self._write(encode(Request(method, params, number)) + b"\n")
        return future

    def notify(self, method: str) -> None:
        """Send a notification."""
        self._write(encode(Request(method, {})) + b"\n")

    def _write(self, data: bytes) -> None:
        if self._queue:
            self._queue.append(data)
            return
        try:
            written = os.write(self._out, data)
        except BlockingIOError:
            written = 0
        if written < len(data):
            self._queue.append(memoryview(data)[written:])
            self._loop.add_writer(self._out, self._write_on)

    def _write_on(self) -> None:
        while self._queue:
            data = self._queue[0]
            try:
                written = os.write(self._out, data)
            except BlockingIOError:
                return
            if written < len(data):
                self._queue[0] = memoryview(data)[written:]
                return
            self._queue.popleft()
        self._loop.remove_writer(self._out)

    def _read(self) -> None:
        try:
            data = os.read(self._in, READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._in)
            for future in self._waiting.values():
                future.set_exception(ConnectionError("the server ended"))
            return
        if b"\n" not in data:
            self._rest += data
            return
        *complete, rest = data.split(b"\n")
        lines: list[bytes | bytearray] = [*complete]
        if self._rest:
            # Grown in place and decoded as it is: joining parts would be one more copy of a large message.
            self._rest += lines[0]
            lines[0], self._rest = self._rest, bytearray()
        self._rest += rest
        for line in lines:
            message = decode_message(line)
            if message.id is None or message.method is not None:
                continue
            future = self._waiting.pop(message.id)
            if message.error:
                future.set_exception(RuntimeError(bytes(message.error).decode()))
            else:
                future.set_result(message.result)

    async def open(self) -> list[Tool]:
        """Negotiate and list."""
        params = {
            "protocolVersion": REVISION,
            "capabilities": {},
            "clientInfo": {"name": "floor", "version": "1"},
        }
        await self.request("initialize", params)
        self.notify("notifications/initialized")
        return await self.tools()

    async def tools(self) -> list[Tool]:
        """All tools; the server has them on one page."""
        return decode_tools(await self.request("tools/list", {})).tools

    async def close(self) -> None:
        """Close its stdin and see it go."""
        self._loop.remove_reader(self._in)
        ended: asyncio.Future[None] = self._loop.create_future()
        pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(pidfd, self._ended, pidfd, ended)
        self._stdin.close()
        await ended
        self._process.wait()
        self._stdout.close()

    def _ended(self, pidfd: int, ended: asyncio.Future[None]) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        ended.set_result(None)


class Client:
    """Any number of servers, started at once."""

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        self._commands = [command for command in servers if not isinstance(command, str)]
        self._servers: list[Server] = []

    async def open(self) -> Sequence[Sequence[Tool]]:
        self._servers = [Server(command) for command in self._commands]
        return await asyncio.gather(*(server.open() for server in self._servers))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        raw = await self._servers[server].request("tools/call", {"name": tool, "arguments": arguments})
        block = decode_call(raw).content[0]
        assert isinstance(block, Text)
        return block.text

    async def tools(self, server: int) -> Sequence[Tool]:
        return await self._servers[server].tools()


if __name__ == "__main__":
    measure.main(Client)
