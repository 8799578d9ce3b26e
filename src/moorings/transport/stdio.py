"""The stdio transport: one child process, its three pipes, and its end.

Made, started and stopped by one life of a server. All three pipes are served all the time in bounded memory; the
connection is over when stdout ends or the process does, whichever is known first, and the reason carries the exit
code and the last lines of stderr. The stop is one ladder on every path: close stdin, wait, TERM to the group, wait,
KILL, wait, reap. Source: MCP ``basic/transports`` (stdio, shutdown).
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from .._tasks import outlast, put_back_cancellation
from ..wire.framing import LineFramer, Oversize
from . import descriptors
from .base import Closed, Outgoing, Receiver, Request, StopRecord
from .child import ChildProcess, lost_child, spawn
from .identity import MARK, life_mark
from .pipes import (
    FLOOD,
    FLOOD_SIZE,
    READ_SIZE,
    FdReader,
    FdWriter,
    PipeReader,
    PipeWriter,
    ThreadReader,
    ThreadWriter,
)
from .serverlog import ServerLog
from .watch import Lease, Watch, watch

__all__ = ["StdioSettings", "StdioTransport"]

EXIT_GRACE = 0.25
"""Seconds in which the exit that belongs to an ended stdout is waited for, so that the error can name its code; and,
where threads read, the end of what the process wrote last."""
FEW = 32
"""Answers in one read up to which requests are written one by one, so that the server can begin with the first; above
it a system call for each would cost more than that gains."""
THREAD_GRACE = 0.5
"""Seconds given to the threads of the pipes once the processes are gone."""


@dataclass(frozen=True, slots=True)
class StdioSettings:
    """What the transport needs of a specification."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str | None
    stop_eof: float
    stop_term: float
    stop_kill: float
    max_message: int
    max_outbox: int
    stderr_tail: int
    log_path: str | None
    log_file: int


class StdioTransport:
    """One process and its pipes.

    Made by a life of a server, which calls ``start`` once and ``stop`` in every case; nothing is left after ``stop``.
    """

    def __init__(
        self,
        settings: StdioSettings,
        receiver: Receiver,
        *,
        spawn: Callable[[Sequence[str], Mapping[str, str], str | None], ChildProcess] = spawn,
        threads: bool = sys.platform == "win32",
        guard: Watch | None = None if sys.platform == "win32" else watch,
    ) -> None:
        self._settings = settings
        self._receiver = receiver
        self._spawn = spawn
        self._threads = threads
        self._guard = guard
        self._framer = LineFramer(settings.max_message)
        self._log = ServerLog(settings.log_path, tail=settings.stderr_tail, max_file=settings.log_file)
        self._child: ChildProcess | None = None
        self._stdin: PipeWriter | None = None
        self._stdout: PipeReader | None = None
        self._stderr: PipeReader | None = None
        self._exited: asyncio.Future[int] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._wrapper_gone = False
        self._noise: list[bytes] = []
        self._over = False
        self._brought = 0
        """Messages in the last read."""
        self._lease: Lease | None = None
        self._mark = ""
        """What the processes of this life carry in their environment."""
        self._loop = asyncio.get_running_loop()
        self._stop_by = float("inf")
        """The loop's time by which a stop has to be over, whatever the bounds say."""
        self._turn: asyncio.Future[bool] | None = None
        """What a stop waits for at this moment; done with True when it has to hurry."""

    listens = True
    has_headers = False
    reads_between_tasks = True

    live: ClassVar[set[StdioTransport]] = set()
    """Those that were started and not stopped, in this process (see ``live.py``)."""

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def program(self) -> str:
        """What is started, as a path."""
        return self._settings.argv[0]

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, None while it runs."""
        return self._exited.result() if self._exited and self._exited.done() else None

    @property
    def unfinished(self) -> bytes:
        """What it wrote after its last line break."""
        return self._framer.unfinished

    def start(self) -> None:
        """Spawn the process and join its pipes to the running loop: one synchronous step.

        Raises:
            OSError: the system would not start it.
        """
        loop = self._loop
        settings = self._settings
        # Before the spawn: from its first moment the process is one that the watch would end.
        self._lease = self._guard.lease() if self._guard is not None else None
        StdioTransport.live.add(self)
        mark = self._mark = life_mark()
        # What a signal handler raises may land anywhere in the spawn: then the process may be there, and nobody has its
        # number. Until it is safely ours, something stands here that ends whatever carries the mark.
        self._child = lost_child(mark)
        self._exited = loop.create_future()
        self._exited.set_result(0)
        try:
            child = self._spawn(settings.argv, {**settings.environment, MARK: mark}, settings.cwd)
        except OSError:
            self._child = self._exited = None
            raise
        self._child = child
        if self._lease is not None:
            self._lease.tell(child.pid, child.start)
        self._exited = loop.create_future()
        try:
            child.watch(loop, self._on_exit)
            self._join_pipes(loop, child)
        except BaseException as problem:
            # The process is there and ends with `stop`; the ends of its pipes that nobody took are closed here.
            for end, fd in (
                (self._stdin, child.stdin_fd),
                (self._stdout, child.stdout_fd),
                (self._stderr, child.stderr_fd),
            ):
                if end is None:
                    descriptors.close(fd)
            if isinstance(problem, RuntimeError):
                raise OSError(errno.EAGAIN, str(problem)) from None
            raise

    def _join_pipes(self, loop: asyncio.AbstractEventLoop, child: ChildProcess) -> None:
        settings = self._settings
        if self._threads:
            self._stdin = ThreadWriter(loop, child.stdin_fd, settings.max_outbox, self._stdin_broke)
            self._stdout = ThreadReader(loop, child.stdout_fd, self._on_stdout, self._on_stdout_end)
            self._stderr = ThreadReader(loop, child.stderr_fd, self._log.write, self._on_stderr_end)
        else:
            self._stdin = FdWriter(loop, child.stdin_fd, settings.max_outbox, self._stdin_broke)
            self._stdout = FdReader(loop, child.stdout_fd, self._on_stdout, self._on_stdout_end)
            self._stderr = FdReader(loop, child.stderr_fd, self._log.write, self._on_stderr_end)

    def send(self, frame: bytes, request: Request | None = None, method: str = "") -> Outgoing:
        stdin = self._stdin
        if stdin is None or self._over or self._closing is not None:
            # It ends where one of its ends is gone and the exit is waited for: what is sent now would be lost.
            over = stdin is None or self._over
            raise ConnectionError("it is not running" if over else "it is ending")
        if frame.find(b"\n") != len(frame) - 1:
            raise ValueError("a frame holds a line break: raw JSON must stand in one line")
        return stdin.send(frame)

    def withdraw(self, outgoing: Outgoing) -> bool:
        return self._stdin.withdraw(outgoing) if self._stdin is not None else not outgoing.started

    async def prepare(self) -> None:
        """All is there."""

    def let_go(self, outgoing: Outgoing) -> bool:
        return False

    def settled(self, revision: str, *, modern: bool) -> None:
        """Both eras look the same on pipes."""

    def stderr_tail(self) -> str:
        return self._log.tail()

    def note(self, text: bytes) -> None:
        """Keep something for people in the log of this server (what stood on stdout without being JSON-RPC)."""
        self._noise.append(text)

    # What comes in

    def _on_stdout(self, data: bytes) -> None:
        if self._over:
            return  # read on, so that it is not held up on its way out; but nothing is heard any more
        frames = self._framer.feed(data)
        count = len(frames)
        if count == self._brought == 1 and type(frames[0]) is bytes:
            # One answer, as before: the way of calls one after another.
            if frames[0]:
                self._receiver.message(frames[0])
            if self._noise:
                self._write_noise()
            return
        if count > FEW or count != self._brought:
            self._brought = count
            self._adapt(count)
        self._hand_on(frames)

    def _hand_on(self, frames: Sequence[bytes | bytearray | Oversize]) -> None:
        message = self._receiver.message
        rest = iter(frames)
        try:
            for frame in rest:
                if isinstance(frame, Oversize):
                    self._receiver.oversize(frame)
                elif frame:
                    message(frame)
        except (
            BaseException
        ):  # boundary: a task that runs on in there may end the loop, but not other answers
            if left := list(rest):
                asyncio.get_running_loop().call_soon(self._hand_on, left)
            raise
        if self._noise:
            self._write_noise()

    def _write_noise(self) -> None:
        """In one piece for all that one read brought: a line of noise must not cost a system call."""
        noise, self._noise = self._noise, []
        self._log.write(b"".join(noise))

    def _adapt(self, count: int) -> None:
        """Write and read as suits so many messages in one read."""
        if self._stdin is not None:
            self._stdin.together = count > FEW
        if self._stdout is not None and count > FLOOD // 2:
            self._stdout.size = FLOOD_SIZE
        elif self._stdout is not None and count * 16 < FLOOD:
            self._stdout.size = READ_SIZE

    def _on_stdout_end(self) -> None:
        """Nothing more will come. The exit is mostly a moment behind: wait for it, shortly, to name its code."""
        if self._exited is None or self._exited.done():
            self._end_when_heard("closed its stdout" if self._wrapper_gone else "exited")
        else:
            self._end_soon("closed its stdout without exiting")

    def _on_stderr_end(self) -> None:
        """Means nothing by itself, servers may close it; after the exit it is the last that was waited for."""
        if self._closing is not None and self._exited is not None and self._exited.done():
            self._end_when_heard("exited")

    def _stdin_broke(self) -> None:
        """It does not read any more; an exit or an end of stdout mostly follows and says why."""
        self._end_soon("closed its stdin without exiting")

    def _on_exit(self, code: int) -> None:
        assert self._exited is not None
        if not self._exited.done():
            self._exited.set_result(code)
        # What it wrote before it ended comes first: an answer, the traceback.
        for end in (self._stdout, self._stderr):
            if end is not None:
                end.drain()
        if self._over or self._stdout is None:
            return
        if self._stdout.closed or code != 0 or not (self._child and self._child.others()):
            self._end_when_heard("exited")
        else:
            # A wrapper that started the real server and went: its children hold the pipes.
            self._wrapper_gone = True
            self._receiver.leader_gone(code)

    def _end_when_heard(self, reason: str) -> None:
        """The process is gone: the connection is over once what it wrote last is heard, or has not come for a while."""
        heard = True
        for end in (self._stdout, self._stderr):
            heard = (end is None or end.drain()) and heard
        if heard:
            self._end(reason)
        else:
            self._end_soon(reason)

    def _end_soon(self, reason: str) -> None:
        if self._over:
            return
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(EXIT_GRACE, self._end, reason)

    def give_up(self, reason: str) -> None:
        """End the connection for a reason that the session found."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        """The connection is over: say so, once."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        if self._over:
            return
        self._over = True
        if self._stderr is not None:
            self._stderr.drain()
        self._receiver.closed(Closed(reason, self.exit_code, self._log.tail()))

    # The end

    async def stop(self, deadline: float) -> StopRecord:
        """Take the process and all of its group down (see the module).

        Never cut short by a cancellation: one that comes meanwhile is put back when the work is done.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self._over = True
        child, exited = self._child, self._exited
        if child is None or exited is None:
            self._log.close()
            await self._let_go()
            return StopRecord(elapsed=0.0)
        settings = self._settings
        self.hasten(deadline)
        forced: list[str] = []
        cancelled = False
        if self._stdin is not None:
            self._stdin.close()
        gone, cancelled = await self._gone_within(
            child, exited, settings.stop_eof, then=settings.stop_term + settings.stop_kill
        )
        if not gone:
            forced.append("TERM")
            child.terminate()
            gone, again = await self._gone_within(child, exited, settings.stop_term, then=settings.stop_kill)
            cancelled = cancelled or again
        if not gone:
            forced.append("KILL")
            child.kill()
            gone, again = await self._gone_within(
                child, exited, settings.stop_kill, then=0.0, at_least=0.1, again=child.kill
            )
            cancelled = cancelled or again
        survivors = [] if gone else [*child.others(), *child.strays()]
        # Harmless where all are gone, as the group is ours until the leader is reaped; and no process that forks and
        # exits faster than one can look gets through it.
        child.kill()
        code = child.reap()
        if code is None:
            survivors.append(child.pid)
        for reader in (self._stdout, self._stderr):
            if reader is not None and not reader.closed:
                reader.drain()
        again = await self._end_threads()
        cancelled = cancelled or again
        for reader in (self._stdout, self._stderr):
            if reader is not None:
                reader.close()
        child.close()
        self._log.close()
        await self._let_go(sweep=self._mark if survivors else None)
        record = StopRecord(
            elapsed=loop.time() - began, exit_code=code, forced=tuple(forced), survivors=tuple(survivors)
        )
        if cancelled:
            put_back_cancellation()
        return record

    async def _let_go(self, *, sweep: str | None = None) -> None:
        """Nothing is left to guard; or the watch is to end what is left, which carries the mark ``sweep``."""
        StdioTransport.live.discard(self)
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.release(sweep=sweep)

    # When no loop runs any more (``live.py``)

    @property
    def loop_runs(self) -> bool:
        """Whether its owner can still act."""
        return self._loop.is_running()

    def abandon(self) -> None:
        """Close every pipe: the first step of the ladder."""
        self._over = True
        for end in (self._stdin, self._stdout, self._stderr):
            if end is not None:
                end.close()
        self._log.close()

    def terminate(self) -> None:
        """The second step."""
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """The third step."""
        if self._child is not None:
            self._child.kill()

    def gone(self) -> bool:
        """Whether the process and all of its group are gone; then it is reaped and closed."""
        child = self._child
        if child is None:
            StdioTransport.live.discard(self)
            return True
        if not child.exited() or child.others() or child.strays():
            return False
        child.reap()
        child.close()
        StdioTransport.live.discard(self)
        return True

    def disown_after_fork(self) -> None:
        """In a forked child: close our copies of its descriptors; nothing of the parent's is touched."""
        self._over = True
        for end in (self._stdin, self._stdout, self._stderr):
            if end is not None:
                end.disown_after_fork()
        self._log.close()
        if self._child is not None:
            self._child.disown_after_fork()

    async def _end_threads(self) -> bool:
        """See the threads of the pipes end, which they do with the processes; True if cancelled meanwhile.

        One that cannot end, since a stranger holds the other end of its pipe, is left to end with that.
        """
        when = asyncio.get_running_loop().time() + THREAD_GRACE
        cancelled = False
        for end in (self._stdin, self._stdout, self._stderr):
            if isinstance(end, ThreadReader | ThreadWriter):
                over, was = await outlast(end.ended, when)
                cancelled = cancelled or was
                if over:
                    end.join()
        return cancelled

    def hasten(self, deadline: float) -> None:
        if deadline < self._stop_by:
            self._stop_by = deadline
            if self._turn is not None and not self._turn.done():
                self._turn.set_result(True)

    async def _gone_within(
        self,
        child: ChildProcess,
        exited: asyncio.Future[int],
        seconds: float,
        *,
        then: float,
        at_least: float = 0.0,
        again: Callable[[], None] | None = None,
    ) -> tuple[bool, bool]:
        """Wait until the process and its whole group are gone, for at most ``seconds``.

        A near deadline shortens this wait in proportion to what is planned after it (``then``, in seconds), so that
        KILL always has its turn; one that comes nearer meanwhile shortens what is left of it. The exit of the leader
        is an event. Its group has none, so while others live on it is looked at again in growing steps; ``again`` is
        done before each look (KILL, for what was forked meanwhile).
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        cancelled = False
        step = 0.005

        def shortened(left: float, now: float) -> float:
            planned = left + then
            share = min(1.0, max(0.0, self._stop_by - now) / planned) if planned > 0 else 1.0
            return max(now + left * share, began + at_least)

        when = shortened(seconds, began)
        while True:
            if exited.done() and not child.others() and not child.strays():
                return True, cancelled
            now = loop.time()
            if now >= when:
                return False, cancelled
            look = when
            if exited.done():
                if again is not None:
                    again()
                look = min(when, now + step)
                step = min(step * 2, 0.1)
            turn: asyncio.Future[bool] = loop.create_future()
            self._turn = turn

            def release(_: object, turn: asyncio.Future[bool] = turn) -> None:
                if not turn.done():
                    turn.set_result(False)

            if not exited.done():
                exited.add_done_callback(release)
            _, was_cancelled = await outlast(turn, look)
            exited.remove_done_callback(release)
            self._turn = None
            cancelled = cancelled or was_cancelled
            if turn.done() and turn.result():
                now = loop.time()
                when = min(when, shortened(max(when - now, 0.0), now))
