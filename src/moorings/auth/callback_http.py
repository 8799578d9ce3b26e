"""As much of HTTP/1.1 as a browser needs that brings the answer of a login: one head in, one response out.

Pure. A head is read strictly, as whatever runs on this machine may send it; a body is never read, and each connection
ends after its response (RFC 9112 §9.6). No response lets anything be stored, framed, loaded or referred to.
"""

from __future__ import annotations

import re
from http import HTTPStatus

from msgspec import Struct

from .._secret import Secret

__all__ = [
    "MOST_HEAD",
    "BadHead",
    "Head",
    "begin",
    "head_end",
    "may_be_http",
    "read_head",
    "redirect",
    "respond",
]

MOST_HEAD = 64 * 1024
"""Bytes of a request's head. Browsers send all cookies that other programs set on this host, whatever their port."""

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

_END = re.compile(rb"\r?\n\r?\n")
_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~\x80-\xff]*) HTTP/1\.[01]")
_START = re.compile(rb"[\r\n]*(?:[A-Z]{1,20}(?: .*)?)?", re.DOTALL)
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\t -~\x80-\xff]*)")
_PREFETCH = re.compile(r"\bpre(?:fetch|view|render)\b", re.IGNORECASE)
_HINTS = ("sec-purpose", "purpose", "x-purpose", "x-moz")

_ALWAYS = (
    "Connection: close\r\n"
    "Cache-Control: no-store\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
)


class BadHead(Exception):
    """What came is no request that is understood here; ``status`` says so to whoever sent it."""

    def __init__(self, status: int = 400) -> None:
        self.status = status
        super().__init__(HTTPStatus(status).phrase)


class Head(Struct, frozen=True, kw_only=True):
    """The head of a request, as far as it matters here."""

    method: str
    path: str
    """As it was sent."""
    query: Secret
    """As it was sent, without the question mark: there may be a code in it."""
    host: str
    """In small letters."""
    is_prefetch: bool
    """The browser guesses that the person will want this; no person has seen it."""


def may_be_http(start: bytes) -> bool:
    """False as soon as the first bytes cannot be a request (a TLS hello, noise)."""
    return _START.fullmatch(start[:32]) is not None


def head_end(buffer: bytes | bytearray, searched: int = 0) -> int | None:
    """Where a head ends, or None where it goes on. ``searched`` bytes were looked at before."""
    skipped = len(buffer) - len(buffer.lstrip(b"\r\n"))  # RFC 9112 §2.2
    found = _END.search(buffer, max(skipped, searched - 3))
    return found.end() if found else None


def read_head(raw: bytes) -> Head:
    """Read a whole head.

    Raises:
        BadHead: it is none.
    """
    first, *lines = re.split(rb"\r?\n", raw.lstrip(b"\r\n"))
    start = _LINE.fullmatch(first)
    if start is None:
        raise BadHead
    hosts: list[str] = []
    is_prefetch = False
    for line in lines:
        if not line:
            continue
        field = _FIELD.fullmatch(line)
        if field is None:
            raise BadHead
        name, value = field[1].decode("ascii").lower(), field[2].decode("latin-1").strip(" \t")
        if name == "host":
            hosts.append(value.lower())
        elif name in _HINTS and _PREFETCH.search(value):
            is_prefetch = True
    if len(hosts) != 1:
        raise BadHead  # RFC 9112 §3.2
    path, _, query = start[2].decode("utf-8", "replace").partition("?")
    return Head(
        method=start[1].decode("ascii"),
        path=path,
        query=Secret(query.partition("#")[0]),
        host=hosts[0],
        is_prefetch=is_prefetch,
    )


def respond(status: int, page: str = "", *, bodiless: bool = False) -> bytes:
    """A response with a page, or with the name of its status. ``bodiless`` is for the answer to HEAD."""
    body = (page or f"{HTTPStatus(status).phrase}\n").encode()
    more = f"Content-Type: {HTML if page else TEXT}\r\nContent-Length: {len(body)}\r\n"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        more += "Allow: GET\r\n"
    return _start(status, more) + (b"" if bodiless else body)


def begin(page: str) -> bytes:
    """A response with the first part of a page; the end of the connection is that of the page (RFC 9112 §6.3)."""
    return _start(200, f"Content-Type: {HTML}\r\n") + page.encode()


def redirect(place: str) -> bytes:
    """On to another path of the same server: what the old URL held stays out of the address bar and the history."""
    return _start(303, f"Location: {place}\r\nContent-Length: 0\r\n")


def _start(status: int, more: str) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{_ALWAYS}{more}\r\n".encode("ascii")
