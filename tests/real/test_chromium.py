"""The browser of the tests is what it says: tabs, history, an end that leaves nothing; and a login through a host."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, CredentialSettings, HttpServer
from tests.faults import procs
from tests.real.chromium import agree, sign_in

pytestmark = pytest.mark.real

MEMORY = CredentialSettings(store="memory")
CALLBACK = "http://127.0.0.1:33418/callback"


@pytest.fixture(params=["oidc-provider", "better-auth"])
def some_server(request: pytest.FixtureRequest) -> Any:
    """Either of them."""
    name = "provider_with" if request.param == "oidc-provider" else "better_auth_with"
    return request.getfixturevalue(name)


async def test_tabs_history_and_pictures(chromium: Any, tmp_path: Path) -> None:
    first, second = "data:text/html,<a href='about:blank'>on</a>", "data:text/html,second"
    async with chromium() as browser:
        one, two = await browser.tab(first), await browser.tab(second)
        assert len(browser.tabs) == 2
        await one.click("text=on")
        await one.at("about:blank")
        await one.back()
        await one.shows("on")
        await one.reload()
        assert await two.text() == "second"
        assert (await one.history())[-2:] == [first, "about:blank"]
        await two.screenshot(tmp_path / "two.png")
        assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
        await two.close()
        assert [tab.url for tab in browser.tabs] == [first]


async def test_a_step_between_two_pages_is_taken_again(chromium: Any) -> None:
    pages = ["about:blank", "data:text/html,here"]  # of two processes
    async with chromium() as browser:
        tab = await browser.tab(pages[1])

        async def goes_on() -> None:
            for _ in range(10):
                for each in pages:
                    await tab.goto(each)

        went = asyncio.create_task(goes_on())
        try:
            while not went.done():
                assert set(await tab.history()) <= set(pages)
        finally:
            await went


@pytest.mark.parametrize("how", ["left", "closed", "killed"])
async def test_nothing_of_it_is_left_however_it_ends(chromium: Any, how: str) -> None:
    async with chromium() as browser:
        await browser.tab("data:text/html,here")
        pids = set(browser.processes)
        assert len(pids) > 3
        if how == "closed":
            await browser.close()
        elif how == "killed":
            browser.kill()
    assert not [pid for pid in pids if procs.alive(pid)]


async def test_a_login_of_a_host_that_is_given_a_browser(chromium: Any, some_server: Any) -> None:
    with some_server() as provider:
        async with chromium() as browser:

            async def person(name: str, url: str) -> str:
                tab = await browser.tab(url)
                await sign_in(tab)
                # Nobody listens there: where it was sent to is all that is wanted.
                async with tab.page.expect_request(lambda sent: sent.url.startswith(CALLBACK)) as sent:
                    await agree(tab)
                return (await sent.value).url

            spec = HttpServer(url=provider.resource, bounds=Bounds(connect=10.0))
            async with AsyncHost({"s": spec}, state_dir=False, credentials=MEMORY, browser=person) as host:
                assert (await host.wait_ready(40)).all_ready, host.status()["s"]
                said = json.loads((await host.call("s__whoami", {})).text)
        assert said["client"] and provider.facts()["registered"] == 1
