"""How OAuth fails. Internal, as ``net.errors``: the broker turns these into the public errors.

::

    AuthFault                  reason, fix
    ├── AuthNetError           (``http.py``) no answer, or an address that is refused
    ├── DiscoveryFault         (``discovery.py``) it is not known where tokens come from, with all that was tried
    ├── NeedsPerson            a person must log in, and there is none to ask; ``why`` says what is over
    ├── Insufficient           the token is good, and not for this operation
    ├── NeedsClient            we are nobody at this server, and cannot become somebody by ourselves
    ├── NeedsExtra             a library that is not installed (``moorings[jwt]``)
    ├── GrantError             a token, device, registration or revocation endpoint: code, transient, retry_after, sent
    ├── LoginFault             an authorization request that cannot be made, or whose answer ends the attempt
    │   ├── LoginAbandoned     ... as nobody waits for it any more
    │   ├── LoginTooLate       ... as nobody logged in within its bound
    │   ├── LoginDenied        ... because the server said no
    │   ├── PortTaken          (``callback.py``) ... because the way back is another program's
    │   ├── NotWanted          ... as the server answers without one
    │   ├── NotTaken           ... because the MCP server does not take the tokens that came
    │   └── WrongIssuer        ... because the answer is another server's (RFC 9207)
    ├── StrayCallback          a request that is no answer to this attempt, which goes on
    └── StepUpRefused          more scopes are wanted than may be asked for, or they were asked for often enough

What the net does not deliver is an ``http.AuthNetError`` first, and here a ``GrantError`` with the code ``network``.
Reasons are clauses without a full stop, never empty, and hold no secret: texts of servers pass ``said`` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from .._secret import SHOWN, Secret
from ..wire.http_rules import first_words

__all__ = [
    "AuthFault",
    "GrantError",
    "Insufficient",
    "LoginAbandoned",
    "LoginDenied",
    "LoginFault",
    "LoginTooLate",
    "NeedsClient",
    "NeedsExtra",
    "NeedsPerson",
    "NotTaken",
    "NotWanted",
    "StepUpRefused",
    "StrayCallback",
    "WrongIssuer",
    "passes",
    "said",
]

MOST_SAID = 300
"""Characters of a server's text in one of ours."""
SHORTEST = 4
"""Characters of a secret that is looked for in a server's text; a shorter one stands in too many words."""


class AuthFault(Exception):
    """Base of all."""

    def __init__(self, reason: str, *, fix: str | None = None) -> None:
        self.reason = reason
        self.fix = fix
        """The next step, if one is known."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.reason}; {self.fix}" if self.fix else self.reason


class NeedsClient(AuthFault):
    """There is no client registration, or none that can work. A person or the configuration must help."""


class Insufficient(AuthFault):
    """The token is good, and the server wants more scopes for this operation."""


class NeedsPerson(AuthFault):
    """Only a person can log in, and there is nobody to ask here."""

    def __init__(self, why: AuthFault) -> None:
        super().__init__(why.reason, fix=why.fix)
        self.why = why


class NeedsExtra(AuthFault):
    """An optional part of Moorings is not installed."""


class GrantError(AuthFault):
    """An endpoint of the authorization server gave no token (or whatever was asked of it)."""

    def __init__(
        self,
        code: str,
        description: str = "",
        *,
        transient: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        sent: bool = True,
        fix: str | None = None,
        what: str = "the authorization server",
    ) -> None:
        self.code = code
        """The server's ``error``; else ``network``, ``timeout``, ``http`` (a status without one) or ``unusable``."""
        self.description = description
        """Cleaned, cut short and without secrets; may be empty."""
        self.transient = transient
        """True: keep everything and try later. Only ``invalid_grant`` and ``invalid_client`` say more than "no"."""
        self.retry_after = retry_after
        """Seconds the server asks to wait, if it does."""
        self.status = status
        """HTTP status; None if there was no answer."""
        self.sent = sent
        """True if the server may have acted on the request: a single-use token may be spent."""
        reason = f"{what} answered {code}" if status is not None else f"{what}: {code}"
        if status is not None and not 200 <= status <= 299:
            reason += f" (HTTP {status})"
        if description:
            reason += f": {description}"
        if retry_after is not None:
            reason += f"; it asks to wait {retry_after:.4g} s"
        super().__init__(reason, fix=fix)


class LoginFault(AuthFault):
    """This attempt is over."""


class LoginDenied(LoginFault):
    """The authorization server, or the person there, said no."""

    def __init__(self, code: str, description: str = "", *, fix: str | None = None) -> None:
        self.code = code
        self.description = description
        super().__init__(
            f"the login was refused: {code}{f' ({description})' if description else ''}", fix=fix
        )


class LoginTooLate(LoginFault):
    """Nobody logged in within its bound."""


class NotAsync(LoginFault):
    """What was to show it is no async function."""


class LoginAbandoned(LoginFault):
    """Nobody waits for it any more."""


class NotWanted(LoginFault):
    """The MCP server answers without a login."""


class NotTaken(LoginFault):
    """Tokens came, and the MCP server refuses them: what there was before stays in use."""


class WrongIssuer(LoginFault):
    """The answer does not come from the server that was asked. Nothing of it was used, its texts least of all."""


class StrayCallback(AuthFault):
    """Not for this attempt: another state, or none. It is turned away, and the attempt goes on."""


class StepUpRefused(AuthFault):
    """No further authorization is tried for this operation."""


def passes(fault: AuthFault) -> bool:
    """Whether another time may do better, with nothing changed by a person."""
    return bool(getattr(fault, "transient", False))


def said(text: object, secrets: Iterable[Secret | str | None] = ()) -> str:
    """What a server says, fit for an error: one line, cut short, without what is unseen and without these secrets."""
    if not isinstance(text, str):
        return ""
    forms: set[str] = set()
    for secret in secrets:
        plain = secret.reveal() if isinstance(secret, Secret) else secret
        if plain and len(plain) >= SHORTEST:
            forms |= {plain, quote(plain), quote(plain, safe="")}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, SHOWN)
    return first_words(text.encode("utf-8", "replace"), MOST_SAID)
