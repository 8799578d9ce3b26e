"""Where tokens for an MCP server come from: from a 401 to the metadata of its authorization server.

client-rules §6.1, 1-5 and 7; RFC 9728 (the resource's metadata), RFC 8414 and OpenID Connect Discovery (the
authorization server's), and what 2025-03-26 did where there is neither. Functions without state: whoever calls owns the
``AuthHttp``, and what is found. Documents are tried one after another, in the order of the spec; one that is not JSON
for the identifier asked for counts as absent. ``issuer`` and ``resource`` are compared letter by letter, and only a
setting that names the other text loosens that. What could not be asked (network, 5xx, 429) is never taken for absent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Struct

from .._urls import KEY_IN_PATH, shown_url
from ..net.addresses import origin
from ..wire.http_rules import parse_retry_after
from .challenge import Challenge, bearer
from .faults import AuthFault, said
from .http import AuthAnswer, AuthHttp, AuthNetError
from .model import ResourceMetadata, ServerMetadata, read_resource_metadata, read_server_metadata
from .scopes import first_scopes, parse_scope

__all__ = [
    "Discovered",
    "DiscoveryFault",
    "DiscoverySettings",
    "Tried",
    "canonical",
    "discover",
    "issuer_metadata",
    "resource_documents",
    "server_documents",
]

DOCUMENT_WITHIN = 10.0
"""Seconds for one document, redirects and all: a silent one must leave time for the others."""
MOST_SERVERS = 5
"""Authorization servers of one resource that are looked at."""
MOST_TRIED = 20
"""Documents named in the text of a fault."""

UNKNOWN = "it is not known which authorization server this server has"

OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
RESOURCE = "/.well-known/oauth-protected-resource"

Document = Literal["resource metadata", "server metadata", "endpoint"]
Kind = Literal[
    "url", "resource-mismatch", "no-metadata", "issuer-mismatch", "not-an-issuer", "pkce", "refused", "unreachable",
    "timeout",
]  # fmt: skip


class DiscoverySettings(Protocol):
    """The part of ``AuthSettings`` that discovery reads."""

    @property
    def issuer(self) -> str | None:
        """The authorization server, named by hand: what the resource says of others does not count."""

    @property
    def resource(self) -> str:
        """``auto``, ``off`` (the parameter is never sent), or the URL that is sent."""

    @property
    def scopes(self) -> tuple[str, ...]: ...
    @property
    def scope_ceiling(self) -> bool: ...
    @property
    def accept_issuer(self) -> str | None:
        """The ``issuer`` that documents of the authorization server may say in place of its identifier: with a slash
        more, or a template."""

    @property
    def accept_resource(self) -> str | None:
        """The ``resource`` that the resource's documents may say in place of the URL of the server."""

    @property
    def assume_pkce(self) -> bool:
        """True: an authorization server that does not say that it does PKCE is used, with S256, all the same."""


class Tried(NamedTuple):
    """One document that was asked for and not used."""

    document: Document
    url: str
    """Fit to be shown."""
    status: int | None
    """None: no answer."""
    why: str
    transient: bool = False

    def __str__(self) -> str:
        return f"{self.document} {self.url}: {self.why}"


class DiscoveryFault(AuthFault):
    """It is not known where tokens come from, or what says so may not be believed."""

    def __init__(
        self,
        reason: str,
        *,
        kind: Kind,
        transient: bool = False,
        tried: Sequence[Tried] = (),
        fix: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason, fix=fix)
        self.kind = kind
        self.transient = transient
        """True: something could not be asked, so the same may work later."""
        self.retry_after = retry_after
        """Seconds a server asks to wait, if one does."""
        self.tried = tuple(tried)
        """Every document that was asked for, with its URL and what became of it."""

    def __str__(self) -> str:
        shown = "; ".join(str(each) for each in self.tried[:MOST_TRIED])
        text = f"{self.reason} ({shown})" if shown else self.reason
        return f"{text}; {self.fix}" if self.fix else text


class Discovered(Struct, frozen=True, kw_only=True):
    """Where tokens come from, and what is asked for there."""

    resource: str
    """Canonical URL of the MCP server: part of the key of a credential."""
    resource_param: str | None
    """What is sent as ``resource`` (RFC 8707); None: it is left out."""
    issuer: str
    """Identifier of the authorization server, as the resource or the setting says it."""
    metadata: ServerMetadata
    """Its ``issuer`` is what the server says of itself, which a callback's ``iss`` must equal."""
    resource_metadata: ResourceMetadata | None = None
    scopes_hint: tuple[str, ...] = ()
    """What a first authorization asks for; empty: the parameter is left out."""
    legacy: bool = False
    """No document of the resource names the server: it was found by the rules of 2025-03-26."""
    notes: tuple[str, ...] = ()
    """What is odd, and was accepted; for ``moor auth status``."""
    tried: tuple[Tried, ...] = ()
    """What was asked for on the way, and not used."""


async def discover(
    http: AuthHttp,
    server_url: str,
    challenges: Sequence[Challenge],
    settings: DiscoverySettings,
    deadline: float,
    *,
    code_flow: bool = True,
    known_issuers: Sequence[str] = (),
) -> Discovered:
    """From the challenges of a 401 to the authorization server. ``deadline`` is a point of the loop's time.

    ``code_flow``: a person will log in, so PKCE is demanded. ``known_issuers``: where there is a client already, which
    decides among several servers of a resource.

    Raises:
        DiscoveryFault: with every document that was tried; ``transient`` if another time may do better.
        ConfigError: a file or package of the connection's settings is missing.
    """
    return await _Search(http, server_url, challenges, settings, deadline, code_flow, known_issuers).run()


async def issuer_metadata(http: AuthHttp, issuer: str, deadline: float) -> ServerMetadata:
    """The metadata of an authorization server, or identity provider, that is known by name.

    Raises:
        DiscoveryFault, ConfigError: as ``discover``.
    """
    return await _Search(http, issuer, (), _Plain(), deadline, False, ()).server_metadata(issuer)


def canonical(url: str) -> str:
    """The URL of an MCP server as its identifier (RFC 8707 §2): small scheme and host, no usual port, query, fragment.

    A slash at the end stays if there is a path before it. The query is left out, as there it may be a key.

    Raises:
        ValueError: no absolute http or https URL.
    """
    path = urlsplit(url).path
    return origin(url) + ("" if path == "/" else path)


def resource_documents(server_url: str, named: str | None) -> list[str]:
    """Where the metadata of a resource may be: as a challenge names it, else by its path, else at the root."""
    base, path = origin(server_url), urlsplit(server_url).path
    places = [urljoin(server_url, named)] if named else []
    if path.strip("/"):
        # Servers disagree on whether a slash at the end is part of it.
        places += [base + RESOURCE + path, base + RESOURCE + path.rstrip("/")]
    return list(dict.fromkeys([*places, base + RESOURCE]))


def server_documents(issuer: str) -> list[str]:
    """Where the metadata of an authorization server may be, in the order of the spec.

    Raises:
        ValueError: this cannot be an issuer (RFC 8414 §2): no http or https URL, or with a query or fragment.
    """
    base, parts = origin(issuer), urlsplit(issuer)
    if "?" in issuer or "#" in issuer or "@" in parts.netloc:
        raise ValueError("an issuer has no login, query or fragment")
    path = parts.path.rstrip("/")
    if not path:
        return [base + OAUTH, base + OPENID]
    return [base + OAUTH + path, base + OPENID + path, base + path + OPENID]


class _Plain(Struct, frozen=True):
    """Settings that loosen nothing."""

    issuer: str | None = None
    resource: str = "auto"
    scopes: tuple[str, ...] = ()
    scope_ceiling: bool = False
    accept_issuer: str | None = None
    accept_resource: str | None = None
    assume_pkce: bool = False


class _Search:
    """One discovery. Made and used by one call."""

    def __init__(
        self,
        http: AuthHttp,
        server_url: str,
        challenges: Sequence[Challenge],
        settings: DiscoverySettings,
        deadline: float,
        code_flow: bool,
        known_issuers: Sequence[str],
    ) -> None:
        self.http = http
        self.settings = settings
        self.deadline = deadline
        self.code_flow = code_flow
        self.known_issuers = frozenset(known_issuers)
        self.challenge = bearer(challenges) or {}
        self.tried: list[Tried] = []
        self.notes: list[str] = []
        self.retry_after: float | None = None
        self.began = asyncio.get_running_loop().time()
        self.url = server_url

    async def run(self) -> Discovered:
        try:
            self.resource, self.base = canonical(self.url), origin(self.url)
        except ValueError:
            raise DiscoveryFault("the URL of the server is none of http or https", kind="url") from None
        by_hand, deadline = self.settings.issuer, self.deadline
        try:
            if by_hand:
                # Who names the server by hand does not depend on the resource, unless it lies.
                self.deadline = self.began + (deadline - self.began) / 2
            found = await self.resource_metadata()
        except DiscoveryFault as fault:
            if not by_hand or fault.kind == "resource-mismatch":
                raise
            found = None
        self.deadline = deadline
        if by_hand:
            servers = [by_hand]
            if (
                found is not None
                and found.authorization_servers
                and by_hand not in found.authorization_servers
            ):
                self.notes.append("the server names other authorization servers than auth.issuer")
        else:
            servers = list(found.authorization_servers) if found is not None else []
        if servers:
            issuer, metadata = await self.choose(servers)
            return self.discovered(issuer, metadata, found, legacy=False)
        metadata = await self.legacy(found)
        return self.discovered(metadata.issuer, metadata, found, legacy=True)

    def discovered(
        self, issuer: str, metadata: ServerMetadata, found: ResourceMetadata | None, legacy: bool
    ) -> Discovered:
        settings = self.settings
        if settings.resource == "off":
            param = None
        elif settings.resource != "auto":
            param = settings.resource
        else:
            param = found.resource if found is not None else self.resource
        scopes = first_scopes(
            settings.scopes,
            parse_scope(self.challenge.get("scope")),
            found.scopes_supported if found is not None else None,
            metadata.scopes_supported,
            ceiling=settings.scope_ceiling,
        )
        return Discovered(
            resource=self.resource,
            resource_param=param,
            issuer=issuer,
            metadata=metadata,
            resource_metadata=found,
            scopes_hint=scopes,
            legacy=legacy,
            notes=tuple(self.notes),
            tried=tuple(self.tried),
        )

    # The resource's metadata

    async def resource_metadata(self) -> ResourceMetadata | None:
        """The first document that is there; None if all are absent.

        Raises:
            DiscoveryFault: one is there for another resource, or one could not be asked.
        """
        named = self.challenge.get("resource_metadata")
        try:
            places = resource_documents(self.url, named)
        except ValueError:
            self.note("resource metadata", named or "", None, "the challenge names no URL")
            places = resource_documents(self.url, None)
        wrong: str | None = None
        for url in places:
            answer = await self.ask("resource metadata", url)
            if answer is None:
                continue
            document = read_resource_metadata(answer.json, source=shown_url(url))
            if document is None:
                self.note("resource metadata", url, answer.status, _no_document(answer, "resource"))
            elif document.resource in self.resources(url):
                self.remark(document.problems)
                return document
            elif wrong is None:
                wrong = document.resource
                self.note("resource metadata", url, answer.status, f"it is for {_without_key(wrong)!r}")
        if wrong is not None:
            shown = _without_key(wrong)
            raise self.fault(
                f"the server says it is {shown!r}, and it was asked as {_without_key(self.resource)!r}",
                "resource-mismatch",
                fix=f"if that is the same server, set auth.accept_resource = {_quoted(shown)}",
            )
        self.raise_if_unknown(0, UNKNOWN)
        return None

    def resources(self, url: str) -> set[str]:
        """What the document at a URL may say as its ``resource`` (RFC 9728 §3.3)."""
        fine = {self.resource, self.url.partition("#")[0], self.settings.accept_resource or self.resource}
        # The document at the root is that of the origin; and without a path both ways of writing it are one URL.
        if url == self.base + RESOURCE or self.resource == self.base:
            fine |= {self.base, self.base + "/"}
        return fine

    # The authorization server's metadata

    async def choose(self, servers: Sequence[str]) -> tuple[str, ServerMetadata]:
        """The first that can be used, those with a client of ours before the others."""
        order = sorted(dict.fromkeys(servers), key=lambda each: each not in self.known_issuers)
        first: DiscoveryFault | None = None
        for issuer in order[:MOST_SERVERS]:
            try:
                return issuer, await self.server_metadata(issuer)
            except DiscoveryFault as fault:
                # One that is down for a while is still the one: another would want a login of its own.
                if fault.transient:
                    raise
                first = first or fault
        assert first is not None
        first.tried = tuple(self.tried)
        raise first

    async def server_metadata(self, issuer: str) -> ServerMetadata:
        try:
            places = server_documents(issuer)
        except ValueError:
            raise self.fault(
                f"{said(shown_url(issuer))!r} cannot be an authorization server: it is no https URL, or has a query",
                "not-an-issuer",
            ) from None
        fine = {issuer, self.settings.accept_issuer or issuer}
        before = len(self.tried)
        found = await self.first_of(places, fine, f"the authorization server {said(issuer)!r}")
        if found is not None:
            return found
        self.raise_if_unknown(before, f"the authorization server {said(issuer)!r} cannot be asked")
        raise self.fault(
            f"the authorization server {said(issuer)!r} has no metadata that can be used",
            "no-metadata",
            fix="set auth.issuer if another one is meant",
        )

    async def first_of(self, places: Iterable[str], fine: set[str], who: str) -> ServerMetadata | None:
        """The first document that says one of these issuers.

        Raises:
            DiscoveryFault: there are documents, but all say another.
        """
        wrong: str | None = None
        for url in places:
            answer = await self.ask("server metadata", url)
            if answer is None:
                continue
            document = read_server_metadata(answer.json, source=shown_url(url))
            if document is None:
                self.note("server metadata", url, answer.status, _no_document(answer, "issuer"))
            elif document.issuer not in fine:
                wrong = wrong or document.issuer
                self.note("server metadata", url, answer.status, f"it is for {said(document.issuer)!r}")
            elif not document.token_endpoint:
                self.note("server metadata", url, answer.status, "it names no token endpoint")
            else:
                self.remark(document.problems)
                return self.with_pkce(document)
        if wrong is not None:
            raise self.fault(
                f"{who} says in its metadata that it is {said(wrong)!r}",
                "issuer-mismatch",
                fix=f"if that is the same server, set auth.accept_issuer = {_quoted(wrong)}",
            )
        return None

    def with_pkce(self, document: ServerMetadata) -> ServerMetadata:
        methods = document.code_challenge_methods_supported
        if not self.code_flow or not document.authorization_endpoint or "S256" in (methods or ()):
            return document
        if self.settings.assume_pkce and not methods:
            self.notes.append("the authorization server does not say that it does PKCE; it is assumed")
            return msgspec.structs.replace(document, code_challenge_methods_supported=("S256",))
        what = (
            f"does PKCE with {said(' '.join(methods))} alone" if methods else "does not say that it does PKCE"
        )
        raise self.fault(
            f"the authorization server {said(document.issuer)!r} {what}, so a code could be stolen on its way",
            "pkce",
            fix=None if methods else "if it does S256 all the same, set auth.assume_pkce = true",
        )

    # Before there was metadata of resources

    async def legacy(self, found: ResourceMetadata | None) -> ServerMetadata:
        """2025-03-26: the server is its own authorization server, with metadata at its origin or usual endpoints.

        Raises:
            DiscoveryFault: nothing is there either.
        """
        base = self.base
        fine = {base, base + "/", self.settings.accept_issuer or base}
        before = len(self.tried)
        metadata = await self.first_of(server_documents(base), fine, f"the server {base!r}")
        if metadata is not None:
            return metadata
        self.raise_if_unknown(before, UNKNOWN)
        fix = "name the authorization server: set auth.issuer to its URL"
        if found is not None:
            raise self.fault("the server names no authorization server", "no-metadata", fix=fix)
        # Usual paths are believed in only where there is something: else a registration would be sent into the void.
        if await self.is_there(base + "/token"):
            self.notes.append("no metadata: the endpoints are assumed at their usual paths (2025-03-26)")
            return ServerMetadata(
                issuer=base,
                authorization_endpoint=base + "/authorize",
                token_endpoint=base + "/token",
                registration_endpoint=base + "/register",
            )
        self.raise_if_unknown(before, UNKNOWN)
        raise self.fault(
            "nothing that the server says tells which authorization server gives its tokens",
            "no-metadata",
            fix=fix,
        )

    async def is_there(self, url: str) -> bool:
        try:
            answer = await self.http.options(url, within=self.within())
        except AuthNetError as error:
            self.failed("endpoint", url, error)
            return False
        if answer.status in (404, 410) or answer.status >= 500:
            self.absent("endpoint", url, answer)
            return False
        return True

    # Asking

    async def ask(self, what: Document, url: str) -> AuthAnswer | None:
        """The answer that may hold a document; None if it is none, which is noted.

        Raises:
            DiscoveryFault: the URL leads where it may not, or the time is over.
        """
        try:
            answer = await self.http.get_json(url, within=self.within())
        except AuthNetError as error:
            self.failed(what, url, error)
            if error.refused is not None:
                raise self.fault(f"{error.url} is {error.reason}", "refused", fix=error.fix) from None
            return None
        if 200 <= answer.status <= 299:
            return answer
        self.absent(what, url, answer)
        return None

    def within(self) -> float:
        """Seconds for the next document.

        Raises:
            DiscoveryFault: there are none left.
        """
        now = asyncio.get_running_loop().time()
        if now >= self.deadline:
            raise self.fault(
                f"discovery took {now - self.began:.1f} s of {max(self.deadline - self.began, 0):.3g} s allowed",
                "timeout",
                transient=True,
            )
        return min(DOCUMENT_WITHIN, self.deadline - now)

    def failed(self, what: Document, url: str, error: AuthNetError) -> None:
        self.note(what, url, None, error.reason, error.transient)

    def absent(self, what: Document, url: str, answer: AuthAnswer) -> None:
        # 501: there is no such thing here, and will not be.
        transient = (answer.status >= 500 and answer.status != 501) or answer.status in (408, 425, 429)
        if transient:
            wait = parse_retry_after(answer.headers.get("Retry-After"), time.time())
            self.retry_after = max(wait or 0.0, self.retry_after or 0.0) or None
        self.note(what, url, answer.status, f"it answered {answer.status}", transient)

    def note(
        self,
        what: Document,
        url: str,
        status: int | None,
        why: str,
        transient: bool = False,
    ) -> None:
        self.tried.append(Tried(what, shown_url(url), status, why, transient))

    def remark(self, problems: Iterable[str]) -> None:
        self.notes += [said(each) for each in problems]

    def raise_if_unknown(self, before: int, reason: str) -> None:
        """
        Raises:
            DiscoveryFault: of what was tried since, something could not be asked, so its absence means nothing.
        """
        if any(each.transient for each in self.tried[before:]):
            fix = None if self.settings.issuer else "if it stays so, auth.issuer can name it by hand"
            raise self.fault(reason, "unreachable", transient=True, fix=fix)

    def fault(
        self, reason: str, kind: Kind, *, transient: bool = False, fix: str | None = None
    ) -> DiscoveryFault:
        wait = self.retry_after if transient else None
        return DiscoveryFault(
            reason, kind=kind, transient=transient, tried=self.tried, fix=fix, retry_after=wait
        )


def _without_key(identifier: str) -> str:
    """The identifier of a resource letter by letter, as two that differ are shown; but a key in it is not."""
    if "?" in identifier or any(KEY_IN_PATH.fullmatch(part) for part in identifier.split("/")[3:]):
        return shown_url(identifier)
    return said(identifier)


def _quoted(text: str) -> str:
    """A text of a server as it stands in a configuration file."""
    return msgspec.json.encode(said(text)).decode()


def _no_document(answer: AuthAnswer, identity: str) -> str:
    if answer.json is None:
        kind = (answer.headers.get("Content-Type") or "").partition(";")[0].strip()
        return f"it answered {answer.status} with what is no JSON ({said(kind) or 'of no type'})"
    return f"its JSON is no object with a text as {identity!r}"
