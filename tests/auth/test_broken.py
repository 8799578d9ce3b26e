"""What was found by breaking it: answers that are nearly tokens, first logins that fail, Ctrl-C in any step."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from moorings import AuthSettings
from moorings.adapters.httpx_auth import MooringsAuth
from moorings.auth.service import MOST_LEFT
from tests.adapters.httpx_kit import made, request
from tests.auth.host_kit import Person, brokers, by_then, files, holding, logged_in, outcome, run_out, spec
from tests.faults.auth_server import AuthFaults, in_thread
from tests.strike import struck_at

SECRETS = {"access_token": "precious-access", "refresh_token": "precious-refresh", "token_type": "Bearer"}
WHOLE = json.dumps(SECRETS)
NEARLY = {
    "cut off": f"json_status:200:{WHOLE[:-3]}",
    "a bad escape": "json_status:200:" + WHOLE[:-1] + ', "scope": "\\ud800"}',
    "a list": f"json_status:200:[{WHOLE}]",
    "a comma": f"json_status:200:{WHOLE[:-1]},}}",
    "twice": f"json_status:200:{WHOLE}{WHOLE}",
    "a form as JSON": "json_status:200:precious-access&precious-refresh",
    "a failure": f"json_status:500:{WHOLE}",
    "a refusal": f"json_status:400:{WHOLE}",
    "text": f"status:200:{WHOLE}",
    "a page": f"status:200:<html>{WHOLE}",
}


@pytest.mark.parametrize("how", NEARLY)
@pytest.mark.parametrize("grant", ["authorization_code", "refresh_token"])
async def test_tokens_in_an_answer_that_cannot_be_read_are_shown_nowhere(
    grant: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with AuthFaults() as server:
        if grant == "refresh_token":
            await logged_in(server, tmp_path)
            await run_out(tmp_path)
        server.script["on"][f"token:{grant}"] = NEARLY[how]
        async with holding({"s": spec(server)}, files(tmp_path), browser=Person(), ready=False) as (host, _):
            shown = str(await outcome(host)) + str(host.status())
        assert server.grants(grant)
        assert "precious" not in shown and "precious" not in caplog.text


@pytest.mark.parametrize("failure", ["later:503:3600", "garbage", "json_status:200:{", "die"])
async def test_a_first_login_that_fails_in_passing_is_not_shown_again_with_each_start(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of a server has a use of the broker of its own, and the pause outlasts it."""
    monkeypatch.setattr("moorings.auth.broker.FIRST_PAUSE", 600.0)
    person = Person()
    async with AuthFaults(on={"/token": failure}) as server:
        for _ in range(2):
            async with holding({"s": spec(server)}, files(tmp_path), browser=person, ready=False) as (
                host,
                _,
            ):
                for _ in range(3):
                    await outcome(host)
        assert len(person.urls) == 1 and len(server.at("token")) == 1


# --- Ctrl-C -------------------------------------------------------------------------------------------------------

MACHINE = {"c": {"client_secret": "s", "token_endpoint_auth_method": "client_secret_basic"}}


def machine(server: AuthFaults, folder: Path) -> MooringsAuth:
    settings = AuthSettings(issuer=server.issuer, client_id="c", client_secret="s", flow="client_credentials")
    return made(server, folder, settings, browser=None)


def assert_ended() -> None:
    """Nobody uses the broker: its thread ends, though perhaps a moment after the close that was cut off."""
    for each in brokers():
        until = time.monotonic() + 3.0
        while each.ident is None and time.monotonic() < until:
            time.sleep(0.01)
        if each.ident is None:
            # It was struck before there was a thread, and the interpreter keeps a record of the attempt.
            threading._limbo.pop(each)  # type: ignore[attr-defined]
            continue
        each.join(20)
        assert not each.is_alive()


def every(work: Callable[[int], bool], *, at_least: int) -> None:
    """Strike at each moment, each time in a thing of its own; ``work`` says whether there was such a moment."""
    moment = 0
    gc.disable()  # What it would take away in a strike is struck too, and the interpreter says so.
    try:
        while work(moment):
            moment += 1
            gc.collect()
    finally:
        gc.enable()
    assert moment >= at_least


def test_ctrl_c_in_any_step_of_a_close_of_an_auth_and_it_is_closed_by_the_next(tmp_path: Path) -> None:
    with in_thread(session=False, clients=MACHINE) as server:

        def struck(moment: int) -> bool:
            auth = machine(server, tmp_path)
            with httpx.Client(auth=auth) as client:
                assert client.send(request(server)).status_code == 200
            hit = struck_at(moment, auth.close)
            auth.close()
            assert_ended()
            return hit

        every(struck, at_least=10)


def test_ctrl_c_in_any_step_of_a_first_use_of_the_broker(tmp_path: Path) -> None:
    """Whoever comes next is served, and the thread ends with the last that uses it."""
    with in_thread(session=False, clients=MACHINE) as server:

        def struck(moment: int) -> bool:
            # Nothing is stored there, so that it sleeps at first.
            auth = machine(server, tmp_path / str(moment))
            hit = struck_at(moment, auth._entered().wake)
            with httpx.Client(auth=auth) as client:
                assert client.send(request(server)).status_code == 200
            auth.close()
            assert_ended()
            return hit

        every(struck, at_least=10)


def test_ctrl_c_in_any_step_in_which_an_auth_is_first_used_where_something_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real look would leave an open folder to the garbage collector, if it is struck as it opens it.
    monkeypatch.setattr("moorings.auth.shared.holds", lambda folder: True)
    with in_thread(session=False, clients=MACHINE) as server:
        with machine(server, tmp_path) as auth, httpx.Client(auth=auth) as client:
            assert client.send(request(server)).status_code == 200

        def struck(moment: int) -> bool:
            auth = machine(server, tmp_path)
            hit = struck_at(moment, auth._entered)
            with httpx.Client(auth=auth) as client:
                assert client.send(request(server)).status_code == 200
            auth.close()
            assert_ended()
            return hit

        every(struck, at_least=30)
        assert len(server.grants()) == 1


# --- many principals ----------------------------------------------------------------------------------------------


async def test_what_nobody_uses_any_more_is_forgotten_though_the_broker_is_in_use(tmp_path: Path) -> None:
    """A process that acts for one person after another holds the logins of those it acts for now."""
    async with AuthFaults(session=False, clients=MACHINE) as server:

        def acting_for(principal: str) -> MooringsAuth:
            return MooringsAuth(
                server.url,
                auth=AuthSettings(
                    issuer=server.issuer, client_id="c", client_secret="s", flow="client_credentials"
                ),
                credentials=files(tmp_path, principal),
            )

        async def served(auth: MooringsAuth) -> None:
            async with httpx.AsyncClient(auth=auth) as client:
                assert (await client.send(request(server))).status_code == 200

        async with acting_for("always") as always:
            await served(always)
            service = always._service
            assert service is not None
            for number in range(MOST_LEFT + 10):
                async with acting_for(f"p{number}") as auth:
                    await served(auth)
            await by_then(lambda: len(service.broker._entries) <= MOST_LEFT + 1)
            assert len(service._flows) <= MOST_LEFT + 1 and len(service._left) <= MOST_LEFT
            grants = len(server.grants())
            await served(always)
            async with acting_for("p0") as auth:
                await served(auth)
            # Forgotten is not lost.
            assert len(server.grants()) == grants
