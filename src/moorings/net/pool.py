"""The connections of one setting: aiohttp's connector and parser, and what is told when they fail.

aiohttp dials (with happy eyeballs), tunnels, keeps connections and parses; requests are written by ``exchange.py``
straight to the connection, without its session and its task for each body. A pool is made by ``client.Net`` in the
loop that uses it and ended by ``aclose``; after that no connection is left. Imported with aiohttp only.
"""

from __future__ import annotations

import asyncio
import base64
import contextvars
import errno
import functools
import os
import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from .._tasks import outlast
from ..errors import ConfigError
from . import inherited, tls
from .addresses import place_as_written
from .errors import AddressRefused, DialFailed, DialTimeout, NetClosed, NetError, ProxyFailed
from .resolver import Resolver
from .settings import NetSettings
from .vetting import Refusal, Vetting, judge, passing

__all__ = ["Handler", "Pool", "Target"]

UNIX: int = getattr(socket, "AF_UNIX", 0)
"""The family of Unix sockets; there is none on Windows."""
IDLE_PROBE = 30
"""Seconds of silence after which the kernel asks if the other side still lives."""
PROBE_EVERY = 10
PROBES = 3
UNACKED = 60
"""Seconds after which a connection is given up whose other side takes no byte."""
VET_WITHIN = 2.0
"""Seconds for finding out what a name means here that a proxy will look up: where all goes by proxies there may be no
name server at all."""
CLOSE_WITHIN = 2.0
"""Seconds for connections to go at the end; they are aborted, so they take none as a rule."""

_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class Target:
    """What is known of one URL before any request: parsed once, and kept with its pool's key."""

    __slots__ = (
        "context",
        "host",
        "login",
        "origin",
        "path",
        "proxy",
        "proxy_auth",
        "request",
        "text",
        "tunnelled",
        "url",
    )

    def __init__(
        self, text: str, url: URL, proxy: URL | None, context: ssl.SSLContext | None, agent: str
    ) -> None:
        self.text = text
        self.url = url
        self.origin = url.origin()
        self.host = url.host_port_subcomponent or ""
        self.proxy = proxy
        self.context = context
        secure = url.scheme == "https"
        socks = proxy is not None and proxy.scheme.startswith("socks")
        self.tunnelled = secure or socks
        self.path = place_as_written(text)
        self.login = _basic(url)
        """The userinfo of the URL, as the header it means."""
        self.proxy_auth: str | None = None
        if proxy is not None and not self.tunnelled:
            # The absolute form (RFC 9112 §3.2.2): this proxy reads the request itself.
            self.path = f"{self.origin}{self.path}"
            self.proxy_auth = _basic(proxy)
        bare = url.with_user(None)
        self.request = _Request(
            "GET",
            bare,
            loop=asyncio.get_running_loop(),
            ssl=context if context is not None else True,
            proxy=None if socks else proxy,
            proxy_headers={"User-Agent": agent} if proxy is not None and not socks else None,
        )
        key = self.request.connection_key
        self.request.connection_key = key._replace(proxy=proxy) if socks else key
        self.request.target = self


def _basic(url: URL) -> str | None:
    if url.user is None and url.password is None:
        return None
    return "Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()


class _Request(aiohttp.ClientRequest):
    """What a connector reads to find or make a connection; never sent."""

    target: Target

    @functools.cached_property
    def connection_key(self) -> Any:
        """Made once, and not at each request."""
        return aiohttp.ClientRequest.connection_key.fget(self)  # type: ignore[attr-defined]


class Handler(ResponseHandler):
    """aiohttp's protocol, which also knows what its exchange must be told."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.loop)
        self.pool = pool
        self.used = False
        """True once a request was written to it."""
        self.heard = False
        """True once a byte came in answer to the present request."""
        self.resting = False
        """True while it is kept for the next request: nothing is to come."""
        self.body: aiohttp.StreamReader | None = None
        """The body being read."""
        self.lost_by: BaseException | None = None
        """What ended the connection, if not its regular end."""
        self._poll: Any = None

    def data_received(self, data: bytes) -> None:
        if self.resting and data:
            # Read now, it would be taken for the answer to the next request (RFC 9112 §9.3, a 408 for instance).
            if self.transport is not None:
                self.transport.abort()
            return
        if data:
            self.heard = True
        super().data_received(data)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        # A parser that finds nonsense in the middle of a body tells only the protocol; the reader must know too.
        if self.body is not None and not self.body.is_eof() and self.body.exception() is None:
            self.body.set_exception(exc)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost_by = exc
        body = self.body
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc if exc is not None else aiohttp.ClientPayloadError())
        self.pool.gone(self)

    def gone_stale(self) -> bool:
        """True if a kept connection is at its end, or was spoken on out of turn.

        The kernel is asked, as it may know of an end that the loop had no turn to read: 1 µs against an ambiguous call.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self._poll is None:
            make_poll = getattr(select, "poll", None)  # not on Windows
            if make_poll is None:
                return False
            self._poll = make_poll()
            self._poll.register(transport.get_extra_info("socket").fileno(), getattr(select, "POLLIN", 1))
        return bool(self._poll.poll(0))


class _Ended(Exception):
    """Carries a typed failure through aiohttp, which would take some of them for its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


_vetted_dial: contextvars.ContextVar[Target | None] = contextvars.ContextVar("vetted_dial", default=None)
"""The target of a dial whose addresses are vetted; a dial of a proxy has none."""


class _RefusedSocket(OSError):
    """Carries a refusal through what dials, which takes every ``OSError`` for the fault of one address."""

    def __init__(self, address: str, refusal: Refusal) -> None:
        super().__init__(errno.EACCES, refusal.why)
        self.address = address
        self.refusal = refusal


class _TcpConnector(aiohttp.TCPConnector):
    pool: Pool

    async def _resolve_host(self, host: str, port: int, traces: Any = None) -> list[Any]:
        """Every address on its way to a socket, literal ones too; those that may not be dialled are not."""
        found = await super()._resolve_host(host, port, traces)
        target = _vetted_dial.get()
        if target is None:
            return found
        good = self.pool.vet(target, [each["host"] for each in found])
        return [each for each in found if each["host"] in good]

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        create = super()._create_connection
        return await self.pool.dial(req.target, lambda: create(req, traces, timeout))


class _UnixConnector(aiohttp.UnixConnector):
    pool: Pool

    async def _create_connection(self, req: Any, traces: Any, timeout: Any) -> Any:
        return await self.pool.dial(req.target, self._connect)

    async def _connect(self) -> Any:
        sock = inherited.make((UNIX, socket.SOCK_STREAM, 0))
        try:
            sock.setblocking(False)
            await self._loop.sock_connect(sock, self.path)
            _, handler = await self._loop.create_unix_connection(self._factory, sock=sock)
        except BaseException:  # boundary: put away, and raised again
            sock.close()
            raise
        return handler


class _Direct:
    """What python-socks asks for its connection to the proxy: a socket that is noted before it connects."""

    def __init__(self, loop: asyncio.AbstractEventLoop, family: int) -> None:
        self._loop = loop
        self._family = family

    async def connect(self, *, dest_host: str, dest_port: int, timeout: float | None) -> socket.socket:
        sock = inherited.make((self._family, socket.SOCK_STREAM, 0))
        try:
            sock.setblocking(False)
            await self._loop.sock_connect(sock, (dest_host, dest_port))
        except BaseException:  # boundary: put away, and raised again
            sock.close()
            raise
        return sock


class Pool:
    """Connections of equal settings; see the module."""

    def __init__(self, settings: NetSettings, resolver: Resolver) -> None:
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._resolver = resolver
        self._closed = False
        self._open: dict[Handler, asyncio.Transport] = {}
        """Every connection that is up, idle or not."""
        self._all_gone: asyncio.Future[None] | None = None
        self._dialing: set[asyncio.Timeout] = set()
        common: dict[str, Any] = {
            "limit": 0,
            "limit_per_host": settings.max_connections,
            **({"keepalive_timeout": settings.keep_alive} if settings.keep_alive else {"force_close": True}),
        }
        self._connector: _TcpConnector | _UnixConnector
        if settings.unix_socket is not None:
            self._connector = _UnixConnector(settings.unix_socket, **common)
        else:
            self._connector = _TcpConnector(
                resolver=resolver,
                use_dns_cache=False,
                socket_factory=self._vetted_socket if settings.vetted else inherited.make,
                **common,
            )
        self._connector.pool = self
        self._connector._factory = functools.partial(Handler, self)  # type: ignore[assignment]

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        """Connections that are up."""
        return len(self._open)

    async def take(self, target: Target) -> Any:
        """A connection to the target, kept or new; it goes back by its ``release`` or ``close``.

        Raises:
            NotConnected: none came to be.
            NetClosed: the pool is closed.
        """
        while True:
            if self.closed:
                raise NetClosed(url=target.text, sent=False)
            try:
                connection = await self._connector.connect(target.request, [], _NO_TIMEOUT)
            except _Ended as ended:
                raise ended.error from None
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed and task is not None and not task.cancelling():
                    # Nobody cancelled us: a closing connector cancels those who wait for a free connection.
                    raise NetClosed(url=target.text, sent=False) from None
                raise
            except aiohttp.ClientError:
                raise NetClosed(url=target.text, sent=False) from None
            handler: Any = connection.protocol
            if handler is not None and not (handler.used and handler.gone_stale()):
                return connection
            connection.close()

    async def dial(self, target: Target, connect: Callable[[], Awaitable[Any]]) -> Handler:
        """Make a connection, within the bound. Called by the connector."""
        began = self.loop.time()
        allowed = self._settings.dial
        direct = self._settings.vetted and target.proxy is None
        before = _vetted_dial.set(target if direct else None)
        try:
            async with asyncio.timeout(allowed) as bound:
                self._dialing.add(bound)
                try:
                    if self._settings.vetted and target.proxy is not None:
                        await self._vet_for_proxy(target)
                    if target.proxy is not None and target.proxy.scheme.startswith("socks"):
                        handler: Handler = await self._through_socks(target)
                    else:
                        handler = await connect()
                finally:
                    self._dialing.discard(bound)
        except (NetError, ConfigError) as error:
            raise _Ended(error) from None
        except (OSError, aiohttp.ClientError, RuntimeError) as error:
            if self._closed:
                raise _Ended(NetClosed(url=target.text, sent=False)) from None
            if bound.expired():
                elapsed = self.loop.time() - began
                raise _Ended(DialTimeout(url=target.text, elapsed=elapsed, allowed=allowed)) from None
            raise _Ended(_why(error, target)) from None
        finally:
            _vetted_dial.reset(before)
        transport = handler.transport
        if transport is None:
            raise _Ended(_why(handler.lost_by or ConnectionResetError(), target))
        self._open[handler] = transport
        _keep_alive(transport)
        return handler

    async def _through_socks(self, target: Target) -> Handler:
        try:
            import python_socks
            from python_socks.async_.asyncio import Proxy
        except ImportError:
            raise ConfigError(
                f"{target.proxy.scheme if target.proxy else ''} proxies need a package that is not installed",
                key="proxy",
                fix='pip install "moorings[socks]"',
            ) from None
        proxy = target.proxy
        assert proxy is not None and proxy.host is not None
        host, port = target.url.raw_host or "", target.url.port or 0
        shown = str(proxy)
        try:
            at = (await self._resolver.resolve(proxy.host, proxy.port or 1080))[0]
        except OSError:
            raise ProxyFailed(
                "the name of the SOCKS proxy is not known", url=target.text, proxy=shown
            ) from None
        wanted = host
        if proxy.scheme == "socks5":
            found = [each["host"] for each in await self._resolver.resolve(host, port)]
            wanted = (self.vet(target, found) if self._settings.vetted else found)[0]
        via = Proxy(
            python_socks.ProxyType.SOCKS5,
            at["host"],
            proxy.port or 1080,
            proxy.user,
            proxy.password,
            rdns=True,
            forward=_Direct(self.loop, at["family"]),  # type: ignore[arg-type]
            loop=self.loop,
        )
        try:
            made = await via.connect(wanted, port, timeout=self._settings.dial * 2)
        except OSError as error:
            raise ProxyFailed(
                f"the SOCKS proxy cannot be reached ({_name(error)})", url=target.text, proxy=shown
            ) from None
        except python_socks.ProxyError as error:
            code = error.error_code
            why = SOCKS_REPLIES.get(code or 0, "it refused, or took us for somebody it does not know")
            raise ProxyFailed(f"the SOCKS proxy said no: {why}", url=target.text, proxy=shown) from None
        secure = target.url.scheme == "https"
        try:
            _, handler = await self.loop.create_connection(
                functools.partial(Handler, self),
                sock=made,
                ssl=target.context if secure else None,
                server_hostname=host.rstrip(".") if secure else None,
            )
        except BaseException:  # boundary: put away, and raised again
            made.close()
            raise
        return handler

    def vet(self, target: Target, addresses: list[str], *, all_of_them: bool = False) -> list[str]:
        """Those of the addresses of a target that may be connected to, at least one.

        Raises:
            AddressRefused: none may, or, with ``all_of_them``, one may not.
        """
        host = target.url.raw_host or ""
        vetting = Vetting(self._settings.private_networks, self._settings.loopback)
        good, bad = passing(addresses, host, vetting)
        if bad is not None and (all_of_them or not good):
            raise _refused(target, *bad)
        return good

    async def _vet_for_proxy(self, target: Target) -> None:
        """What the name means here, where it means something; nobody can say which address the proxy will take."""
        try:
            async with asyncio.timeout(VET_WITHIN):
                found = await self._resolver.resolve(target.url.raw_host or "", target.url.port or 0)
        except (OSError, TimeoutError):
            return  # a name that the proxy alone knows
        self.vet(target, [each["host"] for each in found], all_of_them=True)

    def _vetted_socket(self, info: Any) -> socket.socket:
        """The socket of a dial, made only for an address that passes: the last place before the network."""
        place = info[4]
        target = _vetted_dial.get()
        if target is not None:
            vetting = Vetting(self._settings.private_networks, self._settings.loopback)
            refusal = judge(str(place[0]), target.url.raw_host or "", vetting)
            if refusal is not None:
                raise _RefusedSocket(str(place[0]), refusal)
        return inherited.make(info)

    def gone(self, handler: Handler) -> None:
        """A connection has ended; its socket is not closed yet."""
        self._open.pop(handler, None)
        if not self._open and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def end_idle(self, target: Target) -> None:
        """End the connections that are kept for requests to the origin of a target."""
        for handler, _ in self._connector._conns.pop(target.request.connection_key, ()):
            if handler.transport is not None:
                handler.transport.abort()

    def disown(self) -> None:
        """Its loop runs no more, or is another process's: aiohttp must not complain of what it still holds."""
        self._closed = self._connector._closed = True

    async def aclose(self) -> bool:
        """End every connection, the dials too, and see them gone. True if the waiter was cancelled meanwhile."""
        if self._closed:
            return False
        self._closed = True
        for bound in list(self._dialing):
            if not bound.expired():
                bound.reschedule(self.loop.time())
        for transport in list(self._open.values()):
            transport.abort()
        # Not its ``close``, which waits without a bound for connections that end in their own time.
        self._connector._close()
        if self._open:
            self._all_gone = self.loop.create_future()
            _, cancelled = await outlast(self._all_gone, self.loop.time() + CLOSE_WITHIN)
            return cancelled
        return False


SOCKS_REPLIES = {
    1: "general failure",
    2: "its rules do not allow this connection",
    3: "the network of the server is unreachable",
    4: "the server is unreachable, or its name not known there",
    5: "the server refused the connection",
    6: "the connection took too long",
}
"""RFC 1928 §6."""


def _keep_alive(transport: asyncio.Transport) -> None:
    """Let the kernel notice a connection whose other side is gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", IDLE_PROBE),
            ("TCP_KEEPALIVE", IDLE_PROBE),
            ("TCP_KEEPINTVL", PROBE_EVERY),
            ("TCP_KEEPCNT", PROBES),
            ("TCP_USER_TIMEOUT", UNACKED * 1000),
        ):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:
        # It is gone already, or the system has no such option: the bounds still hold.
        pass


def _name(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__


def _refused(target: Target, address: str, refusal: Refusal) -> AddressRefused:
    return AddressRefused(
        f"its host is at {address}, {refusal.why}", url=target.text, kind=refusal.kind, address=address
    )


def _why(error: BaseException, target: Target) -> NetError:
    """The typed failure for what a dial ended with."""
    url, proxy = target.text, target.proxy
    if isinstance(error, aiohttp.ClientHttpProxyError):
        wants = " and wants a login" if error.status == 407 else ""
        return ProxyFailed(
            f"the proxy answered {error.status}{wants}", url=url, proxy=str(proxy), status=error.status
        )
    cause: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
    if isinstance(cause, _RefusedSocket):
        return _refused(target, cause.address, cause.refusal)
    if isinstance(cause, ssl.SSLError):
        at_proxy = (
            proxy is not None and proxy.scheme == "https" and getattr(error, "host", None) == proxy.raw_host
        )
        return tls.explain(cause, url, "the proxy" if at_proxy else "the server")
    if proxy is not None and isinstance(error, aiohttp.ClientConnectorDNSError):
        return ProxyFailed("the name of the proxy is not known", url=url, proxy=str(proxy))
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return ProxyFailed(
            f"the proxy cannot be reached ({_name(error.os_error)})", url=url, proxy=str(proxy)
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(cause, socket.gaierror):
        return DialFailed("the name of its host is not known", url=url, kind="dns")
    if isinstance(error, aiohttp.InvalidURL):
        return DialFailed("its host is not written as an address is written", url=url, kind="address")
    if isinstance(cause, ConnectionRefusedError):
        return DialFailed("the connection was refused: nothing listens there", url=url, kind="refused")
    secure = target.url.scheme == "https"
    if isinstance(cause, FileNotFoundError):
        return DialFailed("there is no such Unix socket", url=url, kind="refused")
    if isinstance(cause, OSError) and cause.errno in UNREACHABLE:
        return DialFailed(f"the host cannot be reached ({_name(cause)})", url=url, kind="unreachable")
    if proxy is not None and not isinstance(error, aiohttp.ClientConnectorError):
        return ProxyFailed(f"the proxy broke off ({type(error).__name__})", url=url, proxy=str(proxy))
    if secure and isinstance(cause, ConnectionError):
        return tls.explain(cause, url)
    what = _name(cause) if isinstance(cause, OSError) else type(cause).__name__
    return DialFailed(f"no connection ({what})", url=url, kind="other")


UNREACHABLE = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
}
