"""HTTP+SSE of 2024-11-05: where it is found, what its stream may say, and what its end does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorings import AmbiguousDelivery, NotSent, Refused
from tests.faults.http_server import HttpFaults
from tests.http.kit import SLACK, host_for, hosted, within

QUICK: dict[str, Any] = {"connect": 0.6, "cooldown": 0.0}


@pytest.mark.parametrize("endpoint", ["ok", "absolute", "query", "twice"])
async def test_an_endpoint_in_each_of_its_forms(endpoint: str) -> None:
    async with hosted(era="sse", endpoint=endpoint) as (host, server):
        assert (await host.call("s__effect")).text == "1"
        assert not server.count("DELETE")


@pytest.mark.parametrize("there", [
    "http://127.0.0.1:1/messages", "https://127.0.0.1/messages", "//elsewhere.invalid/messages", "file:///etc/passwd",
    "http://user:pw@127.0.0.1/messages", "http://[::bad", "javascript:alert(1)", "http://localhost:{port}/messages",
])  # fmt: skip
async def test_an_endpoint_of_another_origin_is_refused(there: str) -> None:
    """F16.3: nothing goes there, and the error says so at once."""
    async with HttpFaults(era="sse") as server:
        server.set(endpoint="to:" + there.replace("{port}", str(server.port)))
        async with host_for(server.url, transport="sse", headers={"X-Key": "k-1234567"}) as host:
            with within(SLACK):
                text = str((await host.wait_ready()).failed["s"])
            assert "origin" in text or "no address" in text, text
        assert server.count("POST") == 0


async def test_an_endpoint_that_never_comes_is_bounded() -> None:
    async with HttpFaults(era="sse", endpoint="never") as server:
        async with host_for(server.url, transport="sse", bounds=QUICK) as host:
            with within(0.6 + SLACK, 0.6):
                assert (await host.wait_ready()).failed


@pytest.mark.parametrize("word", [
    "html", "html:502", "status:404", "status:500", "unauthorized", "empty", "status:204", "text", "die", "garbage",
    "json_text:{}", "close_now",
])  # fmt: skip
async def test_what_is_no_event_stream_is_told_at_once(word: str) -> None:
    """F13.7, F5.10: with status, place and first characters."""
    async with HttpFaults(era="sse", on={"/sse": word}) as server:
        bounds = {"connect": 10.0}
        async with host_for(server.url, transport="sse", bounds=bounds) as host:
            with within(2 * SLACK):
                seen = await host.wait_ready()
            text = str(seen.failed["s"])
            if word.startswith("html"):
                assert "Sign in" in text
            if word.startswith(("html:", "status:")):
                assert word.partition(":")[2] in text
            if word == "unauthorized":
                assert "401" in text


async def test_the_end_of_the_stream_ends_all_that_wait_and_the_next_call_opens_another() -> None:
    """F4.2: at once, not at their limits."""
    async with hosted(era="sse", bounds={"cooldown": 0.0}) as (host, server):
        for end in (server.end_sse_streams, server.drop_connections):
            waiting = [asyncio.ensure_future(host.call("s__hold", {"key": str(end)})) for _ in range(5)]
            count = server.effects["tool:hold"]
            await server.until(lambda s, count=count: s.effects["tool:hold"] == count + 5)
            end()
            with within(SLACK):
                done = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, AmbiguousDelivery) for each in done)
            assert (await host.call("s__echo", {"text": "next"})).text == "next"


async def test_a_reading_call_goes_out_again_on_the_next_stream() -> None:
    """F6.2: once, on another connection."""
    async with hosted(era="sse", bounds={"cooldown": 0.0}) as (host, server):
        server.set(on={"/messages": ["hold", "ok"]})
        reading = asyncio.ensure_future(host.call("s__read", {"name": "r"}))
        await server.seen("tools/call")
        server.end_sse_streams()
        assert (await reading).text == "1"
        assert server.count("tools/call") == 2


async def test_a_post_that_is_not_taken_costs_its_call_only() -> None:
    """F6.5: 404 for the session of the stream, a page, a reset: the stream lives on."""
    async with hosted(era="sse") as (host, server):
        for word in ("status:404:gone", "html:502", "die", "close_now", "garbage"):
            server.set(on={"/messages": [word, "ok"]})
            with within(SLACK), pytest.raises((Refused, AmbiguousDelivery)):
                await host.call("s__effect")
            assert not (await host.call("s__echo", {"text": "x"})).is_error
        assert host.status()["s"].generation == 1
        assert server.effects["effect"] == 0


async def test_text_in_the_stream_is_passed_over_and_a_silent_stream_ends_at_its_bound() -> None:
    """F13.4: a bad event is no end; F6.5: silence is."""
    async with hosted(era="sse", bounds={"idle": 0.5, "cooldown": 0.0}) as (host, server):
        stream = next(iter(server._sse.values()))
        stream.event("hello", kind=None)
        stream.event("plain text, no JSON")
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        with within(0.5 + SLACK), pytest.raises((AmbiguousDelivery, NotSent)):
            await host.call("s__hold", timeout=20)


async def test_lists_that_change_are_heard_of() -> None:
    """F8.6."""
    async with hosted(era="sse") as (host, server):
        server.script["tools"] = [{"name": "fresh", "inputSchema": {"type": "object"}}]
        listed = server.count("tools/list")
        server.list_changed()
        await server.seen("tools/list", listed + 1)
        for _ in range(200):
            if "s__fresh" in [tool.name for tool in await host.tools()]:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("the new tool never came")
