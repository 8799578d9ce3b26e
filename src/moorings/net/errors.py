"""How an exchange over HTTP failed. Internal: a transport turns these into the public errors.

::

    NetError                url without its secrets, sent, reason
    ├── NotConnected        no connection came to be: never sent
    │   ├── DialFailed      the name, or the address, or a refusal
    │   ├── DialTimeout     not within ``NetSettings.dial``
    │   ├── TlsFailed       certificate or handshake, on either side
    │   └── ProxyFailed     the proxy could not be reached, or said no
    ├── FirstByteTimeout    no answer began in time
    ├── IdleTimeout         an answer stopped in its middle
    ├── Broken              the connection ended too early
    │   └── ReuseRace       ... a kept one, before any byte of an answer
    ├── BadAnswer           what came is not HTTP
    ├── BadEncoding         a compression that is unknown or damaged
    ├── TooLarge            more than the cap, decompressed
    ├── RedirectRefused     a redirect that is not followed
    └── NetClosed           the client was closed meanwhile

``sent`` is decided by what was done, never by a text: it is False until the first byte of the request is handed to a
connection that is up, and for what the other side refused before it can have read any.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from .._urls import shown_target, shown_url

__all__ = [
    "BadAnswer",
    "BadEncoding",
    "Broken",
    "DialFailed",
    "DialTimeout",
    "FirstByteTimeout",
    "IdleTimeout",
    "NetClosed",
    "NetError",
    "NotConnected",
    "ProxyFailed",
    "RedirectRefused",
    "ReuseRace",
    "TlsFailed",
    "TooLarge",
]


class NetError(Exception):
    """Base of all; ``reason`` is a clause without a full stop, never empty, and holds no secret."""

    ever_sent: ClassVar[bool] = True

    def __init__(self, reason: str, *, url: str, sent: bool | None = None) -> None:
        self.url = shown_url(url)
        """Without userinfo and values of the query."""
        self.sent = self.ever_sent if sent is None else sent
        """True if the server may have begun to act on the request."""
        self.reason = reason
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.url}: {self.reason}"


class NotConnected(NetError):
    """No connection came to be, so nothing was sent."""

    ever_sent = False


class DialFailed(NotConnected):
    """The server could not be reached at all."""

    def __init__(
        self, reason: str, *, url: str, kind: Literal["dns", "refused", "unreachable", "address", "other"]
    ) -> None:
        super().__init__(reason, url=url)
        self.kind = kind


class DialTimeout(NotConnected):
    """No connection within the bound."""

    def __init__(self, *, url: str, elapsed: float, allowed: float) -> None:
        super().__init__(f"no connection within {elapsed:.1f} s of {allowed:.4g} s allowed", url=url)
        self.elapsed = elapsed
        self.allowed = allowed


TlsKind = Literal[
    "expired", "not-yet-valid", "wrong-host", "unknown-ca", "revoked", "certificate",
    "client-certificate-required", "client-certificate-refused", "no-tls", "handshake",
]  # fmt: skip


class TlsFailed(NotConnected):
    """The TLS of the server (or of a proxy), or our own certificate, was not accepted."""

    def __init__(self, reason: str, *, url: str, kind: TlsKind) -> None:
        super().__init__(reason, url=url)
        self.kind = kind


class ProxyFailed(NotConnected):
    """The proxy was not reached or refused; the server saw nothing."""

    def __init__(self, reason: str, *, url: str, proxy: str, status: int | None = None) -> None:
        super().__init__(reason, url=url)
        self.proxy = shown_url(proxy)
        self.status = status
        """Its HTTP status, if it gave one."""


class FirstByteTimeout(NetError):
    """No answer began within the bound."""

    def __init__(self, *, url: str, allowed: float) -> None:
        super().__init__(f"no answer began within {allowed:.4g} s", url=url)
        self.allowed = allowed


class IdleTimeout(NetError):
    """An answer began and then stood still for longer than the bound."""

    def __init__(self, *, url: str, allowed: float) -> None:
        super().__init__(f"the answer stopped: no byte came for {allowed:.4g} s", url=url)
        self.allowed = allowed


class Broken(NetError):
    """The connection ended before the answer was whole."""


class ReuseRace(Broken):
    """A connection kept from before ended as the request was written to it, before any byte of an answer.

    Most often the server closed it for idleness and never saw the request, but nothing proves it.
    """


class BadAnswer(NetError):
    """What came back is not HTTP as it should be."""


class BadEncoding(NetError):
    """The body is compressed in a way we did not ask for, or its compression is damaged."""


class TooLarge(NetError):
    """The body is larger than the cap; counted after decompression."""

    def __init__(self, *, url: str, cap: int) -> None:
        super().__init__(f"the answer is over the cap of {cap:,} bytes", url=url)
        self.cap = cap


class RedirectRefused(NetError):
    """The server wants the request elsewhere, and it is not taken there. It turned the request away."""

    ever_sent = False

    def __init__(self, reason: str, *, url: str, status: int, location: str) -> None:
        super().__init__(reason, url=url)
        self.status = status
        self.location = shown_target(url, location)


class NetClosed(NetError):
    """Our side was closed."""

    def __init__(self, *, url: str, sent: bool) -> None:
        super().__init__("the HTTP client was closed", url=url, sent=sent)
