"""The official SDK: one ``ClientSession`` over ``stdio_client`` or ``streamable_http_client`` a server, the shortest
way its documentation has.

``mcp.Client`` lies on top of that, and costs a little more. A session has to be left by the task that entered it, so
each lives in a task of its own, and they start side by side. What makes it faster is used: the handshake with no probe
before it, and the tools listed before they are called (else the first call lists them, to know its output schema).
Over stdio there is no cap on a message to raise, and the quadratic joining of a long line cannot be set otherwise; the
cap on an event is raised. Each connection over HTTP makes an ``httpx2.AsyncClient`` of its own, with its TLS context;
giving one to all of them is possible, and left to the user who knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import measure
from mcp import ClientSession, StdioServerParameters
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent, Tool


class Storage:
    """Tokens in memory."""

    def __init__(self) -> None:
        self.tokens: Any = None
        self.client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client: Any) -> None:
        self.client = client


def provider(url: str) -> Any:
    """The SDK's own OAuth."""
    name, secret = measure.MACHINE
    issuer = url.removesuffix("/mcp")
    return ClientCredentialsOAuthProvider(url, Storage(), client_id=name, client_secret=secret, issuer=issuer)


@asynccontextmanager
async def protected(url: str, auth: Any) -> AsyncIterator[Any]:
    """The streams of a server that wants tokens."""
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def streams_of(place: measure.Place) -> AbstractAsyncContextManager[Any]:
    """Its streams, in and out."""
    if isinstance(place, str) and measure.protected():
        return protected(place, provider(place))
    if isinstance(place, str):
        streams: AbstractAsyncContextManager[Any] = streamable_http_client(place, max_sse_event_size=None)
    else:
        command, *args = place
        streams = stdio_client(StdioServerParameters(command=command, args=args))
    return streams


class Client:
    streams: Callable[[measure.Place], AbstractAsyncContextManager[Any]] = staticmethod(streams_of)

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        self.servers = servers
        self.sessions: dict[int, ClientSession] = {}
        self.over = asyncio.Event()
        self.lives: list[asyncio.Task[None]] = []

    async def live(self, number: int, listed: asyncio.Future[list[Tool]]) -> None:
        """The whole life of one session."""
        try:
            async with self.streams(self.servers[number]) as streams, ClientSession(*streams) as session:
                await session.initialize()
                tools = (await session.list_tools()).tools
                self.sessions[number] = session
                listed.set_result(tools)
                await self.over.wait()
        except BaseException as error:
            if listed.done():
                raise
            listed.set_exception(error)

    async def open(self) -> list[list[Tool]]:
        loop = asyncio.get_running_loop()
        listed: list[asyncio.Future[list[Tool]]] = [loop.create_future() for _ in self.servers]
        self.lives = [asyncio.create_task(self.live(*one)) for one in enumerate(listed)]
        lists: list[list[Tool]] = await asyncio.gather(*listed)
        return lists

    async def close(self) -> None:
        self.over.set()
        await asyncio.gather(*self.lives)

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        result = await self.sessions[server].call_tool(tool, arguments)
        block = result.content[0]
        assert isinstance(block, TextContent)
        text: str = block.text
        return text

    async def tools(self, server: int) -> list[Tool]:
        listed: list[Tool] = (await self.sessions[server].list_tools()).tools
        return listed


if __name__ == "__main__":
    measure.main(Client)
