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
from . import descriptors
from .identity import owner_mark

__all__ = ["Lease", "Watch", "watch"]

_log = logging.getLogger("moorings")

END_WAIT = 2.0
"""Seconds for which the end of the watch, which is killed, is awaited."""
MOST_RESTARTS = 20
"""Restarts in the life of a process: a watch that dies each time is a fault of the machine, not worth a storm."""


_RUN = (
    "import sys; program = sys.argv.pop(1); sys.path.insert(0, program.rpartition('/')[0]); import watch_main; "
    "del sys.path[0]; watch_main.main()"
)
"""As a module, and not as a program: a program is compiled anew each time, which takes as long as all else in it."""


def _command() -> list[str] | None:
    """How to run the watch; None where the interpreter is no plain Python (a frozen program)."""
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watch_main.py")
    if not os.path.exists(program):
        return None
    keep_none = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", "-S", *keep_none, "-c", _RUN, program]


def _environment() -> dict[str, str]:
    """What the interpreter may need to start, and nothing else: no secret stands in it, and no owner mark."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH") if name in os.environ}


class Lease:
    """The wish of one transport that the watch be there. Ended by ``release``."""

    __slots__ = ("_told", "_watch")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._told: int | None = None

    def tell(self, pid: int, start: int | None) -> None:
        """Name the leader of a group, right after its spawn."""
        if start is None and os.path.exists("/proc/self/stat"):
            return  # it is gone already, and reaped by others: the number names nobody any more
        self._told = pid
        self._watch._add(pid, start or 0)

    async def release(self, *, sweep: str | None = None) -> None:
        """The process is reaped, or was never spawned. The last release ends the watch and awaits its end.

        ``sweep`` is the mark of a life of which something could not be ended: then the watch is not killed but left to
        end what carries it.
        """
        told, self._told = self._told, None
        await self._watch._release(self, told, sweep)


class Watch:
    """The watch of this process. One instance (``watch``); tests make their own."""

    def __init__(self, command: Callable[[], list[str] | None] = _command) -> None:
        self._command = command
        self._gate = threading.Lock()
        """Guards all below; held for single steps, never while anything waits."""
        self._leases: set[Lease] = set()
        self._groups: dict[int, int] = {}
        self._gone: list[int] = []
        """Ended, and the watch is not told yet: it is told of all that end in one turn at once."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._restarts = 0
        self._warned = False
        self._sweep: set[str] = set()
        """Marks of lives of which something could not be ended by their owner."""
        self._sweeping: list[subprocess.Popen[bytes]] = []
        """Former watches that end what was left, and then themselves."""
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
            self._sweeping = [process for process in self._sweeping if process.poll() is None]
            if self._process is None:
                self._start()
            count, fd = self._readers.get(loop, (0, -1))
            self._readers[loop] = (count + 1, fd if fd >= 0 else self._listen(loop))
        return lease

    # With the gate held

    def _start(self) -> None:
        if self._restarts > MOST_RESTARTS:
            self._warn("it ended again and again")
            return
        command = self._command()
        if command is None:
            self._warn("there is no Python interpreter to run it with")
            return
        try:
            read, write = descriptors.pipe()
        except OSError as error:
            self._warn(error)
            return
        try:
            self._process = subprocess.Popen(
                [*command, owner_mark()],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            descriptors.close(write)
            self._warn(error)
            return
        finally:
            descriptors.close(read)
        if sys.platform != "win32":
            os.set_blocking(write, False)
        self._pipe = write
        self._gone.clear()
        for pid, start in self._groups.items():
            self._write(b"+%d %d\n" % (pid, start))

    def _warn(self, why: object) -> None:
        """Say it once: it is a matter of the machine, and each start would say it again."""
        if not self._warned:
            self._warned = True
            _log.warning("no death watch (servers outlive a host that is killed): %s", why)

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

    def _end(self) -> subprocess.Popen[bytes] | None:
        """End the present process, which has nothing left to guard or is replaced; the caller reaps it.

        It is killed before its pipe is closed: the end of the pipe means that the host is dead.
        """
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        if self._pipe >= 0:
            pipe, self._pipe = self._pipe, -1
            descriptors.close(pipe)
        return process

    # From the loops

    def _died(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        """The watch ended by itself: start another and tell it everything."""
        with self._gate:
            loop.remove_reader(fd)
            os.close(fd)
            count, _ = self._readers.get(loop, (0, -1))
            if self._process is not None and self._process.poll() is not None:
                self._end()
                if self._leases:
                    self._restarts += 1
                    _log.warning("the death watch ended by itself; it is started again")
                    self._start()
            if count:
                self._readers[loop] = (count, self._listen(loop))

    def _add(self, pid: int, start: int) -> None:
        with self._gate:
            # First what has ended: the number may be that of one of them.
            self._tell_gone()
            self._groups[pid] = start
            self._tell(b"+%d %d\n" % (pid, start))

    def _tell(self, line: bytes) -> None:
        """If it does not take lines any more, stuck or just dead, another takes over, which is told everything."""
        if self._process is None or self._write(line):
            return
        process = self._end()
        if process is not None:
            process.wait()
        self._restarts += 1
        self._start()

    def _tell_gone(self) -> None:
        gone = b"".join([b"-%d\n" % pid for pid in self._gone])
        self._gone.clear()
        if gone:
            self._tell(gone)

    def _tell_gone_now(self) -> None:
        with self._gate:
            self._tell_gone()

    def _let_sweep(self) -> subprocess.Popen[bytes] | None:
        """Tell the watch what is left of which lives, and leave it to end that in its own time; it is reaped later.

        Nothing else: what bears the mark of this host from now on, its next servers, is guarded by another watch. One
        that does not take these lines is ended here, and returned.
        """
        if not all(self._write(b"=%s\n" % mark.encode()) for mark in self._sweep):
            self._sweep.clear()
            return self._end()
        process, self._process = self._process, None
        if process is not None:
            self._sweeping.append(process)
        if self._pipe >= 0:
            pipe, self._pipe = self._pipe, -1
            descriptors.close(pipe)
        self._groups.clear()
        self._sweep.clear()
        return None

    async def _release(self, lease: Lease, pid: int | None, sweep: str | None) -> None:
        loop = asyncio.get_running_loop()
        with self._gate:
            if lease not in self._leases:
                return
            self._leases.discard(lease)
            if sweep:
                self._sweep.add(sweep)
            elif pid is not None:
                self._groups.pop(pid, None)
                if self._leases:
                    if not self._gone:
                        loop.call_soon(self._tell_gone_now)
                    self._gone.append(pid)
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
            process = self._let_sweep() if self._sweep else self._end()
        if process is not None:
            await _ended(process)

    def forget_after_fork(self) -> None:
        """In a forked child: the watch is the parent's. Its pipe must not stay open here: its end is the signal."""
        self._gate = threading.Lock()
        # The pipe itself is closed in ``descriptors.py``, as those of the servers are.
        for _, fd in self._readers.values():
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        for former in self._sweeping:
            former.returncode = 0
        self._sweeping = []
        process, self._process = self._process, None
        if process is not None:
            process.returncode = 0  # not our child: nothing to reap, nothing to complain of
        self._pipe = -1
        self._leases, self._groups, self._gone, self._readers = set(), {}, [], {}

    def end_at_exit(self) -> None:
        """The interpreter ends and the loops that held leases do not run any more."""
        with self._gate:
            process = self._end()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_WAIT)


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Await the end of the watch that was killed, and reap it."""
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
        # The loop's time passed faster than that of the process, or it is stuck in the kernel.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    if cancelled:
        put_back_cancellation()


watch = Watch()
"""The watch of this process."""
