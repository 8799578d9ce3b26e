"""Child processes (field faults, class 3), at the public door: what the tests of the transport leave open."""

from __future__ import annotations

import asyncio
import itertools
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds, CallTimeout, StartError
from tests.faults.procs import alive, descriptors, zombies
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, Events, child_command, child_environment, took


def one_after_another(log: FaultLog) -> None:
    """No server started before the one before it had ended."""
    starts = log.starts()
    for earlier, later in itertools.pairwise(starts):
        (end,) = log.entries("exit", pid=earlier["pid"])
        assert end["t"] < later["t"]


def settled() -> tuple[list[int], int]:
    """Zombies, and how many descriptors are open."""
    return zombies(), len(descriptors())


# --- F3.3: again and again ----------------------------------------------------------------------------------------


async def test_f3_3_five_drops_and_ten_restarts_leave_one_process(tmp_path: Path) -> None:
    """F3.3: one pid at most at any time, descriptors as at the start, no zombie."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False) as host:
        await host.call("s__echo")
        before = settled()
        assert before[0] == []
        for _ in range(5):
            with pytest.raises(AmbiguousDelivery):
                await host.call("s__die", {"code": 3})
            await host.call("s__echo")
            assert sum(alive(pid) for pid in log.pids()) == 1
        assert settled() == before
        for _ in range(10):
            await host.restart("s")
            await host.call("s__echo")
            assert sum(alive(pid) for pid in log.pids()) == 1
        assert settled() == before
        assert host.status()["s"].generation == 16
    assert len(log.starts()) == 16
    one_after_another(log)


@pytest.mark.parametrize("attempts", [12, pytest.param(50, marks=pytest.mark.soak)])
async def test_f3_3_a_server_that_never_answers_initialize_is_tried_again_and_again(
    attempts: int, tmp_path: Path
) -> None:
    """F3.3: each attempt ends with its process before the next begins."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    bounds = Bounds(connect=0.2, cooldown=0.0)
    spec = fault_server(journal=log.path, on_initialize="silent", lazy=True, bounds=bounds)
    async with AsyncHost({"s": spec}, state_dir=False, on_event=events) as host:
        before = settled()
        for _ in range(attempts):
            with pytest.raises(StartError):
                await host.restart("s")
            # The caller is told at the limit; the process is put away meanwhile, before the next one starts.
            assert sum(alive(pid) for pid in log.pids()) <= 1
        await events.seen("s", "parked", attempts)
        assert not any(alive(pid) for pid in log.pids())
        assert settled() == before
        assert before[0] == []
    one_after_another(log)


# --- F3.4: what a failed start holds ------------------------------------------------------------------------------


async def test_f3_4_a_start_that_fails_gives_its_lock_back_before_the_next_one(tmp_path: Path) -> None:
    """F3.4: the server takes its time to exit, holding a lock file; the next spawn gets the lock."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(
        journal=log.path,
        lock_file=tmp_path / "lock",
        slow_exit=0.3,
        by_start=[{"on_initialize": "silent"}, {}],
        bounds=Bounds(connect=0.4, cooldown=0.0),
    )
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        assert "s" in (await host.wait_ready(10)).failed
        assert (await host.call("s__echo", {"text": "locked"})).text == "locked"
    assert len(log.starts()) == 2
    one_after_another(log)


# --- F3.5: stderr -------------------------------------------------------------------------------------------------


async def test_f3_5_much_on_stderr_holds_up_no_call(tmp_path: Path) -> None:
    """F3.5: 1 MB before the first answer, 256 KB with each call; all answered, and the log stays inside its limit."""
    spec = fault_server(stderr_first=1_000_000, bounds=Bounds(stderr_tail=2000, log_file=300_000))
    async with AsyncHost({"s": spec}, state_dir=tmp_path / "state") as host:
        for _ in range(4):
            assert (await host.call("s__stderr", {"bytes": 256 * 1024}, timeout=5)).text == "said"
        with pytest.raises(AmbiguousDelivery) as ended:
            await host.call("s__die", {"stderr": "the last words\n"})
    assert "the last words" in str(ended.value)
    assert len(str(ended.value)) < 4000
    sizes = [path.stat().st_size for path in (tmp_path / "state" / "logs").iterdir()]
    assert len(sizes) == 2 and max(sizes) <= 300_000


# --- F3.8: Ctrl-C at a terminal -----------------------------------------------------------------------------------

AT_A_TERMINAL = """
import fcntl, json, sys, termios, time
from moorings import Host
from tests.faults.script import fault_server

fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # this program is what runs in the foreground of the terminal
host = Host({"s": fault_server(journal=sys.argv[1])}, state_dir=False)
with host:
    before = host.call("s__pid").text
    try:
        print("ready", flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert host.call("s__pid").text == before
    print(host.call("s__counter").text, flush=True)
"""


def test_f3_8_ctrl_c_at_a_terminal_reaches_the_host_alone(tmp_path: Path) -> None:
    """F3.8: the host handles it and goes on; the server gets no SIGINT, and its MCP session stays."""
    log = FaultLog(tmp_path / "journal")
    keyboard, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            child_command(AT_A_TERMINAL, log.path),
            env=child_environment(),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as program:
            try:
                assert program.stdout is not None and program.stderr is not None
                assert program.stdout.readline() == "ready\n", program.stderr.read()
                os.write(keyboard, b"\x03")
                out, err = program.communicate(timeout=15)
            finally:
                program.kill()
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert (out, err, program.returncode) == ("interrupted\n3\n", "", 0)
    assert log.entries("signal") == []
    assert log.count("initialize") == 1


# --- F3.9: a server that reads no more ----------------------------------------------------------------------------


async def test_f3_9_a_full_pipe_costs_one_call(tmp_path: Path) -> None:
    """F3.9: a 5 MB argument to a server that reads no more: that call ends at its limit, the others are answered."""
    log = FaultLog(tmp_path / "journal")
    specs = {"deaf": fault_server(journal=log.path, bounds=SOON), "other": fault_server()}
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        earlier = asyncio.create_task(host.call("deaf__sleep", {"seconds": 1.0}))
        await log.seen("received", tool="sleep")
        await host.call("deaf__stop_reading")
        large = asyncio.create_task(host.call("deaf__echo", {"text": "x" * 5_000_000}, timeout=0.5))
        for n in range(20):
            with took(0.0, 1.0):
                assert (await host.call("other__echo", {"text": str(n)})).text == str(n)
        began = time.monotonic()
        with pytest.raises(CallTimeout) as ended:
            await large
        assert time.monotonic() - began < 1.5
        assert ended.value.sent and ended.value.allowed == 0.5 and ended.value.elapsed >= 0.5
        assert (await earlier).text == "slept"
        with took(0.3, 1.5):
            report = await host.close()
    assert report.forced == {"deaf": ("TERM",)}


# --- the rule: nobody else is signalled ---------------------------------------------------------------------------


async def test_f3_7_two_servers_spawn_in_one_instant_and_one_fails_at_once(tmp_path: Path) -> None:
    """F3.7: the end of the one signals nobody else: not the other server, not the host's own group."""
    log = FaultLog(tmp_path / "journal")
    struck: list[int] = []
    before = {number: signal.signal(number, lambda n, _: struck.append(n)) for number in (15, 1)}
    try:
        specs = {
            "good": fault_server(journal=log.path),
            "bad": fault_server(on_probe="exit:3", on_initialize="exit:3", bounds=SOON),
        }
        with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as neighbour:
            async with AsyncHost(specs, state_dir=False) as host:
                readiness = await host.wait_ready(10)
                assert readiness.ready == ("good",)
                assert neighbour.poll() is None
                assert (await host.call("good__echo", {"text": "unharmed"})).text == "unharmed"
            assert neighbour.poll() is None
            neighbour.communicate(b"\n")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert struck == []
    assert log.entries("signal") == []
