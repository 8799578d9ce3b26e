"""Real servers from npm and PyPI over stdio: each is reached, listed and used, and ends by itself at the close."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from moorings import Refused, StdioServer
from tests.real.held import held, held_blocking, spec

pytestmark = pytest.mark.real

RealServer = Callable[..., list[str]]
NOWHERE = "127.0.0.1:1"
"""A place on this machine where nobody listens."""


def repository(folder: Path) -> Path:
    """A git repository with one commit and one file not yet added."""
    folder.mkdir()
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Tester"],
        ["config", "user.email", "tester@example.org"],
        ["commit", "--quiet", "--allow-empty", "--message=first"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=30)
    (folder / "notes.txt").write_text("moored\n")
    return folder


async def test_filesystem_writes_a_file_that_is_there_and_refuses_what_is_outside(
    real_server: RealServer, tmp_path: Path
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    async with held({"files": spec(real_server("filesystem", inside))}) as host:
        assert host.status()["files"].revision == "2025-11-25"
        assert len(await host.tools()) == 14
        written = await host.call("files__write_file", {"path": str(inside / "a.txt"), "content": "ahoy"})
        assert not written.is_error
        assert (inside / "a.txt").read_text() == "ahoy"
        read = await host.call("files__read_text_file", {"path": str(inside / "a.txt")})
        assert read.text == "ahoy"
        outside = await host.call(
            "files__write_file", {"path": str(tmp_path / "b.txt"), "content": "overboard"}
        )
        assert outside.is_error
        assert not (tmp_path / "b.txt").exists()


async def test_memory_keeps_what_it_is_told_over_a_restart(real_server: RealServer, tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    server = spec(real_server("memory"), env={"MEMORY_FILE_PATH": str(graph)})
    async with held({"memory": server}) as host:
        assert len(await host.tools()) == 9
        entity = {"name": "Anna", "entityType": "ship", "observations": ["lies at berth 4"]}
        await host.call("memory__create_entities", {"entities": [entity]})
        assert "berth 4" in graph.read_text()
        before = host.status()["memory"].pid
        await host.restart("memory")
        assert host.status()["memory"].pid != before
        found = await host.call("memory__search_nodes", {"query": "Anna"})
        assert found.structured_content["entities"][0]["observations"] == ["lies at berth 4"]


def test_time_converts_between_zones(real_server: RealServer) -> None:
    with held_blocking({"time": spec(real_server("time"))}) as host:
        assert host.status()["time"].revision == "2026-07-28"
        assert [tool.name for tool in host.tools()] == ["time__convert_time", "time__get_current_time"]
        asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        answer = json.loads(host.call("time__convert_time", asked).text)
        assert answer["target"]["datetime"].endswith("T21:00:00+09:00")


async def test_git_commits_what_was_added(real_server: RealServer, tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    server = spec(real_server("git", "--repository", work))
    async with held({"git": server}) as host:
        assert host.status()["git"].revision == "2026-07-28"
        assert len(await host.tools()) == 12
        git = host.server("git")
        assert "notes.txt" in (await git.call("git_status", {"repo_path": str(work)})).text
        await git.call("git_add", {"repo_path": str(work), "files": ["notes.txt"]})
        await git.call("git_commit", {"repo_path": str(work), "message": "Keep the notes"})
    log = subprocess.run(
        ["git", "log", "--format=%s", "--", "notes.txt"],
        cwd=work,
        capture_output=True,
        check=True,
        timeout=30,
        text=True,
    )
    assert log.stdout == "Keep the notes\n"


async def test_sqlite_writes_a_row_that_is_in_the_database(real_server: RealServer, tmp_path: Path) -> None:
    database = tmp_path / "berths.db"
    async with held({"sqlite": spec(real_server("sqlite", "--db-path", database))}) as host:
        assert len(await host.tools()) == 6
        await host.call("sqlite__create_table", {"query": "CREATE TABLE ships (name TEXT, berth INT)"})
        await host.call("sqlite__write_query", {"query": "INSERT INTO ships VALUES ('Anna', 4)"})
        [resource] = await host.resources()
        memo = await host.read_resource(resource.resource.uri)
        assert memo.contents[0].text
        prompt = await host.get_prompt("sqlite__mcp-demo", {"topic": "harbours"})
        assert prompt.messages
        # It declares resources, but knows no such request as resources/templates/list.
        assert await host.server("sqlite").resource_templates() == []
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT name, berth FROM ships").fetchall()
    connection.close()
    assert rows == [("Anna", 4)]


def test_calculator_calculates(real_server: RealServer) -> None:
    with held_blocking({"calculator": spec(real_server("calculator"))}) as host:
        [tool] = host.tools()
        assert tool.input_schema["required"] == ["expression"]
        assert host.call(tool.name, {"expression": "2*(3+4)"}).text == "14"


async def test_sequential_thinking_counts_its_thoughts(real_server: RealServer) -> None:
    async with held({"thinking": spec(real_server("sequential-thinking"))}) as host:
        for number in (1, 2):
            answer = await host.call(
                "thinking__sequentialthinking",
                {"thought": "tide", "nextThoughtNeeded": False, "thoughtNumber": number, "totalThoughts": 2},
            )
        assert answer.structured_content["thoughtHistoryLength"] == 2


async def test_dbhub_answers_from_its_demo_database(real_server: RealServer) -> None:
    async with held({"dbhub": spec(real_server("dbhub"))}) as host:
        assert host.status()["dbhub"].revision == "2026-07-28"
        answer = await host.call("dbhub__execute_sql", {"sql": "SELECT count(*) AS n FROM employee"})
        assert json.loads(answer.text)["data"]["statements"][0]["rows"] == [{"n": 1000}]


async def test_postgres_is_held_without_its_database_and_its_query_is_refused(
    real_server: RealServer,
) -> None:
    server = spec(real_server("postgres", f"postgresql://nobody:none@{NOWHERE}/none"))
    async with held({"postgres": server}) as host:
        assert host.status()["postgres"].revision == "2024-11-05"
        assert [tool.name for tool in await host.tools()] == ["postgres__query"]
        with pytest.raises(Refused, match="ECONNREFUSED") as refused:
            await host.call("postgres__query", {"sql": "SELECT 1"})
        assert refused.value.sent
        assert refused.value.rpc_code == -32603
        # Its list of resources needs the database, and fails alone.
        with pytest.raises(Refused):
            await host.server("postgres").resources()
        assert await host.resources() == []


async def test_redis_is_held_without_its_database_and_says_so_in_the_result(real_server: RealServer) -> None:
    async with held({"redis": spec(real_server("redis", "--url", f"redis://{NOWHERE}/0"))}) as host:
        assert len(await host.tools()) == 53
        answer = await host.call("redis__get", {"key": "berth"})
        assert "refused" in answer.text.lower()


async def test_fetch_lists_its_tool_and_its_prompt(real_server: RealServer) -> None:
    async with held({"fetch": spec(real_server("fetch"))}) as host:
        assert host.status()["fetch"].revision == "2026-07-28"
        assert [tool.name for tool in await host.tools()] == ["fetch__fetch"]
        assert [prompt.name for prompt in await host.prompts()] == ["fetch__fetch"]


async def test_context7_lists_its_tools_and_tells_how_to_use_it(real_server: RealServer) -> None:
    async with held({"context7": spec(real_server("context7"))}) as host:
        assert host.status()["context7"].revision == "2026-07-28"
        names = [tool.tool.name for tool in await host.tools()]
        assert names == ["query-docs", "resolve-library-id"]
        assert "documentation" in (host.server("context7").instructions or "")


def test_nine_servers_in_one_blocking_host_answer_side_by_side(
    real_server: RealServer, tmp_path: Path
) -> None:
    servers: dict[str, StdioServer] = {
        name: spec(real_server(name))
        for name in ("everything", "sequential-thinking", "dbhub", "time", "git", "calculator")
    }
    servers["filesystem"] = spec(real_server("filesystem", tmp_path))
    servers["memory"] = spec(real_server("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "graph.json")})
    servers["sqlite"] = spec(real_server("sqlite", "--db-path", tmp_path / "x.db"))
    with held_blocking(servers) as host:
        names = [tool.name for tool in host.tools()]
        assert len(names) == len(set(names)) >= 60
        begun = [
            host.submit("calculator__calculate", {"expression": "6*7"}),
            host.submit("everything__get-sum", {"a": 1, "b": 2}),
            host.submit("time__get_current_time", {"timezone": "UTC"}),
            host.submit("filesystem__list_directory", {"path": str(tmp_path)}),
            host.submit("memory__read_graph"),
            host.submit("sqlite__list_tables"),
        ]
        answers = [call.result(30) for call in begun]
        assert not any(answer.is_error for answer in answers)
        assert answers[0].text == "42"


async def test_a_server_killed_from_outside_is_started_again_by_the_next_call(
    real_server: RealServer, tmp_path: Path
) -> None:
    died = asyncio.Event()

    def hear(event: object) -> None:
        if getattr(event, "new", "") == "parked":
            died.set()

    server = spec(real_server("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "graph.json")})
    async with held({"memory": server}, on_event=hear) as host:
        pid = host.status()["memory"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            await died.wait()
        assert "signal 9" in str(host.status()["memory"].last_error)
        assert not (await host.call("memory__read_graph")).is_error
        assert host.status()["memory"].generation == 2
