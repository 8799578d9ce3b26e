"""The walk over every suspension point, over HTTP: an operation is interrupted where it, or anything that Moorings does
meanwhile, waits for the n-th time; for n = 1, 2, 3 … until it completes. After each: nothing is left (tasks, sockets,
entries of the pool, connections at the server), and the next call works.

The whole walk is for `make soak`; the shortened one takes the first points, and then a spread of them, each row others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, MooringsError, RunTimeout
from moorings._tasks import TaskOwner
from tests.faults.http_server import HttpFaults
from tests.http_life.kit import WAYS, faults, held, nothing_left, spec, until
from tests.lifecycle.test_walk import Counted as LifeCounted

SHORT = Bounds(connect=0.8, probe=0.1, call=2.0, http_close=0.1, cooldown=0.0)
BOUND = 8.0
"""Seconds in which any of these must be over, on a busy machine too."""


# --- the walker


class Walk:
    """Counts the suspensions of one operation and of all tasks of Moorings meanwhile, and strikes at one."""

    def __init__(self, at: int, strike: Callable[[], None]) -> None:
        self.at = at
        self.count = 0
        self.struck = False
        self._strike = strike

    def suspended(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.struck = True
            self._strike()


class Present:
    """The walk that is under way. Of the whole loop: tasks that began before it count as well."""

    walk: Walk | None = None


class Counted(LifeCounted):
    """A coroutine that tells of each of its suspensions."""

    def _told(self, waiting: Any) -> Any:
        if Present.walk is not None:
            Present.walk.suspended()
        return waiting


@pytest.fixture(autouse=True)
def tasks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    start = TaskOwner.start

    def counting(self: TaskOwner, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return start(self, Counted(work), **options)

    monkeypatch.setattr(TaskOwner, "start", counting)


# --- the operations


async def connect(host: AsyncHost, server: HttpFaults) -> None:
    await host.start()
    await host.wait_ready(5)


async def call(host: AsyncHost, server: HttpFaults) -> None:
    await host.call("a__echo", {"text": "x"}, timeout=1.0)


async def call_never(host: AsyncHost, server: HttpFaults) -> None:
    await host.call("a__hold", timeout=0.05)


async def list_(host: AsyncHost, server: HttpFaults) -> None:
    """A list is being read anew, several times over, while another call runs."""
    server.list_changed()
    await asyncio.gather(host.tools(servers=["a"]), host.call("a__echo", {"text": "x"}, timeout=1.0))
    await host.resources(servers=["a"])


async def renewal(host: AsyncHost, server: HttpFaults) -> None:
    """The server forgot the session; three calls find out."""
    server.forget()
    await asyncio.gather(*(host.call("a__echo", {"text": "x"}, timeout=2.0) for _ in range(3)))


async def lost_stream(host: AsyncHost, server: HttpFaults) -> None:
    """The event stream of 2024-11-05 ends; the next call brings the server up anew."""
    server.end_sse_streams()
    await asyncio.gather(*(host.call("a__echo", {"text": "x"}, timeout=2.0, repeat=True) for _ in range(3)))


async def restart(host: AsyncHost, server: HttpFaults) -> None:
    await host.server("a").restart()
    await host.wait_ready(5, servers=["a"])


async def close(host: AsyncHost, server: HttpFaults) -> None:
    await host.close(1.0)


async def run(host: AsyncHost, server: HttpFaults) -> None:
    with contextlib.suppress(RunTimeout):
        async with host.run(timeout=0.05):
            await host.call("a__hold")


Operation = Callable[[AsyncHost, HttpFaults], Awaitable[None]]
OPERATIONS: dict[str, Operation] = {
    "connect": connect, "call": call, "call_never": call_never, "list": list_, "renewal": renewal,
    "lost_stream": lost_stream, "restart": restart, "close": close, "run": run,
}  # fmt: skip

SCRIPTS: dict[str, dict[str, Any]] = {
    "normal": {},
    "by SSE": {"answers": "sse", "priming": True},
    "hung DELETE": {"delete": "silent"},
    "silent": {"on": {"initialize": ["silent", "ok"], "server/discover": ["silent", "ok"]}},
    "comments": {"on": {"initialize": ["comments:0.01", "ok"], "server/discover": ["comments:0.01", "ok"]}},
    "silent list": {"on": {"tools/list": ["silent", "ok"]}},
    "broken streams": {"on": {"tools/call": ["end_stream", "ok", "die_in_body", "ok"]}},
}
ROWS: list[tuple[str, str, str]] = [
    *(("connect", way, server) for way in WAYS for server in ("normal", "silent", "comments", "silent list")),
    ("connect", "auto", "normal"),
    ("connect", "handshake", "hung DELETE"),
    *(
        (name, way, "normal")
        for name in ("call", "call_never", "list", "close", "run", "restart")
        for way in WAYS
    ),
    *((name, way, "by SSE") for name in ("call", "call_never", "list") for way in ("handshake", "modern")),
    *((name, "handshake", "hung DELETE") for name in ("close", "run", "restart")),
    *(("renewal", "handshake", server) for server in ("normal", "by SSE", "hung DELETE")),
    *(("call", way, "broken streams") for way in ("handshake", "modern")),
    ("lost_stream", "sse", "normal"),
]
STRIKES = ["cancel", "timeout", "close", "cut", "closing loop"]


# --- one interruption


class Striker:
    """Interrupts one operation in one of several ways."""

    def __init__(self, how: str, host: AsyncHost, server: HttpFaults) -> None:
        self.how = how
        self.host = host
        self.server = server
        self.limit = asyncio.timeout(None)
        self.task: asyncio.Task[Any] | None = None
        self.closing: list[asyncio.Task[Any]] = []

    def strike(self) -> None:
        loop = asyncio.get_running_loop()
        assert self.task is not None
        match self.how:
            case "cancel":
                self.task.cancel()
            case "timeout":
                with contextlib.suppress(
                    RuntimeError
                ):  # the operation is over, and only what it left goes on
                    self.limit.reschedule(loop.time())
            case "close":
                self.closing.append(loop.create_task(self._close()))
            case "cut":
                self.server.drop_connections()
            case "closing loop":
                self.task.cancel()
                for each in asyncio.all_tasks():
                    # Those of the server have other names.
                    if ": " in each.get_name():
                        each.cancel()

    async def _close(self) -> None:
        await self.host.close(1.0)

    async def interrupted(self, work: Operation, at: int) -> bool:
        """Run the operation and strike at its n-th suspension. False if it was over before."""

        async def limited() -> None:
            async with self.limit:
                await work(self.host, self.server)

        walk = Present.walk = Walk(at, self.strike)
        try:
            self.task = asyncio.get_running_loop().create_task(Counted(limited()))
            done, _ = await asyncio.wait({self.task}, timeout=BOUND)
        finally:
            Present.walk = None
        assert done, f"it hangs: {self.task!r}"
        if self.task.cancelled():
            assert self.how in ("cancel", "closing loop")
        elif (error := self.task.exception()) is not None:
            assert isinstance(error, MooringsError | TimeoutError), repr(error)
            if not isinstance(error, MooringsError):
                assert self.how == "timeout"
        while self.closing:
            await asyncio.wait_for(self.closing.pop(), BOUND)
        return walk.struck


async def works(host: AsyncHost) -> None:
    """A call on the same host; what fails in its first moments fails typed, and the next one works."""
    for _ in range(3):
        with contextlib.suppress(MooringsError):
            assert (
                await asyncio.wait_for(host.call("a__echo", {"text": "x"}, timeout=3.0), BOUND)
            ).text == "x"
            return
    raise AssertionError(f"no call works: {host.status()}")


@contextlib.asynccontextmanager
async def a_host(name: str, way: str, server: HttpFaults) -> AsyncIterator[AsyncHost]:
    """A host as the operation finds it; after it, everything must be gone."""
    async with nothing_left():
        host = AsyncHost({"a": spec(server.url, way, bounds=SHORT)}, state_dir=False)
        if name != "connect":
            await host.start()
            assert (await host.wait_ready(10)).all_ready
        yield host
        report = await asyncio.wait_for(host.close(1.0), BOUND)
        assert report.stuck == ()
        assert held(host) == {} if host._settings is not None else True
        if host._settings is not None:
            assert host._settings.net._count == 0
        await until(lambda: not server.live, 3.0, "a connection is left at the server")
        assert server.violations == []


def points(name: str, how: str, row: str, whole: bool) -> Iterable[int]:
    if whole:
        return itertools.count(1)
    first = zlib.crc32(f"{row} {how}".encode())
    most = {"connect": 40, "restart": 60, "renewal": 40, "lost_stream": 40, "close": 20, "list": 40}.get(
        name, 12
    )
    quiet = any(each in row for each in ("silent", "comments"))
    return sorted({1 + (first >> shift) % most for shift in ((0, 6) if quiet else (0, 6, 12))})


@pytest.mark.timeout(900)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "whole"])
@pytest.mark.parametrize(("name", "way", "script"), ROWS)
async def test_f2_5_a_walk(
    name: str, way: str, script: str, whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """F1.5, F2.5: interrupted at each suspension, it leaves nothing, and the next call works."""
    caplog.set_level(logging.ERROR)
    for how in STRIKES:
        for at in points(name, how, f"{name} {way} {script}", whole):
            async with faults(way, **SCRIPTS[script]) as server, a_host(name, way, server) as host:
                struck = await Striker(how, host, server).interrupted(OPERATIONS[name], at)
                if host._closing is None and host._report is None and host._loop is not None:
                    await works(host)
            assert caplog.records == [], f"{how} at {at}"
            if not struck:
                break
