"""What of a URL may be shown, and which hosts are this machine: the one place of these decisions, for configurations,
connections, errors, logs and reprs alike.

A URL may hold secrets as its user and password, as values of its query, and as a part of its path, where many hosted
servers put a key. Pure; no name is looked up.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urljoin, urlsplit

__all__ = [
    "KEY_IN_PATH",
    "PROXY_SCHEMES",
    "Address",
    "address_of",
    "is_loopback",
    "plain_host",
    "shown_target",
    "shown_url",
]

PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
"""``socks5`` looks the server's name up here, ``socks5h`` at the proxy."""

KEY_IN_PATH = re.compile(r"(?=[^/]*[0-9])[\w.~%=+:@-]{20,}")
"""A part of a path that may be a key: long, and with a digit in it."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_MOST_SHOWN = 300
"""Characters of a URL in a text."""
_BETWEEN = re.compile(r"([&;])")


def shown_url(url: str) -> str:
    """A URL fit for people and logs, in one line: no user, password and fragment, of its query the names alone, and
    no part of its path that may be a key."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "(a URL that cannot be read)"
    _, at, place = parts.netloc.rpartition("@")
    if not parts.scheme or not place:
        return "(a URL without a host)"
    path = "/".join("…" if KEY_IN_PATH.fullmatch(part) else part for part in parts.path.split("/"))
    query = "".join(each if each in "&;" else _without_value(each) for each in _BETWEEN.split(parts.query))
    text = f"{parts.scheme}://{'…@' if at else ''}{place}{path}{'?' if query else ''}{query}"
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def shown_target(url: str, location: str) -> str:
    """Where a redirect from this URL points to."""
    try:
        return shown_url(urljoin(url, location))
    except ValueError:
        return "(a URL that cannot be read)"


def is_loopback(host: str) -> bool:
    """True for the names and addresses of this machine itself; nothing is looked up."""
    host = plain_host(host)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = address_of(host)
    return address is not None and address.is_loopback


def plain_host(host: str) -> str:
    """A host without brackets and the dot at its end, in small letters."""
    return host.strip("[]").rstrip(".").lower()


def address_of(host: str) -> Address | None:
    """The address a host is, or None if it is a name; IPv4 that stands in IPv6 is that of version 4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _without_value(pair: str) -> str:
    """Of ``name=value`` the name; what has no name may be a secret as a whole."""
    name, equals, _ = pair.partition("=")
    return f"{name}=…" if equals else "…" * bool(pair)
