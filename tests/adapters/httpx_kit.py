"""``MooringsAuth`` against ``AuthFaults``: messages, clients, and flows that are advanced by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import httpx2

from moorings import AuthSettings, CredentialSettings
from moorings.adapters.httpx_auth import MooringsAuth
from tests.faults.auth_server import AuthFaults, consent

LIBRARIES = [httpx, httpx2]
TOLD = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


def made(server: AuthFaults, folder: Path, settings: AuthSettings | None = None, **more: Any) -> MooringsAuth:
    """An auth whose logins lie in this folder, and whose person says yes."""
    more.setdefault("browser", consent)
    return MooringsAuth(
        server.url, auth=settings, credentials=CredentialSettings(store=f"file:{folder}/logins"), **more
    )


def message(text: str = "x", tool: str = "echo") -> dict[str, Any]:
    """A call."""
    params = {"name": tool, "arguments": {"text": text}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def request(server: AuthFaults, text: str = "x", library: Any = httpx, **headers: str) -> Any:
    return library.Request("POST", server.url, json=message(text), headers={**TOLD, **headers})


async def call(client: Any, server: AuthFaults, text: str = "x", **more: Any) -> str:
    """A call by a client; its result."""
    return text_of(await client.post(server.url, json=message(text, **more), headers=TOLD))


def text_of(response: Any) -> str:
    assert response.status_code == 200, response
    text: str = response.json()["result"]["content"][0]["text"]
    return text


async def logged_in(server: AuthFaults, folder: Path) -> None:
    """Leave a login in the folder, whose access token has ended as far as the server is concerned."""
    async with made(server, folder) as auth, httpx.AsyncClient(auth=auth) as client:
        assert await call(client, server) == "x"
    server.expire()


class ByHand:
    """A flow, advanced a step at a time as a client does it. The answers are those of the server's own rules."""

    def __init__(self, auth: MooringsAuth, server: AuthFaults, text: str = "x", library: Any = httpx) -> None:
        self.server, self.library = server, library
        self.request = request(server, text, library)
        self.sent: list[dict[str, str]] = []
        """The headers of each request that it wanted sent."""
        self.answers: list[Any] = []
        """What it was given for them."""
        self.status: int | None = None
        """Of the last answer, once it is done."""
        self.flow: AsyncGenerator[Any, Any] = auth.async_auth_flow(self.request)

    @property
    def done(self) -> bool:
        return self.status is not None

    async def advance(self) -> None:
        """The next step: the first request out of it, or an answer in and the next request out."""
        try:
            wanted = await self.flow.asend(self._answer() if self.sent else None)
        except StopAsyncIteration:
            self.status = self.answers[-1].status_code
        else:
            self._note(wanted)

    def _note(self, wanted: Any) -> None:
        assert wanted is self.request
        self.sent.append(dict(wanted.headers))

    def _answer(self) -> Any:
        token = self.sent[-1].get("authorization", "").partition(" ")[2]
        if token in self.server.access:
            answer = self.library.Response(200, request=self.request, content=b"fine")
        else:
            challenge = self.server.filled(self.server.script["challenges"][0])
            headers = {"WWW-Authenticate": challenge}
            answer = self.library.Response(401, request=self.request, content=b"no", headers=headers)
        self.answers.append(answer)
        return answer

    async def finish(self) -> int:
        """To its end."""
        while not self.done:
            await self.advance()
        assert self.status is not None
        return self.status


class BlockingByHand(ByHand):
    """The same of the blocking flow."""

    def __init__(self, auth: MooringsAuth, server: AuthFaults, text: str = "x", library: Any = httpx) -> None:
        super().__init__(auth, server, text, library)
        self.steps: Generator[Any, Any, None] = auth.sync_auth_flow(self.request)

    def step(self) -> None:
        try:
            wanted = self.steps.send(self._answer() if self.sent else None)
        except StopIteration:
            self.status = self.answers[-1].status_code
        else:
            self._note(wanted)

    def run(self) -> int:
        while not self.done:
            self.step()
        assert self.status is not None
        return self.status


async def in_task(work: Callable[[], Any]) -> Any:
    """Await something in a task of its own."""
    return await asyncio.create_task(work())
