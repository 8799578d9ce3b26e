"""What both floors over HTTP share: MCP in the handshake era, with nothing in it that could be left out.

No deadline, no cancellation, no cap, no second try, no redirect, no era: each message is one POST, and its answer is
read to the end, decoded once into an envelope, and by the caller into the typed result. How a POST goes out is the
matter of ``floor_aiohttp.py`` and ``floor_sockets.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import measure
import msgspec
from floor import REVISION, Request, Text, Tool, decode_call, decode_message, decode_tools, encode

__all__ = ["BASE", "HttpFloor"]

BASE = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def event_data(stream: bytes | bytearray) -> bytes | memoryview:
    """The data of the one event that the stream holds; where it is one line, it is not copied."""
    if stream.count(b"\ndata:") == 1:
        return memoryview(stream)[stream.index(b"\ndata:") + 6 :]
    return b"\n".join(line[5:] for line in stream.split(b"\n") if line.startswith(b"data:"))


class HttpFloor:
    """Any number of servers."""

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        self._urls = [url for url in servers if isinstance(url, str)]
        self._headers = [dict(BASE) for _ in self._urls]
        self._ids = 0

    async def post(
        self, url: str, headers: dict[str, str], body: bytes
    ) -> tuple[bytes | bytearray, Mapping[str, str]]:
        """Body and headers of the answer; the session id is looked for under ``Mcp-Session-Id``."""
        raise NotImplementedError

    async def delete(self, url: str, headers: dict[str, str]) -> None:
        """End a session."""
        raise NotImplementedError

    async def _request(self, server: int, method: str, params: dict[str, Any]) -> msgspec.Raw:
        self._ids = number = self._ids + 1
        data = encode(Request(method, params, number))
        body, headers = await self.post(self._urls[server], self._headers[server], data)
        message = decode_message(body if body.startswith(b"{") else event_data(body))
        if message.error:
            raise RuntimeError(bytes(message.error).decode())
        if method == "initialize":
            own = self._headers[server]
            own["MCP-Protocol-Version"] = REVISION
            if "Mcp-Session-Id" in headers:
                own["Mcp-Session-Id"] = headers["Mcp-Session-Id"]
        return message.result

    async def _open(self, server: int) -> Sequence[Tool]:
        params = {
            "protocolVersion": REVISION,
            "capabilities": {},
            "clientInfo": {"name": "floor", "version": "1"},
        }
        await self._request(server, "initialize", params)
        initialized = encode(Request("notifications/initialized", {}))
        await self.post(self._urls[server], self._headers[server], initialized)
        return await self.tools(server)

    async def open(self) -> Sequence[Sequence[Tool]]:
        return await asyncio.gather(*map(self._open, range(len(self._urls))))

    async def close(self) -> None:
        await asyncio.gather(
            *(
                self.delete(url, headers)
                for url, headers in zip(self._urls, self._headers, strict=True)
                if "Mcp-Session-Id" in headers
            )
        )

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        raw = await self._request(server, "tools/call", {"name": tool, "arguments": arguments})
        block = decode_call(raw).content[0]
        assert isinstance(block, Text)
        return block.text

    async def tools(self, server: int) -> Sequence[Tool]:
        return decode_tools(await self._request(server, "tools/list", {})).tools
