"""Locks between processes: locks of the operating system on files, which die with the process that holds them.

One file for each name, in a folder of their own. It is never deleted here: whoever waits has it open, and would hold
a lock on a file that nobody else finds. If somebody else deletes it (a cleaner of old files), the lock is taken anew
on the next one, and a write under a lock whose file is gone is refused.

A lock belongs to an open file, so threads and tasks exclude each other as processes do, and a forked child would hold
the locks of its parent: it lets go of them (``_let_go_of_the_parents``). No queue: who waits tries again and again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from .blocking import Blocking
from .credentials import LeaseLost, LockTimeout, checked_key

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["FileLease", "file_lock"]

FIRST_PAUSE = 0.004
"""Seconds until the second attempt; each pause is half as long again as the one before."""

LONGEST_PAUSE = 0.05
"""Seconds between attempts at most. Half of each pause is chance, so that those who wait do not move in step."""

GRACE = 1.0
"""Seconds an attempt has that begins at the deadline, or shortly before."""

_ENDING = ".lock"


class FileLease:
    """A lock that is held. Made by ``file_lock`` and given back by it, or when the last who uses it is done."""

    __slots__ = ("_over", "_path", "_store", "_users", "_mutex", "descriptor", "name")

    fence = 0
    """The lock cannot go to somebody else while its process lives, so there is nothing to count."""

    def __init__(self, name: str, path: str, descriptor: int, store: str) -> None:
        self.name = name
        self.descriptor = descriptor
        self._path = path
        self._store = store
        self._users = 0
        self._over = False
        self._mutex = threading.Lock()  # the last to use it may be a thread

    def __repr__(self) -> str:
        return f"FileLease({self.name[:16]!r}, held={self.held})"

    @property
    def held(self) -> bool:
        """False once it was given back."""
        return not self._over

    def of(self, folder: Path) -> bool:
        """Whether it is a lock of that folder."""
        return os.path.dirname(self._path) == str(folder)

    def keep(self) -> None:
        """Use it for a write: it is not given back before ``let_go``.

        Raises:
            LeaseLost: it was given back, or its file is not the one that others lock.
        """
        with self._mutex:
            if self._over:
                raise LeaseLost(self.name, store=self._store, why="it was given back")
            if not _same_file(self.descriptor, self._path):
                raise LeaseLost(self.name, store=self._store, why="its file was deleted or replaced")
            self._users += 1

    def let_go(self) -> None:
        """End of a use."""
        with self._mutex:
            self._users -= 1
            self._close_if_over()

    def release(self) -> None:
        """Give it back, as soon as nobody uses it."""
        with self._mutex:
            self._over = True
            self._close_if_over()

    def _close_if_over(self) -> None:
        if self._over and not self._users and self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            _close(descriptor)


@contextlib.asynccontextmanager
async def file_lock(
    folder: Path, name: str, until: float, *, store: str, blocking: Blocking
) -> AsyncIterator[FileLease]:
    """Hold the lock ``name`` of a folder that is there. ``until`` is a point of the loop's time.

    Raises:
        LockTimeout: somebody else held it until then.
        StoreError: its file cannot be made or locked.
    """
    lease = await _acquire(folder, checked_key(name), until, store, blocking)
    try:
        yield lease
    finally:
        lease.release()


async def _acquire(folder: Path, name: str, until: float, store: str, blocking: Blocking) -> FileLease:
    loop = asyncio.get_running_loop()
    path = os.path.join(folder, name + _ENDING)
    began, pause = loop.time(), FIRST_PAUSE
    while True:
        attempt = _Attempt(path)
        try:
            within = max(until - loop.time(), GRACE)
            descriptor = await blocking.run(attempt.run, within=within, who="the disk of the locks")
            if descriptor is not None:
                lease = FileLease(name, path, descriptor, store)
                attempt.taken()
                return lease
        finally:
            attempt.give_up()
        now = loop.time()
        if now >= until:
            raise LockTimeout(name, store=store, waited=now - began)
        await asyncio.sleep(min(until - now, pause * random.uniform(0.5, 1.0)))
        pause = min(LONGEST_PAUSE, pause * 1.5)


class _Attempt:
    """One try, in a thread, whose success is undone if nobody waits for it any more."""

    __slots__ = ("_descriptor", "_given_up", "_mutex", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        self._given_up = False

    def run(self) -> int | None:
        descriptor = _try(self._path)
        with self._mutex:
            if self._given_up and descriptor is not None:
                _close(descriptor)
                return None
            self._descriptor = descriptor
        return descriptor

    def taken(self) -> None:
        """Its success has an owner now."""
        with self._mutex:
            self._descriptor = None

    def give_up(self) -> None:
        with self._mutex:
            self._given_up = True
            if self._descriptor is not None:
                _close(self._descriptor)
                self._descriptor = None


def _try(path: str) -> int | None:
    """The descriptor of a file that is locked now, or None if somebody else holds it.

    Raises:
        OSError: it cannot be made or locked.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOINHERIT", 0)
    descriptor = os.open(path, flags, 0o600)
    _held.add(descriptor)  # before it is locked: a fork in between must not keep it
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        if _lock(descriptor) and _same_file(descriptor, path):
            return descriptor
    except BaseException:  # boundary: undone, and raised again
        _close(descriptor)
        raise
    _close(descriptor)
    return None


if sys.platform == "win32":

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _same_file(descriptor: int, path: str) -> bool:
    """Whether the open file is the one that others find under its name."""
    try:
        found, ours = os.lstat(path), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def _close(descriptor: int) -> None:
    _held.discard(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)


_held: set[int] = set()


def _let_go_of_the_parents() -> None:
    """In a forked child: the lock is the parent's alone, and ends with it. Objects may still close their numbers."""
    if not _held:
        return
    with contextlib.suppress(OSError):  # no descriptor is to be had: they stay what they are
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in _held:
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_the_parents)
