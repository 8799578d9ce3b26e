"""Field faults, class 6: what is known of a call that got no answer, and what is sent again. Over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorings import AmbiguousDelivery, CallTimeout, NotSent, Refused
from tests.faults.http_server import HttpFaults, Stream
from tests.http.kit import ALL, ERAS, SLACK, host_for, hosted, unconnected, within

BREAKS = ["die_after", "die_in_body", "cut_in_body"]
"""Carried out; what comes back breaks off."""


def tells_of_effect(error: AmbiguousDelivery) -> bool:
    """A model that reads it learns that the effect may have happened."""
    return "took effect" in str(error) and error.sent


# F6.1, F6.2: sent, without a complete answer


@ERAS
@pytest.mark.parametrize("word", BREAKS)
async def test_f6_1_a_write_that_was_done_and_not_answered_is_ambiguous_and_done_once(
    era: str, word: str
) -> None:
    """F6.1: write count 1; the next call works; a call beside it is not touched."""
    async with hosted(era=era) as (host, server):
        beside = asyncio.ensure_future(host.call("s__hold"))
        await server.until(lambda s: s.effects["tool:hold"])
        server.set(on={"tools/call": [word, "ok"]})
        with within(SLACK), pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect")
        assert tells_of_effect(caught.value)
        assert server.effects["effect"] == 1
        assert (await host.call("s__effect")).text == "2"
        server.release("hold")
        assert (await beside).text == "released"
        assert host.status()["s"].generation == 1
        assert server.count("initialize") == (1 if era == "handshake" else 0)


async def test_f6_1_over_legacy_sse_a_stream_that_ends_makes_what_waits_ambiguous() -> None:
    """F6.1: the stream is the connection; the next call gets another."""
    async with hosted(era="sse", bounds={"cooldown": 0.0}) as (host, server):
        waiting = asyncio.ensure_future(host.call("s__hold"))
        await server.seen("tools/call")
        await server.until(lambda s: s.effects["tool:hold"])
        server.end_sse_streams()
        with within(SLACK), pytest.raises(AmbiguousDelivery) as caught:
            await waiting
        assert tells_of_effect(caught.value)
        assert server.effects["tool:hold"] == 1
        assert (await host.call("s__effect")).text == "1"


@ERAS
@pytest.mark.parametrize("word", BREAKS)
async def test_f6_2_a_reading_call_is_repeated_once_under_a_new_id(era: str, word: str) -> None:
    """F6.2: listed read-only → repeated once, answered."""
    async with hosted(era=era, on={"tools/call": [word, "ok"]}) as (host, server):
        assert (await host.call("s__read", {"name": "r"})).text == "2"
        first, second = server.of("tools/call")
        assert first.id != second.id
        assert server.effects["r"] == 2


@ERAS
@pytest.mark.parametrize("word", BREAKS)
async def test_f6_2_with_the_callers_leave_two_executions_at_most(era: str, word: str) -> None:
    """F6.2: opt-in, and a server that breaks each time → two executions, then ambiguous."""
    async with hosted(era=era, on={"tools/call": word}) as (host, server):
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect", repeat=True)
        assert tells_of_effect(caught.value)
        assert server.effects["effect"] == 2


async def test_f6_2_a_second_attempt_that_could_not_leave_takes_nothing_back() -> None:
    """F6.2: the first may have had its effect, whatever became of the second."""
    async with hosted(on={"tools/call": "hold"}, bounds={"dial": 1.0}) as (host, server):
        calling = asyncio.ensure_future(host.call("s__effect", repeat=True))
        await server.seen("tools/call")
        await server.stop_listening()
        server.drop_connections()
        with pytest.raises(AmbiguousDelivery):
            await calling
        await server.listen()


@ERAS
@pytest.mark.parametrize("word", ["unauthorized", "forbidden", "later:429:60", "redirect:302:{origin}/x"])
async def test_f6_2_a_second_attempt_that_was_turned_away_takes_nothing_back(era: str, word: str) -> None:
    """F6.2: the first was carried out; that the second was not does not make it undone."""
    async with hosted(era=era, on={"tools/call": ["die_after", word, "ok"]}) as (host, server):
        with pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect", repeat=True, timeout=10)
        assert tells_of_effect(caught.value)
        assert server.effects["effect"] == 1


@ERAS
@pytest.mark.parametrize("word", ["die", "die_in_body", "html:502"])
async def test_f6_2_a_listing_whose_exchange_breaks_is_asked_for_once_more(era: str, word: str) -> None:
    """F6.2: lists only read: what breaks once is not seen, what breaks twice is."""
    async with hosted(era=era, on={"resources/list": [word, "ok"], "prompts/list": word}) as (host, server):
        assert await host.resources()
        assert server.count("resources/list") == 2
        assert await host.prompts() == []
        assert server.count("prompts/list") == 2
        assert "problem" in host.status()["s"].lists["prompts"]


# F6.3: not sent


@ALL
async def test_f6_3_a_refused_connection_is_not_sent_and_goes_out_once_the_server_is_there(era: str) -> None:
    """F6.3: repeated inside the call limit; one execution."""
    async with hosted(era=era, bounds={"cooldown": 0.0}) as (host, server):
        await server.stop_listening()
        server.drop_connections()
        await server.until(lambda s: not s.live)
        await unconnected(host)
        calling = asyncio.ensure_future(host.call("s__effect", timeout=10))
        await asyncio.sleep(0.05)
        await server.listen()
        if era == "sse":
            # Its connection is gone, and with it one start that failed: that is told, and the next call starts anew.
            try:
                assert (await calling).text == "1"
            except NotSent:
                assert (await host.call("s__effect", timeout=10)).text == "1"
        else:
            assert (await calling).text == "1"
        assert server.effects["effect"] == 1


@ERAS
async def test_f6_3_a_server_that_stays_away_is_told_of_soon(era: str) -> None:
    """F6.3: not sent, the cause named; the session stays for the next call."""
    async with hosted(era=era) as (host, server):
        await server.stop_listening()
        server.drop_connections()
        await server.until(lambda s: not s.live)
        await unconnected(host)
        with within(4.0), pytest.raises(NotSent, match="refused"):
            await host.call("s__effect", timeout=30)
        await server.listen()
        assert (await host.call("s__effect", timeout=30)).text == "1"
        assert server.effects["effect"] == 1


# F6.4: turned away before it ran


@ERAS
async def test_f6_4_a_call_that_was_turned_away_runs_once_with_other_headers(era: str) -> None:
    """F6.4: 401 on ``tools/call``, headers asked anew, repeated: one execution."""
    keys = iter(["one", "two", "three"])

    def headers() -> dict[str, str]:
        return {"X-Key": next(keys)}

    script = {"era": era, "on": {"tools/call": ["unauthorized", "ok"]}}
    async with hosted(spec={"headers": headers}, **script) as (host, server):
        assert (await host.call("s__effect")).text == "1"
        assert [seen.headers["x-key"] for seen in server.of("tools/call")] == ["one", "two"]
        assert server.effects["effect"] == 1


@ERAS
@pytest.mark.parametrize("word", ["unauthorized", "forbidden"])
async def test_f6_4_a_call_that_stays_turned_away_is_refused_and_not_sent(era: str, word: str) -> None:
    """F6.4: with no other headers to be had."""
    async with hosted(era=era, on={"tools/call": word}) as (host, server):
        with pytest.raises(Refused) as caught:
            await host.call("s__effect")
        assert caught.value.sent is False
        assert caught.value.http is not None
        assert caught.value.http.status == (401 if word == "unauthorized" else 403)
        assert "Bearer" in caught.value.http.challenges[0]
        assert server.count("tools/call") == 1
        server.set(on={"tools/call": "ok"})
        assert (await host.call("s__effect")).text == "1"


# F6.5: something in between answers, or the answer cannot be read

ODD: dict[str, Any] = {
    "html:502": 502, "html:504": 504, "status:502": 502, "status:503": 503, "status:500:boom": 500, "html": 200,
    "accepted": 202, "empty": 200, "json_text:null": 200, "json_text:{}": 200, "json_text:[]": 200,
    "json_text:{\"jsonrpc\"": 200, "json_text:17": 200, "text": 200, "type:image/png": 200, "status:204": 204,
    "status:206:half": 206,
}  # fmt: skip


@ERAS
@pytest.mark.parametrize("word", ODD)
async def test_f6_5_an_answer_that_says_nothing_is_ambiguous_and_not_repeated(era: str, word: str) -> None:
    """F6.5: typed at once, with status, URL and the first characters; the next call works."""
    async with hosted(era=era, on={"tools/call": [word, "ok"]}) as (host, server):
        with within(SLACK), pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect")
        detail = caught.value.http
        assert detail is not None
        assert (detail.status, detail.url) == (ODD[word], server.url)
        assert len(detail.excerpt) <= 301
        if word.startswith("html"):
            assert "Sign in" in detail.excerpt
        assert server.count("tools/call") == 1
        done = server.effects["effect"]
        assert done == word.startswith("type")
        assert (await host.call("s__effect")).text == str(done + 1)


@ERAS
@pytest.mark.parametrize(
    "text", ['{"jsonrpc":"2.0","id":999,"result":{}}', '{"jsonrpc":"2.0","method":"notifications/x"}']
)
async def test_f6_5_an_end_without_the_matching_id_is_ambiguous(era: str, text: str) -> None:
    """F6.5: a message is there, and it is not the answer."""
    async with hosted(era=era, on={"tools/call": [f"json_text:{text}", "ok"]}) as (host, server):
        with within(SLACK), pytest.raises(AmbiguousDelivery):
            await host.call("s__effect")
        assert server.count("tools/call") == 1
        assert (await host.call("s__effect")).text == "1"


@ERAS
async def test_f6_5_a_bad_gateway_lets_a_reading_call_go_once_more(era: str) -> None:
    """F6.5 and F6.2: the proxy may have passed it on; reading twice does no harm."""
    async with hosted(era=era, on={"tools/call": ["html:502", "ok"]}) as (host, server):
        assert (await host.call("s__read")).text == "1"
        assert server.count("tools/call") == 2


# F6.6, F6.7: an answer's stream breaks


async def test_f6_6_a_stream_that_breaks_after_an_event_id_is_resumed() -> None:
    """F6.6: resumed with Last-Event-ID, answered from there, one execution."""
    script = {"resumable": True, "priming": True, "retry": 20, "on": {"tools/call": "end_stream"}}
    async with hosted(**script) as (host, server):
        assert (await host.call("s__effect")).text == "1"
        resumed = [seen for seen in server.of("GET") if "last-event-id" in seen.headers]
        assert len(resumed) == 1
        assert resumed[0].headers["last-event-id"].startswith("post")
        assert server.effects["effect"] == 1
        assert server.count("tools/call") == 1


async def test_f6_6_events_that_come_twice_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """F6.6: progress that a resumed stream brings again is told once."""
    told: list[float] = []
    attach = Stream.attach

    def from_the_start(stream: Stream, exchange: Any, after: int | None = None) -> None:
        # What was sent comes once more: the server takes the id for one further back.
        attach(stream, exchange, None if after is None else 0)

    monkeypatch.setattr(Stream, "attach", from_the_start)
    script = {"resumable": True, "priming": True, "retry": 20, "answers": {"tools/call": "sse"}}
    async with hosted(**script) as (host, server):

        def on_progress(progress: float, total: float | None, message: str | None) -> None:
            told.append(progress)
            if progress == 2:
                server.drop_connections()

        call = host.call("s__progress", {"count": 4, "seconds": 0.05}, on_progress=on_progress)
        assert (await call).text == "done"
        assert told == [1, 2, 3, 4]
        assert any("last-event-id" in seen.headers for seen in server.of("GET"))


async def test_f6_6_a_stream_that_cannot_be_resumed_is_ambiguous_at_once() -> None:
    """F6.6: no id was given, or the server does not take it back."""
    script = {"answers": "sse", "on": {"tools/call": "end_stream"}}
    async with hosted(**script) as (host, server):
        with within(SLACK), pytest.raises(AmbiguousDelivery):
            await host.call("s__effect")
        server.set(priming=True, retry=10, get="status:405", on={"GET": "status:405"})
        with within(SLACK), pytest.raises(AmbiguousDelivery) as caught:
            await host.call("s__effect")
        assert caught.value.http is not None
        assert server.effects["effect"] == 2


@pytest.mark.parametrize("word", ["end_stream", "die_after"])
async def test_f6_7_a_modern_stream_that_breaks_repeats_what_reads_alone(word: str) -> None:
    """F6.7: a read-only call goes out again under a new id; a writing one is ambiguous."""
    script = {"era": "modern", "answers": "sse", "on": {"tools/call": [word, "ok"]}}
    async with hosted(**script) as (host, server):
        assert (await host.call("s__read", {"name": "r"})).text in ("1", "2")
        first, second = server.of("tools/call")
        assert first.id != second.id
        server.set(on={"tools/call": word})
        with within(SLACK), pytest.raises(AmbiguousDelivery):
            await host.call("s__effect")
        assert server.count("tools/call", tool="effect") == 1
        assert not [seen for seen in server.requests if "last-event-id" in seen.headers]


# F6.8: no repeat of what timed out


@ALL
async def test_f6_8_a_call_that_timed_out_is_never_sent_again(era: str) -> None:
    """F6.8: also where the server is started anew afterwards."""
    async with hosted(era=era, bounds={"cooldown": 0.0}) as (host, server):
        with pytest.raises(CallTimeout):
            await host.call("s__hold", timeout=0.2, repeat=True)
        await host.restart("s")
        assert (await host.call("s__effect")).text == "1"
        assert server.count("tools/call", tool="hold") == 1


async def test_f6_8_a_renewed_session_leaves_a_call_on_the_old_one_alone() -> None:
    """F6.8: it finishes there, once."""
    async with hosted(answers={"tools/call": "sse"}) as (host, server):
        old = asyncio.ensure_future(host.call("s__hold"))
        await server.until(lambda s: s.effects["tool:hold"])
        server.forget()
        assert (await host.call("s__effect")).text == "1"
        assert server.count("initialize") == 2
        server.release("hold")
        assert (await old).text == "released"
        assert server.effects["tool:hold"] == 1


async def test_f6_a_server_of_another_name_is_not_there() -> None:
    """F6.3: an unknown host, before any byte."""
    async with host_for("http://nowhere.invalid/mcp") as host:
        await host.wait_ready()
        with pytest.raises(NotSent) as caught:
            await host.call(("s", "effect"))
        assert caught.value.sent is False


async def test_f6_3_an_unready_server_and_its_first_call() -> None:
    """F6.3: a server that is not there yet when the host starts."""
    server = HttpFaults()
    await server.listen()
    await server.stop_listening()
    async with host_for(server.url, bounds={"cooldown": 0.0}) as host:
        seen = await host.wait_ready()
        assert seen.failed
        async with server:
            assert (await host.call(("s", "effect"))).text == "1"
