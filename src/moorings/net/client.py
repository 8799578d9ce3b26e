"""The client factory: ``Net`` makes and owns what speaks HTTP, one pool and one TLS context for each setting.

Made by a host (or a test) and ended by its ``aclose``, in the one loop that uses it. aiohttp is imported by the first
request, in a thread, as it takes 0.2 s; a TLS context is made by the first ``https://`` URL of its setting.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast
from urllib.parse import urljoin

import msgspec

from .._tasks import TaskOwner, outlast, put_back_cancellation, run_in_thread
from ..errors import MisuseError
from .addresses import is_loopback, is_odd_address, place_as_written, proxy_for
from .errors import AddressRefused, DialFailed, NetClosed, RedirectRefused
from .settings import NetSettings, check_proxy
from .vetting import Vetting, judge_host

if TYPE_CHECKING:
    import ssl

    import aiohttp
    from yarl import URL

    from .exchange import Answer
    from .pool import Pool, Target
    from .resolver import Resolver

__all__ = ["MOST_REDIRECTS", "HttpClient", "Net", "Redirects"]

T = TypeVar("T")

Redirects = Literal["same-origin", "none", "get"]
"""Which redirects are followed. ``same-origin``: those that stay at the origin, a body only by 307 and 308. ``get``:
a GET to other origins too, without the caller's headers. ``none``: none."""

CLOSE_WITHIN = 2.0
"""Seconds for the last turn of the loop at the end, which takes none as a rule."""
MOST_REDIRECTS = 5
MOST_TARGETS = 256
"""URLs of one client that are kept in their parsed form."""
MOVED = frozenset({301, 302, 303, 307, 308})
CROSSING = frozenset({"accept", "user-agent"})
"""What a GET takes along to another origin (in small letters)."""


class _Modules(Protocol):
    """What is imported late."""

    Pool: type[Pool]
    Target: type[Target]
    Resolver: type[Resolver]
    exchange: Any
    request_bytes: Any
    URL: type[URL]
    aiohttp: Any


def _load() -> _Modules:
    import types

    import aiohttp
    from yarl import URL

    from .exchange import exchange, request_bytes
    from .pool import Pool, Target
    from .resolver import Resolver

    loaded: Any = types.SimpleNamespace(
        Pool=Pool,
        Target=Target,
        Resolver=Resolver,
        exchange=exchange,
        request_bytes=request_bytes,
        URL=URL,
        aiohttp=aiohttp,
    )
    return cast(_Modules, loaded)


class Net:
    """Owns pools, TLS contexts and lookups. Made by a host, ended by ``aclose``; nothing is left after that."""

    def __init__(self, environ: Callable[[], Mapping[str, str]]) -> None:
        self._environ = environ
        self._owner = TaskOwner("net")
        self._clients: dict[NetSettings, HttpClient] = {}
        self._pools: dict[NetSettings, Pool] = {}
        self._contexts: dict[NetSettings, asyncio.Task[ssl.SSLContext]] = {}
        self._loading: asyncio.Task[_Modules] | None = None
        self._modules: _Modules | None = None
        self._resolver: Resolver | None = None
        self._live: set[Any] = set()
        """Exchanges under way."""
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def client(self, settings: NetSettings) -> HttpClient:
        """The client of a setting: the same for equal settings, but a new one for each that keeps cookies.

        Raises:
            MisuseError: closed.
        """
        if self._closed:
            raise MisuseError("this Net is closed")
        if settings.cookies:
            return HttpClient(self, settings)
        client = self._clients.get(settings)
        if client is None:
            client = self._clients[settings] = HttpClient(self, settings)
        return client

    def disown(self) -> None:
        """Its loop runs no more, or is another process's: nothing of it must complain when it is dropped."""
        self._closed = True
        for exchange in self._live:
            exchange.disown()
        for pool in self._pools.values():
            pool.disown()

    async def aclose(self) -> None:
        """End every exchange with ``NetClosed``, every connection and every lookup. Takes some 2 s at most.

        Never cut short by a cancellation: one that comes meanwhile is put back when the work is done.
        """
        if self._closed:
            return
        self._closed = True
        for exchange in list(self._live):
            exchange.shut()
        cancelled = False
        for pool in self._pools.values():
            cancelled = await pool.aclose() or cancelled
        await self._owner.aclose()
        self._pools.clear()
        self._contexts.clear()
        self._clients.clear()
        # Once around the loop: connections that were given up just now are closed by then.
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turn.set_result, None)
        _, again = await outlast(turn, loop.time() + CLOSE_WITHIN)
        if cancelled or again:
            put_back_cancellation()

    async def modules(self, url: str) -> _Modules:
        """aiohttp and what needs it; imported in a thread, so that the loop goes on."""
        if self._modules is not None:
            return self._modules
        if "aiohttp" in sys.modules:
            loaded = _load()
        else:
            if self._loading is None:
                self._loading = self._owner.start(run_in_thread(_load, name="moorings-import"), name="import")
            loaded = await self._wait_for(self._loading, url)
        self._modules = loaded
        return loaded

    async def pool(self, settings: NetSettings, url: str) -> Pool:
        """The pool of a setting; who asks and with what cookies makes no difference to it."""
        key = msgspec.structs.replace(settings, cookies=False, user_agent="")
        modules = await self.modules(url)
        if self._closed:
            raise NetClosed(url=url, sent=False)
        pool = self._pools.get(key)
        if pool is None:
            if self._resolver is None:
                self._resolver = modules.Resolver(self._owner)
            pool = self._pools[key] = modules.Pool(key, self._resolver)
        return pool

    async def context(self, settings: NetSettings, url: str) -> ssl.SSLContext:
        """The TLS context of a setting, made once, in a thread.

        Raises:
            ConfigError: a file of the setting is missing or bad. It is looked at anew the next time.
        """
        key = NetSettings(
            ca_file=settings.ca_file,
            client_cert=settings.client_cert,
            client_key=settings.client_key,
            client_key_password=settings.client_key_password,
            verify=settings.verify,
            user_agent="",
        )
        task = self._contexts.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            from .tls import make_context

            work = run_in_thread(make_context, key, name="moorings-tls")
            try:
                task = self._contexts[key] = self._owner.start(work, name="TLS context")
            except RuntimeError:
                raise NetClosed(url=url, sent=False) from None
        return await self._wait_for(task, url)

    async def _wait_for(self, task: asyncio.Task[T], url: str) -> T:
        """A caller that gives up leaves the work to the others."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._closed and me is not None and not me.cancelling():
                raise NetClosed(url=url, sent=False) from None
            raise

    def environ(self) -> Mapping[str, str]:
        return self._environ()


class HttpClient:
    """Sends requests with one setting. Got from ``Net.client``, which owns all that it uses."""

    def __init__(self, net: Net, settings: NetSettings) -> None:
        self.settings = settings
        self._net = net
        self._pool: Pool | None = None
        self._modules: _Modules | None = None
        self._targets: dict[str, Target] = {}
        self._jar: aiohttp.CookieJar | None = None

    async def prepare(self, url: str) -> None:
        """Load what is loaded late and make the TLS context, so that a first request need not wait for it.

        Raises: as ``send``.
        """
        await self._open(url)
        if url not in self._targets:
            await self._target(url)

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        first_byte: float | None,
        idle: float | None,
        on_sent: Callable[[], None] | None = None,
        redirects: Redirects = "same-origin",
    ) -> AbstractAsyncContextManager[Answer]:
        """One request, to be used with ``async with``; the answer is the caller's inside of it.

        ``first_byte`` is the time in seconds from the request's last byte being handed over to the head of its answer,
        ``idle`` the longest silence in the body; connecting has its own bound, and waiting for one of
        ``max_connections`` has the caller's. ``on_sent`` is called right before the first byte leaves, again after a
        redirect.

        Raises:
            NetError: on entering; ``sent`` says if the server may have begun to act.
            ConfigError: files of the setting, or a package that is missing.
            MisuseError: a URL or header that cannot be sent.
        """
        return _Sending(self, method, url, headers, body, first_byte, idle, on_sent, redirects)

    def disown(self) -> None:
        """See ``Net.disown``."""
        self._net.disown()

    def end_idle(self, url: str) -> None:
        """Nothing more goes to the origin of a URL for now: connections that are kept for it are ended."""
        target = self._targets.get(url)
        if target is not None and self._pool is not None:
            self._pool.end_idle(target)

    async def _open(self, url: str) -> Pool:
        self._modules = modules = await self._net.modules(url)
        if self.settings.cookies and self._jar is None:
            self._jar = modules.aiohttp.CookieJar()
        self._pool = await self._net.pool(self.settings, url)
        return self._pool

    async def _target(self, text: str) -> Target:
        """What is to be known of a URL: read once, its proxy with the environment of that moment."""
        modules = self._modules
        assert modules is not None
        try:
            url = modules.URL(text)
            port = url.port
        except ValueError:
            url, port = modules.URL(), None
        if url.scheme not in ("http", "https") or not url.raw_host or not port:
            raise MisuseError("a URL that is not an http:// or https:// URL with a host", fix="mend `url`")
        settings = self.settings
        if settings.vetted:
            _vet(text, url, Vetting(settings.private_networks, settings.loopback))
        if is_odd_address(url.raw_host):
            raise DialFailed("its host is not written as an address is written", url=text, kind="address")
        proxy = None
        if settings.unix_socket is not None:
            if url.scheme != "http":
                raise MisuseError("over a Unix socket the URL begins with http://, as there is no TLS on it")
        else:
            proxy = proxy_for(
                url.scheme,
                url.raw_host,
                port,
                proxy=settings.proxy,
                no_proxy=settings.no_proxy,
                environ=self._net.environ(),
            )
            if proxy is not None:
                check_proxy(proxy)
        secure = url.scheme == "https" or (proxy is not None and proxy.startswith("https:"))
        context = await self._net.context(settings, text) if secure else None
        if len(self._targets) >= MOST_TARGETS:
            self._targets.clear()
        target = self._targets[text] = modules.Target(
            text, url, None if proxy is None else modules.URL(proxy), context, settings.user_agent
        )
        return target


class _Sending:
    """The ``async with`` of one request."""

    __slots__ = (
        "_answer", "_body", "_client", "_first_byte", "_headers", "_idle", "_method", "_on_sent", "_redirects", "_url",
    )  # fmt: skip

    def __init__(
        self,
        client: HttpClient,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        first_byte: float | None,
        idle: float | None,
        on_sent: Callable[[], None] | None,
        redirects: Redirects,
    ) -> None:
        self._client = client
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._first_byte = first_byte
        self._idle = idle
        self._on_sent = on_sent
        self._redirects = redirects
        self._answer: Answer | None = None

    async def __aenter__(self) -> Answer:
        answer = await self._once()
        hops = 0
        while answer.status in MOVED and (location := answer.headers.get("Location")):
            try:
                hops += 1
                self._follow(answer, location, hops)
            finally:
                answer.finish()
            answer = await self._once()
        self._answer = answer
        return answer

    async def __aexit__(self, *_: object) -> None:
        if self._answer is not None:
            self._answer.finish()

    async def _once(self) -> Answer:
        client, url = self._client, self._url
        pool = client._pool
        if pool is None or pool.closed:
            pool = await client._open(url)
        target = client._targets.get(url)
        if target is None:
            target = await client._target(url)
        modules = client._modules
        assert modules is not None
        cookies = None
        if client._jar is not None:
            kept = client._jar.filter_cookies(target.url)
            cookies = "; ".join(f"{name}={morsel.coded_value}" for name, morsel in kept.items())
        data = modules.request_bytes(
            self._method, target, self._headers, self._body, client.settings.user_agent, cookies
        )
        answer: Answer = await modules.exchange(
            pool,
            target,
            self._method,
            data,
            first_byte=self._first_byte,
            idle=self._idle,
            on_sent=self._on_sent,
            live=client._net._live,
        )
        if client._jar is not None:
            _keep_cookies(client._jar, answer, target)
        return answer

    def _follow(self, answer: Answer, location: str, hops: int) -> None:
        """Make the next request that of a redirect, or refuse it.

        Raises:
            RedirectRefused: not followed; nothing of ours went there.
        """
        modules = self._client._modules
        assert modules is not None
        here = answer._target.url

        def refused(why: str) -> RedirectRefused:
            return RedirectRefused(
                f"it answers {answer.status} and wants the request elsewhere, which is not followed: {why}",
                url=answer.url,
                status=answer.status,
                location=location,
            )

        if self._redirects == "none":
            raise refused("none is, for this request")
        if hops > MOST_REDIRECTS:
            raise refused(f"it would be the {hops}th in a row")
        try:
            there = here.join(modules.URL(location))
            place = place_as_written(urljoin(self._url, location))
            port = there.port
        except ValueError:
            raise refused("it leads to no URL") from None
        if there.scheme not in ("http", "https") or not there.raw_host or not port:
            raise refused("it leads to no http or https URL")
        if here.scheme == "https" and there.scheme == "http":
            raise refused("it leads from https to http")
        reads = self._method in ("GET", "HEAD")
        if not reads and answer.status not in (307, 308):
            raise refused(f"a {self._method} would become a GET")
        if there.origin() != here.origin():
            if not reads or self._redirects != "get":
                raise refused("it leads to another origin")
            if self._client.settings.unix_socket is not None:
                raise refused("it leads away from the Unix socket")
            self._headers = {k: v for k, v in self._headers.items() if k.lower() in CROSSING}
            self._client = self._client._net.client(
                msgspec.structs.replace(
                    self._client.settings,
                    client_cert=None,
                    client_key=None,
                    client_key_password=None,
                    cookies=False,
                )
            )
            there = there.with_user(None)
        elif there.user is None and here.user is not None:
            there = there.with_user(here.user).with_password(here.password)
        base = str(there.with_path("/").with_query(None).with_fragment(None))
        self._url = base.removesuffix("/") + place


def _vet(text: str, url: URL, vetting: Vetting) -> None:
    """
    Raises:
        AddressRefused: what can be told of a URL before its name is looked up.
    """
    host = url.raw_host or ""
    if is_odd_address(host):
        raise AddressRefused(
            "its host is not written as an address is written", url=text, kind="malformed", address=host
        )
    refusal = judge_host(host, vetting)
    if refusal is not None:
        raise AddressRefused(f"its host is {refusal.why}", url=text, kind=refusal.kind, address=host)
    if url.scheme != "https" and not is_loopback(host):
        raise AddressRefused("it is not https", url=text, kind="not-https")


def _keep_cookies(jar: aiohttp.CookieJar, answer: Answer, target: Target) -> None:
    from http.cookies import CookieError, SimpleCookie

    for line in answer.headers.getall("Set-Cookie", ()):  # type: ignore[attr-defined]
        try:
            jar.update_cookies(SimpleCookie(line), target.url)
        except CookieError:
            continue  # A cookie that is none is not kept.
