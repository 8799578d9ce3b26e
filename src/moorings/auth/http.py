"""How OAuth speaks HTTP: one small client over ``net``, with vetted addresses, no redirect on POST, and bounds on all.

Made by whoever discovers, registers or refreshes, over a ``Net`` that it does not own; holds nothing and needs no
close. URLs come from servers: https alone (http where the MCP server itself is this machine), and only to addresses
that passed (``net/vetting.py``), at each hop. A POST goes over a connection of its own, so that a single-use token
never meets a kept connection at its end, and follows no redirect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from .._urls import shown_url
from ..errors import MisuseError
from ..net.addresses import is_loopback, origin
from ..net.errors import (
    AddressRefused,
    DialFailed,
    NetError,
    ProxyFailed,
    RedirectRefused,
    ReuseRace,
    TlsFailed,
    TooLarge,
)
from ..net.settings import NetSettings
from .faults import AuthFault

if TYPE_CHECKING:
    from ..net.client import HttpClient, Net, Redirects
    from ..net.exchange import Answer
    from ..net.vetting import RefusalKind

__all__ = ["MOST_BYTES", "AuthAnswer", "AuthHttp", "AuthNetError", "on_this_machine"]

T = TypeVar("T")

MOST_BYTES = 256 * 1024
"""Bytes of a document or a token answer; after decompression."""
LATE = 0.5
"""Seconds; a bound that comes so late tells that this process was stopped, or kept from its work."""
GRACE = 2.0
"""Seconds that an answer which came meanwhile has then to be read: it may hold the only refresh token there is."""
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"

_HOPELESS_TLS = frozenset({"client-certificate-required", "client-certificate-refused"})


class AuthNetError(AuthFault):
    """No answer came, or none was asked for, as the URL leads where it may not. No secret is in its text."""

    def __init__(
        self,
        reason: str,
        *,
        url: str,
        transient: bool,
        sent: bool,
        refused: RefusalKind | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(reason, fix=fix)
        self.url = shown_url(url)
        self.transient = transient
        """True: the same may work later. False: something must be mended."""
        self.sent = sent
        """True if the server may have acted on the request."""
        self.retry_after: float | None = None
        """Always None: only an answer asks for a pause."""
        self.refused = refused
        """Why its address was refused, if it was."""

    def __str__(self) -> str:
        return f"{self.url}: {super().__str__()}"


class AuthAnswer:
    """An answer, whatever its status, read to its end; its connection is given back."""

    __slots__ = ("_body", "headers", "json", "status", "url")

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes, url: str) -> None:
        self.status = status
        self.headers = headers
        """In any letter case."""
        self.url = url
        """Where it came from, after redirects."""
        self._body = body
        self.json = _decoded(body)
        """The body as JSON, or None if it is none, whatever its content type."""

    @property
    def text(self) -> str:
        """The body as text. It may hold secrets."""
        return self._body.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"AuthAnswer({self.status}, {shown_url(self.url)}, {len(self._body)} bytes)"


class AuthHttp:
    """Sends the requests of OAuth. ``within`` is in seconds, for all of an exchange: dial, redirects and body.

    Every method raises ``AuthNetError``, and ``ConfigError`` where a file or package of the settings is missing.
    """

    def __init__(
        self,
        net: Net,
        settings: NetSettings | None = None,
        *,
        loopback: bool = False,
        private_networks: bool = False,
    ) -> None:
        """``settings`` are those of the MCP server; what is its alone (client certificate, socket, cookies) is left
        out. ``loopback``: see ``on_this_machine``."""
        reading = msgspec.structs.replace(
            settings or NetSettings(),
            vetted=True,
            loopback=loopback,
            private_networks=private_networks,
            cookies=False,
            client_cert=None,
            client_key=None,
            client_key_password=None,
            unix_socket=None,
        )
        self._reading = net.client(reading)
        self._acting = net.client(msgspec.structs.replace(reading, keep_alive=0.0))
        # The server itself is where a person said that it is, and is reached as its own connections reach it.
        itself = msgspec.structs.replace(settings or NetSettings(), keep_alive=0.0, cookies=False)
        self._server = net.client(itself)

    async def get_json(
        self, url: str, headers: Mapping[str, str] | None = None, *, within: float
    ) -> AuthAnswer:
        """Read a document; at most five redirects, which may lead elsewhere, without the headers."""
        sent = {"Accept": JSON, **(headers or {})}
        return await self._send(self._reading, "GET", url, sent, None, within, "get")

    async def post_form(
        self,
        url: str,
        form: list[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
        *,
        within: float,
    ) -> AuthAnswer:
        body = urlencode(form).encode("ascii")
        sent = {"Accept": JSON, "Content-Type": FORM, **(headers or {})}
        return await self._send(self._acting, "POST", url, sent, body, within, "none")

    async def post_json(
        self, url: str, value: Any, headers: Mapping[str, str] | None = None, *, within: float
    ) -> AuthAnswer:
        body = msgspec.json.encode(value)
        sent = {"Accept": JSON, "Content-Type": JSON, **(headers or {})}
        return await self._send(self._acting, "POST", url, sent, body, within, "none")

    async def options(self, url: str, *, within: float) -> AuthAnswer:
        """Ask if there is anything at a URL without doing anything there."""
        return await self._send(self._reading, "OPTIONS", url, {}, None, within, "none")

    async def knock(
        self, url: str, headers: Mapping[str, str], body: bytes | None, *, within: float
    ) -> tuple[int, Mapping[str, str]]:
        """Ask the MCP server itself something (GET without a body, else POST), and read the head of its answer alone:
        status and headers. It is followed where a connection follows it too: within its origin."""
        method = "GET" if body is None else "POST"
        return await self._exchange(self._server, method, url, headers, body, within, "same-origin", _head)

    async def read(self, url: str, headers: Mapping[str, str] | None = None, *, within: float) -> AuthAnswer:
        """Read with a secret in the headers: no redirect is followed."""
        sent = {"Accept": JSON, **(headers or {})}
        return await self._send(self._acting, "GET", url, sent, None, within, "none")

    async def delete(
        self, url: str, headers: Mapping[str, str] | None = None, *, within: float
    ) -> AuthAnswer:
        return await self._send(self._acting, "DELETE", url, dict(headers or {}), None, within, "none")

    async def _send(
        self,
        client: HttpClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        within: float,
        redirects: Redirects,
    ) -> AuthAnswer:
        check_url(url)
        return await self._exchange(client, method, url, headers, body, within, redirects, _whole)

    async def _exchange(
        self,
        client: HttpClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        within: float,
        redirects: Redirects,
        read: Callable[[Answer], Awaitable[T]],
    ) -> T:
        began = asyncio.get_running_loop().time()
        sent = False

        def leaves() -> None:
            nonlocal sent
            sent = True

        async def once() -> T:
            exchange = client.send(
                method,
                url,
                headers=headers,
                body=body,
                first_byte=None,
                idle=None,
                on_sent=leaves,
                redirects=redirects,
            )
            async with exchange as answer:
                return await read(answer)

        try:
            async with _Bound(within) as bound:
                try:
                    return await once()
                except ReuseRace:
                    if method != "GET":
                        raise
                    return await once()
        except NetError as error:
            raise _fault(error) from None
        except MisuseError:
            raise AuthNetError("not a URL that can be asked", url=url, transient=False, sent=False) from None
        except TimeoutError:
            if not bound.expired:
                raise
            elapsed = asyncio.get_running_loop().time() - began
            raise AuthNetError(
                f"no answer within {elapsed:.1f} s of {within:.4g} s allowed",
                url=url,
                transient=True,
                sent=sent,
            ) from None


async def _whole(answer: Answer) -> AuthAnswer:
    return AuthAnswer(answer.status, answer.headers, bytes(await answer.read(MOST_BYTES)), answer.url)


async def _head(answer: Answer) -> tuple[int, Mapping[str, str]]:
    return answer.status, answer.headers


class _Bound:
    """A bound on an exchange. Raises ``TimeoutError``, as ``asyncio.timeout`` does."""

    __slots__ = ("_late", "_loop", "_timeout", "_timer", "_until")

    def __init__(self, within: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + max(0.0, within)
        self._late = 3
        """How often it may come late."""
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_at(self._until, self._due)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _due(self) -> None:
        now = self._loop.time()
        if now - self._until > LATE and self._late:
            self._late -= 1
            self._until = now + GRACE
            self._timer = self._loop.call_at(self._until, self._due)
        else:
            self._timeout.reschedule(now)


def on_this_machine(*urls: str | None) -> bool:
    """True if one of these, which a person configured, is on this machine: then others may lead there, too."""
    for url in urls:
        try:
            host = urlsplit(url or "").hostname
        except ValueError:
            continue
        if host and is_loopback(host):
            return True
    return False


def check_url(url: str) -> None:
    """
    Raises:
        AuthNetError: not an absolute http or https URL that all parsers read alike, or with a login in it.
    """
    try:
        origin(url)
        login = "@" in urlsplit(url).netloc
    except ValueError:
        raise AuthNetError("not an absolute https URL", url=url, transient=False, sent=False) from None
    if login:
        raise AuthNetError("a user or password stands in it", url=url, transient=False, sent=False)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _fault(error: NetError) -> AuthNetError:
    """What a failure of the net means here, by its type."""
    transient = True
    reason, fix, refused = error.reason, None, None
    if isinstance(error, AddressRefused):
        transient, refused = False, error.kind
        reason = f"refused before connecting: {reason}"
        if error.kind in ("private", "shared"):
            fix = "set auth.private_networks if this server is meant to be there"
    elif isinstance(error, RedirectRefused):
        transient = False
        reason = (
            f"it answered {error.status} and points to {error.location}, which was not followed: {reason}"
        )
    elif isinstance(error, TlsFailed):
        transient = error.kind not in _HOPELESS_TLS
    elif isinstance(error, ProxyFailed):
        transient = error.status != 407
    elif isinstance(error, TooLarge) or (isinstance(error, DialFailed) and error.kind == "address"):
        transient = False
    return AuthNetError(reason, url=error.url, transient=transient, sent=error.sent, refused=refused, fix=fix)
