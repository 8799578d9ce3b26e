"""Protected servers under a host: the broker's work as callers see it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    AuthSettings,
    Bounds,
    CredentialSettings,
    HttpServer,
    MooringsError,
    NeedsLogin,
)
from tests.faults.auth_server import AuthFaults, consent

MEMORY = CredentialSettings(store="memory")
BOUNDS = Bounds(connect=10.0, http_close=0.5)


def spec(server: AuthFaults, auth: AuthSettings | bool = True, **fields: Any) -> HttpServer:
    return HttpServer(url=server.url, transport="http", auth=auth, bounds=BOUNDS, **fields)


async def browser(name: str, url: str) -> str:
    return await consent(url)


async def test_a_login_by_a_browser_that_was_given() -> None:
    async with AuthFaults() as server:
        async with AsyncHost(
            {"s": spec(server)}, state_dir=False, credentials=MEMORY, browser=browser
        ) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
            assert len(server.grants("authorization_code")) == 1


async def test_without_a_person_it_says_what_is_needed_and_asks_for_nothing() -> None:
    async with AuthFaults() as server:
        async with AsyncHost({"s": spec(server)}, state_dir=False, credentials=MEMORY) as host:
            await host.wait_ready(10)
            assert await host._servers["s"].changed(asyncio.get_running_loop().time() + 10)
            status = host.status()["s"]
            assert status.state == "needs_auth" and "moor login s;" in (status.fix or "")
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert (needed.value.reason, needed.value.sent, needed.value.server) == ("login", False, "s")
            assert not server.at("register") and not server.grants()


async def test_client_credentials_without_a_person() -> None:
    clients = {
        "machine": {"client_secret": "s3cret-of-machine", "token_endpoint_auth_method": "client_secret_basic"}
    }
    async with AuthFaults(clients=clients) as server:
        auth = AuthSettings(
            client_id="machine",
            client_secret="s3cret-of-machine",
            flow="client_credentials",
            issuer=server.issuer,
        )
        async with AsyncHost({"s": spec(server, auth)}, state_dir=False, credentials=MEMORY) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
            got = await asyncio.gather(*(host.call("s__echo", {"text": str(n)}) for n in range(16)))
            assert [each.text for each in got] == [str(n) for n in range(16)]
            assert len(server.grants("client_credentials")) == 1
            server.expire()
            got = await asyncio.gather(*(host.call("s__echo", {"text": str(n)}) for n in range(16)))
            assert len(server.grants("client_credentials")) == 2


async def test_a_client_that_the_server_forgot_is_found_out_by_starts_alone(tmp_path: Path) -> None:
    """It is believed the second time, and each start is the broker's only user: the login is asked for, not lost."""
    async with AuthFaults() as server:
        async with AsyncHost({"s": spec(server)}, state_dir=tmp_path, browser=browser) as host:
            assert (await host.wait_ready(10)).all_ready, host.status()["s"].last_error
        server.forget_clients()
        server.expire()
        async with AsyncHost({"s": spec(server)}, state_dir=tmp_path) as host:
            async with asyncio.timeout(10):
                while host.status()["s"].state != "needs_auth":
                    with pytest.raises(MooringsError):
                        await host.call("s__echo", {"text": "x"})
                    await asyncio.sleep(0.05)
            assert len(server.grants("refresh_token")) == 2


class Person:
    """Somebody at a browser, who takes their time."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_it = asyncio.Event()
        self.done = asyncio.Event()

    async def __call__(self, name: str, url: str) -> str:
        self.asked += 1
        self.at_it.set()
        await self.done.wait()
        return await consent(url)


async def until_state(host: AsyncHost, name: str, state: str) -> None:
    server = host._servers[name]
    until = asyncio.get_running_loop().time() + 20
    while server.state != state:
        assert await server.changed(until), server.state


@pytest.mark.parametrize("era", ["modern", "handshake"])
async def test_a_login_takes_longer_than_the_probe_and_the_start(era: str) -> None:
    """The person is asked once; the server is ready once they are done, and its era is not taken for another."""
    person = Person()
    bounds = Bounds(connect=1.0, probe=0.2, http_close=0.5)
    async with AuthFaults(era=era) as server:
        spec = HttpServer(url=server.url, transport="http", bounds=bounds)
        async with AsyncHost({"s": spec}, state_dir=False, credentials=MEMORY, browser=person) as host:
            await asyncio.wait_for(person.at_it.wait(), 20)
            await until_state(host, "s", "needs_auth")
            with pytest.raises(NeedsLogin, match="asked to log in"):
                await host.call("s__echo", {"text": "x"})
            person.done.set()
            await until_state(host, "s", "ready")
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
            assert host.status()["s"].era == era
    assert person.asked == 1 and len(server.grants("authorization_code")) == 1


async def test_a_call_that_waits_for_a_login_stands_still() -> None:
    person = Person()
    async with AuthFaults(open=True, needs={"echo": "more"}) as server:
        async with AsyncHost(
            {"s": spec(server)}, state_dir=False, credentials=MEMORY, browser=person
        ) as host:
            assert (await host.wait_ready(20)).all_ready
            server.script["open"] = False
            call = asyncio.create_task(host.call("s__echo", {"text": "x"}, timeout=2.0))
            await asyncio.wait_for(person.at_it.wait(), 20)
            done, _ = await asyncio.wait({call}, timeout=3.0)  # more than its limit
            assert not done
            person.done.set()
            assert (await asyncio.wait_for(call, 20)).text == "x"


async def test_a_host_that_closes_gives_its_login_up() -> None:
    person = Person()
    async with AuthFaults() as server:
        async with AsyncHost({"s": spec(server)}, state_dir=False, credentials=MEMORY, browser=person):
            await asyncio.wait_for(person.at_it.wait(), 20)
        assert not server.grants()


async def test_a_login_that_failed_says_how_another_is_made() -> None:
    """Where somebody can be asked, too: the next use does not ask them again."""

    async def astray(name: str, url: str) -> str:
        return "what somebody pasted"

    async with AuthFaults() as server:
        async with AsyncHost(
            {"s": spec(server)}, state_dir=False, credentials=MEMORY, browser=astray
        ) as host:
            await host.wait_ready(10)
            with pytest.raises(NeedsLogin, match="is not the end of this login") as needed:
                await host.call("s__echo", {"text": "x"})
            assert needed.value.reason == "login"
            fix = needed.value.fix or ""
            assert "moor login s" in fix


@pytest.mark.parametrize(
    ("fields", "said", "fix"),
    [
        ({"client_secret": "another-secret"}, "invalid_client", "auth.client_id, its secret or key"),
        ({"private_key_file": "/nonexistent/key.pem"}, "private_key_file (/nonexistent/key.pem)", "read it"),
    ],
)
async def test_a_client_that_cannot_work_is_told_what_to_look_at(
    fields: dict[str, Any], said: str, fix: str
) -> None:
    clients = {
        "machine": {"client_secret": "s3cret-of-machine", "token_endpoint_auth_method": "client_secret_basic"}
    }
    async with AuthFaults(clients=clients) as server:
        auth = AuthSettings(client_id="machine", flow="client_credentials", issuer=server.issuer, **fields)
        async with AsyncHost({"s": spec(server, auth)}, state_dir=False, credentials=MEMORY) as host:
            await host.wait_ready(10)
            with pytest.raises(NeedsLogin) as needed:
                await host.call("s__echo", {"text": "x"})
            assert needed.value.reason == "client" and said in str(needed.value)
            assert fix in (needed.value.fix or "")
