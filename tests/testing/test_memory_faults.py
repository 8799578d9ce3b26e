"""Each scripted fault of a ``MemoryServer``, and the outcome that a host makes of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallTimeout,
    Host,
    MisuseError,
    NotSent,
    Refused,
    ServerDied,
    StartError,
    State,
)
from moorings.testing import Die, Hold, Malformed, MemoryServer, NoAnswer, Refuse, ToolAnnotations

Era = Literal["handshake", "modern"]
ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
RAN = pytest.mark.parametrize("ran", [False, True])


class Counting:
    """A server whose tools count what they did."""

    def __init__(self, era: Era | None = None) -> None:
        self.server = MemoryServer(era=era)
        self.done = 0

        @self.server.tool
        async def add() -> int:
            self.done += 1
            return self.done

        @self.server.tool(annotations=ToolAnnotations(idempotent_hint=True))
        async def put() -> str:
            self.done += 1
            return "put"

    def host(self, **bounds: float) -> AsyncHost:
        return AsyncHost({"s": self.server.spec(bounds=Bounds(**bounds))}, state_dir=False)  # type: ignore[arg-type]


@ERAS
@RAN
async def test_a_call_is_held_until_the_test_lets_it_go(era: Era, ran: bool) -> None:
    counting = Counting(era)
    hold = counting.server.fail_next(Hold(ran=ran), tool="add")
    async with counting.host() as host:
        held = asyncio.ensure_future(host.call("s__add"))
        await hold.struck()
        assert counting.done == ran
        assert (await host.call("s__put")).text == "put"
        assert not held.done()
        hold.release()
        assert not (await held).is_error
    assert counting.done == 2 and not counting.server.faults_left


@ERAS
async def test_a_held_call_that_is_given_up_never_runs(era: Era) -> None:
    counting = Counting(era)
    hold = counting.server.fail_next(Hold())
    async with counting.host() as host:
        call = asyncio.ensure_future(host.call("s__add"))
        await hold.struck()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await host.call("s__put")
        hold.release()
    assert counting.done == 1
    assert [(call.ran, call.cancelled) for call in counting.server.calls] == [(False, True), (True, False)]


def test_a_thread_holds_a_call_of_another() -> None:
    counting = Counting()
    hold = counting.server.fail_next(Hold())
    texts: list[str] = []
    with Host({"s": counting.server}, state_dir=False) as host:
        caller = threading.Thread(target=lambda: texts.append(host.call("s__add").text))
        caller.start()
        hold.wait_struck()
        assert texts == []
        hold.release()
        caller.join()
    assert texts == ["1"]


def test_a_fault_that_does_not_strike_in_time_says_so() -> None:
    with pytest.raises(TimeoutError, match="Hold"):
        Hold().wait_struck(0.0)


@ERAS
async def test_a_call_is_refused(era: Era) -> None:
    counting = Counting(era)
    counting.server.fail_next(Refuse(-32000, "too hot", {"degrees": 40}), times=2)
    async with counting.host() as host:
        for _ in range(2):
            with pytest.raises(Refused, match="too hot") as caught:
                await host.call("s__add")
            assert (caught.value.rpc_code, caught.value.data) == (-32000, {"degrees": 40})
        assert (await host.call("s__add")).text == "1"
    assert [call.ran for call in counting.server.calls] == [False, False, True]


@ERAS
@RAN
async def test_the_connection_is_lost_in_a_call(era: Era, ran: bool) -> None:
    counting = Counting(era)
    counting.server.fail_next(Die(ran=ran, exit_code=3, stderr="KeyError: 'the cause'\n"))
    async with counting.host() as host:
        with pytest.raises(AmbiguousDelivery, match=r"exit code 3.*the cause") as caught:
            await host.call("s__add")
        assert caught.value.sent and counting.done == ran
        # The next use of the server connects again.
        assert (await host.call("s__add")).text == str(1 + ran)
        assert host.status()["s"].generation == 2
    assert counting.server.starts == 2
    assert [(call.ran, call.cancelled) for call in counting.server.calls] == [(ran, False), (True, False)]


@ERAS
async def test_what_may_be_repeated_is_repeated_on_the_next_connection(era: Era) -> None:
    counting = Counting(era)
    counting.server.fail_next(Die(ran=True))
    async with counting.host() as host:
        assert (await host.call("s__put")).text == "put"
    assert (counting.done, counting.server.starts) == (2, 2)


@ERAS
@RAN
async def test_a_call_is_never_answered(era: Era, ran: bool) -> None:
    counting = Counting(era)
    fault = counting.server.fail_next(NoAnswer(ran=ran))
    async with counting.host() as host:
        await host.wait_ready(10)
        call = asyncio.ensure_future(host.call("s__add", timeout=0.05))
        await fault.struck()
        with pytest.raises(CallTimeout):
            await call
        assert counting.done == ran
        assert (await host.call("s__add")).text == str(1 + ran)
        assert host.status()["s"].generation == 1


@ERAS
async def test_an_answer_is_malformed(era: Era) -> None:
    counting = Counting(era)
    server = counting.server
    server.fail_next(Malformed())
    server.fail_next(Malformed('{"jsonrpc":"2.0","id":{id},"result":{"content":'))
    server.fail_next(Malformed("Traceback (most recent call last):", ran=False))
    async with counting.host() as host:
        await host.wait_ready(10)
        for _ in range(2):
            with pytest.raises(AmbiguousDelivery, match="invalid answer"):
                await host.call("s__add")
        # A line that shows no id is noise: its caller waits out the limit.
        with pytest.raises(CallTimeout):
            await host.call("s__add", timeout=0.05)
        assert counting.done == 2
        assert (await host.call("s__add")).text == "3"


@ERAS
async def test_an_oversize_answer_costs_its_call_alone(era: Era) -> None:
    counting = Counting(era)

    @counting.server.tool
    def much() -> str:
        return "x" * 10_000

    async with counting.host(max_message=5_000) as host:
        with pytest.raises(AmbiguousDelivery, match="over the cap"):
            await host.call("s__much")
        assert (await host.call("s__add")).text == "1"


@ERAS
async def test_a_server_is_lost_between_calls(era: Era) -> None:
    counting = Counting(era)
    async with counting.host() as host:
        assert (await host.call("s__add")).text == "1"
        counting.server.die()
        assert (await host.call("s__add")).text == "2"
    assert counting.server.starts == 2


@ERAS
async def test_a_start_fails_and_the_next_does_not(era: Era) -> None:
    counting = Counting(era)
    counting.server.fail_starts()
    async with counting.host(cooldown=0.0) as host:
        readiness = await host.wait_ready(10)
        assert "refused by the test" in readiness.failed["s"]
        assert isinstance(host.status()["s"].last_error, StartError)
        assert (await host.call("s__add")).text == "1"
    assert counting.server.starts == 2


async def test_a_server_that_dies_while_it_starts_has_failed() -> None:
    counting = Counting()
    counting.server.fail_next(Die(exit_code=1), method="server/discover")
    async with counting.host() as host:
        await host.wait_ready(10)
        status = host.status()["s"]
        assert isinstance(status.last_error, ServerDied) and status.state is not State.READY
        with pytest.raises(NotSent):
            await host.call_raw("s", "add", timeout=0.05)
    assert counting.server.starts == 1


async def test_a_server_that_refuses_the_probe_is_shaken_hands_with() -> None:
    counting = Counting()
    counting.server.fail_next(Refuse(), method="server/discover")
    async with counting.host() as host:
        await host.wait_ready(10)
        assert host.status()["s"].era == "handshake"


@ERAS
async def test_faults_strike_in_their_order_where_they_fit(era: Era) -> None:
    counting = Counting(era)
    server = counting.server
    server.fail_next(Refuse(-1, "first"), tool="put")
    server.fail_next(Refuse(-2, "second"))
    server.fail_next(Refuse(-3, "listed"), method="prompts/list")
    assert server.faults_left == {"Refuse": 3}
    async with counting.host() as host:
        with pytest.raises(Refused, match="second"):
            await host.call("s__add")
        with pytest.raises(Refused, match="first"):
            await host.call("s__put")
        assert server.faults_left == {"Refuse": 1}


def test_a_fault_that_cannot_strike_is_refused() -> None:
    server = MemoryServer()
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("die", {}),
        (Die(), {"tool": "a", "method": "tools/list"}),
        (Die(), {"times": 0}),
    ]
    for fault, how in wrong:
        with pytest.raises(MisuseError):
            server.fail_next(fault, **how)
    with pytest.raises(MisuseError):
        Malformed("two\nlines")
    assert not server.faults_left
