"""For the tests of grants and registration: settings, our HTTP, and one that gives prepared answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from moorings._secret import Secret
from moorings.auth.http import AuthHttp, AuthNetError
from moorings.auth.model import AuthMethod, Registration, ServerMetadata, read_server_metadata
from moorings.net import Net
from tests.faults.auth_server import AuthFaults

REDIRECT = "http://127.0.0.1:7777/callback"


@dataclass
class Settings:
    """The part of ``AuthSettings`` that says who we are."""

    issuer: str | None = None
    accept_issuer: str | None = None
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
async def plain_http() -> AsyncIterator[AuthHttp]:
    """The real one; the tests' servers are on loopback."""
    net = Net(dict)
    try:
        yield AuthHttp(net, loopback=True)
    finally:
        await net.aclose()


def no_answer(reason: str, *, transient: bool = True, sent: bool = True) -> AuthNetError:
    return AuthNetError(reason, url="https://as.example/", transient=transient, sent=sent)


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
