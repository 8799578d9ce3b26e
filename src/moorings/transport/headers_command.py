"""``headers_command``: a program of the user's that prints headers; run as a server is, and as surely ended.

Owned by whoever awaits ``run``: when that returns, or is cancelled, nothing of the program is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ..config.headers import MAX_OUTPUT
from ..errors import HttpDetail, last_words
from ..wire.framing import Oversize
from .base import Closed, Failure
from .environment import NotFound, find_command
from .stdio import StdioSettings, StdioTransport

__all__ = ["run"]

STOP = 0.3
"""Seconds for each step of ending it; whoever waits for headers, or for the end of a connection, waits for this too."""


class _Output:
    """Hears what it prints."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.size = 0
        self.over: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()

    def message(self, line: bytes | bytearray, about: int | None = None) -> None:
        self.size += len(line) + 1
        if self.size <= MAX_OUTPUT:
            self.lines.append(bytes(line))

    def oversize(self, frame: Oversize) -> None:
        self.size += frame.size

    def leader_gone(self, exit_code: int) -> None:
        """Others hold its output; it is over when they let go, or at the limit."""

    def closed(self, how: Closed) -> None:
        if not self.over.done():
            self.over.set_result(how)

    def request_failed(self, id_: int, failure: Failure) -> None:
        raise AssertionError("it is asked nothing")

    def error_body(self, id_: int, body: bytes, http: HttpDetail, *, own_only: bool) -> bool:
        raise AssertionError("it is asked nothing")

    def session_lost(self) -> None:
        """It has none."""

    def may_have_missed(self) -> None:
        """It has none."""


async def run(argv: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """What the program writes to its stdout. The caller bounds the time.

    Raises:
        ValueError: it is not there, cannot be started, failed, or wrote too much. What it wrote to stdout is not told.
    """
    try:
        command = find_command(argv[0], environment, None)
    except NotFound as missing:
        raise ValueError(missing.why) from None
    output = _Output()
    transport = StdioTransport(
        StdioSettings(
            argv=(command, *argv[1:]),
            environment=dict(environment),
            cwd=None,
            stop_eof=0.0,
            stop_term=STOP,
            stop_kill=STOP,
            max_message=MAX_OUTPUT,
            max_outbox=0,
            stderr_tail=2000,
            log_path=None,
            log_file=0,
        ),
        output,
    )
    try:
        try:
            transport.start()
        except OSError as error:
            raise ValueError(f"the system would not start it: {error.strerror or error}") from None
        how = await asyncio.shield(output.over)
    finally:
        await transport.stop(asyncio.get_running_loop().time() + 3 * STOP)
    if how.exit_code:
        said = f"; its stderr ends: {last_words(how.stderr_tail)}" if how.stderr_tail.strip() else ""
        raise ValueError(f"it ended with exit code {how.exit_code}{said}")
    if output.size > MAX_OUTPUT:
        raise ValueError(f"it wrote more than {MAX_OUTPUT // 1024} KiB")
    return b"\n".join([*output.lines, transport.unfinished])
