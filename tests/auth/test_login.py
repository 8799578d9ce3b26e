"""A login that a person asked for: ``moorings.login``, and its attempt. Class 12 has a file of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec
import pytest

from moorings import (
    AuthSettings,
    LoginFailed,
    LoginPrompt,
    MisuseError,
    NeedsLogin,
    StdioServer,
    login,
    logout,
    refresh_login,
)
from moorings.auth.login import TABLE
from tests.auth.host_kit import files, holding, run_out, spec
from tests.auth.login_kit import LOGGED_IN, Someone, is_free, log_in, nobody_else, paste, state_of
from tests.faults.auth_server import AuthFaults, consent


def test_every_state_of_a_login_has_its_line() -> None:
    for state, after in TABLE.items():
        assert after <= set(TABLE), state


async def test_a_person_logs_in_and_the_server_takes_it(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults() as server:
        result = await log_in(server, tmp_path, on_login_url=someone)
        assert (result.server, result.issuer, result.fresh, result.refreshable) == (
            "s",
            server.issuer,
            True,
            True,
        )
        assert len(someone.prompts) == 1 and someone.prompts[0].listening
        assert LOGGED_IN in await someone.page()
        assert is_free(someone.prompts[0].redirect_uri)
        # A host finds it.
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert len(server.grants("authorization_code")) == 1


async def test_the_second_time_nothing_is_done_and_by_force_it_is(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=someone)
        again = await log_in(server, tmp_path, on_login_url=someone)
        assert not again.fresh and len(someone.prompts) == 1
        forced = await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert forced.fresh and len(someone.prompts) == 2
        # One registration, with its port and its path.
        assert len(server.at("register")) == 1
        assert someone.prompts[0].redirect_uri == someone.prompts[1].redirect_uri
        assert state_of(someone.prompts[0]) != state_of(someone.prompts[1])


async def test_without_a_person_it_says_so_and_asks_no_authorization_server(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        with pytest.raises(NeedsLogin, match="moor login s"):
            await log_in(server, tmp_path, force=True)
        assert not server.requests
        with pytest.raises(NeedsLogin, match="moor login s"):
            await log_in(server, tmp_path)
        assert len(server.requests) == 1  # whether it wants a login at all


async def test_without_a_person_a_server_that_wants_no_login_or_is_away_is_told_as_that(
    tmp_path: Path,
) -> None:
    async with AuthFaults(open=True) as server:
        with pytest.raises(LoginFailed) as failed:
            await log_in(server, tmp_path)
        assert failed.value.reason == "not_wanted"
        away = spec(server)
    with pytest.raises(LoginFailed, match="can be reached") as failed:
        await login(away, state_dir=False, credentials=files(tmp_path))
    assert failed.value.reason == "unreachable"


async def test_f11_6_a_person_is_not_sent_to_a_server_as_a_client_that_it_forgot(tmp_path: Path) -> None:
    """Its pages would say so to them, and nobody come back: it is asked (RFC 7592) ahead of that."""
    async with AuthFaults() as server:
        first = await log_in(server, tmp_path, on_login_url=Someone())
        server.forget_clients()
        again = await log_in(server, tmp_path, on_login_url=Someone(), force=True)
        assert again.client_id != first.client_id and len(server.at("register")) == 2
        third = await log_in(server, tmp_path, on_login_url=Someone(), force=True)
        assert third.client_id == again.client_id
        server.set(on={"client": "status:500"})
        fourth = await log_in(server, tmp_path, on_login_url=Someone(), force=True)
        assert fourth.client_id == again.client_id and len(server.at("register")) == 2


async def test_what_is_no_http_server_is_told_as_that() -> None:
    with pytest.raises(MisuseError, match="StdioServer"):
        await login(StdioServer(command="true"))  # type: ignore[arg-type]


async def test_tokens_that_the_server_does_not_take_replace_nothing(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        server.set(token_fields={"access_token": "of-another-world"})
        someone = Someone()
        with pytest.raises(LoginFailed, match="does not take") as failed:
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "not_taken"
        assert "does not take" in await someone.page()
        server.set(token_fields={})
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"


async def test_a_cancelled_login_changes_nothing_and_gives_its_port_back(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())

        async def forever(prompt: LoginPrompt) -> str | None:
            await asyncio.Event().wait()
            return None

        someone = Someone(forever)
        task = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=someone, force=True))
        await someone.shown.wait()
        assert not is_free(someone.prompts[0].redirect_uri)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert someone.cancelled == 1
        assert is_free(someone.prompts[0].redirect_uri)
        assert (await log_in(server, tmp_path, on_login_url=Someone())).fresh is False


async def test_nobody_comes_in_time(tmp_path: Path) -> None:
    async def never(prompt: LoginPrompt) -> str | None:
        return None

    async with AuthFaults() as server:
        someone = Someone(never)
        with pytest.raises(LoginFailed, match=r"within 0\.5 s") as failed:
            await log_in(spec(server, AuthSettings(timeout=0.5)), tmp_path, on_login_url=someone)
        assert failed.value.reason == "timeout"
        assert is_free(someone.prompts[0].redirect_uri)


async def test_a_host_shows_a_login_by_on_login_url(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults() as server:
        async with holding({"s": spec(server)}, files(tmp_path), on_login_url=someone) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert someone.prompts[0].server == "s" and LOGGED_IN in await someone.page()


async def test_a_login_that_is_over_is_replaced_and_that_is_said(tmp_path: Path) -> None:
    """Found at once that it is over: the person is asked once, and the result says that this was done now."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        server.expire()
        for each in server.families:
            each.revoked = True
        await run_out(tmp_path)
        with pytest.raises(NeedsLogin):
            await log_in(server, tmp_path)
        someone = Someone(paste)
        result = await log_in(server, tmp_path, on_login_url=someone, on_waiting=nobody_else)
        assert result.fresh and len(someone.prompts) == 1
        assert not (await log_in(server, tmp_path)).fresh


async def test_one_that_is_renewed_needs_nobody(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        server.expire()
        await run_out(tmp_path)
        someone = Someone(paste)
        assert not (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert not someone.prompts and len(server.grants("refresh_token")) == 1


async def test_who_is_waited_for_is_told_on_the_loop_of_the_caller(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []

    def on_waiting(who: str) -> None:
        told.append((threading.get_ident(), who))
        go_on.set()

    async def act(prompt: LoginPrompt) -> str | None:
        await go_on.wait()
        return await consent(prompt.url)

    go_on = asyncio.Event()
    async with AuthFaults() as server:
        results = await asyncio.gather(
            *(log_in(server, tmp_path, on_login_url=Someone(act), on_waiting=on_waiting) for _ in range(2))
        )
        assert all(each.fresh for each in results)
        assert told == [(threading.get_ident(), told[0][1])] and str(os.getpid()) in told[0][1]


async def test_what_is_told_of_the_wait_fails_and_the_login_goes_on(tmp_path: Path) -> None:
    def on_waiting(who: str) -> None:
        go_on.set()
        raise RuntimeError("it cannot be told")

    async def act(prompt: LoginPrompt) -> str | None:
        await go_on.wait()
        return await consent(prompt.url)

    go_on, failed = asyncio.Event(), list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with AuthFaults() as server:
        results = await asyncio.gather(
            *(log_in(server, tmp_path, on_login_url=Someone(act), on_waiting=on_waiting) for _ in range(2))
        )
    assert all(each.fresh for each in results) and len(failed) == 1


async def test_servers_whose_long_urls_begin_alike_have_each_its_own_login(tmp_path: Path) -> None:
    """What a store says of its entries is cut; what it holds is not."""
    async with AuthFaults(path=f"/{'x' * 400}/one") as server:
        other = msgspec.structs.replace(spec(server), url=server.url.removesuffix("one") + "two")
        assert (await log_in(server, tmp_path, on_login_url=Someone())).fresh
        assert not (await log_in(server, tmp_path, on_login_url=Someone())).fresh
        assert not (await logout(other, credentials=files(tmp_path), state_dir=False)).logins
        assert not (await log_in(server, tmp_path, on_login_url=Someone())).fresh
        assert len((await logout(spec(server), credentials=files(tmp_path), state_dir=False)).logins) == 1
        assert (await log_in(server, tmp_path, on_login_url=Someone())).fresh


async def test_a_login_after_a_logout_counts_where_the_old_one_is_still_remembered(tmp_path: Path) -> None:
    """Seen as one change: what was renewed often before must not pass for the newer one."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            for _ in range(3):
                await refresh_login(spec(server), credentials=files(tmp_path), state_dir=False)
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
            await logout(spec(server), credentials=files(tmp_path), state_dir=False)
            await log_in(server, tmp_path, on_login_url=Someone())
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert len(server.grants("authorization_code")) == 2


async def test_a_client_of_its_own_logs_in_without_anybody(tmp_path: Path) -> None:
    clients = {
        "machine": {"client_secret": "s3cret-of-machine", "token_endpoint_auth_method": "client_secret_basic"}
    }
    async with AuthFaults(clients=clients) as server:
        settings = AuthSettings(
            client_id="machine", client_secret="s3cret-of-machine", flow="client_credentials"
        )
        result = await log_in(spec(server, settings), tmp_path)
        assert result.fresh and result.client_id == "machine"
        assert not (await log_in(spec(server, settings), tmp_path)).fresh
        assert len(server.grants("client_credentials")) == 1


async def test_a_host_shows_the_code_of_a_device(tmp_path: Path) -> None:
    async def never(prompt: LoginPrompt) -> str | None:
        await asyncio.Event().wait()
        return None

    someone = Someone(never)
    async with AuthFaults(metadata={"device_authorization_endpoint": "{origin}/device"}) as server:
        settings = AuthSettings(flow="device")
        async with holding({"s": spec(server, settings)}, files(tmp_path), on_login_url=someone) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        (prompt,) = someone.prompts
        assert prompt.user_code and not prompt.listening
        assert someone.cancelled == 1


@pytest.mark.parametrize("post", ["refused like all", "no POST there"])
async def test_a_server_of_the_oldest_kind_is_asked_for_its_stream(post: str, tmp_path: Path) -> None:
    async with AuthFaults(era="sse") as server:
        if post != "refused like all":
            server.set(on={"server/discover": "status:405"})
        result = await log_in(spec(server, transport="sse"), tmp_path, on_login_url=Someone())
        assert result.fresh
        assert not (await log_in(spec(server, transport="sse"), tmp_path, on_login_url=Someone())).fresh


async def test_a_login_that_waited_for_one_that_came_to_nothing_has_its_turn(tmp_path: Path) -> None:
    async def forever(prompt: LoginPrompt) -> str | None:
        await asyncio.Event().wait()
        return None

    async with AuthFaults() as server:
        first, second, waits = Someone(forever), Someone(), asyncio.Event()
        one = asyncio.ensure_future(log_in(server, tmp_path, on_login_url=first))
        await first.shown.wait()
        two = asyncio.ensure_future(
            log_in(server, tmp_path, on_login_url=second, on_waiting=lambda _: waits.set())
        )
        await waits.wait()
        assert not second.prompts
        one.cancel()
        assert (await two).fresh
        assert len(second.prompts) == 1
        with pytest.raises(asyncio.CancelledError):
            await one
