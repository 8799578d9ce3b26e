"""What a verb does in an event loop ends in order when a signal asks for it, wherever the signal strikes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from moorings.cli.running import run

SIGNALS = [signal.SIGTERM, signal.SIGHUP]


class Ended(BaseException):
    pass


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    """As the command has them."""

    def end(number: int, _: object) -> None:
        raise Ended(number)

    before = {each: signal.signal(each, end) for each in SIGNALS}
    try:
        yield
        assert all(signal.getsignal(each) is end for each in SIGNALS)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


async def strike(number: int) -> None:
    os.kill(os.getpid(), number)
    await asyncio.sleep(0)
    await asyncio.Event().wait()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("in_a_task", [False, True])
def test_it_ends_in_order(number: int, in_a_task: bool) -> None:
    order: list[str] = []

    async def main() -> None:
        task = asyncio.ensure_future(strike(number)) if in_a_task else None
        try:
            await (task if task is not None else strike(number))
        finally:
            await asyncio.sleep(0.01)
            order.append("tidied")

    with pytest.raises(Ended) as ended:
        run(main())
    assert ended.value.args == (number,) and order == ["tidied"]


def test_again_and_again() -> None:
    async def main() -> None:
        for _ in range(5):
            with suppress(asyncio.CancelledError):
                await strike(signal.SIGTERM)

    with pytest.raises(Ended):
        run(main())


def test_it_counts_whatever_came_of_it() -> None:
    async def main() -> str:
        with suppress(asyncio.CancelledError):
            await strike(signal.SIGTERM)
        return "done"

    async def fails() -> None:
        with suppress(asyncio.CancelledError):
            await strike(signal.SIGTERM)
        raise ValueError

    for each in (main(), fails()):
        with pytest.raises(Ended):
            run(each)


def test_without_a_signal_it_is_as_ever() -> None:
    async def main() -> str:
        return "done"

    async def fails() -> None:
        raise ValueError("no")

    assert run(main()) == "done"
    with pytest.raises(ValueError, match="no"):
        run(fails())


def test_one_that_is_not_handled_stays_so() -> None:
    async def main() -> None:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)

    end = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run(main())
    finally:
        signal.signal(signal.SIGHUP, end)
