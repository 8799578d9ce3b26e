"""The broker of tokens: one for a store and a process, for any number of threads, loops and hosts.

A request asks for a bearer, is sent, and on 401 tells that it was refused; nothing is held meanwhile. ``at_hand`` costs
a look at memory. What must be done once (reading the store, a refresh, getting a new credential) is a task of the
broker's own thread (``worker.py``); callers wait for its outcome in their own loop or thread, each as long as it likes,
and whoever stops waiting leaves it whole. What another process writes is adopted within a second
(``CredentialStore.watch``).

Made by whoever configures a store; used between ``join`` and ``leave``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

import msgspec

from .._outcome import Outcome
from ..errors import MisuseError
from ..store.credentials import CredentialStore, StoreError, Watching
from .asked import Ask, Bearer, Flow, Subject
from .faults import AuthFault, GrantError, Insufficient, LoginAbandoned, NeedsPerson, StepUpRefused, passes
from .kept import NOTES, covers, due_at, over_at_once, stored_for, usable
from .model import Credential
from .renewal import ClientGone, Dead, Gone, Postponed, Renewal, Unsaved
from .scopes import StepUps
from .worker import Ending, Worker

__all__ = ["Broker"]

T = TypeVar("T")
_log = logging.getLogger("moorings")

LOCK_WITHIN = 60.0
"""Seconds that a renewal waits for the lock of the store."""
MOST_LOOKS = 3
"""Times that work under way is waited for which may have begun too early to help."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
"""Seconds after something that failed for a passing reason; they double."""
NO_WAY_PAUSE = 30.0
"""Seconds after an attempt to get a new credential that failed for good; a person may have mended it by then."""
MOST_ANEW, ANEW_WITHIN = 2, 600.0
"""New credentials in so many seconds for a server that refuses new ones."""
CLIENT_FAILURES = 2
"""Times in a row that a server does not know the client, until it is believed."""
IF_IT_STAYS = (
    "it is tried again when it is used next, after a pause; if it stays so, log in anew (moor login)"
)


class _Clock(msgspec.Struct, frozen=True):
    """When a token was taken into use, by both clocks: a jump of the one is seen by the other."""

    wall: float
    steady: float


Steps = Generator[Outcome[Credential | None], Credential | None, T]
"""Work of a caller: it yields what it waits for, is sent what came of it, and returns its result."""


class _Entry:
    """What is known of one subject. Read from any thread; written on the broker's own loop alone."""

    __slots__ = (
        "anew",
        "changed",
        "client_failures",
        "clock",
        "current",
        "damaged",
        "draw",
        "failure",
        "flow",
        "loaded",
        "not_before",
        "operation",
        "pause",
        "subject",
        "unsaved",
    )

    def __init__(self, subject: Subject, draw: float) -> None:
        self.subject = subject
        self.flow: Flow | None = None
        self.unsaved: Unsaved | None = None
        """A renewal that lives in memory alone, as the store failed."""
        self.current: Credential | None = None
        self.clock = _Clock(0.0, 0.0)
        self.loaded = False
        """True once the store was looked at."""
        self.damaged = ""
        """What of the store cannot be read, where nothing else was found."""
        self.draw = draw
        self.operation: Outcome[Credential | None] | None = None
        """What is being done for it, once for all who wait."""
        self.failure: AuthFault | None = None
        self.not_before = float("-inf")
        """By the steady clock: when what failed may be tried again."""
        self.pause = 0.0
        self.anew: list[float] = []
        """By the steady clock: when a new credential was got though the one before was new."""
        self.client_failures = 0
        """How often in a row the server did not know the client."""
        self.changed: set[Callable[[], None]] = set()
        """Told, on the broker's loop, when another credential is there."""


class _Trouble(msgspec.Struct, frozen=True):
    """What went wrong with a credential, for whoever uses it next: a pause that a server asked for outlasts its users,
    and a failure counts though each attempt has a user of its own, as each start of a server has."""

    digest: str
    version: int
    """Of the credential; empty and 0 where a first one could not be got."""
    failure: Postponed
    not_before: float
    pause: float
    client_failures: int


class Broker:
    """See the module."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[CredentialStore]],
        *,
        flow: Callable[[Subject], Flow | None] = lambda subject: None,
        closing: Callable[[], Awaitable[None]] | None = None,
        forked: Callable[[], None] | None = None,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """
        Args:
            open_store: makes the store, on the broker's own loop.
            flow: how credentials of a subject are got; asked on the broker's own loop before each use.
            closing: the last work on that loop, after the store is closed.
            forked: called in a forked child, where nothing of that loop is.
        """
        self._open_store = open_store
        self._flow = flow
        self._closing = closing
        self._forked = forked
        self._wall = wall
        self._steady = steady
        self._draw = draw
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._entries: dict[Subject, _Entry] = {}
        self._troubles: dict[Subject, _Trouble] = {}
        """Of times of use that are over."""
        self._unsaved: dict[Subject, Unsaved] = {}
        """Renewals that a store did not take, of times of use that are over: the login lives here alone."""
        self._store: CredentialStore | None = None
        self._opening: asyncio.Lock | None = None
        self._watching: Watching | None = None
        self._step_ups = StepUps()
        self._worker = Worker("broker of tokens", self._close)
        _brokers.add(self)

    def _forget_after_fork(self) -> None:
        """In a forked child: thread, store and work under way are the parent's."""
        self._gate = threading.Lock()
        _inherited.append((self._store, self._watching))  # not to be finalized here
        self._store = self._watching = self._opening = None
        self._entries, self._troubles, self._unsaved = {}, {}, {}
        self._worker.forget_after_fork()
        if self._forked is not None:
            self._forked()

    # Use

    def join(self, user: object = None) -> None:
        """Be a user of it until ``leave``."""
        self._worker.join(user)

    def leave(self, user: object = None) -> Ending | None:
        """Use it no more. Returns what tells when nothing of it runs, for the last one to leave."""
        return self._worker.leave(user)

    def finish(self, within: float) -> None:
        """Block until what is under way is done, for at most so many seconds; a login that waits for a person is not
        waited for."""
        until = self._steady() + within
        for entry in list(self._entries.values()):
            operation, flow = entry.operation, entry.flow
            if operation is not None and not (flow is not None and flow.waits_for_person):
                with contextlib.suppress(Exception):  # boundary: what came of it is for those who asked
                    operation.wait(max(0.0, until - self._steady()))

    def forget(self, subject: Subject) -> None:
        """On its own loop: nobody uses this one any more. One for which something is under way stays."""
        with self._gate:
            entry = self._entries.get(subject)
            if entry is None or entry.changed or (entry.operation is not None and not entry.operation.done):
                return
            del self._entries[subject]
            self._keep(entry)

    def _keep(self, entry: _Entry) -> None:
        """What must outlast those who use it."""
        self._keep_trouble(entry)
        if entry.unsaved is not None:
            self._unsaved[entry.subject] = entry.unsaved

    def run(self, call: Callable[[], object]) -> None:
        """Have something called on the broker's loop, if anybody uses it."""

        async def work() -> None:
            call()

        if self._worker.running:
            self._worker.start(work, name="note")

    async def _close(self) -> None:
        watching, self._watching = self._watching, None
        store, self._store, self._opening = self._store, None, None
        with self._gate:
            # What is stored may be another the next time.
            for entry in self._entries.values():
                self._keep(entry)
            self._entries.clear()
        try:
            if watching is not None:
                await watching.aclose()
            if store is not None:
                await store.aclose()
        finally:
            if self._closing is not None:
                await self._closing()

    # Bearers

    def at_hand(self, subject: Subject, *, ahead: bool = True) -> Bearer | None:
        """A token that can be sent now, without any I/O; None where the store or a server must be asked.

        ``ahead``: one that is near its end is renewed meanwhile.
        """
        entry = self._entries.get(subject)
        return None if entry is None else self._ready(entry, entry.current, ahead=ahead)

    def _ready(self, entry: _Entry, current: Credential | None, *, ahead: bool = True) -> Bearer | None:
        if current is None:
            return None
        wall = self._wall()
        if not usable(current, wall, self._steady() - entry.clock.steady):
            return None
        due = due_at(current, entry.draw) if ahead else None
        if due is not None and wall >= due and self._steady() >= entry.not_before:
            # Ahead of its end: nobody waits for it.
            self._begin(entry, current.version)
        return self._bearer(current)

    def has_none(self, subject: Subject) -> bool:
        """True if the store was looked at, and there is nothing for this subject."""
        entry = self._entries.get(subject)
        return entry is not None and entry.loaded and entry.current is None

    async def bearer(self, subject: Subject, until: float) -> Bearer | None:
        """A token, read or renewed if need be, by the caller's loop time ``until``. None: there is no credential.

        Raises:
            AuthFault: there is one, and it cannot be used now (``Postponed``) or any more (``Dead``).
            TimeoutError: it takes longer; the work goes on.
        """
        return await _in_loop(self._get(subject), until)

    async def refused(
        self, subject: Subject, bearer: Bearer | None, until: float, ask: Ask | None = None
    ) -> Bearer:
        """A server did not take this token, or wants one: get another. Never the one that was refused.

        Raises:
            AuthFault: there is none; ``faults.passes`` tells whether another time may do better.
            TimeoutError: it takes longer; the work goes on.
        """
        return await _in_loop(self._replace(subject, bearer, ask or Ask()), until)

    def wait_bearer(self, subject: Subject, timeout: float) -> Bearer | None:
        """As ``bearer``, for a thread without a loop, which is blocked for at most so many seconds."""
        return _in_thread(self._get(subject), timeout)

    def wait_refused(
        self, subject: Subject, bearer: Bearer | None, timeout: float, ask: Ask | None = None
    ) -> Bearer:
        """As ``refused``, for a thread without a loop, which is blocked for at most so many seconds."""
        return _in_thread(self._replace(subject, bearer, ask or Ask()), timeout)

    def renew(self, subject: Subject) -> Outcome[Credential | None]:
        """Renew the credential there is in memory, whether it is due or not."""
        entry = self._entry(subject)
        return self._begin(entry, None if entry.current is None else entry.current.version)

    def log_in(
        self,
        subject: Subject,
        obtain: Callable[[CredentialStore, Credential | None], Awaitable[Credential]],
    ) -> Outcome[Credential]:
        """Take what ``obtain`` brings, as somebody asked for it. What there is stays in use meanwhile: requests and
        renewals do not wait for it."""
        entry = self._entry(subject)
        return self._worker.start(lambda: self._log_in(entry, obtain), name=f"login to {subject.resource}")

    async def _log_in(
        self,
        entry: _Entry,
        obtain: Callable[[CredentialStore, Credential | None], Awaitable[Credential]],
    ) -> Credential:
        store = await self._opened()
        if not entry.loaded:
            await self._look(store, entry)
        fresh = await obtain(store, entry.current)
        self._publish(entry, fresh)
        self._step_ups.forget(entry.subject.resource)
        self._all_well(entry)
        return fresh

    def _get(self, subject: Subject) -> Steps[Bearer | None]:
        entry = self._entry(subject)
        # Looked at once: what is found unusable here, and nothing newer, is what is to be replaced.
        loaded, known = entry.loaded, entry.current
        ready = self._ready(entry, known)
        if ready is not None or (loaded and known is None):
            return ready
        credential = yield self._begin(entry, None if known is None else known.version)
        return None if credential is None else self._bearer(credential)

    def _replace(self, subject: Subject, bearer: Bearer | None, ask: Ask) -> Steps[Bearer]:
        entry = self._entry(subject)
        current = entry.current
        if bearer is not None and current is not None and current.version > bearer.version:
            ready = self._ready(entry, current)
            if ready is not None and covers(ready.credential, ask.scopes):
                # Somebody else was refused with the same one, and has been served.
                return ready
        version = None if bearer is None else bearer.version
        for _ in range(MOST_LOOKS):
            # What is under way may have begun before the refusal, and bring the very token that was refused.
            credential = yield self._begin(entry, version, ask)
            if credential is None:
                break
            fresh = bearer is None or credential.version > bearer.version
            if fresh and covers(credential, ask.scopes):
                return self._bearer(credential)
        raise Gone("there is no credential that the server takes")

    def _bearer(self, credential: Credential) -> Bearer:
        return Bearer(credential.access_token, credential.token_type, credential.version, credential)

    def served(self, subject: Subject, operation: str) -> None:
        """An operation ran for which the scopes were raised: what was counted against it is forgotten."""

        self.run(lambda: self._step_ups.succeeded(subject.resource, operation))

    def on_change(self, subject: Subject, told: Callable[[], None]) -> Callable[[], None]:
        """Have ``told`` called, on the broker's loop, when another credential is there. Returns what ends that."""
        entry = self._entry(subject)
        entry.changed.add(told)
        return lambda: entry.changed.discard(told)

    def waits_for_person(self, subject: Subject) -> bool:
        """Whether a person is at a login for it."""
        entry = self._entries.get(subject)
        flow = entry.flow if entry is not None else None
        return flow is not None and flow.waits_for_person

    def known(self, subject: Subject) -> Credential | None:
        """What memory holds of it, usable or not."""
        entry = self._entries.get(subject)
        return entry.current if entry is not None else None

    def _entry(self, subject: Subject) -> _Entry:
        with self._gate:
            return self._at(subject)

    def _at(self, subject: Subject) -> _Entry:
        entry = self._entries.get(subject)
        if entry is None:
            entry = self._entries[subject] = _Entry(subject, self._draw())
        return entry

    # Work, once for all

    def _begin(
        self, entry: _Entry, version: int | None, ask: Ask | None = None
    ) -> Outcome[Credential | None]:
        """What is under way for an entry, or is begun now. ``version`` is the one that does not do any more."""
        with self._gate:
            entry = self._at(entry.subject)  # it may have been forgotten a moment ago
            operation = entry.operation
            if operation is not None and not operation.done:
                return operation
            operation = entry.operation = self._worker.start(
                lambda: self._work(entry, version, ask), name=f"token for {entry.subject.resource}"
            )
            return operation

    async def _work(self, entry: _Entry, version: int | None, ask: Ask | None) -> Credential | None:
        if not entry.loaded and self._steady() < entry.not_before and entry.failure is not None:
            raise entry.failure
        try:
            store = await self._opened()
            if not entry.loaded:
                await self._look(store, entry)
                self._recall_trouble(entry)
                self._recall_unsaved(entry)
        except Postponed as error:
            raise self._put_off(entry, error) from error.__cause__
        entry.flow = self._flow(entry.subject)
        current = entry.current
        if current is None:
            if ask is None:
                return None
            nobody = "nobody has logged in"
            if entry.damaged:
                nobody += f", as far as the store can be read: {entry.damaged}"
            return await self._obtain(store, entry, ask, Gone(nobody))
        newer = version is None or current.version > version
        if newer and self._is_usable(entry, current) and covers(current, ask.scopes if ask else ()):
            return current
        if self._steady() < entry.not_before and entry.failure is not None:
            raise entry.failure
        if ask is not None and ask.insufficient:
            why = f"the server wants more scopes for {ask.operation}"
            if ask.scopes:
                why += f": {' '.join(ask.scopes)[:300]}"
            return await self._obtain(store, entry, ask, Insufficient(why))
        if ask is not None and ask.anew:
            return await self._obtain(store, entry, ask, Gone("the server does not take the token it gave"))
        try:
            return await self._renew(store, entry, current, refused=ask is not None)
        except (Gone, Dead, ClientGone) as error:
            flow = entry.flow
            if ask is None and not (flow is not None and flow.able):
                entry.failure = error
                raise
            return await self._obtain(store, entry, ask or Ask(), error)

    async def _renew(
        self, store: CredentialStore, entry: _Entry, current: Credential, *, refused: bool
    ) -> Credential:
        flow = entry.flow
        renewal = Renewal(
            store,
            current.key.digest(),
            refresh=flow.refresh if flow is not None else _no_way,
            renewable=flow.renewable if flow is not None else lambda each: False,
            usable=lambda each: usable(each, self._wall(), 0.0),
            publish=lambda each: self._publish(entry, each),
            unsaved=entry.unsaved,
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
        except ClientGone as error:
            # Once may be a mishap of the server's; twice is its word.
            entry.client_failures += 1
            if entry.client_failures < CLIENT_FAILURES:
                # A command lives for one try alone: it is told what helps if the word is true.
                again = Postponed(error.reason, fix=IF_IT_STAYS)
                self._put_off(entry, again)
                raise again from error
            if flow is not None:
                try:
                    await flow.client_is_gone(store, current)
                except StoreError as problem:
                    _log.warning("the store of credentials: %s", problem)
            raise
        except Gone:
            # It was logged out; or a login with another client took its place a moment ago.
            found: Credential | None = None
            with contextlib.suppress(StoreError):
                found, _ = await stored_for(store, entry.subject, self._wall())
            self._publish(entry, found)
            if found is None or not self._is_usable(entry, found):
                raise
            return found
        finally:
            entry.unsaved = renewal.unsaved
        if over_at_once(fresh):
            raise self._put_off(
                entry, Postponed("the authorization server gives tokens that are over when they arrive")
            )
        self._all_well(entry)
        return fresh

    async def _obtain(self, store: CredentialStore, entry: _Entry, ask: Ask, why: AuthFault) -> Credential:
        """A new credential, in place of one that there is not, or that does not do."""
        flow, current = entry.flow, entry.current
        if self._steady() < entry.not_before and entry.failure is not None:
            raise entry.failure
        if flow is None or not flow.able:
            entry.failure = NeedsPerson(why)
            raise entry.failure
        if ask.anew:
            # A server that takes nothing must not send a person to a browser with each call.
            now = self._steady()
            entry.anew = [each for each in entry.anew if now - each < ANEW_WITHIN]
            if len(entry.anew) >= MOST_ANEW:
                none = "the server takes none of the tokens that it sends us for"
                if flow.alone:
                    # Nobody could do better, and it may take them again.
                    raise self._put_off(entry, Postponed(none))
                raise NeedsPerson(Gone(none))
            entry.anew.append(now)
        try:
            if ask.insufficient and current is not None:
                ask = msgspec.structs.replace(ask, scopes=flow.scopes_for(current, ask.scopes))
                more = not set(ask.scopes) <= set(current.requested_scopes)
                self._step_ups.begin(entry.subject.resource, ask.operation, more=more)
            fresh = await flow.obtain(store, ask, current)
        except (StepUpRefused, LoginAbandoned):
            # The one says nothing of the credential, which serves other operations; of the other nobody waits.
            raise
        except StoreError as error:
            raise self._put_off(entry, Postponed(f"the store of credentials: {error}")) from error
        except AuthFault as error:
            if passes(error):
                self._put_off(entry, error)
            else:
                self._put_off(entry, error, wait=NO_WAY_PAUSE)
            raise
        self._publish(entry, fresh)
        if not ask.insufficient:
            self._step_ups.forget(entry.subject.resource)
        if over_at_once(fresh):
            over = GrantError("unusable", "its tokens are over when they arrive")
            raise self._put_off(entry, over, wait=NO_WAY_PAUSE)
        self._all_well(entry)
        return fresh

    def _all_well(self, entry: _Entry) -> None:
        entry.failure, entry.pause, entry.not_before, entry.client_failures = None, 0.0, float("-inf"), 0

    def _put_off(self, entry: _Entry, error: AuthFault, wait: float | None = None) -> AuthFault:
        if wait is None:
            entry.pause = min(entry.pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
            # No earlier than the server wants, and not in step with others.
            asked = getattr(error, "retry_after", None) or 0.0
            wait = max(asked, entry.pause * (0.5 + 0.5 * self._draw()))
        entry.failure, entry.not_before = error, self._steady() + wait
        _log.warning("no token for %s, next try in %.0f s: %s", entry.subject.resource, wait, error)
        return error

    def _keep_trouble(self, entry: _Entry) -> None:
        failure = entry.failure
        if not entry.loaded or failure is None or not passes(failure):
            return
        # Told again by a fault of its own: the one that was raised holds on to the work that failed.
        self._troubles[entry.subject] = _Trouble(
            *_mark(entry.current),
            Postponed(failure.reason, fix=failure.fix),
            entry.not_before,
            entry.pause,
            entry.client_failures,
        )

    def _recall_trouble(self, entry: _Entry) -> None:
        trouble = self._troubles.pop(entry.subject, None)
        if trouble is not None and (trouble.digest, trouble.version) == _mark(entry.current):
            entry.failure, entry.not_before, entry.pause = trouble.failure, trouble.not_before, trouble.pause
            entry.client_failures = trouble.client_failures

    def _recall_unsaved(self, entry: _Entry) -> None:
        unsaved = self._unsaved.pop(entry.subject, None)
        if unsaved is not None and unsaved.before == entry.current:
            entry.unsaved = unsaved
            self._publish(entry, unsaved.fresh)

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
        if self._store is not None:
            return self._store
        if self._opening is None:
            self._opening = asyncio.Lock()
        # Several entries may want it at once; it is opened once. The bound is the store's own.
        async with self._opening:
            if self._store is None:
                try:
                    store = await self._open_store()
                    self._watching = await store.watch(self._on_stored)
                except StoreError as error:
                    raise Postponed(
                        f"the store of credentials: {error}", fix=getattr(error, "fix", None)
                    ) from error
                self._store = store
            return self._store

    async def _look(self, store: CredentialStore, entry: _Entry) -> None:
        """Find the stored credential of a subject: of several, the one that works, then the newest."""
        try:
            newest, damaged = await stored_for(store, entry.subject, self._wall())
        except StoreError as error:
            raise Postponed(f"the store of credentials: {error}") from error
        entry.loaded = True
        entry.damaged = "; ".join(damaged[:3])
        current = entry.current
        if (
            newest is None
            or current is None
            or newest.key != current.key
            or newest.version >= current.version
        ):
            # An older one was read before a renewal of ours wrote, or that could not write.
            self._publish(entry, newest)

    def _on_stored(self, key: str) -> None:
        """Somebody else wrote or removed an entry: a login or a logout of another process counts at once."""
        if key.endswith(NOTES):
            return
        for entry in list(self._entries.values()):
            current = entry.current
            # One that does not work may be replaced by that of another client, under another key.
            if current is None or current.state != "good" or current.key.digest() == key:
                with contextlib.suppress(MisuseError):  # it is being closed
                    self._worker.start(functools.partial(self._reload, entry), name="look at what was stored")

    async def _reload(self, entry: _Entry) -> None:
        try:
            await self._look(await self._opened(), entry)
            entry.failure, entry.not_before = None, float("-inf")
        except Postponed as error:
            _log.warning("what was stored for %s cannot be read: %s", entry.subject.resource, error)


def _mark(credential: Credential | None) -> tuple[str, int]:
    return ("", 0) if credential is None else (credential.key.digest(), credential.version)


async def _no_way(credential: Credential) -> Credential:
    raise Dead("nothing here can renew it", credential)


async def _in_loop(steps: Steps[T], until: float) -> T:
    try:
        waiting = next(steps)
        while True:
            waiting = steps.send(await waiting.outcome(until))
    except StopIteration as end:
        result: T = end.value
        return result


def _in_thread(steps: Steps[T], timeout: float) -> T:
    until = time.monotonic() + timeout
    try:
        waiting = next(steps)
        while True:
            waiting = steps.send(waiting.wait(max(0.0, until - time.monotonic())))
    except StopIteration as end:
        result: T = end.value
        return result


_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()
_inherited: list[object] = []


def _after_fork() -> None:
    for broker in list(_brokers):
        broker._forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
