"""Real servers over HTTP held by Moorings: found out, listed, called, questioned, closed; and the era remembered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    CallTimeout,
    CreateMessageResult,
    ElicitResult,
    Handlers,
    Host,
    HttpServer,
    RunTimeout,
    TextContent,
)
from tests.real.http_servers import STARTS, http_server

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
READY_WITHIN = 40.0

CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "everything": ("echo", {"message": "ahoy"}, "Echo: ahoy"),
    "everything-sse": ("echo", {"message": "ahoy"}, "Echo: ahoy"),
    "context7": ("resolve-library-id", {}, "rror"),
    "dbhub": ("execute_sql", {"sql": "select 41 + 1 as n"}, "42"),
    # Without a database: what it knows of is none.
    "mongodb": ("list-connections", {}, "onnection"),
    # With a browser it has none open; without one its answer says so. Either begins with a heading.
    "playwright": ("browser_close", {}, "### "),
    "playwright-sse": ("browser_close", {}, "### "),
    "mcp-proxy": ("get_current_time", {"timezone": "Europe/Paris"}, "Paris"),
    "mcp-proxy-sse": ("get_current_time", {"timezone": "Europe/Paris"}, "Paris"),
    "sdk-1.30.0": ("count", {}, "1"),
    "sdk-1.30.0-sse": ("count", {}, "1"),
    "sdk-2.3.0": ("count", {}, "1"),
}
"""A tool of each, and what its answer holds."""


@asynccontextmanager
async def held(url: str, **options: Any) -> AsyncIterator[AsyncHost]:
    options.setdefault("state_dir", False)
    host = AsyncHost({"it": HttpServer(url=url)}, **options)
    async with host:
        readiness = await host.wait_ready(READY_WITHIN)
        assert readiness.all_ready, readiness
        yield host
    report = await host.close()
    assert not report.stuck
    assert set(report.servers) == {"it"}
    assert report.elapsed < 4


@pytest.mark.parametrize("name", STARTS)
async def test_each_is_found_out_listed_called_and_closed(
    name: str, real_server: RealServer, tmp_path: Path
) -> None:
    with http_server(name, real_server, tmp_path) as running:
        async with held(running.url) as host:
            status = host.status()["it"]
            assert status.era == STARTS[name].era
            tools = await host.tools()
            assert tools
            tool, arguments, expected = CALLS[name]
            result = await host.call(("it", tool), arguments, timeout=20)
            assert expected in result.text, result
            for resource in (await host.resources())[:1]:
                assert (await host.read_resource(resource.resource.uri, server="it")).contents
            await host.prompts()


async def test_what_was_found_out_is_remembered(real_server: RealServer, tmp_path: Path) -> None:
    with http_server("everything-sse", real_server, tmp_path) as running:
        for _ in range(2):
            async with held(running.url, state_dir=tmp_path / "state") as host:
                steps = host.status()["it"].steps
                assert await host.tools()
        files = list((tmp_path / "state" / "eras").iterdir())
        assert len(files) == 1
        assert b'"sse"' in files[0].read_bytes()
        assert steps["negotiate"] < 5


async def test_resources_prompts_progress_and_a_limit(real_server: RealServer, tmp_path: Path) -> None:
    with http_server("everything", real_server, tmp_path) as running:
        async with held(running.url) as host:
            listed = (await host.resources())[0].resource.uri
            assert (await host.read_resource(listed)).contents[0].text
            prompt = await host.get_prompt("it__completable-prompt", {"department": "Sales", "name": "Eve"})
            assert isinstance(prompt.messages[0].content, TextContent)
            seen: list[float] = []
            result = await host.call(
                "it__trigger-long-running-operation",
                {"duration": 0.5, "steps": 5},
                on_progress=lambda progress, total, message: seen.append(progress),
            )
            assert "completed" in result.text
            assert seen == [1, 2, 3, 4, 5]
            with pytest.raises(CallTimeout) as silent:
                await host.call(
                    "it__trigger-long-running-operation", {"duration": 20, "steps": 1}, timeout=0.3
                )
            assert silent.value.sent
            with pytest.raises(RunTimeout):
                async with host.run(timeout=0.3):
                    await host.call("it__trigger-long-running-operation", {"duration": 60, "steps": 1})
            assert (await host.call("it__echo", {"message": "still here"})).text == "Echo: still here"


@pytest.mark.parametrize("name", ["everything", "everything-sse"])
def test_questions_of_the_server_are_answered(name: str, real_server: RealServer, tmp_path: Path) -> None:
    def sample(server: str, question: Any) -> CreateMessageResult:
        return CreateMessageResult(content=TextContent(text="a calm sea"), model="none")

    def elicit(server: str, question: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    handlers = Handlers(sample=sample, elicit=elicit)
    with http_server(name, real_server, tmp_path) as running:
        with Host({"it": HttpServer(url=running.url)}, handlers=handlers, state_dir=False) as host:
            assert host.wait_ready(READY_WITHIN).all_ready
            sampled = host.call(
                "it__trigger-sampling-request", {"prompt": "How is the sea?", "maxTokens": 20}
            )
            assert "a calm sea" in sampled.text
            asked = host.call("it__trigger-elicitation-request", {})
            assert "decline" in asked.text.lower()


@pytest.mark.parametrize("name", ["sdk-1.30.0", "sdk-2.3.0"])
async def test_progress_and_effects_of_the_official_sdk(
    name: str, real_server: RealServer, tmp_path: Path
) -> None:
    with http_server(name, real_server, tmp_path) as running:
        async with held(running.url) as host:
            seen: list[tuple[float, str | None]] = []
            result = await host.call(
                "it__steps", {"n": 3}, on_progress=lambda p, total, message: seen.append((p, message))
            )
            assert result.text == "done"
            assert seen == [(1, "step 1"), (2, "step 2"), (3, "step 3")]
            answers = await asyncio.gather(*(host.call("it__count", {}) for _ in range(8)))
            assert sorted(int(answer.text) for answer in answers) == list(range(1, 9))
            assert (await host.read_resource("note://one", server="it")).contents[0].text == "a note"
            prompt = await host.get_prompt("it__greet", {"name": "Eve"})
            assert isinstance(prompt.messages[0].content, TextContent)
            assert prompt.messages[0].content.text == "Greet Eve"


async def test_a_server_that_is_restarted_is_found_again(real_server: RealServer, tmp_path: Path) -> None:
    """P8: the session is another one then, and nobody has to say so."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with http_server("everything", real_server, tmp_path / "one") as running:
        async with held(running.url) as host:
            assert (await host.call("it__echo", {"message": "one"})).text == "Echo: one"
            running.kill()
            with http_server("everything", real_server, tmp_path / "two", port=running.port):
                assert (await host.call("it__echo", {"message": "two"})).text == "Echo: two"
