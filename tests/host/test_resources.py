"""Every method of MCP, through the host and through a handle of one server, async and blocking, in both eras."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AsyncHost,
    Bounds,
    CallTimeout,
    Handlers,
    Host,
    MisuseError,
    NotSent,
    Refused,
    Root,
    UnknownResource,
    UnknownServer,
    exposed_name,
)
from tests.faults.script import FaultLog, fault_server

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
FULL: dict[str, Any] = {"resources": 2, "templates": 1, "prompts": 2, "instructions": "Be kind."}
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


def server(tmp_path: Path, era: str, journal: str = "s", **script: Any) -> Any:
    protocol = "handshake" if era == "handshake" else "2026-07-28"
    keys = {"protocol": protocol, "journal_raw": True, **FULL, **script}
    return fault_server(journal=tmp_path / journal, era=era, **keys)


class Blocking:
    """The blocking host with the methods of the async one, each run in a thread: one test serves both twins."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._host, name)

        async def in_thread(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(method, *args, **kwargs)

        return in_thread


class TwoDoors:
    """A host, async or blocking, and a handle of its server ``s``; both awaited alike."""

    def __init__(self, twin: str, spec: Any, **options: Any) -> None:
        servers = {"s": spec}
        self._async = AsyncHost(servers, state_dir=False, **options) if twin == "async" else None
        self._blocking = Host(servers, state_dir=False, **options) if twin == "blocking" else None

    async def __aenter__(self) -> tuple[Any, Any]:
        if self._async is not None:
            await self._async.start()
            return self._async, self._async.server("s")
        assert self._blocking is not None
        self._blocking.start()
        handle = await asyncio.to_thread(self._blocking.server, "s")
        return Blocking(self._blocking), Blocking(handle)

    async def __aexit__(self, *_: object) -> None:
        if self._async is not None:
            await self._async.close()
        else:
            assert self._blocking is not None
            await asyncio.to_thread(self._blocking.close)
            # The threads of ``to_thread`` are the loop's own, and end with it.
            await asyncio.get_running_loop().shutdown_default_executor()


TWINS = pytest.mark.parametrize("twin", ["async", "blocking"])


# --- all of them ----------------------------------------------------------------------------------------------------


@ERAS
@TWINS
async def test_every_method_through_both_doors(tmp_path: Path, era: str, twin: str) -> None:
    """The two doors give the same, and nothing that is sent breaks a rule of the era."""
    log = FaultLog(tmp_path / "s")
    async with TwoDoors(twin, server(tmp_path, era)) as (host, s):
        assert (await host.wait_ready(10)).all_ready

        assert (await host.call("s__echo", {"text": "a"})).text == "a"
        assert (await s.call("echo", {"text": "a"})).text == "a"
        assert (await host.call_raw("s", "echo", {"text": "a"})).text == "a"

        by_host = [item.tool.name for item in await host.tools()]
        assert sorted(tool.name for tool in await s.tools()) == by_host and "echo" in by_host

        assert [(i.server, i.resource.uri) for i in await host.resources()] == [
            ("s", "res://0"),
            ("s", "res://1"),
        ]
        assert [r.uri for r in await s.resources()] == ["res://0", "res://1"]
        assert [i.template.uri_template for i in await host.resource_templates()] == ["res://{id}/0"]
        assert [t.uri_template for t in await s.resource_templates()] == ["res://{id}/0"]
        for read in (
            await host.read_resource("res://1"),
            await host.read_resource("res://1", server="s"),
            await s.read_resource("res://1"),
        ):
            assert read.contents[0].uri == "res://1"
            assert read.contents[0].text == "content of res://1"

        assert [(i.name, i.prompt.name) for i in await host.prompts()] == [("s__p0", "p0"), ("s__p1", "p1")]
        assert [p.name for p in await s.prompts()] == ["p0", "p1"]
        for got in (
            await host.get_prompt("s__p1", {"x": "1"}),
            await host.get_prompt_raw("s", "p1", {"x": "1"}),
            await s.get_prompt("p1", {"x": "1"}),
        ):
            assert json.loads(got.messages[0].content.text) == {"prompt": "p1", "arguments": {"x": "1"}}

        for completed in (
            await host.complete("s", "x", "v", prompt="p0"),
            await s.complete("x", "v", template="res://{id}/0", context={"other": "1"}),
        ):
            assert completed.completion.values == ["v1", "v2"]
            assert completed.completion.has_more is False

        await host.subscribe("res://0", server="s")
        await s.subscribe("res://1")
        await host.unsubscribe("res://0", server="s")
        await s.unsubscribe("res://1")
        await host.set_log_level("warning", server="s")
        await s.set_log_level("debug")
        await host.ping("s")
        await s.ping()

        assert "tools" in await host.request("s", "tools/list")
        raw = await s.request("tools/call", {"name": "echo", "arguments": {"text": "raw"}})
        assert raw["content"][0]["text"] == "raw"

        await s.restart()
        await s.disable()
        await s.enable()
        await host.wait_ready(10)
    assert log.violations() == []
    completions = [e["params"] for e in log.entries("received", method="completion/complete")]
    assert completions[0]["ref"] == {"type": "ref/prompt", "name": "p0"}
    assert completions[0]["argument"] == {"name": "x", "value": "v"}
    assert completions[1]["ref"] == {"type": "ref/resource", "uri": "res://{id}/0"}
    assert completions[1]["context"] == {"arguments": {"other": "1"}}


USES: dict[str, tuple[str, str, Callable[[Any, float], Any]]] = {
    "call": ("tools/call", "echo", lambda s, t: s.call("echo", timeout=t)),
    "read": ("resources/read", "res://0", lambda s, t: s.read_resource("res://0", timeout=t)),
    "prompt": ("prompts/get", "p0", lambda s, t: s.get_prompt("p0", timeout=t)),
    "complete": (
        "completion/complete",
        "completion/complete",
        lambda s, t: s.complete("x", "v", prompt="p0", timeout=t),
    ),
    "request": ("tools/list", "tools/list", lambda s, t: s.request("tools/list", timeout=t)),
}
HANDSHAKE_USES: dict[str, tuple[str, str, Callable[[Any, float], Any]]] = {
    "subscribe": ("resources/subscribe", "res://0", lambda s, t: s.subscribe("res://0", timeout=t)),
    "level": ("logging/setLevel", "logging/setLevel", lambda s, t: s.set_log_level("info", timeout=t)),
    "ping": ("ping", "ping", lambda s, t: s.ping(timeout=t)),
}


IN_BOTH = [(era, use) for era in ("handshake", "modern") for use in USES]


@pytest.mark.parametrize(("era", "use"), [*IN_BOTH, *(("handshake", use) for use in HANDSHAKE_USES)])
async def test_a_method_that_is_not_answered_ends_by_its_limit(tmp_path: Path, era: str, use: str) -> None:
    """Every one of them takes ``timeout``, and says in its error what was asked of whom."""
    method, label, ask = {**USES, **HANDSHAKE_USES}[use]
    script: dict[str, Any] = {"on": {method: "silent"}}
    if method == "tools/list":
        script = {"on_list": ["ok", "silent"]}
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era, **script)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(CallTimeout) as caught:
            await ask(host.server("s"), 0.15)
        error = caught.value
        assert (error.server, error.tool, error.sent, error.allowed) == ("s", label, True, 0.15)
        assert 0.149 <= error.elapsed < 1.15  # loops may count in whole milliseconds
        asked = log.entries("received", method=method)[-1]["id"]
        await log.seen("cancelled", request_id=asked)
    assert log.violations() == []


@pytest.mark.parametrize(("era", "use"), [*IN_BOTH, ("handshake", "subscribe"), ("handshake", "level")])
async def test_a_method_that_is_refused_says_so_with_the_code(tmp_path: Path, era: str, use: str) -> None:
    method, label, ask = {**USES, **HANDSHAKE_USES}[use]
    script: dict[str, Any] = {"on": {method: "error:-32042"}}
    if method == "tools/list":
        script = {"on_list": ["ok", "error:-32042"]}
    async with AsyncHost({"s": server(tmp_path, era, **script)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(Refused) as caught:
            await ask(host.server("s"), 5)
        assert (caught.value.server, caught.value.tool, caught.value.rpc_code) == ("s", label, -32042)
        assert "scripted error" in str(caught.value)


@TWINS
async def test_every_method_of_a_server_that_is_not_there_names_those_that_are(
    tmp_path: Path, twin: str
) -> None:
    async with TwoDoors(twin, server(tmp_path, "handshake")) as (host, _):
        asks: list[Any] = [
            lambda: host.call_raw("x", "echo"),
            lambda: host.read_resource("res://0", server="x"),
            lambda: host.get_prompt_raw("x", "p0"),
            lambda: host.complete("x", "a", "v", prompt="p0"),
            lambda: host.subscribe("res://0", server="x"),
            lambda: host.unsubscribe("res://0", server="x"),
            lambda: host.set_log_level("info", server="x"),
            lambda: host.ping("x"),
            lambda: host.request("x", "tools/list"),
            lambda: host.tools(servers=["x"]),
            lambda: host.resources(servers=["x"]),
            lambda: host.resource_templates(servers=["x"]),
            lambda: host.prompts(servers=["x"]),
            lambda: host.wait_ready(servers=["x"]),
            lambda: host.remove("x"),
            lambda: host.restart("x"),
            lambda: host.enable("x"),
            lambda: host.disable("x"),
        ]
        for ask in asks:
            with pytest.raises(UnknownServer) as caught:
                await ask()
            assert "'x'" in str(caught.value) and "known servers: s" in str(caught.value)


# --- where the eras differ ------------------------------------------------------------------------------------------


@ERAS
async def test_the_log_level_is_said_in_the_way_of_the_era_and_to_each_generation(
    tmp_path: Path, era: str
) -> None:
    """A request of its own in the handshake era, a key of every request in the modern one; a server that is started
    again is told again."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era)}, state_dir=False) as host:
        s = host.server("s")
        await s.call("echo")
        await s.set_log_level("debug")
        await s.call("echo")
        await s.restart()
        if era == "handshake":
            await log.seen("received", 2, method="logging/setLevel")
        await s.call("echo")
    metas = [e["params"].get("_meta", {}) for e in log.entries("received", tool="echo")]
    if era == "handshake":
        levels = [e["params"]["level"] for e in log.entries("received", method="logging/setLevel")]
        assert levels == ["debug", "debug"]
        assert not any(LOG_LEVEL in meta for meta in metas)
    else:
        assert log.count("logging/setLevel") == 0
        assert [meta.get(LOG_LEVEL) for meta in metas] == [None, "debug", "debug"]
    assert log.violations() == []


@ERAS
async def test_a_sign_of_life_is_asked_for_in_the_way_of_the_era(tmp_path: Path, era: str) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era)}, state_dir=False) as host:
        await host.wait_ready(10)
        before = log.count("server/discover")
        await host.ping("s")
        assert log.count("ping") == (1 if era == "handshake" else 0)
        assert log.count("server/discover") - before == (0 if era == "handshake" else 1)
    assert log.violations() == []


async def test_a_refusal_is_a_sign_of_life(tmp_path: Path) -> None:
    spec = server(tmp_path, "handshake", on={"ping": "error:-32601"})
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        await host.ping("s", timeout=5)


@pytest.mark.parametrize(
    ("era", "methods"),
    [
        ("handshake", ["subscriptions/listen", "server/discover"]),
        ("modern", ["ping", "logging/setLevel", "resources/subscribe", "initialize"]),
    ],
)
async def test_a_method_of_the_other_era_is_not_sent(tmp_path: Path, era: str, methods: list[str]) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era)}, state_dir=False) as host:
        await host.wait_ready(10)
        counts = {method: log.count(method) for method in methods}
        for method in methods:
            with pytest.raises(NotSent) as caught:
                await host.request("s", method)
            assert caught.value.sent is False and "does not exist in revision" in str(caught.value)
        await host.ping("s")
        assert {m: log.count(m) for m in methods if m != "server/discover"} == {
            m: n for m, n in counts.items() if m != "server/discover"
        }
    assert log.violations() == []


@ERAS
async def test_a_request_that_we_have_no_name_for_goes_through_as_it_is(tmp_path: Path, era: str) -> None:
    """And its refusal comes back with code and data."""
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era)}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(Refused) as caught:
            await host.request("s", "vendor/thing", {"x": [1, None], "_meta": {"vendor/key": 1}})
        assert caught.value.rpc_code == -32601
        with pytest.raises(Refused) as caught:
            await host.call("s__rpc_error", {"code": -31999, "message": "no", "data": {"why": [1]}})
        assert (caught.value.rpc_code, caught.value.data) == (-31999, {"why": [1]})
        with pytest.raises(MisuseError):
            await host.request("s", "vendor/thing", {"x": object()})
    sent = log.entries("received", method="vendor/thing")[0]["params"]
    assert sent["x"] == [1, None] and sent["_meta"]["vendor/key"] == 1


@ERAS
async def test_meta_of_a_call_reaches_the_server_beside_our_own(tmp_path: Path, era: str) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, era)}, state_dir=False) as host:
        await host.call("s__echo", meta={"vendor/trace": "abc"})
    meta = log.entries("received", tool="echo")[0]["params"]["_meta"]
    assert meta["vendor/trace"] == "abc" and "progressToken" in meta
    assert ("io.modelcontextprotocol/protocolVersion" in meta) is (era == "modern")
    assert log.violations() == []


# --- who holds a resource -------------------------------------------------------------------------------------------


async def test_a_resource_is_found_by_lists_then_templates_then_because_there_is_one_server_only(
    tmp_path: Path,
) -> None:
    """Given several servers, no name of one is needed as long as one can only be meant."""
    bare = {"resources": 0, "templates": 0, "prompts": 0}
    servers = {
        "lists": server(tmp_path, "handshake", "lists", **bare | {"resources": 2}),
        "matches": server(tmp_path, "modern", "matches", **bare | {"templates": 1}),
        "tools": server(tmp_path, "handshake", "tools", **bare),
    }
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)
        await host.read_resource("res://1")
        await host.read_resource("res://a/0")
        with pytest.raises(UnknownResource) as caught:
            await host.read_resource("other://x")
        assert "'other://x'" in str(caught.value) and "server=" in str(caught.value)
        counts = {n: FaultLog(tmp_path / n).count("resources/read") for n in servers}
        assert counts == {"lists": 1, "matches": 1, "tools": 0}
        # A server without resources is not asked for them.
        assert FaultLog(tmp_path / "tools").count("resources/list") == 0
        await host.remove("matches")
        await host.read_resource("other://x")
        assert FaultLog(tmp_path / "lists").count("resources/read") == 2


async def test_a_resource_that_two_servers_list_is_not_guessed(tmp_path: Path) -> None:
    servers = {name: server(tmp_path, "handshake", name) for name in "ab"}
    async with AsyncHost(servers, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(UnknownResource) as caught:
            await host.read_resource("res://0")
        assert "a, b" in str(caught.value)
        assert (await host.read_resource("res://0", server="b")).contents[0].uri == "res://0"
        assert FaultLog(tmp_path / "a").count("resources/read") == 0


async def test_a_prompt_with_a_name_that_is_not_plain_is_got_by_its_catalog_name(tmp_path: Path) -> None:
    async with AsyncHost({"my.server": server(tmp_path, "handshake", lazy=True)}, state_dir=False) as host:
        got = await host.get_prompt(exposed_name("my.server", "p1"), {"x": "1"})
        assert json.loads(got.messages[0].content.text)["prompt"] == "p1"  # type: ignore[union-attr]


async def test_a_server_that_knows_resources_but_no_templates_has_none(tmp_path: Path) -> None:
    """One capability speaks for both; many servers refuse the second list."""
    spec = server(tmp_path, "handshake", on={"resources/templates/list": "error:-32601"})
    async with AsyncHost({"s": spec}, state_dir=False) as host:
        assert await host.server("s").resource_templates() == []
        assert len(await host.resources()) == 2


async def test_completion_is_for_a_prompt_or_a_template(tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost({"s": server(tmp_path, "handshake")}, state_dir=False) as host:
        await host.wait_ready(10)
        for wrong in ({}, {"prompt": "p0", "template": "res://{id}/0"}):
            with pytest.raises(MisuseError):
                await host.complete("s", "x", "v", **wrong)
    assert log.count("completion/complete") == 0


# --- roots ----------------------------------------------------------------------------------------------------------

ROOTS = [Root(uri="file:///a", name="A"), Root(uri="file:///b")]


def _plain(server: str) -> list[Root]:
    return ROOTS


async def _async(server: str) -> list[Root]:
    return ROOTS


@ERAS
@pytest.mark.parametrize("roots", [ROOTS, _plain, _async], ids=["list", "plain", "async"])
async def test_a_server_that_asks_for_the_roots_gets_them(tmp_path: Path, era: str, roots: Any) -> None:
    log = FaultLog(tmp_path / "s")
    async with AsyncHost(
        {"s": server(tmp_path, era)}, handlers=Handlers(roots=roots), state_dir=False
    ) as host:
        reply = json.loads((await host.call("s__ask", {"method": "roots/list"})).text)[0]
    answer = reply["result"] if era == "handshake" else reply["q0"]
    assert answer["roots"] == [{"uri": "file:///a", "name": "A"}, {"uri": "file:///b"}]
    assert log.violations() == []


async def test_a_handshake_server_that_asks_for_roots_nobody_has_is_told_so(tmp_path: Path) -> None:
    async with AsyncHost({"s": server(tmp_path, "handshake")}, state_dir=False) as host:
        reply = json.loads((await host.call("s__ask", {"method": "roots/list"})).text)[0]
        assert reply["error"]["code"] == -32601


@ERAS
async def test_how_a_server_wants_to_be_used_is_readable_while_it_is_up(tmp_path: Path, era: str) -> None:
    bounds = Bounds(stop_eof=1)
    async with AsyncHost({"s": server(tmp_path, era, bounds=bounds)}, state_dir=False) as host:
        s = host.server("s")
        await host.wait_ready(10)
        assert s.instructions == host.status()["s"].instructions == "Be kind."
        assert s.status().era == era
        await s.disable()
        assert s.instructions is None
