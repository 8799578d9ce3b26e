"""Moorings: one ``AsyncHost`` over all servers."""

from __future__ import annotations

from typing import Any

import scenarios

from moorings import AsyncHost, StdioServer


class Client:
    def __init__(self, servers: dict[str, list[str]], env: dict[str, str], state: str) -> None:
        specs = {
            name: StdioServer(command=command, args=tuple(args), env=env)
            for name, (command, *args) in servers.items()
        }
        self.host = AsyncHost(specs, state_dir=state)

    async def open(self) -> dict[str, str]:
        await self.host.start()
        return (await self.host.wait_ready()).failed

    async def leave(self) -> None:
        await self.host.close()

    async def close(self) -> None:
        await self.host.close()

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.host.tools()]

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        return (await self.host.server(server).call(tool, arguments, timeout=timeout)).text


if __name__ == "__main__":
    scenarios.main(Client)
