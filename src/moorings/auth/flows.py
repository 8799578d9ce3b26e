"""How a credential of one account is got and renewed: discovery, registration and grant in one piece.

Made by ``service.py`` for an account; used by the broker, on the broker's loop alone, where each step is part of a task
that is finished whoever still waits. What must be one among all processes (a registration, a token without a person)
is done under the store's lock for it, and looked for there first; a login of a person is an attempt of its own
(``login.py``). Sources: client-rules §6, and the modules of each step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from .._secret import Secret
from ..net.settings import NetSettings
from ..store.credentials import CredentialStore, Lease, StoreError
from . import grants
from .asked import Ask, Subject
from .callback import Listeners
from .challenge import parse_challenges
from .discovery import Discovered, canonical, discover, issuer_metadata
from .dpop import Nonces, Prover, new_key
from .faults import AuthFault, NeedsClient
from .grants import TokenSet
from .http import AuthHttp
from .identity import LOCK_WITHIN, Identity
from .kept import usable
from .knock import Knocked, knock
from .landing import CALLBACK_PATH, CALLBACK_PORT
from .login import LoginAttempt
from .model import ALONE, LOCAL, Credential, CredentialKey, Registration, ServerMetadata, encode_credential
from .prompt import OnLoginUrl
from .renewal import about, load
from .scopes import step_up
from .turn import Holder

if TYPE_CHECKING:
    from ..config.auth_spec import AuthSettings

__all__ = ["Account", "AccountFlow", "Browser", "Kind"]

CHECK_WITHIN = 10.0
"""Seconds in which a server says whether it takes a token."""

_log = logging.getLogger("moorings")

Kind = Literal["authorization_code", "device", "client_credentials", "enterprise", "workload"]

Browser = Callable[[str], Awaitable[str]]
"""Shows a person the URL of a login, and brings back the URL that they are sent to at its end, or its query."""


class Account(msgspec.Struct, frozen=True):
    """One protected server for one principal: all that getting credentials for it takes."""

    url: str
    settings: AuthSettings
    principal: str = LOCAL
    name: str = ""
    """Of the server, for people."""
    net: NetSettings = NetSettings()
    """How the server is reached; its authorization server is reached by the same proxy, with the same authorities."""
    within: float = 30.0
    """Seconds for what is said to authorization servers to get one credential; a person's time does not count."""
    browser: Browser | None = None
    """Shows a login to a person, and brings the answer itself: there is no listener then."""
    ask: OnLoginUrl | None = None
    """Shows a login to a person; the answer comes to a listener, or is pasted."""
    asked: bool = False
    """Somebody asked for this very login: its tokens are stored only if the server takes them, also where there was no
    login before, and if another login that it waited for comes to nothing, it has its turn."""
    waiting: Callable[[Holder], None] = lambda holder: None
    """Told whose login is waited for."""
    headers: Callable[[], Awaitable[Mapping[str, str]]] | None = None
    """What else a request to the server carries."""
    run: Callable[[tuple[str, ...]], Awaitable[bytes]] | None = None
    """Runs a command of the settings and brings its output."""

    @property
    def subject(self) -> Subject:
        """What its credentials are looked for by. Raises ValueError: the URL is none of http or https."""
        return Subject(
            self.principal,
            canonical(self.url),
            self.settings.issuer or "",
            self.settings.client_id or "",
            alone=self.kind in ALONE,
        )

    @property
    def kind(self) -> Kind:
        """The flow by which a first token is got."""
        flow = self.settings.chosen_flow()
        return "authorization_code" if flow == "auto" else flow

    @property
    def asks(self) -> bool:
        """True if there is a person who may be asked to log in."""
        return self.ask is not None or (self.browser is not None and self.kind == "authorization_code")

    @property
    def redirect_uri(self) -> str:
        """Where a person comes back to, as far as it is known beforehand; empty for flows without one."""
        if self.kind != "authorization_code":
            return ""
        settings = self.settings
        host = f"[{settings.redirect_host}]" if ":" in settings.redirect_host else settings.redirect_host
        return (
            settings.redirect_uri or f"http://{host}:{settings.redirect_port or CALLBACK_PORT}{CALLBACK_PATH}"
        )


class AccountFlow:
    """The flow of one account (``asked.Flow``)."""

    def __init__(
        self,
        account: Account,
        http: AuthHttp,
        nonces: Nonces,
        listeners: Listeners,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.account = account
        self.http = http
        self.nonces = nonces
        self.listeners = listeners
        self.wall = wall
        self.identity = Identity(account, http, wall)
        self._settings = account.settings
        self._attempts: set[LoginAttempt] = set()
        """Logins of a person that are under way."""
        self.unsaved: StoreError | None = None
        """Why the last login could not be stored, if so."""

    @property
    def alone(self) -> bool:
        return self.account.kind in ALONE

    @property
    def able(self) -> bool:
        return self.alone or self.account.asks

    def renewable(self, credential: Credential) -> bool:
        # The others ask the user's code for a proof, which no lock may wait for: they are got anew.
        return credential.refresh_token is not None or (
            credential.grant == self.account.kind == "client_credentials"
        )

    def scopes_for(self, credential: Credential, challenged: tuple[str, ...]) -> tuple[str, ...]:
        settings = self._settings
        ceiling = settings.scopes if settings.scope_ceiling and settings.scopes else None
        return step_up(credential.requested_scopes, challenged, ceiling=ceiling)

    # Renewal

    async def refresh(self, credential: Credential) -> Credential:
        deadline = self.deadline()
        registration = await self.identity.restored(credential)
        prover = Prover(credential.dpop_jwk, self.nonces) if credential.dpop_jwk is not None else None
        resource = self._resource(credential)
        now = self.wall()
        if credential.refresh_token is not None:
            tokens = await grants.refresh(
                self.http,
                credential.metadata,
                registration,
                refresh_token=credential.refresh_token,
                resource=resource,
                deadline=deadline,
                prover=prover,
            )
        else:
            tokens = await grants.client_credentials(
                self.http,
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

    # A new credential

    async def obtain(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        if not self.alone:
            attempt = LoginAttempt(self)
            self._attempts.add(attempt)
            try:
                return await attempt.run(store, ask, known)
            finally:
                self.unsaved = attempt.unsaved
                self._attempts.discard(attempt)
        deadline = self.deadline()
        found = await self.discover(ask, known, deadline)
        scopes = ask.scopes or found.scopes_hint
        jwk = self.key_for(found, ask, known)
        registration = await self.identity.registration(store, found, "", "", scopes, deadline, known)
        assert registration is not None
        prover = Prover(jwk, self.nonces) if jwk is not None else None
        # One among all processes, and whoever comes second takes what the first one got.
        key = self._credential_key(found, registration)
        # Before the lock, as it is the user's code that gives it.
        proof = await self._proof()
        async with store.lock(key.digest(), asyncio.get_running_loop().time() + LOCK_WITHIN) as lease:
            stored = await load(store, key.digest())
            if stored is not None and self.helps(stored, ask, known):
                return stored
            now = self.wall()
            tokens = await self._without_person(
                found.metadata,
                registration,
                scopes,
                found.resource_param,
                self.deadline(),
                prover,
                proof,
            )
            fresh = self.credential(found, registration, tokens, now, scopes, jwk, known, stored)
            await self._save(store, fresh, lease)
            return fresh

    async def discover(self, ask: Ask, known: Credential | None, deadline: float) -> Discovered:
        """Where tokens come from. Raises ``DiscoveryFault``."""
        return await discover(
            self.http,
            self.account.url,
            parse_challenges(ask.challenges),
            self._settings,
            deadline,
            code_flow=self.account.kind == "authorization_code",
            known_issuers=() if known is None else (known.key.issuer,),
        )

    async def proven(self, credential: Credential) -> Knocked:
        """Whether the server takes its access token: one real request. Where nobody can tell, that is no "no"."""
        given = {} if self.account.headers is None else await self.account.headers()
        prover = Prover(credential.dpop_jwk, self.nonces) if credential.dpop_jwk is not None else None
        return await knock(
            self.http,
            self.account.url,
            given,
            within=CHECK_WITHIN,
            token=credential.access_token,
            prover=prover,
        )

    def helps(self, stored: Credential, ask: Ask, known: Credential | None) -> bool:
        """Whether what is stored does for what was asked for, and came after what is known."""
        return (
            (known is None or stored.version > known.version)
            and usable(stored, self.wall(), 0.0)
            and set(ask.scopes) <= set(stored.requested_scopes)
        )

    def _credential_key(self, found: Discovered, registration: Registration) -> CredentialKey:
        return CredentialKey(self.account.principal, found.issuer, registration.client_id, found.resource)

    def credential(
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
                grant=self.account.kind,
                dpop_jwk=jwk,
                # Greater too than that of a login which was removed, and that somebody may still remember.
                version=max([int(now), *(each.version + 1 for each in before if each is not None)]),
            )
        )

    async def keep(
        self,
        store: CredentialStore,
        found: Discovered,
        registration: Registration,
        tokens: TokenSet,
        now: float,
        scopes: tuple[str, ...],
        jwk: Secret | None,
        known: Credential | None,
    ) -> tuple[Credential, StoreError | None]:
        """Put a person's login in the place of what there was; and why it could not be stored, if so."""
        digest = self._credential_key(found, registration).digest()
        until = asyncio.get_running_loop().time() + LOCK_WITHIN
        stored: Credential | None = None
        try:
            async with store.lock(digest, until) as lease:
                try:
                    stored = await load(store, digest)
                except AuthFault as damaged:
                    _log.warning("what was stored before is not read: %s", damaged)
                fresh = self.credential(found, registration, tokens, now, scopes, jwk, known, stored)
                problem = await self._save(store, fresh, lease)
        except StoreError as error:
            fresh = self.credential(found, registration, tokens, now, scopes, jwk, known, stored)
            self._unsaved(fresh, error)
            return fresh, error
        if problem is None and known is not None and known.key.digest() != digest:
            # Another client, or another server: the old one would only be found in its place.
            try:
                async with store.lock(known.key.digest(), until) as lease:
                    await store.remove(known.key.digest(), lease)
            except StoreError as error:
                # The new one is stored, and as it is newer it is the one that is found.
                _log.warning("the login that was there before stays in the store: %s", error)
        return fresh, problem

    async def _save(self, store: CredentialStore, fresh: Credential, lease: Lease) -> StoreError | None:
        try:
            await store.save(fresh.key.digest(), encode_credential(fresh), lease, about=about(fresh))
        except StoreError as error:
            self._unsaved(fresh, error)
            return error
        return None

    def _unsaved(self, fresh: Credential, error: StoreError) -> None:
        _log.error(
            "the new tokens of %s at %s could not be stored and live in this process alone: %s",
            fresh.key.resource,
            fresh.key.issuer,
            error,
        )

    def key_for(self, found: Discovered, ask: Ask, known: Credential | None) -> Secret | None:
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

    async def client_is_gone(self, store: CredentialStore, credential: Credential) -> None:
        await self.identity.is_gone(store, credential)

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
        http = self.http
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
        if self.account.kind == "workload":
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
        if self.account.kind == "workload":
            return await self.identity.text(
                "assertion", settings.assertion, settings.assertion_file, settings.assertion_command
            )
        if self.account.kind == "enterprise":
            return await self.identity.text(
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
        provider = await issuer_metadata(self.http, settings.idp_issuer, deadline)
        us = Registration(
            issuer=provider.issuer,
            client_id=settings.idp_client_id,
            client_secret=settings.idp_client_secret,
            source="configured",
        )
        return await grants.id_jag(
            self.http,
            provider,
            us,
            id_token=id_token,
            audience=metadata.issuer,
            resource=resource or canonical(self.account.url),
            deadline=deadline,
            scopes=scopes,
        )

    @property
    def waits_for_person(self) -> bool:
        return any(each.waits for each in self._attempts)

    def abandon(self) -> None:
        """Nobody uses it any more: a person is not waited for, and a login without tokens yet changes nothing."""
        for each in self._attempts:
            each.abandon()

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.account.within


def kept(credential: Credential) -> Credential:
    """As it is stored: what the configuration says (the secret of a configured client, the key of any) stays there."""
    registration = credential.registration
    secret = None if registration.source == "configured" else registration.client_secret
    bare = msgspec.structs.replace(registration, client_secret=secret, signing_key=None)
    return msgspec.structs.replace(credential, registration=bare)
