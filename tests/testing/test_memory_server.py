"""A ``MemoryServer`` behind a host: what it offers, what it is asked and told, in both eras, from async and blocking
code."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from moorings import (
    AsyncHost,
    Bounds,
    CallCancelled,
    CatalogChanged,
    CreateMessageResult,
    ElicitResult,
    Handlers,
    Host,
    MisuseError,
    Refused,
    RequiredServerMissing,
    Root,
    State,
    TextContent,
)
from moorings.testing import (
    ClientRefused,
    Context,
    ImageContent,
    MemoryServer,
    PromptMessage,
    ResourceContents,
    ToolAnnotations,
)
from moorings.wire.types import CallToolResult, encode

Era = Literal["handshake", "modern"]
ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])


@dataclass
class Point:
    x: int
    y: int = 0


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Told:
    """The events of a host, to wait for."""

    def __init__(self) -> None:
        self.changes: list[CatalogChanged] = []
        self._news = asyncio.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, CatalogChanged):
            self.changes.append(event)
            self._news.set()

    async def of(self, kind: str, count: int = 1) -> CatalogChanged:
        async with asyncio.timeout(10):
            while len(found := [each for each in self.changes if each.kind == kind]) < count:
                self._news.clear()
                await self._news.wait()
        return found[-1]


def weather(era: Era | None = None) -> MemoryServer:
    server = MemoryServer("weather", era=era, version="7", instructions="Ask kindly.")

    @server.tool
    def forecast(city: str, days: int = 1) -> str:
        """What the weather will be."""
        return f"{city}: rain for {days} days"

    return server


def host_of(server: MemoryServer, **options: Any) -> AsyncHost:
    return AsyncHost({"s": server}, **{"state_dir": False, **options})


# Both hosts, both eras


@ERAS
async def test_an_async_host_takes_the_object_itself(era: Era) -> None:
    server = weather(era)
    async with host_of(server) as host:
        assert (await host.wait_ready(10)).ready == ("s",)
        result = await host.call("s__forecast", {"city": "Delft", "days": 3})
        status = host.status()["s"]
        assert (result.text, result.is_error) == ("Delft: rain for 3 days", False)
        assert (status.era, status.pid, status.instructions) == (era, None, "Ask kindly.")
        assert status.server_info is not None
        assert (status.server_info.name, status.server_info.version) == ("weather", "7")
        report = await host.close()
    assert report.clean
    call = server.calls[0]
    assert (call.tool, call.arguments, call.ran) == ("forecast", {"city": "Delft", "days": 3}, True)
    assert call.result == {"content": [{"type": "text", "text": "Delft: rain for 3 days"}]}
    assert (call.error, call.cancelled, server.starts) == (None, False, 1)


@ERAS
def test_a_blocking_host_takes_the_object_itself(era: Era) -> None:
    server = weather(era)
    with Host({"s": server}, state_dir=False) as host:
        assert host.wait_ready(10).ready == ("s",)
        assert host.call("s__forecast", {"city": "Delft"}).text == "Delft: rain for 1 days"
        assert host.close().clean
    assert [call.arguments for call in server.calls] == [{"city": "Delft"}]


@pytest.mark.parametrize(("protocol", "spoken"), [("auto", "modern"), ("handshake", "handshake")])
async def test_a_server_of_both_eras_is_taken_for_a_modern_one(protocol: Any, spoken: str) -> None:
    async with host_of(weather().spec(protocol=protocol)) as host:  # type: ignore[arg-type]
        await host.wait_ready(10)
        assert host.status()["s"].era == spoken


async def test_one_object_serves_several_hosts() -> None:
    server = weather()
    async with host_of(server) as one, host_of(server) as other:
        await asyncio.gather(*[host.call("s__forecast", {"city": "x"}) for host in (one, other)])
    assert (len(server.calls), server.starts) == (2, 2)


async def test_no_era_is_written_for_an_object(tmp_path: Any) -> None:
    async with host_of(weather(), state_dir=tmp_path) as host:
        await host.wait_ready(10)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_a_specification_says_more() -> None:
    server = weather()

    @server.tool
    async def flood() -> None:
        raise AssertionError("it was left out")

    spec = server.spec(lazy=True, exclude=["flood"], bounds=Bounds(call=7.0))
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        assert host.status()["s"].state is State.IDLE and server.starts == 0
        assert [tool.name for tool in await host.server("s").tools()] == ["forecast"]
    with pytest.raises(MisuseError, match="protocol"):
        server.spec(protocol="2024")  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match="Bounds"):
        server.spec(bounds=3)  # type: ignore[arg-type]


async def test_a_host_adds_an_object_while_it_runs() -> None:
    async with AsyncHost(state_dir=False) as host:
        handle = await host.add("late", weather())
        assert (await handle.call("forecast", {"city": "Delft"})).text == "Delft: rain for 1 days"
    with pytest.raises(MisuseError, match="StdioServer"):
        AsyncHost({"s": object()})  # type: ignore[dict-item]


async def test_a_required_server_that_refuses_is_named() -> None:
    server = weather()
    server.fail_starts(reason="the test says no")
    async with AsyncHost({"s": server.spec(required=True)}, state_dir=False) as host:
        with pytest.raises(RequiredServerMissing, match="it is not to be reached: the test says no"):
            await host.wait_ready(10)
    assert not server.faults_left


# Tools


async def test_a_schema_is_made_from_the_type_hints() -> None:
    server = MemoryServer()

    @server.tool(title="All kinds", annotations=ToolAnnotations(read_only_hint=True))
    async def kinds(
        text: str,
        number: float,
        many: list[int],
        point: Point,
        maybe: bool | None = None,
        unit: Literal["C", "F"] = "C",
        colour: Colour = Colour.RED,
        tags: dict[str, str] = {},  # noqa: B006
        where: Annotated[str, msgspec.Meta(description="Which place.")] = "here",
    ) -> dict[str, Any]:
        """Takes all kinds.

        And says so.
        """
        return {"point": [point.x, point.y], "colour": colour.name, "tags": tags, "number": number}

    async with host_of(server) as host:
        tool = (await host.server("s").tools())[0]
        assert (tool.title, tool.description) == ("All kinds", "Takes all kinds.\n\nAnd says so.")
        assert tool.annotations is not None and tool.annotations.read_only_hint
        schema = tool.input_schema
        assert schema["type"] == "object" and schema["additionalProperties"] is False
        assert schema["required"] == ["text", "number", "many", "point"]
        assert schema["properties"]["text"] == {"type": "string"}
        assert schema["properties"]["many"] == {"type": "array", "items": {"type": "integer"}}
        assert schema["properties"]["unit"] == {"enum": ["C", "F"], "default": "C"}
        assert schema["properties"]["where"]["description"] == "Which place."
        assert "default" not in schema["properties"]["tags"]
        assert schema["$defs"]["Point"]["required"] == ["x"]
        good = {"text": "", "number": 1, "many": [], "point": {"x": 3}, "colour": "blue"}
        result = await host.call("s__kinds", good)
        assert result.structured_content == {"point": [3, 0], "colour": "BLUE", "tags": {}, "number": 1.0}
        for bad in ({"text": 1}, {"strange": 1}, {"unit": "K"}, {"point": {}}, {"many": ["x"]}):
            result = await host.call("s__kinds", {**good, **bad})
            assert result.is_error and result.text
    assert [call.ran for call in server.calls] == [True, *[False] * 5]


async def test_a_schema_of_ones_own_leaves_arguments_as_they_are() -> None:
    server = MemoryServer()
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    server.tool(name="own", description="Mine.", input_schema=schema)(lambda **given: repr(given))
    async with host_of(server) as host:
        tool = (await host.server("s").tools())[0]
        assert (tool.name, tool.description, tool.input_schema) == ("own", "Mine.", schema)
        assert (await host.call("s__own", {"a": "no integer"})).text == "{'a': 'no integer'}"


def test_what_no_client_can_give_is_refused_at_once() -> None:
    server = MemoryServer()

    def rest(*values: int) -> None: ...
    def strange(value: subprocess.Popen[bytes]) -> None: ...
    def local(value: Unheard) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def plain(ctx: Context) -> None: ...

    for function, said in (
        (rest, "no client can name"),
        (strange, "no schema can be made"),
        (local, "cannot be resolved"),
        (plain, "no 'async def'"),
    ):
        with pytest.raises(MisuseError, match=said):
            server.tool(function)
    with pytest.raises(MisuseError, match="names"):
        server.resource("file:///{name}")(lambda other: other)
    with pytest.raises(MisuseError, match="era"):
        MemoryServer(era="stone")  # type: ignore[arg-type]
    assert not server.tools


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("words", "words", None),
        (None, "", None),
        (7, "7", None),
        ([1, 2], "[1,2]", None),
        ({"a": 1}, '{"a":1}', {"a": 1}),
        (Point(1, 2), '{"x":1,"y":2}', {"x": 1, "y": 2}),
        (TextContent("block"), "block", None),
        ([TextContent("a"), ImageContent("aGk=", "image/png")], "a", None),
    ],
)
async def test_what_a_tool_returns(value: Any, text: str, structured: Any) -> None:
    server = MemoryServer()

    @server.tool
    def give() -> Any:
        return value

    async with host_of(server) as host:
        result = await host.call("s__give")
    assert (result.text, result.structured_content, result.is_error) == (text, structured, False)


@ERAS
async def test_a_whole_result_goes_out_as_it_is(era: Era) -> None:
    server = MemoryServer(era=era)

    @server.tool
    def give() -> Any:
        meta = msgspec.Raw(encode({"mine": 1}))
        return CallToolResult(content=[TextContent("no")], is_error=True, meta=meta)

    async with host_of(server) as host:
        result = await host.call("s__give")
        assert (result.text, result.is_error) == ("no", True)
        assert msgspec.json.decode(result.meta)["mine"] == 1  # type: ignore[arg-type]


class Outside(BaseException):
    """As what ``pytest.fail`` raises: no Exception."""


@pytest.mark.parametrize("error", [ValueError("wrong city"), Outside("no"), SystemExit(3), KeyError()])
@pytest.mark.parametrize("plain", [False, True])
async def test_what_a_tool_raises_is_an_error_in_its_result(error: BaseException, plain: bool) -> None:
    server = MemoryServer()

    def fail() -> None:
        raise error

    async def afail() -> None:
        raise error

    server.tool(name="fail")(fail if plain else afail)
    async with host_of(server) as host:
        result = await host.call("s__fail")
        assert result.is_error and result.text
        assert (await host.call("s__fail")).is_error
    raised = server.calls[0].error
    assert raised is error or raised.__cause__ is error  # type: ignore[union-attr]


async def test_what_cannot_be_said_in_json_is_an_error_in_the_result() -> None:
    server = MemoryServer()

    @server.tool
    async def give() -> Any:
        return object()

    async with host_of(server) as host:
        assert (await host.call("s__give")).is_error
    assert isinstance(server.calls[0].error, TypeError)


async def test_a_tool_that_cancels_itself_has_failed() -> None:
    server = MemoryServer()

    @server.tool
    async def quit_() -> None:
        raise asyncio.CancelledError

    async with host_of(server) as host:
        assert (await host.call("s__quit_")).is_error
    assert not server.calls[0].cancelled


async def test_an_unknown_tool_is_refused() -> None:
    server = weather()
    async with host_of(server) as host:
        await host.wait_ready(10)
        server.remove_tool("forecast")
        with pytest.raises(Refused, match="unknown tool: forecast"):
            await host.call("s__forecast", {"city": "x"})
    with pytest.raises(KeyError):
        server.remove_tool("forecast")


# Resources and prompts


@ERAS
async def test_resources_are_listed_and_read(era: Era) -> None:
    server = MemoryServer(era=era)
    server.resource("memo:text", description="A text.")(lambda: "words")
    server.resource("memo:bytes", name="blob")(lambda: b"hi")
    server.resource("memo:json")(lambda: {"a": 1})
    server.resource("memo:own")(lambda: ResourceContents(uri="memo:other", text="own"))

    @server.resource("memo:///{folder}/{name}.txt")
    async def note(folder: str, name: str) -> str:
        return f"{folder} and {name}"

    async with host_of(server) as host:
        handle = host.server("s")
        assert sorted(r.uri for r in await handle.resources()) == [
            "memo:bytes", "memo:json", "memo:own", "memo:text",
        ]  # fmt: skip
        assert [t.uri_template for t in await handle.resource_templates()] == ["memo:///{folder}/{name}.txt"]

        async def read(uri: str) -> Any:
            return (await host.read_resource(uri, server="s")).contents[0]

        assert await read("memo:text") == ResourceContents("memo:text", "text/plain", "words")
        assert await read("memo:bytes") == ResourceContents(
            "memo:bytes", "application/octet-stream", None, "aGk="
        )
        assert await read("memo:json") == ResourceContents("memo:json", "application/json", '{"a":1}')
        assert (await read("memo:own")).uri == "memo:other"
        assert (await read("memo:///a%20b/c.txt")).text == "a b and c"
        with pytest.raises(Refused, match="resource not found"):
            await read("memo:///a/b/c.txt")


@ERAS
async def test_prompts_are_listed_and_filled_in(era: Era) -> None:
    server = MemoryServer(era=era)

    @server.prompt
    def review(code: str, style: str = "kind") -> list[Any]:
        """Review some code."""
        return [f"Review {code}, {style}.", PromptMessage("assistant", TextContent("Well."))]

    async with host_of(server) as host:
        listed = (await host.server("s").prompts())[0]
        assert (listed.name, listed.description) == ("review", "Review some code.")
        assert [(a.name, a.required) for a in listed.arguments or ()] == [("code", True), ("style", False)]
        result = await host.get_prompt("s__review", {"code": "x = 1"})
        assert [(m.role, m.content.text) for m in result.messages] == [  # type: ignore[union-attr]
            ("user", "Review x = 1, kind."),
            ("assistant", "Well."),
        ]
        with pytest.raises(Refused, match="'code' is missing, 'odd' is not known"):
            await host.get_prompt("s__review", {"odd": "1"})


# What it tells


@ERAS
async def test_a_host_hears_that_lists_have_changed(era: Era) -> None:
    server, told = weather(era), Told()
    server.prompt(lambda: "hello")
    server.resource("memo:a")(lambda: "a")
    async with host_of(server, on_event=told) as host:
        await host.wait_ready(10)
        handle = host.server("s")
        assert len(await handle.prompts()) == 1 and len(await handle.resources()) == 1
        await told.of("tools")

        @server.tool
        async def storm() -> None: ...

        server.notify_tools_changed()
        assert (await told.of("tools", 2)).added == ("storm",)
        server.remove_tool("storm")
        server.notify_tools_changed()
        assert (await told.of("tools", 3)).removed == ("storm",)
        server.resource("memo:b")(lambda: "b")
        server.notify_resources_changed()
        server.prompt(name="other")(lambda: "hello")
        server.notify_prompts_changed()
        async with asyncio.timeout(10):
            while len(await handle.prompts()) < 2 or len(await handle.resources()) < 2:
                await asyncio.sleep(0)


@ERAS
def test_a_blocking_test_changes_a_server_that_is_in_use(era: Era) -> None:
    import threading

    server, changed = weather(era), threading.Event()

    def told(event: Any) -> None:
        if isinstance(event, CatalogChanged) and "storm" in event.added:
            changed.set()

    with Host({"s": server}, state_dir=False, on_event=told) as host:
        host.wait_ready(10)

        @server.tool
        def storm() -> str:
            return "wind"

        server.notify_tools_changed()
        assert changed.wait(10)
        assert host.call("s__storm").text == "wind"


@ERAS
async def test_subscribers_hear_of_a_resource(era: Era) -> None:
    server, heard = weather(era), asyncio.Queue[str]()
    for uri in ("memo:a", "memo:b"):
        server.resource(uri)(lambda: "x")
    handlers = Handlers(on_resource_updated=lambda name, uri: heard.put_nowait(uri))
    async with host_of(server, handlers=handlers) as host:
        handle = host.server("s")
        await handle.subscribe("memo:a")
        server.notify_resource_updated("memo:b")
        server.notify_resource_updated("memo:a")
        async with asyncio.timeout(10):
            assert await heard.get() == "memo:a"
        assert heard.empty()


# What a tool asks and tells while it runs


@ERAS
async def test_progress_reaches_the_caller(era: Era) -> None:
    server, seen = MemoryServer(era=era), []

    @server.tool
    async def work(ctx: Context, steps: int) -> str:
        for step in range(steps):
            await ctx.progress(step + 1, steps, f"step {step + 1}")
        return "done"

    async with host_of(server) as host:
        result = await host.call("s__work", {"steps": 2}, on_progress=lambda *each: seen.append(each))
        assert (await host.server("s").tools())[0].input_schema["required"] == ["steps"]
    assert result.text == "done"
    assert seen == [(1.0, 2.0, "step 1"), (2.0, 2.0, "step 2")]


@ERAS
async def test_log_messages_reach_who_wants_them(era: Era) -> None:
    server, heard = MemoryServer(era=era), asyncio.Queue[tuple[str, Any]]()

    @server.tool
    async def work(ctx: Context) -> None:
        await ctx.log("low", level="debug")
        await ctx.log({"high": 1}, level="error", logger="part")

    handlers = Handlers(on_log=lambda name, params: heard.put_nowait((params.level, params.data)))
    async with host_of(server, handlers=handlers) as host:
        await host.server("s").set_log_level("warning")
        await host.call("s__work")
        async with asyncio.timeout(10):
            assert await heard.get() == ("error", {"high": 1})
        assert heard.empty()


@ERAS
async def test_a_tool_asks_person_model_and_roots(era: Era) -> None:
    server = MemoryServer(era=era)

    @server.tool
    async def ask(ctx: Context) -> dict[str, Any]:
        first, second = await asyncio.gather(ctx.elicit("Which city?", Point), ctx.elicit("Sure?"))
        visit = await ctx.elicit_url("Look here", "https://example.com/")
        said = await ctx.sample("Say hello", system_prompt="Be brief", temperature=0.1)
        roots = await ctx.roots()
        return {
            "first": first.content,
            "second": second.action,
            "visit": visit.action,
            "said": said.content.text,  # type: ignore[union-attr]
            "roots": [root.uri for root in roots],
        }

    asked: list[Any] = []

    def elicit(name: str, params: Any) -> ElicitResult:
        asked.append((params.message, params.requested_schema))
        return ElicitResult("accept", {"x": 1}) if "city" in params.message else ElicitResult("decline")

    async def sample(name: str, params: Any) -> CreateMessageResult:
        asked.append((params.system_prompt, params.temperature, params.max_tokens))
        return CreateMessageResult(content=TextContent("hello"), model="stub")

    handlers = Handlers(
        elicit=elicit,
        elicit_url=lambda name, params: ElicitResult("cancel"),
        sample=sample,
        roots=[Root("file:///work")],
    )
    async with host_of(server, handlers=handlers) as host:
        result = await host.call("s__ask")
    assert result.structured_content == {
        "first": {"x": 1},
        "second": "decline",
        "visit": "cancel",
        "said": "hello",
        "roots": ["file:///work"],
    }
    assert sorted(each[0] for each in asked[:2]) == ["Sure?", "Which city?"]
    assert any(each[1].get("required") == ["x"] for each in asked[:2])
    assert asked[2] == ("Be brief", 0.1, 1000)
    assert len(server.calls) == 1


@ERAS
async def test_a_question_that_nobody_answers_fails_in_the_tool(era: Era) -> None:
    server, errors = MemoryServer(era=era), []

    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.elicit("Sure?")
        except ClientRefused as error:
            errors.append(str(error))
            return "went on"
        return "?"

    async with host_of(server) as host:
        assert (await host.call("s__ask")).text == "went on"
    assert errors == ["the client does not answer elicitation/create"]


async def test_a_handler_that_fails_is_an_error_in_the_tool() -> None:
    server = MemoryServer(era="handshake")

    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(ClientRefused, match="failed"):
            await ctx.sample("?")
        return "went on"

    def sample(name: str, params: Any) -> Any:
        raise ValueError

    async with host_of(server, handlers=Handlers(sample=sample)) as host:
        assert (await host.call("s__ask")).text == "went on"


async def test_a_tool_gives_up_a_question_and_answers_when_it_is_asked_again() -> None:
    """In the modern era the answer has to wait for the client, who is still busy with the question."""
    server, gave_up = MemoryServer(era="modern"), asyncio.Event()

    @server.tool
    async def ask(ctx: Context) -> str:
        question = asyncio.ensure_future(ctx.elicit("Sure?"))
        await asked.wait()
        question.cancel()
        gave_up.set()
        return "went on"

    asked = asyncio.Event()

    async def elicit(name: str, params: Any) -> ElicitResult:
        asked.set()
        await gave_up.wait()
        return ElicitResult("cancel")

    async with host_of(server, handlers=Handlers(elicit=elicit)) as host:
        assert (await host.call("s__ask")).text == "went on"


# Cancellation


@ERAS
async def test_a_cancel_reaches_the_tool_as_cancellation(era: Era) -> None:
    server, began, ended = MemoryServer(era=era), asyncio.Event(), asyncio.Event()

    @server.tool
    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with host_of(server) as host:
        call = asyncio.ensure_future(host.call("s__work"))
        await began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            await ended.wait()
        assert host.status()["s"].state is State.READY
    assert server.calls[0].cancelled


@ERAS
async def test_a_question_under_way_is_taken_back_with_its_tool(era: Era) -> None:
    server, asked, over = MemoryServer(era=era), asyncio.Event(), asyncio.Event()

    @server.tool
    async def ask(ctx: Context) -> None:
        await ctx.elicit("Sure?")

    async def elicit(name: str, params: Any) -> ElicitResult:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        raise AssertionError

    async with host_of(server, handlers=Handlers(elicit=elicit)) as host:
        call = asyncio.ensure_future(host.call("s__ask"))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(10):
            await over.wait()
    assert server.calls[0].cancelled


async def test_a_call_that_never_left_is_no_call() -> None:
    server = weather()
    async with host_of(server) as host:
        await host.wait_ready(10)
        call = asyncio.ensure_future(host.call("s__forecast", {"city": "x"}))
        call.cancel()
        with pytest.raises((asyncio.CancelledError, CallCancelled)):
            await call
        await host.call("s__forecast", {"city": "y"})
    assert [call.arguments["city"] for call in server.calls] == ["y"]


# What is loaded


@pytest.mark.parametrize(
    ("statement", "absent"),
    [("import moorings; moorings.AsyncHost", "moorings.testing"), ("import moorings.testing", "aiohttp")],
)
def test_what_an_import_leaves_alone(statement: str, absent: str) -> None:
    code = f"import sys\n{statement}\nsys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=60).returncode == 0
