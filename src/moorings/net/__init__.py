"""The one HTTP client factory: everything of ours that speaks HTTP gets its connections here.

A ``Net`` is made by a host and ended with it. It gives clients by ``NetSettings``; equal settings share one pool, and
equal TLS one context, which does not exist before an ``https://`` URL needs it. This room knows TLS, proxies, pools,
redirects, compression and the ways in which they fail, each with its own type and with ``sent``; it knows nothing of
MCP. aiohttp and ``ssl`` are imported by the first request, never by importing this room.
"""

from .addresses import is_loopback, origin
from .client import HttpClient, Net, Redirects
from .errors import (
    BadAnswer,
    BadEncoding,
    Broken,
    DialFailed,
    DialTimeout,
    FirstByteTimeout,
    IdleTimeout,
    NetClosed,
    NetError,
    NotConnected,
    ProxyFailed,
    RedirectRefused,
    ReuseRace,
    TlsFailed,
    TooLarge,
)
from .settings import NetSettings

__all__ = [
    "BadAnswer",
    "BadEncoding",
    "Broken",
    "DialFailed",
    "DialTimeout",
    "FirstByteTimeout",
    "HttpClient",
    "IdleTimeout",
    "Net",
    "NetClosed",
    "NetError",
    "NetSettings",
    "NotConnected",
    "ProxyFailed",
    "RedirectRefused",
    "Redirects",
    "ReuseRace",
    "TlsFailed",
    "TooLarge",
    "is_loopback",
    "origin",
]
