"""Field faults, class 5: the loss of an MCP session, streams that end, a server that is busy. Over HTTP."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trustme

from moorings import (
    CallTimeout,
    CatalogChanged,
    Host,
    HttpServer,
    MooringsError,
    NeedsLogin,
    NotSent,
    Refused,
)
from tests.faults.http_server import HttpFaults
from tests.http.kit import SLACK, host_for, hosted, session_of, within
from tests.net.kit import server_tls

LOST = pytest.mark.parametrize("lost", ["404", "400"])


async def eight(host: Any) -> list[str]:
    answers = await asyncio.gather(*[host.call("s__effect", {"name": f"n{i}"}) for i in range(8)])
    return [answer.text for answer in answers]


def each_once(server: HttpFaults) -> bool:
    return all(server.effects[f"n{i}"] == 1 for i in range(8))


# F5.1, F5.2: a session that the server does not know any more


@LOST
@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_f5_1_eight_calls_meet_a_forgotten_session_and_one_initialize_serves_them_all(
    lost: str, answers: str
) -> None:
    """F5.1, F5.2: 404, or 400 with -32000 and id null: one ``initialize`` without the id, each call runs once."""
    async with hosted(lost=lost, answers=answers) as (host, server):
        pid = host.status()["s"].generation
        server.forget()
        assert await eight(host) == ["1"] * 8
        assert each_once(server)
        assert server.count("initialize") == 2
        assert "mcp-session-id" not in server.of("initialize")[1].headers
        assert server.count("notifications/initialized") == 2
        assert host.status()["s"].generation == pid


async def test_f5_1_a_server_that_was_started_anew_is_taken_on() -> None:
    """F5.1: its connections are cut too, and for a moment nobody listens."""
    async with hosted() as (host, server):
        await server.stop_listening()
        server.drop_connections()
        server.forget()
        back = asyncio.get_running_loop().create_task(_listen_soon(server))
        assert await eight(host) == ["1"] * 8
        await back
        assert each_once(server)
        assert server.count("initialize") == 2


async def _listen_soon(server: HttpFaults) -> None:
    await asyncio.sleep(0.05)
    await server.listen()


async def test_f5_1_answers_for_the_old_session_that_come_late_cost_no_second_initialize() -> None:
    """F5.1: half of the 404s come after the new session is there."""
    async with hosted() as (host, server):
        server.forget()
        assert (await host.call("s__effect", {"name": "n0"})).text == "1"
        assert server.count("initialize") == 2
        server.set(on={"tools/call": "hold"})
        # These are on their way with the second session when it is forgotten in its turn.
        late = [asyncio.ensure_future(host.call("s__effect", {"name": f"n{i}"})) for i in range(1, 8)]
        await server.seen("tools/call", 2 + 7)
        server.forget()
        server.set(on={"tools/call": "ok"})
        assert (await host.call("s__effect", {"name": "other"})).text == "1"
        assert server.count("initialize") == 3
        server.release("tools/call")
        assert [answer.text for answer in await asyncio.gather(*late)] == ["1"] * 7
        assert each_once(server)
        assert server.count("initialize") == 3


async def test_f5_1_a_request_that_waits_for_its_headers_does_not_go_out_without_a_session() -> None:
    """F5.1: what was begun in the old session, and had not left, goes out once in the new one."""
    gate = asyncio.Event()
    gate.set()

    async def headers() -> dict[str, str]:
        await gate.wait()
        return {"X-Key": "k"}

    script = {"on": {"tools/call": ["hold", "ok"]}}
    async with hosted(spec={"headers": headers}, **script) as (host, server):
        first = asyncio.ensure_future(host.call("s__effect", {"name": "n0"}))
        await server.seen("tools/call")
        gate.clear()
        life = host._servers["s"].life
        assert life is not None
        source: Any = life._transport._settings.headers  # type: ignore[union-attr]
        source.forget(source.at_hand)
        waiting = [asyncio.ensure_future(host.call("s__effect", {"name": f"n{i}"})) for i in range(1, 8)]
        await asyncio.sleep(0)
        server.forget()
        server.release("tools/call")
        await server.until(lambda s: s.of("tools/call")[0].status == 404)
        gate.set()
        assert (await first).text == "1"
        assert [answer.text for answer in await asyncio.gather(*waiting)] == ["1"] * 7
        assert each_once(server)
        assert server.count("initialize") == 2


async def test_f5_2_a_400_that_answers_the_request_itself_is_a_refusal_and_the_session_stays() -> None:
    """F5.2: an error with the request's own id, whatever the status."""
    async with hosted(on={"tools/call": ["error:-32000:400", "error:-32602:404", "ok"]}) as (host, server):
        for code, status in ((-32000, 400), (-32602, 404)):
            with pytest.raises(Refused) as caught:
                await host.call("s__effect")
            assert caught.value.rpc_code == code
            assert caught.value.http is not None and caught.value.http.status == status
        assert (await host.call("s__effect")).text == "1"
        assert server.count("initialize") == 1


@LOST
async def test_f5_2_a_session_that_is_lost_each_time_is_remade_once_a_call(lost: str) -> None:
    """F5.2: one remake a call, then a typed error; the server stays listed."""
    word = "error_null:-32001:404" if lost == "404" else "error_null:-32000"
    async with hosted(on={"tools/call": word}) as (host, server):
        for call in (1, 2):
            with pytest.raises(NotSent) as caught:
                await host.call("s__effect", timeout=5)
            assert "session" in str(caught.value)
            assert caught.value.http is not None and caught.value.http.status == int(lost)
            await server.seen("initialize", 1 + 2 * call)
        assert server.count("tools/call") == 4
        server.set(on={"tools/call": "ok"})
        assert (await host.call("s__effect")).text == "1"
        assert await host.tools()


@pytest.mark.parametrize("status", [401, 403, 429])
async def test_f5_2_a_status_that_says_nothing_of_the_session_leaves_it(status: int) -> None:
    """F5.2: 401, 403 and 429 are no loss of a session."""
    async with hosted(on={"tools/call": [f"status:{status}:no", "ok"]}) as (host, server):
        with pytest.raises(Refused) as caught:
            await host.call("s__effect")
        assert caught.value.http is not None and caught.value.http.status == status
        assert caught.value.sent is False
        assert (await host.call("s__effect")).text == "1"
        assert server.count("initialize") == 1


async def test_f5_2_a_new_session_that_is_refused_ends_the_life_and_a_use_begins_another() -> None:
    """F5.2: the server is gone for longer: the calls are not sent, the next one starts it anew."""
    async with hosted(bounds={"cooldown": 0.0}) as (host, server):
        server.forget()
        server.set(on={"initialize": "status:500"})
        with pytest.raises(NotSent):
            await host.call("s__effect")
        server.set(on={"initialize": "ok"})
        assert (await host.call("s__effect")).text == "1"


async def test_f5_2_the_stream_of_a_forgotten_session_ends_with_it_and_is_opened_anew() -> None:
    """F5.2: the GET stream is of the new session; a change told on it is heard."""
    async with hosted() as (host, server):
        await server.seen("GET")
        server.forget()
        assert (await host.call("s__effect")).text == "1"
        listening = await server.seen("GET", 2)
        assert listening.headers["mcp-session-id"] == server.of("tools/call")[-1].headers["mcp-session-id"]


# F5.3: an idle connection that the server closed


@pytest.mark.parametrize("era", ["handshake", "modern", "sse"])
async def test_f5_3_an_idle_connection_that_was_closed_is_noticed_before_writing(era: str) -> None:
    """F5.3: one execution, answered, for a tool that may not be repeated."""
    async with hosted(era=era) as (host, server):
        server.set(on={"tools/call": "close_idle"} if era != "sse" else {"/messages": "close_idle"})
        for turn in range(1, 6):
            assert (await host.call("s__effect")).text == str(turn)
            # The end of the connection has reached us once nothing else is under way.
            await server.until(lambda s: all(c.transport and not c.transport.is_closing() for c in s.live))
            await asyncio.sleep(0.01)
        assert server.effects["effect"] == 5


# F5.7: the stream beside the calls


@pytest.mark.parametrize("get", ["status:405", "html", "status:404", "status:400"])
async def test_f5_7_a_refused_stream_is_not_asked_for_again(get: str) -> None:
    """F5.7: no further GET, no loss; calls are unaffected."""
    async with hosted(get=get) as (host, server):
        await server.seen("GET")
        for turn in (1, 2, 3):
            assert (await host.call("s__effect")).text == str(turn)
        assert server.count("GET") == server.count("initialize") == 1


async def test_f5_7_a_stream_that_is_refused_late_holds_no_call_for_long() -> None:
    """F5.7: 405 after 3 s."""
    async with hosted(get="hold") as (host, server):
        await server.seen("GET")
        with within(0.5 + SLACK):
            assert (await host.call("s__effect")).text == "1"
        server.set(get="status:405")
        server.drop_connections()
        with within(SLACK):
            assert (await host.call("s__effect")).text == "2"


async def test_f5_7_a_stream_that_ends_at_once_is_reopened_with_waits() -> None:
    """F5.7: at most 10 reopens in 3 s; the calls go on."""
    async with hosted(get="text") as (host, server):
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 3.0:
            assert not (await host.call("s__effect")).is_error
            await asyncio.sleep(0.1)
        assert 2 <= server.count("GET") <= 11


async def test_f5_7_a_wait_that_the_server_asks_for_is_kept() -> None:
    """F5.7: ``retry: 4000`` → not before 4 s."""
    async with hosted(retry=4000, resumable=True) as (_, server):
        first = await server.seen("GET")
        await server.until(lambda s: s._listening is not None)
        server.end_listens()
        again = await server.seen("GET", 2)
        assert 4.0 <= again.at - first.at < 4.0 + 2 * SLACK


async def test_f5_7_a_resumed_answer_does_not_knock_without_a_pause() -> None:
    """F5.7, for resumes too: ``retry: 0``, and each stream is ended at once after an event."""
    script = {"retry": 0, "priming": True, "on": {"tools/call": "end_stream"}}
    async with hosted(**script) as (host, server):
        server.set(on={"GET": "text"})
        before = server.count("GET")
        with pytest.raises(Exception):  # noqa: B017  # which outcome it is, is another test's matter
            await host.call("s__effect", timeout=1.5)
        assert server.count("GET") - before <= 10


# F5.9, F5.10: what is no loss, and what a failed start tells


async def test_f5_9_a_timeout_and_an_error_that_talks_of_sessions_are_no_loss() -> None:
    """F5.9: returned as they are; no reconnect, the tools stay listed."""
    async with hosted() as (host, server):
        with pytest.raises(TimeoutError):
            await host.call("s__hold", timeout=0.2)
        assert (await host.call("s__boom")).is_error
        result = await host.call("s__boom", {"text": "session expired, connection closed"})
        assert result.is_error
        assert "session expired" in result.text
        assert await host.tools()
        assert server.count("initialize") == 1
        assert host.status()["s"].generation == 1


async def test_f5_10_each_cause_of_a_failed_start_is_named() -> None:
    """F5.10: refused, no TLS, unknown host, 401: the error names it, and is never empty."""
    own = server_tls(trustme.CA().issue_cert("localhost"))
    async with HttpFaults(on={"POST": "unauthorized"}) as server, HttpFaults(ssl=own) as unknown:
        closed = HttpFaults()
        await closed.listen()
        await closed.stop_listening()
        for url, said in (
            (closed.url, "refused"),
            (unknown.url, "certificate"),
            ("http://nowhere.invalid/mcp", "nowhere.invalid"),
            (server.url, "401"),
        ):
            async with host_for(url) as host:
                seen = await host.wait_ready()
                text = str(seen.failed["s"])
                assert said.lower() in text.lower(), text
                assert "sub-exception" not in text
                with pytest.raises((NotSent, NeedsLogin)) as caught:
                    await host.call(("s", "effect"))
                assert said.lower() in str(caught.value).lower()


# F5.13: a server that is busy


@pytest.mark.parametrize("word", ["later", "later_date"])
@pytest.mark.parametrize("status", [429, 503])
async def test_f5_13_a_wait_that_fits_into_the_limit_is_waited_out_and_the_call_repeated_once(
    word: str, status: int
) -> None:
    """F5.13: Retry-After 2, in seconds or as a date, call limit 10 s; the wait is never shortened."""
    async with hosted(on={"tools/call": [f"{word}:{status}:2", "ok"]}) as (host, server):
        with within(2.0 + SLACK, 0.99 if word == "later_date" else 1.99):
            assert (await host.call("s__effect", timeout=10)).text == "1"
        assert server.count("tools/call") == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_f5_13_a_wait_that_does_not_fit_is_told_at_once(status: int) -> None:
    """F5.13: Retry-After 60 → a typed error at once, with the time."""
    async with hosted(on={"tools/call": f"later:{status}:60"}) as (host, server):
        with within(SLACK), pytest.raises(Refused) as caught:
            await host.call("s__effect", timeout=10)
        assert caught.value.http is not None
        assert (caught.value.http.status, caught.value.http.retry_after) == (status, 60)
        assert caught.value.sent is False
        assert "60 s" in str(caught.value)
        assert server.count("tools/call") == 1


async def test_f5_13_a_server_that_is_always_busy_is_not_asked_without_end() -> None:
    """F5.13: Retry-After 0 each time is no reason to knock a hundred times a second."""
    async with hosted(on={"tools/call": "later:429:0"}) as (host, server):
        with pytest.raises(Refused):
            await host.call("s__effect", timeout=20)
        assert server.count("tools/call") <= 5
        assert session_of(host).sizes()["pending"] == 0


# F5.11: what another session changed


@pytest.mark.parametrize("how", ["session", "restart"])
async def test_f5_11_another_session_with_other_tools_is_one_event_with_the_difference(how: str) -> None:
    """F5.11: one tool is new and one gone; nothing vanishes in silence."""
    events: list[CatalogChanged] = []
    heard = asyncio.Event()

    def on_event(event: Any) -> None:
        if isinstance(event, CatalogChanged):
            events.append(event)
            heard.set()

    def tool(name: str) -> dict[str, Any]:
        return {"name": name, "inputSchema": {"type": "object"}}

    async with HttpFaults(tools=[tool("stays"), tool("goes")]) as server:
        async with host_for(server.url, on_event=on_event) as host:
            await host.wait_ready()
            events.clear()
            heard.clear()
            server.set(tools=[tool("stays"), tool("comes")])
            if how == "session":
                server.forget()
            else:
                await host.restart("s")
            assert (await host.call("s__effect")).text == "1"
            async with asyncio.timeout(10):
                await heard.wait()
            (event,) = events
            assert (event.added, event.removed, event.changed) == (("comes",), ("goes",), ())
            names = [listed.name for listed in await host.tools()]
            assert "s__comes" in names
            assert "s__goes" not in names


# F5.1: what may strike while another session is made


async def test_f5_1_a_call_that_ends_while_another_session_is_made_was_not_sent() -> None:
    """F5.1: its limit holds; the others go on, and run once."""
    async with hosted() as (host, server):
        server.set(on={"initialize": "hold"})
        server.forget()
        short = asyncio.ensure_future(host.call("s__effect", {"name": "short"}, timeout=0.3))
        long = asyncio.ensure_future(host.call("s__effect", {"name": "long"}, timeout=20))
        cancelled = asyncio.ensure_future(host.call("s__effect", {"name": "cancelled"}, timeout=20))
        await server.seen("initialize", 2)
        cancelled.cancel()
        with within(0.3 + SLACK), pytest.raises(CallTimeout) as caught:
            await short
        assert caught.value.sent is False
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        server.release("initialize")
        assert (await long).text == "1"
        assert server.effects["long"] == 1
        assert not server.effects["short"]
        assert not server.effects["cancelled"]
        assert server.count("initialize") == 2


@pytest.mark.parametrize("word", ["silent", "stall", "hold"])
async def test_f5_1_a_new_session_that_is_never_given_ends_at_the_start_limit(word: str) -> None:
    """F4.4 on the reconnect: the waiters are told, and a close right after works."""
    async with hosted(bounds={"connect": 0.6}) as (host, server):
        server.set(on={"initialize": word})
        server.forget()
        with within(0.6 + 2 * SLACK), pytest.raises(NotSent):
            await host.call("s__effect", timeout=20)
        with within(2 * SLACK):
            await host.close()


@pytest.mark.parametrize("how", ["close", "restart", "disable", "run"])
async def test_f5_1_an_end_while_another_session_is_made(how: str) -> None:
    """F5.1: whoever ends the server meanwhile has its way; the waiters have typed outcomes; nothing is left."""
    async with hosted() as (host, server):
        server.set(on={"initialize": ["hold", "ok"]})
        server.forget()
        if how == "run":
            with pytest.raises(TimeoutError):
                async with host.run(timeout=0.3):
                    await host.call("s__effect")
            server.release("initialize")
            assert (await host.call("s__effect")).text == "1"
            return
        calls = [asyncio.ensure_future(host.call("s__effect", {"name": f"n{i}"})) for i in range(8)]
        await server.seen("initialize", 2)
        with within(2 * SLACK):
            await {
                "close": host.close,
                "restart": lambda: host.restart("s"),
                "disable": lambda: host.disable("s"),
            }[how]()
        done = await asyncio.gather(*calls, return_exceptions=True)
        if how == "restart":
            assert [getattr(each, "text", each) for each in done] == ["1"] * 8
        else:
            assert all(isinstance(each, MooringsError) for each in done), done
            assert not sum(server.effects.values())


async def test_f5_1_a_server_that_comes_back_modern_is_spoken_to_so() -> None:
    """F9.6 within a life: ``initialize`` is refused, and the era is found out anew."""
    async with HttpFaults() as server:
        async with host_for(server.url) as host:
            await host.wait_ready()
            server.forget()
            server.set(era="modern", strict=False, on={"tools/call": ["status:404"] * 8 + ["ok"]})
            texts = await asyncio.gather(
                *[host.call("s__echo", {"text": "x"}) for _ in range(8)], return_exceptions=True
            )
            assert [getattr(each, "text", each) for each in texts] == ["x"] * 8
            assert host.status()["s"].era == "modern"


async def test_f5_1_a_listing_that_meets_a_forgotten_session_and_reads_of_all_kinds() -> None:
    """F5.1: not only calls: each request is answered after one ``initialize``."""
    async with hosted() as (host, server):
        server.forget()
        read, prompt, resources, prompts, echo = await asyncio.gather(
            host.read_resource("res://1", server="s"),
            host.get_prompt("s__greet"),
            host.resources(),
            host.prompts(),
            host.call("s__echo", {"text": "x"}),
        )
        assert echo.text == "x"
        assert resources
        assert prompts
        assert read.contents
        assert prompt.messages
        assert server.count("initialize") == 2


async def test_f5_1_blocking_calls_of_eight_threads_meet_a_forgotten_session() -> None:
    """F5.1 by the blocking twin: one ``initialize``, each runs once."""
    async with HttpFaults() as server:
        loop = asyncio.get_running_loop()

        def work() -> list[str]:
            with Host({"s": HttpServer(url=server.url)}, state_dir=False) as host:
                host.call("s__echo", {"text": "x"})
                asyncio.run_coroutine_threadsafe(_forget(server), loop).result()
                with ThreadPoolExecutor(8) as pool:
                    return [
                        r.text
                        for r in pool.map(lambda i: host.call("s__effect", {"name": f"n{i}"}), range(8))
                    ]

        assert await asyncio.to_thread(work) == ["1"] * 8
        assert each_once(server)
        assert server.count("initialize") == 2
        await loop.shutdown_default_executor()


async def _forget(server: HttpFaults) -> None:
    server.forget()


async def test_f5_1_subscriptions_and_the_log_level_are_said_again_to_the_new_session() -> None:
    """F5.1: what the old session knew."""
    async with hosted() as (host, server):
        await host.set_log_level("debug", server="s")
        await host.subscribe("res://1", server="s")
        server.forget()
        assert (await host.call("s__effect")).text == "1"
        await server.seen("logging/setLevel", 2)
        await server.seen("resources/subscribe", 2)
        session = server.of("tools/call")[-1].headers["mcp-session-id"]
        assert server.of("resources/subscribe")[1].headers["mcp-session-id"] == session
