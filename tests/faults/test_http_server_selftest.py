"""The scripted HTTP server is trusted only as far as this goes: a bare aiohttp client drives it, without Moorings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.faults.http_server import HttpFaults

META = "io.modelcontextprotocol/"
BOTH = "application/json, text/event-stream"


class Peer:
    """A client that knows only what a test tells it."""

    def __init__(self, server: HttpFaults, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http
        self.headers: dict[str, str] = {"Accept": BOTH}
        self.modern = False
        self.serial = 0

    def post(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> Any:
        """The POST of a request, to be entered with ``async with``."""
        self.serial += 1
        params = dict(params or {})
        named = {**self.headers, **headers}
        if self.modern:
            params["_meta"] = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}
            named |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
            if "name" in params:
                named["Mcp-Name"] = params["name"]
        message = {"jsonrpc": "2.0", "id": self.serial, "method": method, "params": params}
        return self.http.post(self.server.url, json=message, headers=named)

    async def ask(self, method: str, **params: Any) -> Any:
        """The answer to a request, by JSON or by SSE."""
        async with self.post(method, params) as response:
            if response.content_type == "text/event-stream":
                return [event async for event in events(response)][-1]["data"]
            return await response.json()

    async def unanswered(self, method: str) -> None:
        """Ask, see that the server has the request, and that no answer comes for a while."""
        before = self.server.count(method)
        asked = asyncio.ensure_future(self.ask(method))
        await self.server.seen(method, before + 1)
        done, _ = await asyncio.wait({asked}, timeout=0.05)
        assert not done
        asked.cancel()
        await asyncio.wait({asked})

    async def call(self, name: str, **arguments: Any) -> str:
        answer = await self.ask("tools/call", name=name, arguments=arguments)
        text: str = answer["result"]["content"][0]["text"]
        return text

    async def say(self, message: dict[str, Any]) -> int:
        body = {"jsonrpc": "2.0", **message}
        async with self.http.post(self.server.url, json=body, headers=self.headers) as response:
            return response.status

    async def handshake(self) -> Any:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        async with self.post("initialize", params) as response:
            assert response.status == 200
            if "Mcp-Session-Id" in response.headers:
                self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            answer = await response.json()
        self.headers["MCP-Protocol-Version"] = answer["result"]["protocolVersion"]
        assert await self.say({"method": "notifications/initialized"}) == 202
        return answer["result"]


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream; ``data`` decoded where it is JSON."""
    event: dict[str, Any] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if not line:
            if event:
                try:
                    event["data"] = json.loads(event["data"])
                except (KeyError, ValueError):
                    pass
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = event[name] + "\n" + value if name in event else value


@asynccontextmanager
async def peer(**script: Any) -> AsyncIterator[Peer]:
    async with HttpFaults(**script) as server, aiohttp.ClientSession() as http:
        async with asyncio.timeout(30):
            yield Peer(server, http)


@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_a_handshake_a_list_and_calls(answers: str) -> None:
    async with peer(answers={"tools/list": answers, "tools/call": answers}, pages=5) as p:
        refused = await p.ask("server/discover")
        assert refused["error"]["code"] == -32000
        assert (await p.handshake())["protocolVersion"] == "2025-11-25"
        page = (await p.ask("tools/list"))["result"]
        assert len(page["tools"]) == 5
        assert page["nextCursor"] == "5"
        assert await p.call("add", a=2, b=3) == "5"
        assert await p.call("effect") == "1"
        assert p.server.effects["effect"] == p.server.effects["tool:effect"] == 1
        assert (await p.ask("no/such"))["error"]["code"] == -32601
        assert (await p.ask("tools/call", name="add"))["error"]["code"] == -32603
        assert p.server.count("initialize") == 1
        assert (await p.server.seen("tools/call", tool="add")).params["arguments"] == {"a": 2, "b": 3}
        assert not p.server.violations
        assert p.server.connections == 1


async def test_a_session_that_is_forgotten_or_wrong() -> None:
    async with peer() as p:
        await p.handshake()
        p.server.forget()
        async with p.post("tools/list") as response:
            assert response.status == 404
        p.server.set(lost="400")
        async with p.post("tools/list") as response:
            assert response.status == 400
            assert (await response.json())["id"] is None
        del p.headers["Mcp-Session-Id"]
        await p.handshake()
        p.headers["MCP-Protocol-Version"] = "2025-06-18"
        async with p.post("tools/list") as response:
            assert response.status == 400
        assert p.server.violations == ["the version header is not the negotiated one (tools/list)"]


async def test_the_listening_stream_and_questions_on_it() -> None:
    async with peer(retry=400, resumable=True) as p:
        await p.handshake()
        async with p.http.get(p.server.url, headers=p.headers) as listening:
            told = events(listening)
            primed = await anext(told)
            assert primed["retry"] == "400"
            assert "id" in primed
            p.server.list_changed()
            assert (await anext(told))["data"]["method"] == "notifications/tools/list_changed"
            calling = asyncio.ensure_future(p.call("ask", via="get"))
            asked = (await anext(told))["data"]
            assert asked["method"] == "roots/list"
            assert await p.say({"id": asked["id"], "result": {"roots": []}}) == 202
            assert json.loads(await calling) == {"roots": []}
            p.server.end_listens()
            with pytest.raises(StopAsyncIteration):
                await anext(told)
        p.server.set(get=["status:405", "html"])
        for status in (405, 200):
            async with p.http.get(p.server.url, headers=p.headers) as response:
                assert response.status == status


async def test_an_ended_stream_is_resumed_and_the_effect_happens_once() -> None:
    async with peer(priming=True, resumable=True, retry=10, on={"tools/call": "end_stream"}) as p:
        await p.handshake()
        async with p.post("tools/call", {"name": "effect"}) as response:
            (primed,) = [event async for event in events(response)]
        headers = {**p.headers, "Last-Event-ID": primed["id"]}
        async with p.http.get(p.server.url, headers=headers) as response:
            (answer,) = [event async for event in events(response)]
        assert answer["data"]["result"]["content"][0]["text"] == "1"
        assert p.server.effects["effect"] == 1


async def test_a_cancel_by_notice_and_a_disconnect_that_is_none() -> None:
    async with peer(answers="sse") as p:
        p.server.set(answers={"tools/call": "sse"})
        await p.handshake()
        async with p.post("tools/call", {"name": "hold"}) as _:
            await p.server.seen("tools/call")
        async with p.post("tools/call", {"name": "hold", "arguments": {"key": "other"}}) as response:
            assert (
                await p.say({"method": "notifications/cancelled", "params": {"requestId": p.serial}}) == 202
            )
            (answer,) = [event async for event in events(response)]
            assert answer["data"]["error"]["message"] == "Request cancelled"
        assert p.server.cancelled == [p.serial]


async def test_deletes() -> None:
    async with peer(delete=["ok", "status:405", "silent"]) as p:
        for status in (200, 405):
            await p.handshake()
            async with p.http.delete(p.server.url, headers=p.headers) as response:
                assert response.status == status
            p.headers = {"Accept": BOTH}
        with pytest.raises(TimeoutError):
            async with p.http.delete(p.server.url, timeout=aiohttp.ClientTimeout(0.05)):
                pass
        await p.server.until(lambda s: s.requests[-1].gone)


async def test_the_modern_era() -> None:
    async with peer(era="modern") as p:
        async with p.post("initialize", {"protocolVersion": "2025-11-25"}) as response:
            assert response.status == 400
        p.modern = True
        found = (await p.ask("server/discover"))["result"]
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["resultType"] == "complete"
        assert await p.call("echo", text="ahoy") == "ahoy"
        async with p.post("tools/call", {"name": "mirror", "arguments": {"level": 7}}) as response:
            assert (await response.json())["error"]["code"] == -32020
        mirrored = {"Mcp-Param-Level": "7", "Mcp-Param-Region": "=?base64?w6l0w6k=?="}
        arguments = {"level": 7, "region": "été"}
        async with p.post("tools/call", {"name": "mirror", "arguments": arguments}, **mirrored) as response:
            assert "result" in await response.json()
        first = (await p.ask("tools/call", name="question", arguments={"rounds": 1}))["result"]
        assert first["resultType"] == "input_required"
        again = {
            "name": "question",
            "requestState": first["requestState"],
            "inputResponses": {"q": {"action": "accept"}},
        }
        assert "accept" in (await p.ask("tools/call", **again))["result"]["content"][0]["text"]
        async with p.post("tools/list", **{"MCP-Protocol-Version": "2025-11-25"}) as response:
            assert response.status == 200  # the peer overrides it
        async with p.http.get(p.server.url) as response:
            assert response.status == 405


async def test_subscriptions_and_the_closed_stream_that_cancels() -> None:
    async with peer(era="dual") as p:
        p.modern = True
        async with p.post("subscriptions/listen", {"notifications": {"toolsListChanged": True}}) as response:
            told = events(response)
            acknowledged = (await anext(told))["data"]
            assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
            p.server.list_changed()
            assert (await anext(told))["data"]["params"]["_meta"][META + "subscriptionId"] == p.serial
            p.server.end_listens()
            assert (await anext(told))["data"]["id"] == p.serial
            with pytest.raises(StopAsyncIteration):
                await anext(told)
        p.server.set(answers="sse")
        async with p.post("tools/call", {"name": "hold"}):
            await p.server.seen("tools/call")
        await p.server.until(lambda s: s.cancelled == [p.serial])


@pytest.mark.parametrize("endpoint", ["ok", "absolute", "query", "twice"])
async def test_the_era_of_http_and_sse(endpoint: str) -> None:
    async with peer(era="sse", revision="2024-11-05", endpoint=endpoint) as p:
        async with p.post("initialize") as response:
            assert response.status == 405
        async with p.http.get(p.server.url) as response:
            told = events(response)
            target = (await anext(told))["data"]
            if endpoint == "twice":
                target = (await anext(told))["data"]
            url = (
                target
                if endpoint == "absolute"
                else p.server.origin + ("/sse" if endpoint == "query" else "") + target
            )
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
            async with p.http.post(url, json=message) as posted:
                assert posted.status == 202
            assert (await anext(told))["data"]["result"]["protocolVersion"] == "2024-11-05"
            call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "effect"}}
            async with p.http.post(url, json=call) as posted:
                assert posted.status == 202
            assert (await anext(told))["data"]["id"] == 2
            p.server.end_sse_streams()
            with pytest.raises(StopAsyncIteration):
                await anext(told)


async def test_lies_of_the_endpoint_event() -> None:
    async with peer(era="sse", endpoint="to:http://198.51.100.1/messages") as p:
        async with p.http.get(p.server.url) as response:
            assert (await anext(events(response)))["data"] == "http://198.51.100.1/messages"
        p.server.set(endpoint="never")
        async with p.http.get(p.server.url) as response:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await response.content.readline()


STATUS = {
    "html": (200, "text/html"), "html:502": (502, "text/html"), "status:500": (500, None),
    "status:413:too big": (413, "text/plain"), "error:-32000": (200, "application/json"),
    "error:-32602:400": (400, "application/json"), "error_null:-32000": (400, "application/json"),
    "unsupported:2026-07-28": (400, "application/json"), "mismatch": (400, "application/json"),
    "accepted": (202, None), "empty": (200, "application/json"), "type:text/plain": (200, "text/plain"),
    "json_text:null": (200, "application/json"), "later:429:2": (429, "text/plain"),
    "later_date:503:2": (503, "text/plain"), "unauthorized": (401, None), "forbidden": (403, None),
    "redirect:307:{origin}/other": (307, None), "close": (200, "application/json"),
    "chunked": (200, "application/json"), "gzip": (200, "application/json"), "text": (200, "text/event-stream"),
    "close_idle": (200, "application/json"), "big_body:100000": (200, "application/json"),
}  # fmt: skip


@pytest.mark.parametrize("word", STATUS)
async def test_an_answer_by_its_status_and_type(word: str) -> None:
    async with peer(on={"tools/list": word}) as p:
        await p.handshake()
        async with p.http.post(p.server.url, json={"id": 9, "jsonrpc": "2.0", "method": "tools/list"},
                               headers=p.headers, allow_redirects=False) as response:  # fmt: skip
            status, kind = STATUS[word]
            assert response.status == status
            assert response.headers.get("Content-Type", "").partition(";")[0] == (kind or "")
            body = await response.read()
            if word in ("gzip", "chunked", "close", "close_idle", "type:text/plain"):
                assert json.loads(body)["id"] == 9
            if word.startswith("later"):
                assert "Retry-After" in response.headers
            if status == 307:
                assert response.headers["Location"] == p.server.origin + "/other"
        assert p.server.requests[-1].status == status


@pytest.mark.parametrize(
    "word", ["die", "close_now", "half_headers", "garbage", "die_after", "die_in_body", "cut_in_body"]
)
async def test_an_answer_that_does_not_come(word: str) -> None:
    async with peer(on={"tools/call": [word, "ok"]}) as p:
        await p.handshake()
        with pytest.raises(aiohttp.ClientError):
            async with p.post("tools/call", {"name": "effect"}) as response:
                await response.read()
        done = p.server.effects["effect"]
        assert done == (1 if word in ("die_after", "die_in_body", "cut_in_body") else 0)
        assert await p.call("effect") == str(done + 1)


async def test_a_reused_connection_is_reset_when_the_next_request_comes() -> None:
    async with peer(on={"tools/list": ["race", "ok"]}) as p:
        await p.handshake()
        assert "result" in await p.ask("tools/list")
        with pytest.raises(aiohttp.ClientError):
            await p.ask("tools/call", name="effect")
        assert p.server.effects["effect"] == 0
        assert p.server.connections == 1
        assert await p.call("effect") == "1"


async def test_streams_that_never_say_anything_or_too_much() -> None:
    words = [
        "stall",
        "comments:0.01",
        "silent",
        "big_event:200000",
        "bomb:10000000",
        "comments_first:3",
        "text_first",
    ]
    async with peer(on={"tools/list": words}) as p:
        await p.handshake()
        async with p.post("tools/list") as response:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await response.content.readline()
        async with p.post("tools/list") as response:
            for _ in range(3):
                assert await response.content.readline() == b": nothing\n"
                await response.content.readline()
        await p.unanswered("tools/list")
        async with p.post("tools/list") as response:
            assert len(await response.content.readexactly(200006)) == 200006
        async with p.http.post(p.server.url, json={"id": 9, "method": "tools/list"}, headers={**p.headers},
                               auto_decompress=False) as response:  # fmt: skip
            assert len(await response.read()) < 100_000
        assert "tools" in (await p.ask("tools/list"))["result"]
        async with p.post("tools/list") as response:
            first, last = [event async for event in events(response)]
            assert first["data"] == "plain text, no JSON"
            assert "result" in last["data"]


async def test_waits_and_orders() -> None:
    async with peer(on={"initialize": ["silent", "ok"], "tools/list": ["hold", "slow:0.1"]}) as p:
        await p.unanswered("initialize")
        await p.handshake()
        listing = asyncio.ensure_future(p.ask("tools/list"))
        await p.server.seen("tools/list")
        p.server.release("tools/list")
        assert "result" in await listing
        began = time.monotonic()
        await p.ask("tools/list")
        assert time.monotonic() - began >= 0.1
        await p.server.stop_listening()
        p.server.drop_connections()
        await p.server.until(lambda s: not s.live)
        with pytest.raises(aiohttp.ClientConnectorError):
            await p.ask("tools/list")
        await p.server.listen()
        assert "result" in await p.ask("tools/list")
        with pytest.raises(AssertionError, match="not so within"):
            await p.server.seen("never", timeout=0.01)


def test_a_misspelt_script_fails_at_once() -> None:
    for script in ({"eras": "modern"}, {"on": {"tools/list": "slience"}}, {"get": ["ok", "nope"]}):
        with pytest.raises(ValueError, match="unknown"):
            HttpFaults(**script)
