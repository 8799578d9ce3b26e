"""The owned start path: a real start is abandoned by a run that timed out, while everything is then shut down.

The server is a real process that never answers and stays through the end of stdin and TERM. What was started for it
(the task of its life, the process) is ended by its owner; nothing is left and nothing complains. No task made up by a
test stands for the real one, and the last test here takes the owner's clean-up out, in a child Python, and sees that
the same scenario then does leave something behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, CallCancelled, Host, RunTimeout
from tests.faults.procs import alive, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events, in_thread, loop_threads, run_program, took
from tests.leakgate import COMPLAINTS

SILENT: dict[str, dict[str, Any]] = {
    "probe": {"on_probe": "silent", "on_initialize": "silent"},
    "initialize": {"on_initialize": "silent"},
    "first list": {"on_list": "silent"},
}
"""Where the start stands when it is abandoned."""
REACHED = {"probe": "server/discover", "initialize": "initialize", "first list": "tools/list"}


def start_task(host: AsyncHost) -> asyncio.Task[None]:
    """The task that brings the server up: the life's own."""
    life = host._servers["a"].life
    assert life is not None
    return life.task


def nothing_left(host: AsyncHost, task: asyncio.Task[None]) -> None:
    """The owner awaited its task and holds none; the task ended by itself and not by an error."""
    server = host._servers["a"]
    assert task.done()
    assert not task.cancelled()
    assert task.exception() is None
    assert server.life is None
    assert len(server._owner) == 0
    assert len(host._owner) == 0


@pytest.mark.parametrize("stage", SILENT)
def test_a_start_abandoned_by_a_run_while_the_loop_thread_shuts_down(
    stage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The blocking host."""
    caplog.set_level(logging.WARNING)
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, lazy=True, bounds=SOON, **STUBBORN, **SILENT[stage])
    host = Host({"a": spec}, state_dir=False)
    host.start()
    loop_thread = host._thread
    assert loop_thread is not None
    assert loop_thread.host is not None
    with pytest.raises(RunTimeout), took(0.6, 1.6), host.run(timeout=0.6):
        call = in_thread_of_run(host, log, REACHED[stage])
        task = start_task(loop_thread.host)
        assert not task.done()
        call.result()
    # The start is being abandoned at this moment: its process takes no EOF and no TERM.
    with took(0.0, 4.0):
        report = host.close(3)
    nothing_left(loop_thread.host, task)
    (pid,) = log.pids()
    assert not alive(pid)
    assert report.forced == {"a": ("TERM", "KILL")}
    assert report.survivors == ()
    assert report.stuck == ()
    assert loop_threads() == []
    assert caplog.records == []


def in_thread_of_run(host: Host, log: FaultLog, method: str) -> Any:
    """Begin a call in the run, and wait until the server has met the message that it never answers."""
    call = host.submit("a__echo")
    log.wait_for("received", method=method)
    return call


@pytest.mark.parametrize("stage", SILENT)
async def test_a_start_abandoned_by_an_async_run_while_the_host_closes(
    stage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The async host."""
    caplog.set_level(logging.WARNING)
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, lazy=True, bounds=SOON, **STUBBORN, **SILENT[stage])
    host = AsyncHost({"a": spec}, state_dir=False)
    await host.start()
    task: asyncio.Task[None] | None = None
    with pytest.raises(RunTimeout):
        async with host.run(timeout=0.6):
            call = asyncio.create_task(host.call("a__echo"))
            await log.seen("received", method=REACHED[stage])
            task = start_task(host)
            await call
    assert task is not None
    assert not task.done()
    report = await host.close(3)
    nothing_left(host, task)
    (pid,) = log.pids()
    assert not alive(pid)
    assert report.forced == {"a": ("TERM", "KILL")}
    assert caplog.records == []


async def test_the_run_and_the_close_end_the_start_at_the_same_moment(tmp_path: Path) -> None:
    """By hand: the close begins before the owner's task has had a single turn after the run's end."""
    log = FaultLog(tmp_path / "journal")
    events = Events()
    spec = fault_server(journal=log.path, lazy=True, bounds=SOON, **STUBBORN, **SILENT["probe"])
    host = AsyncHost({"a": spec}, state_dir=False, on_event=events)
    await host.start()
    run = host.run(timeout=60)
    await run.begin(None)
    call = asyncio.create_task(run.call("a__echo"))
    await log.seen("received", method="server/discover")
    task = start_task(host)
    finishing = asyncio.create_task(run.finish())
    while "stopping" not in events.states("a"):
        await asyncio.sleep(0)
    assert not task.done()
    report = await host.close(3)
    await finishing
    with pytest.raises(CallCancelled) as ended:
        await call
    assert (ended.value.sent, ended.value.server, ended.value.tool) == (False, "a", "echo")
    nothing_left(host, task)
    assert report.forced == {"a": ("TERM", "KILL")}
    assert events.states("a") == ["connecting", "stopping", "closing", "closed"]


def test_the_loop_thread_is_shut_down_while_the_run_still_waits(tmp_path: Path) -> None:
    """The close comes first, from another thread; the run's deadline never has to."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, lazy=True, bounds=SOON, **STUBBORN, **SILENT["probe"])
    host = Host({"a": spec}, state_dir=False)
    host.start()
    in_run = threading.Event()

    def run() -> None:
        with host.run(timeout=60):
            in_run.set()
            host.call("a__echo")

    worker = in_thread(run)
    assert in_run.wait(10)
    log.wait_for("received", method="server/discover")
    assert host.close(3).forced == {"a": ("TERM", "KILL")}
    error = worker.outcome()
    assert type(error).__name__ == "NotSent"
    assert error.sent is False
    assert not any(alive(pid) for pid in log.pids())


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.soak)])
def test_many_abandoned_starts_and_a_close_in_between(rounds: int, tmp_path: Path) -> None:
    """Under load: the close falls at another moment of the abandoning each time."""
    for number in range(rounds):
        log = FaultLog(tmp_path / f"journal{number}")
        spec = fault_server(journal=log.path, lazy=True, bounds=SOON, **SILENT["probe"])
        with Host({"a": spec, "b": spec}, state_dir=False) as host:
            with pytest.raises(RunTimeout), host.run(timeout=0.02 + 0.01 * (number % 8)):
                waits = [host.submit(f"{name}__echo") for name in ("a", "b")]
                for each in waits:
                    each.result()
            assert host.close(3).survivors == ()
        assert not any(alive(pid) for pid in log.pids())


# --- the proof of the test ----------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, json, sys, threading

from moorings import Host, RunTimeout
from moorings.host.async_host import AsyncHost
from moorings.host.report import CloseReport
from moorings.server.life import Life
from moorings.server.server import Server
from tests.faults.script import FaultLog, fault_server
from tests.faults.procs import alive
from tests.host.kit import SOON, STUBBORN

async def nothing(self, *args, **kwargs):
    return None

async def empty_report(self, *args, **kwargs):
    return CloseReport(elapsed=0.0)

taken_out, journal = sys.argv[1:]
if taken_out == "Life._drop_connection":
    Life._drop_connection = nothing
elif taken_out == "Server.close":
    Server.close = nothing
elif taken_out == "AsyncHost.close":
    AsyncHost.close = empty_report

log = FaultLog(journal)
spec = fault_server(journal=journal, lazy=True, bounds=SOON, lifetime=30, **STUBBORN,
                    on_probe="silent", on_initialize="silent")
host = Host({"a": spec}, state_dir=False)
host.start()
try:
    with host.run(timeout=0.5):
        host.call("a__echo")
except RunTimeout:
    pass
host.close(3)
print(json.dumps([pid for pid in log.pids() if alive(pid)]))
"""


def what_is_wrong_after(taken_out: str, journal: Path) -> list[str]:
    """Run the scenario in a child Python; what it left, and what was said about it."""
    ended: subprocess.CompletedProcess[str] = run_program(PROGRAM, taken_out, journal)
    wrong = [f"exit code {ended.returncode}"] if ended.returncode else []
    left = json.loads(ended.stdout) if ended.stdout.strip() else []
    wrong += [f"process {pid} is left" for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):  # the death watch may have been faster
            os.kill(pid, signal.SIGKILL)
    assert wait_gone(left, 5)
    wrong += [line for line in ended.stderr.splitlines() if any(each in line for each in COMPLAINTS)]
    if ended.stderr and not wrong:
        wrong.append(ended.stderr)
    return wrong


def test_with_the_owners_clean_up_nothing_is_wrong(tmp_path: Path) -> None:
    """The scenario in a child Python, looked at from outside."""
    assert what_is_wrong_after("nothing", tmp_path / "journal") == []


@pytest.mark.parametrize("taken_out", ["Life._drop_connection", "Server.close", "AsyncHost.close"])
def test_without_the_owners_clean_up_the_scenario_leaves_something(taken_out: str, tmp_path: Path) -> None:
    """The same scenario, told apart by the clean-up alone: this is what the tests above would see."""
    wrong = what_is_wrong_after(taken_out, tmp_path / "journal")
    assert any("is left" in each or "pending" in each for each in wrong), wrong
