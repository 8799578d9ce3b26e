"""Credentials in the keyring of the system (extra ``moorings[keyring]``).

A keyring has no locks, tells no changes, lists nothing and, here and there, keeps no long values. So beside it lies a
folder without secrets: locks of the operating system, and a **stamp** for each key, which says what people may know
of it and whose change tells other processes to look. Long values are cut into parts: the new ones are written beside
the old ones, then the head that names them is replaced in one step.

Which keyring it is is written down with the first credential. If another one is found later the store says so and
does nothing: credentials never change their place by themselves.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .atomic import remove_stale, write_atomic
from .blocking import Blocking
from .credentials import (
    CorruptEntry,
    Lease,
    LeaseLost,
    StoredKey,
    StoreError,
    StoreUnusable,
    Watching,
    checked_key,
    checked_value,
)
from .entry import MAX_HEAD, Malformed, encode, head_of
from .file_lock import FileLease, file_lock
from .folder_watch import FolderWatch, OwnMarks
from .keyring_access import ANSWER, KeyringAccess
from .private_folder import make_private

__all__ = ["PART", "KeyringStore"]

PART = 1000
"""Characters kept in one entry: the Windows Credential Locker takes 1,280."""

WRITE = 15.0
"""Seconds for a save or a removal, which is several calls of the keyring."""

READS = 4
"""Times a value in parts is read, if it is being replaced meanwhile."""

LOCKS = "locks"
ENDING = ".stamp"
PIN = "keyring"


class _Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lies under the key itself: the value, or which parts it has."""

    sha256: str
    value: str = ""
    slot: str = ""
    parts: int = 0


_decoder = msgspec.json.Decoder(_Head)


class KeyringStore:
    """Credentials in a keyring, with a folder beside it. Making it touches nothing; ended by ``aclose``.

    ``backend`` is a keyring of the program's own, used as it is; without one, the package ``keyring`` finds it, and
    one that does not protect what it keeps is refused. ``space`` keeps the entries of several stores apart.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        backend: Any = None,
        space: str = "credentials",
        part: int = PART,
    ) -> None:
        self._folder = Path(folder).absolute()
        self._space = checked_key(space)
        self._part = part
        self._title = ""
        self._keyring = KeyringAccess("keyring", backend)
        self._blocking = Blocking("keyring")
        self._own = OwnMarks()
        self._watches: set[FolderWatch] = set()
        self._ready = False

    def __repr__(self) -> str:
        return f"KeyringStore({self.name!r}, beside {str(self._folder)!r})"

    @property
    def name(self) -> str:
        """What people are shown; with the kind of the keyring once that is known."""
        return f"keyring:{self._title}" if self._title else "keyring"

    async def load(self, key: str) -> bytes | None:
        """The value, or None; see ``CredentialStore.load``."""
        checked_key(key)
        await self._probe()
        found: bytes | None = await self._call(self._read, key, within=WRITE)
        return found

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        """Keep it; see ``CredentialStore.save``."""
        key, value, held = checked_key(key), checked_value(value, self.name), self._lease(lease)
        await self._probe()
        await self._call(self._write, key, value, dict(about or {}), within=WRITE, lease=held)

    async def remove(self, key: str, lease: Lease) -> None:
        """Keep nothing; see ``CredentialStore.remove``."""
        key, held = checked_key(key), self._lease(lease)
        await self._probe()
        await self._call(self._delete, key, within=WRITE, lease=held)

    async def keys(self) -> list[StoredKey]:
        """All entries, by key, as their stamps tell. Asks the keyring nothing."""
        return await self._blocking.run(self._list)

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[FileLease]:
        """Hold a lock; see ``CredentialStore.lock``."""
        checked_key(name)
        await self._blocking.run(self._make, LOCKS)
        folder = self._folder / LOCKS
        async with file_lock(folder, name, until, store=self.name, blocking=self._blocking) as lease:
            yield lease

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        """Tell changes of others within a second, by their stamps; see ``CredentialStore.watch``."""
        watch = FolderWatch(
            self._folder, ENDING, changed, own=self._own, blocking=self._blocking, store=self.name
        )
        await watch.start()
        self._watches.add(watch)
        return watch

    async def aclose(self) -> None:
        """End the watches, and wait a moment for calls that nobody waits for."""
        while self._watches:
            await self._watches.pop().aclose()
        await self._blocking.aclose()

    async def _probe(self) -> None:
        """See once that the keyring is there, is the one it was, and answers."""
        if not self._ready:
            self._title = await self._call(self._look, within=ANSWER)
            self._ready = True

    async def _call(self, function: Callable[..., Any], *args: Any, within: float, lease: Any = None) -> Any:
        if self._blocking.hanging:
            # One that hangs or asks a person is not asked again and again: each question leaves a thread.
            raise StoreError("the keyring has not answered an earlier call yet", store=self.name)
        return await self._blocking.run(function, *args, within=within, who="the keyring", lease=lease)

    def _lease(self, lease: Lease) -> FileLease:
        if not isinstance(lease, FileLease) or not lease.of(self._folder / LOCKS):
            raise LeaseLost(lease.name, store=self.name, why="it is a lease of another store")
        return lease

    # What follows runs in threads.

    def _make(self, *below: str) -> None:
        make_private(self._folder, *below, store=self.name)

    def _look(self) -> str:
        title = self._keyring.title()
        self._keyring.get("probe")
        pinned = self._pinned()
        if pinned and pinned != title:
            raise StoreUnusable(
                f"the credentials are in the keyring {pinned}, and the one found now is {title}",
                store=f"keyring:{title}",
                fix=f"bring it back, or log in anew after removing {self._folder / PIN}",
            )
        return title

    def _pinned(self) -> str:
        try:
            return (self._folder / PIN).read_text(encoding="utf-8").strip()[:300]
        except FileNotFoundError:
            return ""

    def _item(self, key: str, slot: str = "", number: int = 0) -> str:
        return f"{self._space}:{key}:{slot}{number}" if slot else f"{self._space}:{key}"

    def _head(self, key: str) -> _Head | None:
        text = self._keyring.get(self._item(key))
        if text is None:
            return None
        try:
            return _decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeEncodeError) as fault:
            raise self._corrupt(key, "is no credential of ours") from fault

    def _corrupt(self, key: str, reason: str) -> CorruptEntry:
        return CorruptEntry(
            key, reason, store=self.name, where=f"the entry {self._item(key)!r} of the keyring"
        )

    def _read(self, key: str) -> bytes | None:
        for _ in range(READS):
            head = self._head(key)
            if head is None:
                return None
            texts = [head.value] if not head.parts else []
            for number in range(head.parts):
                text = self._keyring.get(self._item(key, head.slot, number))
                if text is None:
                    break
                texts.append(text)
            try:
                value = base64.b64decode("".join(texts), validate=True)
            except binascii.Error:
                value = b""
            if hashlib.sha256(value).hexdigest() == head.sha256:
                return value
        raise self._corrupt(key, "is damaged: parts of it are missing or were changed")

    def _write(self, key: str, value: bytes, about: dict[str, str]) -> None:
        self._make()
        if not self._pinned():
            write_atomic(self._folder / PIN, self._title.encode() + b"\n")
        stamp = self._folder / (key + ENDING)
        self._own.begin(key)
        try:
            if not stamp.exists():
                # Before the secret: what lies in the keyring is always listed.
                write_atomic(stamp, encode(key, b"", about=about, written=time.time(), sealed=""))
            self._put(key, value)
            write_atomic(stamp, encode(key, b"", about=about, written=time.time(), sealed=""))
        finally:
            self._own.end(key, stamp)
        remove_stale(self._folder)

    def _put(self, key: str, value: bytes) -> None:
        try:
            old = self._head(key)
        except CorruptEntry:
            old = None  # not ours to keep: a keyring has no place for what is damaged
        text = base64.b64encode(value).decode()
        digest = hashlib.sha256(value).hexdigest()
        slot, parts = "", 0
        if len(text) > self._part:
            slot = "b" if old is not None and old.slot == "a" else "a"
            for begin in range(0, len(text), self._part):
                self._keyring.set(self._item(key, slot, parts), text[begin : begin + self._part])
                parts += 1
            text = ""
        head = _Head(sha256=digest, value=text, slot=slot, parts=parts)
        self._keyring.set(self._item(key), msgspec.json.encode(head).decode())
        # Also those of a writer that was killed.
        for each in ("a", "b"):
            self._clear(key, each, parts if each == slot else 0)

    def _clear(self, key: str, slot: str, begin: int) -> None:
        """Remove parts from ``begin`` on, the last first: who is killed here leaves no gap to stop at."""
        end = begin
        while self._keyring.get(self._item(key, slot, end)) is not None:
            end += 1
        for number in range(end - 1, begin - 1, -1):
            self._keyring.delete(self._item(key, slot, number))

    def _delete(self, key: str) -> None:
        stamp = self._folder / (key + ENDING)
        self._own.begin(key)
        try:
            self._keyring.delete(self._item(key))
            for slot in ("a", "b"):
                self._clear(key, slot, 0)
            # After the secret: what lies in the keyring is always listed.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(stamp)
        finally:
            self._own.end(key, stamp)

    def _list(self) -> list[StoredKey]:
        found: list[StoredKey] = []
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return found
        for name in names:
            if not name.endswith(ENDING) or name.startswith("."):
                continue
            key, path = name.removesuffix(ENDING), self._folder / name
            try:
                data = path.read_bytes()[: MAX_HEAD + 1]
                head, _ = head_of(key, data, len(data))
            except FileNotFoundError:
                continue  # removed meanwhile
            except Malformed as fault:
                found.append(StoredKey(key=key, problem=f"{path} {fault}"))
            except OSError as fault:
                found.append(StoredKey(key=key, problem=f"{path} cannot be read: {fault.strerror or fault}"))
            else:
                found.append(StoredKey(key=key, about=head.about, written=head.written))
        return found
