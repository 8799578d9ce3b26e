"""A walk over every suspension point: an operation is interrupted where it, or anything that Moorings does meanwhile,
waits for the n-th time; for n = 1, 2, 3 … until it completes. After each: nothing is left, and the next call works.

The whole walk is for `make soak`; the shortened one takes the first points of the quick rows and a spread of the
others, each row its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import os
import signal
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, MooringsError, RunTimeout, StdioServer
from moorings._tasks import TaskOwner
from moorings.transport.stdio import StdioTransport
from moorings.transport.watch import watch
from tests.faults import procs
from tests.faults.script import FaultLog, fault_server
from tests.lifecycle.kit import until_async

SHORT = Bounds(connect=2.0, probe=0.3, call=2.0, stop_eof=0.05, stop_term=0.05, stop_kill=2.0, cooldown=0.0)
BOUND = 8.0
"""Seconds in which any of these must be over, on a busy machine too."""


# --- the walker


class Walk:
    """Counts the suspensions of one operation and of all tasks that Moorings starts meanwhile, and strikes at one."""

    def __init__(self, at: int, strike: Callable[[], None]) -> None:
        self.at = at
        self.count = 0
        self.struck = False
        self._strike = strike
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        self._armed = False

    def suspended(self) -> None:
        if self._armed:
            self.count += 1
            if self.count == self.at:
                self.struck = True
                self._strike()


present: contextvars.ContextVar[Walk | None] = contextvars.ContextVar("walk", default=None)


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that tells of each of its suspensions."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.__qualname__ = getattr(work, "__qualname__", "work")

    def send(self, value: Any) -> Any:
        return self._told(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._told(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("a task drives it")

    def _told(self, waiting: Any) -> Any:
        if (walk := present.get()) is not None:
            walk.suspended()
        return waiting


@pytest.fixture(autouse=True)
def tasks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    start = TaskOwner.start

    def counting(self: TaskOwner, work: Coroutine[Any, Any, Any], **options: Any) -> Any:
        return start(self, Counted(work), **options)

    monkeypatch.setattr(TaskOwner, "start", counting)


# --- the operations


async def connect(host: AsyncHost) -> None:
    await host.start()
    await host.wait_ready(5)


async def call(host: AsyncHost) -> None:
    await host.call("a__echo", {"text": "x"}, timeout=1.0)


async def call_never(host: AsyncHost) -> None:
    await host.call("a__never", timeout=0.1)


async def call_die(host: AsyncHost) -> None:
    await host.call("a__die", {"code": 3}, timeout=1.0)


async def list_(host: AsyncHost) -> None:
    await host.tools(servers=["a"])


async def refresh(host: AsyncHost) -> None:
    """A list is being read anew, several times over, while another call runs."""
    await asyncio.gather(
        host.call("a__list_changed", {"count": 3}, timeout=1.0),
        host.tools(servers=["a"]),
        host.call("a__echo", {"text": "x"}, timeout=1.0),
    )


def kill_server(host: AsyncHost) -> None:
    server = host._servers.get("a")
    pid = server.life.pid if server is not None and server.life is not None else None
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):  # it went a moment ago
            os.kill(pid, signal.SIGKILL)


async def respawn(host: AsyncHost) -> None:
    """The server is gone; this call starts the next one."""
    kill_server(host)
    await host.call("a__echo", {"text": "x"}, timeout=2.0, repeat=True)


async def close(host: AsyncHost) -> None:
    await host.close(1.0)


async def run(host: AsyncHost) -> None:
    with contextlib.suppress(RunTimeout):
        async with host.run(timeout=0.1):
            await host.call("a__never")


Operation = Callable[[AsyncHost], Awaitable[None]]
STUBBORN = {"ignore_eof": True, "ignore_term": True}
FLOODS = {"stderr_first": 200_000, "banner": "no JSON\n" * 2000}
CONNECTS: dict[str, dict[str, Any]] = {
    "normal": {},
    "silent": {"on_initialize": "silent"},
    "silent list": {"on_list": "silent"},
    "stubborn": STUBBORN,
    "dying": {"on_initialize": "exit:3:ouch"},
    "dying of the probe": {"on_probe": "exit:1"},
    "flooding": FLOODS,
}
OTHERS: dict[str, dict[str, Any]] = {
    "normal": {},
    "silent": {"on": {"ping": "silent"}},
    "stubborn": STUBBORN,
    "dying": {},
    "flooding": {},
}
ROWS: list[tuple[str, str]] = [
    *(("connect", server) for server in CONNECTS),
    *((operation, server) for operation in ("call", "list", "close", "run") for server in OTHERS),
    *((operation, server) for operation in ("refresh", "respawn") for server in ("normal", "stubborn")),
]
STRIKES = ["cancel", "timeout", "close", "kill", "closing loop"]
KEEPS = ("cancel", "timeout")
"""Strikes that a server outlives, so that one host serves a whole row."""


def operation(name: str, server: str) -> Operation:
    if name == "call":
        return {"silent": call_never, "dying": call_die}.get(server, call)
    if name == "list" and server in ("dying", "silent"):
        return list_and_die if server == "dying" else list_anew
    return {
        "connect": connect, "list": list_, "close": close, "run": run, "refresh": refresh, "respawn": respawn,
    }[name]  # fmt: skip


async def list_and_die(host: AsyncHost) -> None:
    await asyncio.gather(host.tools(servers=["a"]), host.call("a__die", timeout=1.0))


async def list_anew(host: AsyncHost) -> None:
    await host.call("a__list_changed", timeout=1.0)
    await host.tools(servers=["a"])


def spec(name: str, server: str, log: FaultLog) -> StdioServer:
    script = CONNECTS[server] if name == "connect" else OTHERS[server]
    if name == "list" and server == "silent":
        script = {"by_start": [{"on_list": ["ok", "silent"]}, {}]}
    if name == "connect" and server not in ("normal", "stubborn"):
        # What is wrong with the first is not wrong with the second.
        script = {"by_start": [script, {}]}
    bounds = SHORT
    if "silent" in server:
        bounds = Bounds(**{**{f: getattr(SHORT, f) for f in Bounds.__struct_fields__}, "connect": 0.5})
    return fault_server(journal=log.path, bounds=bounds, **script)


# --- one interruption


def strike(how: str, host: AsyncHost, task: asyncio.Task[Any], limit: asyncio.Timeout) -> None:
    match how:
        case "cancel":
            task.cancel()
        case "timeout":
            limit.reschedule(asyncio.get_running_loop().time())
        case "close":
            closing.append(asyncio.get_running_loop().create_task(started_close(host)))
        case "kill":
            kill_server(host)
        case "closing loop":
            for each in asyncio.all_tasks():
                if each is not main[0]:
                    each.cancel()


closing: list[asyncio.Task[Any]] = []
main: list[asyncio.Task[Any]] = []


async def started_close(host: AsyncHost) -> None:
    await host.close(1.0)


async def interrupted(host: AsyncHost, work: Operation, how: str, at: int) -> bool:
    """Run the operation and strike at its n-th suspension. False if it was over before."""
    limit = asyncio.timeout(None)
    entered = asyncio.Event()
    walk = Walk(at, lambda: strike(how, host, task, limit))

    async def limited() -> None:
        async with limit:
            entered.set()
            await work(host)

    token = present.set(walk)
    try:
        walk.arm()
        task = asyncio.get_running_loop().create_task(Counted(limited()))
        done, _ = await asyncio.wait({task}, timeout=BOUND)
    finally:
        present.reset(token)
    assert done, f"it hangs: {task!r}"
    walk.disarm()
    if not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, MooringsError | TimeoutError), repr(error)
        if isinstance(error, TimeoutError) and not isinstance(error, MooringsError):
            assert how == "timeout"
    elif task.cancelled():
        assert how in ("cancel", "closing loop")
    while closing:
        await asyncio.wait_for(closing.pop(), BOUND)
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
async def a_host(name: str, server: str, folder: Path) -> AsyncIterator[AsyncHost]:
    """A host as the operation finds it; after it, everything must be gone."""
    log = FaultLog(folder / f"journal{next(numbers)}")
    host = AsyncHost({"a": spec(name, server, log)}, state_dir=False)
    if name != "connect":
        await host.start()
        await host.wait_ready(10)
        if server == "flooding":
            await host.call("a__flood", {"rate": 500, "seconds": 30})
    yield host
    report = await asyncio.wait_for(host.close(1.0), BOUND)
    assert (report.survivors, report.stuck) == ((), ())
    assert [pid for pid in log.pids() if procs.alive(pid)] == []
    assert watch.pid is None
    assert StdioTransport.live == set()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    # A caller that was cancelled may still be on its way out of its own last step.
    await asyncio.sleep(0)
    assert not {task for task in left if not task.done()}, left
    assert log.violations() == []


numbers = itertools.count()


def points(name: str, server: str, how: str, whole: bool) -> Iterable[int]:
    if whole:
        return itertools.count(1)
    quick = how in KEEPS and name in ("call", "list", "refresh") and server in ("normal", "flooding")
    if quick:
        return itertools.chain(range(1, 16), itertools.count(20, 5))
    # Two of them, and each row others.
    first = zlib.crc32(f"{name} {server} {how}".encode())
    most = {"connect": 24, "respawn": 24, "close": 14}.get(name, 6)
    return sorted({1 + first % most, 1 + (first >> 8) % most})


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "whole"])
@pytest.mark.parametrize(("name", "server"), ROWS)
async def test_f2_5_a_walk(name: str, server: str, whole: bool, tmp_path: Path) -> None:
    """F2.5: interrupted at each suspension, it leaves nothing, and the next call works."""
    work = operation(name, server)
    main[:] = [asyncio.current_task()]  # type: ignore[list-item]
    for how in STRIKES:
        reused = (
            how in KEEPS
            and name in ("call", "list", "run", "refresh")
            and server in ("normal", "silent", "flooding")
        )
        if reused:
            async with a_host(name, server, tmp_path) as host:
                for at in points(name, server, how, whole):
                    struck = await interrupted(host, work, how, at)
                    life = host._servers["a"].life
                    if life is not None and (session := life.session) is not None:
                        # A list that is read anew is the server's own work, and goes on.
                        await until_async(lambda session=session: not any(session.sizes().values()), 3.0)
                    await works(host)
                    if not struck:
                        break
            continue
        for at in points(name, server, how, whole):
            async with a_host(name, server, tmp_path) as host:
                struck = await interrupted(host, work, how, at)
                if host._closing is None and host._report is None and host._loop is not None:
                    await works(host)
            if not struck:
                break
