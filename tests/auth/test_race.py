"""One credential that many processes, threads and loops find expired at the same moment: one token request."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from moorings.auth.asked import Subject
from moorings.auth.broker import Broker
from moorings.auth.model import LOCAL
from tests.auth.broker_kit import used
from tests.auth.grants_kit import soon
from tests.auth.race_kit import (
    KINDS,
    WITHIN,
    Nursery,
    Stage,
    crew_of,
    nursery,
    place_of,
    race,
    stage_at,
)
from tests.auth.race_player import Refreshing, broker_of, join_the_rest
from tests.store.backends import Place, open_store

__all__ = ["nursery"]  # the fixture

PROCESSES, THREADS = 8, 8
pytestmark = pytest.mark.timeout(900)  # each wait within has a bound of its own


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.soak)])
async def test_f10_3_eight_processes_of_eight_threads_cause_one_token_request_a_round(
    rounds: int, place: Place, nursery: Nursery
) -> None:
    async with stage_at(place) as (stage, auth), crew_of(nursery) as crew:
        players = await crew.enlist(PROCESSES, stage, threads=THREADS)
        await race(stage, players, rounds, threads=THREADS)
        assert not any(family.revoked for family in auth.families)


@pytest.mark.parametrize("brokers", [1, 2])
async def test_f10_3_two_loops_in_two_threads_with_one_broker_or_two_cause_one_token_request(
    brokers: int, place: Place
) -> None:
    """As two hosts in one process, which have the store's broker in common, or each one of its own."""
    async with stage_at(place) as (stage, _):
        made = [_broker(stage) for _ in range(brokers)]
        stage.expire()
        stage.server.hold()
        subject = Subject(LOCAL, stage.resource)
        waiting = [asyncio.Event() for _ in range(2)]
        loop = asyncio.get_running_loop()
        got: list[str] = []

        def host(number: int) -> None:
            async def ask() -> None:
                calls = [
                    asyncio.ensure_future(made[number % brokers].bearer(subject, soon(WITHIN)))
                    for _ in range(16)
                ]
                await asyncio.sleep(0)
                loop.call_soon_threadsafe(waiting[number].set)
                got.extend(bearer.token.reveal() for bearer in await asyncio.gather(*calls) if bearer)

            asyncio.run(ask())

        with used(*made):
            threads = [threading.Thread(target=host, args=(number,)) for number in range(2)]
            for each in threads:
                each.start()
            for event in waiting:
                await event.wait()
            stage.server.release()
            await _joined(threads)
        join_the_rest()
        assert len(got) == 32 and len(set(got)) == 1
        assert (stage.server.requests(), stage.server.revoked()) == (1, 0)


def _broker(stage: Stage) -> Broker:
    async def opened() -> Any:
        return open_store(stage.place.kind, stage.place.where)

    return broker_of(opened, lambda: stage.wall, Refreshing(lambda: stage.wall))


async def _joined(threads: list[threading.Thread]) -> None:
    """Wait for threads in one more, as the loop has a server to run meanwhile."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def wait() -> None:
        for each in threads:
            each.join(WITHIN)
        loop.call_soon_threadsafe(over.set)

    waiter = threading.Thread(target=wait)
    waiter.start()
    await over.wait()
    waiter.join()
