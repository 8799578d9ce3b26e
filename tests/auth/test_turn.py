"""Whose turn it is to log in, by the note in the store: of the living, the dead, the stopped and those elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings.auth import turn as turns
from moorings.auth.model import login_key
from moorings.auth.turn import ABOUT, Holder, Turn, machine, take_turn
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.host_kit import by_then
from tests.auth.race_kit import KINDS, place_of
from tests.auth.step_kit import Stepped, where

RESOURCE = "https://x.example/mcp"
KEY = login_key("local", RESOURCE)
ELSEWHERE = Holder("elsewhere", 1, "another", "another machine", 0.0)


@contextlib.asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FileStore]:
    store = FileStore(folder)
    try:
        yield store
    finally:
        await store.aclose()


async def leave(store: FileStore, data: bytes | Holder) -> None:
    """A note of somebody's."""
    async with store.lock(KEY, asyncio.get_running_loop().time() + 10) as lease:
        text = data if isinstance(data, bytes) else msgspec.json.encode(data)
        await store.save(KEY, text, lease, about=ABOUT)


async def take(store: FileStore, told: list[str], within: float = 20.0) -> Turn | None:
    until = asyncio.get_running_loop().time() + within
    return await take_turn(
        store, "local", RESOURCE, until=until, waiting=lambda who: told.append(who.mark), wall=time.time
    )


async def ours(store: FileStore, told: list[str], **more: Any) -> None:
    """It is had, and leaves nothing."""
    turn = await take(store, told, **more)
    assert turn is not None and await store.load(KEY) is not None
    await turn.aclose()
    assert await store.load(KEY) is None


def dead() -> Holder:
    """Of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return Holder("dead", process.pid, "here", machine(), 0.0)


@pytest.mark.parametrize("note", ["none", "dead", "left over", "garbage", "another kind"])
async def test_a_note_of_nobody_holds_up_nobody(note: str, tmp_path: Path) -> None:
    told: list[str] = []
    async with opened(tmp_path) as store:
        if note != "none":
            left = {
                "dead": dead(),
                # Of this process, or of another one that had its number.
                "left over": Holder("left", os.getpid(), "here", machine(), 0.0),
                "garbage": b"{",
                "another kind": b'{"mark": 7}',
            }
            await leave(store, left[note])
        async with asyncio.timeout(5):
            await ours(store, told)
    assert not told


async def test_one_elsewhere_that_gives_no_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed there, or stopped: nobody can ask."""
    monkeypatch.setattr(turns, "STALE", 1.0)
    told: list[str] = []
    async with opened(tmp_path) as store:
        await leave(store, ELSEWHERE)
        began = time.monotonic()
        await ours(store, told)
    assert told == ["elsewhere"] and time.monotonic() - began >= 1.0


async def test_one_elsewhere_that_lives_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "STALE", 2.0)
    told: list[str] = []
    async with opened(tmp_path) as store:
        await leave(store, ELSEWHERE)
        waits = asyncio.ensure_future(take(store, told))
        for beat in range(1, 11):
            await asyncio.sleep(0.25)
            await leave(store, msgspec.structs.replace(ELSEWHERE, beat=beat))
        assert not waits.done() and told == ["elsewhere"]
        async with store.lock(KEY, asyncio.get_running_loop().time() + 10) as lease:
            await store.remove(KEY, lease)
        assert await waits is None


async def test_one_that_takes_too_long(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await leave(store, ELSEWHERE)
        with pytest.raises(turns.LoginFault, match="process 1 on another"):
            await take(store, [], within=0.2)


async def test_signs_of_life_go_on_after_the_store_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BEAT", 0.02)
    save, fails = FileStore.save, [StoreError("the disk refused: scripted", store="file")] * 2

    async def failing(store: FileStore, *args: Any, **more: Any) -> None:
        if beats and fails:
            raise fails.pop()
        await save(store, *args, **more)

    beats: list[int] = []
    async with opened(tmp_path) as store:
        turn = await take(store, [])
        assert turn is not None
        monkeypatch.setattr(FileStore, "save", failing)
        beats.append(0)
        await by_then(lambda: not fails)
        note = await store.load(KEY)
        async with asyncio.timeout(10):
            while await store.load(KEY) == note:
                await asyncio.sleep(0.02)
        await turn.aclose()
        assert await store.load(KEY) is None


async def test_one_that_was_taken_away_is_left_to_its_taker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process was stopped for so long that another one began."""
    monkeypatch.setattr(turns, "BEAT", 0.02)
    async with opened(tmp_path) as store:
        turn = await take(store, [])
        assert turn is not None
        await leave(store, ELSEWHERE)
        await by_then(lambda: not len(turn._owner))
        await turn.aclose()
        assert await store.load(KEY) == msgspec.json.encode(ELSEWHERE)


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_where_it_waits(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each wait, one after another, in each store: no note is left that nobody would take away."""
    loop = asyncio.get_running_loop()
    place = place_of(kind, request, tmp_path)
    async with place.open() as store:
        for at in range(1, 100):
            waits, places = itertools.count(1), list[str]()

            def told(work: Any, at: int = at, waits: Any = waits, places: list[str] = places) -> None:
                task = asyncio.current_task()
                if next(waits) == at and task is not None:
                    places.append(where(work))
                    loop.call_soon(task.cancel)

            async def stepped(told: Any = told) -> Turn | None:
                turn: Turn | None = await Stepped(take(store, []), told)
                try:
                    # A lock that is given back through a cancellation puts it off until here.
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    if turn is not None:
                        await turn.aclose()
                    raise
                return turn

            (taken,) = await asyncio.gather(asyncio.ensure_future(stepped()), return_exceptions=True)
            if not places:
                assert isinstance(taken, Turn) and at > 2
                await taken.aclose()
                break
            assert isinstance(taken, asyncio.CancelledError)
            assert await store.load(KEY) is None, (at, places)
            async with asyncio.timeout(10):
                # Nobody beats, and nobody holds its lock.
                await ours(store, [])
        else:
            pytest.fail("it has no end")
