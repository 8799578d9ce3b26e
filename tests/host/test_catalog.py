"""The catalog: names that lead back, filters, a stable order, and what is said of names that lead nowhere."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    Bounds,
    CallError,
    Host,
    NotSent,
    Refused,
    State,
    StdioServer,
    UnknownServer,
    UnknownTool,
    exposed_name,
)
from moorings.host.catalog import wanted
from moorings.host.names import helper_name
from moorings.host.resolve import nearest, template_matches
from tests.faults.script import FaultLog, fault_server

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
QUICK = Bounds(cooldown=0.0, stop_eof=1.0)
FAST: dict[str, Any] = {"protocol": "handshake", "bounds": QUICK}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def server(tmp_path: Path, journal: str = "s", **keys: Any) -> StdioServer:
    tools = keys.pop("tools", ())
    listed = tools if isinstance(tools, int) else [tool(t) if isinstance(t, str) else t for t in tools]
    given = {**FAST, "builtins": not tools, **keys}
    return fault_server(journal=tmp_path / journal, tools=listed, **given)


# --- names ----------------------------------------------------------------------------------------------------------


async def test_f15_1_every_tool_of_every_server_has_its_own_name_and_its_raw_name_is_sent(
    tmp_path: Path,
) -> None:
    """F15.1: two servers with a tool ``search``, names that differ in what is not plain only, servers named like a path
    or like a built-in group."""
    awkward = [
        "search",
        "a.b",
        "a_b",
        "a b",
        "Get File",
        "größe",
        "工具",
        "a__b",
        "_",
        "x" * 70,
        "mcp__search",
    ]
    raw_servers = ["one", "one.", "one_", "example.com/x/y", "mcp", "functions", "größe"]
    servers = {name: server(tmp_path, f"j{n}", tools=awkward) for n, name in enumerate(raw_servers)}
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)
        catalog = await host.tools()
        assert len(catalog) == len(awkward) * len(raw_servers)
        assert len({item.name for item in catalog}) == len(catalog)
        assert all(VALID.match(item.name) for item in catalog)
        for item in catalog:
            answered = json.loads((await host.call(item.name, {"x": 1})).text)
            assert answered == {"tool": item.tool.name, "arguments": {"x": 1}}
        for number in range(len(raw_servers)):
            log = FaultLog(tmp_path / f"j{number}")
            assert sorted(e["tool"] for e in log.entries("received", method="tools/call")) == sorted(awkward)


async def test_f15_2_long_names_are_distinct_and_the_same_after_a_restart(tmp_path: Path) -> None:
    """F15.2: given two tools that share their first 64 characters, in whatever order they come and whoever else is
    there."""
    long = [f"{'long_' * 14}{end}" for end in ("one", "two")]
    name = "a_server_with_quite_a_long_name"

    async def names(servers: dict[str, StdioServer]) -> dict[str, str]:
        async with AsyncHost(servers, state_dir=False) as host:
            await host.wait_ready(10)
            first = {i.tool.name: i.name for i in await host.tools() if i.server == name}
            await host.restart(name)
            assert {i.tool.name: i.name for i in await host.tools() if i.server == name} == first
            return first

    alone = await names({name: server(tmp_path, tools=long)})
    beside = await names({"a": server(tmp_path, tools=long), name: server(tmp_path, tools=long[::-1])})
    assert alone == beside
    assert len(set(alone.values())) == 2 and all(len(n) <= 64 for n in alone.values())


# --- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        (None, (), ["Read_x", "read_a", "read_b", "write_a"]),
        (("read_*",), (), ["read_a", "read_b"]),
        (("read_*",), ("*_b",), ["read_a"]),
        ((), (), []),
        (None, ("*",), []),
        (("READ_*",), (), []),
        (("read_?", "write_[ab]"), (), ["read_a", "read_b", "write_a"]),
        (("s__read_a",), (), []),
    ],
)
async def test_f15_7_filters_are_globs_on_raw_names(
    tmp_path: Path, include: Any, exclude: Any, left: list[str]
) -> None:
    """F15.7: case-sensitive; an empty list means none; what is hidden cannot be called by its catalog name."""
    names = ["read_a", "read_b", "Read_x", "write_a"]
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, tools=names, include=include, exclude=exclude)
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        assert [item.tool.name for item in await host.tools()] == left
        assert [t.name for t in await host.server("s").tools()] == left
        for name in names:
            if name in left:
                await host.call(f"s__{name}")
            else:
                with pytest.raises(UnknownTool) as caught:
                    await host.call(f"s__{name}")
                assert f"did you mean 's__{name}'" not in str(caught.value)
        assert log.entries("received", method="tools/call").__len__() == len(left)
        # The handle speaks raw names, and asks nobody's leave.
        assert json.loads((await host.server("s").call("write_a")).text)["tool"] == "write_a"


async def test_f15_7_filters_hold_for_names_with_a_hash(tmp_path: Path) -> None:
    spec = server(tmp_path, tools=["a.b", "a.c"], exclude=("a.c",), lazy=True)
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        assert json.loads((await host.call(exposed_name("s", "a.b"))).text)["tool"] == "a.b"
        with pytest.raises(UnknownTool):
            await host.call(exposed_name("s", "a.c"))


def test_a_filter_does_not_depend_on_the_system() -> None:
    """``fnmatch`` folds the case on some systems; filters never do."""
    spec = StdioServer(command="x", include=("A*",))
    assert wanted(spec, "Ab") and not wanted(spec, "ab")


# --- order ----------------------------------------------------------------------------------------------------------


async def test_f15_8_the_order_of_the_catalog_is_not_that_of_the_servers(tmp_path: Path) -> None:
    """F15.8: given servers that list in another order each time, and that were added in another, the catalog is the
    same; a new tool stands among the rest and moves none of them."""
    shuffled = [f"t{n}" for n in range(20)]
    random.Random(7).shuffle(shuffled)
    servers = {
        name: server(tmp_path, name, tools=shuffled, on_list="random_order", control=True) for name in "bca"
    }
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)

        async def order() -> list[tuple[str, str]]:
            return [(item.server, item.tool.name) for item in await host.tools()]

        before = await order()
        assert before == sorted(before) and len(before) == 60
        await host.restart("b")
        assert await order() == before
        log = FaultLog(tmp_path / "a")
        log.control("list_changed", add_tool="t10x")
        await log.seen("answered", 2, method="tools/list")
        await host.call("a__t0")
        after = await order()
        assert [item for item in after if item != ("a", "t10x")] == before
        assert after.index(("a", "t10x")) == after.index(("a", "t10")) + 1


# --- names that lead nowhere, or to a server that is not up ---------------------------------------------------------


async def test_f15_9_a_server_that_died_is_woken_by_the_next_call(tmp_path: Path) -> None:
    """F15.9: parked: the call wakes it, by a plain name and by one with a hash."""
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, tools=[tool("die"), tool("a.b", does="echo", **{"with": {"text": "woken"}})])
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        for _ in range(2):
            with pytest.raises(CallError):
                await host.call("s__die")
            assert (await host.call(exposed_name("s", "a.b"))).text == "woken"
    assert len(log.starts()) == 3


async def test_f15_9_a_server_that_must_cool_down_says_for_how_long_and_what_to_do(tmp_path: Path) -> None:
    """F15.9: parked after a failed start: nothing is sent, and the error says why and what helps."""
    spec = server(
        tmp_path, on_initialize="exit:3:no licence", bounds=Bounds(cooldown=60, cooldown_max=60), lazy=True
    )
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        for _ in range(2):
            with pytest.raises(NotSent) as caught:
                await host.call("s__echo")
            assert caught.value.sent is False
        assert host.status()["s"].state is State.PARKED
        assert "not started again for" in str(caught.value) and "no licence" in str(caught.value)
        assert "restart('s')" in str(caught.value)


@pytest.mark.parametrize("raw", ["echo", "a.b"])
async def test_f15_9_a_disabled_server_is_named_with_the_way_to_enable_it(tmp_path: Path, raw: str) -> None:
    """F15.9: by a plain name and by one with a hash; its tools are not in the catalog."""
    spec = server(tmp_path, tools=[tool("echo"), tool("a.b", does="echo")])
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        await host.disable("s")
        assert await host.tools() == []
        with pytest.raises(NotSent) as caught:
            await host.call(exposed_name("s", raw))
        assert "it is disabled" in str(caught.value) and "enable('s')" in str(caught.value)
        assert caught.value.server == "s" and caught.value.sent is False
        await host.enable("s")
        await host.call(exposed_name("s", raw))


async def test_f15_9_a_server_that_was_never_enabled_is_named_too(tmp_path: Path) -> None:
    """Its tools were never listed, so a name with a hash may or may not be its own: both is said."""
    async with AsyncHost({"s": server(tmp_path, enabled=False)}, state_dir=False) as host:
        with pytest.raises(NotSent):
            await host.call("s__echo")
        with pytest.raises(UnknownTool) as caught:
            await host.call(exposed_name("s", "a.b"))
        assert "server 's', which may have it: it is disabled" in str(caught.value)


async def test_f15_9_a_server_that_is_gone_leaves_a_name_that_says_so(tmp_path: Path) -> None:
    """F15.9: removed: the known servers are named."""
    servers = {"s": server(tmp_path), "other": server(tmp_path, "o")}
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)
        await host.remove("s")
        with pytest.raises(UnknownServer) as caught:
            await host.call("s__echo")
        assert "'s'" in str(caught.value) and "other" in str(caught.value)
        with pytest.raises(UnknownTool):
            await host.call(exposed_name("s", "a.b"))
        with pytest.raises(UnknownServer) as caught:
            host.server("othr")
        assert "did you mean 'other'?" in str(caught.value)


async def test_f15_9_a_program_that_is_not_there_is_named_by_every_call(tmp_path: Path) -> None:
    async with AsyncHost({"s": StdioServer(command="no-such-program")}, state_dir=False) as host:
        for name in ("s__echo", exposed_name("s", "a.b")):
            with pytest.raises(NotSent) as caught:
                await host.call(name)
            assert "no-such-program" in str(caught.value)
        assert host.status()["s"].state is State.FAILED


@pytest.mark.parametrize(
    ("name", "near"),
    [("s__ech", "s__echo"), ("s__Echo", "s__echo"), ("s__fail_", "s__fail"), ("s__zzzzzz", None)],
)
async def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(
    tmp_path: Path, name: str, near: str | None
) -> None:
    """And nothing is sent for it."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(UnknownTool) as caught:
            await host.call(name)
        text = str(caught.value)
        assert (f"did you mean {near!r}?" in text) if near else ("did you mean" not in text)
        assert "host.tools()" in text
    assert log.count("tools/call") == 0


@pytest.mark.parametrize(
    "name", ["", "x", "__", "echo", "s", "s__", "s_echo", "__echo", "s__echo__x", "\0", "é"]
)
async def test_a_name_that_is_none_is_a_typed_error(tmp_path: Path, name: str) -> None:
    async with AsyncHost({"s": server(tmp_path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises((UnknownTool, UnknownServer)):
            await host.call(name)
        with pytest.raises((UnknownTool, UnknownServer, Refused)):
            await host.get_prompt(name)


# --- lazy servers ---------------------------------------------------------------------------------------------------


async def test_a_lazy_server_is_started_by_a_name_with_a_hash_and_no_other_is(tmp_path: Path) -> None:
    """Given three lazy servers, only the one whose name begins the tool's is asked."""
    servers = {
        "one.two": server(tmp_path, "one.two", tools=["x.y"], lazy=True),
        "other": server(tmp_path, "other", tools=["x.y"], lazy=True),
        "one": server(tmp_path, "one", tools=["x.y"], lazy=True),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        answered = json.loads((await host.call(exposed_name("one.two", "x.y"))).text)
        assert answered["tool"] == "x.y"
        assert [n for n in servers if FaultLog(tmp_path / n).starts()] == ["one.two"]
        assert (await host.tools())[0].server == "one.two"


async def test_one_broken_server_with_a_like_name_does_not_hide_the_other(tmp_path: Path) -> None:
    """Given "a.b", which cannot start, and "a_b", whose tool it is, the call finds its way."""
    servers = {
        "a.b": server(tmp_path, "bad", on_initialize="exit:1", lazy=True),
        "a_b": server(tmp_path, "good", tools=["x.y"], lazy=True),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        assert json.loads((await host.call(exposed_name("a_b", "x.y"))).text)["tool"] == "x.y"
        with pytest.raises((UnknownTool, NotSent)):
            await host.call(exposed_name("a.b", "x.y"))


async def test_a_slow_or_broken_server_costs_the_catalog_only_its_own_tools(tmp_path: Path) -> None:
    servers = {
        "good": server(tmp_path, "good", tools=["t"]),
        "slow": server(tmp_path, "slow", on_initialize="silent"),
        "bad": server(tmp_path, "bad", on_initialize="exit:1"),
        "lazy": server(tmp_path, "lazy", lazy=True),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(5, servers=["good"])
        began = time.monotonic()
        assert [item.name for item in await host.tools()] == ["good__t"]
        assert time.monotonic() - began < 0.5
        assert FaultLog(tmp_path / "lazy").starts() == []


# --- schemas --------------------------------------------------------------------------------------------------------


async def test_f15_6_schemas_are_bounded_work_whatever_they_hold(tmp_path: Path) -> None:
    """F15.6, the size part: given a schema 200 levels deep, one of 5 MB, one with a reference into the network, the
    listing takes no time, nothing is fetched, and the rest stays. Schemas are passed on as they are."""
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(150_000)}}
    remote = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    tools = [
        tool("deep", inputSchema=deep),
        tool("remote", inputSchema=remote),
        tool("plain"),
        tool("wide", inputSchema=wide),
    ]
    spec = fault_server(
        script_file=tmp_path / "script", journal=tmp_path / "s", builtins=False, tools=tools, **FAST
    )
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        await host.wait_ready(20)
        listed = {item.tool.name: item for item in await host.tools()}
        assert list(listed) == ["deep", "plain", "remote", "wide"]
        assert listed["deep"].input_schema == deep
        assert listed["remote"].input_schema == remote
        began = time.monotonic()
        await host.tools()
        await host.call("s__plain")
        assert time.monotonic() - began < 0.5


# --- resources and prompts as tools ---------------------------------------------------------------------------------


async def test_resources_and_prompts_are_listed_as_tools_where_that_is_wanted(tmp_path: Path) -> None:
    """Off unless set; only for servers that have any; never in the way of a real tool of the same name."""
    servers = {
        "full": server(tmp_path, "full", tools=["resources/list", "x"], resources=2, templates=1, prompts=1),
        "bare": server(tmp_path, "bare", tools=["x"]),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)
        assert len(await host.tools()) == 3
    async with AsyncHost(servers, state_dir=False, tools_for_resources=True) as host:
        await host.wait_ready(10)
        catalog = await host.tools()
        assert [(i.server, i.helper) for i in catalog if i.helper] == [
            ("full", "resources/list"),
            ("full", "resources/read"),
        ]
        assert len({i.name for i in catalog}) == len(catalog)
        assert len(await host.server("full").tools()) == 2
    async with AsyncHost(servers, state_dir=False, tools_for_resources=True, tools_for_prompts=True) as host:
        await host.wait_ready(10)
        by_kind = {i.helper: i for i in await host.tools() if i.helper}
        assert len(by_kind) == 4 and all(VALID.match(i.name) for i in by_kind.values())
        listed = (await host.call(by_kind["resources/list"].name)).text
        assert [item["uri"] for item in json.loads(listed)[0]] == ["res://0", "res://1"]
        read = (await host.call(by_kind["resources/read"].name, {"uri": "res://1"})).text
        assert json.loads(read)["contents"][0]["text"] == "content of res://1"
        assert json.loads((await host.call(by_kind["prompts/list"].name)).text)[0]["name"] == "p0"
        got = await host.call(by_kind["prompts/get"].name, {"name": "p0", "arguments": {"x": 1}})
        text = json.loads(json.loads(got.text)["messages"][0]["content"]["text"])
        assert text == {"prompt": "p0", "arguments": {"x": "1"}}


async def test_a_model_that_gives_wrong_arguments_to_such_a_tool_is_told_so(tmp_path: Path) -> None:
    spec = server(tmp_path, prompts=1, resources=1)
    async with AsyncHost(
        {"s": spec}, state_dir=False, tools_for_prompts=True, tools_for_resources=True
    ) as host:
        await host.wait_ready(10)
        by_kind = {i.helper: i for i in await host.tools() if i.helper}
        for wrong in ("text", ["a"], 7):
            result = await host.call(by_kind["prompts/get"].name, {"name": "p0", "arguments": wrong})
            assert result.is_error and "object of strings" in result.text


async def test_such_tools_wake_their_server_and_stay_while_it_is_down(tmp_path: Path) -> None:
    """Lazy, or dead: as with every tool, the next use starts it."""
    log = FaultLog(tmp_path / "s")
    spec = server(tmp_path, resources=1, lazy=True)
    async with AsyncHost({"s": spec}, state_dir=False, tools_for_resources=True) as host:
        name = helper_name("s", "resources/read")
        assert "content of res://0" in (await host.call(name, {"uri": "res://0"})).text
        with pytest.raises(CallError):
            await host.call("s__die")
        while host.status()["s"].state is not State.PARKED:
            await host._servers["s"].changed(asyncio.get_running_loop().time() + 5)
        assert name in {item.name for item in await host.tools()}
        assert "content of res://0" in (await host.call(name, {"uri": "res://0"})).text
    assert len(log.starts()) == 2


# --- the blocking twin ----------------------------------------------------------------------------------------------


def test_the_blocking_host_has_the_same_catalog(tmp_path: Path) -> None:
    spec = server(tmp_path, tools=["search", "a.b", "Get File"], exclude=("search",))
    with Host({"s": spec}, state_dir=False) as host:
        host.wait_ready(10)
        catalog = host.tools()
        assert [item.tool.name for item in catalog] == ["Get File", "a.b"]
        for item in catalog:
            assert json.loads(host.call(item.name).text)["tool"] == item.tool.name
        with pytest.raises(UnknownTool):
            host.call("s__search")
        assert [t.name for t in host.server("s").tools()] == ["Get File", "a.b"]


# --- names and templates of hostile servers


@pytest.mark.parametrize(
    ("template", "uri", "matches"),
    [
        ("r://a", "r://a", True),
        ("r://a", "r://ab", False),
        ("r://{x}", "r://", True),
        ("r://{x}/b/{y}.txt", "r://1/b/2/b/3.txt", True),
        ("r://{x}/b/{y}.txt", "r://1/b.txt", False),
        ("a{x}a", "a", False),
        ("a{x}a", "aa", True),
        ("{x}ab{y}ab", "ab", False),
        ("{x}ab{y}ab", "abab", True),
        ("r://{x}{y}", "r://\n", True),
        ("{" * 10, "{" * 10, True),
        ("r://" + "{x}" * 64, "r://1", True),
        ("r://" + "{x}" * 65, "r://1", False),
        ("r://" + "a" * 4093 + "{x}", "r://" + "a" * 4093, False),
    ],
)
def test_a_template_fits_where_its_fixed_parts_stand_in_order(template: str, uri: str, matches: bool) -> None:
    assert template_matches(template, uri) is matches


def test_no_template_of_a_server_stops_the_process() -> None:
    """Given one for which a pattern would try every way to split a text, the answer is there at once."""
    began = time.thread_time()
    assert not template_matches("r://" + "{a}a" * 63 + "{b}Z", "r://" + "a" * 100_000)
    assert template_matches("r://" + "{a}a" * 63 + "{b}Z", "r://" + "a" * 100_000 + "Z")
    assert time.thread_time() - began < 0.2


def test_the_name_that_was_meant_is_looked_for_with_bounded_work() -> None:
    """Given 20,000 tools, and names of any length, it is found, or given up, at once."""
    names = [f"server__some_long_tool_name_number_{n}" for n in range(20_000)]
    began = time.thread_time()
    assert nearest("server__some_long_tool_name_number_1234x", names) == names[1234]
    assert nearest("x" * 1_000_000, names) is None
    assert nearest("server__x", ["y" * 1_000_000]) is None
    assert time.thread_time() - began < 1.0
    assert nearest("s__ehco", ["s__echo", "s__sleep"]) == "s__echo"
