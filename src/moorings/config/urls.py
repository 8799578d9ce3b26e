"""URLs as a configuration gives them: what is wrong with one. Pure; no name is looked up.

The value of a URL may be a secret in whole or in part (a password, a key in the query), so nothing here says more of it
than its kind. RFC 3986; the URL of a server: MCP ``basic/transports``.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from .._urls import PROXY_SCHEMES

__all__ = [
    "PROXY_URL",
    "SERVER_URL",
    "UrlFault",
    "place_of",
    "proxy_fault",
    "server_url_fault",
    "split_url",
]

SERVER_URL = '"https://host/path"'
PROXY_URL = '"http://host:port"'

_PORTS = {"http": 80, "https": 443}
_SHOWN_SCHEMES = frozenset({"file", "ftp", "socks4", "socks5", "stdio", "unix", "ws", "wss", *_PORTS})
"""Only these are named in an error: what stands before another colon may be half of a secret."""
_ODD = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")
"""Parsers disagree about these: what one takes for the host is the path of another."""
_ODD_IN_HOST = re.compile(r"[^\w.:\-]")


class UrlFault(NamedTuple):
    """What is wrong with a URL, without its value, and what to do."""

    message: str
    fix: str | None = None


def server_url_fault(url: str) -> UrlFault | None:
    """Why this cannot be the URL of a server, or None."""
    parts = split_url(url, ("http", "https"), "https")
    if isinstance(parts, UrlFault):
        return parts
    if "@" in parts.netloc:
        return UrlFault(
            "a user or a password stands in the URL, where logs of others would keep it",
            "take it out, and put it into headers (Authorization)",
        )
    if "#" in url:
        return UrlFault("a fragment ('#...') stands in the URL, and is never sent", "take it out")
    return None


def proxy_fault(url: str) -> UrlFault | None:
    """Why this cannot be the URL of a proxy, or None. A user and a password may stand in it."""
    parts = split_url(url, PROXY_SCHEMES, "http")
    if isinstance(parts, UrlFault):
        return parts
    if parts.path not in ("", "/") or "?" in url or "#" in url:
        return UrlFault("the URL of a proxy ends after its port")
    return None


def place_of(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path: what makes two URLs the same place. The query is left out, as it holds keys.

    Raises:
        ValueError: it is no URL of a server.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in _PORTS:
        raise ValueError("not the URL of a server")
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], parts.path or "/"


def split_url(url: str, schemes: tuple[str, ...], usual: str) -> SplitResult | UrlFault:
    """The parts of an absolute URL of one of these schemes, or why it is none; ``usual`` is the one to write."""
    wanted = " or ".join((", ".join(schemes[:-1]), schemes[-1]))
    if _ODD.search(url):
        return UrlFault("the URL holds a blank, a backslash or a control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return UrlFault("the URL cannot be read: its host or port is malformed")
    if parts.scheme in ("ws", "wss") and parts.scheme not in schemes:
        return UrlFault(
            "a WebSocket address, which is no transport of MCP",
            "ask the server for its http or https address",
        )
    if parts.scheme not in schemes:
        named = (
            f"its scheme is {parts.scheme!r}"
            if parts.scheme in _SHOWN_SCHEMES
            else "it begins with no such scheme"
        )
        return UrlFault(f"not an absolute {wanted} URL: {named}", f"begin it with {usual}://")
    if not parts.hostname:
        return UrlFault("the URL names no host")
    if _ODD_IN_HOST.search(parts.hostname.partition("%")[0] if "[" in parts.netloc else parts.hostname):
        return UrlFault("the host of the URL holds a character that no host has")
    if port == 0:
        return UrlFault("the port of the URL is 0")
    return parts
