"""What is known of logins, for people: plain data without a secret, read from a store that is left as it is.

For ``moor auth status`` and programs like it. No lock is taken, no server asked, no broker started: another process may
be refreshing meanwhile, and what is told is what the store held when it was read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from .._urls import shown_url
from ..config import CredentialSettings, HttpServer
from ..config.auth_spec import AuthSettings
from ..config.headers import same_name
from ..config.http_spec import Server
from ..errors import ConfigError, StoreFailed
from ..net.addresses import proxy_for
from ..store.credentials import CorruptEntry, CredentialStore, StoredKey, StoreError, StoreUnusable
from .asked import Subject
from .at_store import IN_MEMORY
from .flows import Account, Kind
from .kept import MARGIN, NOTES, due_at, of_kind, works
from .model import ALONE, BadRecord, Credential, decode_credential
from .renewal import INTENT
from .shared import state_folder, store_of

__all__ = ["Login", "Logins", "ServerLogin", "login_of", "read_logins", "what_next"]

_MINE = ("principal", "issuer", "client_id", "resource")


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """One stored login, without its secrets. Times are seconds of the wall clock."""

    principal: str
    issuer: str
    client_id: str
    resource: str
    """The MCP server that it is for."""
    state: Literal["good", "refused", "lost", "unreadable"]
    """``refused``: the server will not renew it. ``lost``: the server replaced it and the answer died with a process.
    ``unreadable``: what is stored is damaged."""
    reason: str = ""
    """Why it is not good."""
    client: Literal["configured", "document", "registered", ""] = ""
    """Who we are there: set by hand, a client document, or registered by ourselves. Empty if unreadable."""
    auth_method: str = ""
    """How that client proves itself."""
    client_secret_expires_at: float | None = None
    grant: str = ""
    """How its first token was got."""
    scopes: tuple[str, ...] = ()
    """Those that were granted."""
    requested_scopes: tuple[str, ...] = ()
    """Those that were asked for."""
    granted_at: float | None = None
    """When its first token was got, so when somebody logged in; None if that is not known."""
    obtained_at: float | None = None
    """When its access token was got."""
    renewed_at: float | None = None
    """When it was renewed last; None if it was not yet."""
    expires_at: float | None = None
    """When that ends; None if the server did not say."""
    renews_at: float | None = None
    """From when it is renewed ahead of its end, at the earliest; None if it is not."""
    refreshable: bool = False
    """There is a refresh token."""
    dpop: bool = False
    """It is bound to a key."""
    pending: bool = False
    """A refresh was begun and its end is not written: it is under way, or its process died in it."""
    version: int = 0
    """Grows by one with each write."""
    notes: tuple[str, ...] = ()
    """What is odd about the authorization server, and was accepted."""


class ServerLogin(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a configuration and its login."""

    url: str
    """Without its query."""
    how: Literal["oauth", "off", "header", "program"]
    """``oauth``: a login is used or got where the server wants one. ``off``: ``auth`` is false. ``header``: its headers
    hold an ``Authorization`` of their own. ``program``: it is no server over HTTP."""
    flow: Kind | None = None
    """The way to a first token."""
    login: Login | None = None
    """The one that is used; of several, that which works, then the newest."""
    proxy: str = ""
    """The proxy by which its authorization server is reached, without its login."""
    private_networks: bool = False
    """The authorization server may have a private address."""
    next: str = ""
    """What happens next, by itself or by a person."""


class Logins(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds for the servers of a configuration."""

    store: str
    """Its name, without passwords."""
    principal: str
    """Whose logins were read."""
    servers: dict[str, ServerLogin]
    """By name."""
    others: tuple[Login, ...] = ()
    """Logins of the same principal for none of these servers, or that are not used for them."""
    other_principals: int = 0
    """How many logins of other principals there are; they were not read."""
    problems: tuple[str, ...] = ()
    """Entries whose very first line cannot be read."""


async def read_logins(
    servers: Mapping[str, Server],
    *,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
) -> Logins:
    """The stored logins of these servers, without a secret. Asks no server, and changes nothing.

    Args:
        servers: specifications by name, as a host takes them.
        credentials: as a host takes them.
        state_dir: as a host takes it.

    Raises:
        ConfigError: the store cannot be used here.
        StoreFailed: it did not answer, or refused; another time may do better.
    """
    settings = credentials or CredentialSettings()
    opened = store_of(settings, state_folder(state_dir))
    if opened is None:
        return _logins("memory", settings.principal, servers, [], 0, ())
    store: CredentialStore | None = None
    try:
        store = await opened()
        mine, others, problems = await _read(store, settings.principal)
        return _logins(store.name, settings.principal, servers, mine, others, problems)
    except StoreUnusable as fault:
        raise ConfigError(f"the store of logins cannot be used: {fault}", fix=fault.fix or None) from fault
    except StoreError as fault:
        raise StoreFailed(f"the store of logins could not be read: {fault}") from fault
    finally:
        if store is not None:
            await store.aclose()


async def _read(
    store: CredentialStore, principal: str
) -> tuple[list[tuple[Login, Credential | None]], int, tuple[str, ...]]:
    """The logins of one principal, how many others have, and what cannot be read at all."""
    found: list[tuple[Login, Credential | None]] = []
    others = 0
    problems: list[str] = []
    entries = await store.keys()
    marks = {each.key for each in entries if each.key.endswith(NOTES)}
    for each in entries:
        if each.problem and not each.about:
            problems.append(each.problem)
        elif each.key not in marks and all(each.about.get(name) is not None for name in _MINE):
            if each.about["principal"] == principal:
                login = await _login(store, each, each.key + INTENT in marks)
                if login is not None:
                    found.append(login)
            else:
                others += 1
    return found, others, tuple(problems)


async def _login(
    store: CredentialStore, entry: StoredKey, marked: bool
) -> tuple[Login, Credential | None] | None:
    try:
        data = await store.load(entry.key)
        if data is None:
            return None  # removed meanwhile
        credential = decode_credential(data)
        mark = await store.load(entry.key + INTENT) if marked else None
    except (CorruptEntry, BadRecord) as fault:
        principal, issuer, client_id, resource = (entry.about[name] for name in _MINE)
        bad = Login(
            principal=principal,
            issuer=issuer,
            client_id=client_id,
            resource=resource,
            state="unreadable",
            reason=str(fault),
        )
        return bad, None
    return login_of(credential, pending=mark == b"%d" % credential.version), credential


def login_of(credential: Credential, *, pending: bool = False) -> Login:
    """What people may know of a credential."""
    registration, metadata = credential.registration, credential.metadata
    notes = list(metadata.problems)
    if not metadata.source:
        notes.append("it has no metadata: its endpoints are assumed or set by hand")
    return Login(
        principal=credential.key.principal,
        issuer=credential.key.issuer,
        client_id=credential.key.client_id,
        resource=credential.key.resource,
        state=credential.state,
        reason=credential.reason,
        client=_SOURCES[registration.source],
        auth_method=registration.auth_method or "",
        client_secret_expires_at=registration.client_secret_expires_at,
        grant=credential.grant,
        scopes=credential.scopes,
        requested_scopes=credential.requested_scopes,
        granted_at=credential.granted_at,
        obtained_at=credential.obtained_at,
        renewed_at=credential.obtained_at
        if credential.granted_at not in (None, credential.obtained_at)
        else None,
        expires_at=credential.expires_at,
        renews_at=due_at(credential, 1.0),
        refreshable=credential.refresh_token is not None,
        dpop=credential.dpop_jwk is not None,
        pending=pending,
        version=credential.version,
        notes=tuple(notes),
    )


_SOURCES: Mapping[str, Literal["configured", "document", "registered"]] = {
    "configured": "configured",
    "cimd": "document",
    "dynamic": "registered",
}


# --- by server ----------------------------------------------------------------------------------------------------


def _logins(
    store: str,
    principal: str,
    servers: Mapping[str, Server],
    found: list[tuple[Login, Credential | None]],
    others: int,
    problems: tuple[str, ...],
) -> Logins:
    used: set[int] = set()
    told: dict[str, ServerLogin] = {}
    for name, server in servers.items():
        if not isinstance(server, HttpServer):
            told[name] = ServerLogin(url="", how="program", next="it is a program, and has no login here")
            continue
        told[name], at = _server(server, principal, found, store)
        if at is not None:
            used.add(at)
    return Logins(
        store=store,
        principal=principal,
        servers=told,
        others=tuple(login for at, (login, _) in enumerate(found) if at not in used),
        other_principals=others,
        problems=problems,
    )


def _server(
    server: HttpServer, principal: str, found: list[tuple[Login, Credential | None]], store: str
) -> tuple[ServerLogin, int | None]:
    url = shown_url(server.url)
    if server.auth is False:
        return ServerLogin(url=url, how="off", next="auth is false: OAuth is never started"), None
    if isinstance(server.headers, Mapping) and same_name("authorization", server.headers):
        said = "its headers hold an Authorization: that is sent, and OAuth is never started"
        return ServerLogin(url=url, how="header", next=said), None
    settings = server.auth if isinstance(server.auth, AuthSettings) else AuthSettings()
    account = Account(url=server.url, settings=settings, principal=principal)
    at = _chosen(account.subject, found)
    login, credential = found[at] if at is not None else (None, None)
    endpoint = credential.metadata.token_endpoint if credential is not None else ""
    told = ServerLogin(
        url=url,
        how="oauth",
        flow=account.kind,
        login=login,
        proxy=_proxy(server, endpoint or settings.issuer or server.url),
        private_networks=settings.private_networks,
        next=what_next(account.kind, login, time.time(), store),
    )
    return told, at


def _chosen(subject: Subject, found: list[tuple[Login, Credential | None]]) -> int | None:
    """That which the broker takes (``Broker._look``): the one that works, then the newest."""
    now = time.time()
    fitting = [
        (credential is not None and works(credential, now), login.obtained_at or 0.0, at)
        for at, (login, credential) in enumerate(found)
        if login.resource == subject.resource
        and subject.issuer in ("", login.issuer)
        and subject.client_id in ("", login.client_id)
        and (credential is None or of_kind(subject, credential))
    ]
    return max(fitting)[2] if fitting else None


def _proxy(server: HttpServer, url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return ""
    proxy = proxy_for(
        parts.scheme,
        parts.hostname or "",
        port,
        proxy=server.proxy,
        no_proxy=server.no_proxy,
        environ=os.environ,
    )
    return shown_url(proxy) if proxy else ""


def what_next(flow: Kind, login: Login | None, now: float, store: str) -> str:
    """What happens next, in one clause."""
    alone = flow in ALONE
    anew = "another is got by itself" if alone else "a person must log in"
    if login is None:
        if store == "memory":
            return f"{IN_MEMORY}, and cannot be seen from here"
        first = "a token is got by itself" if alone else "a person must log in"
        return f"nothing is stored: {first} where the server wants one"
    if login.state == "unreadable":
        return "it cannot be used: move it away, and log in anew"
    if login.state != "good":
        return anew
    over = login.expires_at is not None and login.expires_at - now <= MARGIN
    if login.pending:
        return "a refresh was begun: it is under way, or its process died in it; the next use finds out"
    if login.refreshable:
        if login.expires_at is None:
            return "it is used until the server refuses it, and renewed then"
        late = over or (login.renews_at is not None and login.renews_at <= now)
        return (
            "it is renewed with the next use" if late else "it is renewed ahead of its end, while it is used"
        )
    if over:
        return anew
    when = "until the server refuses it" if login.expires_at is None else "until it ends"
    return f"it is used {when}; then {anew}"
