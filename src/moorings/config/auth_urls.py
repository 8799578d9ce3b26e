"""URLs of OAuth and of credential stores as a configuration gives them: what is wrong with one. Pure.

As ``urls.py``: nothing here says more of a URL than its kind, and no name is looked up. An issuer: RFC 8414 section 2;
``resource``: RFC 8707 section 2; redirects: RFC 8252 and OAuth 2.1; the URL of a client document: draft-ietf-oauth-
client-id-metadata-document section 3.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from .._urls import is_loopback
from .urls import UrlFault, split_url

__all__ = [
    "document_fault",
    "issuer_fault",
    "listener_fault",
    "postgres_fault",
    "redirect_fault",
    "redis_fault",
    "resource_fault",
]

_LOGIN = UrlFault("a user or a password stands in the URL", "take it out: it has settings of its own")
_HASH = UrlFault("a fragment ('#...') stands in the URL", "write a '#' of a password as %23")
_BLANK = re.compile(r"[\x00-\x20\x7f\ud800-\udfff]")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21\x22\x24-\x7e]+")
"""An absolute URI without a fragment, in ASCII."""


def issuer_fault(url: str) -> UrlFault | None:
    """Why this cannot be an authorization server, or None."""
    parts = _secure(url)
    if isinstance(parts, UrlFault):
        return parts
    if "?" in url or "#" in url:
        return UrlFault("the URL of an authorization server has no query and no fragment")
    if "/.well-known/" in parts.path:
        return UrlFault(
            "the URL of a metadata document, where the authorization server itself is wanted",
            "write its 'issuer', as that document says it",
        )
    return None


def document_fault(url: str) -> UrlFault | None:
    """Why this URL cannot be a client id, or None."""
    parts = split_url(url, ("https",), "https")
    if isinstance(parts, UrlFault):
        return parts
    if "@" in parts.netloc:
        return _LOGIN
    if parts.path in ("", "/") or "#" in url or {".", ".."} & set(parts.path.split("/")):
        return UrlFault("the URL of a client document has a path without dots, and no fragment")
    return None


def redirect_fault(url: str) -> UrlFault | None:
    """Why a browser cannot be sent back to this URL, or None."""
    parts = _secure(url)
    if isinstance(parts, UrlFault):
        return parts
    if "#" in url:
        return UrlFault("a redirect URI has no fragment")
    return None


def listener_fault(host: str) -> UrlFault | None:
    """Why the listener for a login's answer cannot have this host, or None."""
    if is_loopback(host) and "[" not in host:
        return None
    return UrlFault(
        "not a name or address of this machine itself",
        "write 127.0.0.1, ::1 or localhost; for another way back set redirect_uri",
    )


def resource_fault(uri: str) -> UrlFault | None:
    """Why this cannot be sent as ``resource``, or None. Some servers have names that are no http URL (``api://...``)."""
    if not _URI.fullmatch(uri):
        return UrlFault("not auto, not off, and no absolute URL without a fragment")
    if "@" in uri.partition("://")[2].partition("/")[0]:
        return _LOGIN
    return None


def redis_fault(url: str) -> UrlFault | None:
    """Why this cannot be the URL of a Redis, or None. A user and a password may stand in it."""
    if "#" in url:
        return _HASH
    parts = split_url(url, ("redis", "rediss"), "rediss")
    return parts if isinstance(parts, UrlFault) else None


def postgres_fault(url: str) -> UrlFault | None:
    """Why this cannot be the URL of a PostgreSQL, or None. A user and a password may stand in it.

    Several hosts may, too, and none where the query names a socket, so its host is not looked at.
    """
    if _BLANK.search(url):
        return UrlFault("the URL holds a blank or a control character", "encode it, as %20")
    return _HASH if "#" in url else None


def _secure(url: str) -> SplitResult | UrlFault:
    """The parts of an https URL, or of an http one of this machine; no login in either."""
    parts = split_url(url, ("https", "http"), "https")
    if isinstance(parts, UrlFault):
        return parts
    if "@" in parts.netloc:
        return _LOGIN
    if parts.scheme == "http" and not is_loopback(urlsplit(url).hostname or ""):
        return UrlFault(
            "http, by which codes and tokens would travel in the open",
            "write https; http is for this machine alone",
        )
    return parts
