"""What a modern server over HTTP sees of tasks, of the extensions that are declared, and of trace context."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Mapping
from typing import Any

import pytest

from moorings import AmbiguousDelivery, CallTimeout, ElicitResult, Handlers, Refused
from tests.faults.http_server import META
from tests.http.kit import SLACK, hosted, sizes_of, within

TASKS = "io.modelcontextprotocol/tasks"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def accept(server: str, question: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"key": question.message})


async def test_a_task_is_looked_at_until_it_ends() -> None:
    async with hosted(era="modern") as (host, server):
        result = await host.call("s__task", {"steps": ["working", "working", "completed"]})
        assert (result.text, result.is_error) == ("done", False)
        looks = server.of("tasks/get")
        assert [seen.params["taskId"] for seen in looks] == ["task-0"] * 3
        assert [seen.headers["mcp-name"] for seen in looks] == ["task-0"] * 3
        assert server.count("tools/call") == 1


async def test_two_tasks_do_not_wait_for_each_other() -> None:
    async with hosted(era="modern") as (host, server):
        with within(2 * SLACK):
            slow = asyncio.ensure_future(host.call("s__task", {"steps": ["working"] * 1000}))
            await server.seen("tasks/get", 2)
            assert (await host.call("s__task", {"steps": ["completed"]})).text == "done"
        slow.cancel()
        await asyncio.wait({slow})


async def test_its_questions_are_answered_once_each() -> None:
    async with hosted(era="modern", handlers=Handlers(elicit=accept)) as (host, server):
        assert (await host.call("s__task", {"steps": ["ask:one", "ask:two", "completed"]})).text == "done"
        answers = [seen.params["inputResponses"] for seen in server.of("tasks/update")]
        assert [list(each) for each in answers] == [["one"], ["two"]]
        assert answers[0]["one"] == {"action": "accept", "content": {"key": "one"}}


@pytest.mark.parametrize(("end", "said"), [("failed", "it broke"), ("cancelled", "cancelled its task")])
async def test_a_task_that_does_not_complete_is_a_refusal(end: str, said: str) -> None:
    async with hosted(era="modern") as (host, server):
        with pytest.raises(Refused, match=said) as caught:
            await host.call("s__task", {"steps": ["working", end]})
        assert caught.value.tool == "task" and caught.value.sent
        assert server.count("tasks/cancel") == 0


@pytest.mark.parametrize("how", ["cancel", "limit"])
async def test_whoever_gives_up_has_the_task_cancelled(how: str) -> None:
    """By ``tasks/cancel`` alone: ``notifications/cancelled`` is not for tasks."""
    async with hosted(era="modern") as (host, server):
        timeout = 0.4 if how == "limit" else 30
        call = asyncio.ensure_future(host.call("s__task", {"steps": ["working"] * 1000}, timeout=timeout))
        await server.seen("tasks/get")
        if how == "cancel":
            call.cancel()
        with pytest.raises(CallTimeout if how == "limit" else asyncio.CancelledError):
            await call
        seen = await server.seen("tasks/cancel")
        assert seen.params["taskId"] == "task-0"
        await server.until(lambda s: s.tasks["task-0"] == ["cancelled"])
        assert server.count("notifications/cancelled") == 0
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        async with asyncio.timeout(5):
            while sizes_of(host)["pending"]:
                await asyncio.sleep(0)


async def test_a_task_that_changes_extends_the_silence_and_one_that_does_not_change_no_limit() -> None:
    """F4.5 of tasks: that the server answers is no progress; what it says anew is."""
    moving = [f"working:{number}" for number in range(16)]
    async with hosted(era="modern") as (host, _):
        with within(4.0, 0.7):
            assert (await host.call("s__task", {"steps": [*moving, "completed"]}, timeout=0.5)).text == "done"
        with within(0.5 + SLACK, 0.5), pytest.raises(CallTimeout):
            await host.call("s__task", {"steps": ["working"] * 1000}, timeout=0.5)


async def test_a_look_that_breaks_is_made_again_and_the_task_is_not_begun_anew() -> None:
    async with hosted(era="modern", on={"tasks/get": ["die", "status:502", "ok"]}) as (host, server):
        assert (await host.call("s__task", {"steps": ["completed"]})).text == "done"
        assert server.count("tools/call") == 1
        assert server.count("tasks/get") == 3


async def test_a_task_that_cannot_be_looked_at_any_more_is_ambiguous() -> None:
    async with hosted(era="modern", on={"tasks/get": "status:502"}) as (host, server):
        with pytest.raises(AmbiguousDelivery, match="task-0"):
            await host.call("s__task", {"steps": ["completed"]})
        assert server.count("tools/call") == 1


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_extensions_are_declared_in_the_modern_era_alone(era: str) -> None:
    async with hosted(era=era) as (host, server):
        await host.call("s__echo", {"text": "x"})
        meta = server.of("tools/call")[0].params.get("_meta", {})
        if era == "modern":
            assert meta[META + "clientCapabilities"]["extensions"][TASKS] == {}
        else:
            assert not any(key.startswith(META) for key in meta)
            assert "extensions" not in server.of("initialize")[0].params["capabilities"]


# Trace context


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_the_trace_context_of_the_call_goes_along(era: str) -> None:
    """Each call has its own, with ``tracestate`` and ``baggage``; the handshake era has none."""
    current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="")

    def trace() -> Mapping[str, str]:
        return {"traceparent": current.get(), "tracestate": "a=1", "baggage": "k=v"} if current.get() else {}

    async def one(number: int) -> None:
        current.set(PARENT.replace("b7ad", f"{number:04x}"))
        await host.call("s__echo", {"text": str(number)})

    async with hosted(era=era, handlers=Handlers(trace=trace)) as (host, server):
        await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(1, 5)))
        for seen in server.of("tools/call"):
            number = int(seen.params["arguments"]["text"])
            meta = seen.params.get("_meta", {})
            found = {key: meta.get(key) for key in ("traceparent", "tracestate", "baggage")}
            if era == "modern":
                parent = PARENT.replace("b7ad", f"{number:04x}")
                assert found == {"traceparent": parent, "tracestate": "a=1", "baggage": "k=v"}
            else:
                assert not any(found.values())


@pytest.mark.parametrize("given", ["no trace", "", f"{PARENT}-x", None])
async def test_a_trace_context_of_a_wrong_form_is_left_out(given: str | None) -> None:
    """So it is where the function for it fails: the call goes out all the same."""

    def trace() -> Mapping[str, str]:
        if given is None:
            raise RuntimeError("no context here")
        return {"traceparent": given, "tracestate": "a=1"}

    async with hosted(era="modern", handlers=Handlers(trace=trace)) as (host, server):
        assert (await host.call("s__echo", {"text": "x"})).text == "x"
        meta = server.of("tools/call")[0].params["_meta"]
        assert not {"traceparent", "tracestate", "baggage"} & set(meta)
