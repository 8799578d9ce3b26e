"""People at logins, for tests: what shows a login to them, and what they do then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from moorings import CredentialSettings, HttpServer, LoginPrompt, LoginResult, login
from tests.auth.host_kit import files, spec
from tests.faults.auth_server import AuthFaults, consent
from tests.ports import listens_here

LOGGED_IN = "<h1>logged in to"
"""On the page of a login that came to its end, in small letters."""

BROWSER = "Accept: text/html\r\nUser-Agent: a browser\r\n"


async def get(url: str, headers: str = BROWSER, method: str = "GET") -> tuple[int, str, str]:
    """One request of a browser: status, head and body."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        writer.write(f"{method} {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n{headers}\r\n".encode())
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ", 2)[1]) if head else 0, head, body


async def follow(url: str) -> str:
    """Open the callback as a browser does, and bring the page that it ends at."""
    status, head, body = await get(url)
    while status in (301, 302, 303):
        where = next(
            line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("location")
        )
        parts = urlsplit(url)
        url = where if "://" in where else f"{parts.scheme}://{parts.netloc}{where}"
        status, head, body = await get(url)
    return body


async def browse(url: str) -> str:
    """A browser that consents, and comes back: the page that it ends at."""
    return await follow(await consent(url))


def is_free(uri: str) -> bool:
    """Whether nothing of ours listens on the port of a redirect URI any more."""
    return not listens_here(urlsplit(uri).port or 0)


def state_of(prompt: LoginPrompt) -> str:
    return dict(parse_qsl(urlsplit(prompt.url).query))["state"]


class Someone:
    """Shows a login to a person who says yes in a browser of this machine"""

    def __init__(self, act: Callable[[LoginPrompt], Awaitable[str | None]] | None = None) -> None:
        self.prompts: list[LoginPrompt] = []
        self._browsers: list[asyncio.Task[str]] = []
        self.shown = asyncio.Event()
        self.cancelled = 0
        self._act = act

    async def __call__(self, prompt: LoginPrompt) -> str | None:
        self.prompts.append(prompt)
        self.shown.set()
        try:
            if self._act is not None:
                return await self._act(prompt)
            # The browser goes on when nobody waits for it any more: it shows the outcome.
            self.open(browse(prompt.url))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return None

    def open(self, browser: Coroutine[Any, Any, str]) -> None:
        """A browser that goes on by itself."""
        self._browsers.append(asyncio.ensure_future(browser))

    async def every_page(self) -> list[str]:
        """What each browser shows at the end."""
        return [await each for each in self._browsers]

    def leave(self) -> None:
        """Close the browsers."""
        for each in self._browsers:
            each.cancel()

    async def gone(self) -> None:
        """Wait for its browsers, whatever they are shown: nobody answers them when a login was ended."""
        await asyncio.gather(*self._browsers, return_exceptions=True)

    async def page(self) -> str:
        """What the browser shows at the end, in small letters."""
        return (await self._browsers[-1]).lower()


async def paste(prompt: LoginPrompt) -> str | None:
    """Somebody who says yes, and brings the address by hand."""
    return await consent(prompt.url)


async def never(prompt: LoginPrompt) -> str | None:
    """Somebody who looks at it, and brings nothing."""
    await asyncio.Event().wait()
    return None


def nobody_else(who: str) -> None:
    """For ``on_waiting``, where no login may be under way."""
    raise AssertionError(f"a login is still under way: {who}")


async def log_in(
    server: AuthFaults | HttpServer, where: Path | CredentialSettings, **options: Any
) -> LoginResult:
    """``moorings.login`` with its login in a folder."""
    return await login(
        spec(server) if isinstance(server, AuthFaults) else server,
        name="s",
        credentials=files(where) if isinstance(where, Path) else where,
        state_dir=False,
        **options,
    )
