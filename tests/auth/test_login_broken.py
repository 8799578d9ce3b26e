"""Logins where something is broken: the authorization server, the store, or what is to show them to a person."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, AuthSettings, Bounds, LoginFailed, LoginPrompt, NeedsLogin, StoreFailed
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.host_kit import brokers, by_then, files, holding, outcome, spec
from tests.auth.login_kit import Someone, browse, is_free, log_in, never, nobody_else, paste
from tests.auth.step_kit import lying_in, notes
from tests.faults.auth_server import AuthFaults

SOON = Bounds(connect=10.0, probe=2.0, call=10.0, http_close=0.5, cooldown=0.0, auth=1.0)


def credentials(lying: dict[str, bytes]) -> dict[str, bytes]:
    """What of it are logins."""
    return {key: each for key, each in lying.items() if b'"moorings":"credential"' in each}


# --- the authorization server ---------------------------------------------------------------------------------------

DEAD = ("die", "close_now", "silent", "status:503", "garbage", "refused")
CLOSED = "http://127.0.0.1:1"
"""Nobody listens there."""
REFUSED: dict[str, dict[str, Any]] = {
    "prm": {"challenges": [f'Bearer resource_metadata="{CLOSED}/x"'], "prm": []},
    "as": {"servers": [CLOSED]},
    "register": {"metadata": {"registration_endpoint": CLOSED}},
    "token": {"metadata": {"token_endpoint": CLOSED}},
    "device": {"metadata": {"device_authorization_endpoint": CLOSED}},
}


def dead(endpoint: str, how: str) -> dict[str, Any]:
    """The script of a server of which one endpoint is dead."""
    return REFUSED[endpoint] if how == "refused" else {"on": {endpoint: how}}


async def sound_again(server: AuthFaults, folder: Path, before: dict[str, bytes], someone: Someone) -> None:
    """Nothing is left of a login that failed, what was there is used, and the next login works."""
    lying = await lying_in(folder)
    assert not notes(lying) and credentials(lying) == before
    assert all(is_free(each.redirect_uri) for each in someone.prompts if each.redirect_uri)
    if before:
        assert not (await log_in(server, folder)).fresh
    assert (
        await log_in(server, folder, on_login_url=Someone(paste), on_waiting=nobody_else, force=True)
    ).fresh


@pytest.mark.parametrize("how", DEAD)
@pytest.mark.parametrize("endpoint", list(REFUSED))
async def test_an_endpoint_is_dead(endpoint: str, how: str, tmp_path: Path) -> None:
    settings = AuthSettings(flow="device") if endpoint == "device" else AuthSettings()
    async with AuthFaults(pending=0) as server:
        script = dead(endpoint, how)
        sound = {key: {endpoint: "ok"} if key == "on" else server.script[key] for key in script}
        before: dict[str, bytes] = {}
        if endpoint != "register":
            await log_in(server, tmp_path, on_login_url=Someone(paste))
            before = credentials(await lying_in(tmp_path))
        server.set(**script)
        someone = Someone(never if endpoint == "device" else paste)
        with pytest.raises(LoginFailed) as failed:
            await log_in(spec(server, settings, bounds=SOON), tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "unreachable", failed.value
        server.set(**sound)
        await sound_again(server, tmp_path, before, someone)


@pytest.mark.parametrize("how", ["die", "silent", "status:503", "garbage"])
async def test_the_page_of_the_login_is_dead(how: str, tmp_path: Path) -> None:
    """Nobody comes back from it, so that its time passes."""
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        before = credentials(await lying_in(tmp_path))
        server.set(on={"authorize": how})
        someone = Someone()
        with pytest.raises(LoginFailed, match="nobody logged in") as failed:
            await log_in(spec(server, AuthSettings(timeout=0.5)), tmp_path, on_login_url=someone, force=True)
        assert failed.value.reason == "timeout"
        server.set(on={"authorize": "ok"})
        await sound_again(server, tmp_path, before, someone)
        someone.leave()
        await someone.gone()


@pytest.mark.parametrize("how", ["die", "silent", "status:503", "garbage"])
async def test_polls_of_the_device_flow_that_come_to_nothing(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tried again, as RFC 8628 section 3.5 wants it, and the login goes on."""
    monkeypatch.setattr("moorings.auth.grants.ONE_POLL", 1.0)
    async with AuthFaults(pending=0, on={"token:device_code": [how, "ok"]}) as server:
        assert (
            await log_in(spec(server, bounds=SOON), tmp_path, on_login_url=Someone(never), flow="device")
        ).fresh
        assert len(server.grants("device_code")) == 2


@pytest.mark.parametrize("how", ["die", "silent", "status:503", "garbage"])
async def test_the_mcp_server_is_dead(how: str, tmp_path: Path) -> None:
    async with AuthFaults(on={"mcp": how}) as server:
        someone = Someone()
        with pytest.raises(LoginFailed) as failed:
            await log_in(spec(server, bounds=SOON), tmp_path, on_login_url=someone)
        # One that answers is asked for the proof when there are tokens.
        answers = how == "status:503"
        assert failed.value.reason == ("unproven" if answers else "unreachable")
        assert bool(credentials(await lying_in(tmp_path))) == answers == bool(someone.prompts)
        server.set(on={"mcp": "ok"})
        await someone.gone()
        await sound_again(server, tmp_path, credentials(await lying_in(tmp_path)), someone)


# --- what shows it ----------------------------------------------------------------------------------------------------


async def raises(prompt: LoginPrompt) -> str | None:
    raise RuntimeError(f"it cannot be shown: {prompt.url}")


async def gives_up(prompt: LoginPrompt) -> str | None:
    raise asyncio.CancelledError


async def times_out(prompt: LoginPrompt) -> str | None:
    raise TimeoutError


async def is_no_text(prompt: LoginPrompt) -> Any:
    return 7


def is_not_async(prompt: LoginPrompt) -> Any:
    return None


def raises_at_once(prompt: LoginPrompt) -> Any:
    raise RuntimeError("it cannot be shown")


@pytest.mark.parametrize("flow", ["authorization_code", "device"])
@pytest.mark.parametrize(
    "shows",
    [raises, gives_up, times_out, is_no_text, is_not_async, raises_at_once],
    ids=lambda it: it.__name__,
)
async def test_what_shows_a_login_fails(shows: Any, flow: Any, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        before = credentials(await lying_in(tmp_path))
        with pytest.raises(LoginFailed) as failed:
            await log_in(server, tmp_path, on_login_url=shows, force=True, flow=flow)
        assert "state=" not in str(failed.value)
        assert ("async def" in str(failed.value)) is (shows is is_not_async)
        await sound_again(server, tmp_path, before, Someone())


@pytest.mark.parametrize("rubbish", ["", " ", "x", "http://", "?state=", "\0\ud800", "=" * 100_000])
async def test_rubbish_is_pasted_for_ever(rubbish: str, tmp_path: Path) -> None:
    async def pastes(prompt: LoginPrompt) -> str | None:
        return rubbish

    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        before = credentials(await lying_in(tmp_path))
        someone = Someone(pastes)
        with pytest.raises(LoginFailed):
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        assert 1 < len(someone.prompts) < 50
        await sound_again(server, tmp_path, before, someone)


async def test_what_shows_a_login_does_not_let_itself_be_ended(tmp_path: Path) -> None:
    let_go = asyncio.Event()
    ended = asyncio.Event()

    async def stays(prompt: LoginPrompt) -> str | None:
        someone.open(browse(prompt.url))
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        ended.set()
        return None

    async with AuthFaults() as server:
        someone = Someone(stays)
        # It is had all the same, after a moment in which it is waited for.
        async with asyncio.timeout(20):
            assert (await log_in(server, tmp_path, on_login_url=someone)).fresh
        assert not ended.is_set() and is_free(someone.prompts[0].redirect_uri)
        before = credentials(await lying_in(tmp_path))
        await sound_again(server, tmp_path, before, someone)
        let_go.set()
        await ended.wait()
        await someone.gone()


@pytest.mark.parametrize(
    "shows",
    [raises, gives_up, times_out, is_no_text, is_not_async, raises_at_once],
    ids=lambda it: it.__name__,
)
async def test_what_shows_the_logins_of_a_host_fails(shows: Any, tmp_path: Path) -> None:
    """Its call fails, and no other server of it; the next login, by somebody who can be asked, wakes it."""
    async with AuthFaults() as server, AuthFaults(open=True) as other:
        async with holding(
            {"s": spec(server), "other": spec(other)}, files(tmp_path), on_login_url=shows, ready=False
        ) as (host, _):
            await by_then(lambda: host.status()["s"].state == "needs_auth")
            assert isinstance(await outcome(host), NeedsLogin)
            assert await outcome(host, "other__echo") == "x"
            lying = await lying_in(tmp_path)
            assert not notes(lying) and not credentials(lying)
            assert (await log_in(server, tmp_path, on_login_url=Someone(paste), on_waiting=nobody_else)).fresh
            await by_then(lambda: host.status()["s"].state == "ready")
            assert await outcome(host) == "x"


async def test_a_host_is_closed_under_what_does_not_let_itself_be_ended(tmp_path: Path) -> None:
    let_go, ended = asyncio.Event(), asyncio.Event()

    async def stays(prompt: LoginPrompt) -> str | None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
        ended.set()
        return None

    async with AuthFaults() as server:
        someone = Someone(stays)
        host = AsyncHost(
            {"s": spec(server)}, state_dir=False, credentials=files(tmp_path), on_login_url=someone
        )
        async with asyncio.timeout(30):
            async with host:
                await someone.shown.wait()
                await host.close(2.0)
        assert not ended.is_set() and is_free(someone.prompts[0].redirect_uri)
        await by_then(lambda: not brokers())
        await sound_again(server, tmp_path, {}, Someone())
        let_go.set()
        await ended.wait()


# --- the store --------------------------------------------------------------------------------------------------------

CALLS = ("lock", "load", "save", "remove", "keys", "watch")


class Unsound:
    """Every store of files fails at one call, or from that call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, lasts: bool) -> None:
        self.count = 0
        self.failed: list[str] = []
        for name in CALLS:
            monkeypatch.setattr(FileStore, name, self._failing(name, getattr(FileStore, name), at, lasts))

    def _failing(self, name: str, sound: Any, at: int, lasts: bool) -> Any:
        def look() -> None:
            self.count += 1
            if self.count == at or (lasts and self.count > at):
                self.failed.append(name)
                raise StoreError("the disk refused: scripted", store="file")

        if name == "lock":

            @contextlib.asynccontextmanager
            async def lock(*args: Any, **more: Any) -> AsyncIterator[Any]:
                look()
                async with sound(*args, **more) as lease:
                    yield lease

            return lock

        async def call(*args: Any, **more: Any) -> Any:
            look()
            return await sound(*args, **more)

        return call


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "from-then-on"])
@pytest.mark.parametrize("way", ["first", "again"])
async def test_the_store_fails_at_one_of_its_calls(
    way: str, lasts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    async with AuthFaults() as server:
        for at in range(1, 100):
            folder, before = tmp_path / str(at), dict[str, bytes]()
            if way == "again":
                await log_in(server, folder, on_login_url=Someone(paste))
                before = credentials(await lying_in(folder))
            someone = Someone(paste)
            result: Any
            with monkeypatch.context() as patch:
                unsound = Unsound(patch, at, lasts=lasts)
                try:
                    result = await log_in(server, folder, on_login_url=someone, force=True)
                except (LoginFailed, StoreFailed) as error:
                    result = error
            if not unsound.failed:
                break
            seen.add(unsound.failed[0])
            lying = await lying_in(folder)
            assert all(is_free(each.redirect_uri) for each in someone.prompts)
            if before and isinstance(result, Exception):
                assert credentials(lying) == before
                assert not (await log_in(server, folder, on_waiting=nobody_else)).fresh
            assert (
                await log_in(server, folder, on_login_url=Someone(paste), on_waiting=nobody_else, force=True)
            ).fresh
            assert not notes(await lying_in(folder))
        else:
            pytest.fail("it has no end")
    assert seen == set(CALLS)


async def test_the_store_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As none of ours does: the login has an end all the same."""
    bounds = Bounds(connect=10.0, probe=2.0, call=10.0, http_close=0.5, cooldown=0.0, auth=0.1)
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        before = credentials(await lying_in(tmp_path))
        with monkeypatch.context() as patch:

            @contextlib.asynccontextmanager
            async def lock(*_: Any) -> AsyncIterator[Any]:
                await asyncio.Event().wait()
                yield

            patch.setattr(FileStore, "lock", lock)
            with pytest.raises(LoginFailed) as failed:
                await log_in(
                    spec(server, AuthSettings(timeout=0.1), bounds=bounds),
                    tmp_path,
                    on_login_url=Someone(paste),
                    force=True,
                )
            assert failed.value.reason == "timeout"
        await sound_again(server, tmp_path, before, Someone())
