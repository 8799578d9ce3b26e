"""One line from a person at a terminal, read without a thread, and given up at once when nobody wants it any more.

A terminal in its usual mode cuts a line at 4095 bytes and shows what is typed; a URL with an authorization code is
longer and is not to be shown. So the terminal is told to hand over each byte, the few keys that edit a line are done
here, and it is put back as it was however the reading ends (and while the process is stopped by Ctrl-Z). The keys that
send signals go on doing so. Bytes after the line are left for whoever reads next.

Not for Windows, whose consoles cannot be waited for in this way: there nothing is read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

__all__ = ["LineEditor", "can_read", "read_line"]

LONGEST = 1 << 18
"""Bytes of one line; what is typed beyond is dropped."""

_AT_ONCE = 1 << 12
"""Bytes taken before the loop has its turn again."""

_reading: set[int] = set()
"""The devices that are being read: a terminal has one reader, by whatever descriptor."""


class LineEditor:
    """A line as it is typed: Backspace, Ctrl-U and Ctrl-W edit it, Enter ends it, Ctrl-D in an empty one ends all.

    Escape sequences (arrow keys, the marks of a bracketed paste) are dropped; line ends inside a bracketed paste too.
    """

    def __init__(self, *, erase: bytes = b"", kill: bytes = b"", end: bytes = b"\x04") -> None:
        self.ended = False
        """True after Ctrl-D in an empty line."""
        self._line = bytearray()
        self._erase = {0x08, 0x7F, *erase}
        self._kill = {0x15, 0x17, *kill}
        self._end = {*end}
        self._escape: bytearray | None = None
        self._pasting = False

    @property
    def text(self) -> str:
        """The line so far, without blanks around it."""
        return self._line.decode("utf-8", "replace").strip()

    @property
    def length(self) -> int:
        """Characters so far."""
        return sum(byte & 0xC0 != 0x80 for byte in self._line)

    def take(self, byte: int) -> bool:
        """Take one byte; True if it ends the line, or all."""
        if self._escape is not None and byte >= 0x20:
            self._go_on(self._escape, byte)
            return False
        self._escape = bytearray() if byte == 0x1B else None
        if byte in self._erase:
            self._drop_one()
        elif byte in self._kill:
            self._line.clear()
            self._pasting = False
        elif byte in (0x0A, 0x0D):
            return not self._pasting
        elif byte in self._end:
            self.ended = not self._line
            return True
        elif byte >= 0x20 and len(self._line) < LONGEST:
            self._line.append(byte)
        return False

    def _go_on(self, escape: bytearray, byte: int) -> None:
        """Inside an escape sequence (ECMA-48 §5.4): ``ESC [`` up to a letter or ``~``, or ``ESC`` and few bytes."""
        escape.append(byte)
        if escape[0] == 0x5B:
            done = len(escape) > 1 and 0x40 <= byte <= 0x7E
        else:
            done = escape[0] != 0x4F or len(escape) > 1
        if bytes(escape) in (b"[200~", b"[201~"):
            self._pasting = bytes(escape) == b"[200~"
        if done or len(escape) > 32:
            self._escape = None

    def _drop_one(self) -> None:
        while self._line and self._line.pop() & 0xC0 == 0x80:  # what follows the first byte of a character
            pass


def can_read(fd: int) -> bool:
    """Whether a line can be read here: a terminal that this process is in the foreground of, and that nobody reads."""
    try:
        return (
            sys.platform != "win32"
            and os.isatty(fd)
            and os.fstat(fd).st_rdev not in _reading
            and _in_foreground(fd)
        )
    except OSError:
        return False


if sys.platform != "win32":
    import fcntl
    import select
    import struct
    import termios

    async def read_line(fd: int, show: Callable[[int], None] | None = None) -> str | None:
        """The next line that is not empty; None if there will be none (Ctrl-D, the terminal is gone or cannot be read).

        ``show`` is given the number of characters at the start, when any length can be pasted, and whenever it
        changes or may have gone from sight. The text itself is shown nowhere.
        """
        if not can_read(fd):
            return None
        device = os.fstat(fd).st_rdev
        _reading.add(device)
        try:
            with suppress(OSError, termios.error):
                return await _Reader(fd, show).line()
            return None
        finally:
            _reading.discard(device)

    class _Reader:
        """One reading of one line; made and ended by ``read_line``."""

        def __init__(self, fd: int, show: Callable[[int], None] | None) -> None:
            self._fd = fd
            self._show = show
            self._loop = asyncio.get_running_loop()
            self._line: asyncio.Future[str | None] = self._loop.create_future()
            self._before = termios.tcgetattr(fd)
            self._editor = self._new_editor()
            self._handled: list[int] = []
            """Signals that are ours for now."""

        async def line(self) -> str | None:
            self._enter()
            try:
                try:
                    self._loop.add_reader(self._fd, self._take)
                except (OSError, NotImplementedError):  # a loop that cannot wait for terminals
                    return None
                self._handle_signals()
                if self._show is not None:
                    self._show(0)
                return await self._line
            finally:
                self._loop.remove_reader(self._fd)
                self._leave_signals()
                self._restore()

        def _new_editor(self) -> LineEditor:
            keys = self._before[6]
            unset = os.fpathconf(self._fd, "PC_VDISABLE").to_bytes(1, "big")
            erase, kill, end = (
                b"" if keys[each] == unset else keys[each]
                for each in (termios.VERASE, termios.VKILL, termios.VEOF)
            )
            return LineEditor(erase=erase, kill=kill, end=end)

        def _enter(self) -> None:
            mode = [*self._before[:6], [*self._before[6]]]
            mode[0] |= termios.ICRNL
            mode[3] &= ~(termios.ICANON | termios.ECHO | termios.ECHONL)
            mode[6][termios.VMIN], mode[6][termios.VTIME] = (
                0,
                0,
            )  # a read takes what is there, and never waits
            termios.tcsetattr(self._fd, termios.TCSANOW, mode)

        def _restore(self) -> None:
            # In the background it is another's terminal, and setting it would stop us.
            with suppress(OSError, termios.error):
                if _in_foreground(self._fd):
                    termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

        # --- stopped and continued, or ended

        def _handle_signals(self) -> None:
            """While it is stopped (Ctrl-Z), and when it is ended at once (Ctrl-\\), the shell has the terminal as it
            was. Only the main thread can see to that."""
            for number, act in ((signal.SIGTSTP, self._stop), (signal.SIGQUIT, self._quit)):
                if signal.getsignal(number) is not signal.SIG_DFL:
                    continue
                with suppress(ValueError, RuntimeError):
                    self._loop.add_signal_handler(number, act)
                    self._handled.append(number)

        def _leave_signals(self) -> None:
            while self._handled:
                self._loop.remove_signal_handler(self._handled.pop())

        def _quit(self) -> None:
            self._restore()
            self._leave_signals()
            signal.raise_signal(signal.SIGQUIT)

        def _stop(self) -> None:
            self._restore()
            self._leave_signals()
            signal.raise_signal(signal.SIGTSTP)
            # Here it stands still until SIGCONT.
            if self._line.done():
                return
            try:
                if _in_foreground(self._fd):
                    self._before = termios.tcgetattr(self._fd)
                    self._enter()
                    self._handle_signals()
                    if self._show is not None:
                        self._show(self._editor.length)
                    return
            except (OSError, termios.error):
                pass
            self._settle(None)  # gone on in the background, or without its terminal

        # --- reading

        def _take(self) -> None:
            try:
                self._take_what_is_there()
            except OSError:  # the terminal is gone
                self._settle(None)

        def _take_what_is_there(self) -> None:
            if self._line.done():
                return
            count = _waiting(self._fd)
            if not count and _readable(self._fd):  # readable, and nothing there: it has ended
                self._settle(None)
                return
            before = self._editor.length
            for _ in range(min(count, _AT_ONCE)):
                # One by one: what comes after the line is not ours.
                byte = os.read(self._fd, 1)
                if not byte:
                    break
                if self._editor.take(byte[0]) and self._finish():
                    return
            if self._show is not None and self._editor.length != before:
                self._show(self._editor.length)

        def _finish(self) -> bool:
            """At the end of a line; False if it was empty, which asks nothing."""
            if self._editor.ended:
                self._settle(None)
            elif text := self._editor.text:
                if self._show is not None:
                    self._show(self._editor.length)
                self._settle(text)
            else:
                self._editor = self._new_editor()
                return False
            return True

        def _settle(self, text: str | None) -> None:
            self._loop.remove_reader(self._fd)
            if not self._line.done():
                self._line.set_result(text)

    def _waiting(fd: int) -> int:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])

    def _readable(fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def _in_foreground(fd: int) -> bool:
        try:
            return os.tcgetpgrp(fd) == os.getpgrp()
        except OSError:  # it is not the terminal of our session: nobody stops us
            return True

else:

    async def read_line(fd: int, show: Callable[[int], None] | None = None) -> str | None:
        """Nothing is read on this system."""
        return None

    def _in_foreground(fd: int) -> bool:
        return True
