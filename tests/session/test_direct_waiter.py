"""The waiter of a plain call: its task goes on within the handle that read the answer, or in the next turn of the loop.

What crosses on the way is driven by hand over a session whose transport says that it reads between tasks; the rest is
on real processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import select
import signal
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from moorings import AsyncHost, Bounds, CallError, CallTimeout, Handlers, Host
from moorings.session.waiter import DirectWaiter, goes_on_at_once
from moorings.transport.base import Closed
from moorings.transport.stdio import StdioTransport
from tests.clock import MovableLoop, on_running_clock, turns
from tests.faults.script import fault_server
from tests.session.memory_transport import MemoryTransport, Wired
from tests.session.test_races import EVENTS, OUTCOMES, happen, outcome_of

tag: contextvars.ContextVar[str] = contextvars.ContextVar("tag", default="none")

Factory = Callable[..., "asyncio.Task[Any]"]


def in_python(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
    """A task that is written in Python, as debuggers and patched loops use it."""
    python_task: Any = asyncio.tasks._PyTask  # type: ignore[attr-defined]
    made: asyncio.Task[Any] = python_task(work, loop=loop, **more)
    return made


FACTORIES: list[Factory | None] = [None, in_python]
if eager := getattr(asyncio, "eager_task_factory", None):
    FACTORIES.append(eager)
kinds = pytest.mark.parametrize("factory", FACTORIES, ids=lambda f: getattr(f, "__name__", "usual"))


def waiter() -> DirectWaiter:
    loop = asyncio.get_running_loop()
    fulfilled: asyncio.Future[None] = loop.create_future()
    fulfilled.set_result(None)
    return DirectWaiter(loop, fulfilled)


async def from_a_handle(act: Callable[[], Any]) -> Any:
    """Do it in a handle of the loop, as a reader would; gives what it returned."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    loop.call_soon(lambda: done.set_result(act()))
    return await done


class Awaiting:
    """A task that awaits a waiter and writes down what it met."""

    def __init__(self, factory: Factory | None = None, limit: float | None = None) -> None:
        self.waiter = waiter()
        self.met: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        try:
            self.task = loop.create_task(self._run(limit))
        finally:
            loop.set_task_factory(None)

    async def _run(self, limit: float | None) -> None:
        tag.set("of the task")
        try:
            async with asyncio.timeout(limit):
                self.met.append(bytes(await self.waiter))
        except (RuntimeError, asyncio.CancelledError, TimeoutError) as error:
            self.met.append(type(error))
        self.met.append(tag.get())


@kinds
async def test_the_task_goes_on_within_the_call_that_brings_the_result(factory: Factory | None) -> None:
    awaiting = Awaiting(factory)
    await turns()

    def bring() -> list[Any]:
        awaiting.waiter.set_result(Raw(b"1"))
        return list(awaiting.met)

    assert await from_a_handle(bring) == [b"1", "of the task"]
    await awaiting.task


@kinds
async def test_where_a_task_runs_already_the_other_goes_on_in_the_next_turn(factory: Factory | None) -> None:
    awaiting = Awaiting(factory)
    await turns()
    awaiting.waiter.set_result(Raw(b"1"))
    assert awaiting.met == []
    await awaiting.task
    assert awaiting.met == [b"1", "of the task"]


@kinds
async def test_a_result_that_was_there_first_is_taken_without_a_wait(factory: Factory | None) -> None:
    awaiting = Awaiting(factory)
    awaiting.waiter.set_result(Raw(b"1"))
    await awaiting.task
    assert awaiting.met == [b"1", "of the task"]


@kinds
@pytest.mark.parametrize("between", [0, 1, 2])
async def test_an_error_wakes_in_the_next_turn(factory: Factory | None, between: int) -> None:
    awaiting = Awaiting(factory)
    await turns(between)
    awaiting.waiter.set_exception(RuntimeError("no"))
    assert awaiting.met == []
    await awaiting.task
    assert awaiting.met == [RuntimeError, "of the task"]


@kinds
async def test_a_cancelled_task_is_woken_by_that_and_what_comes_after_finds_it_done(
    factory: Factory | None,
) -> None:
    awaiting = Awaiting(factory)
    await turns()
    awaiting.task.cancel("why")
    assert awaiting.waiter.done()
    await awaiting.task
    assert awaiting.met == [asyncio.CancelledError, "of the task"]


@kinds
async def test_a_cancel_that_comes_after_an_error_in_the_same_turn_strikes(factory: Factory | None) -> None:
    """As with a future: the error was not taken yet, so the cancel is what the task meets."""
    awaiting = Awaiting(factory)
    await turns()
    awaiting.waiter.set_exception(RuntimeError("no"))
    assert not awaiting.waiter.cancel()
    awaiting.task.cancel()
    await awaiting.task
    assert awaiting.met == [asyncio.CancelledError, "of the task"]


@kinds
async def test_a_timeout_of_the_caller_strikes(factory: Factory | None) -> None:
    awaiting = Awaiting(factory, limit=0.01)
    await awaiting.task
    assert awaiting.met == [TimeoutError, "of the task"]


async def test_its_repr_shows_no_arguments() -> None:
    """A task that awaits it is printed with it."""
    awaiting = Awaiting()
    await turns()
    assert "wait_for=<DirectWaiter pending>" in repr(awaiting.task)
    awaiting.waiter.set_result(Raw(b"secret"))
    assert repr(awaiting.waiter) == "<DirectWaiter done>"
    await awaiting.task


# What crosses


class ReadsBetweenTasks(MemoryTransport):
    reads_between_tasks = True


def wired(handlers: Handlers | None = None) -> Wired:
    made = Wired(handlers)
    made.transport = ReadsBetweenTasks()
    made.session.attach(made.transport)
    return made


@pytest.mark.parametrize("factory", FACTORIES[:2], ids=["usual", "in Python"])
@pytest.mark.parametrize("from_handle", [True, False])
def test_f4_7_a_plain_call_has_one_outcome_whatever_crosses_its_answer(
    factory: Factory | None, from_handle: bool
) -> None:
    """F4.7: every pair of ends in every order and distance, from handles of the loop and from a task."""

    @on_running_clock
    async def crossings() -> None:
        pairs = [*itertools.permutations(EVENTS, 2), ("answer", "answer"), ("cancel", "cancel")]
        for (first, second), before, between in itertools.product(pairs, (1, 2), (0, 1, 2, 3)):
            line = wired()
            outcome = await one_call(line, factory, (first, second), (before, between), from_handle)
            what = f"{first} then {second} after {between} turns: {outcome}"
            wanted = {OUTCOMES[first]}
            # As with a future: a cancel reaches the call a turn later, the clock two; from a handle an answer is
            # taken at once.
            if ("cancel" in (first, second) and between <= 1) or (
                "expire" in (first, second) and between <= 2
            ):
                wanted.add(OUTCOMES[second])
            assert outcome in wanted, what
            if first == "answer" and from_handle:
                assert outcome == "answered", what
            assert line.empty(), f"{what}: {line.session.sizes()}"
            assert line.transport.cancels() in ([], [1]), what
            await line.aclose()

    crossings()


async def one_call(
    line: Wired, factory: Factory | None, events: tuple[str, str], gaps: tuple[int, int], from_handle: bool
) -> object:
    session = line.session
    loop = asyncio.get_running_loop()

    async def call() -> str:
        pending = session.begin_call("t", {}, line.clock(50, 100))
        try:
            await pending.waiter  # type: ignore[misc]
        except asyncio.CancelledError as cancelled:
            pending.cancelled_by_caller(cancelled)
            raise
        return "answered"

    loop.set_task_factory(factory)
    task = loop.create_task(call())
    loop.set_task_factory(None)
    for event, gap in zip(events, gaps, strict=True):
        await turns(gap)
        if from_handle:
            await from_a_handle(lambda event=event: happen(event, line, task))  # type: ignore[misc]
        else:
            happen(event, line, task)
    return await outcome_of(task)


async def test_the_end_of_a_session_wakes_its_calls_in_the_next_turn_so_that_all_see_it_over() -> None:
    line = wired()
    met: list[bool] = []

    async def call() -> None:
        try:
            await line.session.begin_call("t", {}, line.clock()).waiter  # type: ignore[misc]
        except Exception:
            met.append(line.empty())

    tasks = [asyncio.ensure_future(call()) for _ in range(3)]
    await turns()
    await from_a_handle(lambda: line.session.closed(Closed("exited")))
    await asyncio.gather(*tasks)
    assert met == [True] * 3
    await line.aclose()


def new_uvloop() -> asyncio.AbstractEventLoop:
    made: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    return made


def on_uvloop(*more: Any) -> Any:
    reason = "libuv keeps one pipe for the signals of its process"
    return pytest.param(new_uvloop, *more, marks=pytest.mark.leak_ok("descriptor", reason=reason))


class RunsWithinItself(asyncio.SelectorEventLoop):
    """As ``nest_asyncio`` marks a loop that it has patched."""

    _nest_patched = True


class RunsInItsOwnWay(asyncio.SelectorEventLoop):
    """As loops of graphical toolkits do."""

    def run_forever(self) -> None:
        super().run_forever()


@pytest.mark.parametrize(
    ("make", "at_once"),
    [
        (asyncio.SelectorEventLoop, True),
        (MovableLoop, True),
        on_uvloop(False),
        (RunsWithinItself, False),
        (RunsInItsOwnWay, False),
    ],
)
def test_only_a_loop_that_keeps_the_order_goes_on_at_once(
    make: Callable[[], asyncio.AbstractEventLoop], at_once: bool
) -> None:
    async def call() -> None:
        line = wired()
        pending = line.session.begin_call("t", {}, line.clock())
        assert isinstance(pending.waiter, DirectWaiter if at_once else asyncio.Future)
        line.session.cancel(pending, "over")
        await line.aclose()

    with asyncio.Runner(loop_factory=make) as runner:
        assert goes_on_at_once(runner.get_loop()) is at_once
        runner.run(call())


@pytest.mark.parametrize("make", [asyncio.SelectorEventLoop, on_uvloop()])
def test_an_answer_does_not_overtake_what_was_ready_before_it(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def calls() -> None:
        async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
            await host.wait_ready()
            await host.call("s__echo")
            life = host._servers["s"].life
            assert life is not None and life.session is not None
            transport: Any = life.session._transport
            order: list[str] = []

            async def call() -> None:
                await host.call("s__echo")
                order.append("answered")

            def when_the_answer_is_there() -> None:
                assert select.select([transport._stdout._fd], [], [], 20)[0]
                asyncio.get_running_loop().call_soon(order.append, "ready before it was read")

            answered = asyncio.ensure_future(call())
            asyncio.get_running_loop().call_soon(when_the_answer_is_there)
            await answered
            assert order == ["ready before it was read", "answered"]

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(calls())


LINE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"working"}}'


@pytest.mark.parametrize(
    "answer", [b'{"jsonrpc":"2.0","id":1,"result":{}}', b'[{"jsonrpc":"2.0","id":"1","result":{}}]']
)
async def test_a_log_line_before_the_answer_is_heard_before_the_call_goes_on(answer: bytes) -> None:
    """Both come in one read."""
    met: list[str] = []
    line = wired(Handlers(on_log=lambda server, params: met.append(str(params.data))))

    async def call() -> None:
        await line.session.begin_call("t", {}, line.clock()).waiter  # type: ignore[misc]
        met.append("answered")

    task = asyncio.ensure_future(call())
    await turns()

    def read() -> None:
        line.session.message(LINE)
        line.session.message(answer)

    await from_a_handle(read)
    await task
    assert met == ["working", "answered"]
    await line.aclose()


async def test_a_call_that_was_cancelled_is_gone_without_the_garbage_collector() -> None:
    """Its error would lead to the frames that awaited it, and to all that they hold."""
    line = wired()

    class Large:
        pass

    async def call(gone: list[Any]) -> None:
        large = Large()
        gone.append(weakref.ref(large))
        pending = line.session.begin_call("t", {}, line.clock())
        try:
            await pending.waiter  # type: ignore[misc]
        except asyncio.CancelledError as cancelled:
            pending.cancelled_by_caller(cancelled)
            raise

    gone: list[Any] = []
    gc.disable()
    try:
        task = asyncio.ensure_future(call(gone))
        await turns()
        task.cancel()
        await asyncio.wait({task})
        del task
        await turns()
        assert gone[0]() is None
    finally:
        gc.enable()
    await line.aclose()


# A task that ends the loop


class Frames:
    """A receiver that raises at the first frame."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.all_heard = asyncio.Event()

    def message(self, line: bytes, about: int | None = None) -> None:
        self.heard.append(line)
        if len(self.heard) == 1:
            raise KeyboardInterrupt
        if len(self.heard) == 3:
            self.all_heard.set()


async def test_frames_after_one_whose_task_ends_the_loop_are_handed_on_later() -> None:
    receiver: Any = Frames()
    transport: Any = object.__new__(StdioTransport)
    transport._receiver, transport._noise = receiver, []
    with pytest.raises(KeyboardInterrupt):
        transport._hand_on([b"{1}", b"{2}", b"{3}"])
    assert receiver.heard == [b"{1}"]
    async with asyncio.timeout(5):
        await receiver.all_heard.wait()
    assert receiver.heard == [b"{1}", b"{2}", b"{3}"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_loop_in_a_task_does_not_end_the_work_of_the_reader(end: type[BaseException]) -> None:
    """The reader may be in the middle of the end of a process, and has to say so."""
    done: list[str] = []

    async def main(ends: DirectWaiter, other: DirectWaiter) -> None:
        async def raises() -> None:
            await ends
            raise end

        async def goes_on() -> None:
            done.append(bytes(await other).decode())

        tasks = [asyncio.ensure_future(raises()), asyncio.ensure_future(goes_on())]
        await turns()

        def read() -> None:
            ends.set_result(Raw(b"1"))
            done.append("the reader goes on")
            other.set_result(Raw(b"2"))

        asyncio.get_running_loop().call_soon(read)
        await asyncio.wait(tasks)
        assert isinstance(tasks[0].exception(), end)

    loop = asyncio.SelectorEventLoop()
    try:

        async def start() -> asyncio.Task[None]:
            return asyncio.ensure_future(main(waiter(), waiter()))

        whole = loop.run_until_complete(start())
        with pytest.raises(end):
            loop.run_until_complete(whole)
        loop.run_until_complete(whole)
        assert done == ["the reader goes on", "2"]
    finally:
        loop.close()


def test_a_keyboard_interrupt_in_a_task_that_an_answer_woke_loses_no_other_answer() -> None:
    """Both answers come in one piece; the first one's task raises, and the loop is run on."""
    loop = asyncio.new_event_loop()
    try:
        host = AsyncHost({"s": fault_server(bounds=Bounds(call=30.0))}, state_dir=False)
        loop.run_until_complete(host.start())
        loop.run_until_complete(host.wait_ready())
        ended: list[str] = []

        async def first() -> None:
            await host.call("s__hold", {"key": "k"})
            ended.append("first")
            signal.raise_signal(signal.SIGINT)

        async def second() -> None:
            ended.append((await host.call("s__hold", {"key": "k"})).text)

        async def both() -> None:
            one, other = loop.create_task(first()), loop.create_task(second())
            await turns()
            await host.call("s__release", {"key": "k"})
            await asyncio.wait({one, other})
            assert isinstance(one.exception(), KeyboardInterrupt)

        whole = loop.create_task(both())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(whole)
        loop.run_until_complete(whole)
        assert sorted(ended) == ["first", "released"]
        assert (loop.run_until_complete(host.close())).clean
        del whole
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


# On a real host


@pytest.mark.parametrize("many", [2, 40, 400])
async def test_the_host_is_closed_by_the_task_of_one_answer_of_many(many: int) -> None:
    """The others have their answer, or are told that the host closed; none of them waits."""
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready()
        outcomes: list[str] = []
        closing: list[asyncio.Task[Any]] = []

        async def call(number: int) -> None:
            try:
                await host.call("s__hold", {"key": "k"})
            except CallError:
                outcomes.append("ended")
                return
            outcomes.append("answered")
            if not closing:
                closing.append(asyncio.ensure_future(host.close()))
                await closing[0]

        tasks = [asyncio.ensure_future(call(number)) for number in range(many)]
        await host.call("s__echo", {"text": "all are sent"})
        with_release = asyncio.ensure_future(host.call("s__release", {"key": "k"}))
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks)
            await asyncio.wait({with_release})
            assert (await closing[0]).clean
        assert len(outcomes) == many and outcomes[0] == "answered"
        if with_release.exception() is not None:
            assert isinstance(with_release.exception(), CallError)


async def test_each_task_goes_on_in_its_own_context() -> None:
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready()

        async def call(number: int) -> None:
            tag.set(str(number))
            for _ in range(20):
                await host.call("s__echo", {"text": "x"})
                assert tag.get() == str(number)

        await asyncio.gather(*(call(number) for number in range(20)))
        assert tag.get() == "none"


async def test_calls_that_a_task_group_or_a_timeout_gives_up_are_given_up() -> None:
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await host.call("s__hold")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(host.call("s__hold"), 0.05)
        with pytest.raises(CallTimeout):
            await host.call("s__hold", timeout=0.05)
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(host.call("s__hold"))
                group.create_task(host.call("s__hold", timeout=0.05))
        assert (await host.call("s__echo", {"text": "goes on"})).text == "goes on"


async def test_scopes_of_anyio_end_calls_and_leave_no_cancel_behind() -> None:
    anyio = pytest.importorskip("anyio")
    me = asyncio.current_task()
    assert me is not None
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready()
        for delay in (0, 0.001, 0.02):
            with anyio.move_on_after(delay) as scope:
                await host.call("s__hold")
            assert scope.cancelled_caught and not me.cancelling()
            with pytest.raises(TimeoutError), anyio.fail_after(delay):
                await host.call("s__hold")
            assert not me.cancelling()
        with anyio.CancelScope() as scope:
            with anyio.CancelScope(shield=True):
                scope.cancel()
                for number in range(3):
                    assert (await host.call("s__echo", {"text": str(number)})).text == str(number)
            await host.call("s__hold")
        assert scope.cancelled_caught and not me.cancelling()

        # The task of one answer ends the scopes of those whose answers come after it in the same read, or do not come.
        ended: list[int] = []
        async with anyio.create_task_group() as group:

            async def call(number: int) -> None:
                await host.call("s__hold", {"key": "k" if number < 20 else "never"})
                ended.append(number)
                if number == 5:
                    group.cancel_scope.cancel()

            for number in range(25):
                group.start_soon(call, number)
            await asyncio.sleep(0)
            await host.call("s__release", {"key": "k"})
        assert set(range(6)) <= set(ended) <= set(range(20)) and not me.cancelling()
        assert (await host.call("s__echo", {"text": "goes on"})).text == "goes on"


@pytest.mark.parametrize("act", ["restarts", "disables", "removes", "starts another", "blocks in another"])
async def test_the_task_of_one_answer_of_many_may_do_what_any_task_may(act: str) -> None:
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready()

        async def now() -> None:
            if act == "restarts":
                await host.restart("s")
            elif act == "disables":
                await host.disable("s")
            elif act == "removes":
                await host.remove("s")
            elif act == "starts another":
                async with AsyncHost({"o": fault_server()}, state_dir=False) as other:
                    await other.wait_ready()
                    assert (await other.call("o__echo", {"text": "x"})).text == "x"
            else:
                with Host({"o": fault_server()}, state_dir=False) as blocking:
                    assert blocking.call("o__echo", {"text": "x"}).text == "x"

        async def call(number: int) -> str:
            try:
                text = (await host.call("s__hold", {"key": "k"})).text
            except CallError as error:
                return type(error).__name__
            if number == 0:
                await now()
            return text

        tasks = [asyncio.ensure_future(call(number)) for number in range(40)]
        await host.call("s__echo", {"text": "all are sent"})
        release = asyncio.ensure_future(host.call("s__release", {"key": "k"}))
        async with asyncio.timeout(20):
            outcomes = await asyncio.gather(*tasks)
            await asyncio.wait({release})
        assert outcomes[0] == "released" and set(outcomes) <= {"released", "AmbiguousDelivery", "NotSent"}
        assert release.exception() is None or isinstance(release.exception(), CallError)
