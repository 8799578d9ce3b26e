"""What tests ask of /proc: who lives, in which group, under whom; and waits for an end without sleeping.

A process that has ended but was not reaped (a zombie) is not alive; ``state`` and ``zombies`` show it.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Iterable

TICKS = os.sysconf("SC_CLK_TCK")


def stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on (state, ppid, pgrp, session …), or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the second field is a name, and may hold blanks and brackets


def state(pid: int) -> str | None:
    """One letter (R, S, D, Z …), or None if the pid is free."""
    fields = stat(pid)
    return None if fields is None else fields[0]


def alive(pid: int) -> bool:
    return state(pid) not in (None, "Z", "X")


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since the boot; with the pid it names one process for ever."""
    fields = stat(pid)
    return None if fields is None else int(fields[19])


def cpu_seconds(pid: int) -> float:
    """User and system time of the process so far; 0.0 if it is gone."""
    fields = stat(pid)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    """Memory held by the process; 0 if it is gone."""
    fields = stat(pid)
    return 0 if fields is None else int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int | None = None) -> dict[int, str]:
    """Open descriptors of a process (our own if None), with what they lead to."""
    folder = f"/proc/{pid or 'self'}/fd"
    found = {}
    for name in os.listdir(folder):
        try:
            found[int(name)] = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


def group_members(pgid: int) -> list[int]:
    """The living members of a process group."""
    return [pid for pid, fields in everybody().items() if int(fields[2]) == pgid and fields[0] not in "ZX"]


def children(pid: int | None = None) -> list[int]:
    """The direct children of a process (our own if None), zombies too."""
    parent = os.getpid() if pid is None else pid
    return [child for child, fields in everybody().items() if int(fields[1]) == parent]


def descendants(pid: int | None = None) -> list[int]:
    """The living processes under this one (our own if None), without those handed to another parent."""
    table = everybody()
    found: list[int] = []
    parents = {os.getpid() if pid is None else pid}
    while parents:
        parents = {child for child, fields in table.items() if int(fields[1]) in parents}
        found += sorted(parents)
    return [child for child in found if table[child][0] not in "ZX"]


def zombies(pid: int | None = None) -> list[int]:
    """Children of a process (our own if None) that ended and were not reaped."""
    return [child for child in children(pid) if state(child) == "Z"]


def everybody() -> dict[int, list[str]]:
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat(int(name))) is not None:
            table[int(name)] = fields
    return table


def wait_gone(pid: int | Iterable[int], timeout: float) -> bool:
    """Waits until the process, or each of several, has ended (reaped or not); False if one is left."""
    deadline = time.monotonic() + timeout
    for one in [pid] if isinstance(pid, int) else pid:
        fd = pidfd(one)
        if fd is None:
            continue
        try:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        finally:
            os.close(fd)
        if not ready:
            return False
    return True


async def gone(pid: int | Iterable[int], timeout: float) -> bool:
    """``wait_gone`` for async tests; the loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            for one in [pid] if isinstance(pid, int) else pid:
                fd = pidfd(one)
                if fd is None:
                    continue
                ended = asyncio.Event()
                loop.add_reader(fd, ended.set)
                try:
                    await ended.wait()
                finally:
                    loop.remove_reader(fd)
                    os.close(fd)
    except TimeoutError:
        return False
    return True


def pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process has ended; None if the pid is free."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
