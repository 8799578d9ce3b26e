"""Renewing a login at once, by the broker that all hosts of this process share: for ``moor auth refresh``.

A user of the broker for that long, as a host is for its life; nobody is asked to log in by it.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time

from ..auth.accounts import account_of
from ..auth.asked import Ask, Bearer
from ..auth.at_store import no_memory
from ..auth.faults import AuthFault, passes
from ..auth.model import ALONE
from ..auth.needs import TO_CONFIGURE, needs_of
from ..auth.renewal import Dead, Gone
from ..auth.report import Login, login_of
from ..auth.service import Access, AuthService
from ..auth.shared import service_for, state_folder
from ..config import CredentialSettings, HttpServer
from ..errors import NeedsLogin, RefreshFailed
from ..store.where import in_memory
from ..transport import headers_command
from .has_oauth import check_has_oauth

__all__ = ["refresh_login"]

LOG_IN = "log in: moor login {name}"


async def refresh_login(
    server: HttpServer,
    *,
    name: str = "server",
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    within: float | None = None,
) -> Login:
    """Renew the login of a server now, whether it is due or not; it counts at once wherever it is used.

    One that is got without a person is got anew if it cannot be renewed.

    Args:
        server: its specification, as a host takes it.
        name: what people know it by.
        credentials: as a host takes them.
        state_dir: as a host takes it.
        within: seconds for what is said to the authorization server; ``bounds.auth`` if not set. As long again may be
            waited for another process that is renewing it.

    Returns:
        What came, without its secrets.

    Raises:
        NeedsLogin: there is none, or only a new one helps; its ``reason`` says what is over.
        RefreshFailed: not now. What there was is kept, and good for as long as it was.
        MisuseError: ``auth`` is false, or the headers hold a login of their own.
        ConfigError: the store cannot be used here, or is the memory of a process.
    """
    check_has_oauth(server, name)
    settings = credentials or CredentialSettings()
    folder = state_folder(state_dir)
    account = account_of(
        server,
        settings.principal,
        within=within,
        run=lambda command: headers_command.run(command, dict(os.environ)),
    )
    if in_memory(settings, folder):
        raise no_memory()
    service = service_for(settings, folder)
    access = service.access(account)
    try:
        return login_of((await _renewed(service, access)).credential)
    except AuthFault as fault:
        if passes(fault):
            raise RefreshFailed(
                f"it was not renewed, and is kept as it was: {fault.reason}",
                server=name,
                fix=fault.fix or "try again later",
            ) from None
        needs = needs_of(fault)
        raise NeedsLogin(
            f"it cannot be renewed: {fault.reason}",
            reason=needs,
            server=name,
            fix=fault.fix or TO_CONFIGURE.get(needs, LOG_IN.format(name=shlex.quote(name))),
        ) from None
    except TimeoutError:
        raise RefreshFailed(
            f"it was not renewed within {access.patience:.4g} s; it goes on by itself, if anybody else uses it",
            server=name,
            fix="try again later",
        ) from None
    finally:
        await access.aclose()


async def _renewed(service: AuthService, access: Access) -> Bearer:
    """Raises AuthFault, TimeoutError."""
    access.wake()
    broker, subject = service.broker, access.subject
    began = time.time()
    until = asyncio.get_running_loop().time() + access.patience
    bearer = await broker.bearer(subject, until)
    if bearer is None:
        raise Gone("nobody has logged in, so there is nothing to renew")
    known = bearer.credential
    if known.obtained_at >= began:
        return bearer  # It was over, and so it has been renewed just now.
    if known.refresh_token is None and access.account.kind not in ALONE:
        raise Dead("there is no refresh token, so it is used until it ends", known)
    # Asked for as by one whom the server has refused it: the one way that takes no old token, and says why.
    return await broker.refused(subject, bearer, until, Ask(operation="refresh"))
