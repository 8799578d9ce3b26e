"""The dead that were handed to us: orphans of servers, where this process is number 1 or a child subreaper.

There the kernel makes us their parent, and unless somebody reaps them they stay zombies as long as we live. They are
reaped when their server is stopped, and by a look at the processes once in a while before that, which costs at most
one percent of a processor. Nobody else's ``waitpid`` is robbed: a dead process is reaped only if it is known as a
server's own, by its session or by the owner mark that was read while it lived. As process 1 we also reap what
stands in a foreign session without leading it: nobody of this process started that, since a child stands in our
session or leads its own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from array import array
from collections.abc import Callable

from .identity import ProcessInfo, Snapshot, reap_confirmed

__all__ = ["Adopted", "Kin", "adopted", "is_reaper"]

LOOK = 1.0
"""Seconds between two looks, at least."""
SHARE = 0.01
"""Of a processor's time for the looks, at most."""
PR_GET_CHILD_SUBREAPER = 37


def _session_of(pid: int) -> int:
    if sys.platform == "win32":
        return 0
    else:  # noqa: RET505 - in this form the type checker knows which system each line is for
        return os.getsid(pid)


def is_reaper() -> bool:
    """Whether the orphans of our children become ours."""
    if os.getpid() == 1:
        return True
    if sys.platform == "linux":
        prctl = _prctl()
        if prctl is None:
            return False
        answer = array("i", [0])
        return not prctl(PR_GET_CHILD_SUBREAPER, answer.buffer_info()[0], 0, 0, 0) and bool(answer[0])
    else:  # noqa: RET505 - in this form the type checker knows which system each line is for
        return False


@functools.cache
def _prctl() -> Callable[..., int] | None:
    """The system call by which a process asks whether it is a subreaper; None where it is not to be had."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
    return prctl


class Kin:
    """What is known of the descendants of one server: those outside of its session are noted while they live."""

    __slots__ = ("_known", "_mark", "_pgid", "_sessions")

    def __init__(self, pgid: int, mark: str) -> None:
        self._pgid = pgid
        self._mark = mark
        self._known: dict[int, int] = {}
        """Pid → start time."""
        self._sessions: set[int] = set()
        """Sessions that they made."""

    def note(self, living: list[ProcessInfo]) -> None:
        """Remember processes that carry the mark of the server."""
        ours = _session_of(0)
        for info in living:
            if info.pid and info.session != self._pgid:
                self._known[info.pid] = info.start
                if info.session != ours:
                    self._sessions.add(info.session)

    def reap(self, snapshot: Snapshot) -> None:
        """Reap those that are dead and ours to reap. The leader itself is left to its owner."""
        me = os.getpid()
        self.note(snapshot.marked(self._mark))
        if not snapshot.partial:
            self._sessions &= {info.session for info in snapshot.processes.values()}
        for info in snapshot.processes.values():
            if info.dead and info.parent == me and self._is_kin(info):
                reap_confirmed(info)
        if not snapshot.partial:
            self._known = {pid: start for pid, start in self._known.items() if _there(snapshot, pid, start)}

    def _is_kin(self, info: ProcessInfo) -> bool:
        if self._known.get(info.pid) == info.start:
            return True
        # Who leads a session may be anybody's child; who only stands in it came from those that made it.
        return info.pid != info.session and (info.session == self._pgid or info.session in self._sessions)


def _there(snapshot: Snapshot, pid: int, start: int) -> bool:
    info = snapshot.processes.get(pid)
    return info is not None and info.start == start


def reap_nobodys(snapshot: Snapshot) -> None:
    """As process 1: the dead that nobody in this process can be waiting for (see the module)."""
    ours = _session_of(0)
    for info in snapshot.processes.values():
        if info.dead and info.parent == 1 and info.session != ours and info.pid != info.session:
            reap_confirmed(info)


class Adopted:
    """The looks of this process: a timer on each loop that has servers, while there is something to reap for."""

    def __init__(self, reaper: Callable[[], bool] = is_reaper) -> None:
        self._reaper = reaper
        self._kin: dict[asyncio.AbstractEventLoop, set[Kin]] = {}
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}

    def join(self, loop: asyncio.AbstractEventLoop, kin: Kin) -> None:
        """A server was started on a loop. Ended by ``leave``."""
        self._kin.setdefault(loop, set()).add(kin)
        if loop not in self._timers:
            self._timers[loop] = loop.call_later(LOOK, self._look, loop)

    def leave(self, loop: asyncio.AbstractEventLoop, kin: Kin) -> None:
        """It is stopped."""
        left = self._kin.get(loop)
        if left is None:
            return
        left.discard(kin)
        if not left:
            del self._kin[loop]
            timer = self._timers.pop(loop, None)
            if timer is not None:
                timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers.pop(loop, None)
        kin = self._kin.get(loop)
        # Whoever becomes a subreaper later than this has its reasons, and its own way of reaping.
        if not kin or not self._reaper():
            return
        began = time.thread_time()
        snapshot = Snapshot.take()
        if snapshot is None:
            return
        for each in kin:
            each.reap(snapshot)
        if os.getpid() == 1:
            reap_nobodys(snapshot)
        wait = max(LOOK, (time.thread_time() - began) / SHARE)
        self._timers[loop] = loop.call_later(wait, self._look, loop)

    def reap_now(self, kin: Kin) -> None:
        """The server ended: once more, before its number is let go of."""
        if not self._reaper() or (snapshot := Snapshot.take()) is None:
            return
        kin.reap(snapshot)
        if os.getpid() == 1:
            reap_nobodys(snapshot)

    def forget_after_fork(self) -> None:
        """In a forked child nothing of the parent's is ours, and its loop is left alone."""
        self._kin, self._timers = {}, {}


adopted = Adopted()
"""The looks of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: adopted.forget_after_fork())
