"""Shutdown and interpreter exit (field faults, class 2): what the other files here and in ``tests/host`` leave open.

What HTTP adds (a closing DELETE that is never answered) stands in tests/http_life.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
from pathlib import Path

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds, CallCancelled, CallTimeout, Host, RunTimeout
from tests.faults.procs import alive, gone, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import (
    SOON,
    STUBBORN,
    Events,
    child_command,
    child_environment,
    in_thread,
    run_program,
    took,
)

SECOND = Bounds(stop_eof=1.0, stop_term=1.0, stop_kill=2.0)

HEAD = """
import asyncio, os, pathlib, signal, sys, threading
from moorings import *
from moorings.transport.watch import watch
from tests.faults.procs import alive
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN
"""

# --- F2.1: a run ends while a server is still starting ------------------------------------------------------------


@pytest.mark.parametrize("ended_by", ["call", "run"])
@pytest.mark.parametrize("step", ["on_probe", "on_initialize", "on_list"])
async def test_f2_1_a_run_ends_while_a_second_server_is_starting_then_close(
    step: str, ended_by: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F2.1: by the timeout of a call or of the run; the start it wanted is undone, and nothing complains."""
    caplog.set_level(logging.WARNING)
    log = FaultLog(tmp_path / "journal")
    method = {"on_probe": "server/discover", "on_initialize": "initialize", "on_list": "tools/list"}[step]
    specs = {
        "a": fault_server(),
        "slow": fault_server(journal=log.path, lazy=True, bounds=SOON, **STUBBORN, **{step: "silent"}),  # type: ignore[arg-type]
    }
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises((CallTimeout, RunTimeout)) as ended:
            async with host.run(timeout=60 if ended_by == "call" else 0.8):
                start = asyncio.create_task(host.call("slow__echo"))
                await log.seen("received", method=method)
                await host.call("a__never", timeout=0.3 if ended_by == "call" else 60)
        assert type(ended.value) is (CallTimeout if ended_by == "call" else RunTimeout)
        report = await host.close(3)
        with pytest.raises(CallCancelled if ended_by == "call" else CallTimeout) as unsent:
            await start
    assert unsent.value.sent is False
    assert report.survivors == ()
    assert not any(alive(pid) for pid in log.pids())
    assert caplog.records == []


def test_f2_1_the_same_from_blocking_code(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F2.1: the run's call times out in one thread, another waits for the start; then close."""
    caplog.set_level(logging.WARNING)
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, lazy=True, bounds=SOON, on_initialize="silent", **STUBBORN)  # type: ignore[arg-type]
    with Host({"a": fault_server(), "slow": spec}, state_dir=False) as host:
        host.wait_ready(10)
        with pytest.raises(CallTimeout), host.run(timeout=60) as run:
            start = in_thread(run.call, "slow__echo")
            log.wait_for("received", method="initialize")
            host.call("a__never", timeout=0.3)
        host.close(3)
    error = start.outcome()
    assert isinstance(error, CallCancelled) and error.sent is False
    assert not any(alive(pid) for pid in log.pids())
    assert caplog.records == []


# --- F2.2: parked servers and an exit without close ---------------------------------------------------------------

PARKED = """
how, *journals = sys.argv[1:]
specs = {f"s{n}": fault_server(journal=j, on_probe="exit:3", on_initialize="exit:3") for n, j in enumerate(journals)}
if how == "blocking":
    host = Host(specs, state_dir=False)
    host.start()
    states = host.wait_ready(20).failed
else:
    async def main():
        global host
        host = AsyncHost(specs, state_dir=False)
        await host.start()
        return (await host.wait_ready(20)).failed
    states = asyncio.run(main())
print(len(states))
"""


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_f2_2_three_parked_servers_and_an_interpreter_that_exits_without_close(
    how: str, tmp_path: Path
) -> None:
    """F2.2: stderr is empty, no process is left, and nothing is waited for."""
    logs = [FaultLog(tmp_path / f"journal{n}") for n in range(3)]
    ended = run_program(HEAD + PARKED, how, *(log.path for log in logs), timeout=15)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("3\n", "", 0)
    assert not any(alive(pid) for log in logs for pid in log.pids())


# --- F2.4: a stubborn server with a grandchild --------------------------------------------------------------------


async def test_f2_4_a_plain_close_ends_a_stubborn_server_and_its_grandchild(tmp_path: Path) -> None:
    """F2.4: stop waits of 1 s and 1 s → both pids are gone by 2.5 s, and not before they had their time."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost(
        {"s": fault_server(journal=log.path, bounds=SECOND, **STUBBORN)},  # type: ignore[arg-type]
        state_dir=False,
    ) as host:
        await host.call("s__fork_child", {"ignore_term": True})
        with took(2.0, 3.5):
            report = await host.close()
            assert not any(alive(pid) for pid in log.pids())
    assert len(log.pids()) == 2
    assert report.forced == {"s": ("TERM", "KILL")}


async def test_f2_4_a_caller_who_waits_for_half_a_second_is_free_and_the_owner_finishes(
    tmp_path: Path,
) -> None:
    """F2.4: `wait_for(close(), 0.5)` → free at 0.5 s, the same end, and a later close returns the report."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    spec = fault_server(journal=log.path, bounds=SECOND, **STUBBORN)  # type: ignore[arg-type]
    host = AsyncHost({"s": spec}, state_dir=False, on_event=events)
    await host.start()
    await host.call("s__fork_child", {"ignore_term": True})
    pids = log.pids()
    with took(1.9, 4.2):
        with took(0.5, 1.5), pytest.raises(TimeoutError):
            await asyncio.wait_for(host.close(), 0.5)
        assert all(alive(pid) for pid in pids)
        assert await gone(pids, 3)
    report = await host.close()
    assert report.forced == {"s": ("TERM", "KILL")}
    assert report.survivors == ()
    assert events.states("s")[-1] == "closed"


# --- F2.5: a native cancel at each turn of the loop ---------------------------------------------------------------


async def test_f2_5_a_native_cancel_after_each_turn_of_a_close(tmp_path: Path) -> None:
    """F2.5: with a call in flight on a stubborn server: the caller is free, the call typed, the end the same."""
    log = FaultLog(tmp_path / "journal")
    hasty = Bounds(stop_eof=0.05, stop_term=0.05, stop_kill=2.0)
    for turns in range(16):
        host = AsyncHost(
            {"s": fault_server(journal=log.path, bounds=hasty, **STUBBORN)},  # type: ignore[arg-type]
            state_dir=False,
        )
        await host.start()
        await host.wait_ready(10)
        call = asyncio.create_task(host.call("s__never"))
        await log.seen("received", turns + 1, tool="never")
        closing = asyncio.create_task(host.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing}, timeout=0.5)
        assert closing.cancelled()
        assert (await host.close()).forced == {"s": ("TERM", "KILL")}
        with pytest.raises(AmbiguousDelivery):
            await call
        assert not any(alive(pid) for pid in log.pids())
        assert len(log.starts()) == turns + 1


# --- F2.8: Ctrl-C in async code -----------------------------------------------------------------------------------

INTERRUPTED = """
async def main():
    async with AsyncHost({"s": fault_server(journal=sys.argv[1], bounds=SOON)}, state_dir=False) as host:
        await host.call("s__never")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_f2_8_sigint_during_a_call_of_an_async_program(tmp_path: Path) -> None:
    """F2.8: `asyncio.run` cancels the main task; the block closes the host, the server is told, nothing is printed."""
    log = FaultLog(tmp_path / "journal")
    with subprocess.Popen(
        child_command(HEAD + INTERRUPTED, log.path),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            log.wait_for("received", tool="never")
            os.killpg(program.pid, signal.SIGINT)
            with took(0.0, 2.5):
                out, err = program.communicate(timeout=15)
        finally:
            program.kill()
    assert (out, err, program.returncode) == ("interrupted\n", "", 0)
    assert len(log.entries("cancelled")) == 1
    assert not any(alive(pid) for pid in log.pids())


# --- F2.9: what the exit matrix has no row for --------------------------------------------------------------------

LEFT = """
how, what, journal = sys.argv[1:]
log = FaultLog(journal)
keys = {
    "parked": {"on_probe": "exit:3", "on_initialize": "exit:3"},
    "starting": {"on_initialize": "silent"},
    "in a call": {},
}[what]
host = Host({"s": fault_server(journal=journal, bounds=SOON, **keys)}, state_dir=False)
host.start()
if what == "starting":
    log.wait_for("received", method="initialize")
else:
    host.wait_ready(20)
if what == "in a call":
    host.submit("s__never")
    log.wait_for("received", tool="never")
print(watch.pid, flush=True)
if how == "os._exit":
    os._exit(5)
os.kill(os.getpid(), getattr(signal, how))
threading.Event().wait(20)
"""


@pytest.mark.parametrize("what", ["parked", "starting", "in a call"])
@pytest.mark.parametrize("how", ["os._exit", "SIGTERM", "SIGKILL"])
def test_f2_9_a_sudden_end_while_a_server_is_not_just_idle(how: str, what: str, tmp_path: Path) -> None:
    """F2.9: parked, starting, or in a call: nothing of it is left, and nothing is printed."""
    log = FaultLog(tmp_path / "journal")
    ended = run_program(HEAD + LEFT, how, what, log.path, timeout=20)
    assert ended.returncode == (5 if how == "os._exit" else -getattr(signal, how))
    assert ended.stderr == ""
    assert wait_gone(log.pids(), 5)
    # A host without a process has no watch.
    assert (ended.stdout == "None\n") == (what == "parked")
    assert what == "parked" or wait_gone(int(ended.stdout), 5)


# --- F2.10: the files of the parent -------------------------------------------------------------------------------

FORKED = """
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.12 warns of every fork beside threads
folder, how = sys.argv[1:]
host = Host({"s": fault_server()}, state_dir=folder)
host.start()
host.call("s__stderr", {"text": "before\\n"})

def files():
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)

before = files()
pid = os.fork()
if pid == 0:
    sys.exit(0) if how == "exit" else os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert files() == before, (before, files())
host.call("s__stderr", {"text": "after\\n"})
host.close()
text = "".join(pathlib.Path(name).read_text() for name in files() if name.endswith(".log"))
print("before" in text and "after" in text)
"""


@pytest.mark.parametrize("how", ["exit", "_exit"])
def test_f2_10_the_exit_of_a_forked_child_touches_no_file_of_the_parent(how: str, tmp_path: Path) -> None:
    """F2.10: era memory and server log are there as before, and the log is written on."""
    ended = run_program(HEAD + FORKED, tmp_path / "state", how, timeout=20)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("True\n", "", 0)


# --- the close starts nothing -------------------------------------------------------------------------------------


async def test_a_close_starts_nothing_new(tmp_path: Path) -> None:
    """A lazy server, a start that queues behind another, a restart: none of them spawns once the close began."""
    events = Events()
    logs = {name: FaultLog(tmp_path / name) for name in ("first", "queued", "again")}
    specs = {
        "again": fault_server(journal=logs["again"].path, bounds=SOON, ignore_eof=True),
        "first": fault_server(journal=logs["first"].path, lazy=True, on_initialize="silent", bounds=SOON),
        "queued": fault_server(journal=logs["queued"].path, lazy=True),
    }
    async with AsyncHost(specs, state_dir=False, max_starting=1, on_event=events) as host:
        await events.seen("again", "ready")
        waiting = [asyncio.create_task(host.call("first__echo"))]
        await logs["first"].seen("received", method="initialize")
        waiting.append(asyncio.create_task(host.call("queued__echo")))
        waiting.append(asyncio.create_task(host.restart("again")))
        await events.seen("again", "stopping")
        await host.close(3)
        await asyncio.wait(waiting)
        assert all(task.exception() is not None for task in waiting)
    assert {name: len(log.starts()) for name, log in logs.items()} == {"first": 1, "queued": 0, "again": 1}
