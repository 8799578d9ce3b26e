"""Becoming a client: pre-registered, else stored, else a client ID metadata document, else dynamic registration.

The order of client-rules §6.1, 6; RFC 7591 and 7592; where all of it fails, a typed ``NeedsClient`` says what a person
can do. A registration belongs to an issuer and a redirect URI. No state: what was stored comes in, what is to be
stored goes out, normalised.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args
from urllib.parse import urlsplit

import msgspec

from .._secret import Secret
from ..net.addresses import is_loopback, origin
from . import clients
from .endpoint import Answer, Endpoint, Headers, ask, left, read_answer
from .faults import GrantError, NeedsClient, said
from .model import AuthMethod, Registration, ServerMetadata

__all__ = [
    "ClientSettings",
    "Deleted",
    "check_document_url",
    "client_document",
    "fits",
    "is_gone",
    "preregistered",
    "register",
    "takes_document",
    "unregister",
]

CODE_GRANTS = ("authorization_code", "refresh_token")
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
MOST_CLIENT_ID = 4096
"""Characters of a client id."""
MOST_EXTRA = 16 * 1024
"""Bytes kept of what a registration answer says beside what we use."""

Deleted = Literal["deleted", "not_offered", "failed"]

ASK_FOR_CLIENT = (
    "register a client with the server's operator and set auth.client_id (and auth.client_secret), "
    "or host a client document and set auth.client_metadata_url"
)


class ClientSettings(Protocol):
    """The part of ``AuthSettings`` that says who we are."""

    @property
    def issuer(self) -> str | None: ...
    @property
    def accept_issuer(self) -> str | None: ...
    @property
    def client_id(self) -> str | None: ...
    @property
    def client_secret(self) -> Secret | None: ...
    @property
    def auth_method(self) -> AuthMethod | None: ...
    @property
    def client_name(self) -> str: ...
    @property
    def client_metadata_url(self) -> str | None: ...
    @property
    def cimd(self) -> bool: ...
    @property
    def scopes(self) -> tuple[str, ...]: ...


async def register(
    http: Endpoint,
    metadata: ServerMetadata,
    settings: ClientSettings,
    redirect_uri: str,
    deadline: float,
    *,
    stored: Registration | None = None,
    signing_key: Secret | None = None,
    scopes: Sequence[str] = (),
    also: Sequence[str] = (),
    now: float | None = None,
) -> Registration:
    """Who we are at this server, with this redirect URI (empty for grants without one). Normalised and usable.

    ``stored`` is what was kept for this issuer and redirect URI; it is passed over if it does not fit, its secret has
    expired, or the server holds it to scopes without one of ``scopes`` that was not asked for then. ``scopes`` are
    those that a login wants, ``also`` those that it may want later: some servers grant a client no others than it was
    registered for. ``deadline`` is a point in loop time.

    Raises:
        NeedsClient: there is no way, or the configured one cannot work. Nothing was changed anywhere.
        GrantError: the registration endpoint could not be asked; ``transient`` says whether it may work later.
    """
    now = time.time() if now is None else now
    if settings.client_id:
        return preregistered(settings, metadata, redirect_uri, signing_key=signing_key, now=now)
    url = settings.client_metadata_url
    by_document = takes_document(settings, metadata)
    document = url if by_document else None
    if stored is not None and _still_good(stored, metadata, redirect_uri, document, scopes, now):
        return clients.normalised(stored, metadata)
    if by_document:
        assert url is not None
        check_document_url(url)
        return _checked(
            Registration(
                issuer=metadata.issuer,
                client_id=url,
                auth_method=settings.auth_method if settings.auth_method == "private_key_jwt" else None,
                redirect_uris=(redirect_uri,) if redirect_uri else (),
                source="cimd",
                registered_at=now,
                signing_key=signing_key,
            ),
            metadata,
            now,
        )
    if not metadata.registration_endpoint:
        raise NeedsClient(
            f"{metadata.issuer} registers no clients by itself, and none is configured"
            + (_why_no_document(settings, metadata) if url else ""),
            fix=ASK_FOR_CLIENT,
        )
    # All that may be wanted, else what is wanted, else no word of it: a server refuses scopes that it does not know.
    tries = list(dict.fromkeys((" ".join(dict.fromkeys([*scopes, *also])), " ".join(scopes), "")))
    return await _dynamic(http, metadata, settings, redirect_uri, deadline, signing_key, tries, now)


def takes_document(settings: ClientSettings, metadata: ServerMetadata) -> bool:
    """Whether we introduce ourselves by a client document."""
    return bool(
        settings.client_metadata_url and settings.cimd and metadata.client_id_metadata_document_supported
    )


def preregistered(
    settings: ClientSettings,
    metadata: ServerMetadata,
    redirect_uri: str,
    *,
    signing_key: Secret | None = None,
    now: float,
) -> Registration:
    """The configured client.

    Raises:
        NeedsClient: it belongs to another issuer, or lacks what its method sends.
    """
    # The metadata says of itself what ``accept_issuer`` allows it to, and is that of the issuer asked all the same.
    if settings.issuer and metadata.issuer not in (settings.issuer, settings.accept_issuer):
        raise NeedsClient(
            f"the configured client {settings.client_id!r} belongs to {settings.issuer}, "
            f"and the server now names {metadata.issuer}",
            fix="set auth.issuer and auth.client_id for the new one, if the change is meant",
        )
    return _checked(
        Registration(
            issuer=metadata.issuer,
            client_id=settings.client_id or "",
            client_secret=settings.client_secret,
            auth_method=settings.auth_method,
            redirect_uris=(redirect_uri,) if redirect_uri else (),
            source="configured",
            signing_key=signing_key,
        ),
        metadata,
        now,
    )


def fits(registration: Registration, redirect_uri: str) -> bool:
    """Whether a registration may be used with a redirect URI: letter by letter, as servers compare (F11.7)."""
    return not redirect_uri or redirect_uri in registration.redirect_uris


def client_document(
    settings: ClientSettings, redirect_uris: Sequence[str], *, jwks_uri: str | None = None
) -> dict[str, Any]:
    """The client ID metadata document to host at ``auth.client_metadata_url``: the URL is the client id.

    Raises:
        NeedsClient: the URL is not set, or cannot be a client id.
    """
    url = settings.client_metadata_url
    if not url:
        raise NeedsClient("there is no URL for the document", fix="set auth.client_metadata_url")
    check_document_url(url)
    document = {
        "client_id": url,
        "client_name": settings.client_name,
        "redirect_uris": list(redirect_uris),
        "grant_types": [*CODE_GRANTS, DEVICE],
        "response_types": ["code"],
        "application_type": _application_type(redirect_uris),
        "token_endpoint_auth_method": "private_key_jwt" if jwks_uri else "none",
    }
    if jwks_uri:
        document["jwks_uri"] = jwks_uri
    return document


def check_document_url(url: str) -> None:
    """Whether a URL may be a client id: https, with a path, without user, fragment and dot segments.

    Raises:
        NeedsClient: it may not.
    """
    try:
        parts = urlsplit(url)
        origin(url)  # also refuses blanks, backslashes and controls
        bad = (
            "is not https" if parts.scheme != "https"
            else "has no path" if parts.path in ("", "/")
            else "holds a user" if "@" in parts.netloc
            else "has a fragment" if "#" in url
            else "has dot segments" if {".", ".."} & set(parts.path.split("/"))
            else ""
        )  # fmt: skip
    except ValueError as fault:
        bad = str(fault)
    if bad:
        raise NeedsClient(f"auth.client_metadata_url cannot be a client id: it {bad}", fix="mend it")


async def is_gone(
    http: Endpoint, registration: Registration, metadata: ServerMetadata, deadline: float
) -> bool:
    """Whether its server says that it does not know a dynamic registration (RFC 7592 §2.1), where it can be asked: at
    the pages of a login nobody could tell us. Raises nothing."""
    managed = _managed(registration, metadata)
    if managed is None:
        return False
    url, headers = managed
    try:
        answer = await ask(http.read(url, headers, within=left(deadline)), metadata.issuer)
    except GrantError:
        return False
    return answer.status in (401, 404, 410)


def _managed(registration: Registration, metadata: ServerMetadata) -> tuple[str, Headers] | None:
    """Where a dynamic registration is read and deleted, with what; None where that is not offered."""
    url, token = registration.registration_client_uri, registration.registration_access_token
    if registration.source != "dynamic" or not url or not token:
        return None
    # The token goes only where the registration was made, or to the issuer itself.
    homes = {_origin(registration.issuer), _origin(metadata.registration_endpoint)}
    if _origin(url) not in homes - {None}:
        return None
    return url, Headers(Authorization=f"Bearer {token.reveal()}")


async def unregister(
    http: Endpoint, registration: Registration, metadata: ServerMetadata, deadline: float
) -> Deleted:
    """Delete a dynamic registration at its server (RFC 7592 §2.3), where that is offered. Raises nothing.

    ``failed``: it was not reached, or refused; the registration is then only forgotten here.
    """
    managed = _managed(registration, metadata)
    if managed is None:
        return "not_offered"
    url, headers = managed
    try:
        answer = await ask(http.delete(url, headers, within=left(deadline)), metadata.issuer)
    except GrantError:
        return "failed"
    if 200 <= answer.status <= 299 or answer.status in (401, 404, 410):
        return "deleted"  # by us now, or by somebody before
    return "not_offered" if answer.status in (403, 405, 501) else "failed"


# --- how ----------------------------------------------------------------------------------------------------------


def _checked(registration: Registration, metadata: ServerMetadata, now: float) -> Registration:
    registration = clients.normalised(registration, metadata)
    clients.check_usable(registration, now)
    return registration


def _still_good(
    stored: Registration,
    metadata: ServerMetadata,
    redirect_uri: str,
    document: str | None,
    scopes: Sequence[str],
    now: float,
) -> bool:
    if stored.issuer != metadata.issuer or stored.source == "configured":
        return False  # a configured client that is configured no more is not ours to use
    if document is not None or stored.source == "cimd":
        return stored.source == "cimd" and stored.client_id == document and fits(stored, redirect_uri)
    if not fits(stored, redirect_uri):
        return False
    # What it was refused once it is refused again: only what it was never asked for is worth another registration.
    if stored.scope and not set(scopes) <= {*stored.scope.split(), *stored.asked_scope.split()}:
        return False
    try:
        clients.check_usable(clients.normalised(stored, metadata), now)
    except NeedsClient:
        return False
    return True


def _why_no_document(settings: ClientSettings, metadata: ServerMetadata) -> str:
    if not settings.cimd:
        return "; auth.cimd is off, so the client document is not used"
    if not metadata.client_id_metadata_document_supported:
        return "; it takes no client documents either"
    return ""


def _method(settings: ClientSettings, metadata: ServerMetadata, signing_key: Secret | None) -> AuthMethod:
    """The method a registration asks for: the configured one, else the simplest the server takes."""
    if settings.auth_method:
        return settings.auth_method
    taken = metadata.token_endpoint_auth_methods_supported
    if taken is None:
        return "client_secret_basic"  # what silence means (RFC 8414 §2), so what every such server takes
    for method in ("none", "client_secret_basic", "client_secret_post"):
        if method in taken:
            return method
    if signing_key and "private_key_jwt" in taken:
        return "private_key_jwt"
    raise NeedsClient(
        f"{metadata.issuer} authenticates clients by {', '.join(taken)[:200]} only, "
        "which a client that registers itself cannot do",
        fix=ASK_FOR_CLIENT,
    )


def _application_type(redirect_uris: Sequence[str]) -> str:
    hosts = [urlsplit(uri).hostname or "" for uri in redirect_uris]
    return "web" if hosts and not any(is_loopback(host) for host in hosts) else "native"


def _request(
    settings: ClientSettings, metadata: ServerMetadata, redirect_uri: str, signing_key: Secret | None
) -> dict[str, Any]:
    method = _method(settings, metadata, signing_key)
    offered = metadata.grant_types_supported
    grants = [*CODE_GRANTS]
    if offered is not None and DEVICE in offered and metadata.device_authorization_endpoint:
        grants.append(DEVICE)
    body: dict[str, Any] = {
        "client_name": settings.client_name,
        "redirect_uris": [redirect_uri],
        "grant_types": grants,
        "response_types": ["code"],
        "application_type": _application_type([redirect_uri] if redirect_uri else []),
        "token_endpoint_auth_method": method,
    }
    if not redirect_uri:
        body["redirect_uris"] = []
    if not redirect_uri and metadata.device_authorization_endpoint:
        # The device flow: servers register no client that gets codes and says not where, nor an empty list of places.
        del body["redirect_uris"]
        body |= {"grant_types": [DEVICE, "refresh_token"], "response_types": []}
    if method == "private_key_jwt" and signing_key:
        from . import jose

        key = jose.Key(signing_key)
        body["jwks"] = {"keys": [{**key.public, **({"kid": key.kid} if key.kid else {})}]}
    return body


async def _dynamic(
    http: Endpoint,
    metadata: ServerMetadata,
    settings: ClientSettings,
    redirect_uri: str,
    deadline: float,
    signing_key: Secret | None,
    tries: Sequence[str],
    now: float,
) -> Registration:
    """``tries``: the scopes to register for, the last resort last, which is none."""
    request = _request(settings, metadata, redirect_uri, signing_key)
    what = f"the registration endpoint of {metadata.issuer}"
    for scope in tries:
        if scope:
            request["scope"] = scope
        else:
            request.pop("scope", None)
        answer = await ask(
            http.post_json(metadata.registration_endpoint, request, {}, within=left(deadline)), what
        )
        try:
            body = read_answer(answer, what)
            break
        except GrantError as error:
            # Scopes are asked for again with the authorization, so a registration can do without.
            if error.code in ("invalid_client_metadata", "invalid_scope") and scope:
                continue
            raise _explained(error, answer, metadata, redirect_uri) from None
    made = _registration(body, request, metadata, redirect_uri, signing_key, now)
    return _checked(msgspec.structs.replace(made, asked_scope=tries[0]), metadata, now)


def _explained(
    error: GrantError, answer: Answer, metadata: ServerMetadata, redirect_uri: str
) -> GrantError | NeedsClient:
    """The same failure for whoever must mend it; a transient one stays what it is."""
    if error.transient and error.code != "unusable":
        return error
    who, status = metadata.issuer, answer.status
    more = f": {error.description}" if error.description else ""
    if redirect_uri and (
        error.code == "invalid_redirect_uri"
        or (
            error.code in ("invalid_client_metadata", "invalid_request")
            and "redirect" in error.description.lower()
        )
    ):
        return NeedsClient(
            f"{who} does not register the redirect URI {redirect_uri!r}{more}",
            fix="set auth.redirect_host or auth.redirect_port to what it takes (localhost for 127.0.0.1, a fixed "
            "port), or auth.redirect_uri to an https address of yours",
        )
    if error.code in ("http", "unusable"):
        return NeedsClient(
            f"{who} names a registration endpoint that registers nobody (HTTP {status}){more}",
            fix=ASK_FOR_CLIENT,
        )
    return NeedsClient(f"{who} refuses to register a client ({error.code}){more}", fix=ASK_FOR_CLIENT)


_USED = frozenset(
    {
        *(
            "client_id",
            "client_secret",
            "token_endpoint_auth_method",
            "redirect_uris",
            "client_secret_expires_at",
        ),
        *("registration_access_token", "registration_client_uri", "grant_types", "scope", "jwks"),
    }
)


def _registration(
    body: dict[str, Any],
    request: dict[str, Any],
    metadata: ServerMetadata,
    redirect_uri: str,
    signing_key: Secret | None,
    now: float,
) -> Registration:
    """The answer as a registration: the server's word counts over what was asked (F11.13)."""
    client_id = body.get("client_id")
    if not isinstance(client_id, str) or not client_id:
        raise NeedsClient(
            f"{metadata.issuer} answered a registration without a client id", fix=ASK_FOR_CLIENT
        )
    if len(client_id) > MOST_CLIENT_ID or not client_id.isprintable():
        # RFC 6749 appendix A.1; it stands in each URL of a login.
        raise NeedsClient(f"{metadata.issuer} registered a client id that cannot be used", fix=ASK_FOR_CLIENT)
    secret = _text(body, "client_secret")
    said_method = body.get("token_endpoint_auth_method")
    method: AuthMethod | None = None
    if isinstance(said_method, str) and said_method:
        if said_method not in get_args(AuthMethod):
            raise NeedsClient(
                f"{metadata.issuer} registered a client that must authenticate by {said(said_method)!r}, "
                "which Moorings does not do",
                fix=ASK_FOR_CLIENT,
            )
        method = said_method  # type: ignore[assignment]
    elif not secret:
        # Not said, and nothing to send: what was asked for, if it can be done.
        method = request["token_endpoint_auth_method"] if signing_key else "none"
    elif request["token_endpoint_auth_method"] != "none":
        method = request["token_endpoint_auth_method"]
    registered = _texts(body.get("redirect_uris"))
    if registered and redirect_uri and not any(_same_redirect(uri, redirect_uri) for uri in registered):
        raise NeedsClient(
            f"{metadata.issuer} registered {', '.join(registered)[:300]} where {redirect_uri} was asked for",
            fix="set auth.redirect_uri (or auth.redirect_host, auth.redirect_port) to one that it registers",
        )
    extra = {name: value for name, value in body.items() if name not in _USED and "secret" not in name}
    return Registration(
        issuer=metadata.issuer,
        client_id=client_id,
        client_secret=Secret(secret) if secret else None,
        auth_method=method,
        redirect_uris=(redirect_uri,) if redirect_uri else (),
        client_secret_expires_at=_time(body.get("client_secret_expires_at")),
        registration_access_token=Secret(token)
        if (token := _text(body, "registration_access_token"))
        else None,
        registration_client_uri=_text(body, "registration_client_uri"),
        source="dynamic",
        registered_at=now,
        grant_types=_texts(body.get("grant_types")),
        scope=_text(body, "scope"),
        signing_key=signing_key if method == "private_key_jwt" else None,
        extra=extra if len(msgspec.json.encode(extra)) <= MOST_EXTRA else {},
    )


def _same_redirect(registered: str, ours: str) -> bool:
    """Equal; or a loopback address, of which servers may leave out the port (RFC 8252 §7.3)."""
    if registered == ours:
        return True
    try:
        one, two = urlsplit(registered), urlsplit(ours)
    except ValueError:
        return False
    return (
        (one.scheme, one.hostname, one.path, one.query) == (two.scheme, two.hostname, two.path, two.query)
        and one.scheme == "http"
        and is_loopback(one.hostname or "")
        and one.port is None
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _time(value: object) -> float | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 18:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
        return None  # 0: it never expires
    return float(value)


def _origin(url: str) -> str | None:
    try:
        return origin(url)
    except ValueError:
        return None
