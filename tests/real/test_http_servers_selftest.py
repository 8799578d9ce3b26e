"""The real servers over HTTP start, answer a bare client, and are gone; without Moorings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.faults import procs
from tests.real.http_servers import STARTS, http_server

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
META = "io.modelcontextprotocol/"
BOTH = {"Accept": "application/json, text/event-stream"}


def message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


INITIALIZE = message(
    "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "t", "version": "1"}
)
DISCOVER = message(
    "server/discover",
    _meta={
        META + "protocolVersion": "2026-07-28",
        META + "clientCapabilities": {},
        META + "clientInfo": {"name": "t", "version": "1"},
    },
)


async def first_data(response: aiohttp.ClientResponse, event: bytes = b"message") -> str:
    """The data of the first event of this kind that has some."""
    kind = b"message"
    async for line in response.content:
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name == b"event":
            kind = value
        elif name == b"data" and value and kind == event:
            return value.decode()
    raise AssertionError("the stream ended")


async def ask(http: aiohttp.ClientSession, url: str, what: dict[str, Any], **headers: str) -> Any:
    async with http.post(url, json=what, headers={**BOTH, **headers}) as response:
        if response.content_type == "text/event-stream":
            return json.loads(await first_data(response))
        return json.loads(await response.text())


@pytest.mark.parametrize("name", STARTS)
async def test_it_answers_and_is_gone(name: str, real_server: RealServer, tmp_path: Path) -> None:
    start = STARTS[name]
    with http_server(name, real_server, tmp_path) as server:
        async with asyncio.timeout(20), aiohttp.ClientSession() as http:
            if start.transport == "sse":
                async with http.get(server.url, headers={"Accept": "text/event-stream"}) as listening:
                    target = server.origin + await first_data(listening, b"endpoint")
                    async with http.post(target, json=INITIALIZE) as response:
                        assert response.status in (200, 202)
                    answer = json.loads(await first_data(listening))
                    assert answer["result"]["serverInfo"]["name"]
            else:
                modern = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}
                found = await ask(http, server.url, DISCOVER, **modern)
                assert ("supportedVersions" in found.get("result", {})) == (start.era == "modern"), found
                answer = await ask(http, server.url, INITIALIZE)
                assert answer["result"]["protocolVersion"] == "2025-11-25"
        group = procs.group_members(server.process.pid)
        assert server.process.pid in group
    assert not [pid for pid in group if procs.alive(pid)]


def test_what_does_not_come_up_says_why(tmp_path: Path) -> None:
    def missing(name: str, *more: object) -> list[str]:
        return ["python3", "-c", "print('no database here'); raise SystemExit(3)"]

    with pytest.raises(AssertionError, match=r"ended with 3[^$]*no database here"):
        with http_server("dbhub", missing, tmp_path):
            pass
