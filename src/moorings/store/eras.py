"""Which era a server was found to speak, so that the next start need not probe.

Keyed by the fingerprint of its specification. One small file per fingerprint: processes that write at the
same time cannot lose each other's entries, and no lock is needed. The memory twin serves tests and hosts
without a state folder.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from .atomic import remove_stale, write_atomic
from .folder import StateFolder, safe_name

__all__ = ["Eras", "EraRecord", "EraStore", "MemoryEraStore"]

FOLDER = "eras"

MAX_ENTRIES = 1000
"""Entries kept; those written longest ago go first."""

MAX_FILE = 4096
"""Bytes of one entry; a longer file is none of ours."""

_ENDING = ".json"
_log = logging.getLogger(__name__)


class EraRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a server."""

    era: Literal["handshake", "modern"]
    revision: str
    """The protocol revision agreed on."""
    died_on_probe: bool = False
    """True if the server ended when it was asked ``server/discover``: it must not be asked again."""
    transport: Literal["", "http", "sse"] = ""
    """Which transport of HTTP it was; empty where there is no choice."""

    def same_as(self, other: EraRecord | None) -> bool:
        """Whether another record says the same of the era."""
        return other is not None and (self.era, self.revision, self.transport) == (
            other.era,
            other.revision,
            other.transport,
        )


class Eras(Protocol):
    """Where eras are remembered. ``get``, ``put`` and ``forget`` never raise for what the store cannot do."""

    def get(self, fingerprint: str) -> EraRecord | None:
        """What is remembered, or None."""

    def put(self, fingerprint: str, record: EraRecord) -> None:
        """Remember, in place of what was."""

    def forget(self, fingerprint: str) -> None:
        """Remember nothing."""


class EraStore:
    """Eras in the state folder, for all processes that use it. Holds nothing open."""

    __slots__ = ("_folder", "_max_entries")

    def __init__(self, folder: StateFolder, *, max_entries: int = MAX_ENTRIES) -> None:
        self._folder = folder
        self._max_entries = max_entries

    def get(self, fingerprint: str) -> EraRecord | None:
        """What is remembered; None also for a file that cannot be read or is no entry."""
        try:
            return _decoder.decode(_read(self._file(fingerprint)))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def put(self, fingerprint: str, record: EraRecord) -> None:
        """Remember. What cannot be written is told in the program's log."""
        try:
            self._folder.create(FOLDER)
            # The loop waits for it, and what a power cut takes is found out anew.
            write_atomic(Path(self._file(fingerprint)), msgspec.json.encode(record), durable=False)
        except OSError as fault:
            _log.warning("the era of a server is not remembered, it will be probed again: %s", fault)
            return
        self._prune()

    def forget(self, fingerprint: str) -> None:
        """Remember nothing. What cannot be removed is told in the program's log."""
        try:
            os.unlink(self._file(fingerprint))
        except FileNotFoundError:
            return
        except OSError as fault:
            _log.warning("the remembered era of a server cannot be removed: %s", fault)

    def _file(self, fingerprint: str) -> str:
        return os.path.join(self._folder.path, FOLDER, safe_name(fingerprint) + _ENDING)

    def _prune(self) -> None:
        folder = self._folder.path / FOLDER
        entries: list[os.DirEntry[str]] = []
        others = 0
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                if entry.name.endswith(_ENDING):
                    entries.append(entry)
                else:
                    others += 1
        if others:
            remove_stale(folder)
        if len(entries) <= self._max_entries:
            return  # their age is asked for only then: it is one more look at the disk for each
        aged: list[tuple[int, str]] = []
        for entry in entries:
            with contextlib.suppress(OSError):
                aged.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
        aged.sort()
        for _, path in aged[: max(0, len(aged) - self._max_entries)]:
            with contextlib.suppress(OSError):
                os.unlink(path)


class MemoryEraStore:
    """The twin of ``EraStore`` without a folder: remembers as long as the object lives."""

    __slots__ = ("_max_entries", "_records")

    def __init__(self, *, max_entries: int = MAX_ENTRIES) -> None:
        self._records: dict[str, EraRecord] = {}
        self._max_entries = max_entries

    def get(self, fingerprint: str) -> EraRecord | None:
        """What is remembered, or None."""
        return self._records.get(fingerprint)

    def put(self, fingerprint: str, record: EraRecord) -> None:
        """Remember, in place of what was."""
        self._records.pop(fingerprint, None)
        self._records[fingerprint] = record
        while len(self._records) > self._max_entries:
            self._records.pop(next(iter(self._records)), None)

    def forget(self, fingerprint: str) -> None:
        """Remember nothing."""
        self._records.pop(fingerprint, None)


_decoder = msgspec.json.Decoder(EraRecord)


def _read(path: str) -> bytes:
    """The content of an entry; never waits, follows no link at its end.

    Raises:
        OSError: it cannot be read, or is longer than an entry can be.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        data = os.read(descriptor, MAX_FILE + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        raise OSError("longer than an entry can be")
    return data
