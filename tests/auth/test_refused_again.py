"""A server that refuses a message again and again, whatever token it carries: a typed end, and people left alone."""

from __future__ import annotations

import asyncio

import pytest

from moorings import AsyncHost, Bounds, CredentialSettings, HttpServer, NeedsLogin, ServerStatus
from tests.faults.auth_server import AuthFaults, consent

MORE = 'forbidden:Bearer error="insufficient_scope", scope="admin"'
NO = "unauthorized:Bearer"
"""Both whatever token comes."""
FIRST = ("server/discover", "initialize")


def host_of(server: AuthFaults) -> AsyncHost:
    bounds = Bounds(connect=10.0, http_close=0.5)
    spec = HttpServer(url=server.url, transport="http", bounds=bounds)
    memory = CredentialSettings(store="memory")
    return AsyncHost({"s": spec}, state_dir=False, credentials=memory, browser=browser)


async def browser(name: str, url: str) -> str:
    return await consent(url)


async def at_rest(host: AsyncHost) -> ServerStatus:
    """The status of the server once its start has failed, and what was left of that is gone."""
    await host.wait_ready(10)
    until = asyncio.get_running_loop().time() + 10
    while (status := host.status()["s"]).state == "stopping":
        assert await host._servers["s"].changed(until)
    return status


async def test_a_start_refused_for_scopes_again_and_again_rests_and_asks_no_person_any_more() -> None:
    async with AuthFaults(on={key: [NO, MORE] for key in FIRST}) as server:
        async with host_of(server) as host:
            status = await at_rest(host)
            assert (status.state, "auth.scopes" in (status.fix or "")) == ("needs_auth", True), status
            asked = len(server.at("authorize"))
            assert asked <= 3
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert needed.value.reason == "scope" and "server/discover server" not in str(needed.value)
            assert len(server.at("authorize")) == asked


async def test_a_call_refused_for_scopes_again_and_again_is_a_matter_of_its_own() -> None:
    async with AuthFaults(on={"tools/call": [MORE] * 3 + ["ok"]}) as server:
        async with host_of(server) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert (needed.value.reason, needed.value.sent) == ("scope", False)
            assert len(server.at("authorize")) == 3
            assert (await host.call("s__echo", {"text": "y"})).text == "y"


async def test_calls_that_are_refused_for_scopes_in_vain_do_not_each_ask_a_person() -> None:
    async with AuthFaults(on={"tools/call": MORE}) as server:
        async with host_of(server) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
            for tool in ("echo", "add", "effect", "read"):
                with pytest.raises(NeedsLogin) as needed:
                    await host.call(("s", tool), {"text": "x", "a": 1, "b": 1, "name": "x"})
                assert needed.value.reason == "scope"
            # The login, the scope that was asked for, and twice the same once more.
            assert len(server.at("authorize")) == 4


async def test_a_server_that_takes_none_of_its_tokens_does_not_send_a_person_to_a_browser_for_ever() -> None:
    async with AuthFaults(on=dict.fromkeys(FIRST, NO)) as server:
        async with host_of(server) as host:
            status = await at_rest(host)
            assert (status.state, "auth.resource" in (status.fix or "")) == ("needs_auth", True), status
            asked = len(server.at("authorize"))
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert needed.value.reason == "server"
            assert len(server.at("authorize")) == asked <= 2


async def test_a_call_that_takes_no_token_does_not_end_the_others() -> None:
    async with AuthFaults(on={"tools/call": [NO] * 3 + ["ok"]}) as server:
        async with host_of(server) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert needed.value.reason == "server"
            assert (await host.call("s__echo", {"text": "y"})).text == "y"
            assert host.status()["s"].state == "ready"
