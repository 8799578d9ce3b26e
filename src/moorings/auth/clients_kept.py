"""The registrations that a store keeps, and the end of one: at its server where that is offered, and here.

A registration is kept apart from the logins that were got with it, and several of them may use one: other servers of
the same authorization server, other principals. So it ends with the last of them, and is looked for by what the store
says of its entries (``about``), under the lock of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from ..store.credentials import CredentialStore, Lease, StoredKey, StoreError
from .at_store import LOCK_WITHIN
from .endpoint import Endpoint
from .identity import OLD
from .model import LOGIN, BadRecord, Credential, Registration, decode_registration
from .registration import Deleted, unregister
from .renewal import INTENT
from .turn import STALE

__all__ = ["end_client", "forget_client", "kept_clients", "used_by_others"]


def kept_clients(entries: Sequence[StoredKey], issuer: str, client_id: str) -> Iterator[str]:
    """The keys under which a client is kept, those of clients that were put aside among them."""
    for each in entries:
        said = each.about
        if (
            said.get("kind") == "registration"
            and said.get("issuer") == issuer
            and said.get("client_id") == client_id
        ):
            yield each.key


def used_by_others(entries: Sequence[StoredKey], credential: Credential) -> bool:
    """Whether another login, of whomever, was got with the client of this one."""
    key = credential.key
    mine = key.digest()
    return any(
        each.about.get("issuer") == key.issuer
        and each.about.get("client_id") == key.client_id
        and each.about.get("resource") is not None
        and each.key != mine
        and not each.key.endswith(INTENT)
        for each in entries
    )


def login_under_way(entries: Sequence[StoredKey], now: float) -> bool:
    """Whether somebody is at a login, which may be with any client. ``now``: seconds of the wall clock."""
    return any(
        each.key.endswith(LOGIN) and (each.written is None or now - each.written < STALE) for each in entries
    )


async def end_client(
    store: CredentialStore, http: Endpoint, credential: Credential, deadline: float
) -> Deleted | None:
    """End the registration of a login that is removed already; None if another login uses it, or may be about to.

    It is forgotten here unless the server offers no way to delete it: then it serves the next login. ``deadline`` is a
    point in loop time, for what is said to the server.

    Raises:
        StoreError: the store did not take it.
    """
    key = credential.key
    async with _locked(store, key.issuer, key.client_id) as leases:
        # Looked at under the lock, and after the own login is gone: of two that end at once, the last one sees none.
        entries = await store.keys()
        if used_by_others(entries, credential) or login_under_way(entries, time.time()):
            return None
        registration = credential.registration
        if not registration.registration_access_token:
            kept = [await _read(store, each) for each in leases]
            registration = next((each for each in kept if each is not None), registration)
        how = await unregister(http, registration, credential.metadata, deadline)
        if how != "not_offered":
            for each, lease in leases.items():
                await store.remove(each, lease)
        return how


async def forget_client(store: CredentialStore, credential: Credential) -> None:
    """Keep the registration of a login that is removed no longer, unless another login uses it. Raises StoreError."""
    key = credential.key
    async with _locked(store, key.issuer, key.client_id) as leases:
        if not used_by_others(await store.keys(), credential):
            for each, lease in leases.items():
                await store.remove(each, lease)


@contextlib.asynccontextmanager
async def _locked(store: CredentialStore, issuer: str, client_id: str) -> AsyncIterator[dict[str, Lease]]:
    """The entries of a client, each with the lease of its lock, as those who register hold it."""
    keys = sorted(kept_clients(await store.keys(), issuer, client_id))
    until = asyncio.get_running_loop().time() + LOCK_WITHIN
    async with contextlib.AsyncExitStack() as stack:
        held: dict[str, Lease] = {}
        leases: dict[str, Lease] = {}
        for each in keys:
            name = each.removesuffix(OLD)
            if name not in held:
                # In one order for all, so that two who end clients never wait for each other.
                held[name] = await stack.enter_async_context(store.lock(name, until))
            found = await _read(store, each)
            if found is None or found.client_id == client_id:  # else somebody registered anew meanwhile
                leases[each] = held[name]
        yield leases


async def _read(store: CredentialStore, key: str) -> Registration | None:
    try:
        data = await store.load(key)
        return None if data is None else decode_registration(data)
    except (StoreError, BadRecord):
        return None
