"""Credentials in files, the default: one file for each, private and whole, with locks of the operating system.

::

    <folder>/                      0700
        <key>.credential           0600, one line for people and the secret after it (entry.py)
        <key>.corrupt-<when>       0600, a damaged one in whose place something was saved
        locks/<name>.lock          0600, empty, never deleted

A file is written beside, flushed to the disk and put in the place of the old one in one step. Links are never
followed. Everything that touches the disk runs in threads (blocking.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from .atomic import remove_stale, sync_folder, write_atomic
from .blocking import Blocking
from .credentials import (
    CorruptEntry,
    Lease,
    LeaseLost,
    StoredKey,
    StoreUnusable,
    Watching,
    checked_key,
    checked_value,
)
from .entry import MAX_FILE, MAX_HEAD, Head, Malformed, decode, encode, head_of
from .file_lock import FileLease, file_lock
from .folder_watch import FolderWatch, OwnMarks
from .private_folder import make_private, refuse_if_open
from .sealing import Sealer, Sealing, Unsealable

__all__ = ["FileStore"]

LOCKS = "locks"
ENDING = ".credential"

KEPT_ASIDE = 3
"""Damaged files kept for each key; the oldest go first."""

_SEALING_LOCK = "key-of-the-files"
_SEALING_BOUND = 15.0
_log = logging.getLogger(__name__)


class FileStore:
    """Credentials in a folder. Making it touches nothing; ended by ``aclose``.

    ``sealing`` encrypts what is saved from then on; files that are not encrypted are still read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, sealing: Sealing | None = None) -> None:
        self._folder = Path(folder).absolute()
        self._name = f"file:{self._folder}"
        self._sealing = sealing
        self._sealer: Sealer | None = None
        self._blocking = Blocking(self._name)
        self._own = OwnMarks()
        self._watches: set[FolderWatch] = set()
        self._swept = False

    def __repr__(self) -> str:
        return f"FileStore({str(self._folder)!r})"

    @property
    def name(self) -> str:
        """What people are shown."""
        return self._name

    async def load(self, key: str) -> bytes | None:
        """The value, or None; see ``CredentialStore.load``."""
        found = await self._blocking.run(self._read, checked_key(key))
        if found is None:
            return None
        head, payload = found
        if not head.sealed:
            return payload
        try:
            return (await self._ready_sealer(head)).open(key, head.sealed, payload)
        except Unsealable as fault:
            raise self._corrupt(key, str(fault)) from fault

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        """Keep it, on the disk when this returns; see ``CredentialStore.save``."""
        key, value, held = checked_key(key), checked_value(value, self._name), self._lease(lease)
        sealed, name = value, ""
        if self._sealing is not None:
            sealer = await self._ready_sealer()
            sealed, name = sealer.seal(key, value), sealer.name
        data = encode(key, sealed, about=about, written=time.time(), sealed=name)
        await self._blocking.run(self._write, key, data, lease=held)

    async def remove(self, key: str, lease: Lease) -> None:
        """Keep nothing; see ``CredentialStore.remove``."""
        await self._blocking.run(self._unlink, checked_key(key), lease=self._lease(lease))

    async def keys(self) -> list[StoredKey]:
        """All entries, by key. Reads their first lines."""
        return await self._blocking.run(self._list)

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[FileLease]:
        """Hold a lock; see ``CredentialStore.lock``."""
        checked_key(name)
        await self._blocking.run(self._make, LOCKS)
        folder = self._folder / LOCKS
        async with file_lock(folder, name, until, store=self._name, blocking=self._blocking) as lease:
            yield lease

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        """Tell changes of others within a second; see ``CredentialStore.watch``."""
        watch = FolderWatch(
            self._folder, ENDING, changed, own=self._own, blocking=self._blocking, store=self._name
        )
        await watch.start()
        self._watches.add(watch)
        return watch

    async def aclose(self) -> None:
        """End the watches, and wait a moment for writes that nobody waits for."""
        while self._watches:
            await self._watches.pop().aclose()
        await self._blocking.aclose()

    async def _ready_sealer(self, head: Head | None = None) -> Sealer:
        if self._sealing is None:
            assert head is not None
            raise StoreUnusable(
                f"the credential is encrypted with the key {head.sealed[:40]!r}, and no encryption is set",
                store=self._name,
            )
        if self._sealer is None or (head is not None and head.sealed != self._sealer.name):
            until = asyncio.get_running_loop().time() + _SEALING_BOUND
            self._sealer = await self._sealing.sealer(
                self._name, self._blocking, lambda: self.lock(_SEALING_LOCK, until)
            )
        return self._sealer

    def _lease(self, lease: Lease) -> FileLease:
        if not isinstance(lease, FileLease) or not lease.of(self._folder / LOCKS):
            raise LeaseLost(lease.name, store=self._name, why="it is a lease of another store")
        return lease

    def _corrupt(self, key: str, reason: str) -> CorruptEntry:
        return CorruptEntry(key, reason, store=self._name, where=str(self._path(key)))

    def _path(self, key: str) -> Path:
        return self._folder / (key + ENDING)

    # What follows runs in threads.

    def _make(self, *below: str) -> None:
        make_private(self._folder, *below, store=self._name)

    def _read(self, key: str) -> tuple[Head, bytes] | None:
        path = self._path(key)
        if sys.platform != "win32":
            refuse_if_open(self._folder.parent, store=self._name)
        try:
            data = _content(path)
        except FileNotFoundError:
            return None
        except Malformed as fault:
            raise self._corrupt(key, str(fault)) from fault
        try:
            return decode(key, data)
        except Malformed as fault:
            raise self._corrupt(key, str(fault)) from fault

    def _write(self, key: str, data: bytes) -> None:
        self._make()
        path = self._path(key)
        self._own.begin(key)
        try:
            self._keep_aside(key, path)
            write_atomic(path, data)
        finally:
            self._own.end(key, path)
        if not self._swept:
            self._swept = True
            remove_stale(self._folder)

    def _unlink(self, key: str) -> None:
        path = self._path(key)
        self._own.begin(key)
        try:
            self._keep_aside(key, path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                sync_folder(self._folder)
        finally:
            self._own.end(key, path)

    def _keep_aside(self, key: str, path: Path) -> None:
        """A file that cannot be read is kept for a person to look at, beside what is put in its place."""
        try:
            found = self._read(key)
            if found is None or not found[0].sealed:
                return
            if self._sealer is not None and found[0].sealed == self._sealer.name:
                return
            why = f"{path} is encrypted with another key"
        except CorruptEntry as fault:
            why = f"{fault.where} {fault.args[0].removeprefix(fault.where).strip()}"
        aside = path.with_name(f"{key}.corrupt-{time.time_ns()}")
        try:
            # A second name: whoever is killed before the new file is in place leaves the damaged one, not none.
            os.link(path, aside, follow_symlinks=False)
        except OSError:  # a folder, or a disk without second names
            os.replace(path, aside)
        _log.warning("what stood in the place of a credential is kept as %s: %s", aside, why)
        olds = sorted(entry for entry in os.listdir(self._folder) if entry.startswith(f"{key}.corrupt-"))
        for old in olds[:-KEPT_ASIDE]:
            with contextlib.suppress(OSError):
                os.unlink(self._folder / old)

    def _list(self) -> list[StoredKey]:
        found: list[StoredKey] = []
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return found
        for name in names:
            if name.endswith(ENDING) and not name.startswith("."):
                key = name.removesuffix(ENDING)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found.append(self._told(key))
        return found

    def _told(self, key: str) -> StoredKey:
        try:
            data, size = _start(self._path(key), MAX_HEAD)
            head, _ = head_of(key, data, size)
        except FileNotFoundError:
            raise
        except Malformed as fault:
            return StoredKey(key=key, problem=f"{self._path(key)} {fault}")
        except OSError as fault:
            return StoredKey(key=key, problem=f"{self._path(key)} cannot be read: {fault.strerror or fault}")
        return StoredKey(key=key, about=head.about, written=head.written)


def _content(path: Path) -> bytes:
    """All of a file.

    Raises:
        Malformed: it is a link, no file, or too long.
        OSError: it cannot be read.
    """
    data, size = _start(path, MAX_FILE)
    if size > MAX_FILE:
        raise Malformed("is longer than a credential can be")
    return data


def _start(path: Path, limit: int) -> tuple[bytes, int]:
    """The first ``limit`` bytes of a file and its size. Raises as ``_content`` does."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise Malformed("is a link, which is not followed for secrets")
    descriptor = os.open(path, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Malformed("is no file")
        if sys.platform != "win32" and found.st_mode & 0o077:
            _log.warning("%s could be read by others; its mode is 0600 now", path)
            os.fchmod(descriptor, 0o600)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit), found.st_size
    finally:
        os.close(descriptor)
