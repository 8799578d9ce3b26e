"""Our own ends of a child's pipes, joined to the event loop.

Not asyncio's pipe transports: an end here is open or closed, never half-made, and closing it is one plain step that
always works. Each end is owned by the stdio transport that made it. POSIX: the loop watches the descriptor. Windows:
a thread reads or writes it (a proactor loop cannot watch an anonymous pipe); it ends when the pipe does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from . import descriptors
from .base import OutboxFull, Outgoing

__all__ = ["FdReader", "FdWriter", "PipeReader", "PipeWriter", "ThreadReader", "ThreadWriter"]

FLOOD_SIZE = 4 * 1024
"""One read of a pipe on which very many small messages come."""
FLOOD = 2048
"""Messages in one read that make it a flood."""
OVERHEAD = 256
"""Bytes of memory that a waiting frame costs besides its own: a server that asks and never reads piles them up."""
AHEAD = 64
"""Frames of one turn that are not kept for its end: the server works on them meanwhile."""
JOINED = 256
"""Frames that are written at one time at the most."""
READ_SIZE = 64 * 1024
"""One read: what a pipe holds, and below the size at which malloc turns to mmap."""


_LEFT = Outgoing(b"", 1)
"""What has left as a whole; nothing of it changes any more, so one serves all."""


class PipeReader(Protocol):
    """The reading end: delivers bytes, then its end exactly once."""

    closed: bool
    size: int
    """Bytes read at one time: fewer of a flood of tiny messages, so that others have their turn in between."""

    def drain(self) -> bool:
        """Deliver what is there now, without waiting. False if there may be more that only a thread can read."""

    def close(self) -> None:
        """Close it; nothing is delivered after."""

    def disown_after_fork(self) -> None:
        """In a forked child: it is closed there (``descriptors.py``), without a word to the parent's loop."""


class PipeWriter(Protocol):
    """The writing end."""

    closed: bool
    together: bool
    """True while answers come in bursts: then the frames of one turn of the loop are written together."""

    @property
    def waiting(self) -> int:
        """Bytes not written yet."""

    def send(self, frame: bytes) -> Outgoing:
        """Queue a frame, written at once as far as possible."""

    def withdraw(self, outgoing: Outgoing) -> bool:
        """Take back a frame of which no byte has left."""

    def close(self) -> None:
        """Close it; what was not written is dropped."""

    def disown_after_fork(self) -> None:
        """In a forked child: it is closed there (``descriptors.py``), without a word to the parent's loop."""


def _unblock(fd: int) -> None:
    if sys.platform != "win32":
        os.set_blocking(fd, False)


def _write_together(fd: int, pieces: Sequence[bytes | memoryview]) -> int:
    if sys.platform == "win32":
        return os.write(fd, b"".join(pieces))
    else:  # noqa: RET505 - in this form the type checker knows which system each line is for
        return os.writev(fd, pieces)


class FdReader:
    """A non-blocking descriptor watched by the loop."""

    __slots__ = ("_fd", "_loop", "_on_data", "_on_end", "closed", "size")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self.size = READ_SIZE
        self.closed = False
        _unblock(fd)
        # One read a turn: a flood on one pipe never keeps the others waiting.
        loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Read once; True if more may be there."""
        if self.closed:
            return False
        try:
            data = os.read(self._fd, self.size)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if data:
            self._on_data(data)
            return not self.closed
        self.close()
        self._on_end()
        return False

    def drain(self) -> bool:
        # Bounded by what the pipe can hold and some more: another holder of the pipe may go on writing for ever.
        for _ in range(64):
            if not self._read():
                break
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            descriptors.close(self._fd)

    def disown_after_fork(self) -> None:
        self.closed = True


class FdWriter:
    """A non-blocking descriptor; frames wait in order while the other side does not read."""

    __slots__ = (
        "_cap",
        "_fd",
        "_flushing",
        "_loop",
        "_on_broken",
        "_queue",
        "_waiting",
        "_watching",
        "closed",
        "together",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, cap: int, on_broken: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._cap = cap
        self._on_broken = on_broken
        self._queue: deque[Outgoing] = deque()
        self._waiting = 0
        self._watching = False
        self._flushing = False
        self.together = False
        self.closed = False
        _unblock(fd)

    @property
    def waiting(self) -> int:
        return self._waiting

    def send(self, frame: bytes) -> Outgoing:
        if self.closed:
            raise ConnectionError("its stdin is closed")
        queue, size = self._queue, len(frame)
        if not queue and not self.together:
            try:
                written = os.write(self._fd, frame)
            except (BlockingIOError, InterruptedError):
                written = 0
            except OSError:
                self._break()
                raise ConnectionError("its stdin is closed") from None
            return _LEFT if written == size else self._keep_rest(frame, written)
        waiting = self._waiting + size
        count = len(queue)
        if waiting + OVERHEAD * count > self._cap and count:
            raise OutboxFull(f"{self._waiting} bytes wait to be written to it already")
        self._waiting = waiting
        outgoing = Outgoing(frame)
        queue.append(outgoing)
        if not self._watching:
            if count >= AHEAD - 1:
                self._flush_now()
            elif not self._flushing:
                self._flushing = True
                self._loop.call_soon(self._flush)
        return outgoing

    def _keep_rest(self, frame: bytes, written: int) -> Outgoing:
        """The pipe took no more of it."""
        outgoing = Outgoing(frame, written)
        self._queue.append(outgoing)
        self._waiting += len(frame) - written
        if written:
            self._watch()
        elif not self._watching and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        return outgoing

    def _flush(self) -> None:
        """Write what this turn has brought, in one piece."""
        self._flushing = False
        if not self.closed and not self._watching:
            self._flush_now()

    def _flush_now(self) -> None:
        self._ready()
        if self._queue:
            self._watch()

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            self._loop.add_writer(self._fd, self._ready)

    def _ready(self) -> None:
        queue = self._queue
        while queue:
            frames = list(itertools.islice(queue, JOINED))
            pieces: list[bytes | memoryview] = [outgoing.frame for outgoing in frames]
            if frames[0].offset:
                # Only the first can have left in part.
                pieces[0] = memoryview(frames[0].frame)[frames[0].offset :]
            try:
                written = _write_together(self._fd, pieces)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._break()
                return
            self._waiting -= written
            if not self._waiting:
                # As a rule: all that this turn has brought has left.
                for outgoing in frames:
                    outgoing.frame, outgoing.offset = b"", 1
                queue.clear()
                break
            for outgoing, piece in zip(frames, pieces, strict=True):
                size = len(piece)
                if written < size:
                    outgoing.offset += written
                    return
                outgoing.frame, outgoing.offset = b"", 1
                written -= size
                queue.popleft()
        self._unwatch()

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.remove_writer(self._fd)

    def withdraw(self, outgoing: Outgoing) -> bool:
        if outgoing.started:
            return False
        if outgoing in self._queue:
            self._queue.remove(outgoing)
            self._waiting -= len(outgoing.frame)
            if not self._queue and not self.closed:
                self._unwatch()
        return True

    def _break(self) -> None:
        self.close()
        self._on_broken()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._loop.is_closed():
                self._unwatch()
            descriptors.close(self._fd)
            self._queue.clear()
            self._waiting = 0

    def disown_after_fork(self) -> None:
        self.closed = True


class ThreadReader:
    """A blocking descriptor read by a thread, for loops that cannot watch pipes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
        *,
        read: Callable[[int, int], bytes] = os.read,
        close_fd: Callable[[int], None] = descriptors.close,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._read = read
        self._close_fd = close_fd
        self.size = READ_SIZE
        self.closed = False
        # One chunk in flight: a flood waits in the pipe and not in our memory.
        self._room = threading.Lock()
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the thread is over: it reads until the pipe ends, or until the first bytes after ``close``."""
        self._thread = threading.Thread(target=self._run, name=f"moorings-pipe-{fd}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                self._room.acquire()
                if self.closed:
                    return
                try:
                    data = self._read(self._fd, READ_SIZE)
                except OSError:
                    data = b""
                try:
                    self._loop.call_soon_threadsafe(self._deliver, data)
                except RuntimeError:  # the loop is closed: nobody reads any more
                    return
                if not data:
                    return
        finally:
            with contextlib.suppress(OSError):
                self._close_fd(self._fd)
            _say_ended(self._loop, self.ended)

    def _deliver(self, data: bytes) -> None:
        if self.closed:
            return
        if data:
            try:
                self._on_data(data)
            finally:
                self._go_on()
        else:
            self.close()
            self._on_end()

    def join(self) -> None:
        """After ``ended``: the thread is at its last step."""
        self._thread.join()

    def drain(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._go_on()

    def _go_on(self) -> None:
        with contextlib.suppress(RuntimeError):  # it reads already
            self._room.release()

    def disown_after_fork(self) -> None:
        self.closed = True


class ThreadWriter:
    """A blocking descriptor written by a thread, for loops that cannot watch pipes.

    After ``close`` the thread still writes what was sent before, as far as the other side takes it, and then closes
    the pipe; a write that blocks ends when the process does.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        cap: int,
        on_broken: Callable[[], None],
        *,
        write: Callable[[int, memoryview], int] = os.write,
        close_fd: Callable[[int], None] = descriptors.close,
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._cap = cap
        self._on_broken = on_broken
        self._write = write
        self._close_fd = close_fd
        self._queue: deque[Outgoing] = deque()
        # No condition: a signal may strike in the middle of one and leave it locked.
        self._lock = threading.Lock()
        self._idle: threading.Lock | None = None
        """Taken by the thread that waits for something to write."""
        self._waiting = 0
        self.together = False
        self.closed = False
        self.ended: asyncio.Future[None] = loop.create_future()
        """Done when the thread is over and the pipe closed."""
        self._thread = threading.Thread(target=self._run, name=f"moorings-pipe-{fd}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._waiting

    def send(self, frame: bytes) -> Outgoing:
        outgoing = Outgoing(frame)
        with self._lock:
            if self.closed:
                raise ConnectionError("its stdin is closed")
            if self._waiting and self._waiting + len(frame) > self._cap:
                raise OutboxFull(f"{self._waiting} bytes wait to be written to it already")
            self._queue.append(outgoing)
            self._waiting += len(frame)
            self._go_on()
        return outgoing

    def withdraw(self, outgoing: Outgoing) -> bool:
        with self._lock:
            if outgoing.started:
                return False
            if outgoing in self._queue:
                self._queue.remove(outgoing)
                self._waiting -= len(outgoing.frame)
            return True

    def _run(self) -> None:
        try:
            while True:
                idle = None
                with self._lock:
                    if self._queue:
                        outgoing = self._queue.popleft()
                        # From here it counts as sent: a blocking write cannot be taken back.
                        outgoing.offset = 1
                    elif self.closed:
                        return
                    else:
                        idle = self._idle = threading.Lock()
                        idle.acquire()
                if idle is not None:
                    idle.acquire()
                    continue
                view, done = memoryview(outgoing.frame), 0
                while done < len(view):
                    try:
                        done += self._write(self._fd, view[done : done + READ_SIZE])
                    except OSError:
                        with self._lock:
                            self._queue.clear()
                            self._waiting = 0
                        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is told any more
                            self._loop.call_soon_threadsafe(self._break)
                        return
                with self._lock:
                    self._waiting -= len(view)
                    outgoing.frame = b""
        finally:
            with contextlib.suppress(OSError):
                self._close_fd(self._fd)
            _say_ended(self._loop, self.ended)

    def _break(self) -> None:
        if not self.closed:
            self.close()
            self._on_broken()

    def join(self) -> None:
        """After ``ended``: the thread is at its last step."""
        self._thread.join()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._go_on()

    def _go_on(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.release()

    def disown_after_fork(self) -> None:
        self.closed = True


def _say_ended(loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
    """The last act of a pipe's thread."""

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(tell)
