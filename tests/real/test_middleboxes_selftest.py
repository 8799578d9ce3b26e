"""The middle boxes do what they are for, seen by a bare client in front of the scripted HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.faults.http_server import HttpFaults
from tests.ports import free_port
from tests.real.middleboxes import Box, mitmproxy, nginx

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
BOTH = {"Accept": "application/json, text/event-stream"}


def post(http: aiohttp.ClientSession, box: Box, method: str, **params: Any) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http.post(box.origin + "/mcp", json=message, headers=BOTH)


@pytest.mark.parametrize("buffering", [True, False])
async def test_nginx_holds_a_stream_back_if_it_buffers(buffering: bool, tmp_path: Path) -> None:
    async with HttpFaults(session=False, priming=True, answers="sse") as server:
        with nginx(server.port, tmp_path, buffering=buffering) as box:
            async with asyncio.timeout(20), aiohttp.ClientSession() as http:
                heard = asyncio.Event()

                async def call() -> bytes:
                    async with post(http, box, "tools/call", name="hold") as response:
                        body = await response.content.readuntil(b"\n\n")
                        heard.set()
                        return body + await response.read()

                calling = asyncio.ensure_future(call())
                await server.seen("tools/call")
                if buffering:
                    # How long it is held back has no end that could be waited for.
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(heard.wait(), 0.3)
                else:
                    await heard.wait()
                server.release("hold")
                assert b"released" in await calling


async def test_nginx_answers_502_for_a_server_that_is_down_and_504_for_a_silent_one(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(20):
        with nginx(free_port(), tmp_path) as box:
            async with post(http, box, "tools/list") as response:
                assert response.status == 502
                assert response.content_type == "text/html"
        async with HttpFaults(session=False, on={"tools/list": "silent"}) as server:
            with nginx(server.port, tmp_path, read_timeout=1) as box:
                async with post(http, box, "tools/list") as response:
                    assert response.status == 504


async def test_mitmproxy_answers_503_and_kills_requests_and_answers(
    real_server: RealServer, tmp_path: Path
) -> None:
    script = {"tools/call": ["503", "kill", "kill_answer", "ok"]}
    async with HttpFaults(session=False, answers={"tools/call": "sse"}) as server:
        with mitmproxy(server.port, real_server, tmp_path, script) as box:
            async with aiohttp.ClientSession() as http, asyncio.timeout(20):
                async with post(http, box, "tools/call", name="effect") as response:
                    assert response.status == 503
                for effects in (0, 1):
                    with pytest.raises(aiohttp.ClientError):
                        async with post(http, box, "tools/call", name="effect") as response:
                            await response.read()
                    assert server.effects["effect"] == effects
                async with post(http, box, "tools/call", name="effect") as response:
                    assert b'"2"' in await response.read()
