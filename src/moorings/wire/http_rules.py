"""What an answer over HTTP means, as pure functions of its status, headers and first bytes.

Two questions: which era does the answer to the probe show, and what has become of a message that was posted. Most
answers of neither kind come from something in between (a login page, a proxy, a gateway): they are a ``Fault`` whose
text carries status, place and the first characters, without the secrets that a URL may hold. Sources: MCP
``basic/versioning``, ``basic/transports`` (Streamable HTTP, backward compatibility); RFC 9110.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from enum import Enum
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import UNSET, Raw, UnsetType

from .._urls import KEY_IN_PATH, shown_target, shown_url
from .eras import METHOD_NOT_FOUND, MODERN_ERRORS
from .jsonrpc import UNREADABLE, RpcError, decode_error

__all__ = [
    "BODY_KEPT",
    "EVENT_STREAM",
    "JSON",
    "MAX_RETRY_AFTER",
    "SECRET",
    "TURNED_AWAY",
    "Fault",
    "FaultKind",
    "ProbeKind",
    "ProbeReading",
    "Reading",
    "first_words",
    "how_to_read",
    "judge_http_probe",
    "judge_refusal",
    "judge_unreadable",
    "may_be_legacy_sse",
    "media_type",
    "parse_retry_after",
    "rpc_error_in",
    "secrets_of_url",
]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

BODY_KEPT = 16_384
"""Bytes of the body of a refusal that are worth reading: a JSON-RPC error fits, a page need not."""

SHOWN = 300
"""Characters of a body that an error shows."""

MAX_RETRY_AFTER = 86_400.0
"""Seconds: the longest wait that is believed."""

TURNED_AWAY = frozenset((401, 403, 407, 429))
"""Statuses that say that the message did not run, whatever stands in the body."""

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of characters that are not shown: what moves a cursor, turns the text around, or cannot be seen."""

_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,9})?")
SECRET = 6
"""Characters from which on a part of a URL is looked for in what is shown."""

# Servers that know MCP say their JSON in one of these ways, or in none; what is in it decides.
_MAYBE_JSON = frozenset(
    (
        JSON,
        "",
        "text/json",
        "text/plain",
        "application/octet-stream",
        "application/json-rpc",
        "application/jsonrequest",
    )
)
_TRANSIENT = frozenset((408, 421, 425, 429, 502, 503, 504))
"""Statuses that tell of a moment, or of something in between, and not of the server."""


# --- headers


def media_type(value: str | None) -> str:
    """The media type of a ``Content-Type``, in lower case and without parameters; empty where there is none."""
    return value.partition(";")[0].strip(" \t").lower() if value else ""


def parse_retry_after(value: str | None, now: float) -> float | None:
    """The seconds that a ``Retry-After`` asks for, at most a day; 0 for a time that is over, None where it says none.

    ``now`` is the time of day in seconds since 1970.
    """
    text = value.strip(" \t") if value else ""
    if not text or len(text) > 64:
        return None
    if _SECONDS.fullmatch(text):
        return min(float(text), MAX_RETRY_AFTER)
    # Only for the few servers that send a date: importing it takes longer than all else here.
    from email.utils import parsedate_to_datetime

    try:
        when = parsedate_to_datetime(text)
        # Without a zone it is meant in GMT, as dates in HTTP always are.
        at = (when if when.tzinfo else when.replace(tzinfo=_utc())).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(at - now, 0.0), MAX_RETRY_AFTER)


def _utc() -> Any:
    from datetime import UTC

    return UTC


# --- text for errors


def first_words(body: bytes, limit: int = SHOWN, secrets: Iterable[str] = ()) -> str:
    """The first characters of a body, in one line, without anything that is not seen, and without these secrets."""
    text = body[:BODY_KEPT].decode("utf-8", "replace")
    for secret in secrets:
        text = text.replace(secret, "…")
    seen = "".join(" " if unicodedata.category(each) in _UNSEEN else each for each in text)
    words = " ".join(seen.split())
    return words if len(words) <= limit else words[:limit] + "…"


def secrets_of_url(url: str) -> list[str]:
    """What of a URL must not be shown, for bodies that repeat it; the longest first."""
    try:
        parts = urlsplit(url)
        found = {
            parts.query,
            *(value for pair in parse_qsl(parts.query) for value in pair),
            parts.password or "",
        }
    except ValueError:
        return []
    found.update(value.partition("=")[2] for value in parts.query.split("&"))
    found.update(part for part in parts.path.split("/") if KEY_IN_PATH.fullmatch(part))
    return sorted((each for each in found if len(each) >= SECRET), key=len, reverse=True)


# --- errors in bodies


class _Answer(msgspec.Struct, gc=False):
    jsonrpc: Any = UNSET
    id: int | str | float | UnsetType | None = UNSET
    error: Raw | UnsetType = UNSET


_answer = msgspec.json.Decoder(_Answer)


def rpc_error_in(body: bytes) -> tuple[int | str | float | None, RpcError] | None:
    """The JSON-RPC error that a body is, with the id it names; None for anything else, as ``{"error": "no key"}``."""
    try:
        answer = _answer.decode(body)
        if isinstance(answer.error, UnsetType) or bytes(answer.error)[:1] != b"{":
            return None
        error = decode_error(answer.error)
    except UNREADABLE:
        return None
    if answer.jsonrpc != "2.0" and error.code >= 0:
        # As other APIs put it: {"error": {"code": 404, "message": …}}.
        return None
    return (None if isinstance(answer.id, UnsetType) else answer.id), error


# --- the probe


class ProbeKind(Enum):
    """What the HTTP side of an answer to the probe shows."""

    ANSWER = "answer"
    """An answer to be read: its JSON-RPC message decides (``eras``)."""
    MODERN = "modern"
    """The modern era: the error says how to go on; it is never a reason for ``initialize``."""
    HANDSHAKE = "handshake"
    """Not the modern era: ``initialize`` comes next."""
    AUTHORIZE = "authorize"
    """Neither era: authorize, then ask again."""
    NOTHING = "nothing"
    """Nothing was learnt: a moment's trouble, or something in between; ask again later, remember nothing."""


class ProbeReading(msgspec.Struct, frozen=True):
    """The reading of the answer to a ``server/discover`` that was posted."""

    kind: ProbeKind
    error: RpcError | None = None
    """With ``MODERN``: what the server said."""


def judge_http_probe(status: int, content_type: str | None, body: bytes = b"") -> ProbeReading:
    """Read the answer to the probe. ``body`` is needed for statuses from 400 on (its first ``BODY_KEPT`` bytes)."""
    if status in (401, 403):
        return ProbeReading(ProbeKind.AUTHORIZE)
    if 200 <= status < 300:
        readable = how_to_read(status, content_type) in (Reading.MESSAGE, Reading.EVENTS)
        return ProbeReading(ProbeKind.ANSWER if readable else ProbeKind.HANDSHAKE)
    found = rpc_error_in(body)
    if found is not None:
        error = found[1]
        # Only a modern server says "unknown method" with both; one of the handshake era says it with a 200.
        if error.code in MODERN_ERRORS or (status == 404 and error.code == METHOD_NOT_FOUND):
            return ProbeReading(ProbeKind.MODERN, error)
    if status < 400 or status in _TRANSIENT or status == 407 or status > 504:
        return ProbeReading(ProbeKind.NOTHING)
    # 500 too: older servers stumble over a method they do not know (F9.3).
    return ProbeReading(ProbeKind.HANDSHAKE)


def may_be_legacy_sse(status: int, body: bytes = b"") -> bool:
    """Whether a refused ``initialize`` may mean the transport of 2024-11-05: then GET, expecting ``endpoint``."""
    if status not in (400, 404, 405):
        return False
    found = rpc_error_in(body)
    if found is None:
        return True
    return found[1].code not in MODERN_ERRORS and (status, found[1].code) != (404, METHOD_NOT_FOUND)


# --- messages that were posted


class Reading(Enum):
    """What to do with the body of an answer, once its status and headers are there."""

    MESSAGE = "message"
    """Read it whole: it should be a JSON-RPC message."""
    EVENTS = "events"
    """Read it as events as they come."""
    DONE = "done"
    """Nothing to read: it was accepted. What body there is, is drained or dropped."""
    REFUSAL = "refusal"
    """Read its beginning (``BODY_KEPT``), and give it to ``judge_refusal``."""


def how_to_read(status: int, content_type: str | None, *, request: bool = True) -> Reading:
    """What to do with an answer; ``request`` is False for a notification or a response of ours, which has none."""
    if not 200 <= status < 300:
        return Reading.REFUSAL
    if not request:
        # 200 with nothing, with null, with a page: taken for 202 (F13.5).
        return Reading.DONE
    kind = media_type(content_type)
    if status in (202, 204, 205):
        return Reading.REFUSAL
    if kind == EVENT_STREAM:
        return Reading.EVENTS
    return Reading.MESSAGE if kind in _MAYBE_JSON or kind.endswith("+json") else Reading.REFUSAL


class FaultKind(Enum):
    """What is wrong with an answer that is no message."""

    UNAUTHORIZED = "unauthorized"
    """401: credentials are missing or not taken."""
    FORBIDDEN = "forbidden"
    """403: they do not reach so far."""
    NOT_FOUND = "not_found"
    """404: nothing there, or the session is lost."""
    WRONG_METHOD = "wrong_method"
    """405: something is there that takes no POST."""
    TOO_LARGE = "too_large"
    """413: the message is too long for it."""
    BUSY = "busy"
    """429, or 503 that says when to come back: turned away before it ran."""
    PROXY = "proxy"
    """407: a proxy wants credentials."""
    REDIRECT = "redirect"
    """3xx that is not followed."""
    CLIENT = "client"
    """Any other 4xx."""
    GATEWAY = "gateway"
    """502, 503, 504: something in between could not reach the server."""
    SERVER = "server"
    """Any other 5xx."""
    NO_ANSWER = "no_answer"
    """Accepted or empty, where an answer was due."""
    HTML = "html"
    """A page for people: a login, an error of a proxy, the wrong URL."""
    CONTENT_TYPE = "content_type"
    """A kind of content that MCP does not use."""
    NOT_A_MESSAGE = "not_a_message"
    """JSON, or something like it, but no JSON-RPC message."""
    NOT_EVENTS = "not_events"
    """It calls itself an event stream, and is none."""
    UNKNOWN = "unknown"
    """A status that HTTP does not have."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is no message."""

    kind: FaultKind
    text: str
    """One clause for people: status, place, and the first characters of the body. Without secrets of the URL."""
    status: int
    content_type: str = ""
    """The media type it said, without parameters."""
    retry_after: float | None = None
    """Seconds to wait before the next try, where it says so."""
    rpc_error: RpcError | None = None
    """The JSON-RPC error that the body was."""
    rpc_id: int | str | float | None = None
    """The id that error names."""

    @property
    def not_run(self) -> bool:
        """True if the server says that it did nothing: the message may be sent again."""
        return self.kind in _NOT_RUN


_NOT_RUN = frozenset((FaultKind.UNAUTHORIZED, FaultKind.FORBIDDEN, FaultKind.BUSY, FaultKind.PROXY))
_BY_STATUS = {
    401: FaultKind.UNAUTHORIZED,
    403: FaultKind.FORBIDDEN,
    404: FaultKind.NOT_FOUND,
    405: FaultKind.WRONG_METHOD,
    407: FaultKind.PROXY,
    413: FaultKind.TOO_LARGE,
    429: FaultKind.BUSY,
    502: FaultKind.GATEWAY,
    503: FaultKind.GATEWAY,
    504: FaultKind.GATEWAY,
}
_HTML_START = (b"<!doctype html", b"<html")


def judge_refusal(
    status: int,
    content_type: str | None,
    body: bytes,
    *,
    url: str,
    retry_after: float | None = None,
    location: str | None = None,
) -> Fault:
    """The fault in an answer that ``how_to_read`` calls a refusal.

    ``retry_after`` as ``parse_retry_after`` gives it; ``location`` of a redirect that is not followed.
    """
    found = rpc_error_in(body) if status >= 400 else None
    kind = _refusal_kind(status, media_type(content_type), body, retry_after)
    if kind is FaultKind.REDIRECT and location:
        extra = f"it points to {shown_target(url, location)}"
    elif found is not None:
        said = first_words(found[1].message.encode("utf-8", "replace"), secrets=secrets_of_url(url))
        extra = f"it says: {said} ({found[1].code})"
    else:
        extra = ""
    return _fault(kind, status, content_type, body, url, extra, retry_after, found)


def judge_unreadable(status: int, content_type: str | None, body: bytes, *, url: str) -> Fault:
    """The fault in a body that was to be read, and has no message in it.

    For an event stream, ``body`` is the ``odd_text`` of its parser.
    """
    kind = FaultKind.NOT_A_MESSAGE
    if _is_page(media_type(content_type), body):
        kind = FaultKind.HTML
    elif media_type(content_type) == EVENT_STREAM:
        kind = FaultKind.NOT_EVENTS
    elif not body.strip() or body.strip() == b"null":
        kind = FaultKind.NO_ANSWER
    return _fault(kind, status, content_type, body, url, "", None, None)


def _refusal_kind(status: int, kind: str, body: bytes, retry_after: float | None) -> FaultKind:
    if status == 503 and retry_after is not None:
        return FaultKind.BUSY
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status < 200 or status > 599:
        return FaultKind.UNKNOWN
    if status >= 500:
        return FaultKind.SERVER
    if status >= 400:
        return FaultKind.CLIENT
    if status >= 300:
        return FaultKind.REDIRECT
    if status in (202, 204, 205):
        return FaultKind.NO_ANSWER
    return FaultKind.HTML if _is_page(kind, body) else FaultKind.CONTENT_TYPE


def _is_page(kind: str, body: bytes) -> bool:
    return kind in ("text/html", "application/xhtml+xml") or body[:200].lstrip().lower().startswith(
        _HTML_START
    )


_WHAT = {
    FaultKind.NO_ANSWER: "no answer",
    FaultKind.HTML: "a page of HTML: that is no MCP endpoint, or something stands in between",
    FaultKind.CONTENT_TYPE: "a kind of content that MCP does not use",
    FaultKind.NOT_A_MESSAGE: "no JSON-RPC message",
    FaultKind.NOT_EVENTS: "an event stream that is none",
    FaultKind.REDIRECT: "a redirect that is not followed",
}


def _fault(
    kind: FaultKind,
    status: int,
    content_type: str | None,
    body: bytes,
    url: str,
    extra: str,
    retry_after: float | None,
    found: tuple[int | str | float | None, RpcError] | None,
) -> Fault:
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    media = first_words(media_type(content_type).encode("utf-8", "replace"), 80)
    text = f"HTTP {status}{phrase} from {shown_url(url)}"
    if what := _WHAT.get(kind):
        text += f": {what}"
    if media:
        text += f" ({media})"
    if extra:
        text += f"; {extra}"
    elif words := first_words(body, secrets=secrets_of_url(url)):
        text += f"; it begins: {words}"
    if retry_after is not None:
        text += f"; it asks to wait {retry_after:.4g} s"
    id_, error = found if found is not None else (None, None)
    return Fault(
        kind=kind,
        text=text,
        status=status,
        content_type=media,
        retry_after=retry_after,
        rpc_error=error,
        rpc_id=id_,
    )
