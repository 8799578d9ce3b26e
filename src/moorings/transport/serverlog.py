"""What a server writes for people: a bounded tail in memory, and a rotating file.

One log per server; it is fed from stderr and from what stands on stdout without being JSON-RPC. A log that cannot be
written costs nothing but itself. Owned by the transport; the file is open only while the transport lives.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque

__all__ = ["ServerLog"]


def _last(data: bytes, size: int) -> bytes:
    return data[-size:] if size > 0 else b""


class ServerLog:
    """Bounded tail and rotating file of one server's output."""

    __slots__ = ("_chunks", "_fd", "_held", "_limit", "_max_file", "_path", "_size", "dropped")

    def __init__(self, path: str | None, *, tail: int, max_file: int) -> None:
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._limit = tail
        self._path = path if max_file > 0 else None
        self._max_file = max_file
        self._fd = -1
        self._size = 0
        self.dropped = 0
        """Bytes that no longer stand in the tail."""

    def write(self, data: bytes) -> None:
        """Take some output."""
        kept = _last(data, self._limit)
        self.dropped += len(data) - len(kept)
        if kept:
            self._chunks.append(kept)
            self._held += len(kept)
        while self._chunks and self._held - len(self._chunks[0]) >= self._limit:
            gone = self._chunks.popleft()
            self._held -= len(gone)
            self.dropped += len(gone)
        if self._path is not None:
            try:
                self._to_file(self._path, data)
            except OSError:
                # A full disk or a lost folder must not stop the server; its tail in memory goes on.
                self.close()
                self._path = None

    def _to_file(self, path: str, data: bytes) -> None:
        if self._fd < 0 or self._size + len(data) > self._max_file:
            self._open(path, len(data))
        part = _last(data, self._max_file)
        os.write(self._fd, part)
        self._size += len(part)

    def _open(self, path: str, coming: int) -> None:
        self.close()
        try:
            if os.stat(path).st_size + coming > self._max_file:
                os.replace(path, path + ".1")
        except FileNotFoundError:
            pass
        flags = (
            os.O_WRONLY
            | os.O_CREAT
            | os.O_APPEND
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_NOFOLLOW", 0)
        )
        self._fd = os.open(path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def tail(self) -> str:
        """The last of it, as text."""
        text = _last(b"".join(self._chunks), self._limit)
        return text.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the file. The tail stays readable."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
