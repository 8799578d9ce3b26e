"""Class 16 over HTTP: what is bound to an origin stays there, whatever a server says: redirects, endpoints, ids that
would be headers, bombs."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

from moorings import AsyncHost, Bounds, CallError, MooringsError
from tests.faults.http_server import HttpFaults
from tests.host.kit import took
from tests.http_life.kit import WAYS, faults, nothing_left, spec, until
from tests.net.kit import Line, serving

SECRETS = {"Authorization": "Bearer bearer-4711", "X-API-Key": "key-0815"}
QUICK = Bounds(connect=3.0, call=3.0, http_close=0.5, cooldown=0.0)


# --- redirects ----------------------------------------------------------------------------------------------------

WHERE: list[tuple[str, str]] = [
    ("handshake", "initialize"),
    ("handshake", "notifications/initialized"),
    ("handshake", "tools/list"),
    ("handshake", "tools/call"),
    ("handshake", "GET"),
    ("handshake", "DELETE"),
    ("modern", "server/discover"),
    ("modern", "subscriptions/listen"),
    ("modern", "tools/call"),
    ("sse", "GET"),
    ("sse", "initialize"),
    ("sse", "tools/call"),
]


@pytest.mark.parametrize(
    ("source", "code"),
    [*(("table", code) for code in (301, 302, 303, 307, 308)), ("function", 307), ("command", 307)],
)
@pytest.mark.parametrize(("way", "where"), WHERE)
async def test_f16_3_no_redirect_leads_to_another_origin(
    way: str, where: str, code: int, source: str
) -> None:
    """F16.3: another port is another origin; nothing at all arrives there, and the error says where it was to go."""
    headers: dict[str, Any] = {
        "table": {"headers": SECRETS},
        "function": {"headers": lambda: SECRETS},
        "command": {
            "headers_command": (
                sys.executable,
                "-S",
                "-E",
                "-c",
                f"import json; print(json.dumps({SECRETS!r}))",
            )
        },
    }[source]
    async with faults(way) as other, faults(way) as server, nothing_left():
        server.set(on={where: f"redirect:{code}:{other.origin}/mcp"})
        error: MooringsError | None = None
        async with AsyncHost({"a": spec(server.url, way, bounds=QUICK, **headers)}, state_dir=False) as host:
            ready = await host.wait_ready(5)
            try:
                await host.call("a__effect", timeout=3.0)
            except MooringsError as refused:
                error = refused
            await server.seen(where) if where != "DELETE" else None
        assert other.requests == []
        assert other.connections == 0
        assert server.count(where) >= 1
        if where in ("initialize", "server/discover", "tools/call") or (way, where) == ("sse", "GET"):
            assert error is not None
            assert "another origin" in str(error) or "GET" in str(error), error
            assert server.effects["effect"] == 0
        elif where in ("DELETE", "GET", "notifications/initialized", "subscriptions/listen"):
            assert ready.all_ready
            assert error is None
        if error is not None:
            assert all(secret not in str(error) for secret in ("bearer-4711", "key-0815"))


async def test_f16_3_nor_from_https_to_http_nor_to_another_name(tmp_path: Path) -> None:
    """F16.3: scheme, host and port are the origin; 127.0.0.1 and localhost are two."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    async with faults("modern") as plain, HttpFaults(era="modern", ssl=tls) as server:
        for target in (
            f"http://localhost:{plain.port}/mcp",
            f"https://127.0.0.1:{server.port}/mcp",
            f"//127.0.0.1:{plain.port}/mcp",
            f"https://localhost:{server.port}@127.0.0.1:{plain.port}/mcp",
            "ftp://localhost/",
            "javascript:alert(1)",
            "http://[::1",
            "",
        ):
            server.set(on={"tools/call": f"redirect:307:{target}"})
            a = spec(server.url, "modern", bounds=QUICK, headers=SECRETS, ca_file=str(tmp_path / "ca.pem"))
            async with AsyncHost({"a": a}, state_dir=False) as host:
                await host.wait_ready(5)
                with pytest.raises(CallError):
                    await host.call("a__effect", timeout=3.0)
            assert plain.requests == []
            assert server.effects["effect"] == 0


@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f13_8_a_redirect_within_the_origin_is_followed_and_remembered(way: str) -> None:
    """F13.8: with method, body and headers; the next message goes there at once."""
    async with faults(way, on={"/old": "redirect:308:/mcp"}) as server:
        url = f"{server.origin}/old"
        async with AsyncHost({"a": spec(url, way, headers=SECRETS, bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            for n in range(3):
                assert (await host.call("a__echo", {"text": str(n)})).text == str(n)
        old = [seen for seen in server.requests if seen.path == "/old"]
        assert len(old) == 1
        assert all(seen.headers["x-api-key"] == "key-0815" for seen in server.requests)
        assert server.violations == []


@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f13_8_redirects_can_be_switched_off(way: str) -> None:
    """F13.8: ``redirects=False``: none, the GET stream's included."""
    async with faults(way, on={"GET": "redirect:307:/mcp"}) as server:
        a = spec(server.url, way, redirects=False, bounds=QUICK)
        async with AsyncHost({"a": a}, state_dir=False) as host:
            assert (await host.wait_ready(5)).all_ready
            server.set(on={"tools/call": "redirect:307:/mcp"})
            with pytest.raises(CallError, match="not followed"):
                await host.call("a__echo")
        assert server.count("GET") == (1 if way == "handshake" else 0)


# --- endpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://{other}/messages", "//{other}/messages", "https://{own}/messages", "http://localhost:{port}/messages",
        "javascript:alert(1)", "data:text/plain,x", "file:///etc/passwd", "http://[::1", "http://a b/c",
        "http://{own}@{other}/messages", "http://{other}\\@{own}/messages", "ftp://{own}/", "http://{own}:99999/",
        "\x01\x02",
    ],
)  # fmt: skip
async def test_f16_3_an_endpoint_of_another_origin_is_refused(endpoint: str) -> None:
    """F16.3: at once, typed, and nothing is sent anywhere."""
    async with faults("sse") as other, faults("sse") as server, nothing_left():
        own = f"127.0.0.1:{server.port}"
        told = endpoint.format(other=f"127.0.0.1:{other.port}", own=own, port=server.port)
        server.set(endpoint=f"to:{told}")
        a = spec(server.url, "sse", headers=SECRETS, bounds=QUICK)
        async with AsyncHost({"a": a}, state_dir=False) as host:
            with took(0.0, 1.0):
                ready = await host.wait_ready(5)
            assert "another origin" in ready.failed["a"] or "no address" in ready.failed["a"], ready
        assert other.requests == []
        assert [seen.http for seen in server.requests] == ["GET"]


@pytest.mark.parametrize("kind", ["ok", "absolute", "query", "twice"])
async def test_f16_3_an_endpoint_of_its_own_origin_is_taken(kind: str) -> None:
    """F16.3: as a path, a URL, a query alone; the first one counts."""
    async with faults("sse", endpoint=kind) as server:
        async with AsyncHost({"a": spec(server.url, "sse", headers=SECRETS)}, state_dir=False) as host:
            assert (await host.wait_ready(5)).all_ready
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
        assert all(seen.headers["x-api-key"] == "key-0815" for seen in server.requests)


# --- headers ------------------------------------------------------------------------------------------------------


async def test_f16_11_names_and_arguments_make_no_headers() -> None:
    """F16.11: line breaks and what is no ASCII in a tool's name, or in an argument that is mirrored."""
    names = ["a\r\nX-Evil: 1", "wörk", "tab\there", " edges ", "=?base64?eA==?=", "名前", "\x00nul"]
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tools = [{"name": name, "inputSchema": schema} for name in names]
    async with faults("modern", tools=tools) as server:
        async with AsyncHost({"a": spec(server.url, "modern", bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            for name in names:
                with contextlib.suppress(CallError):
                    await host.call_raw("a", name, {"region": name})
        calls = server.of("tools/call")
        assert [seen.tool for seen in calls] == names
        for seen in calls:
            assert not any("evil" in header for header in seen.headers)
            assert all(value.isascii() and value.isprintable() for value in seen.headers.values())
        assert server.violations == []


@pytest.mark.parametrize(
    "given",
    ["a b", "x\x01y", "wörk", "", "x" * 5000, "a\tb"],
    ids=["blank", "control", "umlaut", "empty", "long", "tab"],
)
async def test_f16_11_a_session_id_that_is_no_header_is_left_out(given: str) -> None:
    """F16.11: only visible ASCII is sent back."""
    got: list[dict[str, str]] = []

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            got.append(request.headers)
            answer(line, request.body, Mcp_Session_Id=given)

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, "handshake", bounds=QUICK)}, state_dir=False) as host:
            ready = await host.wait_ready(5)
            if ready.all_ready:
                await host.call("a__echo")
        assert all("mcp-session-id" not in headers for headers in got)


def answer(line: Line, body: bytes, **headers: str) -> None:
    """What a server of the handshake era answers that has one tool."""
    import json

    message = json.loads(body) if body else {}
    result: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "t", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "x"}]},
    }.get(message.get("method"), {})
    if "id" not in message:
        line.answer(b"", 202 if message else 405, **headers)
        return
    text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    line.answer(text, 200, Content_Type="application/json", **headers)


@pytest.mark.parametrize("event_id", ["\x01", "a\tb", "wörk", "x" * 10_000])
async def test_f16_11_an_event_id_that_is_no_header_does_not_repeat_a_call(event_id: str) -> None:
    """F16.11, F6.6: the stream breaks after it; what was sent stays sent, and the effect happens once."""
    calls = 0
    opened: list[str | None] = []

    async def script(line: Line) -> None:
        nonlocal calls
        while (request := await line.request()) is not None:
            if request.method == "GET":
                opened.append(request.headers.get("last-event-id"))
            if b'"tools/call"' in request.body:
                calls += 1
                body = f"id: {event_id}\ndata:\n\n".encode()
                line.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                line.say(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            else:
                answer(line, request.body)

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, "handshake", bounds=QUICK)}, state_dir=False) as host:
            await host.wait_ready(5)
            with pytest.raises(CallError) as failed:
                await host.call("a__echo", timeout=3.0)
        assert failed.value.sent is True
        assert calls == 1


# --- bombs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["bomb:400000000", "big_body:40000000", "big_event:40000000"])
@pytest.mark.parametrize("way", ["handshake", "modern"])
async def test_f16_bombs_are_capped(way: str, word: str) -> None:
    """F13.2, F16: what swells is cut at the cap: typed, the cap in it; memory stays flat, and the next call works."""
    bounds = Bounds(connect=5.0, call=3.0, max_message=4 * 1024 * 1024, http_close=0.5)
    async with faults(way, on={"tools/call": [word, "ok"]}) as server:
        async with AsyncHost({"a": spec(server.url, way, bounds=bounds)}, state_dir=False) as host:
            await host.wait_ready(5)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            # The server of the test needs seconds to make a bomb, on a busy machine.
            limit = 30.0 if word.startswith("bomb") else 3.0
            with pytest.raises(CallError) as failed:
                await host.call("a__effect", timeout=limit)
            if word.startswith("big_event"):
                assert "no answer within" in str(failed.value) or "max_message" in str(failed.value)
            else:
                assert "max_message" in str(failed.value)
            assert failed.value.sent is True
            if word.startswith("bomb"):
                assert (
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
                )  # KiB, the server's own too
            assert (await host.call("a__echo", {"text": "x"})).text == "x"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "bomb", ["one long header", "many headers", "endless headers", "deep JSON", "many small events"]
)
async def test_f16_other_bombs(bomb: str, way: str) -> None:
    """F16: a head without an end, a hundred thousand brackets: typed, within the limit, and close works."""
    fed = asyncio.Event()

    async def script(line: Line) -> None:
        request = await line.request()
        if request is None:
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: "
        with contextlib.suppress(ConnectionError):
            match bomb:
                case "one long header":
                    line.say(head + b"application/json\r\nX-Long: " + b"x" * 10_000_000 + b"\r\n\r\n")
                case "many headers":
                    line.say(head + b"application/json\r\n" + b"X-Many: y\r\n" * 500_000 + b"\r\n")
                case "endless headers":
                    line.say(head + b"application/json\r\n")
                    while True:
                        line.say(b"X-Endless: y\r\n" * 1000)
                        await line.writer.drain()
                        await asyncio.sleep(0)
                case "deep JSON":
                    body = b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
                    line.say(head + b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                case _:
                    line.say(head + b"text/event-stream\r\n\r\n")
                    for _ in range(2000):
                        line.say(b"data: {}\n\n" * 100)
                        await line.writer.drain()
                        await asyncio.sleep(0)
            fed.set()
            await line.ended()

    async with serving(script) as server:
        bounds = Bounds(connect=2.0, probe=0.5, http_close=0.5)
        url = f"http://127.0.0.1:{server.port}/"
        async with AsyncHost({"a": spec(url, way, bounds=bounds)}, state_dir=False) as host:
            with took(0.0, 4.0):
                ready = await host.wait_ready(5)
            assert "a" in ready.failed
            with took(0.0, 1.5):
                await host.close(1.0)


async def test_f16_a_retry_of_a_century_is_capped() -> None:
    """F16: ``retry:`` is a wish; a stream is opened anew within the cap."""
    from moorings.transport import http

    async with faults("handshake", retry=10**15, priming=True) as server:
        async with AsyncHost({"a": spec(server.url, "handshake")}, state_dir=False) as host:
            await host.wait_ready(5)
            await server.seen("GET")
            transport = host._servers["a"].life._transport  # type: ignore[union-attr]
            assert isinstance(transport, http.HttpTransport)
            stream = http._Stream(transport, None)
            assert stream.wait <= http.LONGEST_RETRY
            await until(lambda: server.count("GET") == 1)
