"""Child processes on Linux, macOS and other POSIX systems.

Exit is seen by a pidfd where there is one, else by a thread that waits with WNOWAIT. Either way the leader stays a
zombie until ``reap``: as long as it is not reaped, its number, which is that of its group, cannot be given to
strangers, so that a signal to the group reaches nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import descriptors
from .adopted import Kin, adopted
from .identity import MARK, ProcessInfo, Snapshot, life_mark, signal_confirmed, start_time

__all__ = ["PosixChild", "Syscalls", "group_members"]

assert sys.platform != "win32"


UNSETTLED = 0.5
"""Seconds for which a process in the middle of an exec keeps a stop from being over, in all."""
UNSEEN = ProcessInfo(0, "?", 0, 0, 0, 0)
"""Stands for what could not be looked at, for want of a descriptor: as long as it does, nothing counts as gone."""
_shared: dict[asyncio.AbstractEventLoop, Snapshot] = {}
"""The snapshot of this turn of each loop: many servers that end together are looked at once."""


def shared_snapshot() -> Snapshot | None:
    """The processes as they were at some moment of this turn of the running loop; None without /proc."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return Snapshot.take()
    snapshot = _shared.get(loop)
    if snapshot is None:
        snapshot = Snapshot.take()
        if snapshot is not None:
            _shared[loop] = snapshot
            loop.call_soon(_shared.pop, loop, None)
    return snapshot


def group_members(pgid: int, *, proc: str | None = None) -> list[int] | None:
    """Living processes of the session that the leader of a group made, in whatever group of it they stand; None where
    there is no /proc to read."""
    snapshot = shared_snapshot() if proc is None else Snapshot.take(proc)
    if snapshot is None:
        return None
    found = [info.pid for info in snapshot.session(pgid) if not info.dead]
    return found or ([UNSEEN.pid] if snapshot.partial else [])


def group_leavers(pgid: int) -> list[ProcessInfo]:
    """Living processes of that session which made groups of their own, as the jobs of a shell do."""
    snapshot = shared_snapshot()
    if snapshot is None:
        return []
    return [info for info in snapshot.session(pgid) if not info.dead and info.group != pgid]


def marked_strays(mark: str, pgid: int) -> list[ProcessInfo]:
    """Living processes that carry an owner mark and are not in its group."""
    snapshot = shared_snapshot()
    if snapshot is None:
        return []
    found = [info for info in snapshot.marked(mark) if info.pid != pgid and info.group != pgid]
    return found or ([UNSEEN] if snapshot.partial else [])


def unsettled_since(start: int) -> bool:
    """Whether some process not older than that is in the middle of an exec, where no mark can be seen."""
    snapshot = shared_snapshot()
    return snapshot is not None and bool(snapshot.unsettled(start))


class Syscalls:
    """The system calls on which decisions rest; tests put their own here."""

    pidfd_open: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    waitid: Callable[[int, int, int], Any] = staticmethod(os.waitid) if hasattr(os, "waitid") else None  # type: ignore[assignment]
    killpg: Callable[[int, int], None] = staticmethod(os.killpg)
    waitpid: Callable[[int, int], tuple[int, int]] = staticmethod(os.waitpid)
    getpgrp: Callable[[], int] = staticmethod(os.getpgrp)
    members: Callable[[int], list[int] | None] = staticmethod(group_members)
    strays: Callable[[str, int], list[ProcessInfo]] = staticmethod(marked_strays)
    leavers: Callable[[int], list[ProcessInfo]] = staticmethod(group_leavers)
    unsettled: Callable[[int], bool] = staticmethod(unsettled_since)
    signal_one: Callable[[ProcessInfo, int], bool] = staticmethod(signal_confirmed)
    start_time: Callable[[int], int | None] = staticmethod(start_time)
    zombies_take_signals: bool = sys.platform.startswith("linux")
    """Whether killpg finds a group of which only a zombie is left; macOS says EPERM."""


def _exit_code(info: Any) -> int:
    """Exit code out of what waitid says; negative for a signal."""
    return int(info.si_status) if info.si_code == os.CLD_EXITED else -int(info.si_status)


class PosixChild:
    """A process in a session and group of its own. Made by ``spawn``; ended, reaped and closed by its transport."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        cwd: str | None,
        *,
        calls: type[Syscalls] = Syscalls,
    ) -> None:
        self._calls = calls
        self.mark = environment.get(MARK) or life_mark()
        """What its descendants carry in their environment."""
        # Pipes of our own making: if anything fails on the way, each end made so far is closed right here.
        ends: list[int] = []
        try:
            for _ in range(3):
                ends.extend(descriptors.pipe())
            stdin_read, stdin_write, stdout_read, stdout_write, stderr_read, stderr_write = ends
            self._popen = subprocess.Popen(
                list(argv),
                stdin=stdin_read,
                stdout=stdout_write,
                stderr=stderr_write,
                env={**environment, MARK: self.mark},
                cwd=cwd,
                start_new_session=True,
            )
        except BaseException as problem:
            for end in ends:
                descriptors.close(end)
            if isinstance(problem, ValueError):
                # A NUL in an argument, "=" in the name of a variable: to the caller one more refusal to start.
                raise OSError(errno.EINVAL, str(problem)) from None
            raise
        for end in (stdin_read, stdout_write, stderr_write):
            descriptors.close(end)
        self.pid = self._popen.pid
        self.start = self._calls.start_time(self.pid)
        self.stdin_fd, self.stdout_fd, self.stderr_fd = stdin_write, stdout_read, stderr_read
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_exit: Callable[[int], None] | None = None
        self._pidfd = -1
        self._thread: threading.Thread | None = None
        self._exit_code: int | None = None
        self._unsettled_until: float | None = None
        self._kin = Kin(self.pid, self.mark)
        """What is known of its descendants, for reaping those that are handed to us."""
        self._reaped = False
        """True once its number may belong to a stranger: nothing is signalled any more."""
        self._taken = False
        """True once somebody else reaped it: its number is ours only while its group has members."""

    _disowned = False
    """True in a forked child: it is the parent's."""

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[int], None]) -> None:
        self._loop, self._on_exit = loop, on_exit
        adopted.join(loop, self._kin)
        if self._calls.pidfd_open is not None:
            try:
                self._pidfd = self._calls.pidfd_open(self.pid)
            except OSError:
                # An old kernel, a sandbox, or no descriptor left: the thread below needs none.
                self._pidfd = -1
        if self._pidfd >= 0:
            loop.add_reader(self._pidfd, self._exit_seen)
            return
        self._thread = threading.Thread(target=self._wait, name=f"moorings-wait-{self.pid}", daemon=True)
        self._thread.start()

    def _peek(self, flags: int) -> int | None:
        """The exit code without reaping; None if it still runs."""
        try:
            info = self._calls.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | flags)
        except ChildProcessError:
            # Somebody else's waitpid took it, or SIGCHLD is ignored: it is gone, its code is not to be had.
            self._taken = True
            return 0
        return None if info is None else _exit_code(info)

    def _exit_seen(self) -> None:
        code = self._peek(os.WNOHANG)
        if code is not None:
            self._report(code)

    def _wait(self) -> None:
        code = self._peek(0)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._report, 0 if code is None else code)

    def _report(self, code: int) -> None:
        self.close()
        if self._exit_code is None:
            self._exit_code = code
            if self._on_exit is not None:
                self._on_exit(code)

    def exited(self) -> bool:
        """Whether it has ended, asked for now: for the end of the interpreter, when no loop runs."""
        if self._exit_code is None and not self._reaped:
            self._exit_code = self._peek(os.WNOHANG)
        return self._exit_code is not None

    def _signal(self, number: int) -> None:
        if self._disowned:
            return
        for info in self._find_strays():
            self._calls.signal_one(info, number)
        # Once it is reaped the number may be a stranger's; and never our own group (F3.7).
        if self._reaped or self.pid == self._calls.getpgrp():
            return
        if self._taken and not self.others():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._calls.killpg(self.pid, number)
        for info in self._calls.leavers(self.pid):
            self._calls.signal_one(info, number)

    def strays(self) -> list[int]:
        if self._disowned:
            return []
        found = [info.pid for info in self._find_strays()]
        if found or self.start is None or not self._calls.unsettled(self.start):
            return found
        # One that forked and went may have a child that is just becoming another program: look again a little later.
        now = time.monotonic()
        if self._unsettled_until is None:
            self._unsettled_until = now + UNSETTLED
        return [UNSEEN.pid] if now < self._unsettled_until else []

    def _find_strays(self) -> list[ProcessInfo]:
        found = self._calls.strays(self.mark, self.pid)
        # Once they are dead their mark can be read no more.
        self._kin.note(found)
        return found

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def others(self) -> list[int]:
        if self._reaped:
            return []
        found = self._find_others()
        if self._taken and not found:
            # The kernel keeps a number from others while a group bears it; that is over now, and for good.
            self._reaped = True
        return found

    def _find_others(self) -> list[int]:
        members = self._calls.members(self.pid)
        if members is not None:
            return [pid for pid in members if pid != self.pid]
        # No /proc (macOS): a group in which only the zombie is left takes no signal. Where it does take one (Linux in a
        # bare chroot), the zombie must go first; the number stays ours while the group has members.
        exited = self._exit_code is not None
        if exited and self._calls.zombies_take_signals and self._popen.poll() is not None:
            self._taken = True
            with contextlib.suppress(ChildProcessError):
                while self._calls.waitpid(-self.pid, os.WNOHANG)[0]:
                    pass
        try:
            self._calls.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [self.pid] if exited else []

    def reap(self) -> int | None:
        # Before the leader: as long as it is not reaped, its number, which is that of its session, names no other.
        self._reap_adopted()
        if self._taken:
            # Not waited for again: by now the number may be that of another child of this process.
            self._popen.returncode = self._exit_code
        elif self._popen.poll() is not None:
            self._reaped = True
            if self._exit_code is None:
                self._exit_code = self._popen.returncode
        if self._loop is not None:
            adopted.leave(self._loop, self._kin)
        return self._exit_code

    def _reap_adopted(self) -> None:
        """The dead among its descendants that were handed to us, as they are to process 1 and to subreapers."""
        if not self._disowned:
            adopted.reap_now(self._kin)

    def close(self) -> None:
        if self._pidfd >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._thread is not None and self._thread is not threading.current_thread():
            # Called once it has reported, or after KILL: the wait is over or about to be.
            self._thread.join(timeout=1.0)
            if not self._thread.is_alive():
                self._thread = None

    def disown_after_fork(self) -> None:
        """In a forked child: it is the parent's child. Nothing is signalled, reaped or complained of here."""
        if self._pidfd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._pidfd)
            self._pidfd = -1
        self._disowned = self._reaped = self._taken = True
        self._popen.returncode = 0


class LostChild:
    """A spawn in which an exception of a signal handler landed: the process may be there, and only its mark is known.

    It has no pipes. It is gone once three looks in a row find nobody with the mark.
    """

    pid = 0
    start: int | None = None
    stdin_fd = stdout_fd = stderr_fd = -1

    def __init__(self, mark: str, *, calls: type[Syscalls] = Syscalls) -> None:
        self.mark = mark
        self._calls = calls
        self._quiet = 0
        self._kin = Kin(self.pid, mark)

    def watch(self, loop: asyncio.AbstractEventLoop, on_exit: Callable[[int], None]) -> None:
        """Nothing to watch."""

    def exited(self) -> bool:
        return True

    def others(self) -> list[int]:
        return []

    def strays(self) -> list[int]:
        found = self._calls.strays(self.mark, self.pid)
        self._kin.note(found)
        self._quiet = 0 if found else self._quiet + 1
        return [info.pid for info in found] or ([UNSEEN.pid] if self._quiet < 3 else [])

    def _signal(self, number: int) -> None:
        for info in self._calls.strays(self.mark, self.pid):
            self._calls.signal_one(info, number)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def reap(self) -> int | None:
        adopted.reap_now(self._kin)
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def disown_after_fork(self) -> None:
        self.mark = "nobody's"
