"""How a credential of one account is got and renewed: discovery, registration and grant in one piece.

Made by ``service.py`` for an account; used by the broker, on the broker's loop alone, where each step is part of a task
that is finished whoever still waits. What must be one among all processes (a registration, a token without a person)
is done under the store's lock for it, and looked for there first. No lock is held while a person is at a browser.
Sources: client-rules §6, and the modules of each step.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from .._secret import Secret
from .._tasks import run_in_thread
from ..net.settings import NetSettings
from ..store.credentials import CredentialStore, Lease, StoreError
from . import grants, jose
from .authorization import AuthorizationRequest, push
from .broker import Ask, Subject, usable
from .challenge import parse_challenges
from .discovery import Discovered, canonical, discover, issuer_metadata
from .dpop import Nonces, Prover, new_key
from .faults import (
    AuthFault,
    GrantError,
    LoginAbandoned,
    LoginDenied,
    LoginFault,
    NeedsClient,
    StrayCallback,
    WrongIssuer,
)
from .grants import DeviceCode, TokenSet
from .http import AuthHttp
from .model import (
    LOCAL,
    BadRecord,
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    decode_registration,
    encode_credential,
    encode_registration,
    registration_key,
)
from .registration import preregistered, register
from .renewal import about, load
from .scopes import step_up

if TYPE_CHECKING:
    from ..config.auth_spec import AuthSettings

__all__ = ["Account", "AccountFlow", "Browser", "Kind"]

_log = logging.getLogger("moorings")

T = TypeVar("T")
Kind = Literal["authorization_code", "device", "client_credentials", "enterprise", "workload"]
ALONE: frozenset[str] = frozenset({"client_credentials", "enterprise", "workload"})
"""Flows without a person."""
LOCK_WITHIN = 60.0
"""Seconds that the store's lock is waited for."""
OLD = "-old"
"""Ending of the key under which a registration is kept that the server forgot."""
MOST_IN_VAIN = 2
"""Logins without an answer, after which a dynamic client is held to be forgotten."""
CALLBACK_PORT = 33418
"""Of the redirect URI, where no other is set."""

Browser = Callable[[str], Awaitable[str]]
"""Shows a person the URL of a login, and brings back the URL that they are sent to at its end, or its query."""


class Account(msgspec.Struct, frozen=True):
    """One protected server for one principal: all that getting credentials for it takes."""

    url: str
    settings: AuthSettings
    principal: str = LOCAL
    net: NetSettings = NetSettings()
    """How the server is reached; its authorization server is reached by the same proxy, with the same authorities."""
    within: float = 30.0
    """Seconds for what is said to authorization servers to get one credential; a person's time does not count."""
    browser: Browser | None = None
    show_code: Callable[[DeviceCode], Awaitable[None]] | None = None
    """Shows a person the code of a device flow."""
    run: Callable[[tuple[str, ...]], Awaitable[bytes]] | None = None
    """Runs a command of the settings and brings its output."""

    @property
    def subject(self) -> Subject:
        """What its credentials are looked for by. Raises ValueError: the URL is none of http or https."""
        return Subject(
            self.principal, canonical(self.url), self.settings.issuer or "", self.settings.client_id or ""
        )

    @property
    def kind(self) -> Kind:
        """The flow by which a first token is got."""
        flow = self.settings.chosen_flow()
        return "authorization_code" if flow == "auto" else flow

    @property
    def redirect_uri(self) -> str:
        """Where a person comes back to; empty for flows without one."""
        if self.kind != "authorization_code":
            return ""
        settings = self.settings
        host = f"[{settings.redirect_host}]" if ":" in settings.redirect_host else settings.redirect_host
        return settings.redirect_uri or f"http://{host}:{settings.redirect_port or CALLBACK_PORT}/callback"


class AccountFlow:
    """The flow of one account (``broker.Flow``)."""

    def __init__(
        self,
        account: Account,
        http: AuthHttp,
        nonces: Nonces,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._account = account
        self._settings = account.settings
        self._http = http
        self._nonces = nonces
        self._wall = wall
        self._asking: asyncio.Timeout | None = None
        """The bound of a person's time, while one is at a login."""
        self._abandoned = False

    @property
    def alone(self) -> bool:
        return self._account.kind in ALONE

    @property
    def able(self) -> bool:
        if self._account.kind == "device":
            return self._account.show_code is not None
        return self.alone or self._account.browser is not None

    def renewable(self, credential: Credential) -> bool:
        # The others ask the user's code for a proof, which no lock may wait for: they are got anew.
        return credential.refresh_token is not None or (
            credential.grant == self._account.kind == "client_credentials"
        )

    def scopes_for(self, credential: Credential, challenged: tuple[str, ...]) -> tuple[str, ...]:
        settings = self._settings
        ceiling = settings.scopes if settings.scope_ceiling and settings.scopes else None
        return step_up(credential.requested_scopes, challenged, ceiling=ceiling)

    # Renewal

    async def refresh(self, credential: Credential) -> Credential:
        deadline = self._deadline()
        registration = await self._restored(credential)
        prover = Prover(credential.dpop_jwk, self._nonces) if credential.dpop_jwk is not None else None
        resource = self._resource(credential)
        now = self._wall()
        if credential.refresh_token is not None:
            tokens = await grants.refresh(
                self._http,
                credential.metadata,
                registration,
                refresh_token=credential.refresh_token,
                resource=resource,
                deadline=deadline,
                prover=prover,
            )
        else:
            tokens = await grants.client_credentials(
                self._http,
                credential.metadata,
                registration,
                scopes=credential.requested_scopes,
                resource=resource,
                deadline=deadline,
                prover=prover,
            )
        return kept(grants.merged(credential, tokens, now=now))

    def _resource(self, credential: Credential) -> str | None:
        said = self._settings.resource
        if said != "auto":
            return None if said == "off" else said
        return credential.resource_param or credential.key.resource if credential.resource_sent else None

    async def _restored(self, credential: Credential) -> Registration:
        """The client of a credential, with what the settings say of it now: their secrets are not stored."""
        registration = credential.registration
        if registration.source != "configured":
            return await self._with_key(registration)
        if self._settings.client_id != registration.client_id:
            raise NeedsClient(
                f"the client {registration.client_id!r} is configured no more", fix="log in with the new one"
            )
        return await self._configured(credential.metadata, next(iter(registration.redirect_uris), ""))

    async def _with_key(self, registration: Registration) -> Registration:
        if registration.auth_method != "private_key_jwt":
            return registration
        return msgspec.structs.replace(registration, signing_key=await self._signing_key())

    async def _configured(self, metadata: ServerMetadata, redirect_uri: str) -> Registration:
        return preregistered(
            self._settings,
            metadata,
            redirect_uri,
            signing_key=await self._signing_key(),
            now=self._wall(),
        )

    # A new credential

    async def obtain(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        account, settings = self._account, self._settings
        deadline = self._deadline()
        found = await discover(
            self._http,
            account.url,
            parse_challenges(ask.challenges),
            settings,
            deadline,
            code_flow=account.kind == "authorization_code",
            known_issuers=() if known is None else (known.key.issuer,),
        )
        scopes = ask.scopes or found.scopes_hint
        jwk = self._key_for(found, ask, known)
        registration = await self._registration(store, found, scopes, deadline, known)
        prover = Prover(jwk, self._nonces) if jwk is not None else None
        if self.alone:
            # One among all processes, and whoever comes second takes what the first one got.
            key = self._credential_key(found, registration)
            # Before the lock, as it is the user's code that gives it.
            proof = await self._proof()
            until = asyncio.get_running_loop().time() + LOCK_WITHIN
            async with store.lock(key.digest(), until) as lease:
                stored = await load(store, key.digest())
                if stored is not None and self._helps(stored, ask, known):
                    return stored
                now = self._wall()
                tokens = await self._without_person(
                    found.metadata,
                    registration,
                    scopes,
                    found.resource_param,
                    self._deadline(),
                    prover,
                    proof,
                )
                fresh = self._credential(found, registration, tokens, now, scopes, jwk, known, stored)
                return await self._save(store, fresh, lease)
        try:
            now, tokens = await self._by_person(found, registration, scopes, prover)
        except (GrantError, LoginFault) as error:
            if registration.source == "dynamic":
                await self._suspect(store, found.issuer, registration, error)
            raise
        if registration.in_vain:
            await self._set_in_vain(store, found.issuer, registration, 0)
        return await self._keep(store, found, registration, tokens, now, scopes, jwk, known)

    async def _suspect(
        self, store: CredentialStore, issuer: str, registration: Registration, error: GrantError | LoginFault
    ) -> None:
        """A server may have forgotten a client: then the next attempt registers anew. If it says so at its pages alone,
        nobody comes back from them: logins without an answer, one after another, are all that is seen of that."""
        if isinstance(error, GrantError):
            if error.code == "invalid_client":
                await self._forget_registration(store, issuer, registration.client_id)
        elif not (isinstance(error, LoginDenied | WrongIssuer) or self._abandoned):
            if registration.in_vain + 1 >= MOST_IN_VAIN:
                await self._forget_registration(store, issuer, registration.client_id)
            else:
                await self._set_in_vain(store, issuer, registration, registration.in_vain + 1)

    def _helps(self, stored: Credential, ask: Ask, known: Credential | None) -> bool:
        return (
            (known is None or stored.version > known.version)
            and usable(stored, self._wall(), 0.0)
            and set(ask.scopes) <= set(stored.requested_scopes)
        )

    def _credential_key(self, found: Discovered, registration: Registration) -> CredentialKey:
        return CredentialKey(self._account.principal, found.issuer, registration.client_id, found.resource)

    def _credential(
        self,
        found: Discovered,
        registration: Registration,
        tokens: TokenSet,
        now: float,
        scopes: tuple[str, ...],
        jwk: Secret | None,
        *before: Credential | None,
    ) -> Credential:
        """``before``: what there was; the new one counts as newer than all of it."""
        return kept(
            grants.granted(
                self._credential_key(found, registration),
                registration,
                found.metadata,
                tokens,
                now=now,
                requested_scopes=scopes,
                resource=found.resource_param,
                grant=self._account.kind,
                dpop_jwk=jwk,
                version=max((each.version for each in before if each is not None), default=0) + 1,
            )
        )

    async def _keep(
        self,
        store: CredentialStore,
        found: Discovered,
        registration: Registration,
        tokens: TokenSet,
        now: float,
        scopes: tuple[str, ...],
        jwk: Secret | None,
        known: Credential | None,
    ) -> Credential:
        digest = self._credential_key(found, registration).digest()
        until = asyncio.get_running_loop().time() + LOCK_WITHIN
        stored: Credential | None = None
        try:
            async with store.lock(digest, until) as lease:
                try:
                    stored = await load(store, digest)
                except AuthFault as damaged:
                    _log.warning("what was stored before is not read: %s", damaged)
                fresh = self._credential(found, registration, tokens, now, scopes, jwk, known, stored)
                fresh = await self._save(store, fresh, lease)
            if known is not None and known.key.digest() != digest:
                # Another client, or another server: the old one would only be found in its place.
                async with store.lock(known.key.digest(), until) as lease:
                    await store.remove(known.key.digest(), lease)
            return fresh
        except StoreError as error:
            fresh = self._credential(found, registration, tokens, now, scopes, jwk, known, stored)
            self._unsaved(fresh, error)
            return fresh

    async def _save(self, store: CredentialStore, fresh: Credential, lease: Lease) -> Credential:
        try:
            await store.save(fresh.key.digest(), encode_credential(fresh), lease, about=about(fresh))
        except StoreError as error:
            self._unsaved(fresh, error)
        return fresh

    def _unsaved(self, fresh: Credential, error: StoreError) -> None:
        _log.error(
            "the new tokens of %s at %s could not be stored and live in this process alone: %s",
            fresh.key.resource,
            fresh.key.issuer,
            error,
        )

    def _key_for(self, found: Discovered, ask: Ask, known: Credential | None) -> Secret | None:
        """The key that tokens are bound to (RFC 9449), where that is wanted: one for the life of a credential."""
        wanted = self._settings.dpop == "on" or (
            self._settings.dpop == "auto"
            and (
                (
                    found.resource_metadata is not None
                    and found.resource_metadata.dpop_bound_access_tokens_required
                )
                or any(each.scheme == "dpop" for each in parse_challenges(ask.challenges))
            )
        )
        if not wanted:
            return None
        return known.dpop_jwk if known is not None and known.dpop_jwk is not None else new_key()

    # The client

    async def _registration(
        self,
        store: CredentialStore,
        found: Discovered,
        scopes: tuple[str, ...],
        deadline: float,
        known: Credential | None,
    ) -> Registration:
        redirect_uri = self._account.redirect_uri
        if self._settings.client_id:
            if known is not None and not self._settings.issuer and known.key.issuer != found.issuer:
                # A server that is taken over could name a server of its own, to be sent the secret of the client.
                raise NeedsClient(
                    f"the configured client was used at {known.key.issuer}, and the server now names {found.issuer}",
                    fix="set auth.issuer, if the change is meant",
                )
            return await self._configured(found.metadata, redirect_uri)
        key = registration_key(found.issuer, redirect_uri)
        signing_key = await self._signing_key()
        # One registration for all processes.
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await _stored_registration(store, key)
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
                    said = {"issuer": found.issuer, "client_id": made.client_id, "kind": "registration"}
                    bare = msgspec.structs.replace(made, signing_key=None)
                    await store.save(key, encode_registration(bare), lease, about=said)
                except StoreError as error:
                    _log.warning("the registration at %s could not be stored: %s", found.issuer, error)
        return made

    async def client_is_gone(self, store: CredentialStore, credential: Credential) -> None:
        await self._forget_registration(store, credential.key.issuer, credential.key.client_id)
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
        self, store: CredentialStore, issuer: str, registration: Registration, times: int
    ) -> None:
        key = registration_key(issuer, self._account.redirect_uri)
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await _stored_registration(store, key)
            if stored is None or stored.client_id != registration.client_id:
                return
            said = {"issuer": issuer, "client_id": stored.client_id, "kind": "registration"}
            counted = msgspec.structs.replace(stored, in_vain=times)
            await store.save(key, encode_registration(counted), lease, about=said)

    async def _forget_registration(self, store: CredentialStore, issuer: str, client_id: str) -> None:
        """Kept aside, as the server may have erred; not used any more."""
        key = registration_key(issuer, self._account.redirect_uri)
        async with store.lock(key, asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await _stored_registration(store, key)
            if stored is None or stored.client_id != client_id:
                return
            said = {"issuer": issuer, "client_id": client_id, "kind": "registration"}
            await store.save(key + OLD, encode_registration(stored), lease, about=said)
            await store.remove(key, lease)

    # Grants

    async def _without_person(
        self,
        metadata: ServerMetadata,
        registration: Registration,
        scopes: tuple[str, ...],
        resource: str | None,
        deadline: float,
        prover: Prover | None,
        proof: Secret | None,
    ) -> TokenSet:
        http = self._http
        if proof is None:
            return await grants.client_credentials(
                http,
                metadata,
                registration,
                scopes=scopes,
                resource=resource,
                deadline=deadline,
                prover=prover,
            )
        if self._account.kind == "workload":
            assertion = proof
        else:
            assertion = await self._vouched(metadata, scopes, resource, deadline, proof)
        return await grants.jwt_bearer(
            http,
            metadata,
            registration,
            assertion=assertion,
            scopes=scopes,
            resource=resource,
            deadline=deadline,
            prover=prover,
        )

    async def _proof(self) -> Secret | None:
        """What somebody else says of who we are: the platform, or the company."""
        settings = self._settings
        if self._account.kind == "workload":
            return await self._text(
                "assertion", settings.assertion, settings.assertion_file, settings.assertion_command
            )
        if self._account.kind == "enterprise":
            return await self._text(
                "idp_token", settings.idp_token, settings.idp_token_file, settings.idp_token_command
            )
        return None

    async def _vouched(
        self,
        metadata: ServerMetadata,
        scopes: tuple[str, ...],
        resource: str | None,
        deadline: float,
        id_token: Secret,
    ) -> Secret:
        """An ID-JAG of the company's identity provider."""
        settings = self._settings
        if not settings.idp_issuer or not settings.idp_client_id:
            raise NeedsClient(
                "the identity provider of the company is not configured",
                fix="set auth.idp_issuer and auth.idp_client_id",
            )
        provider = await issuer_metadata(self._http, settings.idp_issuer, deadline)
        us = Registration(
            issuer=provider.issuer,
            client_id=settings.idp_client_id,
            client_secret=settings.idp_client_secret,
            source="configured",
        )
        return await grants.id_jag(
            self._http,
            provider,
            us,
            id_token=id_token,
            audience=metadata.issuer,
            resource=resource or canonical(self._account.url),
            deadline=deadline,
            scopes=scopes,
        )

    async def _by_person(
        self, found: Discovered, registration: Registration, scopes: tuple[str, ...], prover: Prover | None
    ) -> tuple[float, TokenSet]:
        account, settings, http = self._account, self._settings, self._http
        if account.kind == "device":
            assert account.show_code is not None
            device = await grants.device_begin(
                http,
                found.metadata,
                registration,
                scopes=scopes,
                resource=found.resource_param,
                deadline=self._deadline(),
            )
            await self._with_person(account.show_code(device), settings.timeout)
            tokens = await grants.device_wait(
                http,
                found.metadata,
                registration,
                device,
                resource=found.resource_param,
                deadline=asyncio.get_running_loop().time() + settings.timeout,
                prover=prover,
            )
            # When it was given is not known better.
            return self._wall(), tokens
        assert account.browser is not None
        request = AuthorizationRequest.begin(
            found.metadata,
            registration,
            redirect_uri=account.redirect_uri,
            resource=found.resource_param,
            scopes=scopes,
            authorize_params=settings.authorize_params,
            dpop_jkt=prover.thumbprint if prover is not None else None,
            now=self._wall(),
        )
        if found.metadata.require_pushed_authorization_requests:
            request = await push(http, found.metadata, registration, request, self._deadline())
        callback = await self._with_person(account.browser(request.url), settings.timeout)
        try:
            code = request.finish(callback)
        except StrayCallback:
            raise LoginFault("the address that came back is not the end of this login") from None
        now = self._wall()
        tokens = await grants.exchange_code(
            http,
            found.metadata,
            registration,
            code=code,
            verifier=request.verifier,
            redirect_uri=account.redirect_uri,
            resource=found.resource_param,
            deadline=self._deadline(),
            prover=prover,
        )
        return now, tokens

    async def _with_person(self, work: Awaitable[T], limit: float) -> T:
        try:
            async with asyncio.timeout(limit) as bound:
                self._asking = bound
                return await work
        except Exception as error:  # boundary: what shows a login is somebody else's code
            if self._abandoned:
                raise LoginAbandoned("nobody waits for the login any more") from None
            if bound.expired():
                raise LoginFault(f"nobody logged in within {limit:.4g} s (auth.timeout)") from None
            # Its text may hold the code.
            raise LoginFault(f"what was to show the login failed: {type(error).__name__}") from None
        finally:
            self._asking = None

    @property
    def waits_for_person(self) -> bool:
        return self._asking is not None

    def abandon(self) -> None:
        """Nobody uses it any more: a person is not waited for."""
        if self._asking is not None:
            self._abandoned = True
            self._asking.reschedule(asyncio.get_running_loop().time())

    # Settings that are read when they are needed

    async def _signing_key(self) -> Secret | None:
        settings = self._settings
        key: Secret | None = settings.private_key
        if key is None and settings.private_key_file is not None:
            key = await self._text("private_key", None, settings.private_key_file, ())
        if key is None or settings.private_key_alg is None:
            return key
        return jose.signing_by(key, settings.private_key_alg)

    async def _text(
        self,
        what: str,
        given: Secret | Callable[[], str | Awaitable[str]] | None,
        file: str | None,
        command: tuple[str, ...],
    ) -> Secret:
        """A secret from where the settings say that it is, read anew each time: such tokens are replaced often."""
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

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._account.within


def kept(credential: Credential) -> Credential:
    """As it is stored: what the configuration says (the secret of a configured client, the key of any) stays there."""
    registration = credential.registration
    secret = None if registration.source == "configured" else registration.client_secret
    bare = msgspec.structs.replace(registration, client_secret=secret, signing_key=None)
    return msgspec.structs.replace(credential, registration=bare)


def _all_scopes(found: Discovered) -> tuple[str, ...]:
    """What the resource knows of: a client that was registered for all of it needs no second one for a step-up."""
    return (found.resource_metadata.scopes_supported or ()) if found.resource_metadata is not None else ()


async def _stored_registration(store: CredentialStore, key: str) -> Registration | None:
    try:
        data = await store.load(key)
        return None if data is None else decode_registration(data)
    except (StoreError, BadRecord) as error:
        # Without it a new one is made; the store keeps the damaged one aside.
        _log.warning("a stored registration cannot be read: %s", error)
        return None
