"""What runs on the loop of those who gave it, for a broker on another one."""

from __future__ import annotations

import asyncio

import pytest

from moorings._tasks import TaskOwner
from moorings.host import asking
from moorings.host.asking import Asking


async def elsewhere(work: asking.Asking, times: int) -> list[str]:
    """On a loop of another thread, as a broker's: ask so many times."""

    async def answer() -> str:
        await asyncio.sleep(0)
        return "x"

    return [await work.run(answer, limit=10.0, name="answer") for _ in range(times)]


async def test_an_answer_that_comes_as_the_other_loop_is_looked_at_is_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looked at without a pause, so that the answer comes in each moment of a look."""
    monkeypatch.setattr(asking, "LOOK", 0.0)
    owner = TaskOwner("test")
    work = Asking(owner)
    try:
        answers = await asyncio.to_thread(lambda: asyncio.run(elsewhere(work, 500)))
    finally:
        await owner.aclose()
    assert answers == ["x"] * 500


async def test_a_timeout_of_the_function_itself_is_its_own() -> None:
    owner = TaskOwner("test")
    work = Asking(owner)

    async def late() -> str:
        raise TimeoutError("of its own")

    async def ask() -> str:
        return await work.run(late, limit=10.0, name="late")

    try:
        with pytest.raises(TimeoutError, match="of its own"):
            await asyncio.to_thread(lambda: asyncio.run(ask()))
    finally:
        await owner.aclose()
