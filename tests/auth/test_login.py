"""A login that a person asked for: ``moorings.login``, and its attempt. F12.1, F12.3 to F12.11 of the field faults."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from moorings import AuthSettings, LoginFailed, LoginPrompt, NeedsLogin, logout, refresh_login
from moorings.auth.login import TABLE
from tests.auth.host_kit import files, holding, spec
from tests.auth.login_kit import Someone, follow, get, is_free, log_in
from tests.faults.auth_server import AuthFaults, consent

LOGGED_IN = "<h1>logged in to"


def state_of(prompt: LoginPrompt) -> str:
    return dict(parse_qsl(urlsplit(prompt.url).query))["state"]


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


async def test_without_a_person_it_says_so_and_asks_no_server(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        with pytest.raises(NeedsLogin, match="moor login s"):
            await log_in(server, tmp_path)
        assert not server.requests


async def test_f12_10_a_server_that_answers_without_a_login_is_no_proof(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults(open=True) as server:
        with pytest.raises(LoginFailed, match="without a login") as failed:
            await log_in(server, tmp_path, on_login_url=someone)
        assert failed.value.reason == "not_wanted" and not someone.prompts
        with pytest.raises(LoginFailed, match="not proven") as failed:
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "unproven" and len(someone.prompts) == 1


async def test_f12_3_a_refusal_is_shown_and_the_old_login_stays(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        server.set(deny="access_denied")
        someone = Someone()
        with pytest.raises(LoginFailed, match="access_denied") as failed:
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "denied"
        assert "access_denied" in await someone.page() and "not logged in" in await someone.page()
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"


async def test_f12_3_an_exchange_that_fails_is_shown_and_the_old_login_stays(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        server.set(on={"token:authorization_code": "refuse:invalid_grant"})
        someone = Someone()
        with pytest.raises(LoginFailed, match="invalid_grant"):
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert "invalid_grant" in await someone.page()
        server.set(on={})
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"


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


async def test_f12_8_a_paste_is_as_good_and_a_wrong_one_is_asked_again(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        pastes: list[str] = []

        async def paste(prompt: LoginPrompt) -> str | None:
            if not pastes:
                pastes.append("http://127.0.0.1/callback?code=x&state=of-another-login")
            else:
                pastes.append(await consent(prompt.url))
            return pastes[-1]

        someone = Someone(paste)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        first, second = someone.prompts
        assert not first.problem and "state" in second.problem
        assert first.url == second.url
        assert is_free(first.redirect_uri)


@pytest.mark.parametrize("what", ["query", "code"])
async def test_f12_8_a_query_or_a_code_will_do(what: str, tmp_path: Path) -> None:
    async def paste(prompt: LoginPrompt) -> str | None:
        query = urlsplit(await consent(prompt.url)).query
        return query if what == "query" else dict(parse_qsl(query))["code"] + "\n"

    # A server that promises to say who it is wants the whole of it.
    script = {} if what == "query" else {"metadata": {"authorization_response_iss_parameter_supported": None}}
    async with AuthFaults(**script) as server:
        assert (await log_in(server, tmp_path, on_login_url=Someone(paste))).fresh


async def test_f12_8_only_an_external_redirect_is_allowed(tmp_path: Path) -> None:
    async def paste(prompt: LoginPrompt) -> str | None:
        assert not prompt.listening and prompt.redirect_uri == "https://me.example/back"
        return await consent(prompt.url)

    async with AuthFaults() as server:
        settings = AuthSettings(redirect_uri="https://me.example/back")
        assert (await log_in(spec(server, settings), tmp_path, on_login_url=Someone(paste))).fresh


async def test_f12_4_a_port_that_is_set_and_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with AuthFaults() as server:
            for settings in (
                AuthSettings(redirect_port=port),
                AuthSettings(redirect_uri=f"http://127.0.0.1:{port}/back"),
            ):
                with pytest.raises(LoginFailed, match=str(port)) as failed:
                    await log_in(spec(server, settings), tmp_path, on_login_url=Someone())
                assert failed.value.reason == "port"


async def test_f12_4_a_port_of_ours_that_is_taken_is_replaced(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        someone = Someone()
        await log_in(server, tmp_path, on_login_url=someone)
        first = urlsplit(someone.prompts[0].redirect_uri)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", first.port))
            taken.listen()
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert urlsplit(someone.prompts[1].redirect_uri).port != first.port
        # The first one is free again, and used again.
        await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert someone.prompts[2].redirect_uri == someone.prompts[0].redirect_uri
        assert len(server.at("register")) == 2


async def test_f12_4_a_redirect_uri_is_used_letter_by_letter(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with AuthFaults() as server:
        uri = f"http://localhost:{port}/Way/back"
        someone = Someone()
        await log_in(spec(server, AuthSettings(redirect_uri=uri)), tmp_path, on_login_url=someone)
        assert someone.prompts[0].redirect_uri == uri
        assert dict(parse_qsl(urlsplit(someone.prompts[0].url).query))["redirect_uri"] == uri


async def test_f12_2_strays_disturb_nothing(tmp_path: Path) -> None:
    async def act(prompt: LoginPrompt) -> str | None:
        back = prompt.redirect_uri
        origin = back.rsplit("/", 2)[0]
        for url in (
            f"{origin}/favicon.ico",
            f"{origin}/",
            f"{back}?code=x&state=wrong",
            f"{back}?error=access_denied&state=wrong",
            f"{back}?code=x",
            back,
        ):
            status, _, body = await get(url)
            assert status in (400, 404) and LOGGED_IN not in body.lower()
        answer = await consent(prompt.url)
        assert (await get(answer, method="HEAD"))[0] == 405
        assert (await get(answer, "Sec-Purpose: prefetch\r\n"))[0] == 503
        someone.open(follow(answer))
        return None

    async with AuthFaults() as server:
        someone = Someone(act)
        assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert LOGGED_IN in await someone.page()


async def test_f12_11_a_wrong_issuer_ends_it_before_the_code_goes_anywhere(tmp_path: Path) -> None:
    async with AuthFaults(iss="https://evil.example") as server:
        someone = Someone()
        with pytest.raises(LoginFailed, match="is not from"):
            await log_in(server, tmp_path, on_login_url=someone)
        assert not server.grants("authorization_code")
        assert "evil" not in await someone.page()


async def test_f12_1_and_5_logins_at_once_are_one(tmp_path: Path) -> None:
    waited: list[str] = []
    async with AuthFaults() as server:
        someone = Someone()
        results = await asyncio.gather(
            *(log_in(server, tmp_path, on_login_url=someone, on_waiting=waited.append) for _ in range(3))
        )
        assert len(someone.prompts) == 1
        assert len(server.grants("authorization_code")) == 1
        assert len({each.client_id for each in results}) == 1
        assert len(waited) == 2


async def test_f12_9_callbacks_that_are_swapped_are_refused_and_both_finish(tmp_path: Path) -> None:
    both: dict[str, LoginPrompt] = {}
    there = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        both[prompt.issuer] = prompt
        if len(both) == 2:
            there.set()
        await there.wait()
        mine = await consent(prompt.url)
        other = next(each for issuer, each in both.items() if issuer != prompt.issuer)
        status, _, _ = await get(f"{other.redirect_uri}?{urlsplit(mine).query}")
        assert status in (400, 404)
        people[prompt.issuer].open(follow(mine))
        return None

    async with AuthFaults() as one, AuthFaults() as two:
        people = {each.issuer: Someone(act) for each in (one, two)}
        results = await asyncio.gather(
            *(log_in(each, tmp_path, on_login_url=people[each.issuer]) for each in (one, two))
        )
        for each in people.values():
            assert LOGGED_IN in await each.page()
        assert {each.issuer for each in results} == {one.issuer, two.issuer}


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


async def test_f12_12_device_flow(tmp_path: Path) -> None:
    async def never(prompt: LoginPrompt) -> str | None:
        await asyncio.Event().wait()
        return None

    async with AuthFaults(metadata={"device_authorization_endpoint": "{origin}/device"}, pending=1) as server:
        someone = Someone(never)
        result = await log_in(server, tmp_path, on_login_url=someone, flow="device")
        assert result.fresh and someone.prompts[0].user_code and not someone.prompts[0].redirect_uri


async def test_a_host_shows_a_login_by_on_login_url(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults() as server:
        async with holding({"s": spec(server)}, files(tmp_path), on_login_url=someone) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert someone.prompts[0].server == "s" and LOGGED_IN in await someone.page()


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
