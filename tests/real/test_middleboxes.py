"""Servers behind nginx and mitmproxy, held by Moorings: what a middle box holds back, answers itself, or kills.

The server behind the box is the scripted one, which counts; the box is the real thing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from moorings import AmbiguousDelivery, AsyncHost, Bounds, HttpServer, NotSent, Refused, StartError
from tests.faults.http_server import HttpFaults
from tests.real.middleboxes import Box, mitmproxy, nginx

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
ALL = pytest.mark.parametrize("era", ["handshake", "modern", "sse"])
SLACK = 1.0
"""Seconds by which an upper limit may be passed on a busy machine."""
SILENCE = 0.3
"""Seconds; how long a box holds something back has no end that could be waited for."""


def host_of(box: Box, era: str, **bounds: Any) -> AsyncHost:
    url = box.origin + ("/sse" if era == "sse" else "/mcp")
    return AsyncHost({"s": HttpServer(url=url, bounds=Bounds(cooldown=0.0, **bounds))}, state_dir=False)


@asynccontextmanager
async def held(box: Box, server: HttpFaults, **bounds: Any) -> AsyncIterator[AsyncHost]:
    """A host that is ready with the server behind the box; the server saw nothing that a client must not send."""
    async with asyncio.timeout(60), host_of(box, server.script["era"], **bounds) as host:
        readiness = await host.wait_ready()
        assert readiness.all_ready, readiness
        yield host
    assert not server.violations, server.violations


@contextmanager
def within(most: float, least: float = 0.0) -> Iterator[None]:
    """What is inside takes so many seconds."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took < most, f"it took {took:.2f} s, not {least} to {most}"


def told(box: Box, line: str) -> int:
    """How often the box wrote this: nginx ``POST 502``, mitmproxy ``tools/call kill``."""
    return (box.log or box.output).read_text().splitlines().count(line)


async def listened_to(server: HttpFaults) -> None:
    """Wait until what the server tells by itself has somebody to go to."""
    await server.until(lambda server: server.listens or any(seen.status == 200 for seen in server.of("GET")))


async def text(host: AsyncHost, tool: str, **options: Any) -> str:
    return (await host.call(("s", tool), options.pop("arguments", {}), **options)).text


# --- nginx --------------------------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("buffering", [True, False], ids=["buffering", "unbuffered"])
async def test_through_nginx_all_is_answered_and_progress_comes_when_it_lets_it(
    buffering: bool, era: str, tmp_path: Path
) -> None:
    async with HttpFaults(era=era) as server:
        with nginx(server.port, tmp_path, buffering=buffering) as box:
            async with held(box, server) as host:
                assert host.status()["s"].era == era
                for answers in ("json", "sse"):
                    server.set(answers=answers)
                    assert await text(host, "echo", arguments={"text": answers}) == answers
                    assert len(await text(host, "big", arguments={"bytes": 500_000})) == 500_000
                    both = (text(host, "effect", arguments={"name": answers}) for _ in range(8))
                    assert sorted(await asyncio.gather(*both)) == [str(n) for n in range(1, 9)]
                seen: list[float] = []
                heard = asyncio.Event()

                def on_progress(progress: float, total: float | None, message: str | None) -> None:
                    seen.append(progress)
                    if len(seen) == 3:
                        heard.set()

                calling = asyncio.ensure_future(text(host, "hold", on_progress=on_progress))
                request = await server.seen("tools/call", tool="hold")
                name, token = f"post{request.number}", request.params["_meta"]["progressToken"]
                await server.until(lambda server: name in server.streams)
                for step in (1, 2, 3):
                    params = {"progressToken": token, "progress": step}
                    message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
                    server.streams[name].send(message)
                if buffering:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(heard.wait(), SILENCE)
                else:
                    await heard.wait()
                server.release("hold")
                assert await calling == "released"
                assert seen == [1, 2, 3]


@ERAS
@pytest.mark.parametrize("buffering", [True, False], ids=["buffering", "unbuffered"])
async def test_a_list_is_kept_only_where_nginx_lets_its_changes_through(
    buffering: bool, era: str, tmp_path: Path
) -> None:
    async with HttpFaults(era=era) as server:
        with nginx(server.port, tmp_path, buffering=buffering) as box, within(10):
            async with held(box, server) as host:
                await listened_to(server)
                await host.tools()
                before = server.count("tools/list")
                if buffering:
                    # It would not be told: so it asks each time.
                    await host.tools()
                    assert server.count("tools/list") == before + 1
                else:
                    server.list_changed()
                    await server.seen("tools/list", before + 1)
                    await host.tools()


@ERAS
async def test_f6_5_behind_a_502_of_nginx_the_server_may_have_acted(era: str, tmp_path: Path) -> None:
    async with HttpFaults(era=era, on={"tools/call": ["die_after", "ok"]}) as server:
        with nginx(server.port, tmp_path, buffering=False) as box:
            async with held(box, server) as host:
                with pytest.raises(AmbiguousDelivery) as failed:
                    await text(host, "effect")
                error = failed.value
                assert error.sent
                assert error.http is not None
                assert error.http.status == 502
                assert error.http.url == box.origin + "/mcp"
                assert "502 Bad Gateway" in error.http.excerpt
                assert "HTTP 502 Bad Gateway" in str(error)
                assert server.effects["effect"] == 1
                # What only reads goes out once more.
                server.set(on={"tools/call": ["die_after", "ok"]})
                assert await text(host, "read", arguments={"name": "reads"}) == "2"
                # And what is opted in; but not a third time.
                server.set(on={"tools/call": "die_after"})
                with pytest.raises(AmbiguousDelivery, match="502"):
                    await text(host, "effect", arguments={"name": "twice"}, repeat=True)
                assert server.effects["twice"] == 2
                server.set(on={"tools/call": "ok"})
                assert await text(host, "effect") == "2"
                assert told(box, "POST 502") == 4
                assert host.status()["s"].generation == 1
        assert server.count("initialize") == (1 if era == "handshake" else 0)


@ERAS
async def test_f6_5_behind_a_504_of_nginx_too(era: str, tmp_path: Path) -> None:
    async with HttpFaults(era=era, on={"tools/call": ["silent", "ok"]}) as server:
        with nginx(server.port, tmp_path, buffering=False, read_timeout=1) as box:
            async with held(box, server) as host:
                with within(1 + SLACK, 1.0), pytest.raises(AmbiguousDelivery) as failed:
                    await text(host, "effect")
                assert failed.value.http is not None
                assert failed.value.http.status == 504
                assert "504 Gateway" in failed.value.http.excerpt
                assert await text(host, "effect") == "1"
                assert told(box, "POST 504") == 1


@ERAS
async def test_a_server_that_goes_down_behind_nginx_and_comes_up_again_needs_no_new_start(
    era: str, tmp_path: Path
) -> None:
    async with HttpFaults(era=era, get="status:405", capabilities={"tools": {}}) as server:
        with nginx(server.port, tmp_path, buffering=False) as box:
            async with held(box, server) as host:
                await server.stop_listening()
                server.drop_connections()
                with pytest.raises(AmbiguousDelivery, match="502 Bad Gateway"):
                    await text(host, "effect")
                await server.listen()
                assert await text(host, "effect") == "1"
                assert told(box, "POST 502") == 1
                status = host.status()["s"]
                assert (status.state.value, status.generation) == ("ready", 1)


@pytest.mark.parametrize("protocol", ["auto", "handshake", "2026-07-28"])
async def test_a_start_behind_a_502_names_it_and_the_next_use_finds_the_server(
    protocol: Any, tmp_path: Path
) -> None:
    async with HttpFaults(era="dual") as server:
        await server.stop_listening()
        with nginx(server.port, tmp_path) as box:
            spec = HttpServer(
                url=box.origin + "/mcp?key=s3cret", protocol=protocol, bounds=Bounds(cooldown=0.0)
            )
            async with asyncio.timeout(30), AsyncHost({"s": spec}, state_dir=False) as host:
                readiness = await host.wait_ready()
                assert "502 Bad Gateway" in readiness.failed["s"]
                error = host.status()["s"].last_error
                assert isinstance(error, StartError)
                assert error.http is not None
                assert (error.http.status, error.http.url) == (502, box.origin + "/mcp?key=…")
                assert "502 Bad Gateway" in error.http.excerpt
                with pytest.raises(NotSent, match="502 Bad Gateway") as failed:
                    await text(host, "echo")
                assert not failed.value.sent
                assert failed.value.http is not None
                assert failed.value.http.status == 502
                for shown in (str(error), str(failed.value), repr(host.status()), str(readiness)):
                    assert "s3cret" not in shown
                await server.listen()
                assert await text(host, "echo", arguments={"text": "up"}) == "up"
        # Nothing was taken for the older transport: one GET, and that for the stream.
        assert server.count("GET") <= 1


async def test_http_sse_through_nginx(tmp_path: Path) -> None:
    async with HttpFaults(era="sse") as server:
        with nginx(server.port, tmp_path, buffering=False) as box:
            async with held(box, server) as host:
                assert await text(host, "echo", arguments={"text": "ahoy"}) == "ahoy"
                seen: list[float] = []
                assert await text(host, "progress", on_progress=lambda done, *_: seen.append(done)) == "done"
                assert seen == [1, 2, 3]
                holding = asyncio.ensure_future(text(host, "hold"))
                await server.until(lambda server: server.effects["tool:hold"])
                server.set(on={"tools/call": ["die", "ok"]})
                with pytest.raises(AmbiguousDelivery, match="502 Bad Gateway") as failed:
                    await text(host, "effect")
                assert failed.value.http is not None
                assert failed.value.http.status == 502
                assert await text(host, "effect") == "1"
                server.release("hold")
                assert await holding == "released"
                assert host.status()["s"].generation == 1


async def test_a_start_of_http_sse_behind_a_502_names_it(tmp_path: Path) -> None:
    async with HttpFaults(era="sse") as server:
        await server.stop_listening()
        with nginx(server.port, tmp_path, buffering=False) as box:
            spec = HttpServer(url=box.origin + "/sse", transport="sse", bounds=Bounds(cooldown=0.0))
            async with asyncio.timeout(30), AsyncHost({"s": spec}, state_dir=False) as host:
                readiness = await host.wait_ready()
                assert "502 Bad Gateway" in readiness.failed["s"]
                error = host.status()["s"].last_error
                assert type(error) is StartError
                assert error.http is not None
                assert (error.http.status, error.http.url) == (502, box.origin + "/sse")
                await server.listen()
                assert await text(host, "echo", arguments={"text": "up"}) == "up"


async def test_http_sse_that_nginx_holds_back_is_told_in_time(tmp_path: Path) -> None:
    async with HttpFaults(era="sse") as server:
        with nginx(server.port, tmp_path) as box, within(1 + SLACK, 1.0):
            async with host_of(box, "sse", connect=1.0) as host:
                readiness = await host.wait_ready()
                assert "its event stream did not say where to send to" in readiness.failed["s"]
                assert "of 1 s allowed" in readiness.failed["s"]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
async def test_nginx_that_wants_a_client_certificate(version: str, tmp_path: Path) -> None:
    ca, foreign = trustme.CA(), trustme.CA()

    def written(name: str, *blobs: trustme.Blob) -> str:
        path = tmp_path / name
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return str(path)

    ca_file = written("ca.pem", ca.cert_pem)
    own = ca.issue_cert("127.0.0.1")
    chain = written("own.pem", *own.cert_chain_pems)
    key = written("own.key", own.private_key_pem)
    tls = f"""
    ssl_certificate {chain}; ssl_certificate_key {key}; ssl_protocols {version};
    ssl_client_certificate {ca_file}; ssl_verify_client on;
    """
    async with HttpFaults(era="modern") as server:
        with nginx(server.port, tmp_path, buffering=False, tls=tls) as box:
            url = box.origin.replace("http:", "https:") + "/mcp"

            async def start(client_cert: str | None) -> tuple[str, str]:
                spec = HttpServer(url=url, ca_file=ca_file, client_cert=client_cert)
                async with asyncio.timeout(30), AsyncHost({"s": spec}, state_dir=False) as host:
                    readiness = await host.wait_ready()
                    if not readiness.all_ready:
                        return readiness.failed["s"], ""
                    return "", await text(host, "echo", arguments={"text": "ahoy"})

            mine = written("mine.pem", ca.issue_cert("me@example.com").private_key_and_cert_chain_pem)
            other = foreign.issue_cert("me@example.com").private_key_and_cert_chain_pem
            assert await start(mine) == ("", "ahoy")
            calls = len(server.requests)
            missing, _ = await start(None)
            assert "HTTP 400" in missing
            assert "No required SSL certificate was sent" in missing
            wrong, _ = await start(written("other.pem", other))
            assert "HTTP 400" in wrong
            assert "The SSL certificate error" in wrong
            assert len(server.requests) == calls


# --- mitmproxy ----------------------------------------------------------------------------------------------------


@ERAS
async def test_f5_13_a_503_is_waited_out_where_it_says_how_long_and_told_where_not(
    era: str, real_server: RealServer, tmp_path: Path
) -> None:
    words = ["503:1", "ok", "503:60", "503", "503", "ok", "ok"]
    async with HttpFaults(era=era) as server:
        with mitmproxy(server.port, real_server, tmp_path, {"tools/call": words}) as box:
            async with held(box, server) as host:
                with within(1 + SLACK, 1.0):
                    assert await text(host, "effect", timeout=10) == "1"
                # Longer than the call may take: told at once, and nothing ran.
                with within(SLACK), pytest.raises(Refused) as busy:
                    await text(host, "effect", timeout=10)
                assert not busy.value.sent
                assert busy.value.http is not None
                assert (busy.value.http.status, busy.value.http.retry_after) == (503, 60)
                assert "60 s" in str(busy.value)
                # Without a word of when: nobody knows who said it, and whether it ran.
                with pytest.raises(AmbiguousDelivery) as unsure:
                    await text(host, "effect")
                assert unsure.value.http is not None
                assert (unsure.value.http.status, unsure.value.http.excerpt) == (503, "no luck today")
                assert "no luck today" in str(unsure.value)
                assert await text(host, "read", arguments={"name": "reads"}) == "1"
                assert await text(host, "effect") == "2"
                assert told(box, "tools/call ok") == 3
                assert host.status()["s"].generation == 1


@ALL
async def test_a_killed_request_costs_that_call_only(
    era: str, real_server: RealServer, tmp_path: Path
) -> None:
    words = ["ok"] * 7 + ["kill", "kill_answer", "kill", "ok"]
    async with HttpFaults(era=era, answers={"tools/call": "json"}) as server:
        with mitmproxy(server.port, real_server, tmp_path, {"tools/call": words}) as box:
            async with held(box, server) as host:
                flying = [asyncio.ensure_future(text(host, "hold")) for _ in range(7)]
                await server.seen("tools/call", 7, tool="hold")
                with within(5), pytest.raises(AmbiguousDelivery) as killed:
                    await text(host, "effect")
                assert killed.value.sent
                assert server.effects["effect"] == 0
                # The server has acted, and what it answered was killed. Over HTTP+SSE that is a mere receipt: the
                # answer may come by the stream before it is known that the receipt does not.
                with within(5):
                    try:
                        assert await text(host, "effect") == "1"
                        assert era == "sse"
                    except AmbiguousDelivery as unsure:
                        assert unsure.sent
                await server.until(lambda server: server.effects["effect"] == 1)
                # What only reads goes out again.
                assert await text(host, "read", arguments={"name": "reads"}) == "1"
                assert await text(host, "effect") == "2"
                assert not any(call.done() for call in flying)
                server.release("hold")
                assert await asyncio.gather(*flying) == ["released"] * 7
                status = host.status()["s"]
                assert (status.state.value, status.generation) == ("ready", 1)
                assert told(box, "tools/call kill") == 2
        # Over HTTP+SSE the first was the question whether it speaks Streamable HTTP.
        assert server.count("initialize") == {"handshake": 1, "modern": 0, "sse": 2}[era]
        assert server.effects["tool:hold"] == 7


async def test_a_killed_listening_stream_is_opened_again_and_hurts_nobody(
    real_server: RealServer, tmp_path: Path
) -> None:
    async with HttpFaults() as server:
        with mitmproxy(server.port, real_server, tmp_path, {"GET": ["kill", "503", "ok"]}) as box:
            async with held(box, server) as host:
                assert await text(host, "effect") == "1"
                await listened_to(server)
                server.list_changed()
                await server.seen("tools/list", 2)
                assert await text(host, "effect") == "2"
                assert told(box, "GET kill") == told(box, "GET 503") == 1
        assert server.count("initialize") == 1


@pytest.mark.parametrize("first", ["503", "kill", "kill_answer"])
async def test_a_start_that_meets_a_fault_is_told_and_the_next_use_starts(
    first: str, real_server: RealServer, tmp_path: Path
) -> None:
    script = {"initialize": [first, "503:1", "ok"]}
    async with HttpFaults() as server:
        with mitmproxy(server.port, real_server, tmp_path, script) as box, within(40):
            async with host_of(box, "handshake") as host:
                readiness = await host.wait_ready()
                assert ("503" if first == "503" else "connection") in readiness.failed["s"]
                assert await text(host, "effect") == "1"
                assert host.status()["s"].generation == 2
        assert told(box, "initialize 503:1") == 1
