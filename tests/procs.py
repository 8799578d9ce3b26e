"""What runs under this test process, read from /proc. Linux only, like the tests that use it."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
PF_EXITING = 0x00000004
PF_SIGNALED = 0x00000400
SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    flags: int
    born: int  # clock ticks since boot: tells a process from a later one with the same pid
    name: str

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.born


def adopt_orphans() -> bool:
    """From now on a descendant whose parent dies becomes our child and not init's, so none can slip away."""
    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def read(pid: int) -> Process | None:
    # By bare system calls, as this is done for each process of the machine before and after each test.
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        data = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    name, _, rest = data.partition(b"(")[2].rpartition(b")")
    fields = rest.split(None, 21)
    return Process(
        pid,
        int(fields[1]),
        fields[0].decode(),
        int(fields[6]),
        int(fields[19]),
        name.decode(errors="replace"),
    )


def table() -> dict[int, Process]:
    found = (read(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {process.pid: process for process in found if process}


def descendants(root: int, processes: dict[int, Process] | None = None) -> list[Process]:
    """All processes below `root`, zombies included, parents before children."""
    children: dict[int, list[Process]] = {}
    for process in (table() if processes is None else processes).values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += [process.pid for process in below]
    return found


def dying(pid: int) -> bool:
    """True when the process is dead, or its death is certain and only the kernel has still to carry it out."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            pending = [int(line.split()[1], 16) for line in file if line.startswith(("SigPnd", "ShdPnd"))]
    except (FileNotFoundError, ProcessLookupError):
        return True
    if any(mask & SIGKILL_BIT for mask in pending):
        return True
    process = read(pid)
    return process is None or process.state in "ZX" or bool(process.flags & (PF_EXITING | PF_SIGNALED))


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def carries(pid: int, mark: bytes) -> bool:
    """Whether the process was started with this environment entry."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False


def wait_gone(pid: int, seconds: float = 10.0) -> bool:
    """Wait for the end of any process, ours or not; a zombie counts as ended. No polling: a pidfd tells.

    `os.kill(pid, 0)` would not do: an orphan adopted by the test process stays a zombie until somebody reaps it.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(pidfd)
