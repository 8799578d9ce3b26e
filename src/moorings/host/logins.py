"""Renewing a login at once, by the broker that all hosts of this process share: for ``moor auth refresh``.

A user of the broker for that long, as a host is for its life; nobody is asked to log in by it.
"""

from __future__ import annotations

import asyncio
import os
import time

from ..auth.accounts import account_of
from ..auth.at_store import folder_at, no_memory
from ..auth.broker import Ask, Bearer
from ..auth.faults import AuthFault, passes
from ..auth.model import ALONE
from ..auth.needs import TO_CONFIGURE, needs_of
from ..auth.report import Login, login_of
from ..auth.service import Access, AuthService
from ..auth.shared import service_for
from ..config import CredentialSettings, HttpServer
from ..errors import NeedsLogin, RefreshFailed
from ..store.where import in_memory
from ..transport import headers_command

__all__ = ["refresh_login"]

LOG_IN = "log in: moor login NAME"


async def refresh_login(
    server: HttpServer,
    *,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    within: float | None = None,
) -> Login:
    """Renew the login of a server now, whether it is due or not; it counts at once wherever it is used.

    One that is got without a person is got anew if it cannot be renewed.

    Args:
        server: its specification, as a host takes it.
        credentials: as a host takes them.
        state_dir: as a host takes it.
        within: seconds for what is said to the authorization server; ``bounds.auth`` if not set. As long again may be
            waited for another process that is renewing it.

    Returns:
        What came, without its secrets.

    Raises:
        NeedsLogin: there is none, or only a new one helps; its ``reason`` says what is over.
        RefreshFailed: not now. What there was is kept, and good for as long as it was.
        ConfigError: the store cannot be used here, or is the memory of a process.
    """
    settings = credentials or CredentialSettings()
    folder = folder_at(state_dir)
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
                fix=fault.fix or "try again later",
            ) from None
        needs = needs_of(fault)
        raise NeedsLogin(
            f"it cannot be renewed: {fault.reason}",
            reason=needs,
            fix=fault.fix or TO_CONFIGURE.get(needs, LOG_IN),
        ) from None
    except TimeoutError:
        raise RefreshFailed(
            f"it was not renewed within {access.patience:.4g} s; it goes on by itself, if anybody else uses it",
            fix="try again later",
        ) from None
    finally:
        await access.aclose()


async def _renewed(service: AuthService, access: Access) -> Bearer:
    """Raises AuthFault, TimeoutError, NeedsLogin."""
    access.wake()
    broker, subject = service.broker, access.subject
    began = time.time()
    until = asyncio.get_running_loop().time() + access.patience
    bearer = await broker.bearer(subject, until)
    if bearer is None:
        raise NeedsLogin("there is no login to renew", reason="login", fix=LOG_IN)
    known = bearer.credential
    if known.obtained_at >= began:
        return bearer  # It was over, and so it has been renewed just now.
    if known.refresh_token is None and access.account.kind not in ALONE:
        raise NeedsLogin(
            "it cannot be renewed, as there is no refresh token: it is used until it ends",
            reason="expired",
            fix=LOG_IN,
        )
    # Asked for as by one whom the server has refused it: the one way that takes no old token, and says why.
    return await broker.refused(subject, bearer, until, Ask(operation="refresh"))
