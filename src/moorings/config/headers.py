"""Headers that a user adds to the requests of a server: what is refused, and how those of a command are read. Pure.

They come from three sides (a table, a function, a command), and the same rules hold for all. Values are secrets and
never stand in an error. RFC 9110 section 5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..errors import MisuseError
from .problems import shown

__all__ = ["MAX_OUTPUT", "RESERVED", "checked_headers", "header_fault", "read_headers_output", "same_name"]

MAX_OUTPUT = 64 * 1024
"""Bytes that a command may write; more are no headers."""

_OURS = "Moorings sets it itself"
_CONNECTION = "it belongs to the connection"
RESERVED: Mapping[str, str] = {
    "accept": _OURS,
    "accept-encoding": _OURS,
    "connection": _CONNECTION,
    "content-encoding": _OURS,
    "content-length": _OURS,
    "content-type": _OURS,
    "expect": _CONNECTION,
    "host": "the URL says it",
    "keep-alive": _CONNECTION,
    "last-event-id": _OURS,
    "mcp-method": _OURS,
    "mcp-name": _OURS,
    "mcp-protocol-version": _OURS,
    "mcp-session-id": _OURS,
    "proxy-authorization": "user and password stand in the URL of the proxy",
    "proxy-connection": _CONNECTION,
    "te": _CONNECTION,
    "trailer": _CONNECTION,
    "transfer-encoding": _CONNECTION,
    "upgrade": _CONNECTION,
}
"""Headers that nobody may set, in small letters, and why."""
_RESERVED_START = "mcp-param-"

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TWICE_BEARER = re.compile(r"(bearer)[ \t]+bearer[ \t]+", re.IGNORECASE)


def header_fault(name: str, value: str) -> str | None:
    """Why this header cannot be sent, without its value, or None."""
    folded = name.lower()
    if not _TOKEN.fullmatch(name):
        return "not the name of a header"
    if folded in RESERVED or folded.startswith(_RESERVED_START):
        return f"this header cannot be set: {RESERVED.get(folded, _OURS)}"
    if _CONTROL.search(value.strip(" \t")):
        return "the value holds a line break or another control character"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "the value holds half of a surrogate pair, which is no character"
    return None


def same_name(name: str, others: Mapping[str, Any]) -> str | None:
    """The one of ``others`` that is the same header, in whatever capitals, or None."""
    return next((other for other in others if other.lower() == name.lower()), None)


def checked_headers(headers: Any, what: str = "headers") -> dict[str, str]:
    """Headers as they are sent: blanks around a value taken off, and "Bearer" that was written and also stood in the
    token said once.

    Raises:
        MisuseError: one of them cannot be sent. ``what`` says in its text where they come from.
    """
    if not isinstance(headers, Mapping):
        raise MisuseError(f"{what} is a mapping of names to text, not {type(headers).__name__}")
    result: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise MisuseError(f"{what}: a name is text, not {type(name).__name__}")
        if not isinstance(value, str):
            raise MisuseError(f"{what}[{shown(name)}] is text, not {type(value).__name__}")
        reason = header_fault(name, value)
        if reason is None and (other := same_name(name, result)) is not None:
            reason = f"{other!r} is the same header"
        if reason is not None:
            # What a function gives for a name, and is none, may be the secret itself.
            label = shown(name) if what == "headers" or _TOKEN.fullmatch(name) else "…"
            raise MisuseError(f"{what}[{label}]: {reason}")
        value = value.strip(" \t")
        result[name] = _TWICE_BEARER.sub(r"\1 ", value, count=1) if name.lower() == "authorization" else value
    return result


def read_headers_output(data: bytes) -> dict[str, str]:
    """The headers that a command wrote: ``Name: value`` lines, or one JSON object of texts.

    Nothing at all is a fault, as a command that failed quietly looks like it; ``{}`` says that there are none.

    Raises:
        ValueError: it is neither. The text holds nothing of what was written but names.
    """
    if len(data) > MAX_OUTPUT:
        raise ValueError(f"it wrote more than {MAX_OUTPUT // 1024} KiB")
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError("what it wrote is not UTF-8") from None
    if not text:
        raise ValueError("it wrote nothing")
    pairs = _pairs_of_json(text) if text.startswith("{") else _pairs_of_lines(text)
    headers: dict[str, str] = {}
    for where, name, value in pairs:
        reason = header_fault(name, value)
        if reason is None and same_name(name, headers) is not None:
            reason = "it stands twice"
        if reason is not None:
            # What is no name may be the rest of a secret that was broken into lines.
            raise ValueError(f"{f'header {name!r}' if _TOKEN.fullmatch(name) else where}: {reason}")
        headers[name] = value
    return checked_headers(headers)


def _pairs_of_lines(text: str) -> list[tuple[str, str, str]]:
    pairs = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        name, colon, value = line.partition(":")
        if not line.strip():
            continue
        if not colon:
            raise ValueError(f"line {number} is no 'Name: value'")
        pairs.append((f"line {number}", name, value))
    return pairs


def _pairs_of_json(text: str) -> list[tuple[str, str, str]]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise ValueError("begins as a JSON object, and is none") from None
    result = []
    for at, (name, value) in enumerate(pairs, 1):
        if not isinstance(value, str):
            raise ValueError(f"key {at} of the JSON object is not a text")
        result.append((f"key {at}", name, value))
    return result
