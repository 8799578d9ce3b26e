"""The broker of tokens: one for a store and a process, for any number of threads, loops and hosts.

A request asks for a bearer, is sent, and on 401 tells that it was refused; nothing is held meanwhile. ``at_hand`` costs
a look at memory. What must be done once (reading the store, a refresh, getting a first token) is a task of the broker's
own thread (``worker.py``); callers wait for its outcome in their own loop, each as long as it likes, and whoever stops
waiting leaves it whole. What another process writes is adopted within a second (``CredentialStore.watch``).

Made by whoever configures a store; used between ``join`` and ``leave``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from .._secret import Secret
from ..store.credentials import CredentialStore, StoreError, Watching
from .faults import AuthFault
from .model import Credential
from .renewal import INTENT, ClientGone, Dead, Gone, Postponed, Renewal, load
from .worker import Worker

__all__ = ["Bearer", "Broker", "Subject", "due_at", "usable"]

_log = logging.getLogger("moorings")

MARGIN = 5.0
"""Seconds before its end from which a token is not sent any more: it has a way to go, and clocks differ."""
EARLIEST = 600.0
"""Seconds; no token is refreshed earlier than that before its end."""
SHARE = (0.05, 0.15)
"""Part of its life before its end at which a token is refreshed; where in between is drawn for each."""
LOCK_WITHIN = 60.0
"""Seconds that a renewal waits for the lock of the store."""
MOST_LOOKS = 3
"""Times that a refused token is asked to be replaced before there is held to be none."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds after a renewal that failed for a passing reason; they double."""


class Subject(msgspec.Struct, frozen=True):
    """For whom, and for what, a token is wanted."""

    principal: str
    resource: str
    """Canonical URL of the MCP server."""
    issuer: str = ""
    """The authorization server, where it is set by hand; empty for whichever gave the stored credential."""
    client_id: str = ""
    """The client, where it is set by hand."""


class Bearer(msgspec.Struct, frozen=True):
    """What a request carries."""

    token: Secret
    scheme: str
    """``Bearer`` or ``DPoP``."""
    version: int
    """Of the credential: a refusal names it, so that it is refreshed once however many were refused."""
    credential: Credential

    def __repr__(self) -> str:
        return f"Bearer({self.scheme}, version {self.version})"


class _Clock(msgspec.Struct, frozen=True):
    """When a token was taken into use, by both clocks: a jump of the one is seen by the other."""

    wall: float
    steady: float


Refresh = Callable[[Credential], Awaitable[Credential]]
First = Callable[[Subject], Awaitable[Credential]]


def usable(credential: Credential, wall: float, age: float) -> bool:
    """Whether its access token can be sent now.

    Args:
        wall: seconds of the wall clock.
        age: seconds since it was taken into use here, by a clock that does not jump.
    """
    if credential.state != "good":
        return False
    if credential.expires_at is None:
        return True
    left = credential.expires_at - wall
    whole = credential.expires_at - credential.obtained_at
    # A wall clock that was set back must not make it live longer than it was given.
    return left > MARGIN and age < whole


def due_at(credential: Credential, draw: float) -> float | None:
    """Seconds of the wall clock from which it is renewed ahead of its end; None if that is not known."""
    if credential.expires_at is None or credential.refresh_token is None:
        return None
    life = max(0.0, credential.expires_at - credential.obtained_at)
    low, high = SHARE
    return credential.expires_at - min(life * (low + (high - low) * draw), EARLIEST)


class _Entry:
    """What is known of one subject. Read from any thread; written on the broker's own loop alone."""

    __slots__ = (
        "changed",
        "clock",
        "current",
        "draw",
        "failure",
        "loaded",
        "not_before",
        "operation",
        "pause",
        "subject",
    )

    def __init__(self, subject: Subject, draw: float) -> None:
        self.subject = subject
        self.current: Credential | None = None
        self.clock = _Clock(0.0, 0.0)
        self.loaded = False
        """True once the store was looked at."""
        self.draw = draw
        self.operation: concurrent.futures.Future[Credential | None] | None = None
        """What is being done for it, once for all who wait."""
        self.failure: AuthFault | None = None
        self.not_before = float("-inf")
        """By the steady clock: when a renewal that was put off may be tried again."""
        self.pause = 0.0
        self.changed: set[Callable[[], None]] = set()
        """Told, on the broker's loop, when another credential is there."""


class Broker:
    """See the module."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[CredentialStore]],
        *,
        refresh: Refresh,
        first: First | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            open_store: makes the store, on the broker's own loop.
            refresh: one exchange with the token endpoint for a stored credential; returns the merged one.
            first: gets a first token without a person (client credentials and the like); raises ``AuthFault``.
        """
        self._open_store = open_store
        self._refresh = refresh
        self._first = first
        self._wall = wall
        self._steady = steady
        self._draw = draw
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._entries: dict[Subject, _Entry] = {}
        self._store: CredentialStore | None = None
        self._watching: Watching | None = None
        self._worker = Worker("broker of tokens", self._close)

    # Use

    def join(self) -> None:
        """Use it until ``leave``."""
        self._worker.join()

    def leave(self) -> threading.Event | None:
        """Use it no more. Returns what is set once nothing of it runs, for the last one to leave."""
        return self._worker.leave()

    async def _close(self) -> None:
        watching, self._watching = self._watching, None
        store, self._store = self._store, None
        if watching is not None:
            await watching.aclose()
        if store is not None:
            await store.aclose()
        with self._gate:
            # What is stored may be another the next time.
            self._entries.clear()

    # Bearers

    def at_hand(self, subject: Subject) -> Bearer | None:
        """A token that can be sent now, without any I/O; None where the store or a server must be asked."""
        entry = self._entries.get(subject)
        current = entry.current if entry is not None else None
        if entry is None or current is None:
            return None
        wall = self._wall()
        if not usable(current, wall, self._steady() - entry.clock.steady):
            return None
        due = due_at(current, entry.draw)
        if due is not None and wall >= due and self._steady() >= entry.not_before:
            # Ahead of its end: nobody waits for it.
            self._begin(entry, current.version)
        return self._bearer(current)

    async def bearer(self, subject: Subject, until: float) -> Bearer | None:
        """A token, read or renewed if need be, by the caller's loop time ``until``. None: there is no credential.

        Raises:
            AuthFault: there is one, and it cannot be used now (``Postponed``) or any more (``Dead``).
            TimeoutError: it takes longer; the work goes on.
        """
        ready = self.at_hand(subject)
        if ready is not None:
            return ready
        entry = self._entry(subject)
        known = entry.current
        credential = await self._outcome(self._begin(entry, None if known is None else known.version), until)
        return None if credential is None else self._bearer(credential)

    async def refused(self, subject: Subject, bearer: Bearer | None, until: float) -> Bearer:
        """A server did not take this token, or wants one: get another. Never the one that was refused.

        Raises:
            AuthFault: there is none; ``Gone`` and ``Dead`` mean that a login is needed.
            TimeoutError: it takes longer; the work goes on.
        """
        entry = self._entry(subject)
        current = entry.current
        if bearer is not None and current is not None and current.version > bearer.version:
            ready = self.at_hand(subject)
            if ready is not None:
                # Somebody else was refused with the same one, and has been served.
                return ready
        version = bearer.version if bearer is not None else None if current is None else current.version
        for _ in range(MOST_LOOKS):
            # What is under way may have begun before the refusal, and bring the very token that was refused.
            credential = await self._outcome(self._begin(entry, version, refused=True), until)
            if credential is None:
                break
            if bearer is None or credential.version > bearer.version:
                return self._bearer(credential)
        raise Gone("there is no credential that the server takes")

    def _bearer(self, credential: Credential) -> Bearer:
        return Bearer(credential.access_token, credential.token_type, credential.version, credential)

    def on_change(self, subject: Subject, told: Callable[[], None]) -> Callable[[], None]:
        """Have ``told`` called, on the broker's loop, when another credential is there. Returns what ends that."""
        entry = self._entry(subject)
        entry.changed.add(told)
        return lambda: entry.changed.discard(told)

    def _entry(self, subject: Subject) -> _Entry:
        with self._gate:
            entry = self._entries.get(subject)
            if entry is None:
                entry = self._entries[subject] = _Entry(subject, self._draw())
            return entry

    async def _outcome(self, work: concurrent.futures.Future[Any], until: float) -> Any:
        """Wait, in the caller's own loop. Who is cancelled or runs out of time leaves the work as it is."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def tell(_: object) -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                pass  # The caller's loop is closed: nobody waits any more.

        work.add_done_callback(tell)
        async with asyncio.timeout_at(until):
            await done
        return work.result()

    # Work, once for all

    def _begin(
        self, entry: _Entry, version: int | None, *, refused: bool = False
    ) -> concurrent.futures.Future[Credential | None]:
        """What is under way for an entry, or is begun now. ``version`` is the one that does not do any more."""
        with self._gate:
            operation = entry.operation
            if operation is not None and not operation.done():
                return operation
            operation = entry.operation = self._worker.start(
                lambda: self._work(entry, version, refused), name=f"token for {entry.subject.resource}"
            )
            return operation

    async def _work(self, entry: _Entry, version: int | None, refused: bool) -> Credential | None:
        store = await self._opened()
        if not entry.loaded:
            await self._look(store, entry)
        current = entry.current
        if current is None:
            if self._first is None or not refused:
                return None
            fresh = await self._first(entry.subject)
            self._publish(entry, fresh)
            return fresh
        if (version is None or current.version > version) and self._is_usable(entry, current):
            return current
        if self._steady() < entry.not_before and entry.failure is not None:
            raise entry.failure
        renewal = Renewal(
            store,
            current.key.digest(),
            refresh=self._refresh,
            usable=lambda each: usable(each, self._wall(), 0.0),
            publish=lambda each: self._publish(entry, each),
        )
        until = asyncio.get_running_loop().time() + LOCK_WITHIN
        try:
            fresh = await renewal.run(current.version, until)
        except Postponed as error:
            self._put_off(entry, error)
            # It may still be good for now, where it was only renewed ahead of its end.
            if not refused and self._is_usable(entry, current):
                return current
            raise
        except (Gone, Dead, ClientGone) as error:
            if isinstance(error, Gone):
                self._publish(entry, None)
            entry.failure = error
            raise
        entry.failure, entry.pause, entry.not_before = None, 0.0, float("-inf")
        return fresh

    def _put_off(self, entry: _Entry, error: Postponed) -> None:
        entry.pause = min(entry.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
        # No earlier than the server wants, and not in step with others.
        wait = max(error.retry_after or 0.0, entry.pause * (0.5 + 0.5 * self._draw()))
        entry.failure, entry.not_before = error, self._steady() + wait
        _log.warning(
            "a token for %s could not be renewed, next try in %.0f s: %s", entry.subject.resource, wait, error
        )

    def _is_usable(self, entry: _Entry, credential: Credential) -> bool:
        return usable(credential, self._wall(), self._steady() - entry.clock.steady)

    def _publish(self, entry: _Entry, credential: Credential | None) -> None:
        if (
            credential is not None
            and entry.current is not None
            and credential.version == entry.current.version
        ):
            same = credential == entry.current
        else:
            same = credential is None and entry.current is None
        entry.clock = _Clock(self._wall(), self._steady())
        entry.current = credential
        if same:
            return
        entry.draw = self._draw()
        for told in list(entry.changed):
            told()

    # The store

    async def _opened(self) -> CredentialStore:
        if self._store is None:
            self._store = await self._open_store()
            self._watching = await self._store.watch(self._on_stored)
        return self._store

    async def _look(self, store: CredentialStore, entry: _Entry) -> None:
        """Find the stored credential of a subject: of several, the one that works, then the newest."""
        found: list[Credential] = []
        try:
            for each in await store.keys():
                if each.key.endswith(INTENT) or not _fits(entry.subject, each.about):
                    continue
                credential = await load(store, each.key)
                if credential is not None:
                    found.append(credential)
        except StoreError as error:
            raise Postponed(f"the store of credentials: {error}") from error
        found.sort(key=lambda each: (each.state == "good", each.obtained_at))
        entry.loaded = True
        self._publish(entry, found[-1] if found else None)

    def _on_stored(self, key: str) -> None:
        """Somebody else wrote or removed an entry: a login or a logout of another process counts at once."""
        if key.endswith(INTENT):
            return
        for entry in list(self._entries.values()):
            current = entry.current
            if current is None or current.key.digest() == key:
                self._worker.start(lambda entry=entry: self._reload(entry), name="look at what was stored")  # type: ignore[misc]

    async def _reload(self, entry: _Entry) -> None:
        try:
            await self._look(await self._opened(), entry)
            entry.failure, entry.not_before = None, float("-inf")
        except Postponed as error:
            _log.warning("what was stored for %s cannot be read: %s", entry.subject.resource, error)


def _fits(subject: Subject, said: dict[str, str]) -> bool:
    return (
        said.get("principal") == subject.principal
        and said.get("resource") == subject.resource
        and subject.issuer in ("", said.get("issuer"))
        and subject.client_id in ("", said.get("client_id"))
    )
