"""What other clients fail at with protected servers (P1-P4, P13): here Moorings does right.

The same situations as in ``compare/protected.py``, on one scripted authorization server; a browser that is counted
stands for the person. ``test_others.py`` runs them with the other clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moorings import AsyncHost, AuthSettings, Bounds, HttpServer, NeedsLogin, NotSent, Refused, StartError
from moorings._secret import Secret
from moorings.adapters.httpx_auth import MooringsAuth
from moorings.auth.model import (
    LOCAL,
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    decode_credential,
    encode_credential,
)
from moorings.auth.renewal import about
from moorings.store.files import FileStore
from tests.faults.auth_server import AuthFaults, Family, consent
from tests.host.kit import Events

BOUNDS = Bounds(connect=10.0, http_close=0.5, cooldown=0.1)


class Browser:
    """The person's browser: says yes, and counts how often it was opened."""

    def __init__(self) -> None:
        self.opened = 0

    async def __call__(self, name: str, url: str) -> str:
        self.opened += 1
        return await consent(url)


def host(
    server: AuthFaults, state: Path, browser: Browser, auth: AuthSettings | bool = True, **options: Any
) -> AsyncHost:
    spec = HttpServer(url=server.url, transport="http", auth=auth, bounds=BOUNDS)
    return AsyncHost({"s": spec}, state_dir=state, browser=browser, **options)


async def logged_in(server: AuthFaults, state: Path, ends_in: float) -> Family:
    """A login of an earlier process, in the store: its access token ends in so many seconds."""
    server.clients["c"] = {"client_id": "c", "token_endpoint_auth_method": "none"}
    family = server.family(resource=server.resource)
    now = time.time()
    credential = Credential(
        key=CredentialKey(LOCAL, server.issuer, "c", server.resource),
        registration=Registration(issuer=server.issuer, client_id="c", auth_method="none"),
        metadata=ServerMetadata(issuer=server.issuer, token_endpoint=f"{server.issuer}/token"),
        access_token=Secret(server.token(resource=server.resource, lifetime=ends_in)),
        expires_at=now + ends_in,
        obtained_at=now - 3600,
        refresh_token=Secret(family.live),
    )
    key = credential.key.digest()
    store = FileStore(state / "credentials")
    try:
        async with store.lock(key, asyncio.get_running_loop().time() + 10) as lease:
            await store.save(key, encode_credential(credential), lease, about=about(credential))
    finally:
        await store.aclose()
    return family


async def stored(state: Path) -> list[Credential]:
    """What the store holds."""
    store = FileStore(state / "credentials")
    try:
        keys = [each.key for each in await store.keys() if not each.key.endswith("-intent")]
        return [decode_credential(value) for key in keys if (value := await store.load(key)) is not None]
    finally:
        await store.aclose()


async def test_p1_a_restart_with_an_expired_token_refreshes_once(tmp_path: Path) -> None:
    """P1: the refresh comes before any request, so that the stale token is never sent, and nobody is asked."""
    browser = Browser()
    async with AuthFaults() as server:
        await logged_in(server, tmp_path, ends_in=-60)
        async with host(server, tmp_path, browser) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            assert (await moorings.call("s__echo", {"text": "up"})).text == "up"
        assert server.paths()[0] == "/token" and set(server.paths()[1:]) == {server.path}
        assert 401 not in [seen.status for seen in server.requests]
        assert len(server.grants("refresh_token")) == len(server.grants()) == 1
    assert browser.opened == 0
    assert [each.version for each in await stored(tmp_path)] == [2]


async def test_p1_a_restart_with_a_token_that_the_server_ended_refreshes_once(tmp_path: Path) -> None:
    """P1, where the store thinks that the token holds: 401, one refresh, no browser."""
    browser = Browser()
    async with AuthFaults() as server:
        await logged_in(server, tmp_path, ends_in=3000)
        server.expire()
        async with host(server, tmp_path, browser) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            assert (await moorings.call("s__echo", {"text": "up"})).text == "up"
        assert [seen.status for seen in server.requests].count(401) == 1
        assert len(server.grants("refresh_token")) == len(server.grants()) == 1
        assert not server.at("authorize") and not server.at("register")
    assert browser.opened == 0


async def test_p2_the_token_endpoint_is_down_once_at_the_start(tmp_path: Path) -> None:
    """P2: what could not be sent says so, at once and not as a want of a login; a later use is served."""
    browser, events = Browser(), Events()
    async with AuthFaults(on={"token:refresh_token": ["status:503", "ok"]}) as server:
        family = await logged_in(server, tmp_path, ends_in=-60)
        old = family.live
        async with host(server, tmp_path, browser, on_event=events) as moorings:
            assert set((await moorings.wait_ready(10)).failed) == {"s"}
            [kept] = await stored(tmp_path)
            assert kept.state == "good" and kept.refresh_token == Secret(old)
            with pytest.raises(NotSent) as unsent:
                await moorings.call("s__echo")
            assert not isinstance(unsent.value, NeedsLogin) and "503" in str(unsent.value)
            assert await patiently(moorings, "up") == "up"
            assert "needs_auth" not in events.states("s")
        assert [form["refresh_token"] for form in server.grants("refresh_token")] == [old, old]
        assert len(server.grants()) == 2 and not server.at("authorize")
    assert browser.opened == 0


async def test_p2_the_token_endpoint_asks_to_wait(tmp_path: Path) -> None:
    """P2 with Retry-After: it is heeded, though each start of the only protected server begins anew."""
    browser = Browser()
    async with AuthFaults(on={"token:refresh_token": "later:503:60"}) as server:
        await logged_in(server, tmp_path, ends_in=-60)
        async with host(server, tmp_path, browser) as moorings:
            assert set((await moorings.wait_ready(10)).failed) == {"s"}
            for _ in range(3):
                with pytest.raises(StartError, match="asks to wait 60 s"):
                    await moorings.restart("s")
        assert len(server.grants()) == 1
    assert browser.opened == 0


async def test_p2_the_token_endpoint_is_down_once_under_way(tmp_path: Path) -> None:
    """P2: the call whose token could not be renewed fails typed, the next one that comes later is served."""
    browser = Browser()
    async with AuthFaults(on={"token:refresh_token": ["status:503", "ok"]}) as server:
        old = (await logged_in(server, tmp_path, ends_in=3000)).live
        async with host(server, tmp_path, browser) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            server.expire()
            with pytest.raises(Refused) as refused:
                await moorings.call("s__echo")
            assert "503" in str(refused.value)
            [kept] = await stored(tmp_path)
            assert kept.state == "good" and kept.refresh_token == Secret(old)
            assert await patiently(moorings, "up") == "up"
            assert moorings.status()["s"].generation == 1, "the session went on"
        assert len(server.grants("refresh_token")) == len(server.grants()) == 2
        assert not server.at("authorize")
    assert browser.opened == 0


async def patiently(moorings: AsyncHost, text: str) -> str:
    """Calls as a caller does that tries again, while the pause after the failed refresh lasts (at most 1 s)."""
    async with asyncio.timeout(10):
        while True:
            try:
                return (await moorings.call("s__echo", {"text": text})).text
            except (NotSent, Refused, StartError):
                await asyncio.sleep(0.05)


async def test_p3_a_call_is_cancelled_in_the_middle_of_its_refresh(tmp_path: Path) -> None:
    """P3: from another task, while the server holds the refresh. The next call is served by that same refresh."""
    browser = Browser()
    async with AuthFaults(on={"token:refresh_token": "hold"}) as server:
        await logged_in(server, tmp_path, ends_in=3000)
        async with host(server, tmp_path, browser) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            server.expire()
            given_up = asyncio.create_task(moorings.call("s__echo", {"text": "given up"}))
            await server.until(lambda _: server.grants("refresh_token"))
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            calls = [asyncio.create_task(moorings.call("s__echo", {"text": str(n)})) for n in range(4)]
            await server.until(lambda _: statuses(server).count(401) == 5)
            server.release("token:refresh_token")
            async with asyncio.timeout(10):
                assert [(await call).text for call in calls] == ["0", "1", "2", "3"]
        assert len(server.grants("refresh_token")) == len(server.grants()) == 1
        assert server.revoked_by_reuse == 0
    assert browser.opened == 0


@pytest.mark.parametrize("refused", [False, True], ids=["first", "refused"])
async def test_p3_a_flow_is_closed_from_another_task(tmp_path: Path, refused: bool) -> None:
    """P3, in an HTTP client with our auth: the same auth serves the next request, also while the other is unresumed."""
    browser = Browser()

    async def show(url: str) -> str:
        return await browser("", url)

    async with AuthFaults() as server:
        await logged_in(server, tmp_path, ends_in=3000)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "server/discover"}
        async with (
            MooringsAuth(server.url, state_dir=tmp_path, browser=show) as auth,
            httpx.AsyncClient(auth=auth, timeout=10) as client,
        ):
            closed, left = [auth.async_auth_flow(client.build_request("POST", server.url)) for _ in range(2)]

            async def advance(flow: AsyncGenerator[httpx.Request, httpx.Response]) -> None:
                request = await anext(flow)
                if refused:
                    await flow.asend(
                        httpx.Response(401, headers={"WWW-Authenticate": "Bearer"}, request=request)
                    )

            for flow in (closed, left):
                await asyncio.create_task(advance(flow))
            await asyncio.create_task(closed.aclose())
            server.expire()
            answer = await client.post(server.url, json=ping, headers={"Accept": "application/json"})
            assert answer.status_code != 401
            await left.aclose()
        assert len(server.grants()) == len(server.grants("refresh_token")) == (3 if refused else 1)
        assert server.revoked_by_reuse == 0
    assert browser.opened == 0


async def test_p3_a_host_is_closed_in_the_middle_of_a_refresh(tmp_path: Path) -> None:
    """P3: the refresh outlives whoever asked for it; the next host is served, with nothing spent twice."""
    browser = Browser()
    async with AuthFaults(on={"token:refresh_token": "hold"}) as server:
        await logged_in(server, tmp_path, ends_in=-60)
        first = host(server, tmp_path, browser)
        await first.start()
        await server.until(lambda _: server.grants("refresh_token"))
        closing = asyncio.create_task(first.close())
        server.release("token:refresh_token")
        async with asyncio.timeout(10):
            await closing
        async with host(server, tmp_path, browser) as second:
            assert (await second.call("s__echo", {"text": "up"}, timeout=10)).text == "up"
        assert len(server.grants("refresh_token")) == len(server.grants()) == 1
        assert server.revoked_by_reuse == 0
    assert browser.opened == 0


async def test_p4_sixteen_calls_are_at_the_server_at_once(tmp_path: Path) -> None:
    """P4: all were refused, one refresh serves them, and none waits for the answer of another."""
    browser = Browser()
    async with AuthFaults() as server:
        await logged_in(server, tmp_path, ends_in=3000)
        async with host(server, tmp_path, browser) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            server.expire()
            calls = [asyncio.create_task(moorings.call("s__hold", {"key": "all"})) for _ in range(16)]
            await server.until(lambda _: statuses(server).count(None) == 16)
            server.release("all")
            async with asyncio.timeout(10):
                assert {result.text for result in await asyncio.gather(*calls)} == {"released"}
        assert len(server.grants("refresh_token")) == len(server.grants()) == 1
        assert statuses(server).count(200) == 16
    assert browser.opened == 0


def statuses(server: AuthFaults) -> list[int | None]:
    """What became of each call of a tool; None: it is at the server."""
    return [seen.status for seen in server.requests if seen.rpc == "tools/call"]


@pytest.mark.parametrize("auth", [True, AuthSettings()], ids=["usual", "configured"])
async def test_p13_a_server_that_asks_for_no_auth(tmp_path: Path, auth: AuthSettings | bool) -> None:
    """P13: it has all the documents of OAuth, and lets everybody in: no browser, and not one request to OAuth."""
    browser = Browser()
    async with AuthFaults(open=True, prm=["path", "root"], documents=["oauth", "oidc"]) as server:
        async with host(server, tmp_path, browser, auth) as moorings:
            assert (await moorings.wait_ready(10)).all_ready, moorings.status()["s"].last_error
            assert (await moorings.call("s__echo", {"text": "up"})).text == "up"
        assert set(server.paths()) == {server.path}
        assert all("authorization" not in seen.headers for seen in server.requests)
    assert browser.opened == 0
    assert await stored(tmp_path) == []
