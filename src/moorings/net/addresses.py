"""URLs, hosts and proxies as pure functions: what is one origin, what goes through which proxy.

``NO_PROXY`` has no standard; this is what curl does, and CIDR as in Go. No I/O.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

from .._urls import Address, address_of, is_loopback, plain_host

__all__ = [
    "bypasses",
    "is_loopback",
    "is_odd_address",
    "no_proxy_list",
    "origin",
    "place_as_written",
    "proxy_for",
]

PORTS = {"http": 80, "https": 443}
_SEPARATORS = re.compile(r"[,\s]+")
_ODD = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_WRITABLE = "".join(map(chr, range(0x21, 0x7F)))


def place_as_written(url: str) -> str:
    """Path and query of a URL as they were written (F13); only what cannot stand in a request is encoded."""
    rest = url.partition("://")[2].partition("#")[0]
    start = next((at for at, each in enumerate(rest) if each in "/?"), len(rest))
    place = rest[start:]
    return quote(place if place.startswith("/") else "/" + place, safe=_WRITABLE)


def origin(url: str) -> str:
    """``scheme://host[:port]`` in small letters, without the usual port: what a credential is bound to.

    Raises:
        ValueError: no absolute http or https URL, or one that parsers read differently.
    """
    if _ODD.search(url):
        raise ValueError("the URL holds spaces, backslashes or control characters")
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not parts.hostname:
        raise ValueError("not an absolute http or https URL")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port
    return f"{scheme}://{host}" if port is None or port == PORTS[scheme] else f"{scheme}://{host}:{port}"


def is_odd_address(host: str) -> bool:
    """True for an IPv4 address in a form that systems read and filters overlook: ``127.1``, ``2130706433``, ``0x7f.1``.

    As browsers do it: what ends in a number is meant as an address.
    """
    last = plain_host(host).rpartition(".")[2]
    return _NUMBER.fullmatch(last) is not None and address_of(plain_host(host)) is None


def no_proxy_list(text: str) -> tuple[str, ...]:
    """The entries of ``NO_PROXY``, between commas or spaces."""
    return tuple(entry for entry in _SEPARATORS.split(text) if entry)


def bypasses(host: str, port: int, entries: Iterable[str]) -> bool:
    """True if one of the entries takes this host and port from the proxy.

    ``*`` is everything; ``name`` and ``.name`` are the name and all below it; an address is that address, a network
    in CIDR all of its addresses; ``:port`` behind a name or address narrows it to that port.
    """
    host = plain_host(host)
    address = address_of(host)
    for entry in entries:
        if entry == "*":
            return True
        if "/" in entry:
            if address is not None and _in_network(address, entry):
                return True
            continue
        name, entry_port = _split_port(entry)
        if entry_port is not None and entry_port != port:
            continue
        name = plain_host(name.removeprefix("*").removeprefix("."))
        if not name:
            continue
        if address is not None:
            if address_of(name) == address:
                return True
        elif host == name or host.endswith(f".{name}"):
            return True
    return False


def proxy_for(
    scheme: str,
    host: str,
    port: int,
    *,
    proxy: str | None,
    no_proxy: Iterable[str],
    environ: Mapping[str, str],
) -> str | None:
    """The proxy for a server, or None for a direct connection. ``proxy`` and ``no_proxy`` are those of the settings.

    The environment counts where the settings name none (small letters first). ``HTTP_PROXY`` in capitals is left
    alone in a CGI program, where the client of the web server sets it by a ``Proxy:`` header.
    """
    if proxy == "" or is_loopback(host):
        return None
    entries = tuple(no_proxy)
    if proxy is None:
        names = [f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"]
        if environ.get("REQUEST_METHOD") is not None:
            names = [name for name in names if name != "HTTP_PROXY"]
        proxy = next((value for name in names if (value := environ.get(name, "").strip())), None)
        if proxy is None:
            return None
        if "://" not in proxy:
            proxy = f"http://{proxy}"
        entries += no_proxy_list(environ.get("no_proxy") or environ.get("NO_PROXY") or "")
    return None if bypasses(host, port, entries) else proxy


def _in_network(address: Address, entry: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return address in network


def _split_port(entry: str) -> tuple[str, int | None]:
    """``name:port``, ``[v6]:port``; an address of version 6 without brackets has no port."""
    if entry.count(":") > 1 and not entry.startswith("["):
        return entry, None
    name, colon, port = entry.rpartition(":")
    if colon and port.isdigit() and name:
        return name, int(port)
    return entry, None
