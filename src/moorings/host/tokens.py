"""Where the servers of one host get their tokens from: the service of its store, told who it is and whom it may ask.

Made at the start of a host; holds nothing open. Imported late is what OAuth needs: most servers never want it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .._tasks import TaskOwner
from ..config import CredentialSettings, HttpServer
from ..config.auth_spec import AuthSettings
from ..store.where import folder_of, holds, in_memory
from .asking import Asking

if TYPE_CHECKING:
    from ..auth.prompt import LoginPrompt, OnLoginUrl
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
        on_login_url: OnLoginUrl | None,
        environment: Callable[[], Mapping[str, str]],
        owner: TaskOwner,
    ) -> None:
        self._credentials = credentials
        self._folder = folder
        self._browser = browser
        self._on_login_url = on_login_url
        self._environment = environment
        self._asking = Asking(owner)
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
        return self._service.access(
            Account(
                url=spec.url,
                settings=settings,
                principal=self._credentials.principal,
                name=name,
                net=net,
                within=spec.bounds.auth,
                browser=self._browse(name, settings.timeout),
                ask=self._ask(settings.timeout),
                run=lambda command: headers_command.run(command, self._environment()),
            )
        )

    def _browse(self, name: str, limit: float) -> Callable[[str], Awaitable[str]] | None:
        browser = self._browser
        if browser is None:
            return None
        return lambda url: self._asking.run(lambda: browser(name, url), limit=limit, name=f"login to {name}")

    def _ask(self, limit: float) -> OnLoginUrl | None:
        shows = self._on_login_url
        if shows is None:
            return None

        def ask(prompt: LoginPrompt) -> Awaitable[str | None]:
            return self._asking.run(lambda: shows(prompt), limit=limit, name=f"login to {prompt.server}")

        return ask
