"""A logout, and another process that stands at a step of a renewal: whichever is first, nothing of the login is left.

The steps are those of ``test_race_faults.py``. A holder of the lock that lives is let finish, one that was killed is
passed by, and one that was stopped for longer than its lease finds nothing when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from moorings import AuthSettings, LogoutReport
from moorings.auth.flows import Account
from moorings.auth.logout import _Logout
from moorings.net import Net
from tests.auth.race_kit import (
    KINDS,
    WITHIN,
    Nursery,
    Player,
    Stage,
    crew_of,
    nursery,
    outcomes,
    place_of,
    stage_at,
)
from tests.faults.auth_server import AuthFaults
from tests.store.backends import Place

__all__ = ["nursery"]  # the fixture

UNSENT = ("before-lock", "locked", "before-intent", "after-intent", "before-post")
SENT = ("after-post", "before-save")
SAVED = ("after-save", "before-unlock")
LEASE = 1.0
THREADS = 4

pytestmark = pytest.mark.timeout(900)  # each wait within has a bound of its own


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def leased(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The one store whose locks can be lost while their holder lives."""
    return place_of("redis", request, tmp_path, LEASE)


async def out(place: Place, stage: Stage) -> LogoutReport:
    """Log out, as a process of its own would."""
    net = Net(dict)
    try:
        async with place.open() as store:
            account = Account(url=stage.resource, settings=AuthSettings(), within=10.0)
            return await _Logout(store, account, net, local=False).run()
    finally:
        await net.aclose()


@contextlib.asynccontextmanager
async def a_login(place: Place) -> AsyncIterator[tuple[Stage, AuthFaults]]:
    async with stage_at(place) as (stage, auth):
        # Its first access token came with its refresh token, and ends with that.
        auth.families[0].access |= set(auth.access)
        yield stage, auth


async def halted(stage: Stage, player: Player, step: str) -> None:
    stage.expire()
    stage.ask([player])
    assert await player.hear("at") == step


async def until_it_has_none(stage: Stage, players: list[Player]) -> None:
    """The broker of each knows that there is no login."""
    end = time.monotonic() + WITHIN
    while True:
        stage.ask(players)
        got = await outcomes(players)
        if all(each.get("token", "some") is None for each in got):
            return
        assert time.monotonic() < end, got
        await asyncio.sleep(0.05)  # it is told by the watch of its store, and nobody tells the test


@pytest.mark.parametrize("step", [*UNSENT, *SENT, *SAVED])
async def test_a_holder_that_lives_is_let_finish(step: str, place: Place, nursery: Nursery) -> None:
    async with a_login(place) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        stage.ask([other])  # it has the token at hand
        await outcomes([other])
        await halted(stage, holder, step)
        leaving = asyncio.ensure_future(out(place, stage))
        if step == "before-lock":
            await leaving
        else:
            await asyncio.sleep(0.2)  # it tries the lock; nothing tells of that
            assert not leaving.done() and not auth.at("revoke")
        holder.tell("go")
        report = await leaving
        assert report.all_revoked and len(report.logins) == 1
        got = await outcomes([holder])
        if step == "before-lock":
            assert not [each for each in got if each.get("token")], got
        await until_it_has_none(stage, [holder, other])
        assert await stage.keys() == [] and not auth.access and auth.families[0].revoked
        assert (stage.server.requests(), stage.server.revoked()) == (0 if step == "before-lock" else 1, 0)


@pytest.mark.parametrize("step", [*UNSENT, *SENT, *SAVED])
async def test_one_that_was_killed_is_passed_by(step: str, place: Place, nursery: Nursery) -> None:
    async with a_login(place) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        await halted(stage, holder, step)
        lease = await stage.lease()
        await crew.kill(holder)
        await stage.end_lease(lease)
        assert (await out(place, stage)).all_revoked
        # Its mark is gone, too, and the server ends the family by a refresh token that was replaced.
        assert await stage.keys() == [] and not auth.access and auth.families[0].revoked


@pytest.mark.parametrize("step", [*UNSENT, *SENT, *SAVED])
async def test_one_that_was_stopped_for_longer_than_its_lease_finds_nothing(
    step: str, leased: Place, nursery: Nursery
) -> None:
    async with a_login(leased) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        await halted(stage, holder, step)
        crew.stop(holder)
        assert (await out(leased, stage)).all_revoked
        assert await stage.keys() == []
        crew.go_on(holder)
        got = await outcomes([holder])
        if step not in SAVED:
            assert not [each for each in got if each.get("token")], got
        await until_it_has_none(stage, [holder])
        assert await stage.keys() == [] and not auth.access
