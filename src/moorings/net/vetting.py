"""Which addresses a URL from a server may lead to (MCP security best practices, SSRF; RFC 6890): pure tables.

A client with ``NetSettings.vetted`` asks here three times: for the host in the URL if it is an address, for every
address that a name was resolved to, and for the address of each socket right before it is connected. The last two are
the same addresses, so a name that changes between check and use gains nothing. ``ipaddress`` reads addresses; the
networks are named here, as its own opinion of them differs between releases of Python. No I/O.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Literal, NamedTuple

from .addresses import is_loopback

__all__ = ["Refusal", "RefusalKind", "Vetting", "judge", "judge_host", "passing"]

RefusalKind = Literal[
    "loopback", "private", "shared", "link-local", "metadata", "multicast", "reserved", "unspecified", "tunnel",
    "malformed", "not-https",
]  # fmt: skip


class Refusal(NamedTuple):
    """Why an address is not connected to."""

    kind: RefusalKind
    why: str
    """What it is: a noun, such as ``a private address``."""


class Vetting(NamedTuple):
    """What passes besides the public internet."""

    private: bool = False
    """Private, unique local and shared (CGNAT) networks."""
    loopback: bool = False
    """This machine, for URLs that name it."""


PRIVATE = frozenset({"private", "shared"})
"""Kinds that ``Vetting.private`` lets pass."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


METADATA = _networks(
    "169.254.169.254/32",  # AWS, Azure, GCP, Oracle and others
    "169.254.170.2/32",  # AWS, containers
    "169.254.170.23/32",
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure
    "192.0.0.192/32",  # Oracle
    "fd00:ec2::254/128",  # AWS
    "fd00:ec2::23/128",
    "fd20:ce::254/128",  # GCP
)
"""Where clouds hand out the credentials of a machine: refused whatever else is allowed."""

_LOOPBACK = _networks("127.0.0.0/8", "::1/128")
_LINK_LOCAL = _networks("169.254.0.0/16", "fe80::/10")
# 198.18.0.0/15 is for benchmarks (RFC 2544); tunnels on laptops give every name an address of it.
_PRIVATE = _networks(
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15", "fc00::/7", "fec0::/10"
)
_SHARED = _networks("100.64.0.0/10")
_MULTICAST = _networks("224.0.0.0/4", "ff00::/8")
_UNSPECIFIED = _networks("0.0.0.0/8", "::/128")
_RESERVED = _networks(
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
    "2001::/23", "2001:db8::/32", "3fff::/20",
)  # fmt: skip
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""All that is given out of IPv6; what lies outside and is named nowhere is reserved."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)

_TABLE: tuple[tuple[RefusalKind, str, tuple[Network, ...]], ...] = (
    ("metadata", "the metadata service of a cloud", METADATA),
    ("loopback", "this machine itself", _LOOPBACK),
    ("link-local", "a link-local address", _LINK_LOCAL),
    ("private", "a private address", _PRIVATE),
    ("shared", "an address of a shared network (CGNAT)", _SHARED),
    ("multicast", "a multicast address", _MULTICAST),
    ("unspecified", "no address of a host", _UNSPECIFIED),
    ("reserved", "a reserved address", _RESERVED),
)


def judge(address: str, host: str, vetting: Vetting) -> Refusal | None:
    """Why no connection for a URL with this host goes to this address; None if one may.

    A name that stands for this machine leads to this machine alone, and nothing else leads here.
    """
    try:
        read = ipaddress.ip_address(address)
    except ValueError:
        return Refusal("malformed", "not written as an address is written")
    if is_loopback(host):
        if not vetting.loopback:
            return Refusal("loopback", "this machine itself")
        refusal = _judge(read)
        if refusal is not None and refusal.kind == "loopback":
            return None
        return refusal or Refusal("reserved", "not this machine, which its host stands for")
    refusal = _judge(read)
    if refusal is not None and vetting.private and refusal.kind in PRIVATE:
        return None
    return refusal


def judge_host(host: str, vetting: Vetting) -> Refusal | None:
    """The same for the host of a URL: an address is judged, a name passes, unless it is one of this machine."""
    plain = host.strip("[]").rstrip(".")
    try:
        ipaddress.ip_address(plain)
    except ValueError:
        if is_loopback(host) and not vetting.loopback:
            return Refusal("loopback", "this machine itself")
        return None
    return judge(plain, plain, vetting)


def passing(
    addresses: Iterable[str], host: str, vetting: Vetting
) -> tuple[list[str], tuple[str, Refusal] | None]:
    """Those of the addresses that may be connected to, and the first that may not, with the reason."""
    good: list[str] = []
    bad: tuple[str, Refusal] | None = None
    for address in addresses:
        refusal = judge(address, host, vetting)
        if refusal is None:
            good.append(address)
        elif bad is None:
            bad = (address, refusal)
    return good, bad


def _judge(address: Address) -> Refusal | None:
    for kind, why, networks in _TABLE:
        if any(address.version == each.version and address in each for each in networks):
            if kind == "reserved" and isinstance(address, ipaddress.IPv6Address):
                break  # it may be a tunnel, which says more
            return Refusal(kind, why)
    if isinstance(address, ipaddress.IPv4Address):
        return None if address.is_global else Refusal("reserved", "a reserved address")
    return _judge_6(address)


def _judge_6(address: ipaddress.IPv6Address) -> Refusal | None:
    """Of an address that holds one of IPv4 the inner one counts: it is where the packets go."""
    if address.ipv4_mapped is not None:
        return _judge(address.ipv4_mapped)
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        # Where there is only IPv6, all of IPv4 is reached by this.
        return _inner("NAT64", (low,))
    if address.sixtofour is not None:
        return _inner("6to4", (address.sixtofour,)) or Refusal("tunnel", "an address of a tunnel (6to4)")
    if address.teredo is not None:
        return _inner("Teredo", address.teredo) or Refusal("tunnel", "an address of a tunnel (Teredo)")
    if address in _NAT64_LOCAL:
        return Refusal("tunnel", "an address of a local translator (NAT64)")
    if address in _COMPATIBLE:
        return _inner("IPv4-compatible", (low,)) or Refusal("reserved", "a reserved address")
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and (refusal := _inner("ISATAP", (low,))) is not None:
        return refusal
    if address not in _GLOBAL_6 or any(address in each for each in _RESERVED if each.version == 6):
        return Refusal("reserved", "a reserved address")
    return None


def _inner(how: str, addresses: Iterable[ipaddress.IPv4Address]) -> Refusal | None:
    for address in addresses:
        refusal = _judge(address)
        if refusal is not None:
            # What may pass by itself may not in a tunnel, but for the one that takes the place of IPv4.
            kept = how == "NAT64" and refusal.kind in PRIVATE
            why = f"{refusal.why} inside of an IPv6 address ({how} of {address})"
            return Refusal(refusal.kind if kept else "tunnel", why)
    return None
