"""The lists of one server, kept current: field faults 8, and the pages of 15."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    CallCancelled,
    CallTimeout,
    CatalogChanged,
    Handlers,
    NotSent,
    Refused,
    State,
    StateChanged,
)
from moorings._tasks import TaskOwner
from moorings.errors import CallError
from moorings.server.lists import Lists, difference, next_distance
from moorings.session.listen import FIRST_WAIT, LONG_LIFE, LONGEST_WAIT, reopen_wait
from moorings.session.methods import Listed, Methods
from moorings.wire.eras import Era
from moorings.wire.types import Tool
from tests.clock import advance, on_movable_clock, on_running_clock, turns
from tests.faults.script import FaultLog, fault_server
from tests.session.memory_transport import Wired

ERAS = pytest.mark.parametrize("era", ["handshake", "modern"])
LISTS = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {"listChanged": True}}


class Heard:
    """An ``on_event`` that keeps what it hears, and lets a test wait for a change of a catalog or a state."""

    def __init__(self) -> None:
        self.changes: list[CatalogChanged] = []
        self.states: list[tuple[str, str]] = []
        self._news = asyncio.Event()

    def __call__(self, event: CatalogChanged | StateChanged) -> None:
        if isinstance(event, CatalogChanged):
            self.changes.append(event)
        else:
            self.states.append((event.server, event.new))
        self._news.set()

    async def state(self, server: str, state: State) -> None:
        """Wait until a server has come into this state."""
        async with asyncio.timeout(10):
            while (server, state) not in self.states:
                self._news.clear()
                await self._news.wait()

    async def change(self, kind: str = "tools", count: int = 1) -> CatalogChanged:
        """Wait for the count-th change of this kind."""
        async with asyncio.timeout(10):
            while len(found := [c for c in self.changes if c.kind == kind]) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]


def held(tmp_path: Path, heard: Heard | None = None, **script: Any) -> tuple[AsyncHost, FaultLog]:
    """A host with one scripted server ``s`` whose era is known, and the server's journal."""
    script.setdefault("era", "handshake")
    protocol = "handshake" if script["era"] == "handshake" else "2026-07-28"
    handlers = script.pop("handlers", None)
    spec = fault_server(journal=tmp_path / "j", control=True, protocol=protocol, **script)
    host = AsyncHost({"s": spec}, handlers=handlers, state_dir=False, on_event=heard)
    return host, FaultLog(tmp_path / "j")


def lists_of(host: AsyncHost) -> Lists:
    return host._servers["s"].lists


async def names(host: AsyncHost) -> set[str]:
    return {item.tool.name for item in await host.tools()}


async def listening(log: FaultLog, era: str, count: int = 1) -> None:
    """A modern server tells of changes only once somebody listens."""
    if era == "modern":
        await log.seen("received", count, method="subscriptions/listen")


async def settled(host: AsyncHost) -> None:
    """No refresh is under way any more."""
    for kind in ("tools", "prompts", "resources", "resource_templates"):
        if (task := lists_of(host)[kind].refresh) is not None:
            await asyncio.wait({task}, timeout=10)


# --- bursts ---------------------------------------------------------------------------------------------------------


@ERAS
async def test_f8_3_a_burst_of_changes_costs_two_lists(tmp_path: Path, era: str) -> None:
    """F8.3: given 200 list_changed from inside one call and one more while the refresh is in flight, the server is
    asked twice, and the catalog is the last list."""
    heard = Heard()
    host, log = held(tmp_path, heard, era=era, on_list=["ok", "hold", "ok"])
    async with host:
        await host.wait_ready(10)
        await listening(log, era)
        assert (await host.call("s__list_changed", {"count": 200, "add_tool": "new"})).text == "changed"
        await log.seen("received", 2, method="tools/list")
        log.control("list_changed", add_tool="newer")
        assert (await host.call("s__echo", {"text": "meanwhile"})).text == "meanwhile"
        log.control("release", key="tools/list")
        await log.seen("answered", 3, method="tools/list")
        await settled(host)
        assert {"new", "newer"} <= await names(host)
        await host.call("s__echo")
        assert log.count("tools/list") == 3  # the first one at the start
        assert host.status()["s"].lists["tools"]["stale"] is False
    # The start, and the two changes once each, whichever list showed them.
    told = [c for c in heard.changes[1:] if c.kind == "tools"]
    assert sorted(name for c in told for name in c.added) == ["new", "newer"]
    assert not any(c.removed or c.changed for c in told)
    assert log.violations() == []


class HeldMethods:
    """``Methods`` whose lists the test answers by hand."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Listed]] = []

    async def list_all(self, kind: str, clock: object) -> Listed:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


def listed(*tools: str, ttl: float = 0.0) -> Listed:
    return Listed({t: Tool(name=t, input_schema_raw=b"{}") for t in tools}, (), ttl)  # type: ignore[arg-type]


def by_name(*tools: str) -> dict[str, Any]:
    return {tool.name: tool for tool in listed(*tools).items}


def bound(changes: list[CatalogChanged], owner: TaskOwner) -> tuple[Lists, HeldMethods]:
    lists, methods = Lists("s", changes.append, limit=10), HeldMethods()
    lists.bind(methods, owner, lambda kind: True)  # type: ignore[arg-type]
    lists.adopt("tools", listed("a"))
    changes.clear()
    return lists, methods


@on_movable_clock
async def test_f8_3_the_exact_interleaving_of_a_burst() -> None:
    """F8.3 by hand: a change that comes while a list is in flight may or may not be in it, so it is asked for once
    more; a change after that begins anew."""
    changes: list[CatalogChanged] = []
    owner = TaskOwner("test")
    lists, methods = bound(changes, owner)
    for _ in range(200):
        lists.changed("tools")
    await turns()
    assert len(methods.asked) == 1
    lists.changed("tools")
    await turns()
    assert len(methods.asked) == 1, "one in flight at a time"
    methods.asked[0].set_result(listed("a", "b"))
    await turns()
    assert len(methods.asked) == 2, "and one after it"
    assert [c.added for c in changes] == [("b",)]
    assert lists["tools"].stale, "it was announced stale while it was fetched"
    methods.asked[1].set_result(listed("a", "b"))
    await turns()
    assert not lists["tools"].stale and len(owner) == 0
    assert len(changes) == 1, "no event without a difference"
    lists.changed("tools")
    await turns()
    assert len(methods.asked) == 2, "nothing had really changed: now there is a distance"
    advance(1.0)
    await turns()
    assert len(methods.asked) == 3
    methods.asked[2].set_result(listed("a"))
    await turns()
    assert changes[-1].removed == ("b",)
    await owner.aclose()


@on_movable_clock
async def test_a_caller_that_gives_up_leaves_the_fetch_whole_for_the_others() -> None:
    """Three ask while one fetch is in flight; one is cancelled, one runs out of time, and one gets the list."""
    from moorings.session.clock import CallClock

    owner = TaskOwner("test")
    lists, methods = Lists("s", lambda change: None, limit=10), HeldMethods()
    lists.bind(methods, owner, lambda kind: True)  # type: ignore[arg-type]
    now = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        given_up = group.create_task(lists.get("tools", CallClock.of(now, 100, 100)))
        patient = group.create_task(lists.get("tools", CallClock.of(now, 100, 100)))
        hasty = asyncio.ensure_future(lists.get("tools", CallClock.of(now, 1, 1)))
        await turns()
        assert len(methods.asked) == 1
        given_up.cancel()
        advance(1.0)
        with pytest.raises(CallTimeout) as caught:
            await hasty
        assert (caught.value.server, caught.value.sent, caught.value.allowed) == ("s", True, 1.0)
        methods.asked[0].set_result(listed("a"))
    assert given_up.cancelled()
    assert [item.name for item in patient.result().items] == ["a"]
    assert len(methods.asked) == 1
    await owner.aclose()


# --- servers that announce changes that are none --------------------------------------------------------------------


def test_the_distance_grows_while_nothing_changes_and_is_gone_when_something_does() -> None:
    distances, distance = [], 0.0
    for _ in range(9):
        distance = next_distance(distance, changed=False)
        distances.append(distance)
    assert distances == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert next_distance(60.0, changed=True) == 0.0


@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_f8_4_a_server_that_announces_a_change_after_each_list_is_damped(
    tmp_path: Path, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F8.4: it is asked at growing distances, up to a minute; that is said in the log; calls are not affected."""

    @on_running_clock
    async def on_its_own_clock() -> None:
        host, log = held(tmp_path, era=era, on_list="list_changed_after_each")
        async with host:
            await host.wait_ready(10)
            # The list of the start, and one look at the change that was announced behind it.
            asked = 2
            await log.seen("answered", asked, method="tools/list")
            for distance in (1, 2, 4, 8, 16, 32, 60, 60):
                await host.call("s__echo")
                await turns(20)
                assert lists_of(host)["tools"].distance == distance
                advance(distance - 0.5)
                await turns(20)
                assert (await host.call("s__echo", {"text": "on"})).text == "on"
                # The call went out after anything that the clock may have let loose.
                assert log.count("tools/list") == asked
                advance(0.5)
                asked += 1
                await log.seen("answered", asked, method="tools/list")
        assert log.violations() == []

    with caplog.at_level(logging.INFO, "moorings"):
        on_its_own_clock()
    assert "announces changes of tools that are none; next look in 60 s" in caplog.text


@on_running_clock
async def test_a_real_change_ends_the_damping(tmp_path: Path) -> None:
    heard = Heard()
    host, log = held(tmp_path, heard, on_list="ok")
    async with host:
        await host.wait_ready(10)
        for n in range(3):
            log.control("list_changed")
            await host.call("s__echo")
            advance(8)
            await log.seen("received", n + 2, method="tools/list")
            await settled(host)
        assert lists_of(host)["tools"].distance == 4
        log.control("list_changed", add_tool="x")
        await host.call("s__echo")
        advance(4)
        assert (await heard.change(count=2)).added == ("x",)
        await settled(host)
        # Now the next announcement is looked at without a wait.
        log.control("list_changed", add_tool="y")
        assert (await heard.change(count=3)).added == ("y",)


# --- refreshes that fail --------------------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("bad", ["error:-32000", "garbage", "silent"])
async def test_f8_5_a_refresh_that_fails_keeps_the_last_good_list(tmp_path: Path, era: str, bad: str) -> None:
    """F8.5: the list stays, marked stale, and does not become empty; the next live one replaces it, and only then the
    difference is published."""
    heard = Heard()
    host, log = held(
        tmp_path,
        heard,
        era=era,
        tools=1,
        on_list=["ok", bad, bad, "ok"],
        bounds=Bounds(connect=1.0, call=5.0),
    )
    async with host:
        await host.wait_ready(10)
        await listening(log, era)
        before = await names(host)
        log.control("list_changed", add_tool="x", remove_tool="t0")
        await log.seen("received", 2, method="tools/list")
        await settled(host)
        shown = dict(host.status()["s"].lists["tools"])
        assert str(lists_of(host)["tools"].problem) == shown.pop("problem")
        assert shown == {"count": len(before), "stale": True}
        assert isinstance(lists_of(host)["tools"].problem, CallError)
        assert await names(host) == before  # asked again, and failed again
        assert log.count("tools/list") == 3
        assert len(heard.changes) == 1, "nothing has changed that anybody knows of"
        assert await names(host) == before - {"t0"} | {"x"}
        assert heard.changes[1] == CatalogChanged("s", "tools", added=("x",), removed=("t0",))
        assert host.status()["s"].lists["tools"]["stale"] is False
    assert log.violations() == []


async def test_a_refresh_that_is_not_answered_holds_a_caller_no_longer_than_its_own_limit(
    tmp_path: Path,
) -> None:
    """Given a run with less time than the list may take, it gets the last good list at its deadline."""
    from moorings import RunTimeout

    host, log = held(tmp_path, on_list=["ok", "silent"])
    async with host:
        await host.wait_ready(10)
        before = await names(host)
        log.control("list_changed")
        await log.seen("received", 2, method="tools/list")
        got: set[str] = set()
        with pytest.raises(RunTimeout) as caught:
            async with host.run(timeout=0.3):
                got = await names(host)
        assert caught.value.elapsed < 1.3
        assert got == before


async def test_a_list_cut_short_by_a_restart_is_an_error_and_not_an_empty_list(tmp_path: Path) -> None:
    """Given a first listing in flight when the server is restarted, its caller is told so."""
    host, log = held(tmp_path, prompts=2, on={"prompts/list": ["silent", "ok"]})
    async with host:
        await host.wait_ready(10)
        listing = asyncio.ensure_future(host.prompts(servers=["s"]))
        await log.seen("received", method="prompts/list")
        await host.restart("s")
        with pytest.raises(CallError) as caught:
            await listing
        assert isinstance(caught.value, CallCancelled | NotSent) or caught.value.sent


async def test_the_last_list_stays_while_the_server_is_down(tmp_path: Path) -> None:
    """F8.5: given a server that dies, its tools stay in the catalog, since the next use wakes it."""
    heard = Heard()
    host, log = held(tmp_path, heard)
    async with host:
        await host.wait_ready(10)
        before = await names(host)
        with pytest.raises(CallError):
            await host.call("s__die")
        await heard.state("s", State.STOPPING)
        assert await names(host) == before
        assert host.status()["s"].lists["tools"]["stale"] is True
        assert (await host.call("s__echo", {"text": "woken"})).text == "woken"
        assert host.status()["s"].lists["tools"]["stale"] is False
    assert len(log.starts()) == 2


# --- which lists, and what is told of them --------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize("kind", ["prompts", "resources"])
async def test_f8_6_changes_of_prompts_and_resources_are_looked_at_like_those_of_tools(
    tmp_path: Path, era: str, kind: str
) -> None:
    """F8.6; resources bring their templates along."""
    heard = Heard()
    host, log = held(tmp_path, heard, era=era, prompts=1, resources=1, templates=1)
    async with host:
        await host.wait_ready(10)
        await listening(log, era)
        await host.prompts()
        await host.resources()
        await host.resource_templates()
        log.control("set", prompts=2, resources=2, templates=2)
        log.control("list_changed", kind=kind)
        if kind == "prompts":
            assert await heard.change("prompts", 2) == CatalogChanged("s", "prompts", added=("p1",))
            assert [p.prompt.name for p in await host.prompts()] == ["p0", "p1"]
        else:
            assert await heard.change("resources", 2) == CatalogChanged("s", "resources", added=("res://1",))
            change = await heard.change("resource_templates", 2)
            assert change == CatalogChanged("s", "resource_templates", added=("res://{id}/1",))
    assert log.violations() == []


async def test_f8_6_changes_that_nobody_declared_are_looked_at_too(tmp_path: Path) -> None:
    """F8.6: given a server that declares no listChanged, what it announces all the same is believed."""
    heard = Heard()
    host, log = held(
        tmp_path, heard, prompts=1, capabilities={"tools": {}, "prompts": {}, "resources": {}}, resources=1
    )
    async with host:
        await host.wait_ready(10)
        await host.prompts()
        log.control("set", prompts=2)
        log.control("list_changed", kind="prompts")
        assert (await heard.change("prompts", 2)).added == ("p1",)
        log.control("list_changed", kind="tools", add_tool="x")
        assert (await heard.change("tools", 2)).added == ("x",)


async def test_a_list_that_nobody_has_looked_at_is_not_fetched_for_its_changes(tmp_path: Path) -> None:
    host, log = held(tmp_path, prompts=1, resources=1)
    async with host:
        await host.wait_ready(10)
        for kind in ("prompts", "resources"):
            log.control("list_changed", kind=kind)
        await host.call("s__echo")
        await settled(host)
        assert log.count("prompts/list") == log.count("resources/list") == 0


@ERAS
async def test_an_event_holds_exactly_what_was_added_removed_and_changed(tmp_path: Path, era: str) -> None:
    def tool(name: str, description: str = "") -> dict[str, Any]:
        return {"name": name, "description": description, "inputSchema": {"type": "object"}}

    heard = Heard()
    host, log = held(tmp_path, heard, era=era, builtins=False, tools=[tool("a"), tool("b"), tool("c")])
    async with host:
        await host.wait_ready(10)
        await listening(log, era)
        assert heard.changes == [CatalogChanged("s", "tools", added=("a", "b", "c"))]
        log.control("set", tools=[tool("c"), tool("b", "says more"), tool("e"), tool("d")])
        log.control("list_changed")
        change = await heard.change(count=2)
        assert change == CatalogChanged("s", "tools", added=("d", "e"), removed=("a",), changed=("b",))
        # What a new generation of the server has is told in the same way.
        await host.restart("s")
        change = await heard.change(count=3)
        assert change == CatalogChanged("s", "tools", added=("a",), removed=("d", "e"), changed=("b",))


def test_a_difference_without_an_older_list_is_all_added() -> None:
    assert difference({}, by_name("b", "a")) == (["a", "b"], [], [])
    assert difference(by_name("a"), by_name("a")) == ([], [], [])
    assert difference(by_name("a", "b"), by_name("b")) == ([], ["a"], [])
    assert difference(by_name("a"), {}) == ([], ["a"], [])
    changed: dict[str, Any] = {**by_name("a"), "b": "another"}
    assert difference(by_name("a", "b"), changed) == ([], [], ["b"])
    assert difference(by_name("x", "b"), {**changed, **by_name("d")}) == (["a", "d"], ["x"], ["b"])


# --- changes during the start ---------------------------------------------------------------------------------------


@ERAS
async def test_a_change_announced_right_behind_the_first_list_is_not_lost(tmp_path: Path, era: str) -> None:
    """Given a server that says list_changed before we have called it ready, its tools are looked at again."""
    host, log = held(tmp_path, era=era, on_list=["list_changed_after_each", "ok"])
    async with host:
        await host.wait_ready(10)
        await log.seen("answered", 2, method="tools/list")
        await settled(host)
        assert host.status()["s"].lists["tools"]["stale"] is False
        await host.call("s__echo")
        assert log.count("tools/list") == 2


async def test_a_change_before_a_modern_server_agreed_to_tell_of_changes_is_not_lost(tmp_path: Path) -> None:
    """Given a server that is slow to acknowledge, what changed since its tools were listed is seen then."""
    heard = Heard()
    host, log = held(tmp_path, heard, era="modern", listen="hold")
    async with host:
        await host.wait_ready(10)
        log.control("list_changed", add_tool="x")  # nobody listens yet
        log.control("release", key="subscriptions/listen")
        assert (await heard.change(count=2)).added == ("x",)
    assert log.violations() == []


async def test_a_modern_server_is_asked_once_at_its_start(tmp_path: Path) -> None:
    """The stream of changes is opened before the first list, so that nothing need be asked twice."""
    host, log = held(tmp_path, era="modern")
    async with host:
        await host.wait_ready(10)
        await listening(log, "modern")
        await host.call("s__echo")
        await settled(host)
        await host.tools()
        assert log.methods() == ["server/discover", "subscriptions/listen", "tools/list", "tools/call"]


# --- how long a list is fresh ---------------------------------------------------------------------------------------


@on_running_clock
async def test_f8_9_a_list_is_fresh_as_long_as_its_server_says(tmp_path: Path) -> None:
    """F8.9: given a modern server that tells of no changes, its ttl decides."""
    host, log = held(tmp_path, era="modern", ttl_ms=60_000, capabilities={"tools": {}})
    async with host:
        await host.wait_ready(10)
        for _ in range(3):
            await host.tools()
        assert log.count("tools/list") == 1
        advance(61)
        await host.tools()
        await host.tools()
        assert log.count("tools/list") == 2


@on_running_clock
async def test_f8_9_a_change_ends_freshness_before_its_time(tmp_path: Path) -> None:
    """F8.9: ttlMs 60000, then list_changed after 1 s: fetched again."""
    heard = Heard()
    host, log = held(tmp_path, heard, era="modern", ttl_ms=60_000)
    async with host:
        await host.wait_ready(10)
        await listening(log, "modern")
        await host.call("s__echo")
        advance(1)
        log.control("list_changed", add_tool="x")
        assert (await heard.change(count=2)).added == ("x",)
        assert "x" in await names(host)
        assert log.count("tools/list") == 2


@pytest.mark.parametrize("ttl_ms", [None, 0, -1])
async def test_f8_9_without_a_ttl_nothing_is_kept_of_a_server_that_tells_of_no_changes(
    tmp_path: Path, ttl_ms: int | None
) -> None:
    """F8.9: absent or negative: not cached."""
    host, log = held(tmp_path, era="modern", ttl_ms=ttl_ms, capabilities={"tools": {}})
    async with host:
        await host.wait_ready(10)
        for n in range(3):
            await host.tools()
            assert log.count("tools/list") == n + 2


@pytest.mark.parametrize("listen", ["ok", "error:-32601"])
async def test_a_server_that_declared_changes_but_will_not_tell_of_them_is_asked_each_time(
    tmp_path: Path, listen: str
) -> None:
    """Given a modern server that grants nothing, or has no subscriptions, its list is not kept for ever."""
    host, log = held(tmp_path, era="modern", listen=listen, grant={} if listen == "ok" else None)
    async with host:
        await host.wait_ready(10)
        await host.call("s__echo")
        before = log.count("tools/list")
        await host.tools()
        await host.tools()
        assert log.count("tools/list") == before + 2


# --- streams of changes ---------------------------------------------------------------------------------------------


def test_a_stream_is_opened_again_at_growing_distances() -> None:
    waits: list[float] = []
    wait: float | None = None
    for _ in range(7):
        wait = reopen_wait(wait, 0.0)
        waits.append(wait)
    assert waits == [FIRST_WAIT, 1, 2, 4, 8, LONGEST_WAIT, LONGEST_WAIT]
    assert reopen_wait(LONGEST_WAIT, LONG_LIFE) == FIRST_WAIT


def end_gracefully(log: FaultLog) -> None:
    log.control("end_subscriptions")


def end_by_cancel(log: FaultLog) -> None:
    last = log.entries("received", method="subscriptions/listen")[-1]["id"]
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": last}}
    log.control("send", message=note)


@pytest.mark.parametrize("end", [end_gracefully, end_by_cancel])
def test_after_a_gap_in_the_stream_the_lists_are_looked_at_again(
    tmp_path: Path, end: Callable[[FaultLog], None]
) -> None:
    """Given a stream that ends, a change that nobody was told of, and a stream that is opened again: it is seen."""

    @on_running_clock
    async def on_its_own_clock() -> None:
        heard = Heard()
        host, log = held(tmp_path, heard, era="modern", prompts=1)
        async with host:
            await host.wait_ready(10)
            await host.prompts()
            await listening(log, "modern")
            await host.call("s__echo")
            end(log)
            # The answer to this call comes behind the end of the stream.
            await host.call("s__echo")
            await turns(20)
            log.control("set", prompts=2, tools=1)
            await host.call("s__echo")
            assert log.count("subscriptions/listen") == 1
            advance(FIRST_WAIT)
            await listening(log, "modern", 2)
            assert (await heard.change("tools", 2)).added == ("t0",)
            assert (await heard.change("prompts", 2)).added == ("p1",)
        assert log.violations() == []

    on_its_own_clock()


@on_running_clock
async def test_a_stream_that_always_ends_at_once_is_opened_at_a_capped_rate(tmp_path: Path) -> None:
    host, log = held(tmp_path, era="modern", listen="end_at_once")
    async with host:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await host.wait_ready(10)
        for n, wait in enumerate((0.5, 1, 2, 4, 8, 15, 15), start=1):
            await listening(log, "modern", n)
            await host.call("s__echo")
            await turns(20)
            advance(wait / 2)
            await turns(20)
            assert (await host.call("s__echo", {"text": "on"})).text == "on"
            # Real time passes too, on a busy machine more than half a second.
            assert log.count("subscriptions/listen") == n or loop.time() >= began + wait
            began = loop.time()
            advance(wait / 2 + 0.1)
        await listening(log, "modern", 8)


# --- subscriptions to resources -------------------------------------------------------------------------------------


class Updates:
    """Hears updates of resources, and lets a test wait for one."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self._news = asyncio.Event()
        self.handlers = Handlers(on_resource_updated=self._on)

    def _on(self, server: str, uri: str) -> None:
        self.uris.append(uri)
        self._news.set()

    async def count(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.uris) < count:
                self._news.clear()
                await self._news.wait()


@ERAS
@pytest.mark.parametrize("end", ["restart", "death"])
async def test_subscriptions_are_renewed_with_each_generation(tmp_path: Path, era: str, end: str) -> None:
    """Given subscriptions, when the server is restarted or dies and is woken, its successor is told of them; those
    that were ended are not renewed."""
    updates = Updates()
    host, log = held(tmp_path, era=era, resources=3, handlers=updates.handlers)
    async with host:
        s = host.server("s")
        for uri in ("res://0", "res://1", "res://2"):
            await s.subscribe(uri)
        await s.unsubscribe("res://1")
        # Once subscribed, an update is heard at once: no wait for the server is needed between the two.
        await s.call("touch", {"uri": "res://0"})
        await updates.count(1)
        if end == "restart":
            await host.restart("s")
        else:
            with pytest.raises(CallError):
                await s.call("die")
            await s.call("echo")
        first, second = log.starts()
        if era == "modern":
            # One stream tells of the lists, one of the resources.
            await log.seen("received", 2, method="subscriptions/listen", pid=second["pid"])
        else:
            await log.seen("answered", 2, method="resources/subscribe", pid=second["pid"])
            assert len(log.entries("received", method="resources/subscribe", pid=second["pid"])) == 2
        for uri in ("res://0", "res://1", "res://2"):
            await s.call("touch", {"uri": uri})
        await updates.count(3)
        await s.call("echo")
        assert updates.uris == ["res://0", "res://0", "res://2"]
    assert log.violations() == []
    assert first["pid"] != second["pid"]


@ERAS
async def test_an_ended_subscription_is_not_heard_of(tmp_path: Path, era: str) -> None:
    updates = Updates()
    host, log = held(tmp_path, era=era, resources=2, handlers=updates.handlers, journal_raw=True)
    async with host:
        s = host.server("s")
        await s.subscribe("res://0")
        await s.subscribe("res://1")
        await s.unsubscribe("res://0")
        if era == "modern":
            # The stream for what is left is opened before the old one is ended.
            await log.seen("cancelled", 2)
        for uri in ("res://0", "res://1"):
            await s.call("touch", {"uri": uri})
        await updates.count(1)
        await s.call("echo")
        assert updates.uris == ["res://1"]
        await s.unsubscribe("res://1")
        await s.call("echo")
    assert log.violations() == []


async def test_a_subscription_more_leaves_no_moment_in_which_the_others_are_off(tmp_path: Path) -> None:
    """Given a stream for one resource, when a second is wanted, the old stream ends after the new one has begun."""
    host, log = held(tmp_path, era="modern", resources=2)
    async with host:
        s = host.server("s")
        await s.subscribe("res://0")
        old = log.entries("received", method="subscriptions/listen")[-1]["id"]
        await s.subscribe("res://1")
        await log.seen("cancelled", request_id=old, known=True)
        kinds = [
            (e["kind"], e.get("request_id"))
            for e in log.entries()
            if e["kind"] == "cancelled" or e.get("method") == "subscriptions/listen"
        ]
        assert kinds == [("received", None)] * 3 + [("cancelled", old)]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ({"grant": {"toolsListChanged": True}}, Refused),
        ({"listen": ["ok", "error:-32601"]}, Refused),
        ({"listen": ["ok", "error:-32000"]}, Refused),
        ({"listen": ["ok", "silent"]}, CallTimeout),
    ],
)
async def test_a_modern_server_that_will_not_tell_of_a_resource_says_so_to_who_subscribes(
    tmp_path: Path, script: dict[str, Any], error: type[CallError]
) -> None:
    """As in the handshake era, ``subscribe`` fails then, and nothing is renewed later."""
    host, _ = held(tmp_path, era="modern", resources=1, **script)
    async with host:
        await host.wait_ready(10)
        with pytest.raises(error) as caught:
            await host.server("s").subscribe("res://0", timeout=0.3)
        assert (caught.value.server, caught.value.tool) == ("s", "res://0") or error is Refused
        assert host._servers["s"]._subscribed == set()
        assert (await host.call("s__echo", {"text": "on"})).text == "on"


async def test_a_handshake_server_that_refuses_a_subscription_says_so(tmp_path: Path) -> None:
    host, log = held(tmp_path, resources=1, on={"resources/subscribe": "error:-32602"})
    async with host:
        with pytest.raises(Refused) as caught:
            await host.subscribe("res://0", server="s")
        assert caught.value.rpc_code == -32602
        await host.restart("s")
        await host.call("s__echo")
        assert log.count("resources/subscribe") == 1


# --- pages ----------------------------------------------------------------------------------------------------------


@ERAS
async def test_f15_3_every_page_of_every_list_is_read(tmp_path: Path, era: str) -> None:
    """F15.3: 5 pages of 100 tools, prompts, resources and templates: 500 of each."""
    host, log = held(
        tmp_path, era=era, builtins=False, tools=500, prompts=500, resources=500, templates=500, pages=100
    )
    async with host:
        await host.wait_ready(10)
        for each in (host.tools, host.prompts, host.resources, host.resource_templates):
            found: list[Any] = await each()
            assert len(found) == 500
        assert len({item.name for item in await host.tools()}) == 500
        for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
            assert log.count(method) == 5
    assert log.violations() == []


async def test_f15_4_a_last_page_that_repeats_its_cursor_ends_the_list(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F15.4: given 8 tools on pages of 4, the last of them naming itself as the next for ever: 8 tools and not 160."""
    host, log = held(tmp_path, builtins=False, tools=8, pages=4, on_list="repeat_cursor")
    async with host:
        await host.wait_ready(10)
        assert len(await host.tools()) == 8
        assert log.count("tools/list") == 2
    assert "the cursor 'c1' came again" in caplog.text


async def test_f15_4_an_empty_cursor_is_one(tmp_path: Path) -> None:
    """F15.4: nextCursor "" is followed, as the protocol says."""
    host, log = held(tmp_path, builtins=False, tools=8, pages=4, on_list="empty_cursor")
    async with host:
        await host.wait_ready(10)
        assert len(await host.tools()) == 8
        assert log.count("tools/list") == 2


LEGACY = """
import json, sys
answers = {"initialize": {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}},
                          "serverInfo": {"name": "legacy", "version": "0"}},
           "tools/list": {"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "nextCursor": ""}}
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answer = {"result": answers.get(message["method"], {"content": []})}
    if message["method"] == "tools/list":
        print(json.dumps(message["params"]), file=sys.stderr, flush=True)
        if "cursor" in message["params"] and "strict" in sys.argv:
            answer = {"error": {"code": -32602, "message": "Invalid cursor"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize("strict", [False, True])
async def test_f15_4_a_legacy_server_that_ends_its_list_with_an_empty_cursor_costs_one_request(
    tmp_path: Path, strict: bool
) -> None:
    """F15.4: whether it answers the empty cursor with the same page again or refuses it, the tools are there."""
    import sys

    from moorings import StdioServer

    args = ("-c", LEGACY, *(["strict"] if strict else []))
    spec = StdioServer(command=sys.executable, args=args, protocol="handshake")
    async with AsyncHost({"s": spec}, state_dir=tmp_path) as host:
        await host.wait_ready(10)
        assert [item.name for item in await host.tools()] == ["s__a"]
    logged = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert logged.splitlines() == ["{}", '{"cursor": ""}']


async def test_a_list_without_end_is_cut_at_the_cap_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F15.4: given more pages than allowed, what was read stays."""
    host, log = held(tmp_path, builtins=False, tools=50, pages=5, bounds=Bounds(max_pages=4))
    async with host:
        await host.wait_ready(10)
        assert len(await host.tools()) == 20
        assert log.count("tools/list") == 4
    assert "more than 4 pages; the list was ended there" in caplog.text


# --- servers that change at every look


@on_movable_clock
async def test_a_server_that_changes_its_list_at_every_look_is_looked_at_less_often() -> None:
    """Real changes in rapid succession: the first two are looked at at once, then the distance grows to a few seconds;
    after a quiet time it is gone."""
    owner = TaskOwner("test")
    lists, methods = bound([], owner)

    async def change(number: int) -> None:
        """The list in flight is another one, and one more change is announced behind it."""
        lists.changed("tools")
        methods.asked[-1].set_result(listed(f"t{number}"))
        await turns()

    lists.changed("tools")
    await turns()
    for number in range(2):
        await change(number)
        assert len(methods.asked) == number + 2, "no wait"
    for number, distance in enumerate((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0), start=2):
        await change(number)
        assert len(methods.asked) == number + 1
        assert lists["tools"].distance == pytest.approx(distance)
        advance(distance * 0.9)
        await turns()
        assert len(methods.asked) == number + 1
        advance(distance * 0.2)
        await turns()
        assert len(methods.asked) == number + 2
    methods.asked[-1].set_result(listed("last"))
    await turns()
    asked = len(methods.asked)
    advance(5.0 + 5.1)
    for number in range(2):
        lists.changed("tools")
        await turns()
        assert len(methods.asked) == asked + number + 1, "no wait again"
        methods.asked[-1].set_result(listed(f"quiet{number}"))
        await turns()
    await owner.aclose()


@on_movable_clock
async def test_the_same_problem_of_a_list_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    lists = Lists("s", lambda change: None, limit=10)
    for _ in range(100):
        lists.adopt("tools", Listed({}, ["tools: 'a' is listed twice; the first one counts"]))
    assert caplog.text.count("is listed twice") == 1
    for number in range(1000):
        lists.adopt("tools", Listed({}, [f"tools: '{number}' is odd"]))
    assert len(caplog.records) <= 50


@pytest.mark.parametrize("ttl", ["9" * 400, "-" + "9" * 400, "1e400", "1e300", "null", '"x"'])
async def test_a_ttl_of_any_size_is_no_fault_of_ours(ttl: str) -> None:
    wired = Wired(era=Era.MODERN)
    methods = Methods(wired.session, max_pages=10, max_rounds=10)
    listing = asyncio.ensure_future(methods.list_all("tools", wired.clock()))
    await turns()
    id_ = wired.transport.requests("tools/list")[0]["id"]
    result = f'{{"resultType":"complete","tools":[],"ttlMs":{ttl},"cacheScope":"private"}}'
    wired.session.message(f'{{"jsonrpc":"2.0","id":{id_},"result":{result}}}'.encode())
    try:
        assert 0 <= (await listing).ttl <= 7 * 24 * 3600
    except CallError as error:
        assert "invalid answer" in str(error)
    await wired.aclose()


@pytest.mark.parametrize(
    "answer", ["1e999", "1" * 5000, "[" * 100_000 + "]" * 100_000], ids=["1e999", "digits", "deep"]
)
async def test_an_answer_that_is_no_json_value_is_a_typed_outcome(answer: str) -> None:
    """``request`` decodes what Moorings has no name for; what cannot be decoded is an invalid answer."""
    wired = Wired()
    methods = Methods(wired.session, max_pages=10, max_rounds=10)
    asking = asyncio.ensure_future(methods.raw("x/y", None, wired.clock()))
    await turns()
    id_ = wired.transport.requests("x/y")[0]["id"]
    wired.session.message(f'{{"jsonrpc":"2.0","id":{id_},"result":{answer}}}'.encode())
    with pytest.raises(AmbiguousDelivery, match="invalid answer"):
        async with asyncio.timeout(1):
            await asking
    await wired.aclose()
