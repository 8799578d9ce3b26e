"""Whole logins in a real browser, against oidc-provider and better-auth: what people do at them, and what comes of it.

``begun(provider, folder)`` is a login under way; ``shown.url()`` is what it shows to the person, who is ``browser``.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from moorings import (
    AsyncHost,
    AuthSettings,
    Bounds,
    HttpServer,
    LoginFailed,
    LoginPrompt,
    LoginResult,
    login,
)
from tests.ports import listens_here
from tests.real.chromium import (
    BUTTON,
    CONSENT,
    LOGIN,
    Chromium,
    Tab,
    agree,
    refuse,
    sign_in,
    walked,
)
from tests.real.oidc import Provider

pytestmark = pytest.mark.real

SUCCESS = "Logged in to notes"
STRAY = "This is not the answer of a login that waits here"
WITHIN = 30.0
PROGRAM = Path(__file__).with_name("login_process.py")


OIDC, BETTER = "oidc-provider", "better-auth"


@pytest.fixture(params=[OIDC, BETTER])
def some_server(request: pytest.FixtureRequest) -> Any:
    """Either of them."""
    return request.getfixturevalue("provider_with" if request.param == OIDC else "better_auth_with")


def cases(*pairs: tuple[Any, str]) -> pytest.MarkDecorator:
    """``how`` at which server: what matters of each, and not everything twice."""
    ids = [f"{server}-{getattr(how, 'name', how)}" for how, server in pairs]
    return pytest.mark.parametrize(("how", "some_server"), pairs, indirect=["some_server"], ids=ids)


class Shown:
    """What a login shows to a person; nothing is ever pasted."""

    def __init__(self) -> None:
        self.prompts: list[LoginPrompt] = []
        self._come: asyncio.Queue[LoginPrompt] = asyncio.Queue()

    async def __call__(self, prompt: LoginPrompt) -> None:
        self.prompts.append(prompt)
        self._come.put_nowait(prompt)

    async def prompt(self) -> LoginPrompt:
        """The next one."""
        return await asyncio.wait_for(self._come.get(), WITHIN)

    async def url(self) -> str:
        return (await self.prompt()).url


def server_of(provider: Provider, timeout: float = 60.0) -> HttpServer:
    """What the provider protects. ``timeout``: seconds that a person may take."""
    return HttpServer(
        url=provider.resource,
        auth=AuthSettings(timeout=timeout),
        bounds=Bounds(connect=10.0, http_close=0.5),
    )


@asynccontextmanager
async def begun(
    provider: Provider, folder: Path, *, timeout: float = 60.0, **options: Any
) -> AsyncIterator[tuple[Shown, asyncio.Task[LoginResult]]]:
    """A login; it is ended on leaving, if it is not over."""
    shown = Shown()
    task = asyncio.create_task(
        login(server_of(provider, timeout), name="notes", on_login_url=shown, state_dir=folder, **options)
    )
    try:
        yield shown, task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def logged_in(task: asyncio.Task[LoginResult]) -> LoginResult:
    return await asyncio.wait_for(task, WITHIN)


async def whoami(provider: Provider, folder: Path) -> Any:
    """What the server says of the stored login; nobody is there to be asked."""
    async with AsyncHost({"notes": server_of(provider)}, state_dir=folder) as host:
        assert (await host.wait_ready(WITHIN)).all_ready, host.status()["notes"].last_error
        return json.loads((await host.call("notes__whoami", {})).text)


def came_back(prompt: LoginPrompt) -> Callable[[Any], bool]:
    """Whether a request of a browser brings the answer."""
    return lambda sent: bool(sent.url.startswith(f"{prompt.redirect_uri}?"))


def assert_free(redirect_uri: str) -> None:
    """Nothing of ours has the port any more."""
    assert not listens_here(urlsplit(redirect_uri).port or 0)


async def asked(provider: Provider, what: str, number: int) -> None:
    """Wait until the provider has counted so many: it tells nobody."""
    until = time.monotonic() + WITHIN
    while provider.facts()[what] < number:
        assert time.monotonic() < until, provider.facts()
        await asyncio.sleep(0.02)


async def test_a_whole_login(chromium: Any, some_server: Any, tmp_path: Path) -> None:
    with some_server() as provider:
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            prompt = await shown.prompt()
            assert prompt.listening and prompt.server == "notes" and prompt.issuer == provider.issuer
            tab = await browser.tab(prompt.url)
            seen: list[str] = []
            tab.page.on("request", lambda sent: seen.append(sent.url))
            await sign_in(tab)
            await agree(tab)
            await tab.shows(SUCCESS)
            got = await logged_in(task)
            assert got.fresh and got.refreshable and got.issuer == provider.issuer
            # The code was in one address for a moment, and is nowhere now.
            (back,) = [each for each in seen if each.startswith(f"{prompt.redirect_uri}?")]
            code = back.partition("code=")[2].partition("&")[0]
            state = prompt.url.partition("state=")[2].partition("&")[0]
            assert code and state
            left = [tab.url, await tab.page.content(), *await tab.history()]
            assert not [each for each in left if code in each]
            assert not [each for each in left if state in each and not each.startswith(provider.origin)]
            # Nobody is there any more, and a reload changes nothing.
            assert_free(prompt.redirect_uri)
            async with tab.page.expect_event("requestfailed"):
                await tab.page.evaluate("location.reload()")
        assert len(shown.prompts) == 1
        assert (await whoami(provider, tmp_path))["client"] == got.client_id
        assert provider.facts()["registered"] == 1 and provider.facts()["token"] == 1


async def test_a_host_that_shows_the_login_itself(chromium: Any, provider_with: Any, tmp_path: Path) -> None:
    shown = Shown()
    with provider_with() as provider:
        async with chromium() as browser:
            servers = {"notes": server_of(provider)}
            async with AsyncHost(servers, state_dir=tmp_path, on_login_url=shown) as host:
                tab = await browser.tab()
                await walked(tab, await shown.url())
                await tab.shows(SUCCESS)
                assert (await host.wait_ready(WITHIN)).all_ready, host.status()["notes"]
                assert json.loads((await host.call("notes__whoami", {})).text)["client"]
        assert len(shown.prompts) == 1


async def test_f12_3_a_person_who_says_no_and_then_yes_and_then_no(
    chromium: Any, some_server: Any, tmp_path: Path
) -> None:
    with some_server() as provider:
        async with chromium() as browser:
            tab = await browser.tab()

            async def refused(**options: Any) -> None:
                async with begun(provider, tmp_path, **options) as (shown, task):
                    prompt = await shown.prompt()
                    await tab.goto(prompt.url)
                    if await tab.page.query_selector(LOGIN):
                        await sign_in(tab)
                    await refuse(tab)
                    await tab.shows("The login to notes did not succeed")
                    with pytest.raises(LoginFailed) as caught:
                        await logged_in(task)
                    assert caught.value.reason == "denied"
                    assert_free(prompt.redirect_uri)

            await refused()
            async with begun(provider, tmp_path) as (shown, task):
                await tab.goto(await shown.url())
                await agree(tab)
                await tab.shows(SUCCESS)
                got = await logged_in(task)
            await refused(force=True)
        assert (await whoami(provider, tmp_path))["client"] == got.client_id
        assert provider.facts()["registered"] == 1 and provider.facts()["token"] == 1


async def test_the_back_button_before_and_after_the_yes(
    chromium: Any, some_server: Any, tmp_path: Path
) -> None:
    with some_server() as provider:
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            url = await shown.url()
            tab = await browser.tab(url)
            await sign_in(tab)
            await tab.page.wait_for_selector(CONSENT)
            await tab.back()
            if await tab.page.query_selector(LOGIN):
                await sign_in(tab)
            else:
                await tab.goto(url)  # Its page is over; the address that the login shows is not.
            await agree(tab)
            await tab.shows(SUCCESS)
            got = await logged_in(task)
            await tab.back()
            if await tab.page.query_selector(BUTTON):
                # A second yes leads to a port where nobody listens any more.
                async with tab.page.expect_event("requestfailed"):
                    await tab.click(BUTTON)
        assert len(shown.prompts) == 1
        assert (await whoami(provider, tmp_path))["client"] == got.client_id
        assert provider.facts()["token"] == 1


@cases(("three forms", OIDC), ("double click", BETTER), ("three forms", BETTER))
async def test_a_yes_that_is_sent_more_than_once(
    chromium: Any, some_server: Any, tmp_path: Path, how: str
) -> None:
    with some_server() as provider:
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            url = await shown.url()
            tab = await browser.tab(url)
            await sign_in(tab)
            if how == "double click":
                await agree(tab, times=2)
            else:
                await tab.page.wait_for_selector(CONSENT)
                await tab.page.evaluate("for (let n = 0; n < 3; n += 1) document.forms[0].submit()")
            await tab.shows(re.compile(f"{SUCCESS}|something went wrong"))
            if SUCCESS not in await tab.text():
                # oidc-provider takes a yes once: where the second one cut off the first on its way to us, the person
                # sees an error, and opens the address again.
                await asyncio.wait({task}, timeout=2.0)
                if provider.facts()["token"] == 0:
                    await tab.goto(url)
                    await agree(tab)
                    await tab.shows(SUCCESS)
            await logged_in(task)
        assert await whoami(provider, tmp_path) and provider.facts()["token"] == 1


async def test_two_tabs_of_one_login_and_a_second_visit_of_the_callback(
    chromium: Any, some_server: Any, tmp_path: Path
) -> None:
    """All of them wait while the code is exchanged, and then show the same; the first answer is the one that counts.

    None of them is at the page of the authorization server meanwhile: a click or a reload there would be an error.
    """
    with some_server() as provider:
        provider.lever("hold")
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            prompt = await shown.prompt()
            one, two, three = await browser.tab(prompt.url), await browser.tab(), await browser.tab()
            await sign_in(one)
            await one.page.wait_for_selector(CONSENT)
            await two.goto(prompt.url)  # signed in already
            async with one.page.expect_request(came_back(prompt)) as first:
                await agree(one)
            await asked(provider, "token", 1)
            async with two.page.expect_request(came_back(prompt)) as second:
                await agree(two)
            back = (await first.value).url
            assert back != (await second.value).url
            await three.goto(back, until="commit")
            await one.reload(until="commit")
            for tab in (one, two, three):
                await tab.shows("Finishing the login to notes")
                assert not urlsplit(tab.url).query
            assert not task.done()
            provider.lever("release")
            for tab in (one, two, three):
                await tab.shows(SUCCESS)
            await logged_in(task)
        assert await whoami(provider, tmp_path) and provider.facts()["token"] == 1


async def test_f12_9_two_servers_at_once_in_one_browser(
    chromium: Any, provider_with: Any, better_auth_with: Any, tmp_path: Path
) -> None:
    with provider_with() as one, better_auth_with() as other:
        async with (
            chromium() as browser,
            begun(one, tmp_path) as (shown_one, task_one),
            begun(other, tmp_path) as (shown_other, task_other),
        ):
            prompt_one, prompt_other = await shown_one.prompt(), await shown_other.prompt()
            tab_one, tab_other = await browser.tab(prompt_one.url), await browser.tab()
            await tab_other.goto(prompt_other.url)
            for tab in (tab_other, tab_one):
                await sign_in(tab)
            async with tab_one.page.expect_request(came_back(prompt_one)) as sent:
                await agree(tab_one)
            # The answer of the one is none of the other.
            swapped = await browser.tab(
                prompt_other.redirect_uri + "?" + urlsplit((await sent.value).url).query
            )
            await swapped.shows(STRAY)
            await agree(tab_other)
            for tab in (tab_one, tab_other):
                await tab.shows(SUCCESS)
            got = [await logged_in(task) for task in (task_one, task_other)]
        assert [each.issuer for each in got] == [one.issuer, other.issuer]
        for provider, result in zip((one, other), got, strict=True):
            assert (await whoami(provider, tmp_path))["client"] == result.client_id


# --- several processes


class Process:
    """``login_process.py``, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    async def until(self, what: str) -> Any:
        """What it says of this, as soon as it does."""
        while True:
            for each in self.said:
                if what in each:
                    return each[what]
            assert self.process.stdout is not None
            line = await asyncio.wait_for(self.process.stdout.readline(), WITHIN)
            assert line, f"it ended, and said {self.said}"
            self.said.append(json.loads(line))


@asynccontextmanager
async def process(provider: Provider, folder: Path, timeout: float = 60.0) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), provider.resource, str(folder), str(timeout)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    one = Process(started)
    try:
        yield one
    finally:
        is_over = any("client" in each or "failed" in each for each in one.said)
        if started.returncode is None and not is_over:
            started.terminate()
        await asyncio.wait_for(started.communicate(), WITHIN)


async def test_f12_5_two_processes_at_once_have_one_address_for_the_person(
    chromium: Any, better_auth_with: Any, tmp_path: Path
) -> None:
    with better_auth_with() as provider:
        async with (
            chromium() as browser,
            process(provider, tmp_path) as one,
            process(provider, tmp_path) as other,
        ):
            shows = {asyncio.create_task(each.until("shown")): each for each in (one, other)}
            done, rest = await asyncio.wait(shows, return_when=asyncio.FIRST_COMPLETED)
            first = shows[next(iter(done))]
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
            second = other if first is one else one
            await second.until("waits")
            tab = await browser.tab()
            await walked(tab, await first.until("shown"))
            await tab.shows(SUCCESS)
            client = await first.until("client")
            assert await second.until("client") == client
            assert not [each for each in second.said if "shown" in each]
        assert provider.facts()["registered"] == 1 and provider.facts()["token"] == 1
        assert (await whoami(provider, tmp_path))["client"] == client


@cases((signal.SIGKILL, OIDC), (signal.SIGTERM, BETTER))
async def test_a_restart_while_the_person_is_at_the_browser(
    chromium: Any, some_server: Any, tmp_path: Path, how: signal.Signals
) -> None:
    """The page of before leads to the new login, which knows nothing of it and waits for its own answer."""
    with some_server() as provider:
        async with chromium() as browser:
            old = await browser.tab()
            async with process(provider, tmp_path) as before:
                await old.goto(await before.until("shown"))
                await sign_in(old)
                await old.page.wait_for_selector(CONSENT)
                before.process.send_signal(how)
                await before.process.wait()
            async with process(provider, tmp_path) as after:
                url = await after.until("shown")
                assert await after.until("redirect") == await before.until("redirect")
                await agree(old)
                await old.shows(STRAY)
                new = await browser.tab(url)
                await agree(new)
                await new.shows(SUCCESS)
                client = await after.until("client")
        assert (await whoami(provider, tmp_path))["client"] == client
        assert provider.facts()["registered"] == 1 and provider.facts()["token"] == 1


# --- the person goes away


async def has_nothing(provider: Provider, folder: Path) -> None:
    """There is no login: a host without a person says so."""
    async with AsyncHost({"notes": server_of(provider)}, state_dir=folder) as host:
        until = asyncio.get_running_loop().time() + WITHIN
        while host.status()["notes"].state != "needs_auth":
            assert await host._servers["notes"].changed(until), host.status()["notes"]


@cases(("tab closed", OIDC), ("browser closed", BETTER), ("browser killed", OIDC))
async def test_a_browser_that_is_gone_at_the_consent_and_a_login_that_is_ended(
    chromium: Any, some_server: Any, tmp_path: Path, how: str
) -> None:
    with some_server() as provider:
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            prompt = await shown.prompt()
            tab = await browser.tab(prompt.url)
            await sign_in(tab)
            await tab.page.wait_for_selector(CONSENT)
            await end(browser, tab, how)
            await asyncio.wait({task}, timeout=0.3)
            assert (
                not task.done()
            )  # Nobody tells: the person may come back to the address that they were shown.
            task.cancel()
            await asyncio.wait({task}, timeout=WITHIN)
            assert task.cancelled()
            assert_free(prompt.redirect_uri)
        await has_nothing(provider, tmp_path)
        await logs_in_again(provider, tmp_path, chromium, prompt.redirect_uri)
        assert provider.facts()["registered"] == 1 and provider.facts()["token"] == 1


async def test_nobody_comes_back_in_time(chromium: Any, provider_with: Any, tmp_path: Path) -> None:
    with provider_with() as provider:
        async with chromium() as browser, begun(provider, tmp_path, timeout=2.0) as (shown, task):
            prompt = await shown.prompt()
            await browser.tab(prompt.url)
            browser.kill()
            with pytest.raises(LoginFailed, match="2 s") as caught:
                await logged_in(task)
            assert caught.value.reason == "timeout"
            assert_free(prompt.redirect_uri)
        await has_nothing(provider, tmp_path)
        await logs_in_again(provider, tmp_path, chromium, prompt.redirect_uri)


@cases(("tab closed", BETTER), ("browser killed", OIDC))
async def test_a_browser_that_is_gone_while_the_code_is_exchanged_takes_nothing_with_it(
    chromium: Any, some_server: Any, tmp_path: Path, how: str
) -> None:
    with some_server() as provider:
        provider.lever("hold")
        async with chromium() as browser, begun(provider, tmp_path) as (shown, task):
            prompt = await shown.prompt()
            tab = await browser.tab()
            await walked(tab, prompt.url)
            await tab.shows("Finishing the login to notes")
            await asked(provider, "token", 1)
            await end(browser, tab, how)
            provider.lever("release")
            got = await logged_in(task)
            assert_free(prompt.redirect_uri)
        assert (await whoami(provider, tmp_path))["client"] == got.client_id


async def test_a_server_that_dies_while_the_person_is_at_its_page(
    chromium: Any, provider_with: Any, tmp_path: Path
) -> None:
    """Then it is back, and has forgotten every client: that is seen before a person is asked, and it registers anew."""
    with provider_with() as provider:
        async with chromium() as browser, begun(provider, tmp_path, timeout=3.0) as (shown, task):
            tab = await browser.tab(await shown.url())
            await sign_in(tab)
            await tab.page.wait_for_selector(CONSENT)
            provider.kill()
            async with tab.page.expect_event("requestfailed"):
                await agree(tab)
            with pytest.raises(LoginFailed) as caught:
                await logged_in(task)
            assert caught.value.reason == "timeout"
    with provider_with(port=provider.port) as again:
        async with chromium() as browser:
            async with begun(again, tmp_path) as (shown, task):
                url = await shown.url()
                tab = await browser.tab(url)
                await walked(tab, url)
                await tab.shows(SUCCESS)
                await logged_in(task)
        assert again.facts()["registered"] == 1


async def end(browser: Chromium, tab: Tab, how: str) -> None:
    if how == "tab closed":
        await tab.close()
    elif how == "browser closed":
        await browser.close()
    else:
        browser.kill()


async def logs_in_again(provider: Provider, folder: Path, chromium: Any, redirect_uri: str) -> None:
    """In another browser, with the registration of before."""
    async with chromium() as browser, begun(provider, folder) as (shown, task):
        prompt = await shown.prompt()
        assert prompt.redirect_uri == redirect_uri
        tab = await browser.tab()
        await walked(tab, prompt.url)
        await tab.shows(SUCCESS)
        await logged_in(task)
