"""Where the servers of one host get their tokens from: the service of its store, told who it is and whom it may ask.

Made at the start of a host; holds nothing open. Imported late is what OAuth needs: most servers never want it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .._outcome import Outcome
from .._tasks import TaskOwner
from ..config import CredentialSettings, HttpServer
from ..config.auth_spec import AuthSettings
from ..errors import HostClosedError
from ..store.where import folder_of, holds, in_memory

if TYPE_CHECKING:
    from ..auth.service import Access, AuthService
    from ..net.settings import NetSettings
    from ..transport.http_auth import Gate

__all__ = ["BrowserFunction", "HostTokens"]

BrowserFunction = Callable[[str, str], Awaitable[str]]
"""Shows somebody the login of a server, by its name and the URL; brings back the URL that they are sent to."""


class HostTokens:
    """See the module."""

    def __init__(
        self,
        credentials: CredentialSettings,
        folder: Path | None,
        browser: BrowserFunction | None,
        environment: Callable[[], Mapping[str, str]],
        owner: TaskOwner,
    ) -> None:
        self._credentials = credentials
        self._folder = folder
        self._browser = browser
        self._environment = environment
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._service: AuthService | None = None

    def gate(self, name: str, spec: HttpServer, net: Callable[[], NetSettings]) -> Gate:
        """For one connection to a server."""
        from ..transport.http_auth import Gate

        return Gate(lambda: self._access(name, spec, net()), signs=self._may_hold())

    def _may_hold(self) -> bool:
        if self._service is not None:
            return self._service.may_hold()
        if in_memory(self._credentials, self._folder):
            return False
        folder = folder_of(self._credentials, self._folder)
        return folder is None or holds(folder)

    def _access(self, name: str, spec: HttpServer, net: NetSettings) -> Access:
        from ..auth.flows import Account
        from ..auth.shared import service_for
        from ..transport import headers_command

        if self._service is None:
            self._service = service_for(self._credentials, self._folder)
        settings = spec.auth if isinstance(spec.auth, AuthSettings) else AuthSettings()
        ask = self._browser
        return self._service.access(
            Account(
                url=spec.url,
                settings=settings,
                principal=self._credentials.principal,
                net=net,
                within=spec.bounds.auth,
                browser=None if ask is None else lambda url: self._show(ask, name, url, settings.timeout),
                run=lambda command: headers_command.run(command, self._environment()),
            )
        )

    async def _show(self, browser: BrowserFunction, name: str, url: str, limit: float) -> str:
        """On the broker's loop: the user's function runs on that of the host, as all of theirs do."""
        outcome: Outcome[str] = Outcome()
        showing: list[asyncio.Task[None]] = []

        async def show() -> None:
            try:
                outcome.settle(await browser(name, url))
            except Exception as error:  # boundary: the user's function; its failure is that of the login
                outcome.settle(None, error)
            except BaseException:  # boundary: the end of the host; raised again
                outcome.settle(None, HostClosedError("the host was closed"))
                raise

        def begin() -> None:
            if self._owner.closed:
                outcome.settle(None, HostClosedError("the host was closed"))
            else:
                showing.append(self._owner.start(show(), name=f"login to {name}"))

        def end() -> None:
            for task in showing:
                task.cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            raise HostClosedError("the host was closed") from None
        try:
            return await outcome.outcome(asyncio.get_running_loop().time() + limit)
        finally:
            # Nobody waits for it any more, however this ended: it must not hold up the close of the host.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(end)
