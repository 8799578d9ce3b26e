"""A login that is ended at each place where it waits: its port is free, what there was is there, the next one works."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, AuthSettings, LoginPrompt, LoginResult
from moorings.auth.grants import device_wait
from moorings.auth.login import LoginState
from tests.auth.host_kit import brokers, by_then, files, logged_in, spec
from tests.auth.login_kit import Someone, is_free, log_in, never, nobody_else, paste
from tests.auth.step_kit import Stepped, Steps, lying_in, notes, where
from tests.faults.auth_server import AuthFaults

WAYS = ("first", "again", "paste", "device")
"""No login there yet; in place of one that works; by a paste; by a code."""
PARTS = 6
MOST = 400
"""More waits than a login has."""


def person(way: str) -> Someone:
    return Someone({"paste": paste, "device": never}.get(way))


def options(way: str) -> dict[str, object]:
    return {"force": True, **({"flow": "device"} if way == "device" else {})}


async def nothing_is_left(server: AuthFaults, folder: Path, before: dict[str, bytes] | None) -> None:
    """After a login that was ended: nothing is left of it, what was there is there, and the next one works.

    ``before``: what lay in the store; None if the tokens were being stored when it was ended.
    """
    lying = await lying_in(folder)
    for uri in redirect_uris(lying):
        assert is_free(uri), uri
    assert not notes(lying)
    for key in before or ():
        assert before is not None and lying[key] == before[key], key
    someone = Someone(paste)
    if before != {}:
        # Not by force: what lies there does.
        assert not (await log_in(server, folder, on_waiting=nobody_else)).fresh
    assert (await log_in(server, folder, on_login_url=someone, on_waiting=nobody_else, force=True)).fresh


def redirect_uris(lying: dict[str, bytes]) -> list[str]:
    """Where browsers come back to, by the registrations."""
    documents = [json.loads(line) for each in lying.values() for line in each.splitlines()]
    return [uri for each in documents for uri in each.get("redirect_uris", ()) if uri]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two polls of the device flow."""
    monkeypatch.setitem(device_wait.__kwdefaults__, "pause", lambda seconds: asyncio.sleep(seconds / 100))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_where_the_broker_waits(
    way: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait of each task that the broker has for it, one after another."""
    states: set[LoginState | None] = set()
    loop = asyncio.get_running_loop()
    async with AuthFaults(pending=0) as server:
        for at in range(part + 1, MOST, PARTS):
            folder, before = tmp_path / str(at), dict[str, bytes]()
            if way != "first":
                await log_in(server, folder, on_login_url=Someone(paste))
                before = await lying_in(folder)
            with monkeypatch.context() as patch:
                someone = person(way)
                login = asyncio.ensure_future(log_in(server, folder, on_login_url=someone, **options(way)))
                steps = Steps(patch, at, lambda task=login: loop.call_soon_threadsafe(task.cancel))  # type: ignore[misc]
                (result,) = await asyncio.gather(login, return_exceptions=True)
                await someone.gone()
            if not steps.struck:
                assert isinstance(result, LoginResult) and at > 30, at
                break
            assert isinstance(result, asyncio.CancelledError), (steps.place, result)
            states.add(steps.state)
            try:
                await nothing_is_left(server, folder, None if steps.state is LoginState.STORED else before)
            except BaseException as error:
                error.add_note(f"ended at {at}: {steps.place}, {steps.state}")
                raise
        else:
            pytest.fail("it has no end")
    assert len(states) > 2


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_where_its_caller_waits(way: str, tmp_path: Path) -> None:
    """Each wait of the caller, one after another."""
    loop = asyncio.get_running_loop()
    async with AuthFaults(pending=0) as server:
        for at in range(1, MOST):
            folder, before = tmp_path / str(at), dict[str, bytes]()
            if way != "first":
                await log_in(server, folder, on_login_url=Someone(paste))
                before = await lying_in(folder)
            someone, waits, places = person(way), itertools.count(1), list[str]()

            def told(work: Any, at: int = at, waits: Any = waits, places: list[str] = places) -> None:
                task = asyncio.current_task()
                if next(waits) == at and task is not None:
                    places.append(where(work))
                    loop.call_soon(task.cancel)

            login = asyncio.ensure_future(
                stepped(log_in(server, folder, on_login_url=someone, **options(way)), told)
            )
            (result,) = await asyncio.gather(login, return_exceptions=True)
            await someone.gone()
            if not places:
                assert isinstance(result, LoginResult) and at > 1
                return
            assert isinstance(result, asyncio.CancelledError), (places, result)
            await nothing_is_left(server, folder, None if "Access.aclose" in places[0] else before)
    pytest.fail("it has no end")


@pytest.mark.parametrize("way", ["first", "again", "device"])
async def test_cancelled_again_and_again(way: str, tmp_path: Path) -> None:
    """While a person is asked, and at each wait from there on: the impatient at the keyboard."""
    loop = asyncio.get_running_loop()
    shown: list[LoginPrompt] = []
    places: list[str] = []

    async def slow_to_leave(prompt: LoginPrompt) -> str | None:
        shown.append(prompt)
        loop.call_soon(login.cancel)
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
        return None

    def told(work: Any) -> None:
        if shown:
            places.append(where(work))
            loop.call_soon(login.cancel)

    async with AuthFaults() as server:
        before: dict[str, bytes] = {}
        if way != "first":
            await log_in(server, tmp_path, on_login_url=Someone(paste))
            before = await lying_in(tmp_path)
        login = asyncio.ensure_future(
            stepped(log_in(server, tmp_path, on_login_url=slow_to_leave, **options(way)), told)
        )
        with pytest.raises(asyncio.CancelledError):
            await login
        # What it had begun in the broker ends by itself.
        await by_then(lambda: not brokers())
        assert len(places) > 1
        await nothing_is_left(server, tmp_path, before)


async def stepped(login: Any, told: Any) -> LoginResult:
    result = await Stepped(login, told)
    assert isinstance(result, LoginResult)
    return result


async def test_its_caller_has_a_bound_of_its_own(tmp_path: Path) -> None:
    someone = Someone(never)
    async with AuthFaults() as server:
        await log_in(server, tmp_path, on_login_url=Someone(paste))
        before = await lying_in(tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as bound:
                login = log_in(server, tmp_path, on_login_url=someone, force=True)
                waits = asyncio.ensure_future(someone.shown.wait())
                waits.add_done_callback(lambda _: bound.reschedule(0.0))
                await login
        assert someone.cancelled == 1
        await nothing_is_left(server, tmp_path, before)


@pytest.mark.parametrize("flow", ["authorization_code", "device"])
async def test_a_host_is_closed_while_somebody_is_at_its_login(flow: Any, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await logged_in(server, tmp_path)
        server.expire()
        for each in server.families:
            each.revoked = True
        before = await lying_in(tmp_path)
        someone = Someone(never)
        async with AsyncHost(
            {"s": spec(server, AuthSettings(flow=flow))},
            state_dir=False,
            credentials=files(tmp_path),
            on_login_url=someone,
        ):
            async with asyncio.timeout(20):
                await someone.shown.wait()
        assert someone.cancelled == 1
        after = await lying_in(tmp_path)
        assert not notes(after)
        assert all(is_free(each.redirect_uri) for each in someone.prompts if each.redirect_uri)
        assert set(before) <= set(after)
        assert (await log_in(server, tmp_path, on_login_url=Someone(), on_waiting=nobody_else)).fresh
