"""Who we are to an authorization server: one normalisation, one method of authentication (RFC 6749 §2.3, RFC 7523).

``normalised`` is applied wherever a registration enters: read from a store, answered by a server, taken from the
configuration. After it a secret has a method that sends it, and nothing else in the house looks at the pair again.
``check_usable`` refuses what cannot work before a person is sent to a browser. Pure but for signatures.
"""

from __future__ import annotations

import base64
import secrets
from urllib.parse import quote

import msgspec

from .._secret import Secret
from . import jose
from .faults import NeedsClient
from .model import AuthMethod, Registration, ServerMetadata

__all__ = ["authenticate", "check_usable", "client_assertion", "expired", "normalised", "secrets_of"]

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ASSERTION_SECONDS = 60
"""Life of a client assertion: used once, at once; the rest is for clocks that differ."""
EXPIRY_MARGIN = 30.0
"""Seconds before its end from which a client secret counts as expired."""


def normalised(registration: Registration, metadata: ServerMetadata | None = None) -> Registration:
    """The same client with the method that fits what it holds. Twice is as good as once.

    - a secret with no method or ``none``: basic if the metadata allows it, else post; ``none`` stays only where the
      server takes nothing else (then the secret is not sent);
    - a key with no method, or without a secret: ``private_key_jwt``;
    - nothing to prove itself with and no method: ``none``. A method that lacks its secret stays, for
      ``check_usable`` to refuse: to go on without it could only fail later, and in front of a person.
    """
    secret = registration.client_secret or None
    key = registration.signing_key or None
    method = registration.auth_method
    if method is None or (method == "none" and (secret or key)):
        # Without the metadata it stays open: a guess would be kept, and outlive the metadata's word.
        method = _fitting(secret, key, metadata) if metadata is not None or not (secret or key) else None
    expires = registration.client_secret_expires_at
    return msgspec.structs.replace(
        registration,
        client_secret=secret,
        signing_key=key,
        auth_method=method,
        client_secret_expires_at=expires if secret and expires is not None and expires > 0 else None,
    )


def _fitting(secret: Secret | None, key: Secret | None, metadata: ServerMetadata | None) -> AuthMethod:
    taken = metadata.token_endpoint_auth_methods_supported if metadata else None
    if key and (not taken or "private_key_jwt" in taken or not secret):
        return "private_key_jwt"
    if not secret:
        return "none"
    if not taken or "client_secret_basic" in taken:  # what RFC 8414 §2 takes silence for
        return "client_secret_basic"
    if "client_secret_post" in taken:
        return "client_secret_post"
    return "none" if "none" in taken else "client_secret_basic"


def check_usable(registration: Registration, now: float) -> None:
    """Whether a normalised registration can work; ``now`` is the wall clock in seconds.

    Raises:
        NeedsClient: its method lacks what it sends, or its secret has expired.
    """
    method = registration.auth_method
    who = f"client {registration.client_id!r} at {registration.issuer}"
    if not registration.client_id:
        raise NeedsClient(f"there is no client id for {registration.issuer}", fix="set auth.client_id")
    if method in ("client_secret_basic", "client_secret_post"):
        if not registration.client_secret:
            raise NeedsClient(
                f"{who} is to authenticate by {method} and has no secret",
                fix='set auth.client_secret, or auth.auth_method = "none" for a public client',
            )
        if expired(registration, now):
            raise NeedsClient(f"the secret of {who} has expired", fix="set a new auth.client_secret")
    if method == "private_key_jwt" and not registration.signing_key:
        raise NeedsClient(
            f"{who} is to authenticate by private_key_jwt and has no key", fix="set auth.private_key_file"
        )
    if method is None:
        raise NeedsClient(f"{who} has no method of authentication", fix="set auth.auth_method")


def expired(registration: Registration, now: float) -> bool:
    """Whether the client secret is past its end, or as good as that."""
    end = registration.client_secret_expires_at
    return end is not None and end - EXPIRY_MARGIN <= now


def authenticate(
    form: list[tuple[str, str]],
    headers: dict[str, str],
    registration: Registration,
    metadata: ServerMetadata,
    *,
    now: float,
) -> None:
    """Add the one proof of who we are to a request: to the form or to the headers, never to both.

    Raises:
        NeedsClient: as ``check_usable``.
        AuthFault: a key that cannot sign; ``NeedsExtra`` where joserfc is missing.
    """
    registration = normalised(registration, metadata)
    check_usable(registration, now)
    client_id, method = registration.client_id, registration.auth_method
    form[:] = [pair for pair in form if pair[0] not in _OURS]
    for name in [name for name in headers if name.lower() == "authorization"]:
        del headers[name]
    if method == "client_secret_basic":
        assert registration.client_secret is not None
        headers["Authorization"] = f"Basic {_basic(client_id, registration.client_secret)}"
        return
    form.append(("client_id", client_id))
    if method == "client_secret_post":
        assert registration.client_secret is not None
        form.append(("client_secret", registration.client_secret.reveal()))
    elif method == "private_key_jwt":
        assert registration.signing_key is not None
        form.append(("client_assertion_type", ASSERTION_TYPE))
        form.append(("client_assertion", client_assertion(registration, metadata, now=now).reveal()))


_OURS = frozenset({"client_id", "client_secret", "client_assertion", "client_assertion_type"})


def client_assertion(registration: Registration, metadata: ServerMetadata, *, now: float) -> Secret:
    """A JWT that proves the client (RFC 7523 §3); its audience is the issuer, so no other server can use it."""
    assert registration.signing_key is not None
    key = jose.Key(registration.signing_key)
    claims = {
        "iss": registration.client_id,
        "sub": registration.client_id,
        "aud": metadata.issuer,
        "iat": int(now),
        "exp": int(now) + ASSERTION_SECONDS,
        "jti": secrets.token_urlsafe(24),
    }
    return key.sign(
        claims,
        algorithm=key.algorithm(metadata.token_endpoint_auth_signing_alg_values_supported),
        header={"kid": key.kid} if key.kid else None,
    )


def secrets_of(registration: Registration) -> tuple[Secret, ...]:
    """What a server's error text must not repeat."""
    own = [registration.client_secret, registration.registration_access_token, registration.signing_key]
    if registration.client_secret is not None:
        # As it travels in a header.
        own.append(Secret(_basic(registration.client_id, registration.client_secret)))
    return tuple(secret for secret in own if secret)


def _basic(client_id: str, secret: Secret) -> str:
    # Form-encoded first (RFC 6749 §2.3.1): a colon or a percent sign in either half is legal.
    both = f"{_encoded(client_id)}:{_encoded(secret.reveal())}"
    return base64.b64encode(both.encode("ascii")).decode("ascii")


def _encoded(text: str) -> str:
    # A blank as %20: servers that decode forms read it, and so do those that decode URLs.
    return quote(text, safe="")
