"""Field faults, class 9: which era a server over HTTP speaks, and what each era must never see of the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, ElicitResult, Handlers, NeedsLogin, NotSent, Refused
from tests.clock import advance, on_running_clock, pass_time, turns
from tests.faults.http_server import META, MODERN, HttpFaults, Seen
from tests.http.kit import SLACK, host_for, hosted, mute, within

MODERN_HEADERS = ("mcp-method", "mcp-name", "mcp-param-")


def no_trace_of_the_modern_era(seen: Seen) -> bool:
    headers = [name for name in seen.headers if name.startswith(MODERN_HEADERS)]
    version = seen.headers.get("mcp-protocol-version")
    return not headers and version != MODERN and META.encode() not in seen.body


def no_trace_of_the_handshake(server: HttpFaults) -> bool:
    never = ("initialize", "notifications/initialized", "ping", "logging/setLevel", "GET", "DELETE")
    return not any(server.count(what) for what in never) and not any(
        "mcp-session-id" in seen.headers for seen in server.requests
    )


# F9.3: any other answer to the probe

NOT_MODERN = [
    "error:-32601", "error:-32602", "error:-32600", "error:-32000", "error:-32001", "error:-32603", "error:0",
    "error:-32601:400", "error:-32602:400", "error:-32600:406", "error:-32000:400", "error:-32000:500",
    "error_null:-32000", "error_null:-32600:406", "error_null:-32700:400",
    "status:400", "status:404", "status:405", "status:406", "status:415", "status:500", "status:501",
    "html:400", "html:404", "html:405", "html:406", "html:415", "html:500",
    "html", "empty", "accepted", "status:204", "text", "json_text:null", "json_text:{}", "json_text:[]",
    'json_text:{"jsonrpc":"2.0","id":1,"result":{}}', 'json_text:{"error":"no"}', "type:image/png",
    'json_text:{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2025-11-25"]}}',
    "die", "close_now", "half_headers", "garbage", "stall", "redirect:302:{origin}/login",
]  # fmt: skip


@pytest.mark.parametrize("word", NOT_MODERN)
async def test_f9_3_any_other_answer_to_the_probe_means_the_handshake(word: str) -> None:
    """F9.3: ``initialize`` follows, and no modern metadata or header on anything after the probe."""
    async with hosted(on={"server/discover": word}, bounds={"probe": 0.5}) as (host, server):
        status = host.status()["s"]
        assert (status.era, status.revision) == ("handshake", "2025-11-25")
        assert (await host.call("s__effect")).text == "1"
        assert [server.count("server/discover"), server.count("initialize")] == [1, 1]
        assert all(no_trace_of_the_modern_era(seen) for seen in server.requests[1:])


@pytest.mark.parametrize("word", ["status:404", "status:405", "html:404", "status:400", "error_null:-32000"])
async def test_f9_3_a_server_that_refuses_every_post_is_one_of_http_and_sse(word: str) -> None:
    """F9.3: over the older transport no modern header either."""
    async with hosted(era="sse", on={"/sse": [word, word, "ok"]}) as (host, server):
        assert host.status()["s"].era == "handshake"
        assert (await host.call("s__effect")).text == "1"
        assert all(no_trace_of_the_modern_era(seen) for seen in server.requests[1:])


@pytest.mark.parametrize(
    "word",
    [
        "status:429:slow",
        "html:502",
        "html:503",
        "status:504",
        "status:408",
        "error:-32000:429",
        "error:-32603:503",
    ],
)
async def test_f9_3_what_is_of_the_moment_decides_nothing(word: str, tmp_path: Path) -> None:
    """F9.3: a proxy's trouble, a busy server: the start fails and tells why; nothing is remembered."""
    async with HttpFaults(era="modern", on={"server/discover": [word, "ok"]}) as server:
        async with host_for(server.url, state_dir=tmp_path, bounds={"cooldown": 0.0}) as host:
            seen = await host.wait_ready()
            assert seen.failed
            assert server.count("initialize") == 0
            assert (await host.call(("s", "effect"))).text == "1"
            assert host.status()["s"].era == "modern"
        assert no_trace_of_the_handshake(server)


@pytest.mark.parametrize("word", ["silent", "stall", "comments:0.05"])
async def test_f9_3_silence_on_the_probe_is_waited_for_once_and_remembered(word: str, tmp_path: Path) -> None:
    """P8 and P9 of the peers: the handshake after the probe limit; the next start has no wait."""
    async with HttpFaults(on={"server/discover": word}) as server:
        async with host_for(server.url, state_dir=tmp_path, bounds={"probe": 0.4}) as host:
            with within(0.4 + SLACK, 0.4):
                assert (await host.wait_ready()).all_ready
            assert host.status()["s"].era == "handshake"
        async with host_for(server.url, state_dir=tmp_path, bounds={"probe": 0.4}) as host:
            with within(0.35):
                assert (await host.wait_ready()).all_ready
        assert server.count("server/discover") == 1
        await server.until(lambda s: s.of("server/discover")[0].gone)


# F9.4: 401 and 403 decide nothing; no version in common


@pytest.mark.parametrize(
    "word", ["unauthorized", "forbidden", "html:401", "error:-32001:401", "error_null:-32601:401"]
)
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_f9_4_401_and_403_decide_nothing(word: str, era: str, tmp_path: Path) -> None:
    """F9.4: typed, with the challenge; nothing is remembered; asked again once there are credentials."""
    async with HttpFaults(era=era, on={"server/discover": [word, "ok"]}) as server:
        async with host_for(server.url, state_dir=tmp_path, bounds={"cooldown": 0.0}) as host:
            seen = await host.wait_ready()
            status = 403 if word == "forbidden" else 401
            assert str(status) in str(seen.failed["s"])
            error: Any = host.status()["s"].last_error
            assert error.http.status == status
            if word in ("unauthorized", "forbidden"):
                assert error.http.challenges[0].startswith("Bearer")
            assert server.count("initialize") == 0
            if word == "unauthorized":
                # A challenge of OAuth: it is not asked again by itself.
                with pytest.raises(NeedsLogin):
                    await host.call(("s", "effect"))
                assert server.count("server/discover") == 1
                await host.restart("s")
            assert (await host.call(("s", "effect"))).text == "1"
            assert host.status()["s"].era == era
        assert server.count("server/discover") == 2


async def test_f9_4_other_headers_are_asked_for_before_the_probe_goes_out_again() -> None:
    """F9.4: a function gives a newer token."""
    tokens = iter(["old", "new", "newer"])
    script = {"era": "modern", "on": {"server/discover": ["unauthorized", "ok"]}}
    async with hosted(spec={"headers": lambda: {"Authorization": next(tokens)}}, **script) as (_, server):
        assert [s.headers["authorization"] for s in server.of("server/discover")] == ["old", "new"]
        assert server.count("initialize") == 0


@pytest.mark.parametrize("word", ["unsupported:2099-01-01", "unsupported:2025-11-25", "unsupported:"])
async def test_f9_4_no_version_in_common_is_a_typed_error_with_both_lists(word: str) -> None:
    """F9.4: -32022 names its versions; no ``initialize`` unless one of them is ours of the handshake era."""
    async with HttpFaults(era="modern", on={"server/discover": word}) as server:
        async with host_for(server.url) as host:
            seen = await host.wait_ready()
            if word == "unsupported:2099-01-01":
                assert server.count("initialize") == 0
                for revision in ("2099-01-01", MODERN, "2025-11-25"):
                    assert revision in str(seen.failed["s"])
            assert server.count("tools/list") == 0


async def test_f9_4_a_version_in_common_is_used() -> None:
    """F9.4: -32022 with a list that has ours."""
    script = {"era": "modern", "on": {"server/discover": [f"unsupported:2099-01-01,{MODERN}", "ok"]}}
    async with hosted(**script) as (host, server):
        assert host.status()["s"].revision == MODERN
        assert no_trace_of_the_handshake(server)


@pytest.mark.parametrize("word", ["mismatch", "error:-32021:400", "error:-32601:404"])
async def test_f9_4_a_modern_error_code_is_never_a_reason_for_initialize(word: str) -> None:
    """F9.3: -32020, -32021, and 404 with -32601 are signs of the modern era."""
    async with HttpFaults(era="modern", on={"server/discover": word}) as server:
        async with host_for(server.url) as host:
            await host.wait_ready()
            assert no_trace_of_the_handshake(server)


# F9.5: closed after the probe


@pytest.mark.parametrize("word", ["error:-32000", "error_null:-32000"])
async def test_f9_5_a_bridge_that_closes_after_the_probe_is_dialled_anew(word: str) -> None:
    """F9.5: -32000, then the connection is gone; a new one, ``initialize``, ready."""
    async with HttpFaults(on={"server/discover": word}) as server:
        held = asyncio.ensure_future(server.seen("server/discover"))
        async with host_for(server.url) as host:
            await held
            await server.until(lambda s: s.requests[0].status is not None)
            server.drop_connections()
            assert (await host.wait_ready()).all_ready
            assert host.status()["s"].era == "handshake"


# F9.6: what is remembered does not fit any more


async def test_f9_6_remembered_as_handshake_and_modern_only_now(tmp_path: Path) -> None:
    """F9.6: ``initialize`` is refused: probed again once, ready, remembered anew."""
    async with HttpFaults(era="handshake") as server:
        for era, discovers, initializes in (
            ("handshake", 1, 1),
            ("handshake", 1, 2),
            ("modern", 2, 3),
            ("modern", 3, 3),
        ):
            server.set(era=era, strict=False)
            async with host_for(server.url, state_dir=tmp_path) as host:
                assert (await host.wait_ready()).all_ready
                assert host.status()["s"].era == era
                assert (await host.call(("s", "echo"), {"text": "x"})).text == "x"
            assert (server.count("server/discover"), server.count("initialize")) == (discovers, initializes)


async def test_f9_6_remembered_as_modern_and_of_the_handshake_now(tmp_path: Path) -> None:
    """F9.6: in the other direction."""
    async with HttpFaults(era="modern") as server:
        for era, discovers, initializes in (("modern", 1, 0), ("handshake", 2, 1), ("handshake", 2, 2)):
            server.set(era=era)
            async with host_for(server.url, state_dir=tmp_path) as host:
                assert (await host.wait_ready()).all_ready
                assert host.status()["s"].era == era
                assert (await host.call(("s", "echo"), {"text": "x"})).text == "x"
            assert (server.count("server/discover"), server.count("initialize")) == (discovers, initializes)


async def test_f9_6_remembered_as_http_and_sse_and_streamable_now(tmp_path: Path) -> None:
    """F9.6: the transport is remembered with the era, and found out anew where it does not fit."""
    async with HttpFaults(era="sse", path="/sse") as server:
        for era, gets in (("sse", 1), ("sse", 2), ("handshake", 4), ("handshake", 5)):
            server.set(era=era, on={})
            async with host_for(server.url, state_dir=tmp_path) as host:
                assert (await host.wait_ready()).all_ready, era
                assert host.status()["s"].era == "handshake"
                assert (await host.call(("s", "echo"), {"text": "x"})).text == "x"
            assert server.count("GET") <= gets
        assert server.count("server/discover") == 2


# F9.7: a modern server that idles


@on_running_clock
async def test_f9_7_an_idle_hour_of_a_modern_server() -> None:
    """F9.7: no ping, GET stream, session id, DELETE or logging/setLevel, ever."""
    async with hosted(era="modern", bounds={"idle": 86400.0}) as (host, server):
        await server.seen("subscriptions/listen")
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        before = len(server.requests)
        await pass_time(3600, step=30)
        assert len(server.requests) == before
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
    assert no_trace_of_the_handshake(server)


# F9.8: the listen stream ends


@on_running_clock
async def test_f9_8_a_listen_stream_that_ends_at_once_is_reopened_with_growing_waits() -> None:
    """F9.8: the waits grow from 0.5 s to 15 s on rapid ends."""
    async with hosted(era="modern") as (_, server):
        loop: Any = asyncio.get_running_loop()
        waits = []
        for turn in range(1, 9):
            await server.until(lambda s: s.listens)
            await turns()
            ended = loop.time()
            server.end_listens(graceful=turn % 2 == 0)
            await server.until(lambda s: not s.listens)
            while server.count("subscriptions/listen") == turn:
                advance(0.1)
                # The request comes over a real socket.
                await asyncio.sleep(0.002)
                assert loop.time() - ended < 30
            waits.append(loop.time() - ended)
        assert 0.2 <= waits[0] <= 1.5
        assert waits[2] > waits[0]
        assert 7 <= waits[-1] <= 20


@on_running_clock
async def test_f9_8_a_stream_that_lived_is_reopened_soon_and_its_changes_are_looked_at() -> None:
    """F9.8: each 60 s the server ends it; a change in between is not missed."""
    async with hosted(era="modern") as (host, server):
        loop: Any = asyncio.get_running_loop()
        for turn in range(1, 6):
            await server.until(lambda s: s.listens)
            await turns()
            await pass_time(60, step=10)
            server.script["tools"] = [{"name": f"new{turn}", "inputSchema": {"type": "object"}}]
            ended = loop.time()
            server.end_listens()
            while server.count("subscriptions/listen") == turn:
                advance(0.1)
                await asyncio.sleep(0.002)
            assert loop.time() - ended <= 3.0
            await server.until(lambda s: s.listens)
            await server.seen("tools/list", turn + 1)
            names = [tool.name for tool in await host.tools()]
            assert f"s__new{turn}" in names


# F9.9, F9.10: headers that repeat arguments; MRTR


async def test_f9_9_a_missing_parameter_header_leads_to_a_new_list_and_one_repeat() -> None:
    """F9.9: -32020: lists again and retries once with right headers; executed once."""
    async with hosted(**mute("modern")) as (host, server):
        assert (await host.call("s__mirror", {"region": "eu"})).text == '{"mcp-param-region": "eu"}'
        # The schema is another one from now on, and nobody told.
        fresh = {"type": "object", "properties": {"text": {"type": "string", "x-mcp-header": "Text"}}}
        server.set(tools=[{"name": "echo", "inputSchema": fresh}], strict=False)
        server.script["on"]["tools/list"] = "ok"
        original = server.tools
        server.tools = lambda: [t for t in original() if t["name"] != "echo" or t["inputSchema"] is fresh]  # type: ignore[method-assign]
        server.script["strict"] = True
        lists = server.count("tools/list")
        server.violations.clear()
        assert (await host.call("s__echo", {"text": "été\n"})).text == "été\n"
        assert server.count("tools/list") == lists + 1
        assert server.count("tools/call", tool="echo") == 2
        assert server.effects["tool:echo"] == 1
        assert len(server.violations) == 1
        server.violations.clear()
        server.set(on={"tools/call": "mismatch"})
        with pytest.raises(Refused) as caught:
            await host.call("s__echo", {"text": "x"})
        assert caught.value.rpc_code == -32020
        assert server.count("tools/call", tool="echo") == 4


async def test_f9_10_three_rounds_of_questions() -> None:
    """F9.10: state echoed byte for byte, a new id each time, the same headers on each leg; cancelled nowhere."""
    asked: list[str] = []

    async def elicit(server: str, question: Any) -> ElicitResult:
        asked.append(question.message)
        return ElicitResult(action="accept", content={"ok": True})

    state = 'ß{"a": 1}\\"é\u2028/='
    async with hosted(era="modern", handlers=Handlers(elicit=elicit)) as (host, server):
        result = await host.call("s__question", {"rounds": 3, "state": state})
        assert "accept" in result.text
        legs = server.of("tools/call")
        assert len({seen.id for seen in legs}) == 4
        states = [seen.params.get("requestState") for seen in legs]
        assert states == [None, state, f"{state}+{state}", f"{state}+{state}+{state}"]
        assert all(seen.headers["mcp-name"] == "question" for seen in legs)
        assert len(asked) == 3
        assert server.cancelled == []


async def test_f9_10_a_leg_that_breaks_is_ambiguous_and_rounds_are_bounded() -> None:
    """F9.10: bounded in rounds."""

    async def elicit(server: str, question: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    handlers = Handlers(elicit=elicit)
    async with hosted(era="modern", handlers=handlers, bounds={"max_rounds": 4}) as (host, server):
        with pytest.raises((Refused, AmbiguousDelivery)) as caught:
            await host.call("s__question", {"rounds": 50})
        assert "round" in str(caught.value)
        assert server.count("tools/call") <= 6
        server.set(on={"tools/call": ["ok", "die_after", "ok"]})
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__question", {"rounds": 2})


@pytest.mark.parametrize("word", ["unauthorized", "forbidden", "status:400", "away"])
async def test_f9_10_a_leg_that_is_turned_away_does_not_unsend_the_one_before(word: str) -> None:
    """F6.1: its first leg went out, so that nobody knows what it did; it is not begun anew by itself."""
    away = False

    async def elicit(server: str, question: Any) -> ElicitResult:
        if away:
            await faults.stop_listening()
            faults.drop_connections()
        return ElicitResult(action="accept", content={"ok": True})

    async with hosted(era="modern", handlers=Handlers(elicit=elicit)) as (host, faults):
        faults.set(on={"tools/call": ["ok", "ok" if word == "away" else word, "ok"]})
        away = word == "away"
        with pytest.raises(AmbiguousDelivery, match="an earlier round of it was sent") as caught:
            await host.call("s__question", {"rounds": 1})
        assert caught.value.sent
        assert faults.count("tools/call") == (1 if away else 2)


# F9.11: what cannot be understood


async def test_f9_11_an_unknown_kind_of_result_fails_its_call_and_none_is_complete() -> None:
    """F9.11: unknown ``resultType`` → that call is invalid; absent → complete."""
    async with hosted(era="modern") as (host, server):
        next_id = server.requests[-1].id + 1
        for kind, good in (('"resultType":"surprise",', False), ("", True)):
            await asyncio.sleep(0)
            next_id = max(seen.id for seen in server.requests if seen.id is not None) + 1
            body = f'{{"jsonrpc":"2.0","id":{next_id},"result":{{{kind}"content":[{{"type":"text","text":"t"}}]}}}}'
            server.set(on={"tools/call": f"json_text:{body}"})
            if good:
                assert (await host.call("s__echo")).text == "t"
            else:
                with pytest.raises(AmbiguousDelivery, match="surprise"):
                    await host.call("s__echo")
        server.set(on={"tools/call": "ok"})
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


BAD_MARKS: dict[str, Any] = {
    "empty": "", "blank": "a b", "colon": "a:b", "umlaut": "ä", "break": "a\nb", "number": 7, "list": ["A"],
}  # fmt: skip


async def test_f9_11_a_tool_with_a_bad_header_mark_is_left_out_and_the_rest_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F9.11: left out with name and reason, over HTTP in the modern era."""
    string = {"type": "string"}
    properties: dict[str, Any] = {
        name: {"p": {**string, "x-mcp-header": mark}} for name, mark in BAD_MARKS.items()
    }
    properties["twice"] = {"p": {**string, "x-mcp-header": "Same"}, "q": {**string, "x-mcp-header": "same"}}
    properties["kind"] = {"p": {"type": "object", "x-mcp-header": "Object"}}
    bad = [
        {"name": f"bad_{name}", "inputSchema": {"type": "object", "properties": given}}
        for name, given in properties.items()
    ]
    async with hosted(era="modern", tools=bad) as (host, _):
        names = [tool.name for tool in await host.tools()]
        assert "s__mirror" in names
        assert not [name for name in names if "bad" in name]
        for tool in bad:
            assert str(tool["name"]) in caplog.text
    async with hosted(era="handshake", tools=bad) as (host, _):
        assert len([tool for tool in await host.tools() if "bad" in tool.name]) == len(bad)


async def test_f9_11_an_argument_that_no_header_can_hold_is_told_before_anything_is_sent() -> None:
    """F9.11: or it is encoded; never a broken request."""
    async with hosted(era="modern") as (host, server):
        for value in ("plain", "", " edge ", "a\r\nX: y", "日本", "=?base64?eA==?=", "\x00", "x" * 4000):
            told = json.loads((await host.call("s__mirror", {"region": value})).text)
            assert list(told) == ["mcp-param-region"]
        assert json.loads((await host.call("s__mirror", {"level": None})).text) == {}
        assert not server.violations


async def test_f9_a_configured_era_is_never_left() -> None:
    """F9: ``protocol`` says which; the other one is not tried."""
    async with HttpFaults(era="handshake") as server:
        async with host_for(server.url, protocol=MODERN) as host:
            assert (await host.wait_ready()).failed
            with pytest.raises(NotSent):
                await host.call(("s", "echo"))
        assert server.count("initialize") == 0
    async with HttpFaults(era="dual") as server:
        async with host_for(server.url, protocol="handshake") as host:
            assert (await host.wait_ready()).all_ready
        assert server.count("server/discover") == 0


async def test_f9_4_a_modern_refusal_of_any_length_is_no_reason_for_the_old_transport() -> None:
    """F9.4: it is told by its code, of which an excerpt of the body may show nothing."""
    async with HttpFaults() as server:
        route = server.answer

        async def answer(exchange: Any) -> None:
            if exchange.seen.rpc != "initialize":
                await route(exchange)
                return
            exchange.error(-32022, "x" * 400, 400, data={"supported": ["2026-07-28"]})

        server.answer = answer  # type: ignore[method-assign]
        async with host_for(server.url, protocol="handshake") as host:
            assert (await host.wait_ready()).failed
        assert server.count("GET") == 0
