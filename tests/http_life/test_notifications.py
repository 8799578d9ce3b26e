"""Class 8 over HTTP: what a server says by itself, on the stream of a GET, of a subscription, of HTTP+SSE, and inside
the answer of a POST; bursts, streams that are opened anew, handlers that use the same server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, CatalogChanged, Handlers
from moorings.transport import http
from tests.faults import http_server
from tests.faults.http_server import Call, HttpFaults, Json, text_of
from tests.host.kit import Events, took
from tests.http_life.kit import WAYS, faults, spec, until
from tests.net.kit import Line, serving

QUICK = Bounds(connect=5.0, call=5.0, http_close=0.5, notifications=100)
CHANGED = "notifications/tools/list_changed"


@pytest.fixture(autouse=True)
def quick_to_reopen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_REOPEN", 0.05)


@pytest.fixture
def burst(monkeypatch: pytest.MonkeyPatch) -> Json:
    """A tool that announces so many changes inside its own call; the script that offers it."""

    async def do_burst(call: Call, count: int = 1, method: str = CHANGED) -> Json:
        for _ in range(count):
            call.send({"jsonrpc": "2.0", "method": method})
        return text_of(call, "announced")

    monkeypatch.setitem(http_server.CALLS, "burst", do_burst)
    return {"tools": [{"name": "burst", "inputSchema": {"type": "object"}}]}


def a_host(server: HttpFaults, way: str, events: Events | None = None, **handlers: Any) -> AsyncHost:
    return AsyncHost(
        {"a": spec(server.url, way, bounds=QUICK)},
        state_dir=False,
        on_event=events,
        handlers=Handlers(**handlers),
    )


async def listening(server: HttpFaults, way: str) -> None:
    """The stream on which the server may say something is open."""
    await server.until(lambda s: s.listens if way == "modern" else s._listening or s._sse)


def catalog(events: Events) -> list[CatalogChanged]:
    """The changes after the first list."""
    return [event for event in events.all if isinstance(event, CatalogChanged)][1:]


@pytest.mark.parametrize("way", WAYS)
async def test_f8_1_a_thousand_log_lines(way: str) -> None:
    """F8.1: with a handler that takes 1 s each, by the listening stream: the next call is answered at once, the queue
    is bounded, what was dropped is counted."""
    heard: list[Any] = []

    async def slow(name: str, params: Any) -> None:
        heard.append(params)
        await asyncio.sleep(1)

    async with faults(way) as server:
        async with a_host(server, way, on_log=slow) as host:
            await host.wait_ready(5)
            await listening(server, way)
            for number in range(1000):
                params = {"level": "info", "data": number}
                server.tell({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            with took(0.0, 1.0):
                assert (await host.call("a__echo", {"text": "x"})).text == "x"
            await until(lambda: host.status()["a"].counters.dropped_notifications + 100 + len(heard) >= 1000)
            with took(0.0, 2.0):
                await host.close(2.0)


@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f8_1_log_lines_inside_an_answer(way: str) -> None:
    """F8.1: all of them before the answer, in the stream of the POST; and after it nothing waits."""
    heard: list[Any] = []
    async with faults(way, answers="sse") as server:
        async with a_host(server, way, on_log=lambda name, params: heard.append(params.data)) as host:
            await host.wait_ready(5)
            assert (await host.call("a__notify", {"count": 90})).text == "told"
            await until(lambda: len(heard) == 90)
            assert heard == list(range(90))


@pytest.mark.parametrize("way", WAYS)
async def test_f8_2_a_handler_uses_the_very_server(way: str, burst: Json) -> None:
    """F8.2: of list_changed, which lists the tools and calls one."""
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def again(name: str, method: str, params: Any) -> None:
        if method == CHANGED and not done.done():
            await host.tools(servers=["a"])
            done.set_result((await host.call("a__echo", {"text": "inside"})).text)

    async with faults(way, answers="sse", **burst) as server:
        host = a_host(server, way, on_notification=again)
        async with host:
            await host.wait_ready(5)
            if way == "sse":
                await listening(server, way)
                server.list_changed()
            else:
                await host.call("a__burst")
            assert await asyncio.wait_for(done, 5) == "inside"


@pytest.mark.parametrize(
    ("way", "place"),
    [
        *((way, "on the listening stream") for way in WAYS),
        *((way, "inside an answer") for way in ("handshake", "modern")),
    ],
)
async def test_f8_3_a_burst_of_changes_costs_two_lists(way: str, place: str, burst: Json) -> None:
    """F8.3: 200 at once, and one more while the refresh is in flight."""
    events = Events()
    async with faults(way, answers={"tools/call": "sse"}, **burst) as server:
        async with a_host(server, way, events) as host:
            await host.wait_ready(5)
            await listening(server, way)
            before = server.count("tools/list")
            server.set(on={"tools/list": ["hold", "ok"]})
            server.script["tools"].append({"name": "fresh", "inputSchema": {"type": "object"}})
            if place == "inside an answer":
                await host.call("a__burst", {"count": 200})
            else:
                for _ in range(200):
                    server.list_changed()
            await server.seen("tools/list", before + 1)
            server.list_changed()
            server.release("tools/list")
            await until(lambda: catalog(events))
            await until(lambda: server.count("tools/list") == before + 2)
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
            assert "a__fresh" in {tool.name for tool in await host.tools()}
            assert [event.added for event in catalog(events)] == [("fresh",)]
            assert server.count("tools/list") == before + 2


@pytest.mark.parametrize("kind", ["prompts", "resources", "tools"])
@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("way", ["handshake", "sse"])
async def test_f8_6_changes_of_every_kind(way: str, declared: bool, kind: str) -> None:
    """F8.6: of prompts and resources, and from a server that did not declare it."""
    capabilities: Json = {
        each: {"listChanged": True} if declared else {} for each in ("tools", "prompts", "resources")
    }
    async with faults(way, capabilities=capabilities) as server:
        async with a_host(server, way) as host:
            await host.wait_ready(5)
            await getattr(host, kind)(servers=["a"])
            await listening(server, way)
            before = server.count(f"{kind}/list")
            server.list_changed(kind)
            await server.seen(f"{kind}/list", before + 1)


@pytest.mark.parametrize("end", ["clean", "reset"])
@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f8_5_what_a_lost_stream_may_have_said_is_looked_at(way: str, end: str) -> None:
    """F8.5, F5.7: while the listening stream was down a tool was added and nobody told: the reopened one lists anew."""
    events = Events()
    async with faults(way) as server:
        async with a_host(server, way, events) as host:
            await host.wait_ready(5)
            await listening(server, way)
            server.script["tools"] = [{"name": "fresh", "inputSchema": {"type": "object"}}]
            server.end_listens(graceful=False) if end == "clean" else server.drop_connections()
            await until(lambda: catalog(events), 8.0)
            assert [event.added for event in catalog(events)] == [("fresh",)]
            assert "a__fresh" in {tool.name for tool in await host.tools()}
            assert server.violations == []


async def test_f8_5_a_resumed_stream_misses_nothing() -> None:
    """F8.5: where the server keeps its events, the stream goes on after the last one, and nothing is listed for it."""
    heard: list[Any] = []
    async with faults("handshake", resumable=True, priming=True, retry=50) as server:
        async with a_host(server, "handshake", on_log=lambda name, params: heard.append(params.data)) as host:
            await host.wait_ready(5)
            await listening(server, "handshake")
            stream = server._listening
            assert stream is not None
            await asyncio.sleep(0.05)
            lists = server.count("tools/list")
            server.drop_connections()
            for number in range(5):
                params = {"level": "info", "data": number}
                stream.send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            await until(lambda: heard == [0, 1, 2, 3, 4], 8.0)
            assert server.count("tools/list") == lists


@pytest.mark.parametrize(
    "word", ["status:405", "status:404", "status:400", "html", "status:500", "die", "silent", "empty"]
)
async def test_f8_5_without_a_listening_stream_lists_are_asked_for(word: str) -> None:
    """F5.7, F8.5: a server that tells of changes, but has no stream for it: its catalog is not taken for fresh."""
    async with faults("handshake", get=word) as server:
        async with a_host(server, "handshake") as host:
            with took(0.0, 3.0):
                assert (await host.wait_ready(5)).all_ready
            server.script["tools"] = [{"name": "fresh", "inputSchema": {"type": "object"}}]
            tools = {tool.name for tool in await host.tools(servers=["a"])}
            assert "a__fresh" in tools
            assert (await host.call("a__echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("way", ["handshake", "sse"])
async def test_f8_7_a_log_line_and_a_ping_before_the_answer_to_initialize(way: str) -> None:
    """F8.7: both in the stream that brings the answer: the ping is answered, the line delivered, the server ready."""
    heard: list[Any] = []
    pongs: list[Any] = []
    ping = {"jsonrpc": "2.0", "id": "p1", "method": "ping"}
    log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "early"}}
    streams: list[Line] = []

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            message = json.loads(request.body) if request.body else {}
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
            if request.method == "GET" and way == "sse":
                streams.append(line)
                line.say(head + b"event: endpoint\ndata: /in\n\n")
                await line.ended()
                return
            if message.get("id") == "p1":
                pongs.append(message)
            if message.get("method") == "initialize":
                result = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "serverInfo": {"name": "t", "version": "1"},
                }
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
                text = b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in (log, ping, answer))
                if way == "sse":
                    line.answer(b"", 202)
                    streams[0].say(text)
                    continue
                line.say(head + text)
                return
            line.answer(b"", 202 if request.method == "POST" else 405)

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/"
        handlers = Handlers(on_log=lambda name, params: heard.append(params.data))
        async with AsyncHost({"a": spec(url, way, bounds=QUICK)}, state_dir=False, handlers=handlers) as host:
            assert (await host.wait_ready(5)).all_ready
            await until(lambda: heard == ["early"] and pongs)
        assert pongs[0]["result"] == {}


@pytest.mark.parametrize("way", WAYS)
async def test_f8_8_progress_for_nobody(way: str) -> None:
    """F8.8: tokens that are unknown, done or of a wrong kind: dropped, counted; the stream lives."""
    async with faults(way) as server:
        async with a_host(server, way) as host:
            await host.wait_ready(5)
            await listening(server, way)
            for token in (99999, 1, "x", None, {"a": 1}, 2.5):
                params = {"progressToken": token, "progress": 1}
                server.tell({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            await until(lambda: host.status()["a"].counters.stray_progress >= 5)
            server.list_changed()
            await server.seen("tools/list", 2)
            assert (await host.call("a__echo", {"text": "x"})).text == "x"


async def test_f8_9_a_ttl_and_a_change() -> None:
    """F8.9: ``ttlMs`` 60000 keeps the list; a change ends that; without one, and without a stream, it is asked."""
    async with faults("modern", ttl_ms=60_000, grant={}) as server:
        async with a_host(server, "modern") as host:
            await host.wait_ready(5)
            before = server.count("tools/list")
            for _ in range(3):
                await host.tools(servers=["a"])
            assert server.count("tools/list") == before
    async with faults("modern", ttl_ms=60_000) as server:
        async with a_host(server, "modern") as host:
            await host.wait_ready(5)
            await listening(server, "modern")
            before = server.count("tools/list")
            server.list_changed()
            await server.seen("tools/list", before + 1)
    for ttl in (None, -5, 0):
        async with faults("modern", ttl_ms=ttl, grant={}) as server:
            async with a_host(server, "modern") as host:
                await host.wait_ready(5)
                before = server.count("tools/list")
                await host.tools(servers=["a"])
                assert server.count("tools/list") > before
