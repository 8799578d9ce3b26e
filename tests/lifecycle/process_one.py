"""A program that is process 1 of its namespace and holds servers: `python process_one.py ROW`, run by test_pid1.py.

It says `well` if no zombie stays and nobody was robbed of an exit code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time

import moorings
from tests.faults import procs
from tests.faults.script import fault_server
from tests.lifecycle.kit import QUICK

ORPHANS = """
import os, sys, time
# One orphan after the other, of every kind; each lives for as long as its number says.
for n in range(int(sys.argv[1])):
    for kind in ("group", "session", "daemon"):
        if os.fork() == 0:
            if kind != "group":
                os.setsid()
            if kind == "daemon" and os.fork():
                os._exit(0)
            if os.fork():
                os._exit(0)
            time.sleep(float(sys.argv[2]) * n)
            os._exit(0)
        os.wait()
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Stands before a server. The first orphans are dead before the server is up."""


def orphaning(count: int, seconds: float, **script: object) -> moorings.StdioServer:
    plain = fault_server(**script)
    return moorings.StdioServer(
        command=sys.executable,
        args=("-S", "-E", "-c", ORPHANS, str(count), str(seconds), plain.command, *plain.args),
        bounds=QUICK,
    )


async def no_zombies(within: float) -> None:
    until = time.monotonic() + within
    while (left := procs.zombies()) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    assert not left, [(pid, procs.stat(pid)) for pid in left]


async def stop() -> None:
    """After a stop there is none, at once."""
    for seconds in (0.0, 0.02, 100.0):
        async with moorings.AsyncHost({"a": orphaning(5, seconds)}, state_dir=False) as host:
            assert (await host.wait_ready(20)).all_ready
        assert procs.zombies() == [], (seconds, procs.everybody())


async def stubborn() -> None:
    """The same for one that has to be killed with all that came from it."""
    spec = orphaning(5, 100.0, ignore_eof=True, ignore_term=True)
    async with moorings.AsyncHost({"a": spec}, state_dir=False) as host:
        assert (await host.wait_ready(20)).all_ready
        await host.call("a__fork_child", {"new_session": True, "ignore_term": True})
        report = await host.close()
    assert report.forced == {"a": ("TERM", "KILL")}, report
    assert report.survivors == ()
    assert procs.zombies() == []


async def killed() -> None:
    """A server that dies hands its children over, dead or alive; the next life begins clean."""
    async with moorings.AsyncHost({"a": orphaning(3, 0.05)}, state_dir=False) as host:
        for _ in range(3):
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
            pid = host.status()["a"].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while host.status()["a"].pid == pid:
                await asyncio.sleep(0.01)
        await host.close()
    assert procs.zombies() == []


async def long_life() -> None:
    """While the server lives its orphans die one after the other, and the looks of the host reap them."""
    async with moorings.AsyncHost({"a": orphaning(20, 0.1)}, state_dir=False) as host:
        assert (await host.wait_ready(20)).all_ready
        most = 0
        until = time.monotonic() + 3.5
        while time.monotonic() < until:
            most = max(most, len(procs.zombies()))
            await asyncio.sleep(0.02)
        # The dead of the start and those of one look.
        assert most < 60, most
        await no_zombies(3.0)
        assert procs.alive(host.status()["a"].pid or 0)
    assert procs.zombies() == []


async def the_programs_own() -> None:
    """Exit codes of its own children are right, whatever the kind, and whenever it asks."""
    own = []
    async with moorings.AsyncHost({"a": orphaning(5, 0.1)}, state_dir=False) as host:
        assert (await host.wait_ready(20)).all_ready
        for n in range(12):
            code = f"import sys, time; time.sleep({n % 3} * 0.3); sys.exit({n})"
            own.append(
                subprocess.Popen([sys.executable, "-S", "-E", "-c", code], start_new_session=n % 2 == 0)
            )
        waited = await asyncio.create_subprocess_exec(
            sys.executable, "-S", "-E", "-c", "import sys; sys.exit(77)"
        )
        forked = os.fork()
        if forked == 0:
            os.setsid()
            os._exit(78)
        await asyncio.sleep(2.5)
        assert await waited.wait() == 77
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 78
        dead = {each.pid for each in own}
        assert set(procs.zombies()) == dead, (procs.zombies(), dead)
    assert set(procs.zombies()) == dead
    assert [each.wait() for each in own] == list(range(12))
    assert procs.zombies() == []


ROWS = {
    "stop": stop,
    "stubborn": stubborn,
    "killed": killed,
    "long life": long_life,
    "the program's own": the_programs_own,
}

if __name__ == "__main__":
    assert os.getpid() == 1
    tempfile.tempdir = os.environ["TMPDIR"]
    asyncio.run(ROWS[sys.argv[1]]())
    print("well")
