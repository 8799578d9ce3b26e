"""FastMCP: one ``fastmcp.Client`` for each server, over a ``StdioTransport`` or a ``StreamableHttpTransport``.

One client over an ``mcpServers`` configuration would be shorter to write and is slower by several times to start and
to close. What makes it faster is used: the handshake with no probe before it, telemetry off, ``call_tool_mcp``, which
gives the typed result without looking for an output schema to read it by, and processes that end with their client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import fastmcp
import measure
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from mcp.types import TextContent, Tool


def transport(place: measure.Place) -> StdioTransport | StreamableHttpTransport:
    """The way to it."""
    if isinstance(place, str):
        return StreamableHttpTransport(place, max_sse_event_size=None)
    command, *args = place
    return StdioTransport(command, args, keep_alive=False)


class Client:
    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        fastmcp.settings.telemetry_mode = "off"
        self.clients = [fastmcp.Client(transport(place), mode="legacy") for place in servers]

    async def start(self, number: int) -> list[Tool]:
        await self.clients[number].__aenter__()  # FastMCP holds the session in a task of its own
        return await self.tools(number)

    async def open(self) -> list[list[Tool]]:
        return await asyncio.gather(*map(self.start, range(len(self.clients))))

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        result = await self.clients[server].call_tool_mcp(tool, arguments)
        block = result.content[0]
        assert isinstance(block, TextContent)
        text: str = block.text
        return text

    async def tools(self, server: int) -> list[Tool]:
        listed: list[Tool] = await self.clients[server].list_tools()
        return listed


if __name__ == "__main__":
    measure.main(Client)
