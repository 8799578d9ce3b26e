"""From a server of a configuration to the account that its logins are looked for by, for work beside hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..config import HttpServer
from ..config.auth_spec import AuthSettings
from ..errors import MisuseError
from ..net.settings import settings_of
from .flows import Account

__all__ = ["account_of"]


def account_of(
    server: HttpServer,
    principal: str,
    *,
    within: float | None = None,
    run: Callable[[tuple[str, ...]], Awaitable[bytes]] | None = None,
) -> Account:
    """The account of a server, without anybody who could be asked.

    Args:
        within: seconds for what is said to its authorization server; the server's own bound if not set.
        run: runs a command of the settings and brings its output.

    Raises:
        MisuseError: it is no server over HTTP, or its URL is none.
    """
    if not isinstance(server, HttpServer):
        raise MisuseError(f"logins belong to an HttpServer, not to a {type(server).__name__}")
    account = Account(
        url=server.url,
        settings=server.auth if isinstance(server.auth, AuthSettings) else AuthSettings(),
        principal=principal,
        net=settings_of(server),
        within=server.bounds.auth if within is None else within,
        run=run,
    )
    try:
        account.subject  # noqa: B018
    except ValueError:
        raise MisuseError("the URL of the server is not complete") from None
    return account
