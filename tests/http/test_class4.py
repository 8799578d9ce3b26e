"""Field faults, class 4: limits, cancels and late answers over HTTP, in both eras and over HTTP+SSE.

Half-open connections (F4.11) and comments (F4.5) stand in ``test_cuts.py``.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallCancelled,
    CallTimeout,
    ElicitResult,
    Handlers,
    Host,
    HttpServer,
    MisuseError,
    NotSent,
    Refused,
)
from tests.faults.http_server import HttpFaults
from tests.http.kit import ALL, ERAS, SLACK, host_for, hosted, mute, session_of, sizes_of, told_of, within

ANSWERS = pytest.mark.parametrize("answers", ["json", "sse"])


# F4.1: the limit, and the server is told


@ALL
@ANSWERS
async def test_f4_1_a_tool_that_never_answers_ends_at_the_limit_and_its_server_is_told(
    era: str, answers: str
) -> None:
    """F4.1: names server, tool, elapsed and allowed; told by notice or by the closed stream; another is answered."""
    async with hosted(era=era, answers=answers) as (host, server):
        with within(0.5 + SLACK, 0.5):
            hung = asyncio.ensure_future(host.call("s__hold", timeout=0.5))
            assert (await host.call("s__echo", {"text": "beside it"})).text == "beside it"
            with pytest.raises(CallTimeout) as caught:
                await hung
        error = caught.value
        assert (error.server, error.tool, error.allowed, error.sent) == ("s", "hold", 0.5, True)
        assert 0.5 <= error.elapsed < 0.5 + SLACK
        asked = server.of("tools/call", tool="hold")[0]
        await server.until(lambda s: s.cancelled == [asked.id])
        told = server.count("notifications/cancelled")
        assert told == (0 if era == "modern" else 1)
        assert sizes_of(host)["pending"] == 0


@ALL
async def test_f4_1_the_documented_default_holds_where_no_limit_is_given(era: str) -> None:
    """F4.1: ``Bounds.call``."""
    async with hosted(era=era, bounds={"call": 0.3}) as (host, _):
        with within(0.3 + SLACK, 0.3), pytest.raises(CallTimeout) as caught:
            await host.call("s__hold")
        assert caught.value.allowed == 0.3


@ALL
async def test_f4_1_a_callers_cancel_reaches_the_server(era: str) -> None:
    """F4.1: a native cancel, as a limit."""
    async with hosted(era=era) as (host, server):
        calling = asyncio.ensure_future(host.call("s__hold"))
        await server.until(lambda s: s.effects["tool:hold"])
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await server.until(lambda s: s.cancelled == [s.of("tools/call")[0].id])
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


@ALL
async def test_f4_1_the_end_of_a_run_cancels_its_calls(era: str) -> None:
    """F4.1: and the server is told of each."""
    async with hosted(era=era) as (host, server):
        with pytest.raises(TimeoutError):
            async with host.run(timeout=0.3):
                await asyncio.gather(host.call("s__hold"), host.call("s__hold"))
        await server.until(lambda s: len(s.cancelled) == 2)


# F4.2, F4.3


@ERAS
@pytest.mark.parametrize("limit", [30])
async def test_f4_2_a_stream_that_ends_before_its_answer_is_ambiguous_at_once(era: str, limit: float) -> None:
    """F4.2: not at its limit."""
    script = {"era": era, "on": {"tools/call": ["end_stream", "text", "ok"]}}
    async with hosted(**script) as (host, server):
        for _ in (1, 2):
            with within(SLACK), pytest.raises(AmbiguousDelivery):
                await host.call("s__effect", timeout=limit)
        assert server.count("tools/call") == 2
        assert not (await host.call("s__effect")).is_error


@ERAS
@pytest.mark.parametrize("status", [500, 400, 413, 418, 404, 422])
async def test_f4_3_a_status_fails_its_call_and_nothing_else(era: str, status: int) -> None:
    """F4.3: with the status and the first bytes of the body; 500 is ambiguous, what refuses is not."""
    body = "no such thing today " * 30
    script = {"era": era, "session": False, "on": {"tools/call": [f"status:{status}:{body}", "ok"]}}
    async with hosted(**script) as (host, server):
        beside = asyncio.ensure_future(host.call("s__echo", {"text": "beside"}))
        with within(SLACK), pytest.raises((Refused, AmbiguousDelivery)) as caught:
            await beside
        error = caught.value
        assert isinstance(error, AmbiguousDelivery if status == 500 else Refused)
        assert error.http is not None
        assert (error.http.status, error.http.url) == (status, server.url)
        assert error.http.excerpt.startswith("no such thing today")
        assert len(error.http.excerpt) <= 301
        assert str(status) in str(error)
        assert "no such thing" in str(error)
        assert (await host.call("s__effect")).text == "1"
        assert host.status()["s"].generation == 1


async def test_f4_3_over_legacy_sse() -> None:
    """F4.3: the POST is refused; the stream lives on."""
    async with hosted(era="sse") as (host, server):
        server.set(on={"/messages": ["status:500:boom", "status:400:bad", "status:413", "ok"]})
        for status in (500, 400, 413):
            with within(SLACK), pytest.raises((Refused, AmbiguousDelivery)) as caught:
                await host.call("s__effect")
            assert caught.value.http is not None
            assert caught.value.http.status == status
        assert (await host.call("s__effect")).text == "1"
        assert host.status()["s"].generation == 1


ECHOES = [
    "status:400:bad key {} in request", "status:500:{}", "status:401:{}", "json_text:{}", "json_text:null{}",
    "json_text:{{\"key\": \"{}\"}}", "redirect:302:http://elsewhere.invalid/?k={}", "error:-32000:400",
]  # fmt: skip


@pytest.mark.parametrize("where", ["url", "header", "function", "bearer"])
@pytest.mark.parametrize("word", ECHOES)
async def test_f4_3_what_url_and_headers_hide_is_not_told(where: str, word: str) -> None:
    """F4.3: no secret in the error, also where the server repeats it."""
    secret = "sk-abcdef0123456789"
    headers: Any = {}
    if where != "url":
        headers = {"Authorization": f"Bearer {secret}"} if where == "bearer" else {"X-Key": secret}
    script = {"session": False, "on": {"tools/call": word.format(secret)}}
    async with HttpFaults(**script) as server:
        url = f"{server.url}?key={secret}" if where == "url" else server.url
        async with host_for(url, headers=(lambda: headers) if where == "function" else headers) as host:
            await host.wait_ready()
            with pytest.raises((Refused, AmbiguousDelivery)) as caught:
                await host.call("s__effect")
            told = f"{caught.value} {caught.value!r} {caught.value.http} {host.status()}"
            assert secret not in told


# F4.4: what is never answered at the start


# An answer to a POST of HTTP+SSE says nothing, so it cannot stall.
@pytest.mark.parametrize(
    ("era", "word"),
    [
        ("sse", "silent"),
        *((e, w) for e in ("handshake", "modern") for w in ("silent", "stall", "comments:0.05")),
    ],
)
async def test_f4_4_an_initialize_that_is_never_answered_fails_inside_the_start_limit(
    era: str, word: str
) -> None:
    """F4.4: first connect and reconnect; close right after works."""
    first = "server/discover" if era == "modern" else "initialize"
    path = "/messages" if era == "sse" else first
    async with HttpFaults(era=era, on={path: word}) as server:
        host = host_for(server.url, bounds={"connect": 0.6, "probe": 0.2, "cooldown": 0.0})
        await host.start()
        with within(0.6 + SLACK):
            assert (await host.wait_ready()).failed
        with within(0.6 + SLACK), pytest.raises(NotSent) as caught:
            await host.call(("s", "echo"), timeout=10)
        assert str(caught.value)
        with within(SLACK):
            await host.close()
        if era != "modern":
            server.set(on={path: "ok"})


@ALL
async def test_f4_4_lists_that_never_come_leave_the_server_connected(era: str) -> None:
    """F4.4: inside the same start limit; the calls work."""
    async with hosted(era=era, ready=False, bounds={"connect": 0.6, "probe": 0.3}) as (host, server):
        if era == "sse":
            server.script["on"]["tools/list"] = "hold"
        server.set(on={"tools/list": "hold"})
        with within(0.6 + SLACK):
            assert (await host.wait_ready()).all_ready
        assert (await host.call(("s", "echo"), {"text": "x"})).text == "x"


# F4.6, F4.7


@ALL
async def test_f4_6_calls_of_a_second_run_side_by_side(era: str) -> None:
    """F4.6: 8 calls of 0.5 s, limit 1.5 s each: about 0.5 s."""
    async with hosted(era=era) as (host, _):
        with within(0.5 + SLACK):
            calls = [host.call("s__sleep", {"seconds": 0.5}, timeout=1.5) for _ in range(8)]
            assert [answer.text for answer in await asyncio.gather(*calls)] == ["slept"] * 8


@ALL
async def test_f4_6_the_end_of_one_limit_does_not_disarm_another(era: str) -> None:
    """F4.6: limits of 0.2 s and 0.6 s."""
    async with hosted(era=era) as (host, _):
        began = time.monotonic()

        async def ends(limit: float) -> float:
            with pytest.raises(CallTimeout):
                await host.call("s__hold", timeout=limit)
            return time.monotonic() - began

        short, long = await asyncio.gather(ends(0.2), ends(0.6))
        assert 0.2 <= short < 0.6
        assert 0.6 <= long < 0.6 + SLACK


@ALL
async def test_f4_7_cancels_that_cross_their_answers(era: str) -> None:
    """F4.7: 300 interleavings; one outcome a call, the tables empty, the connection usable."""
    dice = random.Random(4)
    async with hosted(era=era) as (host, server):
        outcomes = {"answered": 0, "ended": 0}
        for turn in range(300):
            calling = asyncio.ensure_future(host.call("s__effect", {"name": f"e{turn}"}, timeout=5))
            for _ in range(dice.randrange(14)):
                await asyncio.sleep(0)
            calling.cancel()
            try:
                await calling
                outcomes["answered"] += 1
            except asyncio.CancelledError:
                outcomes["ended"] += 1
            assert server.effects[f"e{turn}"] <= 1
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert sum(outcomes.values()) == 300
        assert sizes_of(host)["pending"] == 0
        assert host.status()["s"].generation == 1
        assert server.count("initialize") == {"handshake": 1, "modern": 0, "sse": 2}[era]


async def test_f4_7_a_late_answer_is_counted_and_costs_nothing() -> None:
    """F4.7: over HTTP+SSE the stream brings it though nobody waits any more."""
    async with hosted(era="sse") as (host, server):
        server.set(on={"/messages": "ok"})
        with pytest.raises(CallTimeout):
            await host.call("s__hold", timeout=0.1)
        await server.until(lambda s: s.cancelled)
        stream = next(iter(server._sse.values()))
        stream.send({"jsonrpc": "2.0", "id": 4711, "result": {}})
        await host.call("s__echo", {"text": "x"})
        counters = session_of(host).counters
        assert counters.late_answers == 1
        assert counters.unknown_ids == 1


# F4.8: a person is asked


@pytest.mark.parametrize(("era", "answers", "via"), [
    ("handshake", "sse", "post"), ("handshake", "json", "get"), ("handshake", "sse", "get"), ("sse", "json", "post"),
])  # fmt: skip
async def test_f4_8_a_question_that_takes_longer_than_the_call_may(era: str, answers: str, via: str) -> None:
    """F4.8: 0.8 s for a person, call limit 0.4 s: the clock stands still, the answer goes through."""

    async def elicit(server: str, question: Any) -> ElicitResult:
        await asyncio.sleep(0.8)
        return ElicitResult(action="accept", content={"ok": True})

    async with hosted(era=era, answers=answers, handlers=Handlers(elicit=elicit)) as (host, server):
        if via == "get":
            await server.until(lambda s: s._listening is not None)
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        arguments = {"method": "elicitation/create", "params": form, "via": via}
        result = await host.call("s__ask", arguments, timeout=0.4)
        assert "accept" in result.text
        assert len(server.answers) == 1


async def test_f4_8_modern_questions_stop_the_clock_too() -> None:
    """F4.8: by ``input_required``."""

    async def elicit(server: str, question: Any) -> ElicitResult:
        await asyncio.sleep(0.6)
        return ElicitResult(action="accept", content={"ok": True})

    async with hosted(era="modern", handlers=Handlers(elicit=elicit)) as (host, _):
        assert "accept" in (await host.call("s__question", {"rounds": 2}, timeout=0.4)).text


@ALL
async def test_f4_8_a_person_who_does_not_answer_ends_at_the_limit_of_the_question(era: str) -> None:
    """F4.8: the question has its own limit."""

    async def elicit(server: str, question: Any) -> ElicitResult:
        await asyncio.sleep(60)
        raise AssertionError

    script = {"era": era, "answers": {"tools/call": "sse"}}
    bounds = {"question": 0.3}
    async with hosted(handlers=Handlers(elicit=elicit), bounds=bounds, **script) as (host, _):
        form = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
        with within(0.3 + SLACK):
            if era == "modern":
                result = await host.call("s__question", {"rounds": 1}, timeout=5)
            else:
                arguments = {"method": "elicitation/create", "params": form, "via": "post"}
                result = await host.call("s__ask", arguments, timeout=5)
        assert "cancel" in result.text


# F4.9: the blocking twin


@ALL
async def test_f4_9_fifty_timeouts_of_blocking_calls(era: str) -> None:
    """F4.9: nothing left, each cancel reached the server, later calls as fast as the first."""
    async with HttpFaults(**mute(era) if era != "sse" else {"era": "sse"}) as server:

        def work() -> None:
            spec = HttpServer(url=server.url, bounds=Bounds())
            with Host({"s": spec}, state_dir=False) as host:
                host.call("s__echo", {"text": "x"})
                for _ in range(50):
                    with pytest.raises(CallTimeout):
                        host.call("s__hold", timeout=0.02)
                began = time.monotonic()
                host.call("s__echo", {"text": "x"})
                # One that waited for what a call had left would wait for its limit, which is a minute.
                assert time.monotonic() - began < 5.0

        await asyncio.to_thread(work)
        held = [seen.id for seen in server.of("tools/call", tool="hold")]
        # One that was given up as it left may not have arrived; its cancel does, on another connection, and so perhaps
        # before the call that it is about has begun to run.
        await server.until(lambda s: set(held) <= {*s.cancelled, *told_of(s)}, 30.0)
        await asyncio.get_running_loop().shutdown_default_executor()


# Close: P7 of the peers, F2.3


@pytest.mark.parametrize("word", ["silent", "stall", "comments:0.05", "slow:30"])
async def test_f2_3_a_delete_that_is_never_answered_does_not_hold_the_close(word: str) -> None:
    """F2.3, and P7 of the peers: closed within 2 s, and the report names the server and the DELETE."""
    async with HttpFaults(delete=word) as server:
        host = host_for(server.url)
        await host.start()
        assert (await host.wait_ready()).all_ready
        with within(2.0 + SLACK):
            report = await host.close()
        assert server.count("DELETE") == 1
        assert server.of("DELETE")[0].headers["mcp-session-id"]
        if word.startswith(("silent", "slow")):
            assert report.unanswered == {"s": ("DELETE",)}
            assert not report.clean


@pytest.mark.parametrize(
    "word", ["ok", "status:405", "status:500", "die", "html", "redirect:307:{origin}/other"]
)
async def test_f2_3_any_answer_to_the_delete_is_fine(word: str) -> None:
    """F2.3: none of them makes a close unclean; a connection that broke is no answer, and said to be none."""
    async with HttpFaults(delete=word) as server:
        host = host_for(server.url)
        await host.start()
        assert (await host.wait_ready()).all_ready
        with within(SLACK):
            report = await host.close()
        assert report.unanswered == ({"s": ("DELETE",)} if word == "die" else {})
        assert report.clean is (word != "die")
        assert server.count("DELETE") == 1


async def test_f2_3_a_close_with_calls_in_flight_tells_the_server_of_each() -> None:
    """F2.7 over HTTP: each has its outcome at once, and the cancel notices leave before the DELETE."""
    async with HttpFaults() as server:
        host = host_for(server.url)
        await host.start()
        await host.wait_ready()
        calls = [asyncio.ensure_future(host.call("s__hold")) for _ in range(5)]
        await server.until(lambda s: s.effects["tool:hold"] == 5)
        with within(2 * SLACK):
            await host.close()
        for call in calls:
            with pytest.raises((AmbiguousDelivery, CallCancelled, MisuseError)):
                await call
        order = [seen.rpc or seen.http for seen in server.requests]
        assert order.count("notifications/cancelled") == 5
        assert order[-1] == "DELETE"


async def test_f2_5_a_cancel_in_the_middle_of_everything_over_http() -> None:
    """F2.5 with a hung DELETE: a close that is cancelled again and again still ends, and nothing is left."""
    async with HttpFaults(delete="silent") as server:
        host: AsyncHost = host_for(server.url, bounds={"http_close": 0.3})
        await host.start()
        await host.wait_ready()
        for turns in range(12):
            closing = asyncio.ensure_future(host.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
        with within(0.3 + SLACK):
            report = await host.close()
        assert report.unanswered == {"s": ("DELETE",)}
