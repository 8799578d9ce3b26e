"""One authorization request and its answer: state, verifier, issuer and redirect URI are fixed together for its life.

RFC 6749 §4.1, RFC 7636, RFC 8707, RFC 9126 (where the server demands it), RFC 9207 (the ``iss`` table of
client-rules §6.1, 10). ``begin`` builds the URL for a browser, ``finish`` reads what the callback brought: the code, or
why not. Pure but for chance; whoever holds the request sees to it that it ends once.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from .._secret import Secret
from .._urls import shown_url
from ..net.addresses import is_loopback, origin
from . import clients
from .endpoint import Endpoint, Form, Headers, ask, left, read_answer
from .faults import GrantError, LoginDenied, LoginFault, StrayCallback, WrongIssuer, said
from .model import Registration, ServerMetadata
from .pkce import challenge_of, new_state, new_verifier

__all__ = ["AuthorizationRequest", "check_browser_url", "is_for", "push"]

OURS = frozenset(
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
    }
)
"""Parameters that ``authorize_params`` cannot set."""

MOST_CALLBACK = 64 * 1024
"""Characters of a callback's query."""
MOST_CODE = 16 * 1024
MOST_URL = 32 * 1024
"""Characters of a URL that a person opens: servers take less, and so do terminals and the arguments of programs."""

_URL_START = re.compile(r"/|[A-Za-z][A-Za-z0-9+.\-]*://")
# RFC 3986 has no others; a shell, a terminal or a page would read more into some of these.
_ODD = re.compile(r"[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")


class AuthorizationRequest(Struct, frozen=True, kw_only=True):
    """One attempt, as far as the protocol goes. Its secrets are in it: it is kept in memory only."""

    issuer: str
    """The validated one: the only server whose answer counts."""
    client_id: str
    redirect_uri: str
    state: Secret
    verifier: Secret
    scopes: tuple[str, ...] = ()
    resource: str | None = None
    iss_promised: bool = False
    """The server says that it sends ``iss`` with each answer."""
    endpoint: str
    params: tuple[tuple[str, str], ...]
    """Of the request, in order; the state among them."""

    @classmethod
    def begin(
        cls,
        metadata: ServerMetadata,
        registration: Registration,
        *,
        redirect_uri: str,
        resource: str | None,
        scopes: Sequence[str] = (),
        authorize_params: Mapping[str, str] | None = None,
        dpop_jkt: str | None = None,
        now: float | None = None,
    ) -> AuthorizationRequest:
        """A new attempt. ``now`` is the wall clock in seconds.

        Raises:
            LoginFault: the server cannot be asked safely, or a parameter is not the user's to set.
            NeedsClient: the registration cannot work, so no person is troubled.
        """
        clients.check_usable(clients.normalised(registration, metadata), time.time() if now is None else now)
        methods = metadata.code_challenge_methods_supported
        if methods is not None and "S256" not in methods:
            raise LoginFault(f"{metadata.issuer} does not do PKCE with S256, so a code could be stolen")
        check_browser_url(metadata.authorization_endpoint)
        taken = sorted(OURS & set(authorize_params or ()))
        if taken:
            raise LoginFault(
                f"auth.authorize_params sets {', '.join(taken)}, which the login sets itself",
                fix="take it out (scopes and resource have settings of their own)",
            )
        state, verifier = new_state(), new_verifier()
        params = [
            ("response_type", "code"),
            ("client_id", registration.client_id),
            ("redirect_uri", redirect_uri),
            ("state", state.reveal()),
            ("code_challenge", challenge_of(verifier)),
            ("code_challenge_method", "S256"),
        ]
        params += [("scope", " ".join(scopes))] if scopes else []
        params += [("resource", resource)] if resource else []
        params += [("dpop_jkt", dpop_jkt)] if dpop_jkt else []
        if "offline_access" in scopes and "prompt" not in (authorize_params or {}):
            params.append(
                ("prompt", "consent")
            )  # without it no refresh token is given (OpenID Connect Core §11)
        params += list((authorize_params or {}).items())
        return cls(
            issuer=metadata.issuer,
            client_id=registration.client_id,
            redirect_uri=redirect_uri,
            state=state,
            verifier=verifier,
            scopes=tuple(scopes),
            resource=resource,
            iss_promised=metadata.authorization_response_iss_parameter_supported,
            endpoint=metadata.authorization_endpoint,
            params=tuple(params),
        )

    @property
    def url(self) -> str:
        """For the browser. The state in it is no secret from the person, but belongs in no log."""
        parts = urlsplit(self.endpoint)
        # The endpoint may have a query of its own, which stays (RFC 6749 §3.1); blanks as %20, which all can read.
        query = "&".join(each for each in (parts.query, _encoded(self.params)) if each)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))

    def __repr__(self) -> str:
        return f"AuthorizationRequest(issuer={self.issuer!r}, redirect_uri={self.redirect_uri!r})"

    def finish(self, callback: str | Sequence[tuple[str, str]]) -> Secret:
        """The code that a callback brought. ``callback`` is its query or whole URL, or the pairs, decoded once.

        The order is that of trust: is it for this attempt, does it come from this server, and only then what it says.

        Raises:
            StrayCallback: not for this attempt, which goes on.
            WrongIssuer: another server's answer, or without the promised ``iss``. The attempt is over.
            LoginDenied: the server or the person said no. The attempt is over.
            LoginFault: neither a code nor an error. The attempt is over.
        """
        values = _once(_pairs(callback) if isinstance(callback, str) else callback)
        if not _has_state(values, self.state):
            raise StrayCallback("a callback with another state, or none: not of this login")
        self._check_issuer(values.get("iss"))
        hidden = (self.state, self.verifier, values.get("code"))
        error = values.get("error")
        if error:
            raise LoginDenied(
                said(error, hidden)[:100] or "error",
                said(values.get("error_description"), hidden),
                fix=_advice(error, values.get("error_description") or "", self.resource),
            )
        code = values.get("code")
        if not code or len(code) > MOST_CODE or not all("\x20" <= each <= "\x7e" for each in code):
            raise LoginFault("the callback brought neither a code nor an error")
        return Secret(code)

    def is_cut_short(self, callback: str | Sequence[tuple[str, str]]) -> bool:
        """Whether it is for this attempt, and lacks what each answer has: somebody did not copy all of it.

        Raises:
            StrayCallback: it cannot be read.
        """
        values = _once(_pairs(callback) if isinstance(callback, str) else callback)
        if not _has_state(values, self.state):
            return False
        return not (values.get("code") or values.get("error")) or (self.iss_promised and "iss" not in values)

    def _check_issuer(self, iss: str | None) -> None:
        """RFC 9207 §2.4: compared letter by letter. A wrong one's texts are not shown, being anybody's."""
        if iss is None:
            if self.iss_promised:
                raise WrongIssuer(
                    f"the callback does not say which server it is from, and {self.issuer} promises to",
                    fix="begin the login anew; if it happens again, tell the server's operator",
                )
            return
        if iss != self.issuer:
            raise WrongIssuer(
                f"the callback is not from {self.issuer}, which was asked",
                fix="do not go on with that page; begin the login anew",
            )


def is_for(callback: str, state: Secret) -> bool:
    """Whether a callback (its query or whole URL) is for the attempt with this state: what ``finish`` asks first."""
    try:
        return _has_state(_once(_pairs(callback)), state)
    except StrayCallback:
        return False


def check_browser_url(url: str, what: str = "authorization endpoint") -> None:
    """Whether a URL from a server may be handed to a browser: https, or http to this machine (F16.4).

    Raises:
        LoginFault: it may not.
    """
    scheme = url.partition(":")[0].lower()
    if not url:
        raise LoginFault(f"the authorization server names no {what}")
    if _ODD.search(url):
        raise LoginFault(f"the {what} {shown_url(url)} holds characters that no URL has")
    if len(url) > MOST_URL:
        raise LoginFault(f"the {what} has {len(url):,} characters, which no browser takes")
    if scheme not in ("http", "https"):
        raise LoginFault(f"the {what} has the scheme {said(scheme)[:20]!r}; only https is opened")
    try:
        origin(url)
        parts = urlsplit(url)
    except ValueError as fault:
        raise LoginFault(f"the {what} {shown_url(url)} cannot be used: {fault}") from None
    if scheme == "http" and not is_loopback(parts.hostname or ""):
        raise LoginFault(f"the {what} {shown_url(url)} is not https")
    if "@" in parts.netloc or "#" in url:
        raise LoginFault(f"the {what} {shown_url(url)} has a user or a fragment")


async def push(
    http: Endpoint,
    metadata: ServerMetadata,
    registration: Registration,
    request: AuthorizationRequest,
    deadline: float,
) -> AuthorizationRequest:
    """Hand the request over beforehand (RFC 9126); the URL then carries a reference. For servers that demand it.

    Raises:
        GrantError: the server did not take it.
        NeedsClient: the registration cannot work.
    """
    what = f"the authorization server {metadata.issuer}"
    url = metadata.pushed_authorization_request_endpoint
    if not url:
        raise GrantError(
            "http", "it demands pushed requests and names no endpoint for them", sent=False, what=what
        )
    form, headers = Form(request.params), Headers()
    clients.authenticate(form, headers, registration, metadata, now=time.time())
    hidden = [request.state, request.verifier, *clients.secrets_of(registration)]
    answer = await ask(http.post_form(url, form, headers, within=left(deadline)), what, hidden)
    reference = read_answer(answer, what, hidden, resource_sent=bool(request.resource)).get("request_uri")
    if not isinstance(reference, str) or not reference:
        raise GrantError("unusable", "no request_uri", transient=True, status=answer.status, what=what)
    params = (("client_id", request.client_id), ("request_uri", reference))
    return msgspec.structs.replace(request, params=params)


# --- how ----------------------------------------------------------------------------------------------------------


def _encoded(params: Sequence[tuple[str, str]]) -> str:
    return urlencode(params).replace("+", "%20")


def _pairs(callback: str) -> list[tuple[str, str]]:
    """The parameters of a query or of a whole URL, decoded once and not touched otherwise."""
    if len(callback) > MOST_CALLBACK:
        raise StrayCallback("a callback that is too long")
    query = callback.strip().partition("#")[0]
    before, mark, after = query.partition("?")
    if mark and ("=" not in before or _URL_START.match(before)):
        query = after  # A query may hold a question mark too (RFC 3986 §3.4).
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise StrayCallback("a callback whose parameters cannot be read") from None


def _once(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """RFC 6749 §3.1: none of ours twice. Which one would be meant?"""
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values and name in ("state", "code", "iss", "error"):
            raise StrayCallback(f"a callback with more than one {name}")
        values.setdefault(name, value)
    return values


def _has_state(values: Mapping[str, str], state: Secret) -> bool:
    given = values.get("state")
    return given is not None and _same(given, state.reveal())


def _same(one: str, two: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), two.encode("utf-8", "replace"))


def _advice(error: str, description: str, resource: str | None) -> str | None:
    if resource and (error == "invalid_target" or "AADSTS9010010" in description):
        return 'if this server does not take "resource", set auth.resource = "off" for it'
    if error == "invalid_scope":
        return "set auth.scopes to scopes that this server grants"
    if error == "access_denied":
        return "begin the login anew, if it was not meant"
    return None
