"""Moorings: one ``AsyncHost`` over all servers, with its default settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import measure

from moorings import AsyncHost, AuthSettings, HttpServer, Secret, StdioServer


def spec(place: measure.Place) -> StdioServer | HttpServer:
    """What a user would write for it."""
    if isinstance(place, str):
        if not measure.protected():
            return HttpServer(url=place)
        name, secret = measure.MACHINE
        return HttpServer(
            url=place,
            auth=AuthSettings(flow="client_credentials", client_id=name, client_secret=Secret(secret)),
        )
    command, *args = place
    return StdioServer(command=command, args=tuple(args))


class Client:
    """Tools are called by the name that the catalog gives them, as a model does."""

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        self._names = [f"s{number}" for number in range(len(servers))]
        self._host = AsyncHost(dict(zip(self._names, map(spec, servers), strict=True)), state_dir=state)

    async def open(self) -> Sequence[Sequence[measure.Listed]]:
        await self._host.start()
        readiness = await self._host.wait_ready()
        measure.check(len(readiness.ready) == len(self._names), f"not ready: {readiness}")
        return [await self.tools(server) for server in range(len(self._names))]

    async def close(self) -> None:
        await self._host.close()

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        return (await self._host.call(f"s{server}__{tool}", arguments)).text

    async def tools(self, server: int) -> Sequence[measure.Listed]:
        return await self._host.tools(servers=[self._names[server]])


if __name__ == "__main__":
    measure.main(Client)
