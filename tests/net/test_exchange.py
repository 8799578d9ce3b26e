"""One request and its answer on real sockets: bodies, bounds, and `sent` when it breaks at each step."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import zlib

import pytest

from moorings.errors import MisuseError
from moorings.net import (
    BadAnswer,
    BadEncoding,
    Broken,
    FirstByteTimeout,
    IdleTimeout,
    NetError,
    NetSettings,
    ReuseRace,
    TooLarge,
)
from moorings.net.client import HttpClient
from tests.net.kit import Line, Request, answering, client, get, post, serving

URL = "http://127.0.0.1:{}/mcp?key=s3cret"


async def test_a_post_and_its_answer() -> None:
    got: list[Request] = []
    order: list[str] = []
    async with serving(answering(got, b'{"ok":1}', content_type="Application/JSON; charset=utf-8")) as server:
        async with client(NetSettings(user_agent="me/1")) as http:
            async with http.send(
                "POST",
                URL.format(server.port),
                headers={"X-Key": "välue"},
                body=b"hello",
                first_byte=5,
                idle=5,
                on_sent=lambda: order.append(f"sent before {len(got)} came"),
            ) as answer:
                assert (answer.status, answer.content_type) == (200, "application/json")
                assert answer.headers["content-TYPE"] == "Application/JSON; charset=utf-8"
                assert await answer.read(100) == b'{"ok":1}'
                assert await answer.excerpt() == '{"ok":1}'
    (request,) = got
    assert (request.method, request.target, request.body) == ("POST", "/mcp?key=s3cret", b"hello")
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["user-agent"] == "me/1"
    assert request.headers["accept-encoding"] == "gzip, deflate"
    assert "cookie" not in request.headers
    assert order == ["sent before 0 came"]


async def test_requests_without_bodies_and_answers_without_bodies() -> None:
    got: list[Request] = []

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            got.append(request)
            if request.method == "HEAD":
                line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
            elif request.method == "DELETE":
                line.say(b"HTTP/1.1 204 No Content\r\n\r\n")
            else:
                line.say(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
                line.answer(b"", 202)

    async with serving(script) as server, client() as http:
        url = URL.format(server.port)
        for method, status in (("GET", 202), ("HEAD", 200), ("DELETE", 204), ("POST", 202)):
            async with http.send(method, url, headers={}, first_byte=5, idle=5) as answer:
                assert (answer.status, await answer.read(10)) == (status, b"")
        assert server.connections == 1
    assert [request.headers.get("content-length") for request in got] == [None, None, "0", "0"]


async def test_a_callers_headers_win_but_never_frame_the_message() -> None:
    got: list[Request] = []
    async with serving(answering(got)) as server, client() as http:
        url = f"http://u:p%40@127.0.0.1:{server.port}/"
        await post(http, url, headers={"user-agent": "x", "HOST": "other", "accept-encoding": "identity"})
        await post(http, url, headers={"Authorization": "Bearer t"})
        for bad in (
            {"X": "a\r\nY: b"},
            {"X\r\nY": "b"},
            {"X": "a\0"},
            {"Content-Length": "3"},
            {"transfer-encoding": "chunked"},
            {"X": "\ud800"},
            {"": "x"},
        ):
            with pytest.raises(MisuseError):
                await post(http, url, headers=bad)
    assert [got[0].headers[name] for name in ("user-agent", "host", "accept-encoding")] == [
        "x",
        "other",
        "identity",
    ]
    assert got[0].headers["authorization"] == "Basic dTpwQA=="
    assert got[1].headers["authorization"] == "Bearer t"
    assert len(got) == 2


@pytest.mark.parametrize("url", ["", "/x", "ftp://h/", "http://", "http://[x/", "http://a:99999/"])
async def test_a_url_that_is_none_is_misuse(url: str) -> None:
    async with client() as http:
        with pytest.raises(MisuseError):
            await get(http, url)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "identity"])
async def test_bodies_are_decompressed_as_they_come(coding: str) -> None:
    whole = b"".join(b"data: %d\n\n" % number for number in range(20_000))
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[coding](whole)

    async def script(line: Line) -> None:
        while await line.request() is not None:
            line.say(
                f"HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            )
            for at in range(0, len(packed), 1000):
                piece = packed[at : at + 1000]
                line.say(b"%x\r\n%b\r\n" % (len(piece), piece))
            line.say(b"0\r\n\r\n")

    async with serving(script) as server, client() as http:
        url = URL.format(server.port)
        assert await get(http, url) == (200, whole)
        async with http.send("GET", url, headers={}, first_byte=5, idle=5) as answer:
            assert b"".join([piece async for piece in answer.chunks()]) == whole
        with pytest.raises(TooLarge) as refused:
            async with http.send("GET", url, headers={}, first_byte=5, idle=5) as answer:
                await answer.read(len(whole) - 1)
        assert refused.value.cap == len(whole) - 1
        assert server.connections == 1


async def test_a_bomb_is_refused_at_the_cap() -> None:
    bomb = gzip.compress(bytes(80_000_000))
    async with serving(answering([], bomb, Content_Encoding="gzip")) as server, client() as http:
        with pytest.raises(TooLarge):
            async with http.send("GET", URL.format(server.port), headers={}, first_byte=5, idle=5) as answer:
                await answer.read(1_000_000)


@pytest.mark.parametrize(
    ("coding", "body", "said"),
    [("br", b"x", "'br'"), ("gzip, gzip", b"x", "'gzip, gzip'"), ("gzip", b"no gzip", "damaged"),
     ("gzip", gzip.compress(b"x" * 99, mtime=0)[:-9], "too early")],
)  # fmt: skip
async def test_a_bad_encoding_is_told(coding: str, body: bytes, said: str) -> None:
    async with serving(answering([], body, Content_Encoding=coding)) as server, client() as http:
        with pytest.raises(BadEncoding, match=said) as told:
            await get(http, URL.format(server.port))
        async with http.send("GET", URL.format(server.port), headers={}, first_byte=5, idle=5) as answer:
            assert isinstance(await answer.excerpt(), str)
    assert "s3cret" not in str(told.value)


async def test_a_body_over_the_cap_is_not_even_read() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\nx")
        await line.ended()

    async with serving(script) as server, client() as http:
        with pytest.raises(TooLarge):
            await get(http, URL.format(server.port), idle=None)


# --- breaking at each step ----------------------------------------------------------------------------------------


async def failing(http: HttpClient, url: str, **more: float | None) -> tuple[NetError, int]:
    """The failure of a POST, and how often the hook was called."""
    calls: list[int] = []
    with pytest.raises(NetError) as failed:
        await post(http, url, on_sent=lambda: calls.append(1), **more)
    assert "s3cret" not in repr(failed.value) + str(failed.value)
    assert failed.value.reason
    assert failed.value.__suppress_context__ or failed.value.__context__ is None
    return failed.value, len(calls)


async def closes(line: Line) -> None:
    await line.request()


async def resets(line: Line) -> None:
    await line.request()
    line.reset()


async def half_a_head(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 200 OK\r\nContent-")


async def no_http(line: Line) -> None:
    await line.request()
    line.say(b"hello, this is no HTTP\r\n\r\n")


async def upgrades(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")


async def half_a_body(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


async def half_a_chunk(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf")


async def reset_body(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    await line.writer.drain()
    line.reset()


async def bad_chunk(line: Line) -> None:
    await line.request()
    line.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await asyncio.sleep(0.05)  # so that it comes by itself, when the body is already being read
    line.say(b"zzz\r\n")
    await line.ended()


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (closes, Broken),
        (resets, Broken),
        (half_a_head, Broken),
        (no_http, BadAnswer),
        (upgrades, BadAnswer),
        (half_a_body, Broken),
        (half_a_chunk, Broken),
        (reset_body, Broken),
        (bad_chunk, BadAnswer),
    ],
)
async def test_f5_10_what_breaks_after_the_request_left_was_sent(
    script: object, kind: type[NetError]
) -> None:
    async with serving(script) as server, client() as http:  # type: ignore[arg-type]
        error, calls = await failing(http, URL.format(server.port))
    assert (type(error), error.sent, calls) == (kind, True, 1)


async def test_a_body_that_only_the_end_ends_needs_a_regular_end() -> None:
    async def script(line: Line) -> None:
        request = await line.request()
        assert request is not None
        line.say(b"HTTP/1.1 200 OK\r\n\r\nsome")
        await line.writer.drain()
        if request.target == "/reset":
            await line.reader.read(
                1
            )  # the client saw the beginning: it sends nothing more, so this is its end
        elif request.target == "/half":
            line.writer.write_eof()
            await line.ended()

    async with serving(script) as server, client() as http:
        base = f"http://127.0.0.1:{server.port}"
        assert await get(http, base + "/whole") == (200, b"some")
        assert await get(http, base + "/half") == (200, b"some")
        async with http.send("GET", base + "/reset", headers={}, first_byte=5, idle=5) as answer:
            chunks = answer.chunks()
            assert await anext(chunks) == b"some"
            server.lines[-1].reset()
            with pytest.raises(Broken):
                await anext(chunks)


async def test_the_first_byte_has_a_bound_and_so_has_silence_in_the_body() -> None:
    async def script(line: Line) -> None:
        request = await line.request()
        assert request is not None
        if request.method == "GET":
            line.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
            for _ in range(6):
                line.say(b"x")
                await asyncio.sleep(0.05)
        await line.ended()

    async with serving(script) as server, client() as http:
        error, calls = await failing(http, URL.format(server.port), first_byte=0.05)
        assert (type(error), error.sent, calls) == (FirstByteTimeout, True, 1)
        assert "0.05" in error.reason
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(IdleTimeout):
            await get(http, URL.format(server.port), idle=0.2)
        # Each byte gave it new time: 0.25 s of bytes, then 0.2 s of silence.
        assert loop.time() - began >= 0.4


async def test_a_server_that_does_not_read_is_bounded_too() -> None:
    async def script(line: Line) -> None:
        line.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with serving(script) as server, client() as http:
        with pytest.raises(FirstByteTimeout):
            await post(http, URL.format(server.port), bytes(30_000_000), first_byte=0.1)


async def test_an_answer_before_the_request_is_read_spoils_the_connection_only() -> None:
    async def script(line: Line) -> None:
        await line.reader.readuntil(b"\r\n\r\n")
        line.answer(b"too large", 413)
        await line.ended()

    async with serving(script) as server, client() as http:
        for _ in range(2):
            assert await post(http, URL.format(server.port), bytes(30_000_000)) == (413, b"too large")
        assert server.connections == 2


# --- kept connections ---------------------------------------------------------------------------------------------


async def test_f5_3_a_kept_connection_that_was_closed_is_noticed_before_writing() -> None:
    closed = asyncio.Event()
    got: list[Request] = []

    async def script(line: Line) -> None:
        request = await line.request()
        assert request is not None
        got.append(request)
        line.answer()
        await line.writer.drain()
        line.writer.close()
        await line.writer.wait_closed()
        closed.set()

    async with serving(script) as server, client() as http:
        for number in range(1, 4):
            closed.clear()
            assert (await post(http, URL.format(server.port)))[0] == 200
            await closed.wait()
            assert len(got) == number
        assert server.connections == 3


async def test_f5_3_an_end_that_the_loop_has_not_seen_is_seen_in_the_kernel() -> None:
    got: list[Request] = []
    async with serving(answering(got)) as server, client() as http:
        await post(http, URL.format(server.port))
        # In the kernel at once; the loop gets no turn to read it before the next request.
        with socket.socket(fileno=os.dup(server.lines[0].writer.get_extra_info("socket").fileno())) as same:
            same.shutdown(socket.SHUT_WR)
        await post(http, URL.format(server.port))
        assert (len(got), server.connections) == (2, 2)


async def test_the_race_with_a_server_that_closes_an_idle_connection_has_a_type_of_its_own() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.answer()
        await line.request()

    async with serving(script) as server, client() as http:
        await post(http, URL.format(server.port))
        error, calls = await failing(http, URL.format(server.port))
        assert (type(error), error.sent, calls) == (ReuseRace, True, 1)
        # Half an answer is no race.
        assert server.connections == 1


async def test_half_an_answer_on_a_kept_connection_is_no_race() -> None:
    async def script(line: Line) -> None:
        await line.request()
        line.answer()
        await line.request()
        line.say(b"HTTP/1.1 2")

    async with serving(script) as server, client() as http:
        await post(http, URL.format(server.port))
        error, _ = await failing(http, URL.format(server.port))
    assert type(error) is Broken


async def test_leaving_a_stream_ends_its_connection_and_an_unread_end_does_not() -> None:
    ended = asyncio.Event()

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            if request.target == "/stream":
                line.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
                await line.ended()
                ended.set()
                return
            line.answer(b"short")

    async with serving(script) as server, client() as http:
        base = f"http://127.0.0.1:{server.port}"
        for _ in range(2):
            async with http.send("GET", base + "/a", headers={}, first_byte=5, idle=5) as answer:
                assert answer.status == 200
        assert server.connections == 1
        async with http.send("GET", base + "/stream", headers={}, first_byte=5, idle=5) as answer:
            assert await anext(answer.chunks()) == b"data: 1\n\n"
        await asyncio.wait_for(ended.wait(), 5)


async def test_a_cancelled_exchange_ends_its_connection() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def script(line: Line) -> None:
        await line.request()
        asked.set()
        await line.ended()
        ended.set()

    async with serving(script) as server, client() as http:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(post(http, URL.format(server.port), first_byte=None))
            await asked.wait()
            task.cancel()
        await asyncio.wait_for(ended.wait(), 5)


async def test_an_excerpt_is_one_line_bounded_in_size_and_time_and_never_raises() -> None:
    async def script(line: Line) -> None:
        request = await line.request()
        assert request is not None
        head = b"HTTP/1.1 502 Bad\r\nContent-Type: text/html; charset=latin-1\r\nContent-Length: 5000\r\n\r\n"
        if request.target == "/long":
            line.say(head + b"<h1>\xe9\r\n\t\x1b[2J no</h1>" + b"x" * 4000)
        elif request.target == "/broken":
            line.say(head + b"half")
            return
        else:
            line.say(head)
        await line.ended()

    async with serving(script) as server, client() as http:

        async def excerpt(path: str) -> str:
            url = f"http://127.0.0.1:{server.port}{path}"
            async with http.send("GET", url, headers={}, first_byte=5, idle=5) as answer:
                return await answer.excerpt(50)

        assert (await excerpt("/long")).startswith("<h1>é [2J no</h1>xxx")
        assert len(await excerpt("/long")) == 51
        assert await excerpt("/broken") == "half"
        assert await excerpt("/silent") == ""
