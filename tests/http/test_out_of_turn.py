"""Servers that say the right thing in the wrong place, at the wrong time, or again and again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moorings import AmbiguousDelivery, AsyncHost, CallTimeout, NeedsLogin, NotSent, Refused
from tests.faults.http_server import Finish, HttpFaults
from tests.http.kit import SLACK, host_for, mute, within

Word = Callable[[HttpFaults, Any], Awaitable[None]]
TEXT = {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}


@asynccontextmanager
async def telling(
    words: dict[str, Word], *, bounds: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **script: Any
) -> AsyncIterator[tuple[AsyncHost, HttpFaults]]:  # fmt: skip
    """A scripted server that answers some methods by these functions, and a host that is ready with it."""
    async with HttpFaults(**script) as server:
        route = server.answer

        async def answer(exchange: Any) -> None:
            word = words.get(exchange.seen.rpc or exchange.seen.http)
            await (route(exchange) if word is None else word(server, exchange))

        server.answer = answer  # type: ignore[method-assign]
        async with host_for(server.url, bounds=bounds, **(spec or {})) as host:
            seen = await host.wait_ready()
            assert seen.all_ready, seen
            yield host, server


def event(message: Any, id_: str | None = None) -> bytes:
    name = "" if id_ is None else f"id: {id_}\n"
    return f"{name}data: {json.dumps(message)}\n\n".encode()


def answer_to(exchange: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": exchange.seen.id, "result": {**TEXT, **result}}


# On a kept connection


async def test_f6_what_comes_on_an_idle_connection_is_no_answer_to_the_next_request() -> None:
    """F5.3, F6.1: a second answer (a late one, the 408 of a proxy) ends the connection that it came on."""
    spoken = asyncio.Event()

    async def twice(server: HttpFaults, exchange: Any) -> None:
        exchange.json(answer_to(exchange))
        server.effects["call"] += 1
        if server.effects["call"] == 1:
            await spoken.wait()
            forged = {**answer_to(exchange), "id": exchange.seen.id + 1}
            exchange.json({**forged, "result": {"content": [{"type": "text", "text": "forged"}]}})

    async with telling({"tools/call": twice}, **mute("handshake")) as (host, server):
        assert (await host.call("s__echo")).text == "ok"
        connection = server.of("tools/call")[0].connection
        spoken.set()
        await server.until(lambda s: all(each.number != connection for each in s.live))
        assert (await host.call("s__echo")).text == "ok"
        assert server.effects["call"] == 2


# On streams


async def test_f6_headers_that_fail_while_a_stream_is_resumed_do_not_unsend_its_call() -> None:
    """F6.1: the call was sent, whatever keeps its stream from being resumed."""
    broken = False

    async def headers() -> dict[str, str]:
        if broken:
            raise RuntimeError("no token")
        return {"X-Key": "k"}

    async def cut(server: HttpFaults, exchange: Any) -> None:
        nonlocal broken
        broken = True
        server.effects["call"] += 1
        exchange.start_sse()
        exchange.write(b"id: 1\nretry: 0\ndata:\n\n")
        raise Finish

    async def get(server: HttpFaults, exchange: Any) -> None:
        exchange.body(401 if "last-event-id" in exchange.seen.headers else 405, b"", None)

    async with telling({"tools/call": cut, "GET": get}, spec={"headers": headers}) as (host, server):
        with pytest.raises(AmbiguousDelivery, match="headers") as caught:
            await host.call("s__effect")
        assert caught.value.sent
        assert server.effects["call"] == 1


@pytest.mark.parametrize("when", ["it is resumed", "before it is resumed"])
async def test_f6_a_login_that_is_wanted_while_a_stream_is_resumed_does_not_unsend_its_call(
    when: str,
) -> None:
    """F6.1: the call was carried out; that its stream is not resumed for want of a login says nothing of it."""
    ran, refused = asyncio.Event(), asyncio.Event()

    async def cut(server: HttpFaults, exchange: Any) -> None:
        if exchange.seen.params["name"] == "read":
            exchange.body(401, b"", None, WWW_Authenticate="Bearer")
            raise Finish
        server.effects["call"] += 1
        exchange.start_sse()
        exchange.write(b"id: 1\nretry: 0\ndata:\n\n")
        ran.set()
        if when == "before it is resumed":
            # Another call finds out meanwhile that a login is wanted.
            await refused.wait()
        raise Finish

    async def get(server: HttpFaults, exchange: Any) -> None:
        if exchange.seen.path.startswith("/.well-known/oauth-protected-resource"):
            # It names an authorization server, which is none: that is for a person to mend.
            about = {"resource": server.url, "authorization_servers": [server.url.removesuffix("/mcp")]}
            exchange.body(200, json.dumps(about).encode())
        elif exchange.seen.path.startswith("/.well-known/"):
            exchange.body(404, b"", None)
        else:
            resumes = "last-event-id" in exchange.seen.headers
            exchange.body(401 if resumes else 405, b"", None, WWW_Authenticate="Bearer")

    async with telling({"tools/call": cut, "GET": get}) as (host, server):
        calling = asyncio.ensure_future(host.call("s__effect"))
        await ran.wait()
        if when == "before it is resumed":
            with pytest.raises(NeedsLogin) as turned_away:
                await host.call("s__read")
            assert not turned_away.value.sent
            refused.set()
        with pytest.raises(AmbiguousDelivery) as caught:
            await calling
        assert caught.value.sent
        assert server.effects["call"] == 1


async def test_f13_4_events_that_all_bear_one_id_are_all_heard() -> None:
    """F13.4: the id of an event tells what a resumed stream brings twice, and nothing before that."""

    async def same(server: HttpFaults, exchange: Any) -> None:
        exchange.start_sse()
        exchange.write(b"id: 7\ndata:\n\n")
        exchange.write(event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}, "7"))
        exchange.write(event(answer_to(exchange), "7"))
        exchange.end_sse()

    async with telling({"tools/call": same}) as (host, _server):
        assert (await host.call("s__echo")).text == "ok"


async def test_f13_4_a_flood_of_ids_holds_nobody_up() -> None:
    """F13.4: an event costs the same, however many ids are remembered."""
    flood = b"".join(b"id:%d\ndata:{}\n\n" % number for number in range(10_000, 25_000))

    async def flooding(server: HttpFaults, exchange: Any) -> None:
        exchange.start_sse()
        exchange.write(flood)
        exchange.write(event(answer_to(exchange)))
        exchange.end_sse()

    async with telling({"tools/call": flooding}) as (host, _server):
        with within(SLACK):
            assert (await host.call("s__echo")).text == "ok"


async def test_f4_an_answer_on_another_stream_gives_back_the_connection_of_its_own() -> None:
    """F4.6: streams that stay open and silent do not use up ``max_connections``."""
    listening: list[Any] = []

    async def get(server: HttpFaults, exchange: Any) -> None:
        exchange.start_sse()
        listening.append(exchange)
        await asyncio.Event().wait()

    async def elsewhere(server: HttpFaults, exchange: Any) -> None:
        exchange.start_sse()
        listening[-1].write(event(answer_to(exchange)))
        await asyncio.Event().wait()

    words = {"tools/call": elsewhere, "GET": get}
    async with telling(words, bounds={"max_connections": 4}) as (host, _server):
        for _ in range(8):
            assert (await host.call("s__echo", timeout=2)).text == "ok"


async def test_f4_a_notification_that_is_never_taken_holds_calls_up_once_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F13.5: one wait for ``notifications/initialized``, not one for each request."""
    monkeypatch.setattr("moorings.transport.http.FIRST_WAIT", 0.5)

    async def never(server: HttpFaults, exchange: Any) -> None:
        await asyncio.Event().wait()

    async with telling({"notifications/initialized": never}) as (host, _server):
        with within(0.5 + SLACK):
            for _ in range(8):
                await host.call("s__echo", {"text": "x"})


# Sessions that are lost each time


async def test_f5_2_a_server_that_forgets_each_session_is_asked_at_a_growing_distance() -> None:
    """F5.2: lists that are looked at after a loss may not make a storm of the next ones."""
    async with telling({}) as (host, server):
        server.set(on={"tools/call": "status:404:gone", "tools/list": "status:404:gone"})
        with pytest.raises(NotSent, match="session"):
            await host.call("s__effect", timeout=5)
        await asyncio.sleep(1.0)
        assert server.count("initialize") <= 10
        server.set(on={"tools/call": "ok", "tools/list": "ok"})
        assert (await host.call("s__effect")).text == "1"


async def test_f5_2_what_costs_each_session_to_which_it_is_said_waits_and_the_rest_is_said() -> None:
    """F5.2: a log level or a subscription that is refused as if the session were lost makes no storm."""
    async with telling({}) as (host, server):
        for name in ("a", "b", "c"):
            await host.subscribe(f"mem:{name}", server="s")
        await host.set_log_level("info", server="s")
        server.set(on={"logging/setLevel": "status:404:gone"})
        server.forget()
        assert (await host.call("s__effect")).text == "1"
        await server.until(
            lambda s: {each.params["uri"] for each in s.of("resources/subscribe")[3:]} == {"mem:a", "mem:b", "mem:c"}
        )  # fmt: skip
        await asyncio.sleep(1.0)
        assert server.count("initialize") <= 6


async def test_f5_2_a_stream_that_is_not_found_costs_one_session_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F5.2, F5.4: a GET that works once for each session and then is 404 says nothing of the next session."""
    monkeypatch.setattr("moorings.transport.http.FIRST_REOPEN", 0.02)
    opened: set[str] = set()

    async def get(server: HttpFaults, exchange: Any) -> None:
        session = exchange.seen.headers["mcp-session-id"]
        if session in opened:
            exchange.body(404, b"", None)
            return
        opened.add(session)
        exchange.start_sse()
        exchange.end_sse()

    async with telling({"GET": get}) as (host, server):
        await server.seen("GET", 4)
        await asyncio.sleep(0.3)
        assert server.count("initialize") == 2
        assert (await host.call("s__effect")).text == "1"


# Bytes that are no text


@pytest.mark.parametrize("name", ["Content-Type", "WWW-Authenticate", "Location", "Retry-After"])
@pytest.mark.parametrize("status", [401, 302, 429])
async def test_f13_headers_that_are_no_text_are_no_fault_of_ours(name: str, status: int) -> None:
    """F13.3: the error is typed by its status, and can be printed."""

    async def odd(server: HttpFaults, exchange: Any) -> None:
        head = b"HTTP/1.1 %d X\r\n%s: \xff\xed\xa0\x80\r\nContent-Length: 0\r\n\r\n" % (status, name.encode())
        exchange.write(head)

    async with telling({"tools/call": odd}) as (host, _server):
        with pytest.raises(Refused) as caught:
            await host.call("s__echo")
        assert not caught.value.sent
        assert caught.value.http is not None
        f"{caught.value} {caught.value.http}".encode()


# Tasks


def task(exchange: Any, **more: Any) -> dict[str, Any]:
    says = {"taskId": "t1", "status": "working", "pollIntervalMs": 0, **more}
    return {"jsonrpc": "2.0", "id": exchange.seen.id, "result": {"resultType": "complete", **says}}


async def created(server: HttpFaults, exchange: Any) -> None:
    exchange.json(task(exchange, resultType="task"))


async def test_a_task_that_never_ends_times_out_as_sent_and_is_asked_to_cancel() -> None:
    async def working(server: HttpFaults, exchange: Any) -> None:
        exchange.json(task(exchange))

    async with telling({"tools/call": created, "tasks/get": working}, **mute("modern")) as (host, server):
        with pytest.raises(CallTimeout) as caught:
            await host.call("s__echo", timeout=0.5)
        assert caught.value.sent
        assert "not sent" not in str(caught.value)
        assert caught.value.tool == "echo"
        await server.seen("tasks/cancel")


async def test_the_state_of_another_task_is_no_answer() -> None:
    async def other(server: HttpFaults, exchange: Any) -> None:
        exchange.json(task(exchange, taskId="t2", status="completed", result=TEXT))

    async with telling({"tools/call": created, "tasks/get": other}, **mute("modern")) as (host, _server):
        with pytest.raises(AmbiguousDelivery, match="another task"):
            await host.call("s__echo")


# Reads


async def test_f8_9_a_read_that_a_change_overtakes_is_not_kept() -> None:
    """F8.9: what was asked for before the change may be the old."""
    gate = asyncio.Event()

    async def read(server: HttpFaults, exchange: Any) -> None:
        text = str(server.count("resources/read"))
        if text == "1":
            await gate.wait()
        contents = [{"uri": "mem:a", "text": text}]
        kept = {"contents": contents, "resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"}
        exchange.json({"jsonrpc": "2.0", "id": exchange.seen.id, "result": kept})

    async with telling({"resources/read": read}, era="modern") as (host, server):
        reading = asyncio.ensure_future(host.read_resource("mem:a", server="s"))
        await server.seen("resources/read")
        life = host._servers["s"].life
        assert life is not None and life.session is not None
        life.session._hooks.resource_changed("mem:a")
        gate.set()
        assert (await reading).contents[0].text == "1"
        assert (await host.read_resource("mem:a", server="s")).contents[0].text == "2"
        assert (await host.read_resource("mem:a", server="s")).contents[0].text == "2"


# Headers of a function


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_a_function_for_headers_that_exits_ends_its_request_alone(error: type[BaseException]) -> None:
    """F6.1: the same for an async function as for one in a thread: the loop goes on."""
    fails = False

    async def headers() -> dict[str, str]:
        if fails:
            raise error
        return {}

    async def turned_away(server: HttpFaults, exchange: Any) -> None:
        nonlocal fails
        fails = True
        exchange.body(401, b"", None)

    async with telling({"tools/call": turned_away}, spec={"headers": headers}) as (host, _server):
        with pytest.raises(NotSent, match=error.__name__):
            await host.call("s__echo")
