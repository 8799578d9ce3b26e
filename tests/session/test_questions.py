"""What servers ask: roots, sampling, elicitation; by requests of their own and inside answers (both eras).

Some of it is driven by hand on a session without a process, the rest asks through the public door.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    Bounds,
    CallTimeout,
    CreateMessageResult,
    ElicitResult,
    Handlers,
    Host,
    Root,
    TextContent,
)
from moorings.errors import WrongLoopError
from moorings.wire.eras import EXTENSIONS
from tests.clock import advance, on_movable_clock, on_running_clock, pass_time, turns
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import threads_end
from tests.session.hosting import EMPTY, scripted, sizes_of
from tests.session.memory_transport import Wired

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
FORM = {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
URL = {"mode": "url", "message": "Log in", "url": "https://example.com/login?a=1&b=2", "elicitationId": "e1"}


def accept(server: str, question: Any) -> ElicitResult:
    return ElicitResult("accept", {"server": server, "message": question.message})


def reply(text: str, era: str) -> Any:
    """What the scripted server got for its one question."""
    (first,) = json.loads(text)
    return first["q0"] if era == "modern" else first.get("result", first.get("error"))


# What is asked, and what comes back


@ERAS
async def test_roots_are_given_as_a_list_or_by_a_function(tmp_path: Path, era: str) -> None:
    here = Root(uri="file:///here", name="here")

    async def by_function(server: str) -> list[Root]:
        return [Root(uri=f"file:///for/{server}")]

    for n, roots in enumerate(([here], lambda server: [here], by_function)):
        folder = tmp_path / str(n)
        folder.mkdir()
        host, log = scripted(folder, era=era, handlers=Handlers(roots=roots))  # type: ignore[arg-type]
        async with host:
            answer = reply((await host.call("s__ask", {"method": "roots/list"})).text, era)
        wanted = {"uri": "file:///for/s"} if n == 2 else {"uri": "file:///here", "name": "here"}
        assert answer == {"roots": [wanted]}
        assert log.violations() == []


@ERAS
async def test_sampling_is_answered_by_the_users_model(tmp_path: Path, era: str) -> None:
    async def model(server: str, question: Any) -> CreateMessageResult:
        said = question.messages[0].content
        assert question.max_tokens == 10
        return CreateMessageResult(
            content=TextContent(text=f"{said.text}, {server}"), model="m", stop_reason="endTurn"
        )

    host, log = scripted(tmp_path, era=era, handlers=Handlers(sample=model))
    async with host:
        answer = reply((await host.call("s__ask", {"method": "sampling/createMessage"})).text, era)
    assert answer["content"] == {"type": "text", "text": "Say hello, s"}
    assert (answer["role"], answer["model"], answer["stopReason"]) == ("assistant", "m", "endTurn")
    assert log.violations() == []


@ERAS
@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
async def test_an_elicitation_is_answered_as_the_person_did(tmp_path: Path, era: str, action: Any) -> None:
    content = {"colour": "blue", "n": 1, "yes": True} if action == "accept" else None
    host, _ = scripted(
        tmp_path, era=era, handlers=Handlers(elicit=lambda server, question: ElicitResult(action, content))
    )
    async with host:
        answer = reply((await host.call("s__ask")).text, era)
    assert answer == ({"action": action, "content": content} if content else {"action": action})


@ERAS
async def test_a_url_goes_to_its_own_handler_whole(tmp_path: Path, era: str) -> None:
    seen: list[str] = []

    async def page(server: str, question: Any) -> ElicitResult:
        seen.append(question.url)
        return ElicitResult("accept")

    def form(server: str, question: Any) -> ElicitResult:
        raise AssertionError("a form was asked for")

    host, log = scripted(tmp_path, era=era, handlers=Handlers(elicit=form, elicit_url=page))
    async with host:
        answer = reply((await host.call("s__ask", {"params": URL})).text, era)
    assert answer == {"action": "accept"} and seen == [URL["url"]]
    assert log.violations() == []


# What is declared


@ERAS
async def test_only_what_has_a_handler_is_declared(tmp_path: Path, era: str) -> None:
    """F13.11: strict servers refuse what they do not know."""

    async def some(*_: Any) -> Any: ...

    cases: list[tuple[Handlers, dict[str, Any]]] = [
        (Handlers(), {}),
        (Handlers(on_log=print, on_notification=print), {}),
        (Handlers(sample=some), {"sampling": {}}),
        (Handlers(elicit=some), {"elicitation": {}}),
        (Handlers(elicit_url=some), {"elicitation": {"url": {}}}),
        (Handlers(elicit=some, elicit_url=some), {"elicitation": {"form": {}, "url": {}}}),
        (Handlers(roots=[]), {"roots": {} if era == "modern" else {"listChanged": True}}),
    ]
    for n, (handlers, wanted) in enumerate(cases):
        folder = tmp_path / str(n)
        folder.mkdir()
        host, log = scripted(folder, era=era, strict=True, journal_raw=True, handlers=handlers)
        async with host:
            await host.wait_ready()
        if era == "modern":
            # What Moorings itself speaks beyond the core, whoever answers.
            wanted = wanted | {"extensions": {each: {} for each in sorted(EXTENSIONS)}}
            for entry in log.entries("received", method="tools/list"):
                assert entry["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == wanted
        else:
            (entry,) = log.entries("received", method="initialize")
            assert entry["params"]["capabilities"] == wanted
        assert log.violations() == []


@pytest.mark.parametrize(
    ("method", "params", "handlers"),
    [
        ("sampling/createMessage", None, Handlers(elicit=accept)),
        ("roots/list", None, Handlers(elicit=accept)),
        ("elicitation/create", URL, Handlers(elicit=accept)),
        ("elicitation/create", FORM, Handlers(elicit_url=accept)),
        ("tasks/list", None, Handlers(elicit=accept)),
    ],
)
@ERAS
async def test_what_was_not_declared_is_refused(
    tmp_path: Path, era: str, method: str, params: Any, handlers: Handlers
) -> None:
    """Handshake: by an error; modern: there is nothing to answer with, so the call ends, typed."""
    host, _ = scripted(tmp_path, era=era, handlers=handlers)
    async with host:
        call = host.call("s__ask", {"method": method, "params": params})
        if era == "handshake":
            assert reply((await call).text, era)["code"] == -32601
        else:
            with pytest.raises(AmbiguousDelivery, match="did not declare"):
                await call
        assert (await host.call("s__echo", {"text": "x"})).text == "x"


# Handlers of every temper

ODD_FAILURES = (TimeoutError, KeyError, asyncio.CancelledError)
"""What a handler may raise that also has a meaning for those around it."""


@ERAS
async def test_a_plain_handler_runs_in_a_thread_and_holds_up_nobody(tmp_path: Path, era: str) -> None:
    go = threading.Event()
    where: list[str] = []

    def person(server: str, question: Any) -> ElicitResult:
        where.append(threading.current_thread().name)
        assert go.wait(10)
        return ElicitResult("decline")

    host, log = scripted(tmp_path, era=era, handlers=Handlers(elicit=person))
    async with host:
        await host.wait_ready()
        call = asyncio.ensure_future(host.call("s__ask"))
        await log.seen("received", tool="ask")
        for n in range(20):
            assert (await host.call("s__echo", {"text": str(n)})).text == str(n)
        assert not call.done()
        go.set()
        assert "decline" in (await call).text
        assert where and where[0] != threading.current_thread().name
        assert sizes_of(host) == EMPTY


@ERAS
@pytest.mark.parametrize(
    "kind",
    ["raises", "async raises", "wrong type", "no json", *(f"raises {one.__name__}" for one in ODD_FAILURES)],
)
async def test_a_handler_that_fails_ends_its_question_and_nothing_else(
    tmp_path: Path, era: str, kind: str
) -> None:
    def raises(server: str, question: Any) -> Any:
        raise ValueError("secret of the house")

    async def async_raises(server: str, question: Any) -> Any:
        raise ValueError("secret of the house")

    def odd(error: type[BaseException]) -> Callable[..., Any]:
        async def raises_it(server: str, question: Any) -> Any:
            raise error("its own affair, no word of ours")

        return raises_it

    handler: Callable[..., Any] = {
        "raises": raises,
        "async raises": async_raises,
        "wrong type": lambda server, question: object(),
        "no json": lambda server, question: ElicitResult("accept", {"x": object()}),
        **{f"raises {error.__name__}": odd(error) for error in ODD_FAILURES},
    }[kind]
    host, _ = scripted(tmp_path, era=era, handlers=Handlers(elicit=handler, sample=handler))
    async with host:
        await host.wait_ready()
        call = host.call("s__ask", {"method": "sampling/createMessage"})
        if era == "handshake":
            answer = reply((await call).text, era)
            assert answer["code"] == -32603 and "secret" not in answer["message"]
        else:
            with pytest.raises(AmbiguousDelivery, match="handler of sampling/createMessage failed"):
                await call
        assert host.status()["s"].counters.handler_errors == 1
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert sizes_of(host) == EMPTY


@on_running_clock
async def test_a_model_that_never_answers_is_not_waited_for_beyond_the_limit_of_questions(
    tmp_path: Path,
) -> None:
    """Nobody can decline for a model: the server gets an error, and a modern call ends, typed."""
    for era in ("handshake", "modern"):
        folder = tmp_path / era
        folder.mkdir()
        asked = asyncio.Event()

        async def never(server: str, question: Any, asked: asyncio.Event = asked) -> Any:
            asked.set()
            await asyncio.Event().wait()

        host, _ = scripted(folder, era=era, handlers=Handlers(sample=never), bounds=Bounds(question=30))
        async with host:
            await host.wait_ready()
            call = asyncio.ensure_future(host.call("s__ask", {"method": "sampling/createMessage"}))
            await asked.wait()
            await pass_time(29)
            assert not call.done()
            await pass_time(2)
            if era == "handshake":
                assert reply((await call).text, era)["code"] == -32603
            else:
                with pytest.raises(AmbiguousDelivery, match="30 s"):
                    await call
            assert sizes_of(host) == EMPTY


async def test_a_plain_handler_that_never_returns_is_left_behind_and_the_host_still_closes(
    tmp_path: Path,
) -> None:
    release = threading.Event()

    def stuck(server: str, question: Any) -> ElicitResult:
        release.wait(20)
        return ElicitResult("decline")

    host, log = scripted(tmp_path, handlers=Handlers(elicit=stuck), bounds=Bounds(question=0.2))
    async with host:
        assert '"action": "cancel"' in (await host.call("s__ask")).text
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        hung = asyncio.ensure_future(host.call("s__ask"))
        await log.seen("received", count=2, tool="ask")
        began = time.monotonic()
    assert time.monotonic() - began < 2
    with pytest.raises(AmbiguousDelivery):
        await hung
    release.set()
    await threads_end("moorings-question")


# Handlers that use the host themselves


@ERAS
async def test_f8_2_a_handler_may_call_the_session_that_asks(tmp_path: Path, era: str) -> None:
    """As F8.2 for questions: no deadlock, since handlers never run in the reader."""
    box: list[Any] = []

    async def person(server: str, question: Any) -> ElicitResult:
        result = await box[0].call("s__echo", {"text": "from inside"})
        tools = await box[0].tools()
        return ElicitResult("accept", {"text": result.text, "tools": len(tools)})

    host, log = scripted(tmp_path, era=era, handlers=Handlers(elicit=person))
    box.append(host)
    async with host:
        answer = reply((await host.call("s__ask", timeout=5)).text, era)
        assert answer["content"]["text"] == "from inside" and answer["content"]["tools"] > 10
        assert sizes_of(host) == EMPTY
    assert log.violations() == []


async def test_a_question_inside_a_question(tmp_path: Path) -> None:
    """The call that a handler makes may itself be asked something."""
    box: list[Any] = []
    depth = 0

    async def person(server: str, question: Any) -> ElicitResult:
        nonlocal depth
        depth += 1
        if depth < 4:
            await box[0].call("s__ask")
        return ElicitResult("decline")

    host, _ = scripted(tmp_path, handlers=Handlers(elicit=person))
    box.append(host)
    async with host:
        assert "decline" in (await host.call("s__ask", timeout=10)).text
        assert depth == 4 and sizes_of(host) == EMPTY


def test_a_plain_handler_of_the_blocking_host_may_call_it_and_an_async_one_is_told_that_it_may_not(
    tmp_path: Path,
) -> None:
    box: list[Host] = []
    told: list[BaseException] = []

    def plain(server: str, question: Any) -> ElicitResult:
        return ElicitResult("accept", {"text": box[0].call("s__echo", {"text": "inside"}).text})

    async def on_loop(server: str, question: Any) -> Any:
        try:
            box[0].call("s__echo")
        except WrongLoopError as error:
            told.append(error)
        return ElicitResult("decline")

    for handler in (plain, on_loop):
        folder = tmp_path / handler.__name__
        folder.mkdir()
        spec = fault_server(journal=folder / "journal")
        with Host({"s": spec}, state_dir=False, handlers=Handlers(elicit=handler)) as host:
            box[:] = [host]
            text = host.call("s__ask", timeout=10).text
            assert ("inside" in text) == (handler is plain)
        assert FaultLog(folder / "journal").violations() == []
    assert len(told) == 1


# The caller's context


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@ERAS
async def test_the_context_of_the_caller_reaches_the_handler_of_a_question_that_its_call_caused(
    tmp_path: Path, era: str
) -> None:
    def plain(server: str, question: Any) -> ElicitResult:
        return ElicitResult("accept", {"who": WHO.get()})

    async def coroutine(server: str, question: Any) -> ElicitResult:
        return plain(server, question)

    for handler in (plain, coroutine):
        folder = tmp_path / handler.__name__
        folder.mkdir()
        host, _ = scripted(folder, era=era, handlers=Handlers(elicit=handler))
        async with host:
            await host.wait_ready()
            for who in ("ann", "bob"):
                WHO.set(who)
                assert reply((await host.call("s__ask")).text, era)["content"] == {"who": who}


@on_movable_clock
async def test_a_question_that_could_belong_to_two_callers_gets_the_context_of_neither() -> None:
    """A handshake server over stdio does not say which call its question belongs to."""
    seen: list[str] = []

    async def person(server: str, question: Any) -> ElicitResult:
        seen.append(WHO.get())
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person))
    tasks = []
    for who in ("ann", "bob"):
        WHO.set(who)
        tasks.append(asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock())))
    WHO.set("somebody else")
    await turns()
    wired.ask("both", "elicitation/create", FORM)
    await turns()
    wired.answer(2)
    await turns()
    wired.ask("ann's", "elicitation/create", FORM)
    await turns()
    assert seen[1] == "ann" and seen[0] not in ("ann", "bob")
    wired.answer(1)
    await asyncio.gather(*tasks)
    await wired.aclose()


# Many of them


async def test_questions_are_answered_side_by_side() -> None:
    release = asyncio.Event()

    async def person(server: str, question: Any) -> ElicitResult:
        if question.message == "slow":
            await release.wait()
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person))
    wired.ask(1, "elicitation/create", {**FORM, "message": "slow"})
    wired.ask(2, "elicitation/create", FORM)
    wired.ask("ping-1", "ping")
    await turns(10)
    assert [m["id"] for m in wired.transport.responses()] == ["ping-1", 2]
    release.set()
    await turns(10)
    assert [m["id"] for m in wired.transport.responses()] == ["ping-1", 2, 1]
    assert wired.empty()
    await wired.aclose()


async def test_too_many_questions_at_once_are_refused_and_the_bound_frees_itself() -> None:
    release = asyncio.Event()

    async def person(server: str, question: Any) -> ElicitResult:
        await release.wait()
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person), questions=3)
    for n in range(5):
        wired.ask(n, "elicitation/create", FORM)
    await turns(10)
    assert [(m["id"], m["error"]["code"]) for m in wired.transport.responses()] == [(3, -32000), (4, -32000)]
    assert wired.session.counters.refused_questions == 2
    assert wired.session.sizes()["questions"] == 3
    release.set()
    await turns(10)
    wired.ask(5, "elicitation/create", FORM)
    await turns(10)
    assert [m["id"] for m in wired.transport.responses()[2:]] == [0, 1, 2, 5]
    assert wired.empty()
    await wired.aclose()


async def test_a_server_that_uses_one_id_twice_is_refused_and_leaves_nothing_in_the_table() -> None:
    """Else each of them would run beyond the bound of questions, with a thread of its own."""
    release = asyncio.Event()

    async def person(server: str, question: Any) -> ElicitResult:
        await release.wait()
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person), questions=2)
    for _ in range(3):
        wired.ask(7, "elicitation/create", FORM)
    await turns(10)
    refused = [(7, -32600), (7, -32600)]
    assert [(m["id"], m["error"]["code"]) for m in wired.transport.responses()] == refused
    assert wired.session.counters.refused_questions == 2
    release.set()
    await turns(10)
    assert wired.empty(), wired.session.sizes()
    assert wired.transport.responses()[2]["result"] == {"action": "decline"}
    await wired.aclose()


async def test_threads_of_questions_that_were_taken_back_count_against_the_bound_and_are_told_at_the_end() -> (
    None
):
    """A server that asks and takes back in a loop gets no thread more than the bound."""
    release, running = threading.Event(), threading.Semaphore(0)

    def person(server: str, question: Any) -> ElicitResult:
        running.release()
        release.wait(20)
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person), questions=2)
    for n in range(5):
        wired.ask(n, "elicitation/create", FORM)
        await turns(5)
        wired.take_back(n)
        await turns(5)
    assert [(m["id"], m["error"]["code"]) for m in wired.transport.responses()] == [
        (2, -32000),
        (3, -32000),
        (4, -32000),
    ]
    assert running.acquire(timeout=5) and running.acquire(timeout=5)
    assert not running.acquire(blocking=False)
    stuck = await wired.session.aclose()
    assert stuck == ["session of memory: a plain handler that does not return"] * 2
    release.set()
    await threads_end("moorings-question")
    await turns(5)
    assert wired.session._left == set()
    await wired.aclose()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_handler_that_exits_ends_its_question_and_not_the_loop(
    error: type[BaseException], kind: str
) -> None:
    def plain(server: str, question: Any) -> ElicitResult:
        raise error

    async def coroutine(server: str, question: Any) -> ElicitResult:
        raise error

    wired = Wired(Handlers(elicit=plain if kind == "plain" else coroutine))
    wired.ask(1, "elicitation/create", FORM)
    async with asyncio.timeout(5):
        while not wired.transport.responses():
            await asyncio.sleep(0.001)
    assert wired.transport.responses()[0]["error"]["code"] == -32603
    assert wired.session.counters.handler_errors == 1
    await turns(5)
    assert wired.empty()
    await wired.aclose()


async def test_a_modern_server_is_never_written_a_response() -> None:
    """On this transport a modern server asks inside its answers; a request of its own is counted and dropped."""
    from moorings.wire.eras import Era

    wired = Wired(Handlers(elicit=accept), era=Era.MODERN)
    wired.ask(1, "elicitation/create", FORM)
    await turns(10)
    assert wired.transport.sent == [] and wired.session.counters.refused_questions == 1
    assert wired.empty()
    await wired.aclose()


# Questions that end early


async def test_a_question_that_the_server_takes_back_is_not_answered(tmp_path: Path) -> None:
    """The handler is cancelled, no response follows, and the call goes on."""
    ended = asyncio.Event()

    async def person(server: str, question: Any) -> ElicitResult:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    host, log = scripted(tmp_path, handlers=Handlers(elicit=person))
    async with host:
        assert json.loads((await host.call("s__ask", {"cancel_after": 0.1})).text) == [{"cancelled": True}]
        async with asyncio.timeout(2):
            await ended.wait()
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        assert log.entries("response") == [] and sizes_of(host) == EMPTY
    assert log.violations() == []


@pytest.mark.parametrize("between", range(6))
async def test_a_question_taken_back_at_any_moment_leaves_nothing_behind(between: int) -> None:
    """By hand: in the very turn in which it came (before its handler began), and in each turn after."""
    begun: list[str] = []

    async def person(server: str, question: Any) -> ElicitResult:
        begun.append(question.message)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return ElicitResult("decline")

    wired = Wired(Handlers(elicit=person), questions=4)
    for n in range(10):
        wired.ask(n, "elicitation/create", FORM)
        await turns(between)
        wired.take_back(n)
        await turns(10)
        assert wired.empty(), f"after {n + 1}: {wired.session.sizes()}"
    assert wired.session.counters.refused_questions == 0
    # The bound is free again: a question is still answered.
    wired.ask(99, "elicitation/create", FORM)
    await turns(10)
    assert wired.transport.responses()[-1]["id"] == 99
    await wired.aclose()


@on_movable_clock
async def test_f4_8_a_question_taken_back_lets_the_clock_go_on() -> None:
    """F4.8: also when its handler had not begun."""

    async def person(server: str, question: Any) -> ElicitResult:
        await asyncio.Event().wait()
        raise AssertionError

    for between in (0, 1, 5):
        wired = Wired(Handlers(elicit=person))
        call = asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock(60, 600)))
        await turns()
        wired.ask("q", "elicitation/create", FORM)
        await turns(between)
        wired.take_back("q")
        await turns(10)
        advance(61)
        with pytest.raises(CallTimeout):
            await call
        assert wired.empty()
        await wired.aclose()


@on_movable_clock
async def test_f4_8_questions_that_overlap_stop_the_clock_until_the_last_is_answered() -> None:
    """F4.8: on a transport that does not say whose question it is, all calls in flight stand still."""
    answers: dict[str, asyncio.Future[ElicitResult]] = {}

    async def person(server: str, question: Any) -> ElicitResult:
        answers[question.message] = asyncio.get_running_loop().create_future()
        return await answers[question.message]

    wired = Wired(Handlers(elicit=person))
    tasks = [
        asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock(60, 600))) for _ in range(2)
    ]
    await turns()
    advance(30)
    for n in ("a", "b"):
        wired.ask(n, "elicitation/create", {**FORM, "message": n})
    await turns()
    advance(100)
    await turns()
    answers["a"].set_result(ElicitResult("decline"))
    await turns()
    advance(100)
    await turns()
    assert not any(task.done() for task in tasks)
    # A call made meanwhile is not held by questions that are older than it.
    late = asyncio.ensure_future(wired.session.request("tools/call", {}, wired.clock(60, 600)))
    await turns()
    advance(60)
    with pytest.raises(CallTimeout):
        await late
    answers["b"].set_result(ElicitResult("decline"))
    await turns()
    advance(29)
    await turns()
    assert not any(task.done() for task in tasks)
    advance(1.1)
    for task in tasks:
        with pytest.raises(CallTimeout) as caught:
            await task
        assert caught.value.allowed == 60
    assert wired.empty()
    await wired.aclose()
