"""The plain data of OAuth: what servers say of themselves, who we are there, and what we hold. No I/O, no clock.

Frozen structs, owned by nobody. A document from a server (RFC 8414, RFC 9728) is read leniently: what can mean only
one thing is accepted, a field that cannot be read is left out, and ``problems`` says so; what identifies the server
(``issuer``, ``resource``) is taken letter by letter or not at all.

What a store keeps are bytes of two lines of JSON: a header for people, without secrets, and the record. Secrets leave
their wrappers only in ``encode_credential`` and ``encode_registration``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct

from .._secret import Secret, decode_hook, reveal_hook

__all__ = [
    "ALONE",
    "LOCAL",
    "LOGIN",
    "AuthMethod",
    "BadRecord",
    "Credential",
    "CredentialKey",
    "CredentialState",
    "Registration",
    "RegistrationSource",
    "ResourceMetadata",
    "ServerMetadata",
    "decode_credential",
    "decode_registration",
    "encode_credential",
    "encode_registration",
    "login_key",
    "read_header",
    "read_resource_metadata",
    "read_server_metadata",
    "registration_key",
]

LOCAL = "local"
"""The principal of whoever runs the program."""

ALONE = frozenset({"client_credentials", "enterprise", "workload"})
"""Ways to a token (``Credential.grant``) that take no person."""

LOGIN = "-login"
"""Ending of the key of a note that a login is under way."""

FORMAT = 1
"""Of what is stored. A newer one is read if it can be."""

MAX_LIST = 1000
"""Members kept of a list in a document of a server."""

AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
RegistrationSource = Literal["configured", "cimd", "dynamic"]
CredentialState = Literal["good", "refused", "lost"]

T = TypeVar("T", bound=Struct)


class BadRecord(ValueError):
    """Stored bytes that are no record of ours. The text names no part of them."""


class CredentialKey(Struct, frozen=True):
    """What a credential belongs to (law 6): never used for anything else."""

    principal: str
    issuer: str
    client_id: str
    resource: str
    """Canonical URL of the MCP server, also where it is not sent as ``resource``."""

    def digest(self) -> str:
        """SHA-256 in hex: the name of the entry in a store."""
        return _digest("credential", self.principal, self.issuer, self.client_id, self.resource)


class ServerMetadata(Struct, frozen=True, kw_only=True):
    """What an authorization server says of itself (RFC 8414, OpenID Connect Discovery). Empty text: not said."""

    issuer: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    introspection_endpoint: str = ""
    device_authorization_endpoint: str = ""
    pushed_authorization_request_endpoint: str = ""
    require_pushed_authorization_requests: bool = False
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    """None: not said, which RFC 8414 reads as ``client_secret_basic``."""
    token_endpoint_auth_signing_alg_values_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    """None: not said, which RFC 8414 reads as code and implicit."""
    response_types_supported: tuple[str, ...] | None = None
    response_modes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    scopes_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    authorization_grant_profiles_supported: tuple[str, ...] | None = None
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False
    resource_indicators_supported: bool | None = None
    source: str = ""
    """URL of the document; empty for endpoints that were assumed (2025-03-26) or configured."""
    problems: tuple[str, ...] = ()
    """What of the document was left out."""


class ResourceMetadata(Struct, frozen=True, kw_only=True):
    """What a protected resource says of itself (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    bearer_methods_supported: tuple[str, ...] | None = None
    resource_name: str = ""
    resource_documentation: str = ""
    dpop_signing_alg_values_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool = False
    authorization_details_types_supported: tuple[str, ...] | None = None
    source: str = ""
    """URL of the document."""
    problems: tuple[str, ...] = ()


class Registration(Struct, frozen=True, kw_only=True):
    """Who we are at one authorization server."""

    issuer: str
    client_id: str
    client_secret: Secret | None = None
    auth_method: AuthMethod | None = None
    """None only before ``clients.normalised``, through which each goes on read, on write and in memory."""
    redirect_uris: tuple[str, ...] = ()
    client_secret_expires_at: float | None = None
    """Wall clock seconds; None: never, or not said."""
    registration_access_token: Secret | None = None
    registration_client_uri: str = ""
    source: RegistrationSource = "dynamic"
    registered_at: float | None = None
    """Wall clock seconds."""
    grant_types: tuple[str, ...] = ()
    """What the server says it granted; empty: not said."""
    scope: str = ""
    """The scopes the server holds this client to; empty: not said."""
    asked_scope: str = ""
    """The scopes that were wanted when it was registered, whether or not the server took them."""
    in_vain: int = 0
    """Logins in a row from which nobody came back: the server may have forgotten it."""
    signing_key: Secret | None = None
    """JWK (as JSON) for ``private_key_jwt``."""
    extra: dict[str, Any] = {}
    """The rest of the registration answer, without its secrets."""


class Credential(Struct, frozen=True, kw_only=True):
    """What we hold for one key. Carries the metadata, so that a restart refreshes at the right endpoint."""

    key: CredentialKey
    registration: Registration
    metadata: ServerMetadata
    access_token: Secret
    token_type: str = "Bearer"
    expires_at: float | None = None
    """Wall clock seconds; at that time it is expired. None: not known, so used until a 401."""
    obtained_at: float
    """Wall clock seconds, as all times here: of the access token."""
    granted_at: float | None = None
    """Of the first one, so of the login. None: not known."""
    refresh_token: Secret | None = None
    scopes: tuple[str, ...] = ()
    """What was granted."""
    requested_scopes: tuple[str, ...] = ()
    """What was asked for: a step-up asks for these and the challenged ones."""
    resource_sent: bool = True
    """Whether ``resource`` was sent, so whether a refresh sends it."""
    resource_param: str = ""
    """What was sent; empty: the resource of the key."""
    grant: str = "authorization_code"
    """How the first token was got: a client_credentials one is got anew, not refreshed."""
    dpop_jwk: Secret | None = None
    """The private key (JWK as JSON) the token is bound to."""
    version: int = 1
    """Grows by one with each write."""
    state: CredentialState = "good"
    """``refused``: the server will not refresh it. ``lost``: the server rotated it and the answer was lost."""
    reason: str = ""
    """Why it is not good; for people, without secrets."""

    def __repr__(self) -> str:
        return (
            f"Credential(issuer={self.key.issuer!r}, client_id={self.key.client_id!r}, "
            f"resource={self.key.resource!r}, version={self.version}, state={self.state!r})"
        )


def registration_key(issuer: str, redirect_uri: str) -> str:
    """The name of a stored registration: of an issuer and a redirect URI (empty for grants without one)."""
    return _digest("registration", issuer, redirect_uri)


def login_key(principal: str, resource: str) -> str:
    """The name under which a login that is under way is noted, and its lock."""
    return _digest("login", principal, resource) + LOGIN


def read_server_metadata(document: object, *, source: str = "") -> ServerMetadata | None:
    """An AS metadata document as decoded JSON; None if it is none: no object, or no text as ``issuer``.

    Whether the issuer is the one asked for is the caller's to check.
    """
    return _read(document, ServerMetadata, "issuer", source)


def read_resource_metadata(document: object, *, source: str = "") -> ResourceMetadata | None:
    """A protected resource metadata document; None if it is no object or has no text as ``resource``."""
    return _read(document, ResourceMetadata, "resource", source)


def encode_credential(credential: Credential) -> bytes:
    """For a store: a header line without secrets, and the record with them."""
    key = credential.key
    header = {
        "moorings": "credential",
        "format": FORMAT,
        "principal": key.principal,
        "issuer": key.issuer,
        "client_id": key.client_id,
        "resource": key.resource,
        "scopes": credential.scopes,
        "expires_at": credential.expires_at,
        "obtained_at": credential.obtained_at,
        "refreshable": credential.refresh_token is not None,
        "grant": credential.grant,
        "version": credential.version,
        "state": credential.state,
        "reason": credential.reason,
    }
    return _encode(header, credential)


def decode_credential(data: bytes) -> Credential:
    """A credential from a store.

    Raises:
        BadRecord: the bytes are empty, cut off, or no credential.
    """
    return _decode(data, "credential", _credentials)


def encode_registration(registration: Registration) -> bytes:
    """For a store, as ``encode_credential``."""
    header = {
        "moorings": "registration",
        "format": FORMAT,
        "issuer": registration.issuer,
        "client_id": registration.client_id,
        "redirect_uris": registration.redirect_uris,
        "auth_method": registration.auth_method,
        "source": registration.source,
        "registered_at": registration.registered_at,
        "client_secret_expires_at": registration.client_secret_expires_at,
    }
    return _encode(header, registration)


def decode_registration(data: bytes) -> Registration:
    """A registration from a store.

    Raises:
        BadRecord: the bytes are empty, cut off, or no registration.
    """
    return _decode(data, "registration", _registrations)


def read_header(data: bytes) -> dict[str, Any]:
    """What people may see of stored bytes: no secret is read.

    Raises:
        BadRecord: they do not begin with a header of ours.
    """
    try:
        header = msgspec.json.decode(data.partition(b"\n")[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        header = None
    if not isinstance(header, dict) or "moorings" not in header:
        raise BadRecord("not a record of Moorings: its first line is no header")
    return header


# --- how ----------------------------------------------------------------------------------------------------------


_credentials = msgspec.json.Decoder(Credential, dec_hook=decode_hook)
_registrations = msgspec.json.Decoder(Registration, dec_hook=decode_hook)
_encoder = msgspec.json.Encoder(enc_hook=reveal_hook)


def _digest(*parts: str) -> str:
    # Their lengths keep the parts apart, whatever they hold; a lone surrogate must not stop it.
    text = "\n".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _encode(header: dict[str, Any], record: Struct) -> bytes:
    return msgspec.json.encode(header) + b"\n" + _encoder.encode(record) + b"\n"


def _decode(data: bytes, kind: str, decoder: msgspec.json.Decoder[T]) -> T:
    header = read_header(data)
    if header["moorings"] != kind:
        raise BadRecord(f"not a {kind}")
    record = data.partition(b"\n")[2]
    if not record.strip():
        raise BadRecord(f"a {kind} that was cut off: there is only its header")
    try:
        return decoder.decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotImplementedError):
        # The text of the fault may quote what it found there.
        raise BadRecord(f"a {kind} that cannot be read: cut off, or damaged") from None


def _read(document: object, kind: type[T], identity: str, source: str) -> T | None:
    if not isinstance(document, Mapping):
        return None
    name = document.get(identity)
    if not isinstance(name, str) or not name:
        return None
    values: dict[str, Any] = {identity: name, "source": source}
    problems: list[str] = []
    for field in msgspec.structs.fields(kind):
        if field.name in (identity, "source", "problems") or document.get(field.name) is None:
            continue
        try:
            values[field.name] = _value(document[field.name], field.type)
        except ValueError as fault:
            problems.append(f"{field.name} {fault}; passed over")
    return kind(**values, problems=tuple(problems))


def _value(value: object, want: Any) -> Any:
    if want is str:
        if isinstance(value, str):
            return value
        raise ValueError("is no text")
    if want is bool or bool in get_args(want):
        return _boolean(value)
    assert get_origin(want) is tuple or any(get_origin(arg) is tuple for arg in get_args(want))
    if isinstance(value, str):  # a blank stands in no scope, URL or name of a method: it can only part them
        value = value.split()
    if not isinstance(value, list | tuple):
        raise ValueError("is no list")
    return tuple(item for item in value[:MAX_LIST] if isinstance(item, str) and item)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("is no boolean")
