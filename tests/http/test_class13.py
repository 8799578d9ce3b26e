"""Field faults, class 13, as far as it is HTTP's: what can mean only one thing is taken, the rest is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from moorings import AmbiguousDelivery
from tests.faults.http_server import HttpFaults
from tests.http.kit import ERAS, SLACK, host_for, hosted, within


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("word", ["chunked", "gzip", "close", "type:APPLICATION/JSON; charset=UTF-8", "type:text/json",
                                  "type:", "type:application/json-rpc", "type:application/vnd.api+json"])  # fmt: skip
@ERAS
async def test_f13_an_answer_in_any_dress_is_taken(era: str, word: str, chunk: int) -> None:
    """F13.3: chunk edges, compression, and other names for JSON do not matter."""
    async with hosted(era=era, on={"tools/call": word}) as (host, _):
        assert (await host.call("s__echo", {"text": "é" * chunk})).text == "é" * chunk


ENDS = {"lf": "\n", "crlf": "\r\n", "cr": "\r"}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@ERAS
async def test_f13_4_events_in_every_form(era: str, end: str, size: int) -> None:
    """F13.4: line ends, cut anywhere; comments, no blank after the colon, a byte-order mark, plain text in between."""
    async with HttpFaults(era=era) as server:

        async def odd(exchange: Any) -> None:
            answer = {
                "jsonrpc": "2.0",
                "id": exchange.seen.id,
                "result": {"content": [{"type": "text", "text": "ähm"}]},
            }
            first, second = json.dumps(answer, ensure_ascii=False).split(", ", 1)
            lines = [
                ": a comment", "", ":", "event:message", "data: hello", "", "data", "", "id", "", "unknown: field", "",
                "event: message", f"data:{first},", f"data: {second}", "", "",
            ]  # fmt: skip
            exchange.start_sse()
            text = ("\ufeff" + ENDS[end].join(lines)).encode()
            for start in range(0, len(text), size):
                exchange.write(text[start : start + size])
                if size < 1000:
                    await asyncio.sleep(0)
            exchange.end_sse()

        route = server.answer

        async def answer(exchange: Any) -> None:
            await (odd(exchange) if exchange.seen.rpc == "tools/call" else route(exchange))

        server.answer = answer  # type: ignore[method-assign]
        async with host_for(server.url) as host:
            await host.wait_ready()
            assert (await host.call("s__echo")).text == "ähm"
            assert (await host.call("s__echo")).text == "ähm"


@pytest.mark.parametrize(
    "word", ["status:202", "status:204", "status:200", "json_text:null", "html", "status:200:ok"]
)
async def test_f13_5_a_notification_may_be_taken_in_any_way(word: str) -> None:
    """F13.5: 202, 204, 200 empty, 200 with null, with a page."""
    async with hosted(on={"notifications/initialized": word}) as (host, _):
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("word", ["status:500", "status:404", "die", "html:502", "silent"])
async def test_f13_5_a_notification_that_is_not_taken_costs_no_call_its_life(word: str) -> None:
    """F13.5: one bad message costs at most one request; calls go on."""
    script: dict[str, Any] = {"session": False, "on": {"notifications/initialized": word}}
    async with hosted(bounds={"first_byte": 0.5}, **script) as (host, _):
        with within(2 * SLACK):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"


@ERAS
async def test_f13_6_an_id_of_another_type_and_nulls_are_taken(era: str) -> None:
    """F13.6: "7" for 7, ``nextCursor: null``, unknown fields and kinds of content."""
    async with HttpFaults(era=era) as server:
        route = server.answer

        async def answer(exchange: Any) -> None:
            if exchange.seen.rpc != "tools/call":
                await route(exchange)
                return
            content = [
                {"type": "text", "text": "t", "annotations": None, "x": 1},
                {"type": "hologram", "y": 2},
            ]
            result = {
                "content": content,
                "structuredContent": None,
                "isError": None,
                "_meta": None,
                "future": {},
            }
            exchange.json({"jsonrpc": "2.0", "id": str(exchange.seen.id), "result": result, "extra": None})

        server.answer = answer  # type: ignore[method-assign]
        async with host_for(server.url) as host:
            await host.wait_ready()
            result = await host.call("s__echo")
            assert result.text == "t"
            assert not result.is_error


@pytest.mark.parametrize("get", ["html", "status:404"])
async def test_f13_7_what_get_says_does_not_matter_where_post_is_right(get: str) -> None:
    """F13.7: ready."""
    async with hosted(get=get) as (host, _):
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("protocol", ["auto", "handshake", "2026-07-28"])
async def test_f13_7_a_login_page_is_no_endpoint(protocol: Any) -> None:
    """F13.7: 200 text/html: typed within 1 s, naming the kind of content, status and place."""
    async with HttpFaults(on={"POST": "html", "GET": "html"}) as server:
        async with host_for(server.url, protocol=protocol) as host:
            with within(2 * SLACK):
                seen = await host.wait_ready()
            text = str(seen.failed["s"])
            assert "text/html" in text
            assert "200" in text
            assert server.url in text
            assert "Sign in" in text


@ERAS
async def test_f13_11_ids_are_integers_and_nothing_is_declared_that_is_not_meant(era: str) -> None:
    """F13.11: no capability without a handler."""
    async with hosted(era=era) as (host, server):
        await host.call("s__echo", {"text": "x"})
        assert all(type(seen.id) is int for seen in server.requests if seen.id is not None)
        first = server.requests[0].params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        if era == "handshake":
            assert server.of("initialize")[0].params["capabilities"] == {}
        else:
            # What is spoken without a handler of the user's.
            assert set(first) <= {"extensions"}


@ERAS
async def test_f13_a_url_is_used_as_it_is_written(era: str) -> None:
    """F13: path, query, escapes and trailing slash; also where a redirect leads within the origin."""
    path = "/a%20b//%7Emcp/./%2f/"
    query = "?x=1&y=%2F&z&q=a+b%20c&:@=[]"
    async with HttpFaults(era=era, path=path) as server:
        async with host_for(f"{server.origin}{path}{query}") as host:
            assert (await host.wait_ready()).all_ready
            await host.call(("s", "echo"))
            server.set(on={"tools/call": [f"redirect:307:{{origin}}{path}?signed=%2F%2f", "ok"]})
            await host.call(("s", "echo"))
        paths = {seen.path for seen in server.requests}
        assert paths == {path + query, path + "?signed=%2F%2f"}


@ERAS
@pytest.mark.parametrize(
    "text", ["[]", "7", '"x"', "{", "\x00", '{"jsonrpc":"1.0","id":1,"result":{}}', "x" * 500]
)
async def test_f13_what_is_no_message_costs_its_call_with_the_first_bytes_in_the_error(
    era: str, text: str
) -> None:
    """F13: server, method and beginning are told."""
    async with hosted(era=era, on={"tools/call": [f"json_text:{text}", "ok"]}) as (host, _):
        with within(SLACK), pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect")
        assert caught.value.http is not None
        assert len(caught.value.http.excerpt) <= 301
        assert "'s'" in str(caught.value)
        assert "'effect'" in str(caught.value)
        assert (await host.call("s__effect")).text == "1"


@pytest.mark.parametrize("begins", ['{"jsonrpc":"2.0","id":%d,"result":{"x":"', '{"result":{"x":"'])
@ERAS
async def test_f13_2_an_answer_over_the_cap_that_never_ends_costs_its_call_at_once(
    era: str, begins: str
) -> None:
    """F13.2: nobody waits for the end of what is thrown away; a notice over the cap costs nothing."""
    async with HttpFaults(era=era) as server:

        async def endless(exchange: Any) -> None:
            exchange.start_sse()
            notice = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"'
            exchange.write(f'data: {notice}{"x" * 300_000}"}}}}\n\n'.encode())
            head = begins % exchange.seen.id if "%d" in begins else begins
            exchange.write(f"data: {head}{'x' * 300_000}".encode())
            await asyncio.Event().wait()

        route = server.answer

        async def answer(exchange: Any) -> None:
            await (endless(exchange) if exchange.seen.rpc == "tools/call" else route(exchange))

        server.answer = answer  # type: ignore[method-assign]
        async with host_for(server.url, bounds={"max_message": 100_000}) as host:
            await host.wait_ready()
            with within(SLACK), pytest.raises(AmbiguousDelivery, match="max_message") as told:
                await host.call("s__echo", {"text": "x"}, timeout=30)
            assert told.value.sent
