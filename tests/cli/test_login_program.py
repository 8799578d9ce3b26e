"""``moor login`` as a program: at a terminal, without one, ended at any moment, and several at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.auth.host_kit import by_then, holding, spec, stored
from tests.auth.login_kit import browse, is_free
from tests.auth.step_kit import lying_in, notes
from tests.cli.login_kit import Stage, redirect_of, url_of
from tests.cli.ptys import Pty
from tests.faults.auth_server import AuthFaults, consent


@pytest.mark.parametrize("longer", [0, 6000])
async def test_a_paste_at_a_terminal(longer: int, tmp_path: Path) -> None:
    """Of any length: terminals cut lines at 4095 characters as a rule."""
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        async with stage.asked() as (pty, running, url):
            assert "no desktop here" in pty.seen
            answer = await consent(url)
            await pty.type(answer + (f"&more={'x' * longer}" if longer else "") + "\n")
            assert await running.ended() == 0
            assert "logged in to s" in pty.seen and "connected: " in pty.seen
            # It holds a code.
            assert urlsplit(answer).query not in pty.seen
        assert not stage.opened.exists()
        assert is_free(redirect_of(url))
        async with holding({"s": spec(server)}, stage.credentials) as (host, _):
            assert (await host.call("s__echo", {"text": "x"})).text == "x"


async def test_a_browser_of_this_machine(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        async with stage.asked(DISPLAY=":7") as (_, running, url):
            await by_then(stage.opened.exists)
            assert "logged in" in (await browse(url)).lower()
            assert await running.ended() == 0
        assert stage.opened.read_text() == url + "\n"


async def test_a_wrong_paste_is_said_and_asked_again(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        async with stage.asked() as (pty, running, url):
            await pty.type(f"{redirect_of(url)}?code=x&state=of-another\n")
            await pty.shows("That was not it")
            await pty.type(await consent(url) + "\n")
            assert await running.ended() == 0


@pytest.mark.parametrize("home", ["", "/nowhere/at/all"])
async def test_a_home_that_is_not_there(home: str, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        async with stage.asked(HOME=home, XDG_STATE_HOME="", XDG_CONFIG_HOME="") as (pty, running, url):
            await pty.type(await consent(url) + "\n")
            assert await running.ended() == 0


# --- nobody is there --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pipe", "no-input", "ci", "paste"])
async def test_where_nobody_can_be_asked_it_fails_at_once(how: str, tmp_path: Path) -> None:
    """With a desktop, too: nothing is opened or bound, and no authorization server is asked."""
    words = {"no-input": ["--no-input"], "paste": ["--no-browser"]}.get(how, [])
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        if how in ("pipe", "paste"):
            code, out, problems = await stage.piped(*words, DISPLAY=":7")
        else:
            with Pty() as pty:
                before = pty.mode()
                with stage.at(pty, *words, DISPLAY=":7", CI="1" if how == "ci" else "") as running:
                    code = await running.ended()
                assert pty.mode() == before
                out, problems = "", pty.seen
        assert code == 4
        assert not out and "nobody can be asked" in problems and "moor login s" in problems
        assert len(server.requests) == 1, "whether it wants a login"
        assert not stage.opened.exists() and not stage.bound.exists()
        assert not stage.store.exists() or not await lying_in(stage.store)


@pytest.mark.parametrize("flow", ["client_credentials"])
async def test_who_needs_nobody_logs_in_without_a_terminal(flow: str, tmp_path: Path) -> None:
    clients = {"c": {"client_secret": "s3cret-of-c", "token_endpoint_auth_method": "client_secret_basic"}}
    async with AuthFaults(clients=clients) as server:
        stage = Stage(tmp_path, server, f"flow = '{flow}', client_id = 'c', client_secret = 's3cret-of-c'")
        code, out, problems = await stage.piped("--no-input", CI="1")
        assert code == 0, problems
        assert "logged in to s" in out and not stage.bound.exists()


async def test_a_store_that_forgets(tmp_path: Path) -> None:
    """In the memory of this program, where a login would be over with it: nobody is asked for one."""
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        stage.file.write_text("[credentials]\nstore = 'memory'\n" + stage.file.read_text())
        code, out, problems = await stage.piped("--flow", "device")
        assert (code, out) == (2, "") and "memory" in problems
        assert not server.requests


async def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    async with AuthFaults(pending=0) as server:
        stage = Stage(tmp_path, server)
        stage.file.write_text(stage.file.read_text().replace("'state'", "'/proc/nowhere'"))
        code, out, problems = await stage.piped("--flow", "device")
        assert (code, out) == (3, "") and "the store of logins" in problems
        # Before somebody has been asked for nothing.
        assert not server.at("device")


# --- ended ------------------------------------------------------------------------------------------------------------

MOMENTS = {"finding out": "prm", "registering": "register", "getting tokens": "token"}


@pytest.mark.parametrize("moment", [*MOMENTS, "asking", "half a line"])
async def test_ctrl_c(moment: str, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        url, held = "", MOMENTS.get(moment, "")
        if held:
            server.set(on={held: "hold"})
        with Pty() as pty:
            before = pty.mode()
            with stage.at(pty) as running:
                if held in ("", "token"):
                    url = await url_of(pty)
                    assert not is_free(redirect_of(url))
                if held == "token":
                    await pty.type(await consent(url) + "\n")
                if held:
                    await server.until(lambda _: bool(server.at(held)))
                if moment == "half a line":
                    await pty.type("http://127.0.0.1")
                    await pty.shows("(16 characters)")
                await pty.type("\x03")
                assert await running.ended() == 130
            assert pty.mode() == before
            assert "interrupted" in pty.seen and "Traceback" not in pty.seen
        await stage.nothing_is_left(url)
        if held:
            server.release(held)
            server.set(on={held: "ok"})
        await stage.logs_in()


async def test_ctrl_c_again_and_again(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        server.set(on={"token": "hold"})
        with Pty() as pty:
            before = pty.mode()
            with stage.at(pty) as running:
                url = await url_of(pty)
                await pty.type(await consent(url) + "\n")
                await server.until(lambda _: bool(server.at("token")))
                for _ in range(20):
                    await pty.type("\x03")
                    await asyncio.sleep(0.01)  # one after another, as fingers do
                assert await running.ended() in (130, -signal.SIGINT)
            assert pty.mode() == before
        assert is_free(redirect_of(url))
        server.release("token")
        server.set(on={"token": "ok"})
        await stage.logs_in()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        with Pty() as pty:
            before = pty.mode()
            with stage.at(pty) as running:
                url = await url_of(pty)
                if number is signal.SIGHUP:
                    # The window is closed.
                    pty.hang_up()
                    pty.close_program_side()
                else:
                    os.kill(running.pid, number)
                code = await running.ended()
            if number is signal.SIGTERM:
                assert pty.mode() == before and "Traceback" not in pty.seen
        assert code == (-number if number is signal.SIGKILL else 128 + number)
        if number is not signal.SIGKILL:
            await stage.nothing_is_left(url)
        assert is_free(redirect_of(url))
        async with asyncio.timeout(15):
            await stage.logs_in()


# --- a code for elsewhere ---------------------------------------------------------------------------------------------


async def test_device_flow_without_a_terminal(tmp_path: Path) -> None:
    async with AuthFaults(
        on={"token:device_code": ["refuse:authorization_pending", "ok"]}, pending=0
    ) as server:
        stage = Stage(tmp_path, server)
        code, out, problems = await stage.piped("--flow", "device", DISPLAY=":7")
        assert code == 0, problems
        assert "CODE-" in problems and "logged in to s" in out
        assert not stage.bound.exists()


async def test_device_flow_that_is_to_slow_down(tmp_path: Path) -> None:
    """RFC 8628 section 3.5: five seconds more between all further polls."""
    async with AuthFaults(on={"token:device_code": ["refuse:slow_down", "ok"]}, pending=0) as server:
        stage = Stage(tmp_path, server)
        with Pty() as pty:
            with stage.at(pty, "--flow", "device") as running:
                await pty.shows("CODE-")
                await pty.shows("This goes on by itself when the code was accepted")
                assert await running.ended() == 0
        first, second = (seen.at for seen in server.at("token:device_code"))
        assert 5.9 < second - first < 15


@pytest.mark.parametrize("whose", ["server", "ours"])
async def test_device_flow_whose_code_expires(whose: str, tmp_path: Path) -> None:
    script = {"token:device_code": "refuse:expired_token"} if whose == "server" else {}
    async with AuthFaults(on=script, pending=1000) as server:
        if whose == "ours":
            server.set(
                on={
                    "device": 'json_status:200:{"device_code":"d-1","user_code":"CODE-1","interval":1,"expires_in":2,'
                    f'"verification_uri":"{server.origin}/activate"}}',
                    "token:device_code": "refuse:authorization_pending",
                }
            )
        stage = Stage(tmp_path, server)
        code, _, problems = await stage.piped("--flow", "device")
        assert code == 5 and "expired_token" in problems, problems
        await stage.nothing_is_left()


async def test_ctrl_c_while_a_code_is_shown(tmp_path: Path) -> None:
    async with AuthFaults(pending=1000) as server:
        stage = Stage(tmp_path, server)
        with Pty() as pty:
            with stage.at(pty, "--flow", "device") as running:
                await pty.shows("CODE-")
                await server.until(lambda _: bool(server.at("token:device_code")))
                await pty.type("\x03")
                assert await running.ended() == 130
        await stage.nothing_is_left()
        await stage.logs_in()


# --- several at once --------------------------------------------------------------------------------------------------


async def test_three_at_once_show_one_url(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        with Pty() as one, Pty() as two, Pty() as three:
            ptys = (one, two, three)
            with stage.at(one) as a, stage.at(two) as b, stage.at(three) as c:
                for pty in ptys:
                    await pty._until(
                        lambda pty=pty: "Ctrl-C ends" in pty.seen or "waiting for that" in pty.seen
                    )
                (asked,) = [pty for pty in ptys if "Ctrl-C ends" in pty.seen]
                await browse(await url_of(asked))
                assert [await each.ended() for each in (a, b, c)] == [0, 0, 0]
            assert [pty.seen.count("/authorize?") for pty in ptys].count(1) == 1
            assert sum(pty.seen.count("/authorize?") for pty in ptys) == 1
            assert all("logged in to s" in pty.seen for pty in ptys)
        assert len(server.grants("authorization_code")) == 1
        assert len(await stored(stage.store)) == 1 and not notes(await lying_in(stage.store))


async def test_another_takes_over_when_the_one_that_asks_is_killed(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        with Pty() as one, Pty() as two, Pty() as three:
            with stage.at(one) as a:
                await url_of(one)
                with stage.at(two) as b, stage.at(three) as c:
                    await two.shows("waiting for that")
                    await three.shows("waiting for that")
                    os.kill(a.pid, signal.SIGKILL)
                    assert await a.ended() == -signal.SIGKILL
                    await by_then(lambda: "Ctrl-C ends" in two.seen + three.seen)
                    asked = two if "Ctrl-C ends" in two.seen else three
                    await browse(await url_of(asked))
                    assert [await each.ended() for each in (b, c)] == [0, 0]
            assert (two.seen + three.seen).count("/authorize?") == 1
        assert len(server.grants("authorization_code")) == 1


async def test_a_host_elsewhere_is_ready_when_it_is_done(tmp_path: Path) -> None:
    """Within about a second, and without asking the server before."""
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        async with holding({"s": spec(server)}, stage.credentials, ready=False) as (host, _):
            await by_then(lambda: host.status()["s"].state == "needs_auth")
            async with stage.asked() as (pty, running, url):
                await pty.type(await consent(url) + "\n")
                assert await running.ended() == 0
            began = time.monotonic()
            await by_then(lambda: host.status()["s"].state == "ready")
            assert time.monotonic() - began < 3.0
            assert (await host.call("s__echo", {"text": "x"})).text == "x"
