"""What the tests of lives and deaths share: waits on /proc, processes that are nobody's business, child Pythons."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from moorings import Bounds
from tests.faults import procs
from tests.host.kit import child_command, child_environment

QUICK = Bounds(stop_eof=0.2, stop_term=0.2, stop_kill=2.0, cooldown=0.0)
"""For servers that must be forced: TERM after 0.2 s, KILL after 0.4 s."""
STUBBORN = {"ignore_eof": True, "ignore_term": True}
PAUSE = 0.005


def until(met: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """Wait for something that only /proc tells of, which nobody announces."""
    deadline = time.monotonic() + timeout
    while not met():
        assert time.monotonic() < deadline, what or "it did not come"
        time.sleep(PAUSE)


async def until_async(met: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    """``until`` for async tests; the loop goes on meanwhile."""
    deadline = time.monotonic() + timeout
    while not met():
        assert time.monotonic() < deadline, what or "it did not come"
        await asyncio.sleep(PAUSE)


def environment_of(pid: int) -> bytes:
    """The environment a process was started with; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def bearing(text: str) -> list[int]:
    """Living processes that have a text in their environment or command line, this one aside."""
    wanted = text.encode()
    return [
        pid
        for pid in procs.everybody()
        if pid != os.getpid() and procs.alive(pid) and (wanted in environment_of(pid) or wanted in command_of(pid))
    ]  # fmt: skip


@contextlib.contextmanager
def stranger(
    *, environment: dict[str, str] | None = None, code: str = "", own_session: bool = True
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of Moorings' and must stay alive; it has run its code when this begins.

    It is a sleeping Python, in a session of its own unless told otherwise.
    """
    program = f"{code}\nimport sys, time\nsys.stdout.write('.'); sys.stdout.flush()\ntime.sleep(100)"
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", program],
        env={**os.environ, **(environment or {})},
        start_new_session=own_session,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.read(1)
            yield process
            assert procs.alive(process.pid), "a stranger was hit"
        finally:
            process.kill()


@contextlib.contextmanager
def program(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A child Python; killed at the end if it is still there."""
    with subprocess.Popen(
        child_command(code, *args),
        env=child_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed_itself(process: subprocess.Popen[str]) -> list[str]:
    """Wait for a program that ends by SIGKILL; the lines it had printed.

    Its servers may hold its stdout, so only whole lines up to ``end`` are read.
    """
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == "end\n":
            break
        lines.append(line.rstrip("\n"))
    process.wait(30)
    assert process.returncode == -signal.SIGKILL, lines
    return lines
