"""The host as process 1 of a container, or as a child subreaper: orphans of servers are its children then, and none
stays a zombie; what the program started itself is reaped by the program alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from moorings import AsyncHost
from moorings.transport import adopted as adopted_module
from moorings.transport.adopted import Adopted, Kin, adopted, is_reaper
from moorings.transport.identity import MARK, Snapshot
from tests.faults import procs
from tests.faults.script import fault_server
from tests.host.kit import child_environment
from tests.lifecycle.kit import QUICK, environment_of, until_async
from tests.lifecycle.process_one import orphaning
from tests.lifecycle.test_identity import Proc, entry
from tests.procs import adopt_orphans

PROGRAM = Path(__file__).with_name("process_one.py")


@pytest.mark.smoke
@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of process numbers is for root to make")
@pytest.mark.parametrize("row", ["stop", "long life", "the program's own", "stubborn", "killed"])
def test_as_process_1(row: str, tmp_path: Path) -> None:
    """No zombie after a stop, none for longer than some looks while it lives; exit codes reach their owners."""
    unshare, setsid = shutil.which("unshare"), shutil.which("setsid")
    assert unshare is not None, "unshare (util-linux) is needed"
    assert setsid is not None, "setsid (util-linux) is needed"
    done = subprocess.run(
        [
            unshare,
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            setsid,
            sys.executable,
            str(PROGRAM),
            row,
        ],
        env=child_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


# --- as a subreaper, which this test process is


async def test_orphans_of_a_living_server_do_not_stay() -> None:
    """Double-forked, in its group, in its session, in sessions of their own; known once they were seen alive."""
    assert adopt_orphans()
    async with AsyncHost({"a": orphaning(3, 100.0)}, state_dir=False) as host:
        await host.wait_ready(10)
        orphans = [pid for pid in procs.children() if MARK.encode() in environment_of(pid)]
        orphans = [pid for pid in orphans if pid != host.status()["a"].pid]
        assert len(orphans) == 6
        adopted._look(asyncio.get_running_loop())
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        assert await procs.gone(orphans, 5)
        assert [procs.state(pid) for pid in orphans] == ["Z"] * 6
        # Two looks at the most, without anybody asking for them.
        await until_async(lambda: not any(procs.state(pid) for pid in orphans), 3.0)
        assert (await host.call("a__echo", {"text": "x"})).text == "x"


async def test_a_child_of_the_program_keeps_its_exit_code() -> None:
    """While looks come round, many of its own come and go, in our session and in their own, reaped late."""
    assert adopt_orphans()
    async with AsyncHost({"a": fault_server(bounds=QUICK)}, state_dir=False) as host:
        await host.wait_ready(10)
        own = [
            subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", f"import sys; sys.exit({n})"], start_new_session=n % 2 == 0
            )
            for n in range(8)
        ]
        assert await procs.gone([each.pid for each in own], 10)
        for loop in list(adopted._timers):
            adopted._look(loop)
        assert [procs.state(each.pid) for each in own] == ["Z"] * 8
        await host.close()
    assert [each.wait() for each in own] == list(range(8))


async def test_the_looks_begin_with_the_first_server_and_end_with_the_last() -> None:
    assert adopted._timers == {}
    async with AsyncHost({"a": fault_server(), "b": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        assert list(adopted._timers) == [asyncio.get_running_loop()]
        await host.disable("a")
        assert len(adopted._timers) == 1
        await host.disable("b")
        assert adopted._timers == {}
        assert adopted._kin == {}


async def test_who_is_no_reaper_looks_once_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopted_module, "LOOK", 0.01)
    asked: list[int] = []

    def reaper() -> bool:
        asked.append(1)
        return False

    looks = Adopted(reaper)
    kin = Kin(1, "tok")
    looks.join(asyncio.get_running_loop(), kin)
    await until_async(lambda: asked)
    assert looks._timers == {}
    await asyncio.sleep(0.05)
    assert len(asked) == 1
    looks.leave(asyncio.get_running_loop(), kin)


async def test_the_looks_cost_a_hundredth_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where one look is dear, the next comes later."""
    monkeypatch.setattr(adopted_module, "LOOK", 0.0)

    def dear() -> Snapshot:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return Snapshot({})

    looks = Adopted(lambda: True)
    kin = Kin(1, "tok")
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Snapshot, "take", dear)
    looks.join(loop, kin)
    await asyncio.sleep(0)
    looks._look(loop)
    assert loop.time() + 1.5 < looks._timers[loop].when()
    looks.leave(loop, kin)
    assert looks._timers == {}


def test_we_are_a_subreaper_here() -> None:
    """The tests make this process one; a forked child is none."""
    assert adopt_orphans()
    assert is_reaper()
    pid = os.fork()
    if pid == 0:
        os._exit(1 if is_reaper() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- who is kin


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def reaped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids that would be reaped."""
    pids: list[int] = []
    monkeypatch.setattr(adopted_module, "reap_confirmed", lambda info: pids.append(info.pid))
    return pids


def test_only_what_is_dead_and_ours_and_known_is_reaped(proc: Proc, reaped: list[int]) -> None:
    me = os.getpid()
    proc.process(10, state="Z", parent=me)  # the leader, its owner's to reap
    proc.process(11, state="Z", parent=me, session=10)
    proc.process(12, state="Z", parent=me, session=10, group=12)
    proc.process(13, state="S", parent=me, session=10)
    proc.process(14, state="Z", parent=10, session=10)  # its parent lives
    proc.process(20, state="Z", parent=me)  # the program's own, in a session of its own
    proc.process(21, state="Z", parent=me, group=me, session=os.getsid(0))  # and in ours
    proc.process(22, state="Z", parent=me, session=99)  # nobody knows it
    Kin(10, "tok.1").reap(proc.snapshot())
    assert sorted(reaped) == [11, 12]


def test_what_carried_the_mark_while_it_lived_is_known_when_it_is_dead(
    tmp_path: Path, reaped: list[int]
) -> None:
    me = os.getpid()
    looks = []
    for n in range(3):
        folder = tmp_path / str(n)
        folder.mkdir()
        looks.append(Proc(folder))
    looks[0].process(30, parent=me, start=7, environ=entry("tok.1"))
    looks[0].process(31, parent=30, start=8, session=30, environ=entry("tok.1"))
    looks[0].process(40, parent=me, start=7, environ=entry("tok.10"))
    looks[1].process(30, parent=me, state="Z", start=7, environ=None)
    looks[1].process(31, parent=me, state="Z", start=8, session=30, environ=None)
    looks[1].process(32, parent=me, state="Z", start=9, session=30, environ=None)  # never seen alive
    looks[1].process(40, parent=me, state="Z", start=7, environ=None)
    # The numbers are a stranger's now.
    looks[2].process(30, parent=me, state="Z", start=70, environ=None)
    looks[2].process(31, parent=me, state="Z", start=80, environ=None)
    kin = Kin(10, "tok.1")
    kin.reap(looks[0].snapshot())
    assert reaped == []
    kin.reap(looks[1].snapshot())
    assert sorted(reaped) == [30, 31, 32]
    reaped.clear()
    kin.reap(looks[2].snapshot())
    assert reaped == []


def test_a_marked_process_in_our_own_session_makes_nobody_else_kin(tmp_path: Path, reaped: list[int]) -> None:
    """Somebody gave the mark on to a child of the program: it is known, its neighbours are not."""
    me, ours = os.getpid(), os.getsid(0)
    first, second = tmp_path / "0", tmp_path / "1"
    first.mkdir()
    second.mkdir()
    then, now = Proc(first), Proc(second)
    then.process(30, parent=me, session=ours, environ=f"{MARK}=tok.1".encode())
    now.process(30, parent=me, session=ours)
    now.process(31, parent=me, session=ours, state="Z")
    kin = Kin(10, "tok.1")
    kin.reap(then.snapshot())
    kin.reap(now.snapshot())
    assert reaped == []
