"""A start over HTTP that is abandoned by a run that timed out, wherever it waits: it leaves no task, socket or pool
entry, the other server of the host does not notice, nothing complains, and the next start works.

The other server holds the net open, so that what is left cannot hide behind its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, Host, HttpServer, RunTimeout
from moorings.net import resolver
from tests.faults import procs
from tests.faults.http_server import HttpFaults
from tests.host.kit import Events, took
from tests.http_life.kit import blackhole, faults, held, mute, nothing_left, sockets, spec, tasks, until

PATIENT = Bounds(connect=30.0, probe=20.0, dial=20.0, headers_command=20.0, http_close=0.3, cooldown=0.0)
"""Nothing but the run ends the start."""
RUN = 0.3

SILENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "probe": ("auto", {"on": {"server/discover": "silent", "initialize": "silent"}}),
    "discover": ("modern", {"on": {"server/discover": "silent"}}),
    "discover stalls": ("modern", {"on": {"server/discover": "stall"}}),
    "initialize": ("handshake", {"on": {"initialize": "silent"}}),
    "initialize stalls": ("handshake", {"on": {"initialize": "stall"}}),
    "endless comments": ("handshake", {"on": {"initialize": "comments:0.01"}}),
    "endless comments, modern": ("modern", {"on": {"server/discover": "comments:0.01"}}),
    "first list": ("handshake", {"on": {"tools/list": "silent"}}),
    "first list, modern": ("modern", {"on": {"tools/list": "silent"}}),
    "first list, hung DELETE": ("handshake", {"on": {"tools/list": "silent", "DELETE": "silent"}}),
    "GET": ("handshake", {"on": {"GET": "silent", "tools/list": "silent"}}),
    "event stream": ("sse", {"on": {"GET": "silent"}}),
    "event stream of comments": ("sse", {"on": {"GET": "comments:0.01"}}),
    "endpoint": ("sse", {"endpoint": "never"}),
    "initialize by SSE": ("sse", {"on": {"initialize": "silent"}}),
    "unanswered by SSE": ("sse", {"on": {"initialize": "accepted"}}),
    "later": ("modern", {"on": {"server/discover": "later:503:15"}}),
}
"""Where the server falls silent: in which way it is spoken to, and its script."""


@contextlib.asynccontextmanager
async def beside(a: HttpServer, events: Events | None = None) -> AsyncIterator[AsyncHost]:
    """A host of a lazy server ``a`` and a good one ``b``, which is up."""
    async with faults("handshake") as other, nothing_left():
        async with AsyncHost(
            {"a": a, "b": spec(other.url, "handshake")}, state_dir=False, on_event=events
        ) as host:
            await host.wait_ready(10, servers=["b"])
            yield host
            assert (await host.call("b__echo", {"text": "x"})).text == "x"
            assert other.count("initialize") == 1
        assert held(host) == {}


async def abandoned(host: AsyncHost, events: Events, reached: Callable[[], object]) -> None:
    """Begin a start in a run, and let the run's deadline pass while it hangs; then nothing of it is there."""
    await host.call("b__echo")
    await until(lambda: held(host)["exchanges"] == 1)  # the stream of b
    before = held(host), tasks(), sockets()
    times = events.states("a").count("idle")
    with pytest.raises(RunTimeout), took(RUN, RUN + 1.0):
        async with host.run(timeout=RUN):
            await asyncio.gather(host.call("a__echo"), until(reached))
    await events.seen("a", "idle", times + 1, timeout=3.0)
    server = host._servers["a"]
    assert server.life is None
    assert len(server._owner) == 0
    assert held(host) == before[0]
    assert tasks() == before[1]
    # What a server in this same loop holds of it goes in the turns that follow.
    await until(lambda: sockets() <= before[2], 2.0, "sockets are left")


@pytest.mark.parametrize("stage", SILENCES)
async def test_f2_1_a_start_at_a_silent_server_is_abandoned(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F1.5, F2.1: twice in a row, then the server answers."""
    caplog.set_level(logging.WARNING)
    way, script = SILENCES[stage]
    events = Events()
    async with faults(way, **script) as server:
        a = spec(server.url, way, lazy=True, bounds=PATIENT)
        async with beside(a, events) as host:
            for turn in (1, 2):
                await abandoned(host, events, lambda turn=turn: reached(server, script) >= turn)
                await until(lambda: not server.live, 3.0, "a connection is left")
            server.set(endpoint="ok", on=dict.fromkeys(script.get("on", {}), "ok"))
            assert (await host.call("a__echo", {"text": "again"}, timeout=5.0)).text == "again"
            assert server.violations == []
    assert caplog.records == []


def reached(server: HttpFaults, script: dict[str, Any]) -> int:
    """How often the server met what it never answers."""
    first = next(iter(script.get("on", {})), "GET")
    return server.count(first)


@pytest.mark.parametrize("way", ["auto", "handshake", "modern", "sse"])
@pytest.mark.parametrize("place", ["dial", "TLS handshake", "name"])
async def test_f2_1_a_start_that_has_no_connection_yet_is_abandoned(
    place: str, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2.1: a dial that nobody answers, a TLS handshake that hangs, a name that is looked up for ever."""
    caplog.set_level(logging.WARNING)
    events = Events()
    release = threading.Event()
    asked: list[str] = []

    def look_up(host: str, port: int, family: int) -> list[Any]:
        if host == "slow.invalid":
            asked.append(host)
            release.wait(20)
        return real(host, port, family)

    real = resolver._look_up
    monkeypatch.setattr(resolver, "_look_up", look_up)
    with contextlib.ExitStack() as stack:
        url = {
            "dial": lambda: f"http://127.0.0.1:{stack.enter_context(blackhole())}/",
            "TLS handshake": lambda: f"https://127.0.0.1:{stack.enter_context(mute())}/",
            "name": lambda: "http://slow.invalid/",
        }[place]()
        stack.callback(release.set)
        async with beside(spec(url, way, lazy=True, bounds=PATIENT), events) as host:
            if place == "TLS handshake":
                # The TLS context is made for whoever asks next, too, and may take longer than a run here.
                with contextlib.suppress(RunTimeout):
                    async with host.run(timeout=3.0):
                        await host.call("a__echo")
                await events.seen("a", "idle", timeout=3.0)
            for turn in (1, 2):
                wanted = held(host)["dials"] + 1
                if place == "name" and turn == 2:
                    # The look-up belongs to the net, and serves whoever asks next.
                    break
                await abandoned_but_look_up(
                    host, events, lambda w=wanted: held(host)["dials"] >= w, place == "name"
                )
            release.set()
            for thread in [t for t in threading.enumerate() if t.name == "moorings-dns"]:
                await asyncio.to_thread(thread.join, 5)
    assert caplog.records == []


async def abandoned_but_look_up(
    host: AsyncHost, events: Events, reached: Callable[[], object], look_up: bool
) -> None:
    if not look_up:
        await abandoned(host, events, reached)
        return
    before = held(host), tasks()
    with pytest.raises(RunTimeout), took(RUN, RUN + 1.0):
        async with host.run(timeout=RUN):
            await host.call("a__echo")
    await events.seen("a", "idle", timeout=3.0)
    assert held(host) == {**before[0], "tasks": before[0]["tasks"] + 1}
    assert [task.get_name() for task in tasks() - before[1]] == ["net: look up slow.invalid"]


@pytest.mark.parametrize("way", ["handshake", "modern", "sse"])
@pytest.mark.parametrize("source", ["async function", "function", "command", "stubborn command"])
async def test_f2_1_a_start_that_waits_for_headers_is_abandoned(
    source: str, way: str, tmp_path: Path
) -> None:
    """F2.1: what gives the headers does not return: it is ended, or where nothing can end it, left alone."""
    events = Events()
    entered: list[Any] = []
    release = threading.Event()

    async def never() -> dict[str, str]:
        entered.append(1)
        await asyncio.Event().wait()
        return {}

    def stays() -> dict[str, str]:
        entered.append(threading.current_thread())
        release.wait(20)
        return {}

    marker = tmp_path / "pid"
    code = f"import os, signal, time; open({str(marker)!r}, 'w').write(str(os.getpid()) + '.');"
    if source == "stubborn command":
        code = code.replace("time;", "time; signal.signal(15, signal.SIG_IGN);", 1)
    more: dict[str, Any] = {
        "async function": {"headers": never},
        "function": {"headers": stays},
    }.get(source, {"headers_command": (sys.executable, "-S", "-E", "-c", code + " time.sleep(60)")})

    def begun() -> bool:
        return bool(entered) or (marker.exists() and marker.read_text().endswith("."))

    async with faults(way) as server:
        try:
            async with beside(spec(server.url, way, lazy=True, bounds=PATIENT, **more), events) as host:
                if "command" in source:
                    await command_ends(host, events, begun)
                    assert not procs.alive(int(marker.read_text()[:-1]))
                else:
                    await abandoned(host, events, begun)
                assert server.requests == []
        finally:
            release.set()
        for thread in entered:
            if isinstance(thread, threading.Thread):
                thread.join(5)


async def command_ends(host: AsyncHost, events: Events, begun: Callable[[], bool]) -> None:
    with pytest.raises(RunTimeout):
        async with host.run(timeout=2.0):
            call = asyncio.create_task(host.call("a__echo"))
            await until(begun)
            await call
    await events.seen("a", "idle", timeout=3.0)


def test_f2_1_a_blocking_run_abandons_a_start_and_the_host_closes(caplog: pytest.LogCaptureFixture) -> None:
    """F2.1: the blocking host; the close comes while the start is being abandoned."""
    caplog.set_level(logging.WARNING)
    with mute() as port:
        for way in ("auto", "handshake", "modern", "sse"):
            host = Host(
                {"a": spec(f"http://127.0.0.1:{port}/", way, lazy=True, bounds=PATIENT)}, state_dir=False
            )
            host.start()
            with pytest.raises(RunTimeout), took(0.3, 1.3), host.run(timeout=0.3):
                host.call("a__echo")
            with took(0.0, 1.5):
                report = host.close(3)
            assert report.clean
    assert caplog.records == []


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.soak)])
async def test_f2_1_starts_are_abandoned_at_many_moments(rounds: int) -> None:
    """F2.1: the run ends after 0, 1, 2 … ms of a start at a good server, in each way."""
    for way in ("handshake", "modern", "sse"):
        async with faults(way) as server:
            events = Events()
            async with beside(spec(server.url, way, lazy=True), events) as host:
                await host.call("b__echo")
                before = held(host)
                for number in range(rounds):
                    with contextlib.suppress(RunTimeout):
                        async with host.run(timeout=0.001 * number):
                            await host.call("a__echo")
                            await asyncio.sleep(0.002)
                            break
                    await until(
                        lambda: host._servers["a"].life is None or host._servers["a"].state == "ready"
                    )
                    if host._servers["a"].life is None:
                        assert held(host) == before
                assert (await host.call("a__echo", {"text": "x"}, timeout=5.0)).text == "x"
                assert server.violations == []
