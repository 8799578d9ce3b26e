"""The official SDK: one ``mcp.Client`` over its streamable HTTP transport with its ``OAuthClientProvider``.

It brings no store that outlives the program, so the one here, two records in a file, is the program's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import login_scenarios
import mcp
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)


class Storage:
    """What the provider wants kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def write(self, name: str, value: Any) -> None:
        self.path.write_text(json.dumps({**self.read(), name: value.model_dump(mode="json")}))

    async def get_tokens(self) -> OAuthToken | None:
        found = self.read().get("tokens")
        return OAuthToken.model_validate(found) if found else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.write("tokens", tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        found = self.read().get("client")
        return OAuthClientInformationFull.model_validate(found) if found else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.write("client", client_info)


class Client:
    def __init__(self, url: str, state: str, browser: login_scenarios.Browser) -> None:
        self.url = url
        self.callback = ""

        async def redirect(url: str) -> None:
            self.callback = await browser(url)

        async def answer() -> AuthorizationCodeResult:
            said = parse_qs(urlsplit(self.callback).query)
            return AuthorizationCodeResult(code=said["code"][0], state=said["state"][0], iss=said["iss"][0])

        metadata = OAuthClientMetadata(
            redirect_uris=["http://localhost:3030/callback"], client_name="compare"
        )
        self.auth = OAuthClientProvider(url, metadata, Storage(Path(state)), redirect, answer)
        self.stack = contextlib.AsyncExitStack()

    async def open(self) -> None:
        http = await self.stack.enter_async_context(httpx2.AsyncClient(auth=self.auth, timeout=30))
        transport = streamable_http_client(self.url, http_client=http)
        self.client = await self.stack.enter_async_context(mcp.Client(transport))

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        result = await self.client.call_tool(tool, arguments, read_timeout_seconds=timeout)
        return result.content[0].text

    async def abandon(self) -> None:
        # What an HTTP client does on a timeout or at the end of its pool: the flow is closed where that happens.
        flow = self.auth.async_auth_flow(httpx2.Request("POST", self.url))

        async def begin() -> None:
            await anext(flow)

        async def close() -> None:
            await flow.aclose()

        await asyncio.create_task(begin())
        await asyncio.create_task(close())

    async def close(self) -> None:
        await self.stack.aclose()


if __name__ == "__main__":
    login_scenarios.main(Client)
