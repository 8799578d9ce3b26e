"""Credential stores: what every backend promises, and how one fails. No I/O here.

A store keeps opaque bytes under a key (the digest of a credential's key), with a few readable words about them. It
knows nothing of tokens: what the bytes mean is its caller's business. Whoever writes holds a **lease**, the proof
that the lock of the store is theirs; a write whose lock went to somebody else meanwhile is refused (fenced off), so
that a holder that was stopped for too long cannot undo the work of its successor. A transaction is
``lock → load → … → save``, and a process that is killed in its middle leaves the old value or the new.

Errors, internal: the broker turns them into public ones::

    StoreError              the store, why, whether it may pass by itself
    ├── LockTimeout         somebody else holds the lock until the deadline
    ├── LeaseLost           the lock is not ours any more; nothing was written
    ├── CorruptEntry        one entry cannot be read, and will not be taken for an absent one
    └── StoreUnusable       this store cannot be used here: a package, a backend or a right is missing

None of their texts, and no repr of a store or a lease, holds a value or a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

__all__ = [
    "MAX_VALUE",
    "CorruptEntry",
    "CredentialStore",
    "Lease",
    "LeaseLost",
    "LockTimeout",
    "StoreError",
    "StoreUnusable",
    "StoredKey",
    "Watching",
    "checked_key",
    "checked_value",
]

MAX_VALUE = 1024 * 1024
"""Bytes of one value. Tokens have some kilobytes; what is longer is a fault, not a credential."""

_KEY = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")


class StoreError(Exception):
    """The store could not do it. ``reason`` is a clause without a full stop and holds no secret."""

    def __init__(self, reason: str, *, store: str, transient: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.store = store
        """The name of the store, as people are shown it."""
        self.transient = transient
        """Whether it may pass by itself. Never taken for "nothing is stored"."""

    def __str__(self) -> str:
        return f"{self.store}: {self.reason}"


class LockTimeout(StoreError):
    """Somebody else holds the lock, and did so until the deadline."""

    def __init__(self, name: str, *, store: str, waited: float) -> None:
        super().__init__(
            f"the lock {name[:16]!r} is held by somebody else, waited {waited:.1f} s", store=store
        )
        self.name = name
        self.waited = waited
        """Seconds."""


class LeaseLost(StoreError):
    """The lock went to somebody else, or was given back: nothing was written."""

    def __init__(self, name: str, *, store: str, why: str = "") -> None:
        text = f"the lock {name[:16]!r} is not held any more, nothing was written"
        super().__init__(f"{text} ({why})" if why else text, store=store, transient=False)
        self.name = name


class CorruptEntry(StoreError):
    """One entry cannot be read. It stays where it is, and is kept aside when something is saved in its place."""

    def __init__(self, key: str, reason: str, *, store: str, where: str) -> None:
        super().__init__(f"{where} {reason}", store=store, transient=False)
        self.key = key
        self.where = where
        """The file, or what stands for it in another backend."""


class StoreUnusable(StoreError):
    """This store cannot be used here, now and later: something has to be installed, set or permitted first."""

    def __init__(self, reason: str, *, store: str, fix: str = "") -> None:
        super().__init__(reason, store=store, transient=False)
        self.fix = fix
        """The next step, if one is known."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """One entry, told without its secrets."""

    key: str
    about: dict[str, str] = {}
    """What whoever saved it said of it: principal, issuer, resource and the like."""
    written: float | None = None
    """When it was saved, in seconds of the wall clock; None if that is not known."""
    problem: str = ""
    """Why it cannot be read; empty if its outer form is sound."""


class Lease(Protocol):
    """The proof that a lock is held. Made by ``CredentialStore.lock``, ended with its ``async with``."""

    @property
    def name(self) -> str:
        """The name that is locked."""

    @property
    def fence(self) -> int:
        """A number greater than those of all earlier holders, where the lock can be lost; else 0."""

    @property
    def held(self) -> bool:
        """False once it was given back, and where somebody else has it or may have it by now. Costs no I/O.

        To be asked before what cannot be undone; that a write is done proves more.
        """


class Watching(Protocol):
    """A watch that runs. Whoever started it ends it; the store's ``aclose`` ends those that are left."""

    async def aclose(self) -> None:
        """Tell nothing more. When it returns, nothing of the watch runs."""


class CredentialStore(Protocol):
    """Where credentials outlive the process.

    Used from one event loop at a time, which no call blocks for more than a few milliseconds. Each call has a bound
    of its own. Cancelled in its middle, a ``save`` or ``remove`` was done whole or not at all, and its lock stays
    taken until that is decided. All raise ``StoreError``, and ``ValueError`` for a key that cannot be one.
    """

    @property
    def name(self) -> str:
        """What people are shown, such as ``file:/home/…`` or ``redis://host:6379/0``; without passwords."""

    async def load(self, key: str) -> bytes | None:
        """The value, or None if there is none.

        Raises:
            CorruptEntry: there is one, and it is damaged.
            StoreError: it is not known whether there is one.
        """

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        """Keep ``value`` in place of what was; as safe as the backend can make it when this returns.

        ``about`` is shown to people and is not protected: it holds no secret.

        Raises:
            LeaseLost: the lock is not held any more; nothing was written.
            StoreError: it could not be written, or, with a backend behind a network, it is not known whether it was.
        """

    async def remove(self, key: str, lease: Lease) -> None:
        """Keep nothing. Removing what is not there is no error. Raises as ``save`` does."""

    async def keys(self) -> list[StoredKey]:
        """All entries, damaged ones too, by key, without secrets."""

    def lock(self, name: str, until: float) -> AbstractAsyncContextManager[Lease]:
        """Hold the lock ``name``, alone among all tasks, processes and (with a backend for them) hosts.

        Waits until the loop's time ``until``, and tries at least once. The lock dies with the process that holds it.

        Raises:
            LockTimeout: it was not free in time.
        """

    async def watch(self, changed: Callable[[str], None]) -> Watching:
        """Call ``changed`` with the key of each entry that anybody else saves or removes, within a second.

        Called on the loop, and must not block. One's own changes, made through this object, are not told as a rule;
        several changes of one key may be told as one. What is there when it begins is not told.
        """

    async def aclose(self) -> None:
        """End what runs and close what is open; at once if there is nothing. May be called twice."""


def checked_key(key: str) -> str:
    """A key or name of a lock, which becomes a file name: lower-case letters, digits, ``_`` and ``-``.

    Raises:
        ValueError: it is none.
    """
    if not _KEY.fullmatch(key):
        raise ValueError("a key is 1 to 128 lower-case letters, digits, '_' and '-'")
    return key


def checked_value(value: bytes, store: str) -> bytes:
    """A value that can be kept.

    Raises:
        StoreError: it is longer than ``MAX_VALUE``.
    """
    if len(value) > MAX_VALUE:
        raise StoreError(
            f"a value of {len(value):,} bytes is over the cap of {MAX_VALUE:,}", store=store, transient=False
        )
    return value
