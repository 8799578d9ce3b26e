"""What else runs on this machine while a login waits: strays, scanners, noise, who says nothing, who leaves.

Whatever they do, the right request is answered after it, and nothing of it was taken for the answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorings.auth.callback import Listeners, Seat
from moorings.auth.callback_http import MOST_HEAD, BadHead, head_end, may_be_http, read_head
from tests.auth.callback_kit import (
    ANSWER,
    CODE,
    LONG,
    STATE,
    ask,
    connected,
    get,
    listening,
    port_of,
    request,
    reset,
    right,
    send,
)
from tests.clock import on_running_clock, pass_time, turns

WRONG = "z" * len(STATE.reveal())


@asynccontextmanager
async def undisturbed(**wishes: Any) -> AsyncIterator[Seat]:
    """A login that waits, and has its answer and its page after whatever the test did."""
    async with listening(**wishes) as seat:
        yield seat
        assert seat._query is None, "something else was taken for the answer"
        sent_on = await ask(seat, right(seat))
        assert sent_on.status == 303
        assert await asyncio.wait_for(seat.arrived(), LONG) == ANSWER
        seat.succeeded()
        assert "Logged in" in (await get(seat, sent_on.place)).body


# --- strays ---------------------------------------------------------------------------------------------------------

STRAYS = {
    "/favicon.ico": 404,
    "/": 404,
    "/callback": 404,
    "/callback/": 404,
    "/callback/other?{answer}": 404,
    "{path}/?{answer}": 404,
    "{path}/done-?{answer}": 404,
    "{path}x?{answer}": 404,
    "/..{path}?{answer}": 404,
    "/{path}?{answer}": 404,
    "{path}": 400,
    "{path}?": 400,
    "{path}?code=x": 400,
    "{path}?code=x&state=": 400,
    "{path}?code=x&state={wrong}": 400,
    "{path}?code=x&State={state}": 400,
    "{path}?code=x&state={state}x": 400,
    "{path}?code=x&state=x{state}": 400,
    "{path}?code=x&state={state}%00": 400,
    "{path}?error=access_denied": 400,
    "{path}?error=access_denied&state={wrong}": 400,
    "{path}?error=access_denied&error_description=x&state={wrong}": 400,
    "{path}?code=x&state={state}&state={state}": 400,
    "{path}?code=x&state={wrong}&state={state}": 400,
    "{path}?code=x&code=y&state={state}": 400,
    "{path}?error=x&error=y&state={state}": 400,
    "{path}?iss=x&iss=y&code=x&state={state}": 400,
    "{path}?{many}&code=x&state={state}": 400,
    "{path}#{answer}": 404,
}


def target(seat: Seat, template: str) -> str:
    many = "&".join(f"a{number}=" for number in range(200))
    return template.format(path=seat.path, answer=ANSWER, state=STATE.reveal(), wrong=WRONG, many=many)


async def test_f12_2_strays_are_turned_away() -> None:
    """F12.2: favicon, wrong path, wrong state, an error with a wrong state; then the real redirect."""
    async with undisturbed() as seat:
        for template, status in STRAYS.items():
            answer = await get(seat, target(seat, template))
            assert (template, answer.status) == (template, status)
            assert "Logged in" not in answer.body and STATE.reveal() not in answer.body


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "DELETE", "TRACE", "PATCH", "CONNECT"])
async def test_f12_2_only_a_get_counts(method: str) -> None:
    """F12.2."""
    async with undisturbed() as seat:
        for place in (f"{seat.path}?{ANSWER}", "/", seat.page_path):
            answer = await get(seat, place, method=method)
            assert answer.status == 405 and answer.headers["allow"] == "GET"
            assert bool(answer.body) == (method != "HEAD")
            assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    "header",
    [
        "Sec-Purpose: prefetch",
        "Sec-Purpose: prefetch;prerender",
        "Sec-Purpose: prefetch;anonymous-client-ip",
        "Purpose: prefetch",
        "X-Purpose: preview",
        "X-Moz: prefetch",
        "sec-purpose:PREFETCH",
    ],
)
async def test_f12_2_what_a_browser_only_guesses_does_not_count(header: str) -> None:
    """F12.2: nobody has seen a page that was fetched beforehand."""
    async with undisturbed() as seat:
        assert (await get(seat, f"{seat.path}?{ANSWER}", header)).status == 503


@pytest.mark.parametrize(
    "host",
    [
        "elsewhere.example",
        "elsewhere.example:{port}",
        "127.0.0.1",
        "localhost",
        "127.0.0.1:1",
        "127.0.0.1:{port}0",
        "127.0.0.1.elsewhere.example:{port}",
        "localhost.elsewhere.example:{port}",
        "user@127.0.0.1:{port}",
        "0.0.0.0:{port}",
        "::1:{port}",
        ":{port}",
    ],
)
async def test_a_page_that_gave_its_own_name_to_this_machine(host: str) -> None:
    """DNS rebinding: the browser says whose page it believes this to be."""
    async with undisturbed() as seat:
        for place in (f"{seat.path}?{ANSWER}", "/", seat.page_path):
            assert (await get(seat, place, host=host.format(port=port_of(seat)))).status == 421


async def test_port_80_is_not_said() -> None:
    """Browsers leave the usual port out."""
    listeners = Listeners()
    try:
        seat = await listeners.seat("localhost", 80, "/cb")
    except Exception as fault:
        pytest.skip(f"no port 80 here: {fault}")
    seat.expect(STATE, "demo")
    seat.succeeded()
    for host in ("localhost", "localhost:80", "127.0.0.1"):
        sent_on = await get(seat, f"/cb?{ANSWER}", host=host)
        assert sent_on.headers["location"] == f"http://{host}{seat.page_path}"
    assert (await get(seat, f"/cb?{ANSWER}", host="elsewhere.example")).status == 421
    assert (await get(seat, seat.page_path)).status == 200
    await listeners.aclose()


# --- no HTTP, or bad ------------------------------------------------------------------------------------------------

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

BAD = [
    TLS_HELLO,
    HTTP2,
    b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    b"\x00",
    b"\x05\x01\x00",
    b"get / HTTP/1.1\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/2\r\nHost: {host}\r\n\r\n",
    b"GET / HTTP/1.1 \r\nHost: {host}\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: {host}\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost: {host}\r\n folded: x\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost : {host}\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost: {host}\r\nno field\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost: {host}\r\nA: \x00\r\n\r\n",
    b"GET {path}?{answer} HTTP/1.1\r\nHost: {host}\r\nA: b\rC: d\r\n\r\n",
    b"GET http://{host}{path}?{answer} HTTP/1.1\r\nHost: {host}\r\n\r\n",
    b"GET {path}?{answer}\x7f HTTP/1.1\r\nHost: {host}\r\n\r\n",
    b"GET {path}?{answer}\tx HTTP/1.1\r\nHost: {host}\r\n\r\n",
]


def filled(seat: Seat, raw: bytes) -> bytes:
    host = seat.redirect_uri.split("/")[2]
    for name, value in (("{host}", host), ("{path}", seat.path), ("{answer}", ANSWER)):
        raw = raw.replace(name.encode(), value.encode())
    return raw


async def test_f12_2_what_is_no_request() -> None:
    """F12.2: said to be none at once, without waiting for more."""
    async with undisturbed(head_within=3600.0) as seat:
        for raw in BAD:
            answer = await send(seat, filled(seat, raw))
            assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n"), raw


async def test_huge_heads() -> None:
    async with undisturbed() as seat:
        raw = request(seat, f"{seat.path}?{ANSWER}", *(f"X{n}: {'x' * 1000}" for n in range(66)))
        assert len(raw) > MOST_HEAD
        assert (await send(seat, raw)).startswith(b"HTTP/1.1 431 ")
        assert (await send(seat, b"GET /" + b"x" * MOST_HEAD)).startswith(b"HTTP/1.1 431 ")
        assert (await send(seat, b"\r\n" * MOST_HEAD)).startswith(b"HTTP/1.1 431 ")


async def test_cookies_of_everything_that_runs_here() -> None:
    """A browser sends the cookies of a host to all of its ports."""
    async with listening() as seat:
        cookies = "; ".join(f"c{n}={'x' * 3000}" for n in range(20))
        assert (await get(seat, f"{seat.path}?{ANSWER}", f"Cookie: {cookies}")).status == 303


async def test_a_long_code() -> None:
    async with listening() as seat:
        query = f"code={'x' * 16000}&state={STATE.reveal()}"
        assert (await ask(seat, right(seat, query))).status == 303
        assert await seat.arrived() == query


@settings(max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=4), st.booleans())
async def test_noise(pieces: list[bytes], abrupt: bool) -> None:
    async with undisturbed() as seat:
        try:
            async with asyncio.timeout(LONG), connected(seat) as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                if abrupt:
                    reset(writer)
                else:
                    writer.write_eof()
                    assert (await reader.read())[:13] in (b"", b"HTTP/1.1 400 ")
        except ConnectionError:
            pass  # It was told so, and went on.


@settings(max_examples=500)
@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_noise_is_no_head(raw: bytes) -> None:
    may_be_http(raw)
    end = head_end(raw)
    assert end is None or end <= len(raw)
    for each in (raw, b"GET /" + raw, b"GET / HTTP/1.1\r\nHost: a\r\n" + raw):
        try:
            head = read_head(each)
        except BadHead:
            continue
        assert head.method and head.path.startswith("/")


@settings(max_examples=200)
@given(st.data())
def test_an_end_is_found_wherever_the_head_was_cut(data: st.DataObject) -> None:
    raw = data.draw(st.sampled_from([b"", b"\r\n", b"\n\r\n"])) + b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"
    buffer = b""
    while head_end(buffer) is None:
        size = data.draw(st.integers(1, 9))
        searched, buffer = len(buffer), raw[: len(buffer) + size]
        assert head_end(buffer, searched) == head_end(buffer)
        assert may_be_http(buffer[:32])
    assert raw[head_end(buffer) :] == b"GET"


# --- the right request in odd ways ----------------------------------------------------------------------------------


async def test_one_byte_at_a_time() -> None:
    async with listening() as seat, asyncio.timeout(LONG), connected(seat) as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for each in right(seat):
            writer.write(bytes([each]))
            await writer.drain()
            await turns(2)
        assert (await reader.read()).startswith(b"HTTP/1.1 303 ")
        assert await seat.arrived() == ANSWER


async def test_cut_at_every_place() -> None:
    async with listening() as seat:
        raw = right(seat)
        for at in range(1, len(raw)):
            async with asyncio.timeout(LONG), connected(seat) as (reader, writer):
                writer.write(raw[:at])
                await turns(3)
                writer.write(raw[at:])
                assert (await reader.read()).startswith(b"HTTP/1.1 303 "), at


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize("before", [b"", b"\r\n", b"\r\n\r\n"])
async def test_line_ends(end: bytes, before: bytes) -> None:
    async with listening() as seat:
        raw = before + right(seat).replace(b"\r\n", end)
        assert (await ask(seat, raw)).status == 303


async def test_more_than_one_request_in_one() -> None:
    """The first one counts, and is answered whole; the connection ends with it."""
    async with listening() as seat:
        other = right(seat, f"code=other&state={STATE.reveal()}")
        answer = await send(seat, right(seat) + other * 50)
        assert answer.count(b"HTTP/1.1 ") == 1 and answer.endswith(b"\r\n\r\n")
        assert await seat.arrived() == ANSWER


async def test_a_request_with_a_body() -> None:
    async with listening() as seat:
        raw = request(seat, f"{seat.path}?{ANSWER}", "Content-Length: 30000") + b"x" * 30000
        assert (await ask(seat, raw)).status == 303


async def test_one_that_closes_its_half_at_once() -> None:
    async with listening() as seat, asyncio.timeout(LONG), connected(seat) as (reader, writer):
        writer.write(right(seat))
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 303 ")


@pytest.mark.parametrize("abrupt", [False, True])
async def test_who_leaves_at_each_step(abrupt: bool) -> None:
    """Closed tabs, crashed browsers. Whatever was sent whole counts, and the next one finds all as it was."""

    async def leave(seat: Seat, raw: bytes, *, at: int) -> None:
        async with connected(seat) as (_, writer):
            writer.write(raw[:at])
            await writer.drain()
            if abrupt:
                reset(writer)

    async with listening() as seat:
        raw = right(seat)
        for at in range(0, len(raw), 7):
            await leave(seat, raw, at=at)
        assert (await get(seat, "/")).status == 404 and seat._query is None
        async with connected(seat) as (_, writer):
            writer.write(raw)
            # Not before it was read: who resets a connection takes back what was sent.
            assert await asyncio.wait_for(seat.arrived(), LONG) == ANSWER
            if abrupt:
                reset(writer)
        place = (await ask(seat, raw)).place
        for at in (1, 20, 10**6):
            await leave(seat, request(seat, place), at=at)
        seat.succeeded()
        await leave(seat, request(seat, place), at=10**6)
        assert "Logged in" in (await get(seat, place)).body


# --- many -----------------------------------------------------------------------------------------------------------


@on_running_clock
async def test_who_says_nothing_is_let_go_after_a_while() -> None:
    """Also who says a little now and then (a slow loris)."""
    async with listening() as seat, connected(seat) as (silent, _), connected(seat) as (slow, writer):
        began = asyncio.get_running_loop().time()
        ends = [asyncio.create_task(reader.read()) for reader in (silent, slow)]
        while len(seat._port._connections) < 2:
            await asyncio.sleep(0.001)
        for each in b"GET / HTTP":
            writer.write(bytes([each]))
            await pass_time(0.4, step=0.1)
        assert asyncio.get_running_loop().time() - began < 5.0 and not any(end.done() for end in ends)
        await pass_time(1.5, step=0.1)
        assert await asyncio.wait_for(asyncio.gather(*ends), LONG) == [b"", b""]
        while seat._port._connections:
            await asyncio.sleep(0.001)


async def test_200_who_say_nothing() -> None:
    """There are never more than 32, and the browser that comes behind them all is answered."""
    async with AsyncExitStack() as stack:
        seat = await stack.enter_async_context(undisturbed(head_within=3600.0))
        for number in range(200):
            _, writer = await stack.enter_async_context(connected(seat, ("127.0.0.1", "::1")[number % 2]))
            writer.write(b"GET /" if number % 3 else b"")
        began = time.monotonic()
        assert (await get(seat, "/")).status == 404
        assert time.monotonic() - began < LONG
        assert len(seat._port._connections) <= 32
        assert len(seat._port._tasks) <= 33


async def test_a_browser_in_a_throng_is_heard() -> None:
    """A connection that has said nothing yet has its moment, however many come after it."""
    async with AsyncExitStack() as stack:
        seat = await stack.enter_async_context(listening(head_within=3600.0, most=4))
        reader, writer = await stack.enter_async_context(connected(seat))
        for _ in range(20):
            await stack.enter_async_context(connected(seat))
        await turns(20)
        writer.write(right(seat))
        async with asyncio.timeout(LONG):
            assert (await reader.read()).startswith(b"HTTP/1.1 303 ")


async def test_those_who_have_their_answer_make_room_first() -> None:
    """Who never closes keeps a place, but nobody's."""
    async with AsyncExitStack() as stack:
        seat = await stack.enter_async_context(undisturbed(close_within=3600.0, head_within=3600.0, most=8))
        for _ in range(30):
            reader, writer = await stack.enter_async_context(connected(seat))
            writer.write(request(seat, "/favicon.ico"))
            async with asyncio.timeout(LONG):
                assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        assert len(seat._port._connections) <= 8


async def test_pages_that_wait_outlive_a_throng() -> None:
    async with AsyncExitStack() as stack:
        seat = await stack.enter_async_context(listening(head_within=3600.0, most=4))
        place = (await ask(seat, right(seat))).place
        reader, writer = await stack.enter_async_context(connected(seat))
        writer.write(request(seat, place))
        while not seat._delivering:
            await asyncio.sleep(0.001)
        for _ in range(10):
            await stack.enter_async_context(connected(seat))
        assert (await get(seat, "/")).status == 404
        seat.succeeded()
        async with asyncio.timeout(LONG):
            assert b"Logged in" in await reader.read()


async def test_more_waiting_pages_than_places() -> None:
    """Somebody reloads and reloads: the newest one is shown."""
    async with AsyncExitStack() as stack:
        seat = await stack.enter_async_context(listening(most=4))
        place = (await ask(seat, right(seat))).place
        for _ in range(10):
            reader, writer = await stack.enter_async_context(connected(seat))
            writer.write(request(seat, place))
        assert (await get(seat, "/")).status == 404
        seat.succeeded()
        async with asyncio.timeout(LONG):
            assert b"Logged in" in await reader.read()


async def test_a_port_scanner() -> None:
    async with undisturbed() as seat:
        for number in range(300):
            async with connected(seat, ("127.0.0.1", "::1")[number % 2]) as (_, writer):
                if number % 3 == 0:
                    reset(writer)


async def test_a_body_without_end() -> None:
    """It is not read on for ever, and holds up nobody."""
    async with undisturbed() as seat:

        async def pour() -> None:
            try:
                async with asyncio.timeout(LONG), connected(seat) as (_, writer):
                    writer.write(request(seat, "/", "Content-Length: 99999999999", method="POST"))
                    while True:
                        writer.write(b"x" * 65536)
                        await writer.drain()
            except ConnectionError:
                return

        pouring = [asyncio.create_task(pour()) for _ in range(3)]
        for _ in range(20):
            assert (await get(seat, "/")).status == 404
        await asyncio.gather(*pouring)


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENOBUFS, errno.ECONNABORTED, errno.EAGAIN])
async def test_a_system_that_gives_no_connection_for_a_moment(problem: int) -> None:
    class Stubborn:
        times = 0

        def accept(self) -> Any:
            self.times += 1
            raise OSError(problem, os.strerror(problem))

    async with undisturbed() as seat, connected(seat):
        while not seat._port._connections:
            await asyncio.sleep(0.001)
        stubborn: Any = Stubborn()
        seat._port._accept(stubborn)
        seat._port._accept(stubborn)
        assert stubborn.times == 2


async def test_nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.get_running_loop().set_debug(True)
    caplog.set_level(logging.DEBUG)
    async with undisturbed() as seat:
        for template in STRAYS:
            await get(seat, target(seat, template))
        for raw in BAD:
            await send(seat, filled(seat, raw))
    text = caplog.text + "".join(map(str, caplog.records))
    assert CODE not in text and STATE.reveal() not in text
