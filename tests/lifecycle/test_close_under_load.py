"""Close under load: calls in flight everywhere, servers that start, resist and flood. Every caller gets one typed
outcome before close returns, the bound holds, and the report says what it took."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallError,
    Host,
    HostClosedError,
    NotSent,
    StartError,
    StdioServer,
)
from moorings.transport.watch import watch
from tests.faults import procs
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import in_thread
from tests.lifecycle.kit import STUBBORN

SLOW = Bounds(stop_eof=2.0, stop_term=2.0, stop_kill=2.0)
"""A stop that would take 4 s until KILL, were it not for the bound of the close."""
KINDS: dict[str, dict[str, Any]] = {
    "good": {},
    "starting": {"on_initialize": "silent"},
    "stubborn": STUBBORN,
    "flooding": {},
    "starting and stubborn": {"on_initialize": "silent", **STUBBORN},
}
BOUND = 1.0
SLACK = 0.5


def specs(servers: int, folder: Path) -> tuple[dict[str, StdioServer], dict[str, str], list[FaultLog]]:
    """The servers, which kind each is, and their journals."""
    kinds = {f"s{n}": list(KINDS)[n % len(KINDS)] for n in range(servers)}
    logs = [FaultLog(folder / name) for name in kinds]
    made = {
        name: fault_server(journal=log.path, bounds=SLOW, **KINDS[kind])
        for (name, kind), log in zip(kinds.items(), logs, strict=True)
    }
    return made, kinds, logs


@pytest.mark.parametrize(
    ("servers", "calls"), [(10, 40), pytest.param(20, 100, marks=pytest.mark.soak)], ids=["ten", "twenty"]
)
async def test_f2_7_close_under_load(servers: int, calls: int, tmp_path: Path) -> None:
    """F2.7: one outcome for each caller, typed, before close returns; nothing comes after."""
    made, kinds, logs = specs(servers, tmp_path)
    outcomes: list[tuple[str, object, float]] = []
    closed_at = float("inf")

    async with AsyncHost(made, state_dir=False) as host:
        await asyncio.gather(*(log.seen("received", method="initialize", timeout=30.0) for log in logs))
        up = [name for name, kind in kinds.items() if not kind.startswith("starting")]
        await host.wait_ready(30, servers=up)
        for name in (name for name, kind in kinds.items() if kind == "flooding"):
            await host.call(f"{name}__flood", {"rate": 300, "seconds": 60})

        async def one(n: int) -> None:
            name = f"s{n % servers}"
            try:
                outcome: object = await host.call_raw(name, "never")
            except BaseException as error:  # looked at below
                outcome = error
            outcomes.append((name, outcome, time.monotonic()))

        tasks = [asyncio.create_task(one(n)) for n in range(calls)]
        sent = dict.fromkeys(up, calls // servers)
        for name, log in zip(kinds, logs, strict=True):
            if name in up:
                await log.seen("received", sent[name], method="tools/call", tool="never", timeout=20.0)
        began = time.monotonic()
        report = await host.close(BOUND)
        closed_at = time.monotonic()
        assert all(task.done() for task in tasks)

    assert closed_at - began < BOUND + SLACK
    assert report.elapsed < BOUND + SLACK
    assert len(outcomes) == calls
    for name, outcome, when in outcomes:
        assert when <= closed_at
        assert isinstance(outcome, CallError), repr(outcome)
        assert outcome.server == name
        if name in up:
            assert isinstance(outcome, AmbiguousDelivery)
            assert outcome.sent is True
        else:
            assert isinstance(outcome, NotSent)
            assert outcome.sent is False
    assert set(report.servers) == set(kinds)
    assert report.forced == {name: ("TERM", "KILL") for name, kind in kinds.items() if "stubborn" in kind}
    assert (report.survivors, report.stuck) == ((), ())
    assert not report.clean
    assert [pid for log in logs for pid in log.pids() if procs.alive(pid)] == []
    assert watch.pid is None
    with pytest.raises(HostClosedError):
        await host.call_raw("s0", "echo")


@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.soak)])
async def test_f2_7_calls_that_race_with_close(rounds: int, tmp_path: Path) -> None:
    """F2.7: many more are begun in every turn of the loop before, while and after it closes."""
    for turn in range(rounds):
        made, kinds, logs = specs(5, tmp_path / str(turn))
        (tmp_path / str(turn)).mkdir()
        tasks: list[asyncio.Task[Any]] = []
        host = AsyncHost(made, state_dir=False)
        await host.start()
        await asyncio.gather(*(log.seen("received", method="initialize", timeout=30.0) for log in logs))

        async def echo(n: int, host: AsyncHost = host) -> Any:
            return await host.call_raw(f"s{n % 5}", "echo", {"text": str(n)})

        closing: asyncio.Task[Any] | None = None
        for n in range(300):
            tasks.append(asyncio.create_task(echo(n)))
            if n == 100 + turn:
                closing = asyncio.create_task(host.close(BOUND))
            await asyncio.sleep(0)
        assert closing is not None
        report = await closing
        done, pending = await asyncio.wait(tasks, timeout=0.1)
        assert not pending
        for n, task in enumerate(tasks):
            if (error := task.exception()) is not None:
                assert isinstance(error, CallError | HostClosedError | StartError), repr(error)
            else:
                assert task.result().text == str(n)
        assert len(done) == 300
        assert report.survivors == ()
        assert report.elapsed < BOUND + SLACK
        assert [pid for log in logs for pid in log.pids() if procs.alive(pid)] == []
        assert len(kinds) == 5


def test_f2_7_the_blocking_host_under_load(tmp_path: Path) -> None:
    """F2.7: the same from threads; each of them gets its outcome, and is free when close returns."""
    made, kinds, logs = specs(5, tmp_path)
    host = Host(made, state_dir=False)
    host.start()
    for log in logs:
        log.wait_for("received", method="initialize", timeout=30.0)
    up = [name for name, kind in kinds.items() if not kind.startswith("starting")]
    host.wait_ready(30, servers=up)
    workers = [in_thread(host.server(f"s{n % 5}").call, "never") for n in range(20)]
    for name, log in zip(kinds, logs, strict=True):
        if name in up:
            log.wait_for("received", 4, method="tools/call", tool="never", timeout=20.0)
    began = time.monotonic()
    report = host.close(BOUND)
    assert time.monotonic() - began < BOUND + SLACK
    outcomes = [worker.outcome(1.0) for worker in workers]
    assert all(isinstance(outcome, CallError | HostClosedError) for outcome in outcomes), outcomes
    assert (report.survivors, report.stuck) == ((), ())
    assert [pid for log in logs for pid in log.pids() if procs.alive(pid)] == []
