"""Who we are at an authorization server: the client, its key, and what a store keeps of a registration.

Made by a flow for its account (``flows.py``), used on the broker's loop alone. A registration is one for all processes:
it is looked for and made under the store's lock for it. It is kept for an issuer and a **place**: where the browser
comes back to. That is the redirect URI letter by letter where it is set by hand; else a slot of this machine, whose
registration remembers the port and the path that were free when it was made (``landing.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .._secret import Secret
from .._tasks import run_in_thread
from ..store.credentials import CredentialStore, Lease, StoreError
from . import jose
from .discovery import Discovered
from .faults import AuthFault, GrantError, LoginDenied, LoginFault, NeedsClient, NotTaken, WrongIssuer
from .http import AuthHttp
from .model import (
    BadRecord,
    Credential,
    Registration,
    ServerMetadata,
    decode_registration,
    encode_credential,
    encode_registration,
    registration_key,
)
from .registration import is_gone, preregistered, register
from .renewal import about, load

if TYPE_CHECKING:
    from .flows import Account

__all__ = ["LOCK_WITHIN", "SLOTS", "Identity", "fixed_place", "slot", "stored_registration"]

_log = logging.getLogger("moorings")

LOCK_WITHIN = 60.0
"""Seconds that the store's lock is waited for."""
OLD = "-old"
"""Ending of the key under which a registration is kept that the server forgot."""
MOST_IN_VAIN = 2
"""Logins without an answer, after which a dynamic client is held to be forgotten."""
SLOTS = 8
"""Registrations at one issuer: so many processes can be at a login with it at once."""


def slot(host: str, number: int) -> str:
    """The place of a registration whose port was free to choose."""
    return f"listener {host} {number}"


def fixed_place(host: str, port: int) -> str:
    """The place of a registration whose port is set, and whose path is not."""
    return f"listener {host} port {port}"


class Identity:
    """See the module."""

    def __init__(self, account: Account, http: AuthHttp, wall: Callable[[], float]) -> None:
        self._account = account
        self._settings = account.settings
        self._http = http
        self._wall = wall

    def places(self) -> Iterator[str]:
        """All places at which a registration of this account may be kept."""
        settings = self._settings
        yield self._account.redirect_uri
        if settings.redirect_port:
            yield fixed_place(settings.redirect_host, settings.redirect_port)
        for number in range(SLOTS):
            yield slot(settings.redirect_host, number)

    async def restored(self, credential: Credential) -> Registration:
        """The client of a credential, with what the settings say of it now: their secrets are not stored.

        Raises:
            NeedsClient: it is configured no more, or its key cannot be read.
        """
        registration = credential.registration
        if registration.source != "configured":
            if registration.auth_method != "private_key_jwt":
                return registration
            return msgspec.structs.replace(registration, signing_key=await self._signing_key())
        if self._settings.client_id is None and registration.auth_method == "none":
            return registration  # It was named for that login alone, and has nothing to prove itself by.
        if self._settings.client_id != registration.client_id:
            raise NeedsClient(
                f"the client {registration.client_id!r} is configured no more", fix="log in with the new one"
            )
        return await self._configured(credential.metadata, next(iter(registration.redirect_uris), ""))

    async def _configured(self, metadata: ServerMetadata, redirect_uri: str) -> Registration:
        return preregistered(
            self._settings,
            metadata,
            redirect_uri,
            signing_key=await self._signing_key(),
            now=self._wall(),
        )

    async def registration(
        self,
        store: CredentialStore,
        found: Discovered,
        place: str,
        redirect_uri: str,
        scopes: tuple[str, ...],
        deadline: float,
        known: Credential | None,
    ) -> Registration | None:
        """The client for a login that comes back to ``redirect_uri``; registered if there is none.

        None: somebody else registered for this place meanwhile, with another redirect URI.

        Raises:
            NeedsClient: there is no way, or the configured one cannot work.
            GrantError: the registration endpoint gave none.
        """
        if self._settings.client_id:
            if known is not None and not self._settings.issuer and known.key.issuer != found.issuer:
                # A server that is taken over could name a server of its own, to be sent the secret of the client.
                raise NeedsClient(
                    f"the configured client was used at {known.key.issuer}, and the server now names {found.issuer}",
                    fix="set auth.issuer, if the change is meant",
                )
            return await self._configured(found.metadata, redirect_uri)
        key = registration_key(found.issuer, place)
        signing_key = await self._signing_key()
        # One registration for all processes.
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await stored_registration(store, key)
            if stored is not None and place != redirect_uri and redirect_uri not in stored.redirect_uris:
                return None
            if stored is not None and place and await is_gone(self._http, stored, found.metadata, deadline):
                # A person would be shown an error at its pages, and nobody come back from them.
                await _keep(store, key, stored, lease, ending=OLD)
                stored = None
            if stored is not None and signing_key is not None and stored.auth_method == "private_key_jwt":
                stored = msgspec.structs.replace(stored, signing_key=signing_key)
            made = await register(
                self._http,
                found.metadata,
                self._settings,
                redirect_uri,
                deadline,
                stored=stored,
                signing_key=signing_key,
                scopes=scopes,
                also=() if self._settings.scope_ceiling else _all_scopes(found),
                now=self._wall(),
            )
            if made != stored:
                try:
                    await _keep(store, key, msgspec.structs.replace(made, signing_key=None), lease)
                except StoreError as error:
                    _log.warning("the registration at %s could not be stored: %s", found.issuer, error)
        return made

    # What a server forgot

    async def suspect(
        self,
        store: CredentialStore,
        place: str,
        registration: Registration,
        error: GrantError | LoginFault,
        *,
        abandoned: bool,
    ) -> None:
        """A server may have forgotten a client: then the next attempt registers anew. If it says so at its pages alone,
        nobody comes back from them: logins without an answer, one after another, are all that is seen of that."""
        if registration.source != "dynamic":
            return
        if isinstance(error, GrantError):
            if error.code == "invalid_client":
                await self._forget(store, registration.issuer, place, registration.client_id)
        elif not (isinstance(error, LoginDenied | WrongIssuer | NotTaken) or abandoned):
            if registration.in_vain + 1 >= MOST_IN_VAIN:
                await self._forget(store, registration.issuer, place, registration.client_id)
            else:
                await self._set_in_vain(store, place, registration, registration.in_vain + 1)

    async def served(self, store: CredentialStore, place: str, registration: Registration) -> None:
        """A login came to its end with it."""
        if registration.in_vain:
            await self._set_in_vain(store, place, registration, 0)

    async def is_gone(self, store: CredentialStore, credential: Credential) -> None:
        """The server does not know the client any more: keep nothing that is bound to it."""
        for place in self.places():
            await self._forget(store, credential.key.issuer, place, credential.key.client_id)
        digest = credential.key.digest()
        async with store.lock(digest, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await load(store, digest)
            if stored is not None and stored.version == credential.version:
                dead = msgspec.structs.replace(
                    stored,
                    state="refused",
                    reason="the server does not know the client any more",
                    version=stored.version + 1,
                )
                await store.save(digest, encode_credential(dead), lease, about=about(dead))

    async def _set_in_vain(
        self, store: CredentialStore, place: str, registration: Registration, times: int
    ) -> None:
        key = registration_key(registration.issuer, place)
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await stored_registration(store, key)
            if stored is not None and stored.client_id == registration.client_id:
                await _keep(store, key, msgspec.structs.replace(stored, in_vain=times), lease)

    async def _forget(self, store: CredentialStore, issuer: str, place: str, client_id: str) -> None:
        """Kept aside, as the server may have erred; not used any more."""
        key = registration_key(issuer, place)
        if await stored_registration(store, key) is None:
            return
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await stored_registration(store, key)
            if stored is None or stored.client_id != client_id:
                return
            await _keep(store, key, stored, lease, ending=OLD)
            await store.remove(key, lease)

    # Settings that are read when they are needed

    async def _signing_key(self) -> Secret | None:
        settings = self._settings
        key: Secret | None = settings.private_key
        if key is None and settings.private_key_file is not None:
            key = await self.text("private_key", None, settings.private_key_file, ())
        if key is None or settings.private_key_alg is None:
            return key
        return jose.signing_by(key, settings.private_key_alg)

    async def text(
        self,
        what: str,
        given: Secret | Callable[[], str | Awaitable[str]] | None,
        file: str | None,
        command: tuple[str, ...],
    ) -> Secret:
        """A secret from where the settings say that it is, read anew each time: such tokens are replaced often.

        Raises:
            NeedsClient: it is not there, or cannot be read.
        """
        said = f"auth.{what}"
        if given is None:
            said += f"_file ({file})" if file is not None else "_command" if command else ""
        fix = "let this program read it: it is read anew with each try"
        try:
            async with asyncio.timeout(self._account.within):
                if isinstance(given, Secret):
                    return given
                if given is not None:
                    made = await run_in_thread(given, name=f"moorings-{what}")
                    text = await made if inspect.isawaitable(made) else made
                elif file is not None:
                    text = await run_in_thread(Path(file).read_text, name=f"moorings-{what}")
                elif command and self._account.run is not None:
                    text = (await self._account.run(command)).decode("utf-8", "replace")
                else:
                    raise NeedsClient(f"auth.{what} is not set", fix=f"set auth.{what}_file")
        except AuthFault:
            raise
        except (
            Exception
        ) as error:  # boundary: the user's function, file or command; its text may be the secret
            raise NeedsClient(f"{said} could not be read ({type(error).__name__})", fix=fix) from None
        if not text.strip():
            raise NeedsClient(f"{said} is empty", fix=fix)
        return Secret(text.strip())


async def stored_registration(store: CredentialStore, key: str) -> Registration | None:
    """What is kept under a ``registration_key``; None if there is none that can be read."""
    try:
        data = await store.load(key)
        return None if data is None else decode_registration(data)
    except (StoreError, BadRecord) as error:
        # Without it a new one is made; the store keeps the damaged one aside.
        _log.warning("a stored registration cannot be read: %s", error)
        return None


async def _keep(
    store: CredentialStore, key: str, registration: Registration, lease: Lease, *, ending: str = ""
) -> None:
    said = {"issuer": registration.issuer, "client_id": registration.client_id, "kind": "registration"}
    await store.save(key + ending, encode_registration(registration), lease, about=said)


def _all_scopes(found: Discovered) -> tuple[str, ...]:
    """What the resource knows of: a client that was registered for all of it needs no second one for a step-up."""
    return (found.resource_metadata.scopes_supported or ()) if found.resource_metadata is not None else ()
