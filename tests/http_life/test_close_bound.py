"""Closing servers over HTTP: one bound for the whole, whatever the peer does, and a report of what was not answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds, CallError, Host
from tests.faults import procs
from tests.faults.http_server import HttpFaults
from tests.faults.tcp import At, Plan, TcpProxy
from tests.host.kit import Events, took
from tests.http_life.kit import WAYS, blackhole, faults, held, mute, nothing_left, spec, until

SLOW = Bounds(connect=30.0, probe=20.0, dial=20.0, headers_command=20.0, http_close=30.0, cooldown=0.0)
"""Nothing but the close's own bound ends anything."""


# --- DELETE -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["silent", "comments:0.01", "stall"])
async def test_f2_3_a_hung_delete(word: str) -> None:
    """F2.3: the server takes the closing DELETE and never answers; the bound of the close holds, and is told of."""
    async with faults("handshake", delete=word) as server, nothing_left():
        async with AsyncHost({"a": spec(server.url, "handshake", bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            await host.call("a__echo")
            with took(0.9 if word == "silent" else 0.0, 2.0):
                report = await host.close(1.0)
        assert server.count("DELETE") == 1
        if word == "silent":
            assert report.unanswered == {"a": ("DELETE",)}
            assert not report.clean
        else:
            # Its head is an answer; nobody waits for a body.
            assert report.clean
        assert held(host) == {}


async def test_f2_3_the_bound_of_the_delete_is_a_setting() -> None:
    """F2.3: ``Bounds.http_close``, where the close has more time."""
    async with faults("handshake", delete="silent") as server:
        bounds = Bounds(http_close=0.3)
        async with AsyncHost({"a": spec(server.url, "handshake", bounds=bounds)}, state_dir=False) as host:
            await host.wait_ready(10)
            with took(0.3, 1.3):
                report = await host.close(10.0)
        assert report.unanswered == {"a": ("DELETE",)}


@pytest.mark.parametrize(
    ("word", "unanswered"),
    [("ok", ()), ("status:405", ()), ("status:404", ()), ("status:500", ()), ("redirect:307:/x", ()),
     ("die", ("DELETE",)), ("close_now", ("DELETE",)), ("garbage", ("DELETE",)), ("half_headers", ("DELETE",))],
)  # fmt: skip
async def test_f2_3_other_answers_to_delete(word: str, unanswered: tuple[str, ...]) -> None:
    """F2.3: any answer ends it at once; whatever comes, it is sent once."""
    async with faults("handshake", delete=word) as server, nothing_left():
        async with AsyncHost({"a": spec(server.url, "handshake", bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            with took(0.0, 1.0):
                report = await host.close(5.0)
        assert report.servers["a"].unanswered == unanswered
        assert server.count("DELETE") == 1


async def test_f2_3_a_restart_is_hastened_by_a_close() -> None:
    """F2.3: the DELETE hangs already, within a bound of its own that is longer than that of the close."""
    async with faults("handshake", delete="silent") as server, nothing_left():
        async with AsyncHost({"a": spec(server.url, "handshake", bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            restart = asyncio.create_task(host.server("a").restart())
            await server.seen("DELETE")
            with took(0.4, 1.5):
                report = await host.close(0.5)
            assert report.unanswered == {"a": ("DELETE",)}
            assert report.stuck == ()
            with contextlib.suppress(Exception):
                await restart
        assert server.count("initialize") == 1


@pytest.mark.parametrize("way", WAYS)
async def test_f2_4_the_callers_wait_is_free_while_the_close_goes_on(way: str) -> None:
    """F2.4: ``wait_for(close(), 0.2)`` frees the caller; the owner finishes, and a later close has the report."""
    async with faults(way, delete="silent") as server, nothing_left():
        host = AsyncHost({"a": spec(server.url, way, bounds=SLOW)}, state_dir=False)
        await host.start()
        await host.wait_ready(10)
        with took(0.0, 0.9), contextlib.suppress(TimeoutError):
            await asyncio.wait_for(host.close(1.0), 0.2)
        with took(0.0, 1.5):
            report = await host.close()
        assert report.elapsed < 2.0
        assert bool(report.unanswered) == (way == "handshake")


async def test_f2_3_many_hung_deletes_at_once() -> None:
    """F2.3: 20 servers, one bound."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(faults("handshake", delete="silent")) for _ in range(20)]
        specs = {f"s{n}": spec(s.url, "handshake", bounds=SLOW) for n, s in enumerate(servers)}
        async with AsyncHost(specs, state_dir=False) as host:
            await host.wait_ready(10)
            with took(0.9, 2.0):
                report = await host.close(1.0)
        assert set(report.unanswered) == set(specs)


def test_f2_3_the_blocking_host() -> None:
    """F2.3: closed by 1 s, in a thread that is not the server's."""
    started, done = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with HttpFaults(delete="silent") as server:
            urls.append(server.url)
            started.set()
            await asyncio.to_thread(done.wait, 20)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(10)
        host = Host({"a": spec(urls[0], "handshake", bounds=SLOW)}, state_dir=False)
        host.start()
        host.wait_ready(10)
        with took(0.9, 2.0):
            assert host.close(1.0).unanswered == {"a": ("DELETE",)}
    finally:
        done.set()
        thread.join(10)


# --- peers that hold on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_f2_7_a_peer_that_never_reads(way: str) -> None:
    """F2.7: large calls fill every buffer; close is bounded, and each call has its outcome."""
    async with nothing_left(), faults(way) as server, TcpProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        async with AsyncHost({"a": spec(url, way, bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            proxy.freeze()
            text = "x" * 3_000_000
            calls = [asyncio.create_task(host.call("a__echo", {"text": text})) for _ in range(5)]
            await until(lambda: host._servers["a"].life.session.counted().calls >= 6, 5.0)  # type: ignore[union-attr]
            await asyncio.sleep(0.1)
            with took(0.0, 1.8):
                report = await host.close(1.0)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, CallError) for each in outcomes), outcomes
            assert report.stuck == ()


@pytest.mark.parametrize("way", WAYS)
async def test_f2_7_a_cable_is_pulled_before_the_close(way: str) -> None:
    """F2.7: nothing passes any more, in either direction, on what is open and what is dialled."""
    async with nothing_left(), faults(way) as server, TcpProxy(server.port) as proxy:
        url = server.url.replace(f":{server.port}", f":{proxy.port}")
        async with AsyncHost({"a": spec(url, way, bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            call = asyncio.create_task(host.call("a__hold"))
            await server.seen("tools/call")
            proxy.script(Plan(accept="blackhole"))
            proxy.freeze()
            with took(0.0, 1.8):
                report = await host.close(1.0)
            with pytest.raises(AmbiguousDelivery):
                await call
            assert report.stuck == ()
            assert bool(report.unanswered) == (way == "handshake")


@pytest.mark.parametrize("way", WAYS)
async def test_f2_7_endless_comments_while_it_closes(way: str) -> None:
    """F2.7: streams that never fall silent hold nothing up."""
    on = {"GET": "ok" if way == "sse" else "comments:0.001", "tools/call": "comments:0.001"}
    if way == "sse":
        on["tools/call"] = "silent"
    async with faults(way, on=on) as server, nothing_left():
        async with AsyncHost({"a": spec(server.url, way, bounds=SLOW)}, state_dir=False) as host:
            await host.wait_ready(10)
            calls = [asyncio.create_task(host.call("a__echo")) for _ in range(10)]
            await server.seen("tools/call", 10)
            with took(0.0, 1.5):
                report = await host.close(2.0)
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(each, AmbiguousDelivery) for each in outcomes), outcomes
            assert report.clean or way == "sse"
        if way == "handshake":
            # Every call that was under way was taken back, and then the session ended.
            assert server.count("notifications/cancelled") == 10
            assert server.count("DELETE") == 1


async def test_f2_7_what_is_dialled_is_dropped() -> None:
    """F2.7: dials and TLS handshakes under way do not hold a close up."""
    with blackhole() as dead, mute() as silent:
        specs = {
            f"{way} {scheme}": spec(f"{scheme}://127.0.0.1:{port}/", way, bounds=SLOW)
            for way in ("auto", *WAYS)
            for scheme, port in (("http", dead), ("https", silent))
        }
        async with nothing_left():
            async with AsyncHost(specs, state_dir=False) as host:
                await until(lambda: held(host).get("dials") == len(specs))
                with took(0.0, 1.0):
                    report = await host.close(1.0)
                assert report.clean


# --- headers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["async", "stubborn async", "plain", "command", "stubborn command"])
@pytest.mark.parametrize("timeout", [0.3, 2.0])
async def test_f2_7_headers_that_never_come(timeout: float, source: str, way: str, tmp_path: Path) -> None:
    """F2.7: what gives the headers hangs when the host closes: in the bound, and what nothing can end is told of."""
    entered: list[Any] = []
    release = threading.Event()

    async def never() -> dict[str, str]:
        entered.append(1)
        await asyncio.Event().wait()
        return {}

    async def swallows() -> dict[str, str]:
        entered.append(1)
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return {}

    def stays() -> dict[str, str]:
        entered.append(threading.current_thread())
        release.wait(20)
        return {}

    marker = tmp_path / "pid"
    ignore = "signal.signal(15, signal.SIG_IGN);" if "stubborn" in source else ""
    code = f"import os, signal, time; {ignore} open({str(marker)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(60)"
    functions: dict[str, Any] = {"async": never, "stubborn async": swallows, "plain": stays}
    more = (
        {"headers": functions[source]}
        if source in functions
        else {"headers_command": (sys.executable, "-S", "-E", "-c", code)}
    )
    async with faults(way) as server:
        host = AsyncHost({"a": spec(server.url, way, bounds=SLOW, **more)}, state_dir=False)
        await host.start()
        await until(lambda: entered or (marker.exists() and marker.read_text().endswith(".")))
        with took(0.0, timeout + 1.0):
            report = await host.close(timeout)
        if source in ("plain", "stubborn async"):
            assert any("headers" in each for each in report.stuck), report
        else:
            # On a busy machine a kill may take longer than the shorter bound to be seen: then it is told of.
            assert report.stuck == () or timeout < 1.0
        if marker.exists():
            pid = int(marker.read_text()[:-1])
            if report.stuck:
                await until(lambda: not procs.alive(pid), 5.0)
            assert not procs.alive(pid)
        release.set()
        await until(lambda: len(asyncio.all_tasks()) <= 1 + len(server.live), 3.0)
        for thread in entered:
            if isinstance(thread, threading.Thread):
                await asyncio.to_thread(thread.join, 5)


# --- nothing goes on after it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["clean", "failing", "cancelled", "another task"])
@pytest.mark.parametrize("way", WAYS)
async def test_f1_10_nothing_runs_on_after_a_close(way: str, how: str) -> None:
    """F1.10: then idling costs nothing."""
    async with faults(way, delete="silent" if how == "failing" else "ok") as server, nothing_left():
        host = AsyncHost({"a": spec(server.url, way)}, state_dir=False)
        await host.start()
        await host.wait_ready(10)
        if how == "cancelled":
            closing = asyncio.create_task(host.close(1.0))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
        await (asyncio.create_task(host.close(1.0)) if how == "another task" else host.close(1.0))
        began = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - began < 0.05
        assert not server.live


async def test_f2_7_a_cancelled_life_is_put_away_whole(caplog: pytest.LogCaptureFixture) -> None:
    """F2.5: a closing loop cancels every task, again and again, while a server is being ended; the net is left once,
    so that the other server of the host keeps its own."""
    caplog.set_level(logging.WARNING)
    events = Events()
    async with faults("handshake", delete="silent") as server, faults("handshake") as other:
        specs = {"a": spec(server.url, "handshake"), "b": spec(other.url, "handshake")}
        async with nothing_left(), AsyncHost(specs, state_dir=False, on_event=events) as host:
            await host.wait_ready(10)
            life = host._servers["a"].life
            assert life is not None
            restart = asyncio.create_task(host.server("a").restart())
            await server.seen("DELETE")
            for _ in range(5):
                life.task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({life.task})
            await restart
            assert (await host.call("b__echo", {"text": "x"})).text == "x"
            assert other.count("initialize") == 1
            await host.call("a__echo")
            assert held(host)["users"] == 2


async def test_f2_7_a_frozen_line_in_the_middle_of_an_answer() -> None:
    """F4.11: half of an answer came; the close does not wait for the rest, and the connection is not kept."""
    async with nothing_left(), faults("handshake") as server:
        plan = Plan(down=At(2000, "blackhole"))
        async with TcpProxy(server.port) as proxy:
            url = server.url.replace(f":{server.port}", f":{proxy.port}")
            async with AsyncHost({"a": spec(url, "handshake", bounds=SLOW)}, state_dir=False) as host:
                await host.wait_ready(10)
                proxy.script(plan)
                proxy.reset_all()
                await proxy.until(lambda p: not p.open)
                call = asyncio.create_task(host.call("a__big", {"bytes": 100_000}))
                await server.seen("tools/call")
                with took(0.0, 1.8):
                    await host.close(1.0)
                with pytest.raises(CallError):
                    await call
