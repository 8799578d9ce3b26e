"""Notifications on their way to handlers: the reader never waits for them (field faults 8)."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import Bounds, Handlers, State
from moorings.wire.types import LogParams
from tests.clock import turns
from tests.session.hosting import EMPTY, scripted, sizes_of
from tests.session.memory_transport import Wired

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


class Logs:
    """Hears log messages; a test may wait for some of them, and may keep the handler from returning."""

    def __init__(self, *, held: bool = False) -> None:
        self.heard: list[Any] = []
        self.go = asyncio.Event()
        if not held:
            self.go.set()
        self._news = asyncio.Event()
        self.handlers = Handlers(on_log=self._on)

    async def _on(self, server: str, params: LogParams) -> None:
        self.heard.append(params.data)
        self._news.set()
        await self.go.wait()

    async def count(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self._news.clear()
                await self._news.wait()


# --- floods ---------------------------------------------------------------------------------------------------------


@ERAS
async def test_f8_1_a_thousand_notifications_that_nobody_hears_cost_nothing(tmp_path: Path, era: str) -> None:
    """F8.1: with no handler they are counted and dropped, and the next call is answered at once."""
    host, log = scripted(tmp_path, era=era)
    async with host:
        await host.wait_ready(10)
        await host.call("s__notify", {"count": 1000})
        began = time.monotonic()
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
        assert time.monotonic() - began < 0.5
        counters = host.status()["s"].counters
        assert (counters.unheard_notifications, counters.dropped_notifications) == (1000, 0)
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


@ERAS
async def test_f8_1_a_handler_that_does_not_return_blocks_nothing(tmp_path: Path, era: str) -> None:
    """F8.1: given 1,000 notifications and a handler that is slow, calls are answered at once, the queue is bounded,
    what it could not hold is counted, and the newest are kept."""
    logs = Logs(held=True)
    host, log = scripted(
        tmp_path, era=era, handlers=logs.handlers, bounds=Bounds(notifications=100, question=5)
    )
    async with host:
        await host.wait_ready(10)
        await host.call("s__notify", {"count": 1000})
        await logs.count(1)
        began = time.monotonic()
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
        assert time.monotonic() - began < 0.5
        assert sizes_of(host)["notices"] == 100
        assert host.status()["s"].counters.dropped_notifications == 1000 - 100 - 1
        logs.go.set()
        await logs.count(101)
        assert logs.heard == [logs.heard[0], *range(900, 1000)]
        await turns()
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


async def test_f8_1_with_a_handler_of_a_second_each_the_host_closes_in_time(tmp_path: Path) -> None:
    """Given a queue that would take a quarter of an hour, the close does not wait for it."""
    heard: list[Any] = []

    async def on_log(server: str, params: LogParams) -> None:
        heard.append(params.data)
        await asyncio.sleep(1)

    host, _ = scripted(tmp_path, handlers=Handlers(on_log=on_log))
    async with host:
        await host.wait_ready(10)
        await host.call("s__notify", {"count": 1000})
        for n in range(20):
            assert (await host.call("s__echo", {"text": str(n)})).text == str(n)
        report = await host.close(5)
        assert report.clean and report.elapsed < 2
    assert len(heard) < 5


async def test_a_flood_while_calls_go_on_reaches_its_handler_in_order(tmp_path: Path) -> None:
    """Given 5,000 notifications in a second, each call in between is answered, and nothing is lost or turned round."""
    logs = Logs()
    host, log = scripted(tmp_path, handlers=logs.handlers, bounds=Bounds(notifications=5000))
    async with host:
        await host.wait_ready(10)
        await host.call("s__flood", {"rate": 5000, "seconds": 1})
        answered = 0
        while not log.entries("effect", name="flooded"):
            await host.call("s__echo")
            answered += 1
        await logs.count(5000)
        assert logs.heard == list(range(5000))
        assert answered > 10
        assert host.status()["s"].counters.dropped_notifications == 0


async def test_the_exact_interleaving_of_a_full_queue() -> None:
    """By hand: of five notifications with room for two, the first is being heard, and the last two wait."""
    logs = Logs(held=True)
    wired = Wired(logs.handlers, notifications=2)
    say(wired, 1)
    await turns()
    for n in (2, 3, 4, 5):
        say(wired, n)
    assert wired.session.counters.dropped_notifications == 2
    assert len(wired.session._notices) == 2
    logs.go.set()
    await turns(20)
    assert logs.heard == [1, 4, 5]
    assert wired.session.sizes() == EMPTY
    await wired.aclose()


def say(wired: Wired, data: Any) -> None:
    wired.say({"method": "notifications/message", "params": {"level": "info", "data": data}})


# --- handlers -------------------------------------------------------------------------------------------------------


@ERAS
async def test_f8_2_a_handler_may_use_the_very_connection(tmp_path: Path, era: str) -> None:
    """F8.2: given a handler of list_changed that lists the tools and calls one, nothing waits for itself."""
    outcomes: list[Any] = []
    done = asyncio.Event()

    async def on_notification(server: str, method: str, params: Any) -> None:
        if method == "notifications/tools/list_changed":
            raw = await host.request("s", "tools/list")
            listed = await host.server("s").tools()
            said = await host.call("s__echo", {"text": "from the handler"})
            outcomes.append((len(raw["tools"]), "x" in {tool.name for tool in listed}, said.text))
            done.set()

    host, log = scripted(tmp_path, era=era, handlers=Handlers(on_notification=on_notification))
    async with host:
        await host.wait_ready(10)
        if era == "modern":
            await log.seen("received", method="subscriptions/listen")
        await host.call("s__list_changed", {"add_tool": "x"})
        async with asyncio.timeout(5):
            await done.wait()
        assert outcomes == [(len(await host.tools()), True, "from the handler")]
    assert log.violations() == []


async def test_a_handler_that_fails_is_counted_and_the_next_notification_is_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Plain or async, by an error or by a cancellation of its own making: it costs that notification only."""
    heard: list[Any] = []

    def plain(server: str, params: LogParams) -> None:
        heard.append(params.data)
        if params.data % 2:
            raise ValueError("no odd ones")

    async def own_cancel(server: str, params: LogParams) -> None:
        heard.append(params.data)
        if params.data % 2:
            raise asyncio.CancelledError

    for number, handler in enumerate((plain, own_cancel)):
        heard.clear()
        folder = tmp_path / str(number)
        folder.mkdir()
        host, _ = scripted(folder, handlers=Handlers(on_log=handler))
        async with host:
            await host.wait_ready(10)
            await host.call("s__notify", {"count": 10})
            assert (await host.call("s__echo", {"text": "on"})).text == "on"
            await turns(50)
            assert heard == list(range(10))
            assert host.status()["s"].counters.handler_errors == 5
            assert host.status()["s"].state is State.READY
    assert "the listener of notifications/message failed: ValueError('no odd ones')" in caplog.text


@pytest.mark.parametrize("fails", [False, True])
async def test_plain_handlers_leave_the_loop_its_turns(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Given 1,000 notifications for a plain handler, failing or not, other tasks run in between."""
    heard_at: list[int] = []
    turn = 0

    def on_log(server: str, params: LogParams) -> None:
        heard_at.append(turn)
        if fails:
            raise ValueError

    wired = Wired(Handlers(on_log=on_log))
    with caplog.at_level(logging.CRITICAL, "moorings"):
        for n in range(1000):
            say(wired, n)
        while len(heard_at) < 1000:
            turn += 1
            await asyncio.sleep(0)
    assert heard_at[-1] >= 900
    await wired.aclose()


async def test_the_close_of_a_host_ends_a_handler_and_drops_what_waits(tmp_path: Path) -> None:
    logs = Logs(held=True)
    host, _ = scripted(tmp_path, handlers=logs.handlers)
    async with host:
        await host.wait_ready(10)
        await host.call("s__notify", {"count": 10})
        await logs.count(1)
        report = await host.close(5)
        assert report.clean
    assert logs.heard == [0]


async def test_unreadable_notifications_are_dropped_one_by_one(tmp_path: Path) -> None:
    """Given params of a wrong shape, the handler of that kind is not called, and the next one is heard."""
    logs = Logs()
    host, _ = scripted(tmp_path, handlers=logs.handlers)
    async with host:
        await host.wait_ready(10)
        for params in ({"level": 7}, ["x"], {"level": "info", "data": "good"}):
            await host.call("s__notify", {"params": params})
        await logs.count(1)
        assert logs.heard == ["good"]
        assert (await host.call("s__echo", {"text": "on"})).text == "on"


@ERAS
async def test_each_kind_goes_to_its_own_handler(tmp_path: Path, era: str) -> None:
    """Logs, updates of resources, and the rest; the rest is what nobody has a handler of its own for."""
    heard: list[tuple[str, Any]] = []
    handlers = Handlers(
        on_log=lambda server, params: heard.append(("log", params.data)),
        on_resource_updated=lambda server, uri: heard.append(("updated", uri)),
        on_notification=lambda server, method, params: heard.append((method, params)),
    )
    host, _ = scripted(tmp_path, era=era, handlers=handlers)
    async with host:
        await host.wait_ready(10)
        updated = {"method": "notifications/resources/updated", "params": {"uri": "res://0"}}
        for notification in (
            {"params": {"level": "info", "data": 1}},
            updated,
            {"method": "notifications/vendor/thing", "params": {"x": 1}},
        ):
            await host.call("s__notify", notification)
        await turns(20)
        assert heard == [("log", 1), ("updated", "res://0"), ("notifications/vendor/thing", {"x": 1})]


# --- odd moments ----------------------------------------------------------------------------------------------------


async def test_f8_7_a_log_line_and_a_ping_before_the_answer_to_initialize(tmp_path: Path) -> None:
    """F8.7: the ping is answered, the line is delivered, and the server becomes ready."""
    logs = Logs()
    host, log = scripted(
        tmp_path, handlers=logs.handlers, on_initialize="log_and_ping_first", protocol="handshake"
    )
    async with host:
        assert (await host.wait_ready(5)).ready == ("s",)
        await logs.count(1)
        assert logs.heard == ["starting"]
        answers = log.entries("response")
        assert len(answers) == 1 and answers[0]["error"] is None
    assert log.violations() == []


@ERAS
@pytest.mark.parametrize("token", ["unknown", "finished"])
async def test_f8_8_progress_for_nobody_is_dropped_and_counted(tmp_path: Path, era: str, token: str) -> None:
    """F8.8: given a token that is unknown or done, no callback hears of it, and the connection lives."""
    heard: list[float] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        heard.append(done)

    host, log = scripted(tmp_path, era=era)
    async with host:
        await host.wait_ready(10)
        await host.call("s__echo", on_progress=on_progress)
        said = await host.call(
            "s__progress", {"count": 5, "interval": 0, "token": token}, on_progress=on_progress
        )
        assert said.text == "done"
        assert heard == []
        assert host.status()["s"].counters.stray_progress == 5
        assert (await host.call("s__echo", {"text": "on"})).text == "on"
    assert log.violations() == []


async def test_notifications_after_the_end_are_not_heard() -> None:
    """By hand: what comes in behind the end of a conversation starts no task that nobody would end."""
    logs = Logs()
    wired = Wired(logs.handlers)
    wired.session.fail("closed")
    say(wired, 1)
    await turns()
    assert logs.heard == [] and wired.session.sizes() == EMPTY
    await wired.aclose()


async def test_a_handler_does_not_belong_to_the_run_in_which_its_server_was_started(tmp_path: Path) -> None:
    """Given a lazy server that a run was the first to use, its notifications are handled in no run: a handler may go
    on using the host when that run is over."""
    said: asyncio.Queue[str] = asyncio.Queue()

    async def on_log(server: str, params: LogParams) -> None:
        said.put_nowait((await host.call("s__echo", {"text": "heard"})).text)

    host, _ = scripted(tmp_path, handlers=Handlers(on_log=on_log), lazy=True)
    async with host:
        async with host.run(timeout=10):
            await host.call("s__notify")
        await host.call("s__notify")
        async with asyncio.timeout(5):
            assert [await said.get(), await said.get()] == ["heard", "heard"]
        assert host.status()["s"].counters.handler_errors == 0


# --- what cannot be read, and how much may wait


async def test_a_notification_that_cannot_be_read_is_the_fault_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It reaches no listener, is counted apart, is told in a few lines however many come, and the next is heard."""
    heard: list[Any] = []
    handlers = Handlers(
        on_log=lambda server, params: heard.append(params.data),
        on_resource_updated=lambda server, uri: heard.append(uri),
        on_notification=lambda server, method, params: heard.append(params),
    )
    wired = Wired(handlers)
    for method, params in (
        ("notifications/resources/updated", '{"uri":[]}'),
        ("notifications/vendor", '{"x":1e999}'),
    ):
        for _ in range(100):
            wired.session.message(f'{{"jsonrpc":"2.0","method":"{method}","params":{params}}}'.encode())
    say(wired, "on")
    async with asyncio.timeout(5):
        while "on" not in heard:
            await asyncio.sleep(0)
    assert heard == ["on"]
    assert wired.session._notices.malformed == 200
    assert wired.session.counters.handler_errors == 0
    assert 1 <= len(caplog.records) <= 10
    assert "cannot be read" in caplog.text and "listener" not in caplog.text
    await wired.aclose()


async def test_a_listener_that_always_fails_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def on_log(server: str, params: LogParams) -> None:
        raise ValueError("no")

    wired = Wired(Handlers(on_log=on_log))
    for n in range(500):
        say(wired, n)
    async with asyncio.timeout(5):
        while wired.session.counters.handler_errors < 500:
            await asyncio.sleep(0)
    assert 1 <= len(caplog.records) <= 10
    await wired.aclose()


async def test_what_waits_is_bounded_in_bytes_too() -> None:
    """Given few notifications that are large, the oldest are dropped and counted, and the newest are kept."""
    logs = Logs(held=True)
    wired = Wired(logs.handlers)
    megabyte = "x" * 1024 * 1024
    say(wired, "first")
    await turns()
    for n in range(40):
        say(wired, f"{n} {megabyte}")
    waiting = len(wired.session._notices)
    assert waiting == 15  # 16 MiB, and each is a little more than one
    assert wired.session.counters.dropped_notifications == 40 - waiting
    # One that is larger than all that may wait drops the rest, and waits alone.
    say(wired, "large " + megabyte * 17)
    assert len(wired.session._notices) == 1
    logs.go.set()
    await turns(20)
    assert [str(data)[:5] for data in logs.heard] == ["first", "large"]
    say(wired, "after")
    await turns()
    assert logs.heard[-1] == "after" and wired.session.sizes() == EMPTY
    await wired.aclose()
