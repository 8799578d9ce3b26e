"""What the reference server offers to try a client on: resources, prompts, completion, progress, and its questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moorings import (
    Bounds,
    CallTimeout,
    CreateMessageResult,
    ElicitResult,
    Handlers,
    Root,
    RunTimeout,
    StdioServer,
    TextContent,
)
from tests.real.held import held, held_blocking, spec

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]


BUSY = ("everything",)
"""With a timer of its own still running, the server does not end when its stdin ends, and needs TERM."""


@pytest.fixture
def everything(real_server: RealServer) -> dict[str, StdioServer]:
    return {"everything": spec(real_server("everything"))}


async def test_what_the_server_says_of_itself_and_lists(everything: dict[str, StdioServer]) -> None:
    async with held(everything) as host:
        status = host.status()["everything"]
        assert (status.era, status.revision) == ("handshake", "2025-11-25")
        assert status.server_info is not None and status.server_info.name == "mcp-servers/everything"
        assert status.instructions
        assert len(await host.tools()) == 13
        assert await host.resources()
        assert len(await host.resource_templates()) == 2
        assert len(await host.prompts()) == 4
        await host.ping("everything")
        summed = await host.call("everything__get-sum", {"a": 40, "b": 2})
        assert summed.text == "The sum of 40 and 2 is 42."
        structured = await host.call("everything__get-structured-content", {"location": "New York"})
        assert set(structured.structured_content) == {"temperature", "conditions", "humidity"}
        image = await host.call("everything__get-tiny-image")
        assert "image/png" in [getattr(block, "mime_type", None) for block in image.content]
        wrong = await host.call("everything__get-sum", {"a": "forty", "b": 2})
        assert wrong.is_error


async def test_resources_are_read_by_list_and_by_template(everything: dict[str, StdioServer]) -> None:
    async with held(everything) as host:
        listed = (await host.resources())[0].resource.uri
        assert (await host.read_resource(listed)).contents[0].text
        templates = [each.template.uri_template for each in await host.resource_templates()]
        text, blob = (
            next(each for each in templates if word in each).replace("{resourceId}", "7")
            for word in ("text", "blob")
        )
        assert "Resource 7" in ((await host.read_resource(text)).contents[0].text or "")
        assert (await host.read_resource(blob)).contents[0].blob


async def test_prompts_are_filled_in_and_their_arguments_completed(
    everything: dict[str, StdioServer],
) -> None:
    async with held(everything) as host:
        arguments = {"department": "Sales", "name": "Eve"}
        prompt = await host.get_prompt("everything__completable-prompt", arguments)
        assert isinstance(prompt.messages[0].content, TextContent)
        assert prompt.messages[0].content.text == "Please promote Eve to the head of the Sales team."
        ask = host.server("everything").complete
        departments = await ask("department", "S", prompt="completable-prompt")
        assert departments.completion.values == ["Sales", "Support"]
        names = await ask("name", "D", prompt="completable-prompt", context={"department": "Sales"})
        assert names.completion.values == ["David"]


async def test_progress_arrives_in_order_and_before_the_result(everything: dict[str, StdioServer]) -> None:
    async with held(everything) as host:
        seen: list[tuple[float, float | None]] = []
        result = await host.call(
            "everything__trigger-long-running-operation",
            {"duration": 0.5, "steps": 5},
            on_progress=lambda progress, total, message: seen.append((progress, total)),
        )
        assert seen == [(step, 5) for step in (1, 2, 3, 4, 5)]
        assert "completed" in result.text


async def test_progress_stretches_the_limit_of_a_call_up_to_its_total(
    everything: dict[str, StdioServer],
) -> None:
    async with held(everything, forced=BUSY, bounds=Bounds(stop_eof=0.5)) as host:
        operation = "everything__trigger-long-running-operation"
        # 1.5 s of work under a limit of 0.9 s: a sign of progress comes every 0.3 s.
        result = await host.call(operation, {"duration": 1.5, "steps": 5}, timeout=0.9)
        assert "completed" in result.text
        with pytest.raises(CallTimeout) as silent:
            await host.call(operation, {"duration": 20, "steps": 1}, timeout=0.3)
        assert silent.value.sent
        assert 0.3 <= silent.value.elapsed < 1.3
        with pytest.raises(CallTimeout) as whole:
            await host.call(operation, {"duration": 20, "steps": 200}, timeout=5, total=0.5)
        assert 0.5 <= whole.value.elapsed < 1.5
        # The connection is as good as before.
        assert (await host.call("everything__echo", {"message": "ahoy"})).text == "Echo: ahoy"


async def test_a_run_is_cut_off_by_its_deadline_and_the_server_lives_on(
    everything: dict[str, StdioServer],
) -> None:
    async with held(everything, forced=BUSY, bounds=Bounds(stop_eof=0.5)) as host:
        pid = host.status()["everything"].pid
        with pytest.raises(RunTimeout) as cut:
            async with host.run(timeout=0.5):
                await host.call("everything__trigger-long-running-operation", {"duration": 60, "steps": 1})
        assert 0.5 <= cut.value.elapsed < 1.5
        assert (await host.call("everything__echo", {"message": "still here"})).text == "Echo: still here"
        assert host.status()["everything"].pid == pid


def test_sampling_is_answered_by_the_handler(everything: dict[str, StdioServer]) -> None:
    asked: list[Any] = []

    def sample(server: str, question: Any) -> CreateMessageResult:
        asked.append((server, question.system_prompt, question.max_tokens))
        return CreateMessageResult(content=TextContent(text="a calm sea"), model="none")

    with held_blocking(everything, handlers=Handlers(sample=sample)) as host:
        result = host.call(
            "everything__trigger-sampling-request", {"prompt": "How is the sea?", "maxTokens": 20}
        )
        assert "a calm sea" in result.text
        assert asked == [("everything", "You are a helpful test server.", 20)]


async def test_elicitation_is_answered_by_the_handler_in_form_and_url_mode(
    everything: dict[str, StdioServer],
) -> None:
    visited: list[str] = []

    async def fill_in(server: str, question: Any) -> ElicitResult:
        assert "name" in question.requested_schema["properties"]
        return ElicitResult("accept", {"name": "Anna", "integer": 7})

    async def visit(server: str, question: Any) -> ElicitResult:
        visited.append(question.url)
        return ElicitResult("decline")

    async with held(everything, handlers=Handlers(elicit=fill_in, elicit_url=visit)) as host:
        filled = await host.call("everything__trigger-elicitation-request")
        assert "Name: Anna" in filled.text
        assert "Favorite Integer: 7" in filled.text
        url = "https://example.org/consent"
        refused = await host.call("everything__trigger-url-elicitation", {"url": url})
        assert "declined" in refused.text
        assert visited == [url]


async def test_the_time_a_person_takes_is_not_the_tools(everything: dict[str, StdioServer]) -> None:
    async def slowly(server: str, question: Any) -> ElicitResult:
        await asyncio.sleep(0.8)  # the person is what is tested
        return ElicitResult("decline")

    async with held(everything, handlers=Handlers(elicit=slowly)) as host:
        result = await host.call("everything__trigger-elicitation-request", timeout=0.4)
        assert "declined" in result.text


async def test_roots_are_told_to_the_server(everything: dict[str, StdioServer]) -> None:
    roots = [Root(uri="file:///berth/four", name="Berth 4")]
    async with held(everything, handlers=Handlers(roots=roots)) as host:
        told = await host.call("everything__get-roots-list")
        assert "Berth 4" in told.text
        assert "file:///berth/four" in told.text


async def test_log_messages_and_resource_updates_are_heard(everything: dict[str, StdioServer]) -> None:
    logged, updated = asyncio.Event(), asyncio.Event()
    uri = "demo://resource/dynamic/text/1"
    heard: list[str] = []

    def on_update(server: str, which: str) -> None:
        heard.append(which)
        updated.set()

    handlers = Handlers(on_log=lambda server, message: logged.set(), on_resource_updated=on_update)
    async with held(everything, handlers=handlers) as host:
        server = host.server("everything")
        await server.set_log_level("debug")
        await server.subscribe(uri)
        async with asyncio.timeout(10):
            await logged.wait()  # the server logs each subscription
            await server.call("toggle-subscriber-updates")
            await updated.wait()
        assert heard == [uri]
        await server.call("toggle-subscriber-updates")
        await server.unsubscribe(uri)


async def test_tools_that_need_a_handler_are_offered_only_with_one(
    everything: dict[str, StdioServer],
) -> None:
    async def decline(server: str, question: Any) -> ElicitResult:
        return ElicitResult("decline")

    async with held(everything, handlers=Handlers(elicit=decline)) as host:
        names = {tool.tool.name for tool in await host.tools()}
        assert "trigger-elicitation-request" in names
        assert not names & {"trigger-sampling-request", "trigger-url-elicitation", "get-roots-list"}


async def test_resources_and_prompts_are_offered_as_tools_where_that_is_wanted(
    everything: dict[str, StdioServer],
) -> None:
    async with held(everything, tools_for_resources=True, tools_for_prompts=True) as host:
        helpers = {tool.helper: tool.name for tool in await host.tools() if tool.helper}
        assert set(helpers) == {"resources/list", "resources/read", "prompts/list", "prompts/get"}
        uri = "demo://resource/dynamic/text/5"
        assert "Resource 5" in (await host.call(helpers["resources/read"], {"uri": uri})).text
        assert "simple-prompt" in (await host.call(helpers["prompts/list"])).text


async def test_filters_hide_tools_by_their_raw_names(real_server: RealServer) -> None:
    only = spec(real_server("everything"), include=("get-*", "echo"), exclude=("get-env",))
    async with held({"everything": only}) as host:
        names = {tool.tool.name for tool in await host.tools()}
        assert {"echo", "get-sum"} <= names
        assert "get-env" not in names
        assert "trigger-long-running-operation" not in names
