"""A login that a person asked for: what ``moor login`` and programs like it call.

``login`` begins an attempt (``auth/login.py``), shows it to a person, and ends it however it comes out: cancelled, it
gives its port back and has changed nothing. It counts as done only when the server refused a request without a token
and took the same one with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from .._tasks import TaskOwner
from ..auth.callback import PortTaken
from ..auth.faults import (
    AuthFault,
    GrantError,
    LoginDenied,
    LoginTooLate,
    NeedsPerson,
    NotProven,
    NotTaken,
    NotWanted,
    passes,
)
from ..auth.flows import Account
from ..auth.http import AuthNetError
from ..auth.model import ALONE
from ..auth.needs import TO_CONFIGURE, needs_of
from ..auth.prompt import LoginPrompt, OnLoginUrl
from ..auth.renewal import Postponed
from ..auth.service import Access, LoginUnderWay
from ..auth.shared import service_for, state_folder
from ..auth.turn import Holder
from ..config import CredentialSettings, HttpServer
from ..config.auth_spec import AuthSettings
from ..errors import LoginFailed, MisuseError, NeedsLogin, StoreFailed
from ..server.connect import net_settings
from ..store.credentials import StoreError
from ..store.where import in_memory
from ..transport import headers_command
from ..transport.http_headers import HeadersFailed, HeaderSource
from .asking import Asking
from .has_oauth import check_has_oauth

if TYPE_CHECKING:
    from ..auth.asked import Bearer
    from ..auth.model import Credential

__all__ = ["LoginResult", "login"]

END_WITHIN = 5.0
"""Seconds in which a cancelled login ends."""


class LoginResult(msgspec.Struct, frozen=True, kw_only=True):
    """A login that the server takes."""

    server: str
    """Its name."""
    resource: str
    """Its URL."""
    issuer: str
    """Who gave the tokens."""
    client_id: str
    scopes: tuple[str, ...]
    """Those that were granted."""
    expires_at: float | None
    """When the access token ends, in seconds of the wall clock; None if the server did not say."""
    refreshable: bool
    """It is renewed without a person."""
    fresh: bool
    """False: there was a login, and it works; nothing was done."""


async def login(
    server: HttpServer,
    *,
    name: str = "server",
    on_login_url: OnLoginUrl | None = None,
    flow: Literal["authorization_code", "device"] | None = None,
    force: bool = False,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    on_waiting: Callable[[str], None] | None = None,
) -> LoginResult:
    """Log in to a server, and prove it by a real request.

    One login to a server is under way at a time, among all processes that share the store: a second one waits, and
    takes what the first one brings. Cancelled, it changes nothing.

    Args:
        server: the specification; ``auth`` says who we are there, and how long a person may take (``auth.timeout``).
        name: what people know it by.
        on_login_url: shows the login to a person (``LoginPrompt``); not wanted where ``auth`` names a flow without one.
        flow: the way, in place of that of ``auth``.
        force: log in though there is a login that works, or though the server answers without one.
        credentials: as a host takes them: where it is stored, and whose it is.
        state_dir: as a host takes it.
        on_waiting: told, in the caller's loop, who else is at a login to this server, and is waited for.

    Raises:
        LoginFailed: there is no login that counts; ``reason`` says why.
        NeedsLogin: a person is wanted, and there is no ``on_login_url``.
        StoreFailed: the store did not answer.
        ConfigError: it cannot be used here, or a file of the settings is missing.
        MisuseError: ``auth`` is false, the headers hold a login of their own, or nothing would keep this one.
    """
    settings = _settings(server, name, flow)
    loop = asyncio.get_running_loop()
    owner = TaskOwner("login")
    asking = Asking(owner)
    headers = _Headers(server, asking)
    folder = state_folder(state_dir)
    where = credentials or CredentialSettings()
    if in_memory(where, folder) and settings.chosen_flow() not in ALONE:
        raise MisuseError(
            "logins are kept in the memory of a program here: this one would be over with its end",
            fix="name a store of credentials, or a state_dir",
        )
    shows = on_login_url

    def ask(prompt: LoginPrompt) -> Awaitable[str | None]:
        assert shows is not None
        return asking.run(lambda: shows(prompt), limit=settings.timeout, name=f"login to {name}")

    def waiting(holder: Holder) -> None:
        if on_waiting is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is told any more
                loop.call_soon_threadsafe(on_waiting, holder.shown)

    account = Account(
        url=server.url,
        settings=settings,
        principal=where.principal,
        name=name,
        net=net_settings(server),
        within=server.bounds.auth,
        ask=None if shows is None else ask,
        asked=True,
        waiting=waiting,
        headers=headers.get,
        run=lambda command: headers_command.run(command, os.environ),
    )
    # What there is must not be got by asking somebody: that is the login, which comes after it.
    access = service_for(where, folder).access(msgspec.structs.replace(account, ask=None))
    try:
        return await _login(access, account, name, force=force)
    finally:
        # Whoever is impatient strikes again: the others are to be ended all the same.
        try:
            await owner.aclose()
        finally:
            try:
                await headers.aclose()
            finally:
                await access.aclose()


async def _login(access: Access, account: Account, name: str, *, force: bool) -> LoginResult:
    loop = asyncio.get_running_loop()
    bearer: Bearer | None = None
    try:
        if not force:
            with contextlib.suppress(AuthFault, TimeoutError):
                access.wake()
                bearer = await access.bearer(loop.time() + account.within)
            if bearer is not None and not set(account.settings.scopes) <= set(
                bearer.credential.requested_scopes
            ):
                bearer = None  # It was for less than what is asked for now.
        if force and not (account.asks or account.kind in ALONE):
            raise _nobody(name)
        # Without force the server is asked first: it may be away, or want no login at all.
        under_way = access.log_in(account, bearer, force=force)
        try:
            # Each of its steps has a bound: the turn, the person, and what is said to servers.
            limit = 3 * account.settings.timeout + 10 * account.within
            credential = await under_way.outcome.outcome(loop.time() + limit)
        finally:
            if not under_way.outcome.done:
                under_way.cancel()
                with contextlib.suppress(AuthFault, StoreError, TimeoutError):
                    await under_way.outcome.outcome(loop.time() + END_WITHIN)
    except TimeoutError as fault:
        raise LoginFailed(
            "it did not come to an end within all of its bounds", reason="timeout", server=name
        ) from fault
    except NeedsPerson as fault:
        raise _nobody(name) from fault
    except AuthFault as fault:
        raise _failed(fault, name) from fault
    except StoreError as fault:
        raise StoreFailed(f"the store of logins: {fault}", server=name) from fault
    _judge(under_way, credential, name)
    return LoginResult(
        server=name,
        resource=credential.key.resource,
        issuer=credential.key.issuer,
        client_id=credential.key.client_id,
        scopes=credential.scopes,
        expires_at=credential.expires_at,
        refreshable=credential.refresh_token is not None,
        fresh=under_way.fresh,
    )


def _nobody(name: str) -> NeedsLogin:
    return NeedsLogin(
        "a person must log in, and there is nobody to ask here",
        reason="login",
        server=name,
        fix=f"in a terminal: moor login {shlex.quote(name)} (or with --flow device, and a browser elsewhere)",
    )


def _judge(under_way: LoginUnderWay, credential: Credential, name: str) -> None:
    """Whether it counts. Raises LoginFailed."""
    if under_way.unsaved is not None:
        raise LoginFailed(
            f"the tokens came, and could not be stored: {under_way.unsaved}", reason="unsaved", server=name
        )
    if under_way.proof == "refused":
        raise LoginFailed(
            "the server does not take the tokens that came",
            reason="not_taken",
            server=name,
            fix=TO_THE_SERVER,
        )
    if under_way.proof == "open":
        raise LoginFailed(
            "tokens are stored, but the server answers without them too: that it takes them is not proven",
            reason="unproven",
            server=name,
        )
    if under_way.proof == "unknown":
        raise LoginFailed(
            "tokens are stored, but the answer of the server does not show whether it takes them",
            reason="unproven",
            server=name,
            fix=f"see what it says: moor test {shlex.quote(name)}",
        )


AGAIN = (
    "log in again: moor login {name} (--timeout 15m gives more time). "
    "If the page said that it does not know this client, it is registered anew after two logins without an answer"
)
TO_THE_SERVER = "see whether auth.issuer and auth.resource are those of this server"


def _failed(fault: AuthFault, name: str) -> LoginFailed:
    fix = fault.fix
    if isinstance(fault, LoginDenied):
        reason = "denied"
    elif isinstance(fault, LoginTooLate):
        reason, fix = "timeout", fix or AGAIN.format(name=shlex.quote(name))
    elif isinstance(fault, NotWanted):
        reason, fix = "not_wanted", "log in all the same with --force, if some of its tools want that"
    elif isinstance(fault, NotProven):
        reason, fix = "unproven", f"see what it says (moor test {shlex.quote(name)}), and log in again then"
    elif isinstance(fault, NotTaken):
        reason, fix = "not_taken", fix or TO_THE_SERVER
    elif isinstance(fault, PortTaken):
        reason = "port"
    elif isinstance(fault, GrantError):
        reason = {"access_denied": "denied", "expired_token": "timeout"}.get(fault.code) or (
            "unreachable" if fault.transient else needs_of(fault)
        )
    elif isinstance(fault, AuthNetError | Postponed) or passes(fault):
        reason = "unreachable"
        if isinstance(fault, AuthNetError) and fix is None:
            fix = f"see whether {fault.url} can be reached from here, and whether the URL, proxy and ca_file are right"
    else:
        needs = needs_of(fault)
        reason = needs if needs in ("client", "server", "package") else "failed"
    return LoginFailed(fault.reason, reason=reason, server=name, fix=fix or TO_CONFIGURE.get(reason))


def _settings(
    server: HttpServer, name: str, flow: Literal["authorization_code", "device"] | None
) -> AuthSettings:
    check_has_oauth(server, name)
    settings = server.auth if isinstance(server.auth, AuthSettings) else AuthSettings()
    return settings if flow is None else msgspec.structs.replace(settings, flow=flow)


class _Headers:
    """The headers that the server gets with each request, for a loop that is not that of their function."""

    def __init__(self, server: HttpServer, asking: Asking) -> None:
        command = server.headers_command
        self._source = HeaderSource(
            server.headers,
            (lambda: headers_command.run(command, os.environ)) if command else None,
            limit=server.bounds.headers_command,
        )
        self._limit = server.bounds.headers_command
        self._asking = asking

    async def get(self) -> Mapping[str, str]:
        try:
            return await self._asking.run(self._source.get, limit=self._limit + 5.0, name="headers")
        except HeadersFailed as error:
            raise AuthFault(f"its headers could not be had: {error}") from None

    async def aclose(self) -> None:
        await self._source.aclose(END_WITHIN)
