"""Credentials that are gone with the process: for tests, and for programs that keep nothing on a disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from .credentials import LeaseLost, LockTimeout, StoredKey, checked_key

__all__ = ["MemoryStore", "Memory"]


class Memory:
    """What outlives one ``MemoryStore``, so that a broker that was left and is joined again finds it."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[bytes, dict[str, str], float]] = {}


class _Lease:
    fence = 0

    def __init__(self, name: str) -> None:
        self.name = name
        self.held = True


class MemoryStore:
    """See the module. Of one loop and one process, so nobody else ever changes it."""

    name = "memory"

    def __init__(self, memory: Memory | None = None) -> None:
        self._entries = (memory or Memory()).entries
        self._locks: dict[str, asyncio.Lock] = {}

    async def load(self, key: str) -> bytes | None:
        found = self._entries.get(checked_key(key))
        return None if found is None else found[0]

    async def save(
        self, key: str, value: bytes, lease: object, *, about: Mapping[str, str] | None = None
    ) -> None:
        self._check(lease)
        self._entries[checked_key(key)] = (bytes(value), dict(about or {}), time.time())

    async def remove(self, key: str, lease: object) -> None:
        self._check(lease)
        self._entries.pop(checked_key(key), None)

    def _check(self, lease: object) -> None:
        if not isinstance(lease, _Lease) or not lease.held:
            raise LeaseLost(getattr(lease, "name", ""), store=self.name)

    async def keys(self) -> list[StoredKey]:
        return [
            StoredKey(key=key, about=about, written=written)
            for key, (_, about, written) in sorted(self._entries.items())
        ]

    @asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[_Lease]:
        lock = self._locks.setdefault(checked_key(name), asyncio.Lock())
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout_at(max(until, began + 0.001)):
                await lock.acquire()
        except TimeoutError:
            raise LockTimeout(name, store=self.name, waited=loop.time() - began) from None
        lease = _Lease(name)
        try:
            yield lease
        finally:
            lease.held = False
            lock.release()

    async def watch(self, changed: Callable[[str], None]) -> MemoryStore:
        return self

    async def aclose(self) -> None:
        """Nothing is open."""
