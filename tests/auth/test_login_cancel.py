"""A login that is ended at each place where it waits: its port is free, what there was is there, the next one works."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from moorings import LoginPrompt, LoginResult
from moorings.auth.grants import device_wait
from moorings.auth.login import LoginState
from tests.auth.login_kit import Someone, is_free, log_in
from tests.auth.step_kit import Stepped, Steps, lying_in, notes
from tests.faults.auth_server import AuthFaults, consent

WAYS = ("first", "again", "paste", "device")
"""No login there yet; in place of one that works; by a paste; by a code."""
PARTS = 3
MOST = 400
"""More waits than a login has."""


async def paste(prompt: LoginPrompt) -> str | None:
    return await consent(prompt.url)


async def never(prompt: LoginPrompt) -> str | None:
    await asyncio.Event().wait()
    return None


def person(way: str) -> Someone:
    return Someone({"paste": paste, "device": never}.get(way))


def options(way: str) -> dict[str, object]:
    return {"force": True, **({"flow": "device"} if way == "device" else {})}


def nobody_else(who: str) -> None:
    pytest.fail(f"the login before is still under way: {who}")


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
                login = asyncio.ensure_future(log_in(server, folder, on_login_url=person(way), **options(way)))
                steps = Steps(patch, at, lambda task=login: loop.call_soon_threadsafe(task.cancel))  # type: ignore[misc]
                (result,) = await asyncio.gather(login, return_exceptions=True)
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
    assert {LoginState.PREPARING, LoginState.SHOWN, LoginState.STORED} <= states
