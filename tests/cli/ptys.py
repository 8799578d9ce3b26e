"""Real pseudo terminals for tests: the side of the person, and programs that run with one as their terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 20.0
"""Seconds after which what is awaited will not come."""

# Becomes the foreground of its terminal, as a shell makes a command, and then the program itself.
_TAKE = (
    "import fcntl, os, runpy, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


class Pty:
    """A terminal of 100 columns and 50 lines; ``fd`` is the side of the program, and the rest is that of the person."""

    def __init__(self, columns: int = 100, lines: int = 50) -> None:
        self.master, self.fd = pty.openpty()
        os.set_blocking(self.master, False)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.seen = ""
        self._changed = asyncio.Event()
        self._streams: list[TextIO] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.master, self._look)

    def __enter__(self) -> Pty:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the terminal shows: {self.seen!r}")
        self.hang_up()
        for stream in self._streams:
            stream.close()
        self.close_program_side()

    def hang_up(self) -> None:
        """The person closes the window."""
        if self.master >= 0:
            self._loop.remove_reader(self.master)
            os.close(self.master)
            self.master = -1

    def close_program_side(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def stream(self, mode: str = "w") -> TextIO:
        """A text stream over the side of the program."""
        made = os.fdopen(os.dup(self.fd), mode, encoding="utf-8")
        self._streams.append(made)
        return made

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self.fd)

    async def type(self, data: bytes | str) -> None:
        """Type, or paste; waits while the terminal takes no more."""
        left = data.encode() if isinstance(data, str) else data
        while left:
            try:
                left = left[os.write(self.master, left) :]
            except BlockingIOError:
                free = asyncio.Event()
                self._loop.add_writer(self.master, free.set)
                try:
                    async with asyncio.timeout(PATIENCE):
                        await free.wait()
                finally:
                    self._loop.remove_writer(self.master)

    async def shows(self, text: str, times: int = 1) -> None:
        """Wait until the screen has shown it."""
        await self._until(lambda: self.seen.count(text) >= times)

    async def ends_with(self, text: str) -> None:
        """Wait until it is the last that the screen shows."""
        await self._until(lambda: self.seen.endswith(text))

    async def _until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def _look(self) -> None:
        try:
            data = os.read(self.master, 65536)
        except OSError:  # nobody has the other side open
            self._loop.remove_reader(self.master)
            return
        self.seen += data.decode(errors="replace")
        self._changed.set()

    def run(self, program: Path, *words: str, environ: dict[str, str] | None = None) -> Program:
        """Run a Python program in a session of its own, in the foreground of this terminal."""
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, str(program), *words],
            stdin=self.fd,
            stdout=self.fd,
            stderr=self.fd,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
                "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
                "PYTHONWARNINGS": "error",
                **(environ or {}),
            },
        )
        return Program(process)


class Program:
    """A program on a terminal; killed and reaped when the block is left, if it has not ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    async def ended(self) -> int:
        """Wait for its end; its exit code, negative if a signal ended it."""
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        pidfd = os.pidfd_open(self.pid)
        loop.add_reader(pidfd, gone.set)
        try:
            async with asyncio.timeout(PATIENCE):
                await gone.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
        return self.process.wait()
