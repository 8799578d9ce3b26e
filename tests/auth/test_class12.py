"""Class 12 of the field faults: logins, their callbacks, people who are not there, and several processes. Each case by
its id; what of it takes a program (``moor login``) is in ``tests/cli/test_login.py``.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from moorings import (
    AsyncHost,
    AuthSettings,
    Bounds,
    LoginFailed,
    LoginPrompt,
    NeedsLogin,
    StartError,
)
from moorings.auth.callback import Listeners
from moorings.auth.grants import device_wait
from tests.auth.host_kit import away, by_then, files, holding, logged_in, outcome, spec, stored
from tests.auth.login_kit import LOGGED_IN, Someone, browse, follow, get, is_free, log_in, never, paste
from tests.faults.auth_server import AuthFaults, consent
from tests.host.kit import Events
from tests.ports import free_port


def over(server: AuthFaults) -> None:
    """Every login at a server is over."""
    server.expire()
    for each in server.families:
        each.revoked = True


async def test_f12_1_logins_at_once_are_one(tmp_path: Path) -> None:
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


async def test_f12_1_refusals_at_once_are_one_login(tmp_path: Path) -> None:
    """A 401 on a POST and on the GET stream, and a second connect while a person is asked."""
    go_on = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        await go_on.wait()
        return await consent(prompt.url)

    someone = Someone(act)
    async with AuthFaults() as server:
        await logged_in(server, tmp_path)
        async with holding({"s": spec(server)}, files(tmp_path), on_login_url=someone) as (host, _):
            await server.seen("GET")
            server.requests.clear()
            # The stream is opened anew with a token that is good when it is sent.
            server.set(on={"GET": "hold"})
            server.end_listens()
            await server.until(lambda _: bool(server.at("GET")), 20)
            over(server)
            calls = [asyncio.ensure_future(outcome(host)) for _ in range(2)]
            await server.until(lambda _: [seen.status for seen in server.of("tools/call")] == [401, 401])
            server.set(on={"GET": "ok"})
            server.release("GET")
            await server.until(lambda _: [seen.status for seen in server.at("GET")] == [401])
            await someone.shown.wait()
            async with AsyncHost(
                {"s": spec(server)}, state_dir=False, credentials=files(tmp_path), on_login_url=someone
            ) as second:
                await by_then(lambda: second.status()["s"].state == "connecting")
                go_on.set()
                assert (await second.wait_ready(20)).all_ready
                assert await outcome(second) == "x"
            assert [await each for each in calls] == ["x", "x"]
            await server.until(lambda _: server.at("GET")[-1].status == 200)
        assert len(someone.prompts) == 1
        assert len(server.at("authorize")) == len(server.grants("authorization_code")) == 1


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


async def test_f12_3_a_refusal_is_shown_and_the_old_login_stays(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone())
        server.set(deny="access_denied")
        someone = Someone()
        with pytest.raises(LoginFailed, match="access_denied") as failed:
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "denied"
        assert "access_denied" in await someone.page() and "did not succeed" in await someone.page()
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
    port = free_port()
    async with AuthFaults() as server:
        uri = f"http://localhost:{port}/Way/back"
        someone = Someone()
        await log_in(spec(server, AuthSettings(redirect_uri=uri)), tmp_path, on_login_url=someone)
        assert someone.prompts[0].redirect_uri == uri
        assert dict(parse_qsl(urlsplit(someone.prompts[0].url).query))["redirect_uri"] == uri


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.1"])
async def test_f12_4_the_host_can_be_set_and_answers_by_both_families(host: str, tmp_path: Path) -> None:
    async def act(prompt: LoginPrompt) -> str | None:
        parts = urlsplit(prompt.redirect_uri)
        assert parts.hostname == host
        for way in ("127.0.0.1", "[::1]"):
            status, _, _ = await get(f"http://{way}:{parts.port}/favicon.ico")
            assert status == 404
        someone.open(browse(prompt.url))
        return None

    async with AuthFaults() as server:
        someone = Someone(act)
        settings = AuthSettings(redirect_host=host)
        assert (await log_in(spec(server, settings), tmp_path, on_login_url=someone)).fresh
        assert LOGGED_IN in await someone.page()


AWAY = """
from moorings import login
from tests.auth.login_kit import browse
waiting = Path(argv[1]) / f"waiting-{argv[2]}"

async def shows(prompt):
    print("shown", flush=True)
    await by_then(lambda: len(list(waiting.parent.glob("waiting-*"))) == 2, 40)
    await browse(prompt.url)

server = HttpServer(url=argv[0], transport="http", auth=True)
result = await login(server, name="s", credentials=files(waiting.parent), state_dir=False, on_login_url=shows,
                     on_waiting=lambda who: waiting.touch())
print("client", result.client_id)
"""


async def test_f12_5_three_processes_show_one_url(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        said = await asyncio.gather(*(away(AWAY, server.url, tmp_path, number) for number in range(3)))
        assert sorted(len(each) for each in said) == [1, 1, 2]
        assert len({each[-1] for each in said}) == 1
        assert len(server.at("authorize")) == len(server.grants("authorization_code")) == 1
        assert len(await stored(tmp_path)) == 1


@pytest.mark.parametrize("when", ["start", "stream", "call"])
async def test_f12_6_where_nobody_is_asked_nothing_is_opened_or_bound(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []

    def touch(what: str) -> Any:
        def told(*args: Any, **more: Any) -> None:
            touched.append(what)
            raise OSError(f"{what}: not here")

        return told

    async with AuthFaults() as server:
        await logged_in(server, tmp_path)
        server.requests.clear()
        for what in ("bind", "listen"):
            monkeypatch.setattr(socket.socket, what, touch(what))
        monkeypatch.setattr(Listeners, "seat", touch("seat"))
        monkeypatch.setattr(webbrowser, "open", touch("browser"))
        monkeypatch.setattr(subprocess, "Popen", touch("program"))
        if when == "start":
            over(server)
        async with holding({"s": spec(server)}, files(tmp_path), ready=when != "start") as (host, _):
            if when == "start":
                await by_then(lambda: host.status()["s"].state == "needs_auth")
                error = host.status()["s"].last_error
                assert isinstance(error, StartError) and error.needs == "revoked"
            else:
                await server.seen("GET")
                over(server)
            if when == "stream":
                server.end_listens()
                await server.until(lambda _: server.at("GET")[-1].status == 401)
            failed = await outcome(host)
            assert isinstance(failed, NeedsLogin), failed
            assert failed.server == "s" and failed.reason == "revoked" and "moor login s" in str(failed)
            await by_then(lambda: host.status()["s"].state == "needs_auth")
        assert not touched and not server.at("authorize") and not server.at("register")


async def test_f12_7_a_person_takes_longer_than_a_start(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        await go_on.wait()
        return await consent(prompt.url)

    someone = Someone(act)
    quick = Bounds(connect=2.0, probe=2.0, call=30.0, http_close=0.5, cooldown=0.0)
    async with AuthFaults() as server, AuthFaults(open=True) as other:
        events = Events()
        async with AsyncHost(
            {"s": spec(server, bounds=quick), "other": spec(other)},
            state_dir=False,
            credentials=files(tmp_path),
            on_login_url=someone,
            on_event=events,
        ) as host:
            async with asyncio.timeout(10):
                await someone.shown.wait()
            # The other one waits for nobody.
            await events.seen("other", "ready")
            assert await outcome(host, "other__echo") == "x"
            # The start is over; the login is not.
            await events.seen("s", "needs_auth")
            error = host.status()["s"].last_error
            assert isinstance(error, StartError) and error.needs == "login"
            assert isinstance(await outcome(host), NeedsLogin) and not someone.cancelled
            go_on.set()
            await events.seen("s", "ready")
            assert await outcome(host) == "x"
        assert len(someone.prompts) == 1 == len(server.grants("authorization_code"))


async def test_f12_7_a_call_does_not_pay_for_the_time_of_a_person(tmp_path: Path) -> None:
    async def act(prompt: LoginPrompt) -> str | None:
        await asyncio.sleep(3 * limit)
        return await consent(prompt.url)

    someone, limit = Someone(act), 0.7
    async with AuthFaults() as server:
        await logged_in(server, tmp_path)
        async with holding({"s": spec(server)}, files(tmp_path), on_login_url=someone) as (host, _):
            over(server)
            assert await outcome(host, timeout=limit) == "x"
        assert len(someone.prompts) == 1


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


async def test_f12_9_codes_that_are_swapped_between_two_pastes(tmp_path: Path) -> None:
    """Each has the answer of the other first, by hand: the state tells."""
    answers: dict[str, str] = {}
    there = asyncio.Event()

    async def act(prompt: LoginPrompt) -> str | None:
        if prompt.problem:
            assert "state" in prompt.problem
            return answers[prompt.issuer]
        answers[prompt.issuer] = await consent(prompt.url)
        if len(answers) == 2:
            there.set()
        await there.wait()
        return next(each for issuer, each in answers.items() if issuer != prompt.issuer)

    async with AuthFaults() as one, AuthFaults() as two:
        results = await asyncio.gather(
            *(log_in(each, tmp_path, on_login_url=Someone(act)) for each in (one, two))
        )
        assert {each.issuer for each in results} == {one.issuer, two.issuer}
        assert all(len(each.grants("authorization_code")) == 1 for each in (one, two))


async def test_f12_10_a_server_that_answers_without_a_login_is_no_proof(tmp_path: Path) -> None:
    someone = Someone()
    async with AuthFaults(open=True) as server:
        with pytest.raises(LoginFailed, match="without a login") as failed:
            await log_in(server, tmp_path, on_login_url=someone)
        assert failed.value.reason == "not_wanted" and not someone.prompts
        with pytest.raises(LoginFailed, match="not proven") as failed:
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "unproven" and len(someone.prompts) == 1


async def test_f12_11_a_wrong_issuer_ends_it_before_the_code_goes_anywhere(tmp_path: Path) -> None:
    async with AuthFaults(iss="https://evil.example") as server:
        someone = Someone()
        with pytest.raises(LoginFailed, match="is not from"):
            await log_in(server, tmp_path, on_login_url=someone)
        assert not server.grants("authorization_code")
        assert "evil" not in await someone.page()


async def test_f12_11_an_issuer_that_was_promised_and_is_missing(tmp_path: Path) -> None:
    """Whether it brings a code or an error, whose text is nobody's then."""
    async with AuthFaults(iss=None) as server:
        for deny in (None, "access_denied"):
            server.set(deny=deny)
            someone = Someone()
            with pytest.raises(LoginFailed) as failed:
                await log_in(server, tmp_path, on_login_url=someone)
            assert "access_denied" not in str(failed.value) + await someone.page()
            assert "did not succeed" in await someone.page()
        assert not server.grants()


async def test_f12_12_a_code_for_elsewhere(tmp_path: Path) -> None:
    async def never(prompt: LoginPrompt) -> str | None:
        await asyncio.Event().wait()
        return None

    async with AuthFaults(metadata={"device_authorization_endpoint": "{origin}/device"}, pending=1) as server:
        someone = Someone(never)
        result = await log_in(server, tmp_path, on_login_url=someone, flow="device")
        assert result.fresh and someone.prompts[0].user_code and not someone.prompts[0].redirect_uri


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those between polls, which pass at once."""
    taken: list[float] = []

    async def pause(seconds: float) -> None:
        taken.append(seconds)
        await asyncio.sleep(0.01)

    monkeypatch.setitem(device_wait.__kwdefaults__, "pause", pause)
    return taken


async def test_f12_12_polls_slow_down_and_stay_slow(tmp_path: Path, pauses: list[float]) -> None:
    turns = [f"refuse:{word}" for word in ("authorization_pending", "slow_down", "authorization_pending")]
    turns += ["refuse:slow_down", "refuse:authorization_pending", "ok"]
    async with AuthFaults(on={"token:device_code": turns}, pending=0) as server:
        someone = Someone(never)
        assert (await log_in(server, tmp_path, on_login_url=someone, flow="device")).fresh
        assert pauses == [1.0, 1.0, 6.0, 6.0, 11.0, 11.0]
        assert someone.cancelled == 1 and len(someone.prompts) == 1
        async with holding({"s": spec(server)}, files(tmp_path)) as (host, _):
            assert await outcome(host) == "x"


@pytest.mark.parametrize(
    ("code", "reason"),
    [("expired_token", "timeout"), ("access_denied", "denied"), ("invalid_grant", "client")],
)
async def test_f12_12_a_code_that_comes_to_nothing(
    code: str, reason: str, tmp_path: Path, pauses: list[float]
) -> None:
    turns = ["refuse:authorization_pending", f"refuse:{code}"]
    async with AuthFaults(on={"token:device_code": turns}) as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        someone = Someone(never)
        with pytest.raises(LoginFailed, match=code) as failed:
            await log_in(server, tmp_path, on_login_url=someone, flow="device", force=True)
        assert failed.value.reason == reason
        assert someone.cancelled == 1 and pauses == [1.0, 1.0]
        assert not (await log_in(server, tmp_path)).fresh
