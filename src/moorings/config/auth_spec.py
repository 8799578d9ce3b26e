"""How tokens for one server are got: who we are, where we ask, by which flow, with which proof.

A plain frozen value, as the others of ``config/spec.py``. It satisfies what ``auth.discovery`` and
``auth.registration`` want of settings. What a file may say of it is read in ``config/auth_entry.py``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from .._checks import seconds
from .._secret import SHOWN, Secret
from .._urls import shown_url
from ..errors import MisuseError
from .auth_urls import document_fault, issuer_fault, listener_fault, redirect_fault, resource_fault
from .spec import Conflict, text, words

__all__ = [
    "CHOICES",
    "COMMANDS",
    "FLAGS",
    "PATHS",
    "SECRETS",
    "TAKEN_PARAMS",
    "TEXTS",
    "AuthMethod",
    "AuthSettings",
    "Flow",
    "TokenSource",
    "auth_conflicts",
    "auth_forms",
    "chosen_flow",
]

AuthMethod = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How a client proves itself at the token endpoint (RFC 7591 section 2)."""

Flow = Literal["auto", "authorization_code", "device", "client_credentials", "enterprise", "workload"]
"""The way to a token."""

TokenSource = Secret | Callable[[], str | Awaitable[str]]
"""A token of somebody else: the text, or a function that gives it, sync or async."""

TEXTS = (
    *(
        "issuer",
        "resource",
        "client_id",
        "client_name",
        "client_metadata_url",
        "redirect_uri",
        "redirect_host",
    ),
    *("user_agent", "accept_issuer", "accept_resource", "private_key_alg", "idp_issuer", "idp_client_id"),
)
SECRETS = ("client_secret", "private_key", "assertion", "idp_client_secret", "idp_token")
"""Fields that are never shown. A text given for one becomes a Secret."""
FUNCTIONS = ("assertion", "idp_token")
"""Those of them that may be functions."""
FLAGS = ("cimd", "scope_ceiling", "assume_pkce", "private_networks")
PATHS = ("private_key_file", "assertion_file", "idp_token_file")
COMMANDS = ("assertion_command", "idp_token_command")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "auth_method": get_args(AuthMethod),
    "flow": get_args(Flow),
    "dpop": ("auto", "on", "off"),
}
"""Fields that are one of a few words."""

TAKEN_PARAMS = frozenset(
    {
        *(
            "response_type",
            "client_id",
            "redirect_uri",
            "state",
            "code_challenge",
            "code_challenge_method",
            "scope",
        ),
        *("resource", "dpop_jkt", "request", "request_uri", "response_mode", "iss"),
        *("client_secret", "client_assertion", "client_assertion_type", "code_verifier"),
    }
)
"""What ``authorize_params`` cannot set: the login does, or it is a secret and the URL is seen by many."""

ALGORITHMS = (
    *(
        "RS256",
        "RS384",
        "RS512",
        "PS256",
        "PS384",
        "PS512",
        "ES256",
        "ES384",
        "ES512",
        "EdDSA",
        "Ed25519",
        "Ed448",
    ),
)
"""By which a client can sign (RFC 7518, RFC 8037, RFC 9864)."""

WORKLOAD = ("assertion", "assertion_file", "assertion_command")
IDP_TOKEN = ("idp_token", "idp_token_file", "idp_token_command")
ENTERPRISE = ("idp_issuer", "idp_client_id", "idp_client_secret", *IDP_TOKEN)
KEY = ("private_key", "private_key_file")

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LINES = ("private_key",)
"""Secrets of several lines."""


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens for one server are got. Each setting has a default, and all defaults are what servers usually need."""

    issuer: str | None = None
    """The authorization server, named by hand: what the server says of others does not count. Name it beside a
    ``client_secret``, so that no other can be sent that."""
    resource: str = "auto"
    """What is sent as ``resource``: ``auto`` is what the server says of itself, else its URL; ``off`` leaves it out,
    for authorization servers that turn it away; anything else is sent as it stands."""
    client_id: str | None = None
    """A client that was registered by hand. Without one, Moorings introduces itself by a document or registers."""
    client_secret: Secret | None = None
    """Its secret."""
    auth_method: AuthMethod | None = None
    """How the client proves itself: ``none``, ``client_secret_basic``, ``client_secret_post`` or ``private_key_jwt``.
    If not set, by what it has and what the authorization server takes."""
    client_name: str = "Moorings"
    """What people see when they are asked to consent."""
    client_metadata_url: str | None = None
    """URL of a client document that you host (https); the URL is then the client id wherever documents are taken."""
    cimd: bool = True
    """False: the client document is not used."""
    scopes: tuple[str, ...] = ()
    """What is asked for, in place of what the server names; a list, or one text with blanks. If the server wants more
    for a call, that is added."""
    scope_ceiling: bool = False
    """True: never more than ``scopes``."""
    redirect_uri: str | None = None
    """Where a browser is sent back to, letter by letter as it was registered: https, or http of this machine. If not
    set, it is made of the next two."""
    redirect_host: str = "127.0.0.1"
    """Host of the listener for the answer of a login: a name or address of this machine."""
    redirect_port: int = 0
    """Its port; 0 is one that Moorings chooses."""
    authorize_params: Mapping[str, str] = {}
    """Further parameters of the authorization URL, such as ``audience`` or ``prompt``."""
    user_agent: str | None = None
    """Of requests to the authorization server, in place of that of the server."""
    flow: Flow = "auto"
    """The way to a token: ``authorization_code`` or ``device`` (a person logs in), ``client_credentials`` (the client
    itself), ``workload`` (a token of the platform), ``enterprise`` (the company's identity provider vouches). ``auto``:
    one of the last two if it has settings here, else a person logs in."""
    timeout: float = 300.0
    """Seconds that a login may take, the person included."""
    accept_issuer: str | None = None
    """What documents of the authorization server may say as their ``issuer`` in place of its URL: with a slash more,
    or a template."""
    accept_resource: str | None = None
    """What documents of the server may say as their ``resource`` in place of its URL."""
    assume_pkce: bool = False
    """True: an authorization server that does not say that it does PKCE is used, with S256, all the same."""
    private_networks: bool = False
    """True: the authorization server may have a private address. URLs that a server names could else lead into your
    network."""
    dpop: Literal["auto", "on", "off"] = "auto"
    """Tokens that are bound to a key (DPoP): ``auto`` where the server demands them, ``on`` always, ``off`` never.
    Needs ``moorings[jwt]``."""
    private_key_file: str | None = None
    """File of the key for ``private_key_jwt``: a PEM, or a JWK in JSON. Needs ``moorings[jwt]``."""
    private_key: Secret | None = None
    """The same as a text."""
    private_key_alg: str | None = None
    """How it signs, such as ``ES256``; if not set, by the kind of the key and what the authorization server takes."""
    assertion_file: str | None = None
    """For ``workload``: file of the token by which the platform says who we are; read anew each time."""
    assertion_command: tuple[str, ...] = ()
    """Or a program and its arguments, never a shell line, which writes it to its stdout."""
    assertion: TokenSource | None = None
    """Or the token; from code also a function that gives it, sync or async."""
    idp_issuer: str | None = None
    """For ``enterprise``: the company's identity provider."""
    idp_client_id: str | None = None
    """Our client there."""
    idp_client_secret: Secret | None = None
    """Its secret, if it has one."""
    idp_token_file: str | None = None
    """File of the ID token of whoever is logged in there; read anew each time."""
    idp_token_command: tuple[str, ...] = ()
    """Or a program and its arguments, never a shell line, which writes it to its stdout."""
    idp_token: TokenSource | None = None
    """Or the token; from code also a function that gives it, sync or async."""
    unresolved: tuple[str, ...] = ()
    """As that of the server: variables that a disabled entry of a file refers to and that were not set."""

    def __post_init__(self) -> None:
        """Texts become secrets, paths texts and lists tuples; what cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind or form, or one that contradicts another; no secret is shown.
        """
        set_ = msgspec.structs.force_setattr
        for name in TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and _default(name) is None):
                raise MisuseError(f"{name} is text, not {type(value).__name__}")
        for name in SECRETS:
            set_(self, name, _secret(name, getattr(self, name)))
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise MisuseError(f"{name} is True or False, not {type(getattr(self, name)).__name__}")
        for name, options in CHOICES.items():
            value = getattr(self, name)
            if value != _default(name) and value not in options:
                raise MisuseError(f"{name} is one of {', '.join(options)}, not {value!r}")
        for name in PATHS:
            if getattr(self, name) is not None:
                set_(self, name, text(name, getattr(self, name)))
        for name in COMMANDS:
            set_(self, name, words(name, getattr(self, name)))
        # OAuth itself writes them as one text with blanks (RFC 6749 section 3.3).
        scopes: Any = self.scopes
        scopes = scopes.split() if isinstance(scopes, str) else scopes
        set_(self, "scopes", words("scopes", scopes))
        set_(self, "authorize_params", _params(self.authorize_params))
        if isinstance(self.redirect_port, bool) or not isinstance(self.redirect_port, int):
            raise MisuseError(f"redirect_port is a whole number, not {type(self.redirect_port).__name__}")
        set_(self, "timeout", seconds(self.timeout, "timeout"))
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        for conflict in auth_conflicts(given):
            raise MisuseError(f"{conflict.field}: {conflict.message}", fix=conflict.fix)

    def chosen_flow(self) -> Flow:
        """``flow``, or where that is ``auto`` what the other settings are for. ``auto``: a person logs in."""
        return chosen_flow({name: getattr(self, name) for name in self.__struct_fields__})

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What is set, without the values that are secrets."""
        given = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return [(name, _shown(name, value)) for name, value in given if value != _default(name)]

    def __repr__(self) -> str:
        return f"AuthSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def chosen_flow(given: Mapping[str, Any]) -> Flow:
    """The flow that these settings are for."""
    flow: Flow = given.get("flow") or "auto"
    if flow != "auto":
        return flow
    if _first(given, WORKLOAD):
        return "workload"
    return "enterprise" if _first(given, ENTERPRISE) else "auto"


def auth_conflicts(given: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is wrong with values of the right kind, one by one and beside each other; those that are absent are not set.

    Texts that hold references (``unresolved``) are not judged, only whether they are there.
    """
    yield from auth_forms(given)
    yield from _both(given, KEY, WORKLOAD, IDP_TOKEN)
    yield from _client(given)
    yield from _proof(given)
    yield from _redirect(given)
    yield from _flow(given)
    if given.get("scope_ceiling") and not given.get("scopes"):
        yield Conflict("scope_ceiling", "there are no scopes to keep to", "set scopes too")


# --- forms --------------------------------------------------------------------------------------------------------


_URLS = {
    "issuer": issuer_fault,
    "idp_issuer": issuer_fault,
    "client_metadata_url": document_fault,
    "redirect_uri": redirect_fault,
    "redirect_host": listener_fault,
}


def auth_forms(given: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is wrong with single values of the right kind."""
    if given.get("unresolved"):
        return
    for name in TEXTS:
        value = given.get(name)
        if value is None:
            continue
        if not value.strip() or not value.isprintable():
            yield Conflict(name, "it is empty, or holds a control character")
        elif name in _URLS and (fault := _URLS[name](value)) is not None:
            yield Conflict(name, fault.message, fault.fix)
    resource = given.get("resource")
    if resource and resource not in ("auto", "off") and (fault := resource_fault(resource)) is not None:
        yield Conflict("resource", fault.message, fault.fix)
    for name in SECRETS:
        if isinstance(secret := given.get(name), Secret) and (reason := _secret_fault(name, secret)):
            yield Conflict(name, reason)
    for name in PATHS:
        if given.get(name) == "":
            yield Conflict(name, "the path is empty")
    for name in COMMANDS:
        if given.get(name) and not given[name][0]:
            yield Conflict(name, "the program is empty")
    if not all(_SCOPE.fullmatch(scope) for scope in given.get("scopes") or ()):
        yield Conflict("scopes", "one of them is empty, or holds a character that no scope has")
    for name, value in (given.get("authorize_params") or {}).items():
        if name in TAKEN_PARAMS:
            fix = "scopes and resource have settings of their own" if name in ("scope", "resource") else None
            yield Conflict("authorize_params", f"{name} is not for you to set here", fix)
        elif not name or not name.isprintable() or _CONTROL.search(value):
            yield Conflict("authorize_params", "a name is empty, or something holds a control character")
    if not 0 <= (given.get("redirect_port") or 0) <= 65535:
        yield Conflict("redirect_port", "no port: it is 0 to 65535")
    if given.get("timeout", 1) == 0:
        yield Conflict("timeout", "a login takes its time: 0 is none")
    algorithm = given.get("private_key_alg")
    if algorithm and algorithm not in ALGORITHMS:
        yield Conflict(
            "private_key_alg", "no algorithm that is known here", f"write one of {', '.join(ALGORITHMS)}"
        )


def _secret_fault(name: str, secret: Secret) -> str | None:
    text = secret.reveal()
    if not text.strip():
        return "it is empty"
    if "\0" in text or (name not in _LINES and _CONTROL.search(text)):
        return "it holds a line break or another control character"
    return None


# --- beside each other --------------------------------------------------------------------------------------------


def _both(given: Mapping[str, Any], *groups: tuple[str, ...]) -> Iterator[Conflict]:
    for group in groups:
        there = [name for name in group if given.get(name)]
        if len(there) > 1:
            yield Conflict(there[1], f"{there[0]} is set too, and is for the same", "set one of them")


def _client(given: Mapping[str, Any]) -> Iterator[Conflict]:
    named = given.get("client_id")
    if given.get("client_secret") and not named:
        yield Conflict(
            "client_secret",
            "client_secret is set without client_id",
            "set client_id too; a client that registers by itself gets a secret of its own",
        )
    if named and given.get("client_metadata_url"):
        yield Conflict(
            "client_metadata_url", "client_id is set too, and both say who we are", "set one of them"
        )


def _proof(given: Mapping[str, Any]) -> Iterator[Conflict]:
    method, key, secret = given.get("auth_method"), _first(given, KEY), given.get("client_secret")
    if given.get("private_key_alg") and not key:
        yield Conflict("private_key_alg", "there is no key to sign with", "set private_key_file")
    if method == "none" and (secret or key):
        yield Conflict(
            "auth_method",
            f"none sends no proof, and {'client_secret' if secret else key} is set",
            "take one of them out",
        )
    elif method == "private_key_jwt" and not key:
        yield Conflict("auth_method", "private_key_jwt needs a key", "set private_key_file or private_key")
    elif method == "private_key_jwt" and secret:
        yield Conflict(
            "auth_method", "private_key_jwt sends no secret, and client_secret is set", "take one of them out"
        )
    elif method in ("client_secret_basic", "client_secret_post"):
        if key:
            yield Conflict("auth_method", f"{method} uses no key, and {key} is set", "take one of them out")
        elif given.get("client_id") and not secret:
            yield Conflict(
                "auth_method",
                f"{method} sends a secret, and client_secret is not set",
                'set it, or auth_method = "none" for a client that has none',
            )


def _redirect(given: Mapping[str, Any]) -> Iterator[Conflict]:
    if given.get("redirect_uri"):
        for name in ("redirect_host", "redirect_port"):
            if given.get(name) not in (None, _default(name)):
                yield Conflict(name, "redirect_uri is set too, and holds host and port", "set one of them")


def _flow(given: Mapping[str, Any]) -> Iterator[Conflict]:
    flow, workload, enterprise = chosen_flow(given), _first(given, WORKLOAD), _first(given, ENTERPRISE)
    if workload and flow != "workload":
        yield Conflict(workload, f"it is for the flow 'workload', and flow is {flow!r}", "set one of them")
    if enterprise and flow != "enterprise":
        yield Conflict(
            enterprise, f"it is for the flow 'enterprise', and flow is {flow!r}", "set one of them"
        )
    missing: list[str] = []
    if flow == "workload" and not workload:
        missing = ["assertion_file (or assertion_command)"]
    elif flow == "enterprise":
        missing = [name for name in ("idp_issuer", "idp_client_id") if not given.get(name)]
        missing += [] if _first(given, IDP_TOKEN) else ["idp_token_file (or idp_token_command)"]
    elif flow == "client_credentials":
        missing = [] if given.get("client_id") else ["client_id"]
        if given.get("auth_method") == "none":
            yield Conflict(
                "auth_method", "the flow 'client_credentials' is for clients that prove themselves"
            )
        elif not given.get("client_secret") and not _first(given, KEY):
            missing.append("client_secret (or private_key_file)")
    if missing:
        where = "flow" if given.get("flow") == flow else enterprise or workload or "flow"
        yield Conflict(where, f"the flow {flow!r} needs more", f"set {' and '.join(missing)}")


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if given.get(name)), None)


# --- values -------------------------------------------------------------------------------------------------------


def _default(name: str) -> Any:
    return _DEFAULTS[name]


def _secret(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return Secret(value)
    if value is None or isinstance(value, Secret) or (name in FUNCTIONS and callable(value)):
        return value
    what = "text, or a function that gives it" if name in FUNCTIONS else "text"
    raise MisuseError(f"{name} is {what}; not {type(value).__name__}")


def _params(params: Any) -> dict[str, str]:
    if not isinstance(params, Mapping):
        raise MisuseError(f"authorize_params is a mapping of names to text, not {type(params).__name__}")
    for name, value in params.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MisuseError(f"authorize_params[{name!r}] is text, not {type(value).__name__}")
    return dict(params)


def _shown(name: str, value: Any) -> Any:
    if name in FUNCTIONS and callable(value):
        # A function may carry a secret in what it is made of (``functools.partial``): only its name is told.
        return f"function {getattr(value, '__qualname__', type(value).__name__)}"
    if name in SECRETS:
        return SHOWN
    if name in COMMANDS:
        return (*value[:1], *([SHOWN] * len(value[1:])))
    if isinstance(value, str) and "://" in value and ("@" in value or "?" in value):
        return shown_url(value)
    return value


_DEFAULTS: Mapping[str, Any] = {
    field.name: {} if field.default is msgspec.NODEFAULT else field.default
    for field in msgspec.structs.fields(AuthSettings)
}
