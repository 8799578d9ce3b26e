"""A 401 on whatever a host sends, and what becomes of a token when a host ends or somebody is interrupted.

F10.1 on every kind of request: one refresh, one repeat. Ends: nothing new is begun by a close (class 2), and what was
begun is finished (class 10).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from moorings import AsyncHost, AuthSettings, CallTimeout, NeedsLogin
from tests.auth.host_kit import (
    BOUNDS,
    MEMORY,
    Person,
    bearers,
    brokers,
    by_then,
    files,
    holding,
    logged_in,
    outcome,
    run_out,
    spec,
    stored,
)
from tests.faults.auth_server import AuthFaults
from tests.host.kit import ROOT, threads_end

REFRESH = "token:refresh_token"


# --- Each kind of request -------------------------------------------------------------------------------------------


async def test_f10_1_on_the_get_stream(tmp_path: Path) -> None:
    """F10.1: refused when it is opened: refreshed once, opened again with the new token, and heard."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.requests.clear()
        server.set(on={"GET": ["unauthorized:Bearer", "ok"]})
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            await server.until(lambda each: [seen.status for seen in each.of("GET")] == [401, 200])
            first, second = bearers(server, "GET")
            assert first != second and len(server.grants("refresh_token")) == 1
            lists = server.count("tools/list")
            server.list_changed()
            await host.tools()
            await server.until(lambda each: each.count("tools/list") > lists)
            assert bearers(server, "tools/list")[-1] == second


async def test_f10_16_a_get_stream_that_is_always_refused(tmp_path: Path) -> None:
    """F10.16: it is optional: calls go on, and it is left alone after one refresh."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.requests.clear()
        server.set(on={"GET": "unauthorized:Bearer"})
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            await server.seen("GET", 2)
            for _ in range(3):
                assert await outcome(host) == "x"
            assert server.count("GET") == 2 and len(server.grants("refresh_token")) == 1
            assert events.states("s") == ["connecting", "ready"]


@pytest.mark.parametrize("method", ["notifications/initialized", "notifications/cancelled"])
async def test_f10_1_on_a_notification(method: str, tmp_path: Path) -> None:
    """F10.1: a notification that is refused is sent again, too."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.requests.clear()
        server.set(on={method: ["unauthorized:Bearer", "ok"]})
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            if method == "notifications/cancelled":
                assert isinstance(await outcome(host, "s__hold", key="k", timeout=0.2), CallTimeout)
            await server.until(lambda each: [seen.status for seen in each.of(method)] == [401, 202])
            first, second = bearers(server, method)
            assert first != second and len(server.grants("refresh_token")) == 1
            assert await outcome(host) == "x"


async def test_f10_1_on_the_closing_delete(tmp_path: Path) -> None:
    """F10.1, F2: the one exception: at the end nothing new is begun, so it is not refreshed for."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.requests.clear()
        server.set(on={"DELETE": "unauthorized:Bearer"})
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
            began = time.monotonic()
            await host.close(5.0)
            assert time.monotonic() - began < 3.0
        assert server.count("DELETE") == 1 and not server.grants()


async def test_f2_a_close_refreshes_nothing(tmp_path: Path) -> None:
    """Class 2: the token ran out while the host was idle; its close asks for no other one."""
    # Such a token is sent for 2 s: the last five seconds of its life are left to clocks and ways.
    async with AuthFaults(expires_in=7, lifetime=3600, refresh=False) as server:
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
            await asyncio.sleep(2.1)
            await host.close(5.0)
        assert len(server.grants()) == 1 and len(person.urls) == 1
    async with AuthFaults(expires_in=7, lifetime=3600) as server:
        await logged_in(server, tmp_path / "d")
        async with holding({"s": spec(server)}, files(tmp_path / "d")) as (host, _):
            await asyncio.sleep(2.1)
            count = len(server.grants())
            await host.close(5.0)
        assert len(server.grants()) == count


@pytest.mark.parametrize("place", ["/sse", "/messages"])
async def test_f10_1_on_http_and_sse(place: str, tmp_path: Path) -> None:
    """F10.1: on the GET of the older transport, and on its POSTs."""
    async with AuthFaults(era="sse") as server:
        await logged_in(server, tmp_path / "c", transport="sse")
        server.requests.clear()
        if place == "/sse":
            server.expire()
        async with holding({"s": spec(server, transport="sse")}, files(tmp_path / "c")) as (host, events):
            if place == "/messages":
                server.expire()
            assert await outcome(host, "s__effect", name="e") == "1"
            assert len(server.grants("refresh_token")) == 1 and server.effects["e"] == 1
            assert events.states("s") == ["connecting", "ready"]


async def test_f10_4_http_and_sse_whose_login_is_revoked(tmp_path: Path) -> None:
    """F10.4: the same words as over the newer transport, and the same wake."""
    async with AuthFaults(era="sse") as server:
        await logged_in(server, tmp_path / "c", transport="sse")
        async with holding({"s": spec(server, transport="sse")}, files(tmp_path / "c")) as (host, events):
            server.end(server.families[0])
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and error.reason == "revoked"
            await events.seen("s", "needs_auth")


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_f9_4_a_probe_that_wants_a_login(era: str) -> None:
    """F9.4: authorized first, then probed again, and only then is the era decided."""
    async with AuthFaults(era=era) as server:
        async with holding({"s": spec(server)}, browser=Person()) as (host, _):
            status = host.status()["s"]
            assert status.era == era
            assert await outcome(host) == "x"
        probes = [seen.status for seen in server.of("server/discover")]
        assert probes == ([401, 200] if era == "modern" else [401, 400])
        assert server.count("initialize") == (era == "handshake")


async def test_f7_2_an_authorization_server_that_swallows_everything(tmp_path: Path) -> None:
    """F7.2: the other servers are ready in under a second, whoever waits for that one."""
    async with AuthFaults() as slow, AuthFaults(open=True) as quick:
        await logged_in(slow, tmp_path / "c")
        await run_out(tmp_path / "c")
        slow.set(on={REFRESH: "silent"})
        bounds = msgspec.structs.replace(BOUNDS, auth=2.0)
        servers = {"slow": spec(slow, bounds=bounds), **{f"q{n}": spec(quick) for n in range(5)}}
        async with AsyncHost(servers, state_dir=False, credentials=files(tmp_path / "c")) as host:
            began = time.monotonic()
            report = await host.wait_ready(20, servers=[f"q{n}" for n in range(5)])
            assert report.all_ready and time.monotonic() - began < 1.5
            assert host.status()["slow"].state == "connecting"
        # A refresh is finished, whoever waits; the close of the host has waited a while.
        await threads_end("moorings-broker of tokens")


# --- Who is interrupted ---------------------------------------------------------------------------------------------

INTERRUPTED = """
import sys, threading, time
from pathlib import Path
from moorings import Host, HttpServer, CredentialSettings
from tests.auth.host_kit import BOUNDS

url, folder = sys.argv[1:]
server = HttpServer(url=url, transport="http", bounds=BOUNDS)
with Host({"s": server}, state_dir=False, credentials=CredentialSettings(store=f"file:{folder}")) as host:
    assert host.wait_ready(20).all_ready
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        host.call("s__echo", {"text": "x"})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    sys.stdin.readline()
    print(host.call("s__echo", {"text": "after"}).text, flush=True)
print("closed", threading.active_count(), flush=True)
"""


async def test_f2_8_ctrl_c_while_a_token_is_renewed(tmp_path: Path) -> None:
    """F2.8, F10.6: the caller is free at once; the refresh goes on, and the next call takes what it brought."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", INTERRUPTED, server.url, str(tmp_path / "c"), cwd=ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            async with asyncio.timeout(60):
                assert await process.stdout.readline() == b"ready\n"
                server.expire()
                server.set(on={REFRESH: "hold"})
                process.stdin.write(b"go\n")
                await server.until(lambda _: len(server.grants("refresh_token")) == 1, 30)
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                assert await process.stdout.readline() == b"interrupted\n"
                assert time.monotonic() - began < 1.5
                server.release(REFRESH)
                process.stdin.write(b"go\n")
                assert await process.stdout.readline() == b"after\n"
                assert await process.stdout.readline() == b"closed 1\n"
                await process.wait()
                assert await process.stderr.read() == b""
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        assert process.returncode == 0 and len(server.grants("refresh_token")) == 1
        (kept,) = await stored(tmp_path / "c")
        assert kept.refresh_token is not None and kept.refresh_token.reveal() == server.families[0].live


async def test_f2_7_a_close_while_somebody_is_at_a_browser() -> None:
    """F2.7: the login is given up with its host, at once: no token request comes of it, and no thread stays."""
    async with AuthFaults() as server:
        opened, closed = asyncio.Event(), asyncio.Event()

        async def slow(name: str, url: str) -> str:
            opened.set()
            try:
                await asyncio.Event().wait()
            finally:
                closed.set()
            return ""

        async with AsyncHost({"s": spec(server)}, state_dir=False, credentials=MEMORY, browser=slow) as host:
            async with asyncio.timeout(20):
                await opened.wait()
            call = asyncio.ensure_future(outcome(host))
            await asyncio.sleep(0)
            began = time.monotonic()
            await host.close(5.0)
            assert time.monotonic() - began < 3.0
            assert not isinstance(await call, str)
        assert closed.is_set() and not server.grants()
        await by_then(lambda: not brokers())


async def test_f12_7_a_person_takes_longer_than_a_start() -> None:
    """F12.7, as far as a host alone goes: others are not held up by it."""
    async with AuthFaults() as server, AuthFaults(open=True) as other:
        go = asyncio.Event()
        person = Person()

        async def slow(name: str, url: str) -> str:
            await go.wait()
            return await person(name, url)

        servers = {"s": spec(server), "o": spec(other)}
        async with AsyncHost(servers, state_dir=False, credentials=MEMORY, browser=slow) as host:
            assert (await host.wait_ready(20, servers=["o"])).all_ready
            assert await outcome(host, "o__echo") == "x"
            go.set()
            assert (await host.wait_ready(20)).all_ready
            assert len(person.urls) == 1


async def test_f10_a_machine_login_while_the_host_closes() -> None:
    """Class 10: a token without a person is asked for while the host closes: the close keeps its bound."""
    machine = {"client_secret": "s3cret-of-machine", "token_endpoint_auth_method": "client_secret_basic"}
    async with AuthFaults(clients={"machine": machine}, on={"token": "hold"}) as server:
        auth = AuthSettings(
            client_id="machine",
            client_secret="s3cret-of-machine",
            flow="client_credentials",
            issuer=server.issuer,
        )
        async with AsyncHost({"s": spec(server, auth)}, state_dir=False, credentials=MEMORY) as host:
            await server.until(lambda _: bool(server.grants()))
            began = time.monotonic()
            await host.close(3.0)
            assert time.monotonic() - began < 4.0
        server.release("token")
        with contextlib.suppress(TimeoutError):
            await by_then(lambda: not brokers())
        assert not brokers()
