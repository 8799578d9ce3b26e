"""FastMCP: one ``fastmcp.Client`` over an ``mcpServers`` configuration."""

from __future__ import annotations

from typing import Any

import fastmcp
import scenarios


class Client:
    def __init__(self, servers: dict[str, list[str]], env: dict[str, str], state: str) -> None:
        entries = {
            name: {"command": command, "args": args, "env": env} for name, (command, *args) in servers.items()
        }
        self.alone = len(entries) == 1
        self.client = fastmcp.Client({"mcpServers": entries})

    async def open(self) -> dict[str, str]:
        await self.client.__aenter__()
        return {}

    async def leave(self) -> None:
        await self.client.__aexit__(None, None, None)

    async def close(self) -> None:
        await self.client.close()

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        name = tool if self.alone else f"{server}_{tool}"
        result = await self.client.call_tool(name, arguments, timeout=timeout)
        return result.content[0].text


if __name__ == "__main__":
    scenarios.main(Client)
