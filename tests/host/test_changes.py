"""Servers that come, go and change while calls are in flight and starts are under way; who is waited for; contexts."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from moorings import (
    AmbiguousDelivery,
    AsyncHost,
    Bounds,
    Handlers,
    Host,
    MisuseError,
    NotSent,
    RequiredServerMissing,
    StartError,
    State,
    UnknownServer,
)
from tests.faults.procs import alive
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events, in_thread, took

# --- add and remove -----------------------------------------------------------------------------------------------


async def test_a_server_is_added_while_calls_are_in_flight() -> None:
    """The others notice nothing; its tools are in the catalog once it is up."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        call = asyncio.create_task(host.call("a__hold"))
        await host.ping("a")
        handle = await host.add("b", fault_server())
        assert (await handle.call("echo", {"text": "b"})).text == "b"
        assert {tool.server for tool in await host.tools()} == {"a", "b"}
        await host.call("a__release")
        assert (await call).text == "released"


async def test_a_name_is_taken_once() -> None:
    """Also by a server that is still starting, and by two adds at once."""
    async with AsyncHost({"a": fault_server(on_initialize="silent")}, state_dir=False) as host:
        with pytest.raises(MisuseError, match="already"):
            await host.add("a", fault_server())
        outcomes = await asyncio.gather(
            host.add("b", fault_server()), host.add("b", fault_server()), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in outcomes) == ["MisuseError", "ServerHandle"]
        with pytest.raises(MisuseError):
            await host.add("c", "npx c")  # type: ignore[arg-type]


async def test_a_lazy_server_that_is_added_does_not_start(tmp_path: Path) -> None:
    """Until its first use."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({}, state_dir=False) as host:
        handle = await host.add("a", fault_server(journal=log.path, lazy=True))
        assert handle.status().state is State.IDLE
        assert log.starts() == []
        assert (await handle.call("echo", {"text": "x"})).text == "x"


async def test_a_server_is_removed_while_calls_are_in_flight(tmp_path: Path) -> None:
    """Sent: ambiguous; its process is gone; the name leads nowhere; the others go on."""
    log = FaultLog(tmp_path / "journal")
    specs = {"a": fault_server(journal=log.path), "b": fault_server()}
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        handle = host.server("a")
        calls = [asyncio.create_task(host.call("a__never")) for _ in range(3)]
        other = asyncio.create_task(host.call("b__hold"))
        await log.seen("received", 3, tool="never")
        record = await host.remove("a")
        assert record is not None
        assert (record.exit_code, record.forced) == (0, ())
        assert not alive(log.pids()[0])
        for call in calls:
            with pytest.raises(AmbiguousDelivery) as ended:
                await call
            assert ended.value.sent is True
        for use in (lambda: host.call("a__echo"), lambda: handle.call("echo"), lambda: host.remove("a")):
            with pytest.raises(UnknownServer):
                await use()
        with pytest.raises(UnknownServer):
            handle.status()
        assert list(host.status()) == ["b"]
        await host.call("b__release")
        assert (await other).text == "released"


async def test_a_server_is_removed_in_the_middle_of_its_start(tmp_path: Path) -> None:
    """Whoever waits for it learns it at once: nothing was sent."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path, on_list="silent")}, state_dir=False) as host:
        call = asyncio.create_task(host.call("a__echo"))
        waiting = asyncio.create_task(host.wait_ready())
        await log.seen("received", method="tools/list")
        await host.remove("a")
        with pytest.raises(NotSent, match="removed"):
            await call
        assert (await waiting).ready == ()
        assert not alive(log.pids()[0])


async def test_a_name_is_added_again_while_its_server_is_still_being_removed(tmp_path: Path) -> None:
    """There are never two processes of one name: the new one waits until the old one is gone, lock file and all."""
    log, lock = FaultLog(tmp_path / "journal"), tmp_path / "lock"
    spec = fault_server(journal=log.path, lock_file=lock, bounds=SOON, **STUBBORN)
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        removing = asyncio.create_task(host.remove("a"))
        await log.seen("eof")
        removing.cancel()  # who gives up on it leaves the work whole
        handle = await host.add("a", fault_server(journal=log.path, lock_file=lock))
        assert (await handle.call("echo", {"text": "new"})).text == "new"
        first, second = log.pids()
        assert not alive(first)
        assert alive(second)
        await asyncio.wait({removing})


async def test_a_handle_of_a_name_that_was_added_again_leads_to_the_new_server() -> None:
    """A handle is a name."""
    async with AsyncHost({"a": fault_server(instructions="old")}, state_dir=False) as host:
        handle = host.server("a")
        await handle.call("echo")
        assert handle.instructions == "old"
        await host.remove("a")
        await host.add("a", fault_server(instructions="new"))
        await handle.call("echo")
        assert handle.instructions == "new"


def test_the_blocking_handle_of_a_removed_server() -> None:
    """The twin says the same."""
    with Host({"a": fault_server()}, state_dir=False) as host:
        handle = host.server("a")
        host.remove("a")
        with pytest.raises(UnknownServer):
            handle.status()
        with pytest.raises(UnknownServer):
            handle.call("echo")


# --- restart ------------------------------------------------------------------------------------------------------


async def test_a_restart_while_calls_are_in_flight(tmp_path: Path) -> None:
    """What was sent is ambiguous and not sent again; what was not sent goes to the new process."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path, control=True)}, state_dir=False) as host:
        sent = asyncio.create_task(host.call("a__never"))
        await log.seen("received", tool="never")
        await host.call("a__stop_reading")
        large = asyncio.create_task(host.call("a__echo", {"text": "x" * 1_000_000}))
        for _ in range(3):
            await asyncio.sleep(0)
        unsent = asyncio.create_task(host.call("a__effect"))
        for _ in range(3):
            await asyncio.sleep(0)
        await host.restart("a")
        for call in (sent, large):
            with pytest.raises(AmbiguousDelivery):
                await call
        assert (await unsent).text == "done"
        assert log.effects() == 1
        first, second = log.starts()
        assert not alive(first["pid"])
        assert log.entries("effect")[0]["pid"] == second["pid"]
        assert host.status()["a"].generation == 2


async def test_a_restart_repeats_what_is_declared_harmless(tmp_path: Path) -> None:
    """A read-only tool whose call was in flight is run again by the new process, for its caller."""
    log = FaultLog(tmp_path / "journal")
    tools = [
        {
            "name": "look",
            "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
            "does": "never",
        }
    ]
    answers = [{**tools[0], "does": "echo", "with": {"text": "seen"}}]
    spec = fault_server(journal=log.path, by_start=[{"tools": tools}, {"tools": answers}])
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        call = asyncio.create_task(host.call("a__look"))
        await log.seen("received", tool="look")
        await host.restart("a")
        assert (await call).text == "seen"
        assert log.calls("look") == 2


async def test_a_restart_in_the_middle_of_a_start(tmp_path: Path) -> None:
    """The start that hangs is dropped, and those who wait for it are served by the next."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, by_start=[{"on_initialize": "silent"}, {}])
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        call = asyncio.create_task(host.call("a__echo", {"text": "in the end"}))
        await log.seen("received", method="initialize")
        await host.restart("a", timeout=10)
        assert (await call).text == "in the end"
        assert len(log.starts()) == 2


async def test_a_restart_in_the_middle_of_a_start_that_follows_a_failure(tmp_path: Path) -> None:
    """The failure of the start before is not taken for the outcome of this one."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(
        journal=log.path,
        lazy=True,
        protocol="handshake",
        bounds=Bounds(cooldown=0.0),
        by_start=[{"on_initialize": "exit:3"}, {"on_initialize": "silent"}, {}],
    )
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        with pytest.raises(NotSent, match="exit code 3"):
            await host.call("a__echo")
        call = asyncio.create_task(host.call("a__echo", {"text": "third time"}))
        await log.seen("received", 2, method="initialize")
        await host.restart("a", timeout=10)
        assert (await call).text == "third time"
        assert len(log.starts()) == 3


async def test_two_restarts_at_once_and_a_crowd_of_callers(tmp_path: Path) -> None:
    """One process at a time, whoever asks for what."""
    log = FaultLog(tmp_path / "journal")
    lock = tmp_path / "lock"
    async with AsyncHost({"a": fault_server(journal=log.path, lock_file=lock)}, state_dir=False) as host:
        await host.wait_ready(10)
        work = [host.restart("a"), *(host.call("a__echo") for _ in range(20)), host.restart("a")]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException) or isinstance(outcome, AmbiguousDelivery), outcome
        assert (await host.call("a__echo", {"text": "x"})).text == "x"
        assert len([entry for entry in log.starts() if alive(entry["pid"])]) == 1
        # The lock says it: no two lived at a time, or the second would have exited with 3.
        assert [entry["code"] for entry in log.entries("exit") if entry["code"] == 3] == []
    assert len(log.starts()) <= 3


async def test_a_restart_that_fails_and_one_that_is_not_waited_for(tmp_path: Path) -> None:
    """The failure is raised; with a limit the start goes on behind it."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(
        journal=log.path,
        protocol="handshake",
        control=True,
        by_start=[{}, {"on_initialize": "exit:3"}, {"on_initialize": "hold"}],
    )
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        with pytest.raises(StartError, match="exit code 3"):
            await host.restart("a")
        with took(0.3, 1.3), pytest.raises(TimeoutError):
            await host.restart("a", timeout=0.3)
        await log.seen("received", 3, method="initialize")
        log.control("release", key="initialize")
        assert (await host.wait_ready(10)).ready == ("a",)


# --- enable and disable -------------------------------------------------------------------------------------------


async def test_a_server_is_disabled_while_calls_are_in_flight(tmp_path: Path) -> None:
    """They end, typed; it is not started again by a use, until it is enabled."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path)}, state_dir=False) as host:
        call = asyncio.create_task(host.call("a__never"))
        await log.seen("received", tool="never")
        await host.disable("a")
        with pytest.raises(AmbiguousDelivery):
            await call
        assert not alive(log.pids()[0])
        with pytest.raises(NotSent, match="disabled"):
            await host.call("a__echo")
        with pytest.raises(StartError, match="disabled"):
            await host.restart("a")
        assert host.status()["a"].state is State.DISABLED
        assert (await host.wait_ready(5)).idle == ("a",)
        assert await host.tools() == []
        await host.enable("a")
        assert (await host.call("a__echo", {"text": "back"})).text == "back"
        assert len(log.starts()) == 2


async def test_a_server_is_disabled_in_the_middle_of_its_start(tmp_path: Path) -> None:
    """Its process goes, and who waits for it learns it at once."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost(
        {"a": fault_server(journal=log.path, on_initialize="silent")}, state_dir=False
    ) as host:
        call = asyncio.create_task(host.call("a__echo"))
        await log.seen("received", method="initialize")
        await host.disable("a")
        with pytest.raises(NotSent, match="disabled"):
            await call
        assert not alive(log.pids()[0])


@pytest.mark.parametrize("lazy", [False, True])
async def test_a_server_is_enabled_while_it_is_still_being_disabled(lazy: bool, tmp_path: Path) -> None:
    """The last wish counts: an eager one comes up by itself, a lazy one with its next use; nobody hangs."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    spec = fault_server(journal=log.path, lazy=lazy, bounds=SOON, **STUBBORN)
    async with AsyncHost({"a": spec}, state_dir=False, on_event=events) as host:
        await host.call("a__echo")
        disabling = asyncio.create_task(host.disable("a"))
        await log.seen("eof")
        await host.enable("a")
        await disabling
        if not lazy:
            await events.seen("a", "ready", 2)
        assert (await host.call("a__echo", {"text": "back"}, timeout=5)).text == "back"
        assert "disabled" not in events.states("a")
        assert len(log.starts()) == 2


async def test_a_server_that_begins_disabled(tmp_path: Path) -> None:
    """It is not started with the host, nor by a use."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"a": fault_server(journal=log.path, enabled=False)}, state_dir=False) as host:
        assert (await host.wait_ready(5)).idle == ("a",)
        with pytest.raises(NotSent, match="disabled"):
            await host.call("a__echo")
        assert log.starts() == []
        await host.enable("a")
        assert (await host.wait_ready(10)).ready == ("a",)


async def test_disable_of_what_is_parked_or_failed_and_enable_twice() -> None:
    """The commands hold in every state."""
    specs = {"parked": fault_server(on_initialize="exit:1"), "idle": fault_server(lazy=True)}
    async with AsyncHost(specs, state_dir=False) as host:
        await host.wait_ready(10)
        for name in specs:
            await host.disable(name)
            await host.disable(name)
            assert host.status()[name].state is State.DISABLED
            await host.enable(name)
            await host.enable(name)
        assert host.status()["idle"].state is State.IDLE
        with pytest.raises(UnknownServer):
            await host.disable("nobody")
        with pytest.raises(UnknownServer):
            await host.enable("nobody")


@pytest.mark.parametrize("seed", range(4))
async def test_commands_in_every_order_at_once(seed: int, tmp_path: Path) -> None:
    """Under load: commands and calls all at once; each ends, typed; at the end one process or none."""
    import random

    order = random.Random(seed)
    log, lock = FaultLog(tmp_path / "journal"), tmp_path / "lock"
    spec = fault_server(journal=log.path, lock_file=lock, bounds=Bounds(cooldown=0.0))
    async with AsyncHost({"a": spec}, state_dir=False) as host:

        async def once() -> None:
            command = order.choice(["restart", "disable", "enable", "call", "call", "remove", "wait"])
            try:
                if command == "call":
                    await host.call("a__echo", timeout=10)
                elif command == "wait":
                    await host.wait_ready(0.05)
                elif command == "remove":
                    await host.remove("a")
                    await host.add("a", spec)
                else:
                    await getattr(host, command)("a")
            except (AmbiguousDelivery, NotSent, StartError, UnknownServer, MisuseError):
                return

        async with asyncio.timeout(30):
            for _ in range(12):
                await asyncio.gather(*(once() for _ in range(6)))
        if "a" not in host.status():
            await host.add("a", spec)
        await host.enable("a")
        assert (await host.call("a__echo", {"text": "alive"}, timeout=10)).text == "alive"
        assert len([entry for entry in log.starts() if alive(entry["pid"])]) == 1
    assert [entry for entry in log.entries("exit") if entry["code"] == 3] == []


# --- required servers, and who is waited for ----------------------------------------------------------------------


async def test_a_required_server_that_fails(tmp_path: Path) -> None:
    """``wait_ready`` and the entry of a run fail, typed, with the cause; calls to others go on."""
    specs = {
        "must": fault_server(required=True, on_initialize="exit:3:no licence"),
        "may": fault_server(on_initialize="exit:1"),
        "good": fault_server(),
    }
    async with AsyncHost(specs, state_dir=False) as host:
        with pytest.raises(RequiredServerMissing) as missing:
            await host.wait_ready(10)
        assert list(missing.value.missing) == ["must"]
        assert "no licence" in missing.value.missing["must"]
        with pytest.raises(RequiredServerMissing):
            async with host.run(timeout=10):
                raise AssertionError("the block must not begin")
        assert (await host.call("good__echo", {"text": "x"})).text == "x"
        assert (await host.wait_ready(10, servers=["good"])).ready == ("good",)


async def test_a_required_server_that_is_slow(tmp_path: Path) -> None:
    """It is missing when the limit passes, and there later; a run waits for it within its deadline."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, control=True, required=True, on_initialize="hold")
    async with AsyncHost({"must": spec}, state_dir=False) as host:
        with took(0.3, 1.3), pytest.raises(RequiredServerMissing, match="connecting"):
            await host.wait_ready(0.3)
        with took(0.3, 1.3), pytest.raises(RequiredServerMissing):
            async with host.run(timeout=0.3):
                raise AssertionError("the block must not begin")

        async def run() -> str:
            async with host.run(timeout=10):
                return (await host.call("must__echo", {"text": "there"})).text

        running = asyncio.create_task(run())
        await log.seen("received", method="initialize")
        log.control("release", key="initialize")
        assert await running == "there"
        assert len(log.starts()) == 1


async def test_a_run_starts_a_required_server_that_is_down(tmp_path: Path) -> None:
    """Lazy or dead, it is brought up before the block begins."""
    log, events = FaultLog(tmp_path / "journal"), Events()
    spec = fault_server(journal=log.path, required=True, lazy=True)
    async with AsyncHost({"must": spec}, state_dir=False, on_event=events) as host:
        async with host.run(timeout=10):
            assert host.status()["must"].state is State.READY
        with pytest.raises(AmbiguousDelivery):
            await host.call("must__die")
        await events.seen("must", "parked")
        async with host.run(timeout=10):
            assert host.status()["must"].state is State.READY
        assert len(log.starts()) == 2


def test_the_blocking_host_with_a_required_server() -> None:
    """The twin."""
    with Host({"must": fault_server(required=True, on_initialize="exit:3")}, state_dir=False) as host:
        with pytest.raises(RequiredServerMissing):
            host.wait_ready(10)
        with pytest.raises(RequiredServerMissing), host.run(timeout=10):
            raise AssertionError("the block must not begin")


async def test_wait_ready_for_some(tmp_path: Path) -> None:
    """Only they are waited for and reported; lazy ones among them are started and stay."""
    log = FaultLog(tmp_path / "journal")
    specs = {
        "slow": fault_server(on_initialize="silent"),
        "lazy": fault_server(journal=log.path, lazy=True),
        "other": fault_server(lazy=True),
    }
    async with AsyncHost(specs, state_dir=False) as host:
        readiness = await host.wait_ready(10, servers=["lazy"])
        assert readiness.ready == ("lazy",)
        assert (readiness.pending, readiness.idle, readiness.failed) == ((), (), {})
        assert len(log.starts()) == 1
        with pytest.raises(UnknownServer, match="did you mean 'lazy'"):
            await host.wait_ready(10, servers=["lazzy"])
        with took(0.0, 1.0):
            now = await host.wait_ready(0)
        assert (now.ready, now.pending, now.idle) == (("lazy",), ("slow",), ("other",))


async def test_wait_ready_sees_a_server_that_was_added_or_removed_meanwhile() -> None:
    """Who waits is not held up by what is gone."""
    async with AsyncHost({"slow": fault_server(on_initialize="silent")}, state_dir=False) as host:
        waiting = asyncio.create_task(host.wait_ready())
        await asyncio.sleep(0)
        await host.remove("slow")
        async with asyncio.timeout(2):
            assert (await waiting).ready == ()


async def test_an_empty_host_is_ready() -> None:
    """There is nobody to wait for."""
    async with AsyncHost({}, state_dir=False) as host:
        assert (await host.wait_ready()).all_ready
        assert await host.tools() == []
        assert host.status() == {}


@pytest.mark.parametrize("limit", [1, 3])
async def test_max_starting_bounds_the_starts(limit: int, tmp_path: Path) -> None:
    """Never more than so many processes before they are up; all come up."""
    log = FaultLog(tmp_path / "journal")
    specs = {f"s{n}": fault_server(journal=log.path, on_initialize="slow:0.05") for n in range(9)}
    async with AsyncHost(specs, state_dir=False, max_starting=limit) as host:
        assert len((await host.wait_ready(30)).ready) == 9
    on_the_way: set[int] = set()
    most = 0
    for entry in log.entries():
        if entry["kind"] == "start":
            on_the_way.add(entry["pid"])
        elif entry["kind"] == "received" and entry["method"] == "tools/list":
            on_the_way.discard(entry["pid"])
        most = max(most, len(on_the_way))
    assert most == limit


# --- contexts -----------------------------------------------------------------------------------------------------

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def in_context(name: str, work: Callable[[], Awaitable[Any]]) -> Any:
    who.set(name)
    return await work()


async def test_a_progress_callback_runs_in_its_callers_context() -> None:
    """Of ten calls at once, each sees its own caller."""
    seen: dict[str, set[str]] = {}

    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:

        def call(name: str) -> Awaitable[Any]:
            def on_progress(progress: float, total: float | None, message: str | None) -> None:
                seen.setdefault(name, set()).add(who.get())

            return host.call("a__progress", {"count": 3, "interval": 0.005}, on_progress=on_progress)

        async with asyncio.TaskGroup() as group:
            for n in range(10):
                name = f"caller {n}"
                group.create_task(in_context(name, lambda name=name: call(name)))
    assert seen == {f"caller {n}": {f"caller {n}"} for n in range(10)}


@pytest.mark.parametrize("era", ["handshake", "modern"])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_question_is_answered_in_the_context_of_the_call_that_caused_it(
    era: str, plain: bool
) -> None:
    """One call in flight: there is no doubt whose it is. A plain handler runs in a thread, with the same context."""
    seen: list[tuple[str, bool]] = []
    main = threading.current_thread()

    def answer(server: str, question: Any) -> Any:
        seen.append((who.get(), threading.current_thread() is main))
        return {"action": "accept", "content": {"colour": who.get()}}

    async def answer_async(server: str, question: Any) -> Any:
        return answer(server, question)

    handlers = Handlers(elicit=answer if plain else answer_async)
    async with AsyncHost({"a": fault_server(era=era)}, state_dir=False, handlers=handlers) as host:
        await host.wait_ready(10)
        result = await in_context("the caller", lambda: host.call("a__ask"))
        assert "the caller" in json.dumps(result.text)
    assert seen == [("the caller", not plain)]


async def test_in_the_modern_era_each_question_knows_its_call() -> None:
    """Many at once: the question comes inside the answer to its own call."""

    async def answer(server: str, question: Any) -> Any:
        await asyncio.sleep(0.01)  # so that the questions of many calls are open together
        return {"action": "accept", "content": {"colour": who.get()}}

    handlers = Handlers(elicit=answer)
    async with AsyncHost({"a": fault_server(era="modern")}, state_dir=False, handlers=handlers) as host:
        async with asyncio.TaskGroup() as group:
            tasks = {
                name: group.create_task(in_context(name, lambda: host.call("a__ask")))
                for name in (f"caller-{n}" for n in range(10))
            }
    for name, task in tasks.items():
        assert f'"{name}"' in task.result().text


async def test_in_the_handshake_era_a_question_between_two_calls_belongs_to_neither() -> None:
    """The wire does not say whose it is; a wrong context would be worse than none."""
    seen: list[str] = []

    async def answer(server: str, question: Any) -> Any:
        seen.append(who.get())
        return {"action": "decline"}

    handlers = Handlers(elicit=answer)
    async with AsyncHost({"a": fault_server()}, state_dir=False, handlers=handlers) as host:
        await host.wait_ready(10)
        held = asyncio.create_task(in_context("the other", lambda: host.call("a__hold")))
        await asyncio.sleep(0)
        await asyncio.create_task(in_context("the asking", lambda: host.call("a__ask")))
        await host.call("a__release")
        await held
    assert seen == ["nobody"]


@pytest.mark.parametrize("era", ["handshake", "modern"])
def test_the_context_of_a_blocking_caller_reaches_its_callbacks(era: str) -> None:
    """Across the hand-over to the loop thread; from several threads, each its own."""
    asked: list[str] = []

    def answer(server: str, question: Any) -> Any:
        asked.append(who.get())
        return {"action": "accept", "content": {"colour": who.get()}}

    with Host({"a": fault_server(era=era)}, state_dir=False, handlers=Handlers(elicit=answer)) as host:
        host.wait_ready(10)

        def work(name: str) -> set[str]:
            who.set(name)
            told: set[str] = set()
            host.call(
                "a__progress",
                {"count": 3, "interval": 0.005},
                on_progress=lambda *_: told.add(who.get()),
            )
            return told

        workers = {name: in_thread(work, name) for name in ("one", "two", "three")}
        assert {name: worker.result() for name, worker in workers.items()} == {
            name: {name} for name in workers
        }
        token = who.set("the asker")
        host.call("a__ask")
        who.reset(token)
    assert asked == ["the asker"]


async def test_what_a_server_starts_with_is_not_the_context_of_its_first_caller() -> None:
    """A server lives longer than the call that woke it: its notifications are nobody's."""
    heard: list[str] = []
    done = asyncio.Event()

    def on_log(server: str, params: Any) -> None:
        heard.append(who.get())
        done.set()

    handlers = Handlers(on_log=on_log)
    async with AsyncHost({"a": fault_server(lazy=True)}, state_dir=False, handlers=handlers) as host:
        await asyncio.create_task(
            in_context("the first", lambda: host.call("a__notify", {"params": {"level": "info", "data": 1}}))
        )
        async with asyncio.timeout(5):
            await done.wait()
    assert heard == ["nobody"]
