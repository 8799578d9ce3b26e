"""Who is who among the processes of this machine: groups, start times, and the owner mark.

A process number says little: it is given to strangers once its process is reaped. Here a process is known by number
*and* start time, and signalled through a pidfd that was confirmed in that very moment. Each server carries a mark in
its environment, which its descendants inherit: by it those that left the group are found. Linux reads /proc; where
there is none (macOS) only groups are known. Pure reading, but for ``signal_confirmed``.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import signal
import sys
from collections.abc import Iterator

import msgspec

__all__ = [
    "MARK",
    "ProcessInfo",
    "Snapshot",
    "owner_mark",
    "reap_confirmed",
    "signal_confirmed",
    "start_time",
]

NO_DESCRIPTOR = frozenset((errno.EMFILE, errno.ENFILE))
"""Errors by which nothing could be looked at."""
MARK = "MOORINGS_OWNER"
"""Name of the environment variable that holds the owner mark."""

PF_EXITING = 0x00000004

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


_lives = itertools.count(1)


def life_mark() -> str:
    """A new mark, for one life of a server in this process."""
    return owner_mark(str(next(_lives)))


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
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise  # it was not looked at, which is not the same as gone
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
    """Start time of a process in clock ticks, None if it is gone, cannot be looked at, or there is no /proc."""
    try:
        info = read_stat(pid)
    except OSError:
        return None
    return info.start if info is not None else None


class Snapshot:
    """All processes at one moment."""

    __slots__ = ("_marks", "_sessions", "_unsettled", "partial", "proc", "processes")

    def __init__(
        self, processes: dict[int, ProcessInfo], proc: str = "/proc", *, partial: bool = False
    ) -> None:
        self.processes = processes
        self.partial = partial
        """True if not all could be looked at: then what is not here may be there."""
        self.proc = proc
        # By what is asked for: many servers that end together look at one snapshot.
        self._sessions: dict[int, list[ProcessInfo]] | None = None
        self._marks: dict[bytes, list[ProcessInfo]] | None = None
        self._unsettled: list[ProcessInfo] = []

    @classmethod
    def take(cls, proc: str = "/proc") -> Snapshot | None:
        """Read them; None where there is no /proc. ``partial`` if descriptors ran out before all was seen."""
        try:
            names = os.listdir(proc)
        except OSError as error:
            return cls({}, proc, partial=True) if error.errno in NO_DESCRIPTOR else None
        if "self" not in names:
            return None
        found: dict[int, ProcessInfo] = {}
        partial = False
        for name in names:
            if name.isdigit():
                try:
                    info = read_stat(name, proc)
                except OSError:
                    partial = True
                    continue
                if info is not None:
                    found[info.pid] = info
        return cls(found, proc, partial=partial)

    def session(self, leader: int) -> list[ProcessInfo]:
        """Members of a session, zombies too. A group that its leader never left is part of it."""
        if self._sessions is None:
            self._sessions = {}
            for info in self.processes.values():
                self._sessions.setdefault(info.session, []).append(info)
        return self._sessions.get(leader, [])

    def marked(self, mark: str) -> list[ProcessInfo]:
        """Living processes of the same user whose environment holds that owner mark, or one that goes on behind it
        and a dot: the mark of a host is borne by all of its lives."""
        if self._marks is None:
            self._marks = {}
            for info in self.processes.values():
                for borne in self._marks_of(info):
                    self._marks.setdefault(borne, []).append(info)
        return self._marks.get(mark.encode(), [])

    def _marks_of(self, info: ProcessInfo) -> Iterator[bytes]:
        """The mark that a process bears and all that it goes on from; nothing if it bears none."""
        if info.dead or info.pid == os.getpid():
            return
        # Another user's environment cannot be read, and a kernel thread has none.
        with contextlib.suppress(OSError):
            data = self._environment(info)
            # From the beginning of an entry on: other names may end like this one.
            _, name, rest = (b"\0" + data).partition(f"\0{MARK}=".encode())
            if not name:
                return
            parts = rest.partition(b"\0")[0].split(b".")
            for count in range(1, len(parts) + 1):
                yield b".".join(parts[:count])

    def _environment(self, info: ProcessInfo) -> bytes:
        data = b""
        # Mostly once; again if an exec ended between the two looks, which may be followed by another.
        for _ in range(4):
            with open(f"{self.proc}/{info.pid}/environ", "rb") as file:
                data = file.read()
            # What has no group of this namespace is a kernel thread, or came from outside of it.
            if data or not info.group:
                break
            if between_programs(info.pid, self.proc):
                self._unsettled.append(info)
                break
        return data

    def unsettled(self, since: int) -> list[ProcessInfo]:
        """Processes not older than that start time which were in the middle of an exec: for that moment the kernel
        shows no environment, so that nobody can say whether they carry a mark."""
        self.marked("")
        return [info for info in self._unsettled if info.start >= since]


def between_programs(pid: int, proc: str = "/proc") -> bool:
    """Whether a process has left its old program and not begun the new one: its environment has no place yet."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            data = file.read()
    except OSError:
        return False
    fields = data[data.rfind(b")") + 2 :].split()
    # Not one that is exiting: it has no environment any more.
    return len(fields) > 48 and not int(fields[6]) & PF_EXITING and int(fields[48]) == 0


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


def reap_confirmed(info: ProcessInfo) -> None:
    """Reap exactly that dead child of ours, if it is still there to be reaped."""
    if sys.platform == "linux":
        try:
            fd = os.pidfd_open(info.pid)
        except OSError:
            return
        try:
            if start_time(info.pid) == info.start:
                with contextlib.suppress(OSError):
                    os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        finally:
            os.close(fd)
    elif sys.platform != "win32":
        if start_time(info.pid) == info.start:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(info.pid, os.WNOHANG)
