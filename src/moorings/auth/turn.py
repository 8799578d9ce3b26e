"""One login at a time for a server and a principal, among all tasks, processes and (with a store for them) hosts.

Whoever begins a login leaves a note in the store; others find it, wait, and take what that login brought. No lock is
held while a person is at a browser: the note is kept fresh by its holder, and one that stays as it is for ``STALE``
seconds is that of a process that was killed or stopped. Made for one login and ended with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from .._tasks import TaskOwner
from ..store.credentials import CredentialStore, StoreError
from .faults import LoginFault
from .model import login_key

__all__ = ["Holder", "Turn", "take_turn"]

_log = logging.getLogger("moorings")

BEAT = 2.0
"""Seconds between two signs of life of a holder."""
STALE = 12.0
"""Seconds without one after which it is held to be dead."""
LOOK = 0.5
"""Seconds between two looks at the note of another."""
LOCK_WITHIN = 20.0
"""Seconds that the store's lock for the note is waited for."""


class Holder(msgspec.Struct, frozen=True):
    """Who is at a login: what the note says."""

    mark: str
    """Of this very login."""
    process: int
    host: str
    machine: str
    """Two processes with the same one see each other by their ids."""
    began: float
    """Seconds of the wall clock."""
    beat: int = 0

    @property
    def shown(self) -> str:
        """For people."""
        return f"process {self.process} on {self.host}"


class Turn:
    """It is ours, until ``aclose``."""

    def __init__(self, store: CredentialStore | None, key: str, holder: Holder) -> None:
        self._store = store
        self._key = key
        self._holder = holder
        self._owner = TaskOwner("login")
        _ours.add(holder.mark)
        if store is not None:
            self._owner.start(self._live(store), name="sign of life")

    async def _live(self, store: CredentialStore) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                async with store.lock(self._key, _now() + LOCK_WITHIN) as lease:
                    held = await _read(store, self._key)
                    if held is None or held.mark != self._holder.mark:
                        return  # It was taken from us while this process was stopped.
                    self._holder = msgspec.structs.replace(self._holder, beat=self._holder.beat + 1)
                    await store.save(self._key, msgspec.json.encode(self._holder), lease, about=ABOUT)
            except StoreError as error:
                _log.debug("the note of a login is not kept fresh: %s", error)

    async def aclose(self) -> None:
        """Take the note away."""
        try:
            await self._owner.aclose()
            if self._store is not None:
                await self._remove(self._store)
        finally:
            # A note that stays is nobody's from here on, as is said to others by its not being kept fresh.
            _ours.discard(self._holder.mark)

    async def _remove(self, store: CredentialStore) -> None:
        try:
            async with store.lock(self._key, _now() + LOCK_WITHIN) as lease:
                held = await _read(store, self._key)
                if held is not None and held.mark == self._holder.mark:
                    await store.remove(self._key, lease)
        except StoreError as error:
            _log.debug("the note of a login stays until it is stale: %s", error)


ABOUT = {"kind": "login"}

_ours: set[str] = set()
"""The marks of logins of this process that are under way."""


async def take_turn(
    store: CredentialStore,
    principal: str,
    resource: str,
    *,
    until: float,
    waiting: Callable[[Holder], None] = lambda holder: None,
    wall: Callable[[], float],
) -> Turn | None:
    """Begin a login, or wait for the end of the one that is under way.

    Args:
        until: the loop's time until which another login is waited for.
        waiting: told whose login is waited for, once for each.

    Returns:
        The turn; None: somebody else's login has ended, and what it brought is in the store.

    Raises:
        LoginFault: that of somebody else takes too long.
    """
    key = login_key(principal, resource)
    seen: Holder | None = None
    since = _now()
    while True:
        turn: Turn | None = None
        try:
            async with store.lock(key, _now() + LOCK_WITHIN) as lease:
                held, before = await _read(store, key), seen
                if held is not None and held != seen:
                    seen, since = held, _now()
                stale = held is not None and (_now() - since > STALE or _is_dead(held))
                if held is None and seen is not None:
                    return None
                if held is None or stale:
                    ours = Holder(secrets.token_hex(8), os.getpid(), platform.node()[:100], machine(), wall())
                    turn = Turn(store, key, ours)
                    await store.save(key, msgspec.json.encode(ours), lease, about=ABOUT)
            if turn is not None:
                return turn
            if held is not None and (before is None or before.mark != held.mark):
                waiting(held)
        except (
            BaseException
        ) as error:  # boundary: a note of ours may stand there; raised again but for the store's
            if turn is not None:
                await turn.aclose()
            if not isinstance(error, StoreError):
                raise
            # A login must not depend on a note.
            _log.warning("whether another login is under way is not known: %s", error)
            return Turn(None, key, Holder("", os.getpid(), "", "", wall()))
        if _now() >= until:
            assert seen is not None
            raise LoginFault(
                f"{seen.shown} has been at a login to it, and is still", fix="end that one, or wait for it"
            )
        await asyncio.sleep(LOOK)


def machine() -> str:
    """What tells that the id of a process means the same there and here: the machine, its boot, its namespace."""
    parts = [platform.node()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(path) if path.endswith("/pid") else Path(path).read_text().strip())
        except OSError:
            continue
    return " ".join(parts)


def _is_dead(held: Holder) -> bool:
    if held.machine != machine():
        return False
    if held.process == os.getpid():
        return held.mark not in _ours  # left over, or of another process that had our number
    try:
        os.kill(held.process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # Somebody else's, and alive.
    return False


async def _read(store: CredentialStore, key: str) -> Holder | None:
    try:
        data = await store.load(key)
        return None if data is None else msgspec.json.decode(data, type=Holder)
    except msgspec.MsgspecError:
        return None  # Nobody's: it is written over.


def _now() -> float:
    return asyncio.get_running_loop().time()
