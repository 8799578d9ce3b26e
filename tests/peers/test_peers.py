"""What other clients fail at, measured on their current releases (``make compare``): here Moorings does right.

One short test for each row, named by its id. The rows that concern HTTP, OAuth and frameworks wait for their rooms.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from moorings import AmbiguousDelivery, AsyncHost, Bounds
from tests.faults.procs import alive, gone, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, child_command, child_environment, took


def stubborn(log: FaultLog, **keys: object) -> object:
    return fault_server(journal=log.path, bounds=SOON, **STUBBORN, **keys)  # type: ignore[arg-type]


async def test_p5_a_native_cancel_in_the_close_of_a_stubborn_server(tmp_path: Path) -> None:
    """P5: the owner ends at once, the stop goes on, server and grandchild are gone within its bounds."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"s": stubborn(log)}, state_dir=False)  # type: ignore[dict-item]
    closing = asyncio.Event()

    async def owner() -> None:
        async with host:
            await host.call("s__fork_child", {"ignore_term": True})
            closing.set()

    task = asyncio.create_task(owner())
    await closing.wait()
    await log.seen("eof")
    task.cancel()
    with took(0.0, 0.5), pytest.raises(asyncio.CancelledError):
        await task
    pids = log.pids()
    assert len(pids) == 2
    assert await gone(pids, 3)
    assert (await host.close()).forced == {"s": ("TERM", "KILL")}


async def test_p5_a_timeout_around_the_close(tmp_path: Path) -> None:
    """P5: `asyncio.timeout` frees its caller at its time, and the servers end all the same."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"s": stubborn(log)}, state_dir=False)  # type: ignore[dict-item]
    await host.start()
    await host.wait_ready(10)
    with took(0.2, 1.2), pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await host.close()
    assert await gone(log.pids(), 3)
    assert (await host.close()).forced == {"s": ("TERM", "KILL")}


async def test_p6_closed_from_another_task(tmp_path: Path) -> None:
    """P6: the close returns its report, and the task that opened goes on."""
    log = FaultLog(tmp_path / "journal")
    host = AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False)
    opened, go_on = asyncio.Event(), asyncio.Event()

    async def opener() -> str:
        await host.start()
        await host.wait_ready(10)
        opened.set()
        await go_on.wait()
        return "uncancelled"

    task = asyncio.create_task(opener())
    await opened.wait()
    report = await asyncio.create_task(host.close())
    assert report.clean
    assert not any(alive(pid) for pid in log.pids())
    go_on.set()
    assert await task == "uncancelled"


async def test_p9_a_server_that_is_silent_on_the_probe(tmp_path: Path) -> None:
    """P9: it costs the probe's limit once; the next start, of a new host, asks no more."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, on_probe="silent", bounds=Bounds(probe=0.5))
    for least, probes in ((0.5, 1), (0.0, 1)):
        async with AsyncHost({"s": spec}, state_dir=tmp_path / "state") as host:
            with took(least, 1.5):
                assert (await host.wait_ready(10)).all_ready
        assert log.count("server/discover") == probes
    assert len(log.starts()) == 2


async def test_p10_a_server_that_exits_on_the_probe(tmp_path: Path) -> None:
    """P10: it is started again in handshake mode, and once it was, at once."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, on_probe="exit:1")
    for starts in (2, 3):
        async with AsyncHost({"s": spec}, state_dir=tmp_path / "state") as host:
            assert (await host.call("s__echo", {"text": "up"}, timeout=10)).text == "up"
        assert len(log.starts()) == starts


KILLED = """
import sys, threading
from moorings import Host
from moorings.transport.watch import watch
from tests.faults.script import fault_server

host = Host({"s": fault_server(journal=sys.argv[1], ignore_eof=True, ignore_term=True)}, state_dir=False)
host.start()
host.call("s__fork_child", {"ignore_term": True})
print("ready", watch.pid, flush=True)
threading.Event().wait(60)
"""


def test_p11_the_host_is_killed(tmp_path: Path) -> None:
    """P11, F3.2: SIGKILL; a stubborn server and its grandchild are gone within 5 s."""
    log = FaultLog(tmp_path / "journal")
    with subprocess.Popen(
        child_command(KILLED, log.path),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None and program.stderr is not None
        said = program.stdout.readline().split()
        program.kill()
        assert said[:1] == ["ready"], program.stderr.read()
    pids = log.pids()
    assert len(pids) == 2
    assert wait_gone(pids, 5)
    assert wait_gone(int(said[1]), 2), "the watch goes when nothing is left to do"


async def test_p12_three_calls_are_one_process(tmp_path: Path) -> None:
    """P12: the process of a server serves all calls."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False) as host:
        counts = [(await host.call("s__counter")).text for _ in range(3)]
    assert counts == ["1", "2", "3"]
    assert len(log.starts()) == 1


async def test_p12_a_bad_server_costs_only_itself() -> None:
    """P12: of two servers one dies at its start; the tools of the other are there, and the report says why."""
    specs = {"good": fault_server(), "bad": fault_server(on_probe="exit:3", on_initialize="exit:3:no key\n")}
    async with AsyncHost(specs, state_dir=False) as host:
        readiness = await host.wait_ready(10)
        assert readiness.ready == ("good",)
        assert "exit code 3" in readiness.failed["bad"] and "no key" in readiness.failed["bad"]
        tools = await host.tools()
        assert tools and all(tool.name.startswith("good__") for tool in tools)
        assert (await host.call("good__echo", {"text": "up"})).text == "up"


async def test_p15_calls_do_not_queue_behind_each_other(tmp_path: Path) -> None:
    """P15: eight calls of 1 s with a limit of 1.5 s: no lock serialises them, none times out unsent."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False) as host:
        await host.wait_ready(10)
        with took(1.0, 2.0):
            calls = [host.call("s__sleep", {"seconds": 1}, timeout=1.5) for _ in range(8)]
            assert [result.text for result in await asyncio.gather(*calls)] == ["slept"] * 8
    assert log.calls("sleep") == 8


async def test_p15_the_shutdown_sweeps_over_nobody() -> None:
    """P15: tasks of the program's own outlive the close, which is bounded and needs no sweep over all tasks."""
    ended = asyncio.Event()
    bystander = asyncio.create_task(ended.wait(), name="the program's own")
    host = AsyncHost({f"s{n}": fault_server(bounds=SOON, **STUBBORN) for n in range(3)}, state_dir=False)  # type: ignore[arg-type]
    await host.start()
    await host.wait_ready(10)
    with took(0.6, 2.0):
        await host.close()
    assert {asyncio.current_task(), bystander} == asyncio.all_tasks()
    ended.set()
    assert await bystander


async def test_p20_ten_stubborn_servers_close_side_by_side(tmp_path: Path) -> None:
    """P20: all ten need TERM and KILL, and together they take no longer than one."""
    logs = [FaultLog(tmp_path / f"journal{n}") for n in range(10)]
    specs = {f"s{n}": stubborn(log) for n, log in enumerate(logs)}
    async with AsyncHost(specs, state_dir=False) as host:  # type: ignore[arg-type]
        assert (await host.wait_ready(20)).all_ready
        with took(0.6, 2.0):
            report = await host.close()
    assert report.forced == dict.fromkeys(specs, ("TERM", "KILL"))
    assert report.survivors == ()
    assert not any(alive(pid) for log in logs for pid in log.pids())


async def test_p21_a_single_server_ends_with_its_context(tmp_path: Path) -> None:
    """P21: when the block is left its process is gone, while the program goes on."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False) as host:
        await host.call("s__echo")
        assert alive(log.pids()[0])
    assert not alive(log.pids()[0])


async def test_p22_fifty_servers_cost_no_thread() -> None:
    """P22: exits are seen by pidfds, also on Python 3.11; the threads of C code are counted too."""
    before = len(os.listdir("/proc/self/task")), threading.active_count()
    servers = {f"s{n}": fault_server() for n in range(50)}
    async with AsyncHost(servers, state_dir=False) as host:
        assert (await host.wait_ready(60)).all_ready
        assert (len(os.listdir("/proc/self/task")), threading.active_count()) == before


async def test_a_death_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """The waiting caller is told at once and typed, with the exit code and stderr; the next call starts it again."""
    log = FaultLog(tmp_path / "journal")
    async with AsyncHost({"s": fault_server(journal=log.path)}, state_dir=False) as host:
        await host.wait_ready(10)
        began = time.monotonic()
        with pytest.raises(AmbiguousDelivery) as ended:
            await host.call("s__die", {"code": 3, "stderr": "out of cheese\n"})
        assert time.monotonic() - began < 1
        assert "exit code 3" in str(ended.value) and "out of cheese" in str(ended.value)
        assert (await host.call("s__echo", {"text": "again"})).text == "again"
    assert len(log.starts()) == 2


async def test_a_message_over_the_cap_costs_that_message() -> None:
    """17 MiB against a cap of 16 MiB: its caller is told, and the next call is answered by the same process."""
    async with AsyncHost({"s": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        pid = host.status()["s"].pid
        with pytest.raises(AmbiguousDelivery):
            await host.call("s__big", {"bytes": 17 * 1024 * 1024})
        assert (await host.call("s__echo", {"text": "next"})).text == "next"
        assert host.status()["s"].pid == pid


async def test_a_megabyte_on_stderr_before_the_first_answer() -> None:
    """It is drained, so that the start is not held up."""
    async with AsyncHost({"s": fault_server(stderr_first=1_000_000)}, state_dir=False) as host:
        with took(0.0, 3.0):
            assert (await host.wait_ready(10)).all_ready
