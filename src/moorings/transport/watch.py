"""The host's side of the death watch: one small process per host process, which ends the servers if the host is killed.

Owned by the process: started with the first lease, ended with the last; each stdio transport holds a lease from
before its spawn until its process is reaped. If the watch dies it is started again and told everything anew. A watch
that cannot be started is told in the log and costs the guard, never a server. Linux and other POSIX systems; on
Windows the Job Object does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from .._tasks import outlast, put_back_cancellation
from .identity import owner_mark

__all__ = ["Lease", "Watch", "watch"]

_log = logging.getLogger("moorings")

END_WAIT = 2.0
"""Seconds in which the watch must have ended after it was told to go; then it is killed."""
MOST_RESTARTS = 20
"""Restarts in the life of a process: a watch that dies each time is a fault of the machine, not worth a storm."""


def _command() -> list[str] | None:
    """How to run the watch; None where the interpreter is no plain Python (a frozen program)."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watch_main.py")
    return [sys.executable, "-I", "-S", program] if os.path.exists(program) else None


class Lease:
    """The wish of one transport that the watch be there. Ended by ``release``."""

    __slots__ = ("_told", "_watch")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._told: int | None = None

    def tell(self, pid: int, start: int | None) -> None:
        """Name the leader of a group, right after its spawn."""
        if start is not None:
            self._told = pid
            self._watch._add(pid, start)

    async def release(self) -> None:
        """The process is reaped, or was never spawned. The last release ends the watch and awaits its end."""
        told, self._told = self._told, None
        await self._watch._release(self, told)


class Watch:
    """The watch of this process. One instance (``watch``); tests make their own."""

    def __init__(self, command: Callable[[], list[str] | None] = _command) -> None:
        self._command = command
        self._gate = threading.Lock()
        """Guards all below; held for single steps, never while anything waits."""
        self._leases: set[Lease] = set()
        self._groups: dict[int, int] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._restarts = 0
        self._readers: dict[asyncio.AbstractEventLoop, tuple[int, int]] = {}
        """Loop → how many leases it has, and the descriptor by which it sees the watch die."""

    @property
    def pid(self) -> int | None:
        """Pid of the watch, None while there is none."""
        return self._process.pid if self._process is not None else None

    def lease(self) -> Lease:
        """Ask for the watch, before a spawn; it is started if it does not run. One synchronous step."""
        loop = asyncio.get_running_loop()
        lease = Lease(self)
        with self._gate:
            self._leases.add(lease)
            if self._process is None:
                self._start()
            count, fd = self._readers.get(loop, (0, -1))
            self._readers[loop] = (count + 1, fd if fd >= 0 else self._listen(loop))
        return lease

    # With the gate held

    def _start(self) -> None:
        command = self._command()
        if command is None or self._restarts > MOST_RESTARTS:
            return
        try:
            read, write = os.pipe()
        except OSError as error:
            _log.warning("no death watch (servers outlive a host that is killed): %s", error)
            return
        try:
            self._process = subprocess.Popen(
                [*command, owner_mark()],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            os.close(write)
            _log.warning("no death watch (servers outlive a host that is killed): %s", error)
            return
        finally:
            os.close(read)
        if sys.platform != "win32":
            os.set_blocking(write, False)
        self._pipe = write
        for pid, start in self._groups.items():
            self._write(b"+%d %d\n" % (pid, start))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> int:
        """Let a loop see the end of the watch. -1 where that cannot be."""
        if self._process is None or not hasattr(os, "pidfd_open"):
            return -1
        try:
            fd: int = os.pidfd_open(self._process.pid)
        except OSError:
            return -1
        loop.add_reader(fd, self._died, loop, fd)
        return fd

    def _write(self, line: bytes) -> bool:
        if self._pipe < 0:
            return False
        try:
            return os.write(self._pipe, line) == len(line)
        except OSError:
            return False

    def _drop(self) -> subprocess.Popen[bytes] | None:
        """Let go of the present process."""
        process, self._process = self._process, None
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        return process

    # From the loops

    def _died(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        """The watch ended by itself: start another and tell it everything."""
        with self._gate:
            loop.remove_reader(fd)
            os.close(fd)
            count, _ = self._readers.get(loop, (0, -1))
            if self._process is not None and self._process.poll() is not None:
                self._drop()
                if self._leases:
                    self._restarts += 1
                    _log.warning("the death watch ended by itself; it is started again")
                    self._start()
            if count:
                self._readers[loop] = (count, self._listen(loop))

    def _add(self, pid: int, start: int) -> None:
        with self._gate:
            self._groups[pid] = start
            if not self._write(b"+%d %d\n" % (pid, start)) and self._process is not None:
                self._replace()

    def _replace(self) -> None:
        """It does not take lines any more, stuck or just dead: another takes over."""
        process = self._drop()
        if process is not None:
            process.kill()
            process.wait()
        self._restarts += 1
        self._start()

    async def _release(self, lease: Lease, pid: int | None) -> None:
        loop = asyncio.get_running_loop()
        with self._gate:
            if lease not in self._leases:
                return
            self._leases.discard(lease)
            if pid is not None:
                self._groups.pop(pid, None)
                self._write(b"-%d\n" % pid)
            count, fd = self._readers.get(loop, (1, -1))
            if count > 1:
                self._readers[loop] = (count - 1, fd)
            else:
                self._readers.pop(loop, None)
                if fd >= 0:
                    loop.remove_reader(fd)
                    os.close(fd)
            if self._leases:
                return
            self._write(b".\n")
            process = self._drop()
        if process is not None:
            await _ended(process)

    def forget_after_fork(self) -> None:
        """In a forked child: the watch is the parent's. Its pipe must not stay open here: its end is the signal."""
        self._gate = threading.Lock()
        if self._pipe >= 0:
            with contextlib.suppress(OSError):
                os.close(self._pipe)
        for _, fd in self._readers.values():
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # not our child: nothing to reap, nothing to complain of
        self._pipe = -1
        self._leases, self._groups, self._readers = set(), {}, {}

    def end_at_exit(self) -> None:
        """The interpreter ends and the loops that held leases do not run any more."""
        with self._gate:
            self._write(b".\n")
            process = self._drop()
        if process is not None:
            try:
                process.wait(END_WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Await the end of the watch that was told to go."""
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    cancelled = False

    def settle() -> None:
        if not gone.done():
            gone.set_result(None)

    try:
        fd = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
    except OSError:
        fd = -1
    if fd >= 0:
        loop.add_reader(fd, settle)
        try:
            _, cancelled = await outlast(gone, loop.time() + END_WAIT)
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    else:
        until = loop.time() + END_WAIT
        while process.poll() is None and loop.time() < until:
            _, was = await outlast(gone, loop.time() + 0.01)
            cancelled = cancelled or was
    if process.poll() is None:
        process.kill()
        process.wait()
    if cancelled:
        put_back_cancellation()


watch = Watch()
"""The watch of this process."""
