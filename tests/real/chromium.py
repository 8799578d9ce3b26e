"""A real Chromium without a screen, held for the length of a test: Debian's, driven by Playwright.

``async with chromium() as browser`` (the fixture of ``conftest.py``) starts one with an empty profile, and leaves
nothing of its process tree. ``browser.tab()`` opens a tab; ``sign_in``, ``agree`` and ``refuse`` are what a person does
at the pages of either authorization server. It reaches this machine alone: no other name resolves.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest

from tests.faults import procs

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

# Debian's own `chromium` is a script around the first one, which writes of what it finds on the machine.
PROGRAMS = (
    "/usr/lib/chromium/chromium",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE ::1, EXCLUDE localhost",
)
WITHIN = 30.0
"""Seconds for one step of a person."""
GONE_WITHIN = 15.0
BETWEEN = "Not attached to an active page"
"""What Chromium says for the moment in which a page has come in the renderer, and not yet in the browser."""
SIZE = {"width": 800, "height": 500}


def program() -> str:
    """Where Chromium is; without it, or without Playwright, the test is skipped."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed here: run `make setup`")
    found = next((path for each in PROGRAMS if (path := shutil.which(each))), None)
    if found is None:
        pytest.skip("no Chromium here, and none could be had (Debian: apt-get install chromium)")
    return found


T = TypeVar("T")


class Tab:
    """One tab, as a person sees it. ``page`` is Playwright's, for all else."""

    def __init__(self, page: Page) -> None:
        self.page = page

    @property
    def url(self) -> str:
        """What its address bar says."""
        return self.page.url

    async def goto(self, url: str, *, until: Literal["commit", "load"] = "load") -> int | None:
        """Open an address; the status of the page that came. ``commit``: its first bytes are enough."""
        answer = await between_pages(lambda: self.page.goto(url, wait_until=until))
        return None if answer is None else answer.status

    async def click(self, what: str, *, times: int = 1) -> None:
        """Click what a CSS selector or ``text=…`` names, once it is there. ``times=2``: a double click.

        Where that leads is not waited for: it may be a page that takes its time.
        """
        await self.page.click(what, click_count=times, no_wait_after=True)

    async def fill(self, what: str, text: str) -> None:
        await self.page.fill(what, text)

    async def back(self, *, until: Literal["commit", "load"] = "load") -> None:
        """The button that goes back."""
        await between_pages(lambda: self.page.go_back(wait_until=until))

    async def reload(self, *, until: Literal["commit", "load"] = "load") -> None:
        await between_pages(lambda: self.page.reload(wait_until=until))

    async def shows(self, what: str | re.Pattern[str]) -> None:
        """Wait until this text is seen."""
        await self.page.get_by_text(what).first.wait_for()

    async def text(self) -> str:
        """All that is seen now."""
        return await self.page.inner_text("body")

    async def at(self, start: str) -> str:
        """Wait until the address bar has an address that begins like this; gives all of it."""
        await self.page.wait_for_url(lambda url: url.startswith(start), wait_until="commit")
        return self.page.url

    async def history(self) -> list[str]:
        """The addresses that its back button leads through, the one it is at among them."""
        session = await self.page.context.new_cdp_session(self.page)
        try:
            entries = (await between_pages(lambda: session.send("Page.getNavigationHistory")))["entries"]
        finally:
            await session.detach()
        return [entry["url"] for entry in entries]

    async def screenshot(self, path: Path) -> None:
        await self.page.screenshot(path=path)

    async def close(self) -> None:
        async with asyncio.timeout(WITHIN):
            await self.page.close()


async def between_pages(step: Callable[[], Awaitable[T]]) -> T:
    """One step of a person, taken again while the browser is between two pages, where it does nothing."""
    from playwright.async_api import Error as PlaywrightError

    async with asyncio.timeout(WITHIN):
        while True:
            try:
                return await step()
            except PlaywrightError as said:
                if BETWEEN not in said.message:
                    raise
            await asyncio.sleep(0.02)


class Chromium:
    """A browser with one profile, so with the cookies of one person."""

    def __init__(self, context: BrowserContext, pids: Iterable[int]) -> None:
        self.context = context
        self._unused = context.pages
        self._pids = set(pids)
        # Those of the browser alone: it, and what reports its crashes, have some of their own.
        self._sessions = {session(pid) for pid in self._pids} - {session(os.getpid()), None}

    @property
    def tabs(self) -> list[Tab]:
        return [Tab(page) for page in self.context.pages]

    @property
    def processes(self) -> set[int]:
        """All that runs of it, or was seen here before; the driver too."""
        self._pids.update(pid for pid, fields in procs.everybody().items() if fields[3] in self._sessions)
        return self._pids

    async def tab(self, url: str = "") -> Tab:
        """A new tab, at this address; the first is the one that the browser has when it starts."""
        tab = Tab(self._unused.pop() if self._unused else await self.context.new_page())
        if url:
            await tab.goto(url)
        return tab

    async def close(self) -> None:
        """As a person closes it, with all its tabs."""
        await self.context.close()

    def kill(self) -> None:
        """It dies at once."""
        for pid in self.processes:
            if "--user-data-dir" in (line := command_line(pid)) and "--type=" not in line:
                os.kill(pid, signal.SIGKILL)
                return
        raise AssertionError("no browser runs")


@asynccontextmanager
async def opened(**context: Any) -> AsyncIterator[Chromium]:
    """Chromium with an empty profile; on leaving, no process of it is there. ``context``: options of Playwright's
    contexts, such as ``color_scheme``."""
    path = program()
    # Not in the test's own folder, whose name may be longer than that of a socket can be.
    home = tempfile.mkdtemp(prefix="moor-chromium-", dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
    try:
        async with running(path, home, context) as chromium:
            yield chromium
    finally:
        shutil.rmtree(home)


@asynccontextmanager
async def running(path: str, home: str, context: dict[str, Any]) -> AsyncIterator[Chromium]:
    from playwright.async_api import Error as PlaywrightError
    from playwright.async_api import async_playwright

    before = set(procs.descendants())
    async with async_playwright() as playwright:
        profile = await playwright.chromium.launch_persistent_context(
            Path(home, "profile"),
            artifacts_dir=Path(home, "artifacts"),
            executable_path=path,
            chromium_sandbox=False,  # it needs rights that containers do not give
            args=FLAGS,
            env={**os.environ, **dict.fromkeys(("HOME", "TMPDIR", "XDG_CONFIG_HOME"), home)},
            **{"viewport": SIZE, **context},
        )
        profile.set_default_timeout(WITHIN * 1000)
        chromium = Chromium(profile, set(procs.descendants()) - before)
        try:
            yield chromium
        finally:
            try:
                async with asyncio.timeout(GONE_WITHIN):
                    await profile.close()
            except PlaywrightError:
                pass  # It was dead.
            except TimeoutError:
                chromium.kill()
    # What it had begun to start when it was ended comes to an end a moment after it.
    pids = chromium.processes
    assert await procs.gone(pids, GONE_WITHIN), [command_line(each) for each in pids if procs.alive(each)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # gone
        return ""


def session(pid: int) -> str | None:
    """That of a process, as /proc tells it; None if it is gone."""
    fields = procs.stat(pid)
    return None if fields is None else fields[3]


def has_ipv6() -> bool:
    """Whether this machine has ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


# --- what a person does at the pages of the authorization servers

LOGIN = "input[name=login]"
BUTTON = "form button"
CONSENT = f"form:not(:has({LOGIN})) button"
NO = "a[href*='/abort']"


async def sign_in(tab: Tab, who: str = "somebody") -> None:
    """At the page that asks who it is; leads to the one that asks for consent."""
    await tab.fill(LOGIN, who)
    await tab.fill("input[name=password]", "x")
    await tab.click(BUTTON)


async def agree(tab: Tab, *, times: int = 1) -> None:
    """At the page that asks for consent. ``times=2``: with a double click."""
    await tab.click(CONSENT, times=times)


async def refuse(tab: Tab) -> None:
    """At the page that asks for consent: no."""
    await tab.page.wait_for_selector(CONSENT)
    await tab.click(NO)


async def walked(tab: Tab, url: str) -> None:
    """A whole login, from its address to the yes."""
    await tab.goto(url)
    await sign_in(tab)
    await agree(tab)
