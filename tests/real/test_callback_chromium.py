"""The listener of a login and its pages, as a real browser meets them: pictures, history, and a hostile page beside."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from moorings._secret import Secret
from moorings.auth.callback import Listeners, Seat
from tests.real.chromium import WITHIN, Tab, has_ipv6

pytestmark = pytest.mark.real

STATE = "state-of-this-login"
RIGHT = f"?code=a-code-of-the-test&state={STATE}"
PICTURES = os.environ.get("MOORINGS_TEST_PICTURES", "")
"""Where the pictures for the docs go, if they are to be made anew."""


@asynccontextmanager
async def seated(host: str = "127.0.0.1", server: str = "notes", state: str = STATE) -> AsyncIterator[Seat]:
    listeners = Listeners()
    seat = await listeners.seat(host)
    try:
        seat.expect(Secret(state), server)
        yield seat
    finally:
        await seat.aclose()
        await listeners.aclose()


SMALL = {"width": 620, "height": 440}


async def picture(tab: Tab, name: str, folder: Path) -> None:
    """Keeps what the tab shows."""
    path = Path(PICTURES or folder) / f"{name}.png"
    await tab.screenshot(path)
    assert path.stat().st_size < 60_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_what_a_person_sees_at_the_end(chromium: Any, scheme: str, tmp_path: Path) -> None:
    async with chromium(color_scheme=scheme, viewport=SMALL) as browser:
        tab = await browser.tab()
        complaints: list[str] = []
        tab.page.on("console", lambda said: complaints.append(said.text))
        async with seated() as seat:
            assert await tab.goto(seat.redirect_uri + "?code=x&state=another") == 400
            await picture(tab, f"login-stray-{scheme}", tmp_path)
            seat.succeeded()
            assert await tab.goto(seat.redirect_uri + RIGHT) == 200
            await tab.shows("Logged in to notes")
            await picture(tab, f"login-succeeded-{scheme}", tmp_path)
        async with seated() as seat:
            seat.failed("the login was refused: access_denied (End-User aborted interaction)")
            await tab.goto(seat.redirect_uri + RIGHT)
            await tab.shows("access_denied")
            await picture(tab, f"login-failed-{scheme}", tmp_path)
        async with seated(server="<b>notes</b>") as seat:
            seat.failed("<script>alert(1)</script><style>* { display: none; }</style>")
            await tab.goto(seat.redirect_uri + RIGHT)
            await tab.shows("The login to <b>notes</b> did not succeed")
            await tab.shows("<script>alert(1)</script><style>* { display: none; }</style>")
        # Neither its policy nor its markup is anything that the browser has to complain of; the stray one is a 400.
        assert [each for each in complaints if "400" not in each and "404" not in each] == []


async def test_the_answer_is_in_no_history_and_a_reload_shows_the_same(chromium: Any) -> None:
    async with chromium() as browser, seated() as seat:
        tab = await browser.tab("data:text/html,before")
        opening = asyncio.ensure_future(tab.goto(seat.redirect_uri + RIGHT))
        assert await seat.arrived() == RIGHT[1:]
        seat.succeeded()
        await opening
        for _ in range(2):
            await tab.shows("Logged in to notes")
            assert not urlsplit(tab.url).query
            await tab.reload()
        assert not [each for each in await tab.history() if "code" in each or STATE in each]
        assert await tab.page.evaluate("[document.referrer, document.cookie, history.length]") == ["", "", 3]
        await tab.back()
        await tab.shows("before")
        await tab.page.go_forward()
        await tab.shows("Logged in to notes")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_f12_3_until_the_outcome_is_known_nothing_says_success(
    chromium: Any, scheme: str, tmp_path: Path
) -> None:
    async with chromium(color_scheme=scheme, viewport=SMALL) as browser, seated() as seat:
        tabs = one, two, three = [await browser.tab() for _ in range(3)]
        for tab in tabs:
            await tab.goto(seat.redirect_uri + RIGHT, until="commit")
            await tab.shows("Finishing the login to notes")
            assert "Logged in" not in await tab.text() and not urlsplit(tab.url).query
        await picture(one, f"login-waiting-{scheme}", tmp_path)
        await one.reload(until="commit")
        await one.shows("Finishing the login to notes")
        await two.close()
        seat.failed("the server did not take the code")
        for tab in (one, three):
            await tab.shows("the server did not take the code")
            assert "Finishing" not in await tab.text()


async def test_f12_4_whatever_the_browser_makes_of_the_name_of_this_machine(chromium: Any) -> None:
    names = {"localhost": "localhost", "127.0.0.1": "127.0.0.1", **({"::1": "[::1]"} if has_ipv6() else {})}
    async with chromium() as browser:
        tab = await browser.tab()
        for host in names:
            for typed in names.values():
                async with seated(host, f"{host} by {typed}") as seat:
                    seat.succeeded()
                    parts = urlsplit(seat.redirect_uri)
                    await tab.goto(f"http://{typed}:{parts.port}{parts.path}{RIGHT}")
                    await tab.shows(f"Logged in to {host} by {typed}")


async def test_f12_2_what_a_hostile_page_in_the_same_browser_sends_neither_ends_nor_steals_it(
    chromium: Any,
) -> None:
    """It knows the port and the path; it does not know the state."""
    wrong = "?code=of-the-thief&state=of-the-thief"
    async with chromium() as browser, seated() as seat:
        there = seat.redirect_uri
        origin = there[: there.index("/", 8)]
        page = await browser.tab("data:text/html,<body>a page of somebody else</body>")
        told = await page.page.evaluate(
            """async ([there, origin, wrong]) => {
              const none = {mode: 'no-cors', credentials: 'include'};
              const all = [];
              const queries = [wrong, '', '?error=access_denied', '?error=access_denied&state=', wrong + '&state=x'];
              for (const query of queries)
                for (const method of ['GET', 'POST', 'HEAD'])
                  all.push(fetch(there + query, {...none, method}).then(() => 'sent', () => 'failed'));
              for (const place of ['/', '/favicon.ico', '/callback', '/callback/x'])
                all.push(fetch(origin + place, none).then(() => 'sent', () => 'failed'));
              all.push(fetch(there + wrong).then(() => 'read', () => 'not to be read'));
              for (const [tag, key] of [['img', 'src'], ['script', 'src'], ['iframe', 'src'], ['link', 'href']]) {
                const part = document.createElement(tag);
                if (tag === 'link') part.rel = 'prefetch';
                part[key] = there + wrong;
                all.push(new Promise((done) => { part.onload = part.onerror = () => done(tag); }));
                document.body.append(part);
              }
              const form = document.createElement('form'), frame = document.createElement('iframe');
              Object.assign(form, {method: 'post', action: there + wrong, target: 'frame'});
              frame.name = 'frame';
              document.body.append(frame, form);
              form.submit();
              for (let n = 0; n < 3; n += 1) {
                const socket = new WebSocket(origin.replace('http', 'ws') + '/callback');
                all.push(new Promise((done) => { socket.onerror = () => done('socket'); }));
              }
              return Promise.race([Promise.all(all), new Promise((done) => setTimeout(() => done(['late']), 15000))]);
            }""",
            [there, origin, wrong],
        )
        assert "not to be read" in told and "read" not in told, told
        arrived = asyncio.ensure_future(seat.arrived())
        await asyncio.sleep(0)
        assert not arrived.done()
        seat.succeeded()
        tab = await browser.tab(there + RIGHT)
        assert await arrived == RIGHT[1:]
        await tab.shows("Logged in to notes")


async def test_f12_2_a_page_that_is_fetched_before_anybody_wants_it_is_no_answer(chromium: Any) -> None:
    """A browser that guesses; the person comes later."""
    rules = '{"prefetch": [{"source": "list", "urls": ["URL"]}], "prerender": [{"source": "list", "urls": ["URL"]}]}'
    async with chromium() as browser, seated() as seat:
        there = seat.redirect_uri + RIGHT
        page = await browser.tab("data:text/html,<body>a page of the server</body>")
        arrived = asyncio.ensure_future(seat.arrived())
        fetched = asyncio.Event()
        for end in ("requestfinished", "requestfailed"):
            browser.context.on(end, lambda request: fetched.set() if request.url == there else None)
        # It is free not to guess, and on a busy machine sometimes does not: then once more.
        async with asyncio.timeout(WITHIN):
            while not fetched.is_set():
                await page.reload()
                await page.page.evaluate(
                    """([there, rules]) => {
                      const link = document.createElement('link');
                      Object.assign(link, {rel: 'prefetch', href: there});
                      const script = document.createElement('script');
                      Object.assign(script, {type: 'speculationrules', textContent: rules.replaceAll('URL', there)});
                      document.body.append(link, script);
                    }""",
                    [there, rules],
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(fetched.wait(), 5.0)
        assert not arrived.done()
        seat.succeeded()
        tab = await browser.tab(there)
        assert await arrived == RIGHT[1:]
        await tab.shows("Logged in to notes")
