"""The official SDK: one ``mcp.Client`` for each server, entered one after another into one ``AsyncExitStack``.

It has no host for many servers that settles the era by itself, so the stack, and the ``try`` around each of several
servers, are the program's.
"""

from __future__ import annotations

import contextlib
from typing import Any

import mcp
import scenarios


class Client:
    def __init__(self, servers: dict[str, list[str]], env: dict[str, str], state: str) -> None:
        self.clients = {
            name: mcp.Client(mcp.StdioServerParameters(command=command, args=args, env=env))
            for name, (command, *args) in servers.items()
        }
        self.stack = contextlib.AsyncExitStack()

    async def open(self) -> dict[str, str]:
        if len(self.clients) == 1:
            await self.stack.enter_async_context(*self.clients.values())
            return {}
        failed = {}
        for name, client in list(self.clients.items()):
            try:
                await self.stack.enter_async_context(client)
            except Exception as error:
                failed[name] = repr(error)
                del self.clients[name]
        return failed

    async def leave(self) -> None:
        await self.stack.aclose()

    async def close(self) -> None:
        await self.stack.aclose()

    async def tools(self) -> list[str]:
        return [tool.name for client in self.clients.values() for tool in (await client.list_tools()).tools]

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        client = self.clients[server]
        result = await client.call_tool(tool, arguments, read_timeout_seconds=timeout)
        return result.content[0].text


if __name__ == "__main__":
    scenarios.main(Client)
