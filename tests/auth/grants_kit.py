"""For the tests of grants and registration: settings, and HTTP with nothing between us and the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from moorings._secret import Secret
from moorings.auth.faults import AuthNetError
from moorings.auth.model import AuthMethod, Registration, ServerMetadata, read_server_metadata
from tests.faults.auth_server import AuthFaults

REDIRECT = "http://127.0.0.1:7777/callback"


@dataclass
class Settings:
    """The part of ``AuthSettings`` that says who we are."""

    issuer: str | None = None
    client_id: str | None = None
    client_secret: Secret | None = None
    auth_method: AuthMethod | None = None
    client_name: str = "Moorings"
    client_metadata_url: str | None = None
    cimd: bool = True
    scopes: tuple[str, ...] = ()


@dataclass
class Reply:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    text: str = ""


class PlainHttp:
    """HTTP without vetting, as the tests are on loopback."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post_form(
        self,
        url: str,
        form: list[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
        *,
        within: float,
    ) -> Reply:
        return await self._send("POST", url, within, headers, data=form)

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None, *, within: float
    ) -> Reply:
        return await self._send("POST", url, within, headers, json=value)

    async def delete(self, url: str, headers: Mapping[str, str] | None = None, *, within: float) -> Reply:
        return await self._send("DELETE", url, within, headers)

    async def get_json(self, url: str, *, within: float) -> tuple[int, Mapping[str, str], Any]:
        got = await self._send("GET", url, within, {"Accept": "application/json"})
        return got.status, got.headers, got.json

    async def _send(
        self, method: str, url: str, within: float, headers: Mapping[str, str] | None, **body: Any
    ) -> Reply:
        try:
            async with asyncio.timeout(within):
                async with self._session.request(
                    method, url, headers=dict(headers or {}), allow_redirects=False, **body
                ) as answer:
                    text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as fault:
            sent = not isinstance(fault, aiohttp.ClientConnectorError)
            raise AuthNetError(f"no answer: {type(fault).__name__}", transient=True, sent=sent) from None
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        return Reply(answer.status, answer.headers, value, text)


class Canned:
    """Gives prepared answers, for answers no server of ours gives; keeps what it was asked."""

    def __init__(self, *replies: Reply | AuthNetError) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[str, Any, dict[str, str]]] = []

    async def post_form(
        self,
        url: str,
        form: list[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
        *,
        within: float,
    ) -> Reply:
        return self._give(url, list(form), headers)

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None, *, within: float
    ) -> Reply:
        return self._give(url, dict(value), headers)

    async def delete(self, url: str, headers: Mapping[str, str] | None = None, *, within: float) -> Reply:
        return self._give(url, None, headers)

    def _give(self, url: str, body: Any, headers: Mapping[str, str] | None) -> Reply:
        self.asked.append((url, body, dict(headers or {})))
        reply = self._replies.pop(0)
        if isinstance(reply, AuthNetError):
            raise reply
        return reply


def in_json(value: Any, status: int = 200, **headers: str) -> Reply:
    headers.setdefault("Content-Type", "application/json")
    return Reply(status, headers, value, json.dumps(value))


@asynccontextmanager
async def plain_http() -> AsyncIterator[PlainHttp]:
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield PlainHttp(session)


def soon(seconds: float = 10.0) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


def metadata_of(server: AuthFaults) -> ServerMetadata:
    metadata = read_server_metadata(server.metadata())
    assert metadata is not None
    return metadata


def a_server(**fields: Any) -> ServerMetadata:
    """Metadata of a server that is not there."""
    values = {
        "issuer": "https://as.example",
        "authorization_endpoint": "https://as.example/authorize",
        "token_endpoint": "https://as.example/token",
        "code_challenge_methods_supported": ("S256",),
        **fields,
    }
    return ServerMetadata(**values)


def a_client(**fields: Any) -> Registration:
    return Registration(
        **{"issuer": "https://as.example", "client_id": "me", "auth_method": "none", **fields}
    )
