"""How a connection to a ``MemoryServer`` ends: in time and whole, whatever its tools do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds, Host, NotSent
from moorings.config.memory import MemoryLine
from moorings.testing import MemoryServer
from moorings.transport.memory import MemoryTransport
from tests.clock import advance, on_running_clock, turns

Era = Literal["handshake", "modern"]
ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
SLACK = 1.0


class Stubborn:
    """A server with a tool that swallows as many requests to end as it is told to."""

    def __init__(self, times: float, era: Era | None = None) -> None:
        self.server = MemoryServer(era=era)
        self.began = asyncio.Event()
        self.free = asyncio.Event()
        """Set by the test, so that even the most stubborn one ends."""
        self.gone = asyncio.Event()
        self.swallowed = 0

        @self.server.tool
        async def hang() -> None:
            self.began.set()
            try:
                while not self.free.is_set():
                    try:
                        await self.free.wait()
                    except asyncio.CancelledError:
                        self.swallowed += 1
                        if self.swallowed > times:
                            raise
            finally:
                self.gone.set()


@ERAS
async def test_a_close_ends_a_tool_that_never_returns(era: Era) -> None:
    stubborn = Stubborn(0, era)
    host = AsyncHost({"s": stubborn.server}, state_dir=False)
    await host.start()
    call = asyncio.ensure_future(host.call("s__hang"))
    await stubborn.began.wait()
    report = await host.close()
    with pytest.raises(AmbiguousDelivery):
        await call
    assert report.clean and report.elapsed < SLACK
    assert stubborn.gone.is_set() and stubborn.server.calls[0].cancelled


async def test_a_tool_that_swallows_its_cancellation_is_asked_again() -> None:
    stubborn = Stubborn(1)
    bounds = Bounds(stop_eof=0.05, stop_term=5.0)
    host = AsyncHost({"s": stubborn.server.spec(bounds=bounds)}, state_dir=False)
    await host.start()
    call = asyncio.ensure_future(host.call("s__hang"))
    await stubborn.began.wait()
    report = await host.close()
    with pytest.raises(AmbiguousDelivery):
        await call
    assert report.clean and 0.04 <= report.elapsed < 0.05 + SLACK
    assert stubborn.swallowed == 2


@pytest.mark.parametrize("how", ["bounds", "deadline"])
async def test_a_tool_that_will_not_end_is_reported_within_the_bound(how: str) -> None:
    stubborn = Stubborn(float("inf"))
    bounds = Bounds(stop_eof=0.05, stop_term=0.05) if how == "bounds" else Bounds()
    host = AsyncHost({"s": stubborn.server.spec(bounds=bounds)}, state_dir=False)
    await host.start()
    call = asyncio.ensure_future(host.call("s__hang"))
    await stubborn.began.wait()
    report = await host.close(10.0 if how == "bounds" else 0.3)
    with pytest.raises(AmbiguousDelivery):
        await call
    assert report.elapsed < 0.4 + SLACK and not report.clean
    assert [each.rsplit(" ", 1)[0] for each in report.stuck] == ["in-process server s: tools/call"]
    stubborn.free.set()
    await stubborn.gone.wait()
    await turns()


def test_a_plain_tool_that_will_not_return_is_reported() -> None:
    server, began, free = MemoryServer(), threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    @server.tool
    def hang() -> None:
        threads.append(threading.current_thread())
        began.set()
        free.wait(30)

    def call(host: Host) -> None:
        with pytest.raises(AmbiguousDelivery):
            host.call("s__hang")

    with Host({"s": server}, state_dir=False) as host:
        caller = threading.Thread(target=call, args=(host,))
        caller.start()
        assert began.wait(10)
        report = host.close()
        caller.join()
    assert report.elapsed < SLACK
    assert report.stuck == ("in-process server s: a plain function that does not return",)
    free.set()
    threads[0].join()


async def test_a_restart_ends_what_ran_and_connects_again() -> None:
    stubborn = Stubborn(0)
    async with AsyncHost({"s": stubborn.server}, state_dir=False) as host:
        call = asyncio.ensure_future(host.call("s__hang"))
        await stubborn.began.wait()
        await host.restart("s")
        with pytest.raises((AmbiguousDelivery, NotSent)):
            await call
        assert stubborn.gone.is_set()
        await host.wait_ready(10)
    assert stubborn.server.starts == 2


# The transport by itself


class Receiver:
    """Keeps what a transport tells."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def message(self, line: bytes | bytearray) -> None:
        self.heard.append(bytes(line))

    def oversize(self, frame: Any) -> None:
        self.heard.append(frame.size)

    def leader_gone(self, exit_code: int) -> None:
        raise AssertionError

    def closed(self, how: Any) -> None:
        self.heard.append(how)


class App:
    """A server that is the test itself: it keeps its line and what came."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.closes = 0
        self.fail = False
        self.line: Any = None

    def open_line(self, line: MemoryLine) -> App:
        self.line = line
        return self

    def hear(self, frame: bytes) -> None:
        self.heard.append(frame)
        if self.fail:
            raise ValueError("a fault of the object")

    def closed(self) -> None:
        self.closes += 1


def wired(**settings: Any) -> tuple[App, Receiver, MemoryTransport]:
    app, receiver = App(), Receiver()
    given = {"max_message": 100, "max_outbox": 100, "patience": (1.0, 1.0), **settings}
    transport = MemoryTransport("t", app, receiver, **given)
    transport.start()
    return app, receiver, transport


async def stop(transport: MemoryTransport) -> Any:
    return await transport.stop(asyncio.get_running_loop().time() + 10)


async def test_nothing_is_handed_over_inside_of_send_or_say() -> None:
    app, receiver, transport = wired()
    outgoing = transport.send(b"one\n")
    app.line.say(b"two\nthr")
    assert (app.heard, receiver.heard, outgoing.started) == ([], [], False)
    await turns(1)
    assert (app.heard, receiver.heard, outgoing.finished) == ([b"one"], [b"two"], True)
    app.line.say(b"ee\n\n" + b"x" * 200 + b"\n")
    await turns(1)
    assert receiver.heard == [b"two", b"three", 200]
    await stop(transport)


async def test_a_frame_is_withdrawn_while_it_waits() -> None:
    app, _, transport = wired()
    first, second = transport.send(b"1\n"), transport.send(b"2\n")
    assert transport.withdraw(first) and not transport.withdraw(first)
    await turns(1)
    assert app.heard == [b"2"] and not transport.withdraw(second)
    await stop(transport)


async def test_the_outbox_is_bounded() -> None:
    from moorings.transport.base import OutboxFull

    _, _, transport = wired()
    transport.send(b"x" * 60 + b"\n")
    with pytest.raises(OutboxFull):
        transport.send(b"x" * 60 + b"\n")
    with pytest.raises(ValueError, match="line break"):
        transport.send(b"two\nlines\n")
    await turns(1)
    transport.send(b"x" * 60 + b"\n")
    await stop(transport)
    with pytest.raises(ConnectionError):
        transport.send(b"late\n")


async def test_the_end_comes_after_what_was_said_and_nothing_after_it() -> None:
    app, receiver, transport = wired()
    app.line.say(b"last\n")
    app.line.end("went away", exit_code=2, stderr="words")
    app.line.say(b"late\n")
    app.line.end("again")
    lost = transport.send(b"lost\n")
    await turns(2)
    assert receiver.heard[0] == b"last" and len(receiver.heard) == 2
    assert (receiver.heard[1].reason, receiver.heard[1].exit_code) == ("went away", 2)
    assert transport.stderr_tail() == "words" and app.closes == 1 and lost.started == bool(app.heard)
    await stop(transport)
    assert app.closes == 1


async def test_an_object_that_fails_on_a_message_ends_its_connection(caplog: Any) -> None:
    app, receiver, transport = wired()
    app.fail = True
    transport.send(b"1\n")
    transport.send(b"2\n")
    await turns(3)
    assert receiver.heard[-1].reason.startswith("failed on a message: ValueError")
    assert "the in-process server failed on a message" in caplog.text
    await stop(transport)


async def test_work_begun_after_the_end_is_closed() -> None:
    app, _, transport = wired()
    await stop(transport)
    with pytest.raises(ConnectionError):
        app.line.run(asyncio.sleep(1), name="late")
    app.line.post(lambda: app.hear(b"late"))
    await turns(2)
    assert app.heard == []


@on_running_clock
async def test_a_stop_under_way_is_hastened() -> None:
    app, _, transport = wired(patience=(1000.0, 1000.0))
    free = asyncio.Event()

    async def stubborn() -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                pass

    loop = asyncio.get_running_loop()
    task = app.line.run(stubborn(), name="stubborn")
    await turns(1)
    stopping = asyncio.ensure_future(transport.stop(loop.time() + 5000))
    await turns()
    advance(400)
    await turns()
    assert not stopping.done()
    transport.hasten(loop.time() + 0.2)
    record = await stopping
    assert record.stuck == ("in-process server t: stubborn",) and record.elapsed < 402
    free.set()
    await task
    await turns()


async def test_a_stop_is_not_cut_short() -> None:
    app, _, transport = wired()
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(10)
            cleaned.set()

    app.line.run(work(), name="work")
    await turns(1)
    stopping = asyncio.ensure_future(stop(transport))
    await turns(2)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert cleaned.is_set()
