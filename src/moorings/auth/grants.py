"""Every way to a token, one function a grant: one exchange with the token endpoint, a ``TokenSet`` or a ``GrantError``.

RFC 6749 (code, refresh, client credentials), RFC 7523 (JWT bearer: ID-JAG and workload identity), RFC 8693 (token
exchange), RFC 8628 (device), RFC 7009 (revocation), RFC 8707 (``resource``), RFC 9449 (DPoP). No state and no lock;
nothing is sent twice but on a ``use_dpop_nonce``, with which the server has refused the first. Deadlines are points in
loop time; ``now`` is the wall clock in seconds.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from .._secret import Secret
from . import clients
from .dpop import Prover
from .endpoint import Endpoint, Form, Headers, ask, left, read_answer
from .faults import GrantError
from .model import Credential, CredentialKey, Registration, ServerMetadata
from .scopes import parse_scope

__all__ = [
    "ID_JAG",
    "ID_TOKEN",
    "DeviceCode",
    "TokenSet",
    "client_credentials",
    "device_begin",
    "device_wait",
    "exchange_code",
    "granted",
    "id_jag",
    "jwt_bearer",
    "merged",
    "refresh",
    "revoke",
    "token_exchange",
]

ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"

LONGEST_LIFE = 10 * 365 * 86400.0
"""Seconds a token may be said to live; what is said above that is taken for this."""
MOST_TOKEN = 64 * 1024
"""Characters of a token, which goes into a header."""
DEVICE_INTERVAL = 5.0
"""Seconds between polls if the server names none, and what ``slow_down`` adds (RFC 8628 §3.5)."""
MOST_USER_CODE = 100
"""Characters of a code that a person types."""
DEVICE_LIFE = 900.0
"""Seconds a device code is held to live if the server does not say."""
LONGEST_INTERVAL = 60.0
ONE_POLL = 30.0
"""Seconds for one exchange of a poll."""

_SECONDS = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,9})?")
_KNOWN_TYPES = {"bearer": "Bearer", "dpop": "DPoP"}


class TokenSet(Struct, frozen=True, kw_only=True):
    """What a token endpoint gave."""

    access_token: Secret
    token_type: str = "Bearer"
    """``Bearer``, ``DPoP``, or ``N_A`` for what is no access token (token exchange)."""
    expires_in: float | None = None
    """Seconds from the answer; 0: expired on arrival. None: not said, or nothing that can be read."""
    refresh_token: Secret | None = None
    scopes: tuple[str, ...] | None = None
    """None: not said, so what was asked for (RFC 6749 §5.1)."""
    id_token: Secret | None = None
    issued_token_type: str = ""


class DeviceCode(Struct, frozen=True, kw_only=True):
    """What a person is shown, and what we poll with (RFC 8628 §3.2)."""

    device_code: Secret
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = DEVICE_LIFE
    """Seconds from the answer."""
    interval: float = DEVICE_INTERVAL
    """Seconds between polls."""


async def exchange_code(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    code: Secret,
    verifier: Secret,
    redirect_uri: str,
    resource: str | None,
    deadline: float,
    prover: Prover | None = None,
) -> TokenSet:
    """The code of a callback for tokens (RFC 6749 §4.1.3, RFC 7636 §4.5).

    Raises:
        GrantError: no tokens. A code is used up by being sent, so a failure after that ends the attempt.
        NeedsClient: the registration cannot work.
    """
    form = Form(
        [
            ("grant_type", "authorization_code"),
            ("code", code.reveal()),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier.reveal()),
        ]
    )
    return await _token(http, metadata, registration, form, (), resource, deadline, prover)


async def refresh(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    refresh_token: Secret,
    resource: str | None,
    deadline: float,
    scopes: Sequence[str] = (),
    prover: Prover | None = None,
) -> TokenSet:
    """New tokens for a refresh token (RFC 6749 §6). ``scopes`` can only narrow; left out, all stay.

    Raises:
        GrantError: no tokens; ``sent`` and no answer means that the refresh token may be spent.
        NeedsClient: the registration cannot work.
    """
    form = Form([("grant_type", "refresh_token"), ("refresh_token", refresh_token.reveal())])
    return await _token(http, metadata, registration, form, scopes, resource, deadline, prover)


async def client_credentials(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    scopes: Sequence[str],
    resource: str | None,
    deadline: float,
    prover: Prover | None = None,
) -> TokenSet:
    """A token for the client itself (RFC 6749 §4.4), by basic, post or private_key_jwt as the registration has it.

    Raises:
        GrantError: no token.
        NeedsClient: the registration cannot work.
    """
    form = Form([("grant_type", "client_credentials")])
    return await _token(http, metadata, registration, form, scopes, resource, deadline, prover)


async def jwt_bearer(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    assertion: Secret,
    scopes: Sequence[str],
    resource: str | None,
    deadline: float,
    prover: Prover | None = None,
) -> TokenSet:
    """A token for a JWT somebody else signed (RFC 7523 §2.1): an ID-JAG, or a workload's own identity.

    Raises:
        GrantError: no token; nothing else is tried, and another grant would not be what was asked for.
        NeedsClient: the registration cannot work.
    """
    form = Form([("grant_type", JWT_BEARER), ("assertion", assertion.reveal())])
    return await _token(http, metadata, registration, form, scopes, resource, deadline, prover)


async def token_exchange(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    subject_token: Secret,
    subject_token_type: str,
    requested_token_type: str = "",
    audience: str = "",
    scopes: Sequence[str] = (),
    resource: str | None,
    deadline: float,
    prover: Prover | None = None,
) -> TokenSet:
    """One token for another (RFC 8693 §2.1). Empty parameters are left out.

    Raises:
        GrantError: none.
        NeedsClient: the registration cannot work.
    """
    form = Form(
        [
            ("grant_type", TOKEN_EXCHANGE),
            ("subject_token", subject_token.reveal()),
            ("subject_token_type", subject_token_type),
        ]
    )
    form += [("requested_token_type", requested_token_type)] if requested_token_type else []
    form += [("audience", audience)] if audience else []
    return await _token(http, metadata, registration, form, scopes, resource, deadline, prover, exchange=True)


async def id_jag(
    http: Endpoint,
    idp: ServerMetadata,
    registration: Registration,
    *,
    id_token: Secret,
    audience: str,
    resource: str,
    deadline: float,
    scopes: Sequence[str] = (),
) -> Secret:
    """Enterprise-managed authorization, first half: the company's identity provider vouches for us at another server.

    ``registration`` is ours at the provider; ``audience`` is the issuer of the server's authorization server and
    ``resource`` the server's own identifier. The second half is ``jwt_bearer`` at that authorization server.

    Raises:
        GrantError: the provider gave no ID-JAG.
        NeedsClient: the registration cannot work.
    """
    tokens = await token_exchange(
        http,
        idp,
        registration,
        subject_token=id_token,
        subject_token_type=ID_TOKEN,
        requested_token_type=ID_JAG,
        audience=audience,
        scopes=scopes,
        resource=resource,
        deadline=deadline,
    )
    if tokens.issued_token_type not in ("", ID_JAG):
        raise GrantError(
            "unusable",
            f"it issued a {tokens.issued_token_type[:100]} where an ID-JAG was asked for",
            status=200,
            what=_what(idp),
        )
    return tokens.access_token


async def device_begin(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    scopes: Sequence[str],
    resource: str | None,
    deadline: float,
) -> DeviceCode:
    """A code for a person to type elsewhere (RFC 8628 §3.1).

    Raises:
        GrantError: none; or the server has no such endpoint (nothing was sent).
        NeedsClient: the registration cannot work.
    """
    url = metadata.device_authorization_endpoint
    if not url:
        raise GrantError(
            "unsupported_grant_type",
            "it names no device authorization endpoint",
            sent=False,
            what=_what(metadata),
        )
    form = _with_target(Form(), scopes, resource)
    body = await _post(http, url, metadata, registration, form, resource, deadline, None)
    device_code, user_code = body.get("device_code"), body.get("user_code")
    place = body.get("verification_uri") or body.get("verification_url")  # as Google has it
    complete = body.get("verification_uri_complete")
    if not all(isinstance(each, str) and each for each in (device_code, user_code, place)):
        raise GrantError(
            "unusable", "no device code, user code and place to type it", status=200, what=_what(metadata)
        )
    if not _is_typed(str(user_code)):
        raise GrantError("unusable", "a user code that nobody can type", status=200, what=_what(metadata))
    interval = _seconds(body.get("interval"))
    life = _seconds(body.get("expires_in"))
    return DeviceCode(
        device_code=Secret(str(device_code)),
        user_code=str(user_code),
        verification_uri=str(place),
        verification_uri_complete=complete if isinstance(complete, str) else "",
        expires_in=DEVICE_LIFE if life is None else life,
        interval=DEVICE_INTERVAL if interval is None else min(max(interval, 1.0), LONGEST_INTERVAL),
    )


async def device_wait(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    device: DeviceCode,
    *,
    resource: str | None,
    deadline: float,
    prover: Prover | None = None,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> TokenSet:
    """Poll until the person is done, the code has expired or the deadline is there (RFC 8628 §3.4, §3.5).

    ``slow_down`` adds 5 s to every further pause, and a failure of the network doubles it; both stay.

    Raises:
        GrantError: ``access_denied``, ``expired_token`` (also by our own clock), or another refusal.
        NeedsClient: the registration cannot work.
    """
    clock = asyncio.get_running_loop().time
    end = min(deadline, clock() + device.expires_in)
    interval = device.interval
    form = Form([("grant_type", DEVICE_CODE), ("device_code", device.device_code.reveal())])
    while True:
        if clock() + interval >= end:
            raise GrantError(
                "expired_token",
                "nobody typed the code in time",
                sent=False,
                what=_what(metadata),
                fix="begin the login anew",
            )
        await pause(interval)
        try:
            within = min(end, clock() + ONE_POLL)
            return await _token(http, metadata, registration, form, (), resource, within, prover)
        except GrantError as error:
            if error.code == "authorization_pending":
                continue
            if error.code == "slow_down":
                interval += DEVICE_INTERVAL
            elif error.transient:
                interval = max(min(interval * 2, LONGEST_INTERVAL), error.retry_after or 0.0)
            else:
                raise


async def revoke(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    *,
    token: Secret,
    hint: str,
    deadline: float,
) -> bool:
    """Tell the server that a token is over (RFC 7009). A token it knows not is over, too.

    False: it offers no way to, or none for a token of this kind (§2.2.1), which then lives on until it expires.

    Raises:
        GrantError: it did not take it.
        NeedsClient: the registration cannot work.
    """
    if not metadata.revocation_endpoint:
        return False
    form, headers = Form([("token", token.reveal()), ("token_type_hint", hint)]), Headers()
    clients.authenticate(form, headers, registration, metadata, now=time.time())
    hidden = _hidden(form, registration)
    what = _what(metadata)
    answer = await ask(
        http.post_form(metadata.revocation_endpoint, form, headers, within=left(deadline)), what, hidden
    )
    if not 200 <= answer.status <= 299:  # a good answer has any body, or none (§2.2)
        try:
            read_answer(answer, what, hidden)
        except GrantError as error:
            if error.code != "unsupported_token_type" or error.transient:
                raise
            return False
    return True


def granted(
    key: CredentialKey,
    registration: Registration,
    metadata: ServerMetadata,
    tokens: TokenSet,
    *,
    now: float,
    requested_scopes: Sequence[str],
    resource: str | None,
    grant: str = "authorization_code",
    dpop_jwk: Secret | None = None,
    version: int = 1,
) -> Credential:
    """A new credential from the first answer of a grant. ``now``: when the request was sent, so never too late;
    ``resource``: what was sent as that."""
    return Credential(
        key=key,
        registration=clients.normalised(registration, metadata),
        metadata=metadata,
        access_token=tokens.access_token,
        token_type=tokens.token_type,
        expires_at=None if tokens.expires_in is None else now + tokens.expires_in,
        obtained_at=now,
        granted_at=now,
        refresh_token=tokens.refresh_token,
        scopes=tuple(requested_scopes) if tokens.scopes is None else tokens.scopes,
        requested_scopes=tuple(requested_scopes),
        resource_sent=resource is not None,
        resource_param="" if resource in (None, key.resource) else resource or "",
        grant=grant,
        dpop_jwk=dpop_jwk if tokens.token_type == "DPoP" else None,
        version=version,
    )


def merged(credential: Credential, tokens: TokenSet, *, now: float) -> Credential:
    """The credential after a refresh: what the answer leaves out stays (F10.5), the version grows by one.

    Its client is written as it is understood here: what another program stored may say less.
    """
    return msgspec.structs.replace(
        credential,
        registration=clients.normalised(credential.registration, credential.metadata),
        access_token=tokens.access_token,
        token_type=tokens.token_type,
        expires_at=None if tokens.expires_in is None else now + tokens.expires_in,
        obtained_at=now,
        refresh_token=tokens.refresh_token or credential.refresh_token,
        scopes=credential.scopes if tokens.scopes is None else tokens.scopes,
        version=credential.version + 1,
        state="good",
        reason="",
    )


# --- one exchange -------------------------------------------------------------------------------------------------


def _what(metadata: ServerMetadata) -> str:
    return f"the authorization server {metadata.issuer}"


def _with_target(form: Form, scopes: Sequence[str], resource: str | None) -> Form:
    out = Form(form)
    if scopes:
        out.append(("scope", " ".join(scopes)))
    if resource:
        out.append(("resource", resource))
    return out


def _hidden(form: Form, registration: Registration) -> list[Secret]:
    """What a server might repeat of a request."""
    return [
        *clients.secrets_of(registration),
        *(Secret(value) for name, value in form if name in _SECRET_FIELDS),
    ]


_SECRET_FIELDS = frozenset(
    {
        *(
            "code",
            "code_verifier",
            "refresh_token",
            "assertion",
            "subject_token",
            "client_secret",
            "client_assertion",
        ),
        *("device_code", "token"),
    }
)


async def _token(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    form: Form,
    scopes: Sequence[str],
    resource: str | None,
    deadline: float,
    prover: Prover | None,
    exchange: bool = False,
) -> TokenSet:
    what = _what(metadata)
    if not metadata.token_endpoint:
        raise GrantError("unsupported_grant_type", "it names no token endpoint", sent=False, what=what)
    whole = _with_target(form, scopes, resource)
    url = metadata.token_endpoint
    body = await _post(http, url, metadata, registration, whole, resource, deadline, prover)
    return _tokens(body, what, prover is not None, exchange)


async def _post(
    http: Endpoint,
    url: str,
    metadata: ServerMetadata,
    registration: Registration,
    form: Form,
    resource: str | None,
    deadline: float,
    prover: Prover | None,
) -> dict[str, Any]:
    """One exchange; a second one only where the server refused the first for a nonce that it then names."""
    again = prover is not None
    while True:
        now = time.time()
        whole, headers = Form(form), Headers()
        clients.authenticate(whole, headers, registration, metadata, now=now)
        if prover is not None:
            headers["DPoP"] = prover.proof("POST", url, now=now).reveal()
        hidden = _hidden(whole, registration)
        answer = await ask(
            http.post_form(url, whole, headers, within=left(deadline)), _what(metadata), hidden
        )
        new_nonce = prover is not None and prover.nonces.learn(url, answer.headers)
        try:
            return read_answer(answer, _what(metadata), hidden, resource_sent=bool(resource))
        except GrantError as error:
            if error.code != "use_dpop_nonce" or not (again and new_nonce):
                raise
            again = False


def _tokens(body: dict[str, Any], what: str, proved: bool, exchange: bool) -> TokenSet:
    access = _secret(body.get("access_token"))
    if access is None:
        raise _unusable("an answer without an access token that can be sent", what)
    named = body.get("token_type")
    kind = _KNOWN_TYPES.get(named.strip().lower()) if isinstance(named, str) and named.strip() else "Bearer"
    if kind is None and exchange and isinstance(named, str) and named.strip().upper() == "N_A":
        kind = "N_A"  # RFC 8693 §2.2.1
    if kind is None or (kind == "DPoP" and not proved):
        raise _unusable("a token of a type that was not asked for", what)
    issued = body.get("issued_token_type")
    return TokenSet(
        access_token=access,
        token_type=kind,
        expires_in=_seconds(body.get("expires_in")),
        refresh_token=_secret(body.get("refresh_token")),
        scopes=parse_scope(body.get("scope")) or None,
        id_token=_secret(body.get("id_token")),
        issued_token_type=issued if isinstance(issued, str) else "",
    )


def _is_typed(code: str) -> bool:
    return len(code) <= MOST_USER_CODE and code.isprintable()


def _unusable(description: str, what: str) -> GrantError:
    # Transient: it changes nothing, and a later answer may be better.
    return GrantError("unusable", description, transient=True, status=200, what=what)


def _secret(value: object) -> Secret | None:
    """A token; None for what is none: nothing, or text that cannot stand in a header."""
    if not isinstance(value, str) or not 0 < len(value) <= MOST_TOKEN:
        return None
    return Secret(value) if value.isascii() and value.isprintable() and " " not in value else None


def _seconds(value: object) -> float | None:
    """A length of time in an answer: a number, or the text of one; None for anything else (F10.7)."""
    if isinstance(value, str) and _SECONDS.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if value != value or value < 0:
        return None
    return LONGEST_LIFE if value >= LONGEST_LIFE or math.isinf(value) else float(value)
