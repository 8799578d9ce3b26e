"""What OAuth needs of HTTP, as a shape: ``http.AuthHttp`` has it, and so may a test. And how answers are read.

A token endpoint may answer with any 2xx, with an error inside a 200, form-encoded instead of JSON (RFC 6749 §5,
and what servers make of it). ``read_answer`` is the one place that decides whether a failure is transient, by status
and code and never by a text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

from .._secret import Secret
from ..wire.http_rules import media_type, parse_retry_after
from .faults import GrantError, said
from .http import AuthNetError

__all__ = ["Answer", "Endpoint", "Form", "Headers", "ask", "left", "read_answer"]

TRANSIENT_STATUS = frozenset({408, 425, 429})
TRANSIENT_CODES = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
MOST_CODE = 100
"""Characters of an error code; a longer one is none."""
TELLTALE = ("token", "secret", "eyj", "assertion", "password")
"""In an answer that cannot be read: there may be something in it that nobody may see."""


class Form(list[tuple[str, str]]):
    """The fields of a request. Its values are secrets, so a dump of a frame shows their names alone."""

    def __repr__(self) -> str:
        return f"Form({', '.join(name for name, _ in self)})"


class Headers(dict[str, str]):
    """The headers of a request, shown as ``Form`` is."""

    def __repr__(self) -> str:
        return f"Headers({', '.join(self)})"


class Answer(Protocol):
    """An HTTP answer, whatever its status."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def json(self) -> Any:
        """The body decoded, or None if it is not JSON."""

    @property
    def text(self) -> str:
        """The body, or the beginning of it."""


class Endpoint(Protocol):
    """The part of ``AuthHttp`` that grants and registration use. ``within``: seconds for all of it.

    All raise ``AuthNetError`` if no answer came, or the address is refused.
    """

    async def post_form(
        self,
        url: str,
        form: list[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
        *,
        within: float,
    ) -> Answer: ...

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None, *, within: float
    ) -> Answer: ...

    async def read(self, url: str, headers: Mapping[str, str] | None = None, *, within: float) -> Answer: ...

    async def delete(
        self, url: str, headers: Mapping[str, str] | None = None, *, within: float
    ) -> Answer: ...


def left(deadline: float) -> float:
    """Seconds until a point in loop time, for one exchange.

    Raises:
        GrantError: it has passed (``timeout``). Nothing was sent.
    """
    seconds = deadline - asyncio.get_running_loop().time()
    if seconds <= 0:
        raise GrantError(
            "timeout", "the time allowed was over before it was asked", transient=True, sent=False
        )
    return seconds


async def ask(exchange: Awaitable[Answer], what: str, secrets: Iterable[Secret | str | None] = ()) -> Answer:
    """The answer, whatever its status.

    Raises:
        GrantError: none came; ``code`` is ``network``.
    """
    try:
        return await exchange
    except AuthNetError as fault:
        raise GrantError(
            "network",
            said(str(fault), secrets),
            transient=fault.transient,
            sent=fault.sent,
            fix=fault.fix,
            what=what,
        ) from None


def read_answer(
    answer: Answer, what: str, secrets: Iterable[Secret | str | None] = (), *, resource_sent: bool = False
) -> dict[str, Any]:
    """What an endpoint that was asked by POST gave, as a mapping. ``what`` names it in errors.

    Raises:
        GrantError: it is an error, inside a 2xx too, or nothing that can be used (``unusable``).
    """
    secrets = tuple(secrets)
    body = _body(answer)
    code, description = _error(body, secrets)
    good = 200 <= answer.status <= 299
    if good and not code and body is not None:
        return body
    wait = parse_retry_after(answer.headers.get("Retry-After"), time.time())
    # What a server says while it fails (5xx, 429) is not its word on the token: nothing may be dropped for it.
    transient = answer.status >= 500 or answer.status in TRANSIENT_STATUS or code in TRANSIENT_CODES
    if not code:
        # A page instead of a token changes nothing: a portal or a gateway may stand in between for a while.
        code, transient = ("unusable", True) if good else ("http", transient)
        kind = media_type(answer.headers.get("Content-Type")) or "no content type"
        description = description or f"{kind}, not an answer of OAuth: {_quoted(answer.text, good, secrets)}"
    raise GrantError(
        code,
        description,
        transient=transient,
        retry_after=wait,
        status=answer.status,
        fix=_fix(code, description, resource_sent),
        what=what,
    )


def _quoted(text: str, good: bool, secrets: Iterable[Secret | str | None]) -> str:
    """What may be shown of an answer that could not be read: it may be tokens all the same, cut off or misspelt."""
    if not text.strip():
        return "empty"
    lower = text.lower()
    if (good and not lower.lstrip().startswith("<")) or any(each in lower for each in TELLTALE):
        return f"{len(text)} characters, not shown as there may be tokens in them"
    return said(text, secrets)


def _body(answer: Answer) -> dict[str, Any] | None:
    if isinstance(answer.json, dict):
        return answer.json
    if media_type(answer.headers.get("Content-Type")) != "application/x-www-form-urlencoded":
        return None
    try:
        pairs = parse_qsl(answer.text, keep_blank_values=True, strict_parsing=True, max_num_fields=100)
    except ValueError:
        return None
    body = dict(pairs)
    return body if len(body) == len(pairs) else None


def _error(body: dict[str, Any] | None, secrets: Iterable[Secret | str | None]) -> tuple[str, str]:
    """Code and description of an error; empty if it is none."""
    if body is None:
        return "", ""
    error, description = body.get("error"), body.get("error_description")
    if isinstance(error, dict):  # as APIs of Google and others write it
        description = description or error.get("message")
        error = next(
            (error[key] for key in ("code", "status", "type") if isinstance(error.get(key), str)), "http"
        )
    if not isinstance(error, str) or not error.strip():
        return "", ""
    return said(error, secrets)[:MOST_CODE], said(description, secrets)


def _fix(code: str, description: str, resource_sent: bool) -> str | None:
    """Advice only: nothing is decided by it."""
    if resource_sent and (code == "invalid_target" or "AADSTS9010010" in description):
        return 'if this server does not take "resource", set auth.resource = "off" for it'
    if code == "invalid_scope":
        return "set auth.scopes to scopes that this server grants"
    if code in ("unauthorized_client", "unsupported_grant_type"):
        return "let the server's operator allow this grant for the client, or choose another one (auth.flow)"
    return None
