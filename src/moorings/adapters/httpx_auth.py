"""``MooringsAuth``: the tokens of Moorings for clients of ``httpx`` and ``httpx2``, and so for what is built on them.

It is the ``auth=`` of a client. Each request asks for a bearer, is sent, and on 401 or 403 asks again; what must be
done once (a refresh, a login) is work of the broker (``auth/broker.py``), for all requests, clients and hosts that use
the store. So a flow holds no lock and owns nothing: it may be closed, cancelled or never resumed, anywhere, by anybody.
The rules are those of ``transport/http_auth.py``.

Both libraries know an ``Auth`` by ``isinstance``, so the class here is a true subclass of that of each one which is
installed. They are imported for that alone, with this module; requests and responses are used by what they can do.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import msgspec

from .._urls import shown_url
from ..auth.asked import Ask, Bearer
from ..auth.faults import AuthFault, passes
from ..auth.flows import Account
from ..auth.needs import TO_CONFIGURE, needs_of
from ..auth.service import Access, AuthService, ask_of
from ..auth.shared import service_for
from ..config import AuthSettings, Bounds, CredentialSettings
from ..errors import CallError, HttpDetail, MisuseError, NeedsLogin, NotSent, Refused, WrongLoopError
from ..host.places import Places
from ..net.addresses import origin
from ..transport import headers_command

__all__ = ["MooringsAuth"]

MOST_REFUSALS = 2
"""Refusals of one request after which another token is asked for: the first may be old, the second was new."""
MOST_NONCES = 2
"""Times that one request is sent again with a nonce that the server gave (RFC 9449 §9)."""
MOST_READ = 65_536
"""Bytes of a body that is looked into for what a request is about."""

LOG_IN = (
    "a person must log in: give MooringsAuth a browser=, or set auth.flow where a login takes no person; "
    "it goes on by itself once a credential is stored"
)

LOG_IN_AGAIN = (
    "log in: a request shows the login again, 30 s after it failed at the earliest; "
    "one that is made elsewhere is taken up by itself"
)


def _auth_class(library: str) -> type:
    try:
        found: type = import_module(library).Auth
    except ImportError:
        return type(
            "NotInstalled", (), {"__doc__": f"Stands for the Auth of {library}, which is not installed."}
        )
    return found


if TYPE_CHECKING:
    from httpx import Auth as _Httpx
    from httpx2 import Auth as _Httpx2
else:
    _Httpx, _Httpx2 = _auth_class("httpx"), _auth_class("httpx2")


class MooringsAuth(_Httpx, _Httpx2):  # type: ignore[misc] # both say what a flow is, each of its own requests
    """Tokens for the requests to one protected server, as ``auth=`` of an ``httpx`` or ``httpx2`` client.

    One serves any number of clients, sync and async, in any thread and event loop. It does nothing before the first
    request; ``close`` or ``aclose`` ends it, and so does the end of the interpreter. In a forked child it starts anew.

    Requests to another origin than the server's, and those that bring an ``Authorization`` of their own, pass as they
    are. A body that is a stream is read into memory before it is sent, as it may have to be sent again.

    What a request raises besides the library's own errors:

    - ``NeedsLogin``: there is no token that the server takes, and its ``reason`` says why.
    - ``NotSent``: a token could not be got now, for a reason that passes; nothing was sent.
    - ``Refused``: the same, and the server had turned the request away before it ran.

    In all three the request did not run, so it is safe to repeat. What the server refuses for another reason, or
    again with a new token, is returned as the response that it is.
    """

    # Flows are made below, and these are for flows that are not.
    requires_request_body = False
    requires_response_body = False

    def __init__(
        self,
        url: str,
        *,
        auth: AuthSettings | None = None,
        credentials: CredentialSettings | None = None,
        state_dir: str | os.PathLike[str] | bool | None = None,
        browser: Callable[[str], Awaitable[str]] | None = None,
        within: float | None = None,
    ) -> None:
        """
        Args:
            url: the protected server, such as its MCP endpoint.
            auth: how tokens for it are got; None for what servers usually need.
            credentials: where logins are kept, and whose they are. Hosts and others with the same share them.
            state_dir: the state folder, in which the usual store lies; None is that of the system, False keeps
                logins in memory, for this object alone.
            browser: shows a person the URL of a login, and brings back the URL that they are sent to at its end. It is
                called in a thread and event loop of Moorings' own.
            within: seconds for what is said to authorization servers to get one token; None for 30.

        Raises:
            MisuseError: the URL is none of http or https.
            ConfigError: see ``AsyncHost``, of ``state_dir``.
        """
        self._account = Account(
            url=url,
            settings=auth or AuthSettings(),
            principal=(credentials or CredentialSettings()).principal,
            within=Bounds().auth if within is None else Bounds(auth=within).auth,
            browser=browser,
            run=lambda command: headers_command.run(command, os.environ),
        )
        self._credentials = credentials or CredentialSettings()
        self._folder = Places.at(state_dir).folder
        try:
            _ = self._account.subject
            self._origin = origin(url)
        except ValueError:
            raise MisuseError(
                f"{shown_url(url)} is not the URL of a server", fix="use http or https"
            ) from None
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._access: Access | None = None
        self._service: AuthService | None = None
        self._closed = False
        self._carrying: weakref.WeakSet[Any] = weakref.WeakSet()
        """Requests whose ``Authorization`` is ours: they may be sent a second time."""

    def __repr__(self) -> str:
        return f"MooringsAuth({shown_url(self._account.url)!r})"

    # What clients drive

    def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
        """The flow of one request in a blocking client."""
        attempt = self._attempt(request)
        if attempt is None:
            yield request
            return
        access = attempt.access
        request.read()
        try:
            attempt.carry(access.at_hand() or access.wait_bearer(access.patience))
        except (AuthFault, TimeoutError) as error:
            raise attempt.failed(error) from None
        while True:
            response = yield request
            ask = attempt.refused(response)
            if ask is None:
                return
            # Its connection is free while a token is waited for.
            response.read()
            try:
                attempt.carry(
                    attempt.bearer if ask.nonce else access.wait_refused(attempt.bearer, access.patience, ask)
                )
            except (AuthFault, TimeoutError) as error:
                raise attempt.failed(error) from None

    async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
        """The same in an async client, on asyncio."""
        attempt = self._attempt(request)
        if attempt is None:
            yield request
            return
        access = attempt.access
        await request.aread()
        try:
            attempt.carry(access.at_hand() or await access.bearer(_until(access)))
        except (AuthFault, TimeoutError) as error:
            raise attempt.failed(error) from None
        while True:
            response = yield request
            ask = attempt.refused(response)
            if ask is None:
                return
            # Its connection is free while a token is waited for.
            await response.aread()
            try:
                attempt.carry(
                    attempt.bearer if ask.nonce else await access.refused(attempt.bearer, _until(access), ask)
                )
            except (AuthFault, TimeoutError) as error:
                raise attempt.failed(error) from None

    def _attempt(self, request: Any) -> _Attempt | None:
        """What a request is for us; None if it is none of ours."""
        if _origin_of(request.url) != self._origin:
            return None
        if "Authorization" in request.headers and request not in self._carrying:
            return None
        return _Attempt(self._entered(), request, self._origin, self._carrying)

    # Its life

    def _entered(self) -> Access:
        access = self._access
        if access is not None and not self._closed:
            return access
        with self._gate:
            if self._closed:
                raise MisuseError(
                    f"{self!r} was closed", fix="close it after the clients that use it, or make another"
                )
            if self._access is None:
                self._service = service_for(self._credentials, self._folder)
                self._access = self._service.access(self._account)
                _open.add(self)
            return self._access

    def _left(self) -> Access | None:
        with self._gate:
            self._closed = True
            return self._access

    def _is_left(self) -> None:
        # Not before: a close that Ctrl-C cut off can be called again, and is at the end of the interpreter.
        self._access = None
        _open.discard(self)

    def close(self) -> None:
        """It is used no more. Requests that wait for a token are told so; a refresh that is under way is finished.

        Waits at most 2 s, where it is the last one that uses the store.
        """
        access = self._left()
        if access is not None:
            access.close()
        self._is_left()

    async def aclose(self) -> None:
        """As ``close``, in an event loop."""
        access = self._left()
        if access is not None:
            await access.aclose()
        self._is_left()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _forget_after_fork(self) -> None:
        """In a forked child: what was opened is the parent's."""
        _inherited.append((self._access, self._service))  # not to be finalized here
        self._gate = threading.Lock()
        self._access = self._service = None


class _Attempt:
    """One request: what it carries, and what its refusals ask for. Made and used by its flow; holds nothing."""

    __slots__ = (
        "_began",
        "_carrying",
        "_nonces",
        "_origin",
        "_refusal",
        "_refusals",
        "_request",
        "access",
        "bearer",
    )

    def __init__(self, access: Access, request: Any, at: str, carrying: weakref.WeakSet[Any]) -> None:
        self.access = access
        self.bearer: Bearer | None = None
        """What it carries."""
        self._request = request
        self._origin = at
        self._carrying = carrying
        self._began = time.monotonic()
        self._nonces = 0
        self._refusals = 0
        self._refusal: HttpDetail | None = None
        """The last one."""

    def carry(self, bearer: Bearer | None) -> None:
        """Let it carry this token, or none.

        Raises:
            AuthFault: the token is bound to a key that cannot be used.
        """
        headers = self._request.headers
        self.bearer = bearer
        if self._request in self._carrying:
            for name in ("Authorization", "DPoP"):
                headers.pop(name, None)
        if bearer is not None:
            headers.update(self.access.headers(bearer, self._request.method, str(self._request.url)))
            self._carrying.add(self._request)

    def refused(self, response: Any) -> Ask | None:
        """What a response asks for, if it refuses the request for want of a (better) token; else None."""
        url = _url_of(response) or self._request.url
        if _origin_of(url) != self._origin:
            # It was led elsewhere: what others want is not for us to get.
            return None
        bearer, status = self.bearer, response.status_code
        news = (
            bearer is not None and bearer.scheme == "DPoP" and self.access.learn(str(url), response.headers)
        )
        if status not in (401, 403):
            if status < 400:
                self.access.served(self.operation)
            return None
        challenges = tuple(response.headers.get_list("WWW-Authenticate"))
        self._refusal = HttpDetail(status, shown_url(str(url)), challenges=challenges)
        if news and status == 401 and self._nonces < MOST_NONCES:
            self._nonces += 1
            return Ask(nonce=True)
        if self._refusals == MOST_REFUSALS:
            return None
        ask = ask_of(
            status,
            challenges,
            bearer,
            operation=self.operation,
            anew=self._refusals > 0,
            able=self.access.able,
        )
        if ask is not None:
            self._refusals += 1
        return ask

    @property
    def operation(self) -> str:
        """What the request is about: the method and name of an MCP message, else method and URL."""
        try:
            content = self._request.content
            if content.startswith(b"{") and len(content) <= MOST_READ:
                message = _decode(content)
                if message.method:
                    named = message.params.name or message.params.uri
                    return f"{message.method} {named}" if named else message.method
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # Not every server speaks MCP.
        return f"{self._request.method} {shown_url(str(self._request.url))}"

    def failed(self, error: AuthFault | TimeoutError) -> CallError:
        """The public error for a request that gets no token."""
        fault = error if isinstance(error, AuthFault) else None
        reason = f"no token came within {self.access.patience:.4g} s" if fault is None else fault.reason
        about: dict[str, Any] = {
            "server": self._origin.partition("://")[2],
            "tool": self.operation,
            "elapsed": time.monotonic() - self._began,
            "fix": None if fault is None else fault.fix,
        }
        refusal = self._refusal
        if refusal is not None:
            reason = f"HTTP {refusal.status}; {reason}"
        failed: CallError
        if fault is not None and not passes(fault):
            needs = needs_of(fault)
            log_in = LOG_IN_AGAIN if self.access.asks else LOG_IN
            about["fix"] = fault.fix or TO_CONFIGURE.get(needs, log_in)
            failed = NeedsLogin(reason, reason=needs, **about)
        elif refusal is not None:
            failed = Refused(reason, sent=False, **about)
        else:
            failed = NotSent(f"not sent: {reason}", sent=False, **about)
        failed.http = refusal
        return failed


class _Named(msgspec.Struct):
    name: str = ""
    uri: str = ""


class _Message(msgspec.Struct):
    method: str = ""
    params: _Named = msgspec.field(default_factory=_Named)


_decode = msgspec.json.Decoder(_Message).decode


def _until(access: Access) -> float:
    try:
        return asyncio.get_running_loop().time() + access.patience
    except RuntimeError:
        raise WrongLoopError(
            "tokens are waited for in asyncio's event loops alone", fix="use a blocking client in a thread"
        ) from None


def _origin_of(url: Any) -> str:
    try:
        return origin(str(url))
    except ValueError:
        return ""


def _url_of(response: Any) -> Any:
    try:
        return response.url
    except RuntimeError:
        return None  # It was made without its request.


_open: set[MooringsAuth] = set()
"""Those that were used and not closed."""
_inherited: list[object] = []


def _close_all() -> None:
    for auth in list(_open):
        auth.close()


def _after_fork() -> None:
    for auth in list(_open):
        auth._forget_after_fork()
    _open.clear()


# After ``shared`` did: what is registered last is called first, and work that goes on is waited for there.
atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
