"""F16.5 over HTTP: secrets pass through failing runs, and a search in everything that people may read finds none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import traceback
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, HttpServer, MooringsError, StdioServer
from tests.host.kit import Events
from tests.http_life.kit import WAYS, blackhole, faults, spec
from tests.net.kit import HttpProxy, Line, serving

BEARER, KEY, QUERY, COMMAND, LOGIN = (
    "bearer-aa11bb22",
    "key-cc33dd44",
    "query-ee55ff66",
    "cmd-99aa88bb",
    "login-77cc66dd",
)
SECRETS = (BEARER, KEY, QUERY, COMMAND, LOGIN)
QUICK = Bounds(connect=0.8, probe=0.2, call=0.5, dial=0.5, http_close=0.2, cooldown=0.0)
HEADERS = {"Authorization": f"Bearer {BEARER}", "X-API-Key": KEY}


def told(value: Any) -> str:
    """All that can be read in a value: as text, as repr, with its parts, its causes and its traceback."""
    parts = [str(value), repr(value)]
    if isinstance(value, BaseException):
        parts += ["".join(traceback.format_exception(value)), repr(vars(value))]
    with contextlib.suppress(TypeError, ValueError):
        parts.append(json.dumps(value, default=repr))
    return "\n".join(parts)


async def run_through(a: HttpServer, caplog: pytest.LogCaptureFixture, calls: int = 3) -> str:
    """Start, call, fail, close; all that anybody was told meanwhile."""
    caplog.set_level(logging.DEBUG)
    events = Events()
    heard: list[Any] = [a, dict(a.__rich_repr__())]
    async with AsyncHost({"a": a}, state_dir=False, on_event=events) as host:
        heard.append(await host.wait_ready(6))
        for _ in range(calls):
            try:
                heard.append((await host.call("a__effect", timeout=0.5)).text)
            except MooringsError as error:
                heard.append(error)
        with contextlib.suppress(MooringsError):
            heard.append(await host.tools(servers=["a"]))
        heard.append(host.status())
        for status in host.status().values():
            heard.extend((status, status.last_error))
        heard.append([repr(task) for task in asyncio.all_tasks()])
        heard.append(await host.close(1.0))
    heard.extend(events.all)
    heard.extend(caplog.handler.format(record) for record in caplog.records)
    return "\n".join(told(each) for each in heard)


WORDS = [
    "ok", "unauthorized", "forbidden", "status:400:bad", "status:404", "status:413", "status:500:broken", "status:502",
    "html", "garbage", "die", "die_after", "half_headers", "empty", "silent", "later:429:60", "redirect:307:/elsewhere",
    f"redirect:307:http://user:{LOGIN}@127.0.0.2/x?key={QUERY}", "error:-32000:500", "json_text:nonsense",
    "die_in_body",
]  # fmt: skip


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("way", WAYS)
async def test_f16_5_secrets_in_a_run_that_fails(
    way: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F16.5: in the headers and in the query of the URL, whatever the server answers, at the start and later."""
    on = {"tools/call": word} if way != "sse" else {"/messages": ["ok", "ok", "ok", word]}
    async with faults(way, on=on) as server:
        a = spec(f"{server.url}?key={QUERY}", way, headers=HEADERS, bounds=QUICK)
        text = await run_through(a, caplog)
        assert all(seen.headers.get("x-api-key") == KEY for seen in server.requests)
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("word", [w for w in WORDS if w != "ok"])
@pytest.mark.parametrize("way", [*WAYS, "auto"])
async def test_f16_5_secrets_in_a_start_that_fails(
    way: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F16.5: the same where no message is ever answered."""
    async with faults(
        way, on={"POST": word, "GET": word, "initialize": word, "server/discover": word}
    ) as server:
        a = spec(f"{server.url}?key={QUERY}", way, headers=HEADERS, bounds=QUICK)
        text = await run_through(a, caplog, calls=1)
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 502])
@pytest.mark.parametrize("form", ["text", "JSON-RPC error", "page", "challenge"])
@pytest.mark.parametrize("way", WAYS)
async def test_f16_5_a_server_that_repeats_what_it_was_sent(
    way: str, form: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """F16.5: an error page, a JSON error or a challenge that holds the request, headers and all."""

    async def script(line: Line) -> None:
        while (request := await line.request()) is not None:
            said = f"{request.method} {request.target} " + " ".join(f"{k}={v}" for k, v in request.pairs)
            match form:
                case "text":
                    line.answer(said.encode(), status, Content_Type="text/plain")
                case "page":
                    line.answer(
                        f"<html><body>{said}</body></html>".encode(), status, Content_Type="text/html"
                    )
                case "challenge":
                    line.answer(b"", status, WWW_Authenticate=f'Bearer error="{said}"')
                case _:
                    id_ = json.loads(request.body)["id"] if request.body and b'"id"' in request.body else None
                    error = {"code": -32000, "message": said, "data": {"request": said}}
                    body = json.dumps({"jsonrpc": "2.0", "id": id_, "error": error}).encode()
                    line.answer(body, status, Content_Type="application/json")

    async with serving(script) as server:
        url = f"http://127.0.0.1:{server.port}/?key={QUERY}"
        text = await run_through(spec(url, way, headers=HEADERS, bounds=QUICK), caplog, calls=1)
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("how", ["raises", "wrong kind", "bad header", "bad value", "late", "raises later"])
async def test_f16_5_a_function_for_headers_that_fails(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """F16.5: its exception, its value and its name hold the secret."""
    import functools

    runs = 0

    async def give(secret: str) -> Any:
        nonlocal runs
        runs += 1
        match how:
            case "raises":
                raise ValueError(f"no token for {secret}")
            case "wrong kind":
                return secret
            case "bad header":
                return {f"X {secret}": "x"}
            case "bad value":
                return {"X-Key": f"{secret}\r\nX-Other: {secret}"}
            case "late":
                await asyncio.sleep(30)
            case "raises later" if runs > 1:
                raise RuntimeError(secret)
        return {"X-API-Key": secret}

    on = {"tools/call": "unauthorized"} if how == "raises later" else {}
    async with faults("handshake", on=on) as server:
        bounds = Bounds(connect=2.0, headers_command=0.5, http_close=0.3, cooldown=0.0)
        a = spec(server.url, "handshake", headers=functools.partial(give, KEY), bounds=bounds)
        text = await run_through(a, caplog, calls=1)
    assert KEY not in text


@pytest.mark.parametrize("how", ["prints", "fails", "nonsense", "too much"])
async def test_f16_5_a_command_for_headers(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """F16.5: its arguments and its output hold the secret; its stderr is for people."""
    code = {
        "prints": "print('X-API-Key: ' + sys.argv[1])",
        "fails": "print('X-API-Key: ' + sys.argv[1]); sys.exit(3)",
        "nonsense": "print(sys.argv[1])",
        "too much": "print(sys.argv[1] * 100000)",
    }[how]
    command = (sys.executable, "-S", "-E", "-c", f"import sys; {code}", COMMAND)
    async with faults("handshake", on={"tools/call": "unauthorized"}) as server:
        a = spec(server.url, "handshake", headers_command=command, bounds=QUICK)
        text = await run_through(a, caplog, calls=1)
    assert COMMAND not in text


@pytest.mark.parametrize("kind", ["refused", "407", "502", "dead"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_f16_5_the_login_of_a_proxy(kind: str, scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    """F16.5, F14.8: a proxy that fails is told of as the proxy, without its password."""
    proxy = HttpProxy(login="u:other" if kind == "407" else None, status=502 if kind == "502" else None)
    with blackhole() as dead:
        async with serving(proxy.script) as server:
            port = {"refused": 1, "dead": dead}.get(kind, server.port)
            a = HttpServer(
                url=f"{scheme}://mcp.invalid/mcp?key={QUERY}",
                transport="http",
                headers=HEADERS,
                proxy=f"http://user:{LOGIN}@127.0.0.1:{port}",
                bounds=QUICK,
            )
            text = await run_through(a, caplog, calls=1)
    assert [secret for secret in SECRETS if secret in text] == []
    if kind != "dead" and not (kind == "502" and scheme == "http"):
        assert "proxy" in text


async def test_f16_5_the_environment_of_other_children(caplog: pytest.LogCaptureFixture) -> None:
    """F16.5: what is set for a server over HTTP is in no other server's environment or arguments."""
    code = "import os, sys, json; sys.stderr.write(json.dumps([dict(os.environ), sys.argv])); sys.exit(1)"
    async with faults("handshake") as server:
        specs = {
            "a": spec(f"{server.url}?key={QUERY}", "handshake", headers=HEADERS),
            "b": StdioServer(command=sys.executable, args=("-c", code), bounds=QUICK),
        }
        async with AsyncHost(specs, state_dir=False) as host:
            await host.wait_ready(10)
            tail = host.status()["b"].last_error
            assert tail is not None
            assert "PATH" in told(tail)
            assert [secret for secret in SECRETS if secret in told(tail)] == []
