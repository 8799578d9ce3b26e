"""Encryption of stored values with a key that lies in the keyring of the system (extra ``moorings[keyring]``).

AES-256-GCM by ``cryptography``, with a random nonce for each value; the name of the entry is bound in, so that values
cannot change places. The key is made once, under the lock of the store, and has a name: a value whose key is gone
from the keyring is told as that, never as absent.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from .blocking import Blocking
from .credentials import StoreError, StoreUnusable
from .keyring_access import ANSWER, KeyringAccess

__all__ = ["KeyringSealing", "Sealer", "Sealing", "Unsealable"]

_NONCE = 12


class Unsealable(ValueError):
    """It was sealed with another key, or changed since. The text continues a sentence."""


class Sealing(Protocol):
    """Where a store gets its sealer from, when it first needs one."""

    async def sealer(
        self, store: str, blocking: Blocking, lock: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> Sealer:
        """The one to use; ``lock`` excludes all who might make the key at the same time."""


class Sealer:
    """One key. Its repr shows the name alone."""

    __slots__ = ("_cipher", "name")

    def __init__(self, name: str, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.name = name
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return f"Sealer({self.name!r})"

    def seal(self, entry: str, value: bytes) -> bytes:
        """The value, encrypted for this entry."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, value, entry.encode())

    def open(self, entry: str, sealed: str, payload: bytes) -> bytes:
        """The value again.

        Raises:
            Unsealable: ``sealed`` names another key, or it is not what was sealed for this entry.
        """
        from cryptography.exceptions import InvalidTag

        if sealed != self.name:
            raise Unsealable(
                f"is encrypted with the key {sealed[:40]!r}, and the keyring holds {self.name!r}"
            )
        try:
            return self._cipher.decrypt(payload[:_NONCE], payload[_NONCE:], entry.encode())
        except (InvalidTag, ValueError) as fault:
            raise Unsealable("cannot be decrypted: it was changed after it was written") from fault


class KeyringSealing:
    """Keys in a keyring: one for each ``item``, which is named after the store as a rule."""

    __slots__ = ("_backend", "_item")

    def __init__(self, item: str = "file-key", *, backend: Any = None) -> None:
        self._item = item
        self._backend = backend

    async def sealer(
        self, store: str, blocking: Blocking, lock: Callable[[], AbstractAsyncContextManager[Any]]
    ) -> Sealer:
        """The key of the item, made if there is none.

        Raises:
            StoreError: the keyring or ``cryptography`` cannot be used.
        """
        try:
            import cryptography  # noqa: F401
        except ImportError as fault:
            raise StoreUnusable(
                "cryptography is not installed", store=store, fix="pip install 'moorings[keyring]'"
            ) from fault
        access = KeyringAccess(store, self._backend)

        async def fetch() -> str | None:
            return await blocking.run(access.get, self._item, within=ANSWER, who="the keyring")

        text = await fetch()
        if text is None:
            async with lock():
                text = await fetch()
                if text is None:
                    fresh = f"{secrets.token_hex(4)}:{base64.b64encode(os.urandom(32)).decode()}"
                    await blocking.run(access.set, self._item, fresh, within=ANSWER, who="the keyring")
                    text = await fetch()  # some keep nothing, and say nothing
                    if text != fresh:
                        raise StoreError("the keyring did not keep the key of the files", store=store)
        name, _, encoded = text.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != 32:
            raise StoreError(
                f"the entry {self._item!r} of the keyring is no key", store=store, transient=False
            )
        return Sealer(name, key)
