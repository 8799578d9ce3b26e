"""Who is who among the processes of this machine: groups, start times, and the owner mark.

A process number says little: it is given to strangers once its process is reaped. Here a process is known by number
*and* start time, and signalled through a pidfd that was confirmed in that very moment. Each server carries a mark in
its environment, which its descendants inherit: by it those that left the group are found. Linux reads /proc; where
there is none (macOS) only groups are known. Pure reading, but for ``signal_confirmed``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterable

import msgspec

__all__ = ["MARK", "ProcessInfo", "Snapshot", "owner_mark", "signal_confirmed", "start_time"]

MARK = "MOORINGS_OWNER"
"""Name of the environment variable that holds the owner mark."""

_token = secrets.token_hex(16)


def _new_token() -> None:
    global _token
    _token = secrets.token_hex(16)


if hasattr(os, "register_at_fork"):
    # The child's servers are its own: the watch of the parent must not end them.
    os.register_at_fork(after_in_child=_new_token)


def owner_mark(life: str = "") -> str:
    """The mark of this host process, or of one life of a server in it (which begins with that of the process)."""
    return f"{_token}.{life}" if life else _token


class ProcessInfo(msgspec.Struct, frozen=True, gc=False):
    """One process as /proc shows it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int
    """Start time in clock ticks since boot; with the pid it names a process for good."""

    @property
    def dead(self) -> bool:
        """A zombie: it has ended and waits to be reaped."""
        return self.state in ("Z", "X")


def read_stat(pid: int | str, proc: str = "/proc") -> ProcessInfo | None:
    """One process, None if it is gone."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        data = os.read(fd, 1024)
    except OSError:
        return None
    finally:
        os.close(fd)
    # The name stands in brackets and may hold anything, brackets and blanks too.
    fields = data[data.rfind(b")") + 2 :].split(b" ", 21)
    if len(fields) < 20:
        return None
    return ProcessInfo(
        int(pid), fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])
    )


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks, None if it is gone or there is no /proc."""
    info = read_stat(pid)
    return info.start if info is not None else None


class Snapshot:
    """All processes at one moment."""

    __slots__ = ("_marks", "processes", "proc")

    def __init__(self, processes: dict[int, ProcessInfo], proc: str = "/proc") -> None:
        self.processes = processes
        self.proc = proc
        self._marks: dict[int, bytes] | None = None

    @classmethod
    def take(cls, proc: str = "/proc") -> Snapshot | None:
        """Read them; None where there is no /proc."""
        try:
            names = os.listdir(proc)
        except OSError:
            return None
        if "self" not in names:
            return None
        found = (read_stat(name, proc) for name in names if name.isdigit())
        return cls({info.pid: info for info in found if info is not None}, proc)

    def group(self, pgid: int) -> list[ProcessInfo]:
        """Members of a group, zombies too."""
        return [info for info in self.processes.values() if info.group == pgid]

    def marked(self, mark: str) -> list[ProcessInfo]:
        """Living processes of the same user whose environment holds an owner mark that begins with ``mark``."""
        wanted = f"{MARK}={mark}".encode()
        me = os.getpid()
        if self._marks is None:
            self._marks = {}
            for pid, info in self.processes.items():
                if info.dead or pid == me:
                    continue
                # Another user's environment cannot be read, and a kernel thread has none.
                with contextlib.suppress(OSError), open(f"{self.proc}/{pid}/environ", "rb") as file:
                    data = file.read()
                    at = data.find(MARK.encode() + b"=")
                    if at == 0 or (at > 0 and data[at - 1] == 0):
                        self._marks[pid] = data[at : data.find(b"\0", at)]
        return [self.processes[pid] for pid, found in self._marks.items() if _belongs(found, wanted)]


def _belongs(found: bytes, wanted: bytes) -> bool:
    """A mark belongs to a process or life if it is that mark or goes on behind a dot."""
    return found == wanted or found.startswith(wanted + b".")


def signal_confirmed(info: ProcessInfo, number: int) -> bool:
    """Send a signal to exactly that process: number and start time are confirmed while a pidfd holds it.

    Returns whether it was sent; False if the process is gone and its number free or a stranger's.
    """
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        if start_time(info.pid) not in (None, info.start):
            return False
        try:
            os.kill(info.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True
    try:
        fd = os.pidfd_open(info.pid)
    except OSError:
        return False
    try:
        # The pidfd now names one process for good; if that one has the start time we know, it is ours.
        if start_time(info.pid) != info.start:
            return False
        signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(fd)
    return True


def signal_all(infos: Iterable[ProcessInfo], number: int) -> None:
    """Send a signal to each, confirmed one by one."""
    for info in infos:
        signal_confirmed(info, number)
