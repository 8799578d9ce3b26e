"""A refresh as a transaction, so that a login survives it in any number of threads, processes and hosts.

::

    lock → read → newer than ours? adopt it
                → dead? say so
                → write the intent → POST → merge → write (durable) → publish → drop the intent → unlock

Killed before POST, nothing happened. Killed after POST and before the write, the server may have rotated the refresh
token and its answer is lost: the next one finds the intent, and where the server then refuses the old token the state
says ``lost``, and why. Killed after the write, the next one adopts. One that holds the lock too long is fenced off: its
write fails, and it adopts what its successor wrote. One that was removed meanwhile (a logout) stays removed. Sources:
RFC 6749 §6, RFC 9700 §4.14 (rotation).

Run by the broker in a task of its own; no caller's code runs while the lock is held.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from ..store.credentials import CorruptEntry, CredentialStore, Lease, LeaseLost, LockTimeout, StoreError
from . import clients
from .faults import AuthFault, GrantError, NeedsClient
from .http import AuthNetError
from .model import BadRecord, Credential, decode_credential, encode_credential

__all__ = ["ClientGone", "Damaged", "Dead", "Gone", "Postponed", "Renewal", "about", "load"]

_log = logging.getLogger("moorings")

INTENT = "-intent"
"""Ending of the key under which it is written that a refresh is about to be sent."""


TURNS = 3
"""Times that the lock is taken, if it is lost before anything was sent."""


class Gone(AuthFault):
    """Nothing is stored any more: somebody logged out."""


class Dead(AuthFault):
    """The credential will not work again; only a new login helps."""

    def __init__(self, reason: str, credential: Credential) -> None:
        super().__init__(reason)
        self.credential = credential


class ClientGone(AuthFault):
    """The server does not know the client any more (``invalid_client``), or it cannot prove itself."""

    def __init__(self, reason: str, credential: Credential) -> None:
        super().__init__(reason)
        self.ours = credential.registration.source == "dynamic"
        """We registered it: the next login registers another one."""


class Postponed(AuthFault):
    """Not now: everything is kept, and it is tried again later."""

    transient = True

    def __init__(self, reason: str, *, retry_after: float | None = None, fix: str | None = None) -> None:
        super().__init__(reason, fix=fix)
        self.retry_after = retry_after
        """Seconds that the server asks to wait."""


class Damaged(Postponed):
    """One entry of the store cannot be read as what it is; the others can."""


def about(credential: Credential) -> dict[str, str]:
    """What a store shows of an entry, and by which it is found again."""
    key = credential.key
    return {
        "principal": key.principal,
        "issuer": key.issuer,
        "client_id": key.client_id,
        "resource": key.resource,
    }


class Unsaved(msgspec.Struct, frozen=True):
    """A renewal that could not be stored."""

    before: Credential
    """What is stored, if nobody else wrote meanwhile."""
    fresh: Credential


async def load(store: CredentialStore, digest: str) -> Credential | None:
    """The stored credential; None if there is none. Raises Postponed where that is not known, Damaged for itself."""
    try:
        data = await store.load(digest)
        if data is None:
            return None
        found = decode_credential(data)
        client = clients.normalised(found.registration, found.metadata)
        return msgspec.structs.replace(found, registration=client)
    except CorruptEntry as error:
        raise Damaged(error.reason) from error
    except StoreError as error:
        raise Postponed(f"the credential cannot be read: {error}") from error
    except BadRecord as error:
        raise Damaged(f"entry {digest[:12]}… of {store.name} is no credential: {error}") from error


class Renewal:
    """One transaction on one entry. Made for each."""

    def __init__(
        self,
        store: CredentialStore,
        digest: str,
        *,
        refresh: Callable[[Credential], Awaitable[Credential]],
        renewable: Callable[[Credential], bool],
        usable: Callable[[Credential], bool],
        publish: Callable[[Credential], None],
        unsaved: Unsaved | None = None,
    ) -> None:
        """
        Args:
            refresh: one exchange with the token endpoint; returns the merged credential. Raises ``GrantError``,
                ``AuthNetError``, ``NeedsClient``.
            renewable: whether ``refresh`` can do anything for a credential.
            usable: whether an access token is good for a request that is sent now.
            publish: told of what is current, as soon as it is; returns at once.
            unsaved: what an earlier renewal here could not store.
        """
        self._store = store
        self._digest = digest
        self._refresh = refresh
        self._renewable = renewable
        self._usable = usable
        self._publish = publish
        self.unsaved = unsaved
        """What could not be stored, to be given to the next renewal; None if there is no such thing."""

    async def run(self, known: int | None, until: float) -> Credential:
        """Get a credential that is newer than version ``known``, by the loop's time ``until`` at the lock.

        Raises:
            Gone, Dead, ClientGone, Postponed: there is none.
        """
        try:
            for _ in range(TURNS):
                with contextlib.suppress(LeaseLost):
                    async with self._store.lock(self._digest, until) as lease:
                        return await self._locked(known, lease)
                # Somebody else took over while we were away: what they wrote counts.
            raise Postponed("the lock was lost again and again, as this process is kept from its work")
        except LockTimeout as error:
            raise Postponed(f"somebody else has been refreshing it for {error.waited:.1f} s") from error
        except StoreError as error:
            raise Postponed(f"the store of credentials: {error}") from error

    async def _locked(self, known: int | None, lease: Lease) -> Credential:
        stored = await load(self._store, self._digest)
        if stored is None:
            raise Gone("nothing is stored any more")
        if self.unsaved is not None:
            if stored == self.unsaved.before:
                # Its refresh token is used up, and its successor lives here alone.
                stored = self.unsaved.fresh
                await self._store.save(self._digest, encode_credential(stored), lease, about=about(stored))
            self.unsaved = None
        if stored.state != "good":
            raise Dead(stored.reason or f"it is {stored.state}", stored)
        if (known is None or stored.version > known) and self._usable(stored):
            self._publish(stored)
            return stored
        if not self._renewable(stored):
            raise Dead("its access token is over, and there is no refresh token", stored)
        intent = self._digest + INTENT
        interrupted = await self._store.load(intent) == _mark(stored)
        await self._store.save(intent, _mark(stored), lease)
        if not lease.held:
            # What is sent now may be used up by a successor, and its second use would end the login.
            raise LeaseLost(lease.name, store=self._store.name, why="its time was over")
        try:
            fresh = await self._refresh(stored)
        except GrantError as error:
            return await self._failed(stored, error, interrupted, lease)
        except NeedsClient as error:
            await self._drop(intent, lease)
            raise ClientGone(error.reason, stored) from error
        except AuthNetError as error:
            # Whether it was rotated is not known where it was sent: the intent stays and says so.
            if not error.sent:
                await self._drop(intent, lease)
            raise Postponed(error.reason, retry_after=error.retry_after) from error
        except AuthFault:
            # Of ours, such as a package that is missing: nothing was sent.
            await self._drop(intent, lease)
            raise
        return await self._keep(stored, fresh, intent, lease)

    async def _failed(
        self, stored: Credential, error: GrantError, interrupted: bool, lease: Lease
    ) -> Credential:
        intent = self._digest + INTENT
        if error.code == "invalid_client":
            await self._drop(intent, lease)
            raise ClientGone(error.reason, stored) from error
        if error.code != "invalid_grant":
            if not (error.transient and error.sent and error.status is None):
                await self._drop(intent, lease)
            raise Postponed(error.reason, retry_after=error.retry_after) from error
        # Before anything is given up: has somebody else been faster, though the lock is ours (a fenced store)?
        again = await load(self._store, self._digest)
        if again is None:
            raise Gone("it was removed while it was refreshed")
        if again.version > stored.version and again.state == "good":
            self._publish(again)
            return again
        if interrupted:
            reason = (
                "the server rotated it, and its answer was lost with the process or the connection that asked"
            )
            dead = msgspec.structs.replace(again, state="lost", reason=reason, version=again.version + 1)
        else:
            dead = msgspec.structs.replace(
                again, state="refused", reason=error.reason, version=again.version + 1
            )
        await self._store.save(self._digest, encode_credential(dead), lease, about=about(dead))
        await self._drop(intent, lease)
        self._publish(dead)
        raise Dead(dead.reason, dead) from error

    async def _keep(self, stored: Credential, fresh: Credential, intent: str, lease: Lease) -> Credential:
        """Make what came durable, and only then say so. A store that fails now must not cost the login."""
        if await self._was_removed():
            # By hand, as the lock is ours: who logged out must not find the login again.
            await self._drop(intent, lease)
            raise Gone("it was removed while it was refreshed")
        try:
            await self._store.save(self._digest, encode_credential(fresh), lease, about=about(fresh))
        except LeaseLost as error:
            # Somebody else took over while we were away. What they have counts, if it is newer than what we began with.
            theirs = await load(self._store, self._digest)
            if theirs is None:
                raise Gone("it was removed while it was refreshed") from error
            if theirs.version > stored.version and theirs.state == "good":
                _log.warning(
                    "a refresh at %s took too long; that of another is used: %s", fresh.key.issuer, error
                )
                self._publish(theirs)
                return theirs
            self._unsaved(stored, fresh, error)
            return fresh
        except StoreError as error:
            self._unsaved(stored, fresh, error)
            return fresh
        await self._drop(intent, lease)
        self._publish(fresh)
        return fresh

    async def _was_removed(self) -> bool:
        try:
            return await self._store.load(self._digest) is None
        except StoreError:
            return False  # Not known, or damaged: what came is kept.

    def _unsaved(self, stored: Credential, fresh: Credential, error: StoreError) -> None:
        self.unsaved = Unsaved(stored, fresh)
        _log.error(
            "the new tokens of %s at %s could not be stored and live in this process alone, "
            "the stored ones may be void: %s",
            fresh.key.resource,
            fresh.key.issuer,
            error,
        )
        self._publish(fresh)

    async def _drop(self, intent: str, lease: Lease) -> None:
        try:
            await self._store.remove(intent, lease)
        except StoreError as error:
            # It names a version that will be over: it stays without harm.
            _log.debug("the mark of a refresh stays: %s", error)


def _mark(credential: Credential) -> bytes:
    return b"%d" % credential.version
