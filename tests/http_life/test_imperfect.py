"""Class 13 over HTTP: what can mean only one thing is accepted, what cannot is refused with its first bytes; sizes have
caps, edges of chunks never matter, and one bad message costs one request at most."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, CallError, MooringsError
from tests.faults.tcp import Plan, TcpProxy
from tests.host.kit import took
from tests.http_life.kit import WAYS, faults, spec, until
from tests.net.kit import Line, serving

QUICK = Bounds(connect=5.0, call=10.0, http_close=0.5)
MIB = 1024 * 1024
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

Answer = Callable[[Line, dict[str, Any], bytes], None]
"""Writes the answer to ``tools/call``: its message, and the JSON that answers it."""


def one_tool(
    on_call: Answer, *, notice: tuple[int, bytes] = (202, b""), id_: Callable[[int], Any] = lambda n: n
) -> Any:
    """A server of the handshake era, written by hand, whose answers to calls are the test's."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "t", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "answer äö€😀"}]},
    }

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            if request.method != "POST":
                line.answer(b"", 405)
                continue
            message = json.loads(request.body)
            if "id" not in message:
                line.answer(notice[1], notice[0], Content_Type="application/json")
                continue
            answer = {"jsonrpc": "2.0", "id": id_(message["id"]), "result": results[message["method"]]}
            text = json.dumps(answer, ensure_ascii=False).encode()
            if message["method"] == "tools/call":
                on_call(line, message, text)
                if line.writer.transport.is_closing():
                    return
            else:
                line.answer(text, Content_Type="application/json")

    return script


def plainly(line: Line, message: dict[str, Any], text: bytes) -> None:
    line.answer(text, Content_Type="application/json")


async def ask(on_call: Answer, calls: int = 1, **more: Any) -> list[Any]:
    """What calls at such a server bring: texts, or errors."""
    outcomes: list[Any] = []
    async with serving(one_tool(on_call, **more)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, "handshake", bounds=QUICK)}, state_dir=False) as host:
            ready = await host.wait_ready(5)
            assert ready.all_ready, ready
            for _ in range(calls):
                try:
                    outcomes.append((await host.call("a__echo", timeout=3.0)).text)
                except CallError as error:
                    outcomes.append(error)
    return outcomes


# --- sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [70_000, MIB, 10 * MIB])
@pytest.mark.parametrize(("way", "form"), [("handshake", "json"), ("handshake", "sse"), ("modern", "json"),
                                           ("modern", "sse"), ("sse", "sse")])  # fmt: skip
async def test_f13_2_large_answers(way: str, form: str, size: int) -> None:
    """F13.2: 70 KB, 1 MB and 10 MB, as a body and as an event."""
    async with faults(way, answers=form) as server:
        async with AsyncHost({"a": spec(server.url, way, bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            with took(0.0, 5.0):
                result = await host.call("a__big", {"bytes": size})
            assert len(result.text) == size
            assert (await host.call("a__echo", {"text": "x" * size})).text == "x" * size


@pytest.mark.parametrize(("way", "form"), [("handshake", "json"), ("handshake", "sse"), ("modern", "json"),
                                           ("modern", "sse"), ("sse", "sse")])  # fmt: skip
async def test_f13_2_an_answer_over_the_cap(way: str, form: str) -> None:
    """F13.2: 17 MiB against 16: that request fails, size or cap and the setting named; the next one works."""
    async with faults(way, answers=form) as server:
        async with AsyncHost({"a": spec(server.url, way, bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            other = asyncio.create_task(host.call("a__sleep", {"seconds": 0.3}))
            with took(0.0, 5.0), pytest.raises(CallError, match="max_message") as failed:
                await host.call("a__big", {"bytes": 17 * MIB})
            assert str(16 * MIB) in str(failed.value).replace(",", "")
            assert failed.value.sent is True
            assert (await other).text == "slept"
            assert (await host.call("a__echo", {"text": "x"})).text == "x"


# --- edges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["body", "events", "events with CR", "chunked"])
async def test_f13_3_cut_at_every_position(form: str) -> None:
    """F13.3: the same answer, head and all, in two pieces, cut at each position in turn, in the middle of characters
    too."""
    position = 0
    total = 0

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        nonlocal position, total
        if form == "body":
            data = (
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text)
                + text
            )
        elif form == "chunked":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            data = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text)
        else:
            end = b"\r" if form.endswith("CR") else b"\r\n"
            body = b": hi" + end + b"event: message" + end + b"data: " + text + end + end
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(
                body
            )
            data = head + body
        total = len(data)
        line.say(data[:position])
        rest = data[position:]
        asyncio.get_running_loop().call_later(0.0005, line.say, rest)
        position += 1

    async with serving(one_tool(on_call)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, "handshake", bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            assert (await host.call("a__echo")).text == "answer äö€😀"
            while position < total:
                assert (await host.call("a__echo")).text == "answer äö€😀"


@pytest.mark.parametrize("way", WAYS)
async def test_f13_3_a_slow_line(way: str) -> None:
    """F13.3: everything in small pieces, at 200 KB a second and with latency."""
    async with (
        faults(way, answers="sse") as server,
        TcpProxy(server.port, Plan(latency=0.005, rate=200_000)) as proxy,
    ):
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        async with AsyncHost({"a": spec(url, way, bounds=QUICK)}, state_dir=False) as host:
            assert (await host.wait_ready(5)).all_ready
            assert (await host.call("a__big", {"bytes": 20_000})).text == "x" * 20_000


@pytest.mark.parametrize(
    "body",
    [
        "data: {t}\n\n", "data: {t}\r\n\r\n", "data: {t}\r\r", "data:{t}\n\n", "\ufeffdata: {t}\n\n",
        ": comment\n\n: another\n\ndata: {t}\n\n", "event: message\ndata: {t}\nid: 1\nretry: 10\n\n",
        "data: hello\n\ndata: {t}\n\n", "data\n\ndata: {t}\n\n", "unknown: x\ndata: {t}\n\n", "\n\n\ndata: {t}\n\n",
        "data: {t}\n\ndata: {t}\n\n", "event: other\ndata: {t}\n\n", "data: [1,2]\n\ndata: {t}\n\n",
        "data: {{\n\ndata: {t}\n\n", "id\ndata: {t}\n\n", "event: message\r\ndata: {t}\n\r\n",
    ],
)  # fmt: skip
async def test_f13_4_events_in_every_spelling(body: str) -> None:
    """F13.4: line ends, comments, a byte-order mark, plain text in between: the answer arrives."""

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        line.say(SSE + body.format(t=text.decode()).encode())
        line.writer.close()

    assert await ask(on_call, 2) == ["answer äö€😀"] * 2


async def test_f13_4_an_answer_over_several_data_lines() -> None:
    """F13.4: they are joined by line feeds, which JSON does not mind between its tokens."""

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        lines = json.dumps(json.loads(text), indent=1).split("\n")
        line.say(SSE + "".join(f"data: {each}\r\n" for each in lines).encode() + b"\r\n")
        line.writer.close()

    assert await ask(on_call) == ["answer äö€😀"]


# --- what is accepted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "notice", [(202, b""), (204, b""), (200, b""), (200, b"null"), (200, b"{}"), (201, b"ok")]
)
async def test_f13_5_answers_to_notifications(notice: tuple[int, bytes]) -> None:
    """F13.5: any success is fine, whatever its body."""
    assert await ask(plainly, notice=notice) == ["answer äö€😀"]


@pytest.mark.parametrize("id_", [str, float, lambda n: f" {n}".strip()])
async def test_f13_6_an_id_that_comes_back_as_another_type(id_: Callable[[int], Any]) -> None:
    """F13.6: "7" or 7.0 for 7."""
    assert await ask(plainly, id_=id_) == ["answer äö€😀"]


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;charset=UTF-8", " application/json ",
     "text/json", "application/problem+json", "text/plain", None],
)  # fmt: skip
async def test_f13_6_kinds_of_json(content_type: str | None) -> None:
    """F13: letter case and parameters of the type do not matter; under another type it is read, or refused at once."""

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        headers = {} if content_type is None else {"Content_Type": content_type}
        line.answer(text, **headers)

    (outcome,) = await ask(on_call)
    if content_type is not None and "application/json" in content_type.lower():
        assert outcome == "answer äö€😀"
    else:
        assert outcome == "answer äö€😀" or isinstance(outcome, CallError)


async def test_f13_10_a_byte_that_is_no_utf8() -> None:
    """F13.10: 0x97 in a string: answered with a replacement mark."""

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        line.answer(text.replace("äö€😀".encode(), b"\x97"), Content_Type="application/json")

    assert await ask(on_call) == ["answer \ufffd"]


@pytest.mark.parametrize("way", WAYS)
async def test_f13_11_we_send_only_what_we_mean(way: str) -> None:
    """F13.11: no capability that is not configured; integer ids."""
    async with faults(way) as server:
        async with AsyncHost({"a": spec(server.url, way, bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            await host.call("a__echo")
        first = server.of("server/discover" if way == "modern" else "initialize")[0].params
        declared = (
            first["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            if way == "modern"
            else first["capabilities"]
        )
        assert not {"roots", "sampling", "elicitation", "experimental"} & set(declared)
        ids = [seen.id for seen in server.requests if seen.id is not None]
        assert all(type(each) is int for each in ids)
        assert len(set(ids)) == len(ids)
        assert server.violations == []


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "get", ["html", "html:404", "status:404", "status:405", "status:501", "redirect:302:/login"]
)
async def test_f13_7_only_the_get_is_wrong(get: str) -> None:
    """F13.7: a page or an error for the listening GET, while POST is right: ready, and asked no more."""
    async with faults("handshake", get=get) as server:
        async with AsyncHost({"a": spec(server.url, "auto", bounds=QUICK)}, state_dir=False) as host:
            assert (await host.wait_ready(5)).all_ready
            for _ in range(3):
                assert (await host.call("a__echo", {"text": "x"})).text == "x"
            assert sum(seen.path == server.path for seen in server.of("GET")) <= 2


@pytest.mark.parametrize("way", [*WAYS, "auto"])
async def test_f13_7_a_login_page(way: str) -> None:
    """F13.7: 200 text/html to everything: typed within 1 s, the type named."""
    async with faults(
        "handshake", on={"POST": "html", "GET": "html", "initialize": "html", "server/discover": "html"}
    ) as server:
        async with AsyncHost({"a": spec(server.url, way, bounds=QUICK)}, state_dir=False) as host:
            with took(0.0, 1.0):
                ready = await host.wait_ready(5)
            assert "text/html" in ready.failed["a"] or "HTML" in ready.failed["a"]


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {"Content_Type": "application/json"}, b"[]"), (200, {"Content_Type": "application/json"}, b"7"),
        (200, {"Content_Type": "application/json"}, b'{"jsonrpc":"2.0"}'),
        (200, {"Content_Type": "application/json"}, b'{"result":{}}'),
        (200, {"Content_Type": "application/json"}, b'{"jsonrpc":"2.0","id":99999,"result":{}}'),
        (200, {"Content_Type": "application/json"}, b"{" * 1000), (200, {"Content_Type": "image/png"}, b"\x89PNG"),
        (202, {}, b""), (204, {}, b""), (206, {}, b"part"), (200, {"Content_Encoding": "br"}, b"xx"),
        (200, {"Content_Type": "application/json", "Content_Encoding": "gzip"}, b"no gzip"), (302, {}, b""),
        (418, {"Content_Type": "text/plain"}, b"teapot"), (599, {}, b""), (999, {}, b""),
    ],
)  # fmt: skip
async def test_f13_one_bad_answer_costs_one_request(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    """F13: at once, typed, with what was wrong; the next call on the same session works."""
    turn = 0

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        nonlocal turn
        turn += 1
        line.answer(body, status, **headers) if turn == 1 else plainly(line, message, text)

    with took(0.0, 2.5):
        first, second = await ask(on_call, 2)
    assert isinstance(first, MooringsError), first
    assert len(str(first)) > 40
    assert second == "answer äö€😀"


async def test_f13_1_noise_on_a_stream_keeps_memory_flat() -> None:
    """F13.1: 30 MB of comments and of events that are no JSON before the answer: answered, nothing kept."""

    def on_call(line: Line, message: dict[str, Any], text: bytes) -> None:
        async def feed() -> None:
            line.say(SSE)
            for _ in range(300):
                line.say(b": " + b"x" * 50_000 + b"\n\n" + b"data: no JSON " + b"y" * 50_000 + b"\n\n")
                await line.writer.drain()
            line.say(b"data: " + text + b"\n\n")
            line.writer.close()

        feeding.append(asyncio.ensure_future(feed()))

    feeding: list[asyncio.Future[None]] = []
    async with serving(one_tool(on_call)) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, "handshake", bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            tracemalloc.start()
            try:
                assert (await host.call("a__echo", timeout=9.0)).text == "answer äö€😀"
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 8 * MIB
            assert host.status()["a"].counters.not_jsonrpc == 300
            await until(lambda: all(each.done() for each in feeding))
