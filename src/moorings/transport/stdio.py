"""The stdio transport: one child process, its three pipes, and its end.

Made, started and stopped by one life of a server. All three pipes are served all the time in bounded memory; the
connection is over when stdout ends or the process does, whichever is known first, and the reason carries the exit
code and the last lines of stderr. The stop is one ladder on every path: close stdin, wait, TERM to the group, wait,
KILL, wait, reap. Source: MCP ``basic/transports`` (stdio, shutdown).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._tasks import outlast, put_back_cancellation
from ..wire.framing import LineFramer, Oversize
from .base import Closed, Outgoing, Receiver, StopRecord
from .child import ChildProcess, spawn
from .pipes import FdReader, FdWriter, PipeReader, PipeWriter, ThreadReader, ThreadWriter
from .serverlog import ServerLog

__all__ = ["StdioSettings", "StdioTransport"]

EXIT_GRACE = 0.25
"""Seconds in which the exit that belongs to an ended stdout is waited for, so that the error can name its code."""


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
    ) -> None:
        self._settings = settings
        self._receiver = receiver
        self._spawn = spawn
        self._threads = threads
        self._framer = LineFramer(settings.max_message)
        self._log = ServerLog(settings.log_path, tail=settings.stderr_tail, max_file=settings.log_file)
        self._child: ChildProcess | None = None
        self._stdin: PipeWriter | None = None
        self._stdout: PipeReader | None = None
        self._stderr: PipeReader | None = None
        self._exited: asyncio.Future[int] | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._over = False

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process, None while it runs."""
        return self._exited.result() if self._exited and self._exited.done() else None

    def start(self) -> None:
        """Spawn the process and join its pipes to the running loop: one synchronous step.

        Raises:
            OSError: the system would not start it.
        """
        loop = asyncio.get_running_loop()
        settings = self._settings
        child = self._spawn(settings.argv, settings.environment, settings.cwd)
        self._child = child
        self._exited = loop.create_future()
        if self._threads:
            self._stdin = ThreadWriter(loop, child.stdin_fd, settings.max_outbox, self._stdin_broke)
            self._stdout = ThreadReader(loop, child.stdout_fd, self._on_stdout, self._on_stdout_end)
            self._stderr = ThreadReader(loop, child.stderr_fd, self._log.write, _nothing)
        else:
            self._stdin = FdWriter(loop, child.stdin_fd, settings.max_outbox, self._stdin_broke)
            self._stdout = FdReader(loop, child.stdout_fd, self._on_stdout, self._on_stdout_end)
            self._stderr = FdReader(loop, child.stderr_fd, self._log.write, _nothing)
        child.watch(loop, self._on_exit)

    def send(self, frame: bytes) -> Outgoing:
        if self._stdin is None or self._over:
            raise ConnectionError("it is not running")
        if frame.find(b"\n") != len(frame) - 1:
            raise ValueError("a frame holds a line break: raw JSON must stand in one line")
        return self._stdin.send(frame)

    def withdraw(self, outgoing: Outgoing) -> bool:
        return self._stdin.withdraw(outgoing) if self._stdin is not None else not outgoing.started

    def stderr_tail(self) -> str:
        return self._log.tail()

    def note(self, text: bytes) -> None:
        """Keep something for people in the log of this server (what stood on stdout without being JSON-RPC)."""
        self._log.write(text)

    # What comes in

    def _on_stdout(self, data: bytes) -> None:
        for frame in self._framer.feed(data):
            if isinstance(frame, Oversize):
                self._receiver.oversize(frame)
            elif frame:
                self._receiver.message(frame)

    def _on_stdout_end(self) -> None:
        """Nothing more will come. The exit is mostly a moment behind: wait for it, shortly, to name its code."""
        if self._exited is None or self._exited.done():
            self._end("closed its stdout")
        else:
            self._end_soon("closed its stdout without exiting")

    def _stdin_broke(self) -> None:
        """It does not read any more; an exit or an end of stdout mostly follows and says why."""
        self._end_soon("closed its stdin without exiting")

    def _on_exit(self, code: int) -> None:
        assert self._exited is not None and self._stdout is not None and self._stderr is not None
        if not self._exited.done():
            self._exited.set_result(code)
        # What it wrote before it ended comes first: an answer, the traceback.
        self._stdout.drain()
        self._stderr.drain()
        if self._over:
            return
        if self._stdout.closed or code != 0 or not (self._child and self._child.others()):
            self._end("exited")
        else:
            # A wrapper that started the real server and went: its children hold the pipes.
            self._receiver.leader_gone(code)

    def _end_soon(self, reason: str) -> None:
        if self._closing is None and not self._over:
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(EXIT_GRACE, self._end, reason)

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
            return StopRecord(elapsed=0.0)
        settings = self._settings
        # A short deadline shortens each wait in proportion; KILL always has its turn before it.
        planned = settings.stop_eof + settings.stop_term + settings.stop_kill
        share = min(1.0, max(0.0, deadline - began) / planned) if planned > 0 else 1.0
        forced: list[str] = []
        cancelled = False
        if self._stdin is not None:
            self._stdin.close()
        gone, cancelled = await self._gone_by(child, exited, loop.time() + settings.stop_eof * share)
        if not gone:
            forced.append("TERM")
            child.terminate()
            gone, again = await self._gone_by(child, exited, loop.time() + settings.stop_term * share)
            cancelled = cancelled or again
        if not gone:
            forced.append("KILL")
            child.kill()
            gone, again = await self._gone_by(
                child, exited, loop.time() + max(settings.stop_kill * share, 0.1), again=child.kill
            )
            cancelled = cancelled or again
        survivors = [] if gone else child.others()
        if not exited.done():
            survivors.append(child.pid)
        code = child.reap()
        for end in (self._stdout, self._stderr):
            if end is not None:
                if not end.closed:
                    end.drain()
                end.close()
        child.close()
        self._log.close()
        record = StopRecord(
            elapsed=loop.time() - began, exit_code=code, forced=tuple(forced), survivors=tuple(survivors)
        )
        if cancelled:
            put_back_cancellation()
        return record

    async def _gone_by(
        self,
        child: ChildProcess,
        exited: asyncio.Future[int],
        when: float,
        *,
        again: Callable[[], None] | None = None,
    ) -> tuple[bool, bool]:
        """Wait until the process and its whole group are gone, or until ``when``.

        The exit of the leader is an event. Its group has none, so while others live on it is looked at again in
        growing steps; ``again`` is done before each look (KILL, for what was forked meanwhile).
        """
        loop = asyncio.get_running_loop()
        _, cancelled = await outlast(exited, when)
        step = 0.005
        while exited.done():
            if not child.others():
                return True, cancelled
            if loop.time() >= when:
                break
            if again is not None:
                again()
            never: asyncio.Future[None] = loop.create_future()
            _, was = await outlast(never, min(when, loop.time() + step))
            cancelled = cancelled or was
            step = min(step * 2, 0.1)
        return False, cancelled


def _nothing() -> None:
    """The end of stderr means nothing by itself: servers may close it."""
