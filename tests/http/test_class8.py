"""Field faults, class 8: notifications and caches over HTTP, in both eras and over HTTP+SSE."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorings import AsyncHost, CatalogChanged, Handlers
from tests.faults.http_server import META, HttpFaults
from tests.http.kit import ALL, SLACK, host_for, hosted, session_of, sizes_of, within


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


async def hears(server: HttpFaults) -> None:
    """The stream on which the server tells of changes is open."""
    await server.until(lambda s: s.listens or s._listening is not None or s._sse)


async def names_with(host: AsyncHost, name: str) -> list[str]:
    """The catalog, once this tool is in it."""
    async with asyncio.timeout(10):
        while True:
            names = [listed.name for listed in await host.tools()]
            if name in names:
                return names
            await asyncio.sleep(0.01)


@ALL
@pytest.mark.parametrize("slow", [False, True])
async def test_f8_1_a_thousand_log_lines_hold_up_nothing(era: str, slow: bool) -> None:
    """F8.1: nobody hears them, or one that takes 1 s each does: the next call comes at once, drops are counted."""

    async def on_notification(*_: Any) -> None:
        await asyncio.sleep(1)

    handlers = Handlers(on_notification=on_notification) if slow else None
    script = {"era": era, "answers": {"tools/call": "sse"}}
    async with hosted(handlers=handlers, bounds={"notifications": 100}, **script) as (host, _):
        with within(2 * SLACK):
            assert (await host.call("s__notify", {"count": 1000})).text == "told"
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        counters = session_of(host).counters
        assert counters.dropped_notifications + counters.unheard_notifications >= 800
        assert session_of(host).sizes()["notices"] <= 101


@ALL
async def test_f8_2_a_handler_that_uses_its_own_connection(era: str) -> None:
    """F8.2: no deadlock."""
    told: list[str] = []
    done = asyncio.Event()
    hosts: list[AsyncHost] = []

    async def on_notification(*_: Any) -> None:
        told.append((await hosts[0].call("s__echo", {"text": "from within"})).text)
        done.set()

    script = {"era": era, "answers": {"tools/call": "sse"}}
    async with hosted(handlers=Handlers(on_notification=on_notification), **script) as (host, _):
        hosts.append(host)
        assert (await host.call("s__notify", {"count": 1})).text == "told"
        async with asyncio.timeout(10):
            await done.wait()
        assert told == ["from within"]


@ALL
async def test_f8_3_two_hundred_changes_are_at_most_two_lists(era: str) -> None:
    """F8.3: the catalog is the last list, and one event tells the difference."""
    events: list[CatalogChanged] = []

    def on_event(event: Any) -> None:
        if isinstance(event, CatalogChanged):
            events.append(event)

    async with HttpFaults(era=era) as server:
        async with host_for(server.url, on_event=on_event) as host:
            await host.wait_ready()
            await hears(server)
            await host.call("s__echo", {"text": "x"})
            await asyncio.sleep(0.05)
            events.clear()
            listed = server.count("tools/list")
            server.script["tools"] = [tool("fresh")]
            for _ in range(200):
                server.list_changed()
            assert "s__fresh" in await names_with(host, "s__fresh")
            assert server.count("tools/list") - listed <= 2
            assert [event.added for event in events] == [("fresh",)]


@ALL
async def test_f8_5_a_refresh_that_fails_keeps_the_last_good_list(era: str) -> None:
    """F8.5: it does not become empty; the next live list replaces it."""
    async with hosted(era=era) as (host, server):
        await hears(server)
        before = [listed.name for listed in await host.tools()]
        where = "/messages" if era == "sse" else "tools/list"
        server.set(on={where: "status:500:boom"})
        count = server.count("tools/list")
        server.script["tools"] = [tool("fresh")]
        server.list_changed()
        await server.seen("tools/list", count + 1)
        await asyncio.sleep(0.05)
        assert [listed.name for listed in await host.tools()] == before
        server.set(on={where: "ok"})
        server.list_changed()
        assert "s__fresh" in await names_with(host, "s__fresh")


@ALL
async def test_f8_8_stray_progress_is_dropped_and_counted(era: str) -> None:
    """F8.8: for an unknown token; the connection lives."""
    async with hosted(era=era, answers={"tools/call": "sse"}) as (host, server):
        await hears(server)
        for token in (4711, "x", None):
            server.tell({"jsonrpc": "2.0", "method": "notifications/progress",
                         "params": {"progressToken": token, "progress": 1}})  # fmt: skip
        told: list[float] = []
        call = host.call("s__progress", {"count": 3}, on_progress=lambda progress, *_: told.append(progress))
        assert (await call).text == "done"
        assert told == [1, 2, 3]
        assert session_of(host).counters.stray_progress == 3
        assert sizes_of(host)["pending"] == 0


@pytest.mark.parametrize(("ttl", "fetches"), [(60_000, 1), (0, 3), (-5, 3), (None, 3)])
async def test_f8_9_a_list_is_kept_as_long_as_the_server_says(ttl: int | None, fetches: int) -> None:
    """F8.9: with no stream that tells of changes; absent or negative is not kept."""
    script = {"era": "modern", "capabilities": {"tools": {}, "resources": {}}, "ttl_ms": ttl, "grant": {}}
    async with hosted(**script) as (host, server):
        before = server.count("resources/list")
        for _ in range(3):
            assert await host.resources()
        assert server.count("resources/list") - before == fetches


async def test_f8_9_a_change_ends_the_freshness() -> None:
    """F8.9: ``ttlMs`` 60000, then list_changed: fetched again."""
    async with hosted(era="modern", ttl_ms=60_000) as (host, server):
        await hears(server)
        server.script["tools"] = [tool("fresh")]
        server.tell(
            {
                "jsonrpc": "2.0",
                "method": "notifications/tools/list_changed",
                "params": {"_meta": {META + "x": 1}},
            }
        )
        assert "s__fresh" in await names_with(host, "s__fresh")


@pytest.mark.parametrize("kind", ["prompts", "resources"])
@ALL
async def test_f8_6_changes_of_prompts_and_resources_are_heard(era: str, kind: str) -> None:
    """F8.6: the next look lists again."""
    async with hosted(era=era) as (host, server):
        await hears(server)
        look = host.prompts if kind == "prompts" else host.resources
        assert await look()
        before = server.count(f"{kind}/list")
        await look()
        assert server.count(f"{kind}/list") == before
        server.list_changed(kind)
        async with asyncio.timeout(10):
            while server.count(f"{kind}/list") == before:
                await look()
                await asyncio.sleep(0.01)


async def test_f8_7_a_ping_and_a_log_line_before_the_answer_to_initialize() -> None:
    """F8.7: on the stream that brings it; both are served, the connect succeeds."""
    # Of a revision that has no header of its own, as none is known so early.
    script: dict[str, Any] = {"revision": "2025-03-26", "answers": "sse"}
    async with HttpFaults(**script, on={"initialize": "hold"}) as server:
        lines: list[Any] = []

        async def on_notification(*given: Any) -> None:
            lines.append(given)

        async with host_for(server.url, handlers=Handlers(on_notification=on_notification)) as host:
            await server.seen("initialize")
            call = server.of("initialize")[0]
            assert call is not None
            server.release("initialize")
            await server.until(lambda s: any(name.startswith("post") for name in s.streams))
            stream = next(s for name, s in server.streams.items() if name == f"post{call.number}")
            stream.send(
                {
                    "jsonrpc": "2.0",
                    "method": "notifications/message",
                    "params": {"level": "info", "data": "early"},
                }
            )
            stream.send({"jsonrpc": "2.0", "id": "early", "method": "ping"})
            assert (await host.wait_ready()).all_ready
            await server.until(lambda s: any(answer["id"] == "early" for answer in s.answers))
