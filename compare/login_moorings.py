"""Moorings: one ``AsyncHost`` with one server, credentials in its usual store."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import login_scenarios

from moorings import AsyncHost, HttpServer
from moorings.adapters.httpx_auth import MooringsAuth


class Client:
    def __init__(self, url: str, state: str, browser: login_scenarios.Browser) -> None:
        async def show(name: str, url: str) -> str:
            return await browser(url)

        self.url, self.state = url, state
        self.host = AsyncHost({"s": HttpServer(url=url)}, state_dir=state, browser=show)

    async def open(self) -> None:
        await self.host.start()
        await self.host.wait_ready()

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        return (await self.host.server("s").call(tool, arguments, timeout=timeout)).text

    async def abandon(self) -> None:
        # A flow as HTTP clients drive it, on the store of the host, is closed by another task …
        async with MooringsAuth(self.url, state_dir=self.state) as auth:
            flow = auth.async_auth_flow(httpx.Request("POST", self.url))

            async def begin() -> None:
                await anext(flow)

            await asyncio.create_task(begin())
            await asyncio.create_task(flow.aclose())
        # … and a call of the host is cancelled while its refresh is under way.
        task = asyncio.create_task(self.call("echo", {"text": "given up"}, 10))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait({task})

    async def close(self) -> None:
        await self.host.close()


if __name__ == "__main__":
    login_scenarios.main(Client)
