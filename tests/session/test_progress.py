"""Progress callbacks: in the caller's task and context, in order, before the result; and tokens that are nobody's."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import CallTimeout, Host
from tests.clock import advance, on_movable_clock, turns
from tests.faults.script import fault_server
from tests.session.hosting import EMPTY, scripted, sizes_of
from tests.session.memory_transport import Wired

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@ERAS
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_progress_is_told_in_order_and_before_the_result(tmp_path: Path, era: str, kind: str) -> None:
    host, log = scripted(tmp_path, era=era)
    told: list[Any] = []

    def plain(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message, asyncio.current_task(), WHO.get()))

    async def coroutine(progress: float, total: float | None, message: str | None) -> None:
        await asyncio.sleep(0.001)
        plain(progress, total, message)

    async with host:
        await host.wait_ready()
        WHO.set("the caller")
        callback: Callable[..., Any] = plain if kind == "plain" else coroutine
        result = await host.call("s__progress", {"count": 20, "interval": 0}, on_progress=callback)
        told.append(result.text)
        me = asyncio.current_task()
        assert told == [*((n, 20, f"step {n}", me, "the caller") for n in range(1, 21)), "done"]
        assert not log.entries("no_token") and sizes_of(host) == EMPTY
        assert host.status()["s"].counters.stray_progress == 0
    assert log.violations() == []


async def test_each_call_hears_its_own_progress_only(tmp_path: Path) -> None:
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        told: dict[int, list[float]] = {n: [] for n in range(8)}
        await asyncio.gather(
            *(
                host.call(
                    "s__progress", {"count": n + 1, "interval": 0.002, "step": n + 1},
                    on_progress=lambda done, total, message, n=n: told[n].append(done),
                )
                for n in told
            )
        )  # fmt: skip
        assert told == {n: [step * (n + 1) for step in range(1, n + 2)] for n in range(8)}


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_callback_that_fails_is_counted_and_changes_no_outcome(tmp_path: Path, kind: str) -> None:
    host, _ = scripted(tmp_path)

    def plain(*_: Any) -> None:
        raise ValueError("the user's own")

    async def coroutine(*_: Any) -> None:
        raise TimeoutError("the user's own")

    async with host:
        await host.wait_ready()
        callback: Callable[..., Any] = plain if kind == "plain" else coroutine
        result = await host.call("s__progress", {"count": 5, "interval": 0}, on_progress=callback)
        assert result.text == "done"
        assert host.status()["s"].counters.handler_errors == 5


@on_movable_clock
async def test_a_slow_callback_delays_its_own_call_and_nobody_elses() -> None:
    wired = Wired()
    release = asyncio.Event()
    told: list[float] = []

    async def slow(progress: float, *_: Any) -> None:
        await release.wait()
        told.append(progress)

    slowly = asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock(), on_progress=slow))
    other = asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock()))
    await turns()
    for n in range(1, 4):
        wired.progress(1, n)
    wired.answer(1, {"slow": 1})
    wired.answer(2, {"other": 1})
    assert bytes(await other) == b'{"other": 1}'
    await turns()
    assert not slowly.done() and told == []
    release.set()
    assert bytes(await slowly) == b'{"slow": 1}' and told == [1, 2, 3]
    assert wired.empty()
    await wired.aclose()


@on_movable_clock
async def test_a_callback_that_never_returns_ends_with_the_limit_of_its_call() -> None:
    """The answer was there: it is handed over; without one the call times out."""
    for answered in (True, False):
        wired = Wired()

        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        call = asyncio.ensure_future(
            wired.session.request("tools/call", {}, wired.clock(60, 600), on_progress=never)
        )
        await turns()
        wired.progress(1, 1)
        if answered:
            wired.answer(1, {"done": 1})
        await turns()
        assert not call.done()
        advance(60)
        await turns(10)
        if answered:
            assert bytes(await call) == b'{"done": 1}'
        else:
            with pytest.raises(CallTimeout):
                await call
        assert wired.empty()
        await wired.aclose()


@on_movable_clock
async def test_a_flood_of_progress_for_a_slow_callback_is_bounded_and_the_newest_is_told() -> None:
    wired = Wired()
    release = asyncio.Event()
    told: list[float] = []

    async def slow(progress: float, *_: Any) -> None:
        told.append(progress)
        await release.wait()

    call = asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock(), on_progress=slow))
    await turns()
    for n in range(5000):
        wired.progress(1, n)
        if n == 0:
            await turns()
    release.set()
    wired.answer(1)
    await call
    assert told[0] == 0 and told[-1] == 4999 and len(told) < 300 and told == sorted(told)
    await wired.aclose()


@on_movable_clock
async def test_f8_8_progress_with_an_unknown_or_finished_token_is_dropped_and_counted() -> None:
    """F8.8: whatever the token is; the connection lives."""
    wired = Wired()
    told: list[float] = []

    async def call() -> None:
        await wired.session.request(
            "tools/call", {}, wired.clock(), on_progress=lambda done, *_: told.append(done)
        )

    task = asyncio.ensure_future(call())
    await turns()
    strays: list[Any] = ["nobody", 99, -1, 1.5, "", "01", 10**30]
    for token in strays:
        wired.progress(token, 1)
    wired.progress("1", 7)  # an echoed number as text still means it
    wired.answer(1)
    wired.progress(1, 8)
    await task
    wired.progress(1, 9)
    for params in ({}, {"progressToken": 1}, {"progressToken": None, "progress": 1}, [], "text", None):
        wired.say({"method": "notifications/progress", "params": params})
    counters = wired.session.counters
    assert told == [7] and counters.stray_progress == len(strays) + 2 + 6
    assert counters.not_jsonrpc == 0 and wired.empty()
    await wired.aclose()


async def test_f8_8_the_same_from_a_real_server(tmp_path: Path) -> None:
    """F8.8: dropped, counted in the status; the calls are answered."""
    host, _ = scripted(tmp_path)
    async with host:
        await host.wait_ready()
        for token in ("unknown", "finished"):
            result = await host.call("s__progress", {"count": 3, "interval": 0, "token": token})
            assert result.text == "done"
        assert host.status()["s"].counters.stray_progress == 6
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


@ERAS
async def test_every_tool_call_offers_a_token_so_that_progress_can_extend_it(
    tmp_path: Path, era: str
) -> None:
    """A caller without a callback profits from progress too."""
    host, log = scripted(tmp_path, era=era, journal_raw=True)
    async with host:
        await host.call("s__echo", {"text": "x"}, meta={"trace": "t1"})
        (entry,) = log.entries("received", tool="echo")
        assert entry["params"]["_meta"]["progressToken"] == entry["id"]
        assert entry["params"]["_meta"]["trace"] == "t1"
    assert log.violations() == []


def test_the_callback_of_a_blocking_call_has_the_callers_context(tmp_path: Path) -> None:
    """It runs on the loop thread, in the context of the thread that called."""
    told: list[tuple[float, str, bool]] = []
    WHO.set("a blocking caller")

    def on_progress(progress: float, *_: Any) -> None:
        told.append((progress, WHO.get(), threading.current_thread() is threading.main_thread()))

    with Host({"s": fault_server()}, state_dir=False) as host:
        result = host.call("s__progress", {"count": 3, "interval": 0}, on_progress=on_progress)
    assert result.text == "done" and told == [(n, "a blocking caller", False) for n in (1, 2, 3)]
