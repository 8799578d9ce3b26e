"""Whoever refreshes dies or is stopped, exactly at a step of it: the others go on, and what is lost says so.

::

    before-lock → locked → before-intent → after-intent → before-post → (the request is on its way) → after-post
                → before-save → after-save → before-unlock
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.auth.race_kit import (
    KINDS,
    WITHIN,
    Nursery,
    Player,
    Stage,
    crew_of,
    login_at,
    nursery,
    outcomes,
    place_of,
    stage_at,
    until_served,
)
from tests.store.backends import Place

__all__ = ["nursery"]  # the fixture

UNHARMED = {
    # step: token requests in all, up to the first success
    "before-lock": 1,
    "locked": 1,
    "before-intent": 1,
    "after-intent": 1,
    "before-post": 1,
    "after-save": 1,
    "before-unlock": 1,
}
ROTATED = ("after-post", "before-save")
"""The server has rotated, and nobody else knows its answer."""
LEASE = 1.0
"""Seconds of a lease of Redis, where one is to run out by itself."""
THREADS = 4

pytestmark = pytest.mark.timeout(900)  # each wait within has a bound of its own


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def leased(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The one store whose locks can be lost while their holder lives."""
    return place_of("redis", request, tmp_path, LEASE)


async def halted(stage: Stage, player: Player, step: str) -> None:
    """It alone refreshes, and stands at that step."""
    stage.expire()
    stage.ask([player])
    assert await player.hear("at") == step


async def asking(stage: Stage, players: list[Player]) -> None:
    """They all wait."""
    stage.ask(players)
    for each in players:
        await each.hear("asked")


# --- killed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", UNHARMED)
async def test_f10_6_killed_where_nothing_is_lost_the_others_get_one_token(
    step: str, place: Place, nursery: Nursery
) -> None:
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (victim,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        others = await crew.enlist(3, stage, threads=THREADS)
        await halted(stage, victim, step)
        lease = await stage.lease()
        await asking(stage, others)
        await crew.kill(victim)
        await stage.end_lease(lease)
        got = await outcomes(others)
        assert len({each.get("token") for each in got}) == 1 and got[0].get("token") in auth.access, got
        assert (stage.server.requests(), stage.server.revoked()) == (UNHARMED[step], 0)
        stored = await stage.stored()
        assert (stored.version, stored.state) == (2, "good")
        # And the next time, whatever mark the dead one left.
        stage.expire()
        await asking(stage, others)
        got = await outcomes(others)
        assert len({each.get("token") for each in got}) == 1 and got[0].get("token") in auth.access, got
        assert (stage.server.requests(), stage.server.revoked()) == (UNHARMED[step] + 1, 0)
        assert await stage.keys() == [stage.key]


async def test_f10_6_killed_while_its_request_is_on_the_way_the_others_get_one_token(
    place: Place, nursery: Nursery
) -> None:
    """The server has not carried it out: the mark that a refresh was begun ends nothing by itself."""
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (victim,) = await crew.enlist(1, stage, threads=THREADS)
        others = await crew.enlist(3, stage, threads=THREADS)
        stage.server.hold()
        stage.expire()
        await asking(stage, [victim])
        await auth.until(lambda _: stage.server.requests() == 1, WITHIN)
        lease = await stage.lease()
        await asking(stage, others)
        await crew.kill(victim)
        await auth.until(lambda server: server.at("token")[0].gone, WITHIN)
        stage.server.release()
        await stage.end_lease(lease)
        got = await outcomes(others)
        assert len({each.get("token") for each in got}) == 1 and got[0].get("token") in auth.access, got
        assert (stage.server.requests(), stage.server.revoked()) == (2, 0)
        assert await stage.keys() == [stage.key]


@pytest.mark.parametrize("step", ROTATED)
async def test_f10_6_killed_with_the_answer_the_login_is_lost_and_the_state_says_so(
    step: str, place: Place, nursery: Nursery
) -> None:
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (victim,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        others = await crew.enlist(3, stage, threads=THREADS)
        await halted(stage, victim, step)
        lease = await stage.lease()
        await asking(stage, others)
        await crew.kill(victim)
        await stage.end_lease(lease)
        for again in range(2):
            got = await outcomes(others)
            assert {each.get("error") for each in got} == {"Dead"}, got
            assert all("its answer was lost with the process" in each["text"] for each in got), got
            # Asked once more by one of them, and then by nobody: the server said that it is over.
            assert stage.server.requests() == 2
            if not again:
                await asking(stage, others)
        lost = await stage.stored()
        assert (lost.version, lost.state) == (2, "lost") and "its answer was lost with" in lost.reason
        assert await stage.keys() == [stage.key]
        # Somebody signs in, in whatever process: all of them go on.
        await stage.save(login_at(auth, version=3, obtained_at=stage.wall, expires_at=stage.wall + 3600.0))
        assert len({token for each in others for token in await until_served(stage, each)}) == 1
        assert stage.server.requests() == 2


# --- stopped ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "postgres"])
@pytest.mark.parametrize("seconds", [1.5, pytest.param(45.0, marks=pytest.mark.soak)])
async def test_f10_6_a_stopped_holder_is_not_robbed_and_who_waits_is_told_at_its_bound(
    seconds: float, kind: str, request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery
) -> None:
    place = place_of(kind, request, tmp_path)
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step="before-post")
        (waiter,) = await crew.enlist(1, stage, threads=THREADS, lock_within=seconds)
        await halted(stage, holder, "before-post")
        crew.stop(holder)
        began = time.monotonic()
        await asking(stage, [waiter])
        got = await outcomes([waiter])
        assert {each.get("error") for each in got} == {"Postponed"}, got
        assert all("somebody else has been refreshing it" in each["text"] for each in got), got
        assert seconds <= time.monotonic() - began < seconds + WITHIN
        assert stage.server.requests() == 0
        crew.go_on(holder)
        tokens = {each.get("token") for each in await outcomes([holder])}
        assert tokens == await until_served(stage, waiter)
        assert len(tokens) == 1 and tokens <= set(auth.access)
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)
        assert await stage.keys() == [stage.key]


@pytest.mark.parametrize("place", ["files"], indirect=True)
async def test_f10_6_an_answer_that_came_while_its_process_was_stopped_is_taken_however_late_it_goes_on(
    place: Place, nursery: Nursery
) -> None:
    """Its time for the request was over meanwhile; but the answer is there, and holds the only refresh token."""
    within = 1.0
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, post_within=within)
        stage.server.hold()
        stage.expire()
        await asking(stage, [holder])
        await auth.until(lambda _: stage.server.requests() == 1, WITHIN)
        crew.stop(holder)
        stage.server.release()
        await auth.until(lambda server: server.at("token")[0].status == 200, WITHIN)
        await asyncio.sleep(1.5 * within)  # the time that is the matter here
        crew.go_on(holder)
        tokens = {each.get("token") for each in await outcomes([holder])}
        assert len(tokens) == 1 and tokens <= set(auth.access)
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)
        assert (await stage.stored()).version == 2


async def test_f17_9_the_late_write_of_a_holder_stopped_longer_than_its_lease_is_fenced_off(
    leased: Place, nursery: Nursery
) -> None:
    """With a server that does not rotate, so that both have a token: that of the successor stays, in both."""
    async with stage_at(leased, rotate=False) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step="before-save")
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        await halted(stage, holder, "before-save")
        crew.stop(holder)
        await asking(stage, [other])
        tokens = {each.get("token") for each in await outcomes([other])}
        assert len(tokens) == 1 and tokens <= set(auth.access)
        crew.go_on(holder)
        assert {each.get("token") for each in await outcomes([holder])} == tokens
        stored = await stage.stored()
        assert (stored.version, {stored.access_token.reveal()}) == (2, tokens)
        assert stage.server.requests() == 2
        assert await stage.keys() == [stage.key]


async def test_f17_9_a_holder_stopped_with_the_answer_of_a_server_that_rotates_loses_the_login_and_all_say_so(
    leased: Place, nursery: Nursery
) -> None:
    """Nobody can know what it holds: the successor finds its mark, asks, and the server ends the family."""
    async with stage_at(leased) as (stage, _), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step="before-save")
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        await halted(stage, holder, "before-save")
        crew.stop(holder)
        await asking(stage, [other])
        got = await outcomes([other])
        assert {each.get("error") for each in got} == {"Dead"}, got
        crew.go_on(holder)
        await outcomes([holder])  # the token of its answer, maybe: its server will tell
        stage.ask([holder], "refused")
        got = await outcomes([holder])
        assert {each.get("error") for each in got} == {"NeedsPerson"}, got
        assert (await stage.stored()).state == "lost"
        assert (stage.server.requests(), stage.server.revoked()) == (2, 1)


@pytest.mark.parametrize("step", ["before-lock", "after-save", "before-unlock"])
async def test_f17_9_a_holder_stopped_where_nothing_is_open_adopts_when_it_goes_on(
    step: str, leased: Place, nursery: Nursery
) -> None:
    async with stage_at(leased) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        await halted(stage, holder, step)
        crew.stop(holder)
        await asking(stage, [other])
        tokens = {each.get("token") for each in await outcomes([other])}
        assert len(tokens) == 1 and tokens <= set(auth.access)
        crew.go_on(holder)
        assert {each.get("token") for each in await outcomes([holder])} == tokens
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)


@pytest.mark.parametrize("step", ["locked", "before-intent", "after-intent"])
async def test_f17_9_a_holder_stopped_before_it_asked_adopts_what_its_successor_wrote(
    step: str, leased: Place, nursery: Nursery
) -> None:
    """And never sends the refresh token that its successor has used up."""
    async with stage_at(leased) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS, step=step)
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        await halted(stage, holder, step)
        crew.stop(holder)
        await asking(stage, [other])
        tokens = {each.get("token") for each in await outcomes([other])}
        assert len(tokens) == 1 and tokens <= set(auth.access)
        crew.go_on(holder)
        got = await outcomes([holder])
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)
        assert {each.get("token") for each in got} == tokens, got


# --- slow ---------------------------------------------------------------------------------------------------------


async def test_f17_9_a_slow_holder_that_lives_is_never_robbed(
    request: pytest.FixtureRequest, tmp_path: Path, nursery: Nursery
) -> None:
    """The server takes longer for its answer than a lease has: it is renewed meanwhile."""
    lease = 2.0
    place = place_of("redis", request, tmp_path, lease)
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        (holder,) = await crew.enlist(1, stage, threads=THREADS)
        (other,) = await crew.enlist(1, stage, threads=THREADS)
        before = await stage.locked()
        stage.server.hold()
        stage.expire()
        await asking(stage, [holder])
        await auth.until(lambda _: stage.server.requests() == 1, WITHIN)
        await asking(stage, [other])
        await asyncio.sleep(2.2 * lease)  # the time that is the matter here
        assert await stage.locked() == before + 1  # by the holder, and nobody since
        stage.server.release()
        tokens = {each.get("token") for each in await outcomes([holder, other])}
        assert len(tokens) == 1 and tokens <= set(auth.access)
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)
