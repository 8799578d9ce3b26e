"""The death watch: what it ends when the host is killed, what it leaves alone, and that it is there when it must be."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, StdioServer
from moorings.transport import watch as watch_module
from moorings.transport import watch_main
from moorings.transport.identity import MARK, owner_mark, start_time
from moorings.transport.watch import Lease, Watch, watch
from tests.faults import procs
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import child_command
from tests.lifecycle.kit import (
    QUICK,
    STUBBORN,
    bearing,
    command_of,
    environment_of,
    killed_itself,
    program,
    stranger,
    until,
    until_async,
)

PROGRAM = Path(watch_main.__file__)


def ignores_signals(pid: int) -> bool:
    """Whether the watch has begun its work, TERM, INT and HUP ignored."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return all(mask >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def pid_of(guard: Watch) -> int:
    pid = guard.pid
    assert pid is not None
    return pid


# --- the host is killed


PREPARED = """
import asyncio, json, os, signal, sys
import moorings
from moorings.transport.identity import owner_mark
from moorings.transport.watch import watch
from tests.faults.script import fault_server

def die():
    print("end", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

print(owner_mark(), flush=True)
"""


@pytest.mark.smoke
def test_f3_2_the_host_is_killed() -> None:
    """F3.2: a stubborn server, its stubborn grandchild, one that left the group, and the watch: all gone in 5 s."""
    code = (
        PREPARED
        + """
async def main():
    host = moorings.AsyncHost({"a": fault_server(ignore_eof=True, ignore_term=True)}, state_dir=False)
    await host.start()
    await host.wait_ready(20)
    pids = [host.status()["a"].pid, watch.pid]
    for session in (False, True):
        child = await host.call("a__fork_child", {"ignore_term": True, "new_session": session})
        pids.append(int(child.text))
    print(json.dumps(pids), flush=True)
    die()

asyncio.run(main())
"""
    )
    with program(code) as process:
        mark, pids = killed_itself(process)
        began = time.monotonic()
        assert procs.wait_gone(json.loads(pids), 5.0)
        assert time.monotonic() - began >= watch_main.TERM_WAIT * 0.9, (
            "they were given time to end by themselves"
        )
    assert bearing(mark) == []


STEPS = [
    "before the lease",
    "the watch is spawned",
    "after the lease",
    "the server is spawned",
    "before it is told",
    "after it is told",
    "its exit is watched",
    "its pipes are joined",
    "the first message is out",
    "it is ready",
]


@pytest.mark.smoke
def test_the_host_is_killed_at_each_step_of_a_start() -> None:
    """Whatever is there at that moment ends, the watch too. The server does not mind the end of its stdin."""
    code = (
        PREPARED
        + """
from moorings.transport import _posix
from moorings.transport.stdio import StdioTransport
from moorings.transport.watch import Lease, Watch
import subprocess

def hook(owner, name, *, before=False, nth=1):
    original = getattr(owner, name)
    calls = 0
    def stepped(*args, **options):
        nonlocal calls
        calls += 1
        if before and calls == nth:
            die()
        outcome = original(*args, **options)
        if calls == nth:
            die()
        return outcome
    setattr(owner, name, stepped)

{
    "before the lease": lambda: hook(Watch, "lease", before=True),
    "the watch is spawned": lambda: hook(subprocess, "_fork_exec"),
    "after the lease": lambda: hook(Watch, "lease"),
    "the server is spawned": lambda: hook(subprocess, "_fork_exec", nth=2),
    "before it is told": lambda: hook(Lease, "tell", before=True),
    "after it is told": lambda: hook(Lease, "tell"),
    "its exit is watched": lambda: hook(_posix.PosixChild, "watch"),
    "its pipes are joined": lambda: hook(StdioTransport, "_join_pipes"),
    "the first message is out": lambda: hook(StdioTransport, "send"),
    "it is ready": lambda: None,
}[sys.argv[1]]()

async def main():
    async with moorings.AsyncHost({"a": fault_server(ignore_eof=True)}, state_dir=False) as host:
        await host.wait_ready(20)
        die()

asyncio.run(main())
"""
    )
    marks = {}
    for batch in (STEPS[:5], STEPS[5:]):
        with ExitStack() as running:
            processes = {step: running.enter_context(program(code, step)) for step in batch}
            for step, process in processes.items():
                (marks[step],) = killed_itself(process)
    for step, mark in marks.items():
        until(lambda mark=mark: not bearing(mark), 5.0, step)


def test_a_forked_child_and_one_that_inherits_everything_live_on() -> None:
    """Neither keeps the pipe of the watch open, so that the death of the host is seen at once."""
    code = (
        PREPARED
        + """
import subprocess, threading

async def main():
    host = moorings.AsyncHost({"a": fault_server(ignore_eof=True)}, state_dir=False)
    await host.start()
    await host.wait_ready(20)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        while True:
            signal.pause()
    other = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], close_fds=False)
    print(json.dumps([[host.status()["a"].pid, watch.pid], [child, other.pid]]), flush=True)
    die()

asyncio.run(main())
"""
    )
    with program(code) as process:
        _, pids = killed_itself(process)
        ours, theirs = json.loads(pids)
        try:
            assert procs.wait_gone(ours, 5.0)
            assert all(procs.alive(pid) for pid in theirs)
        finally:
            for pid in theirs:
                os.kill(pid, signal.SIGKILL)
            assert procs.wait_gone(theirs, 5.0)


def test_the_watch_is_killed_and_then_the_host() -> None:
    """The new watch was told all groups again: here it ends them by nothing else, since it was given a wrong mark."""
    code = (
        PREPARED
        + """
import logging, threading
import moorings.transport.watch as module

module.owner_mark = lambda: "0" * 32
again = threading.Event()

class Listener(logging.Handler):
    def emit(self, record):
        if "started again" in record.getMessage():
            again.set()

logging.getLogger("moorings").addHandler(Listener())
host = moorings.Host({name: fault_server(ignore_eof=True) for name in "ab"}, state_dir=False)
host.start()
host.wait_ready(20)
first = watch.pid
os.kill(first, signal.SIGKILL)
# Nothing is asked of the host meanwhile.
assert again.wait(10)
while watch.pid in (None, first):
    pass
print(json.dumps([first, watch.pid, *(status.pid for status in host.status().values())]), flush=True)
die()
"""
    )
    with program(code) as process:
        _, pids = killed_itself(process)
        assert procs.wait_gone(json.loads(pids), 5.0)


# --- that it is there


async def test_there_is_one_for_all_hosts_of_a_process() -> None:
    """It comes with the first stdio server and goes with the last."""
    assert watch.pid is None
    async with AsyncHost({}, state_dir=False):
        assert watch.pid is None
    async with AsyncHost({"a": fault_server(), "b": fault_server()}, state_dir=False) as first:
        await first.wait_ready(10)
        pid = pid_of(watch)
        async with AsyncHost({"c": fault_server()}, state_dir=False) as second:
            await second.wait_ready(10)
            assert watch.pid == pid
            await first.disable("a")
            await first.disable("b")
            assert watch.pid == pid
            assert procs.alive(pid)
        assert watch.pid is None
        assert procs.state(pid) is None
        await first.enable("a")
        await first.wait_ready(10)
        assert watch.pid not in (None, pid)
    assert watch.pid is None


async def test_it_is_started_again_when_it_dies(caplog: pytest.LogCaptureFixture) -> None:
    """Its end is seen without anybody calling anything, as often as it happens; calls do not notice."""
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        pids = []
        for _ in range(3):
            pid = pid_of(watch)
            pids.append(pid)
            os.kill(pid, signal.SIGKILL)
            await until_async(lambda pid=pid: watch.pid not in (None, pid))
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
        assert len({*pids, watch.pid}) == 4
    assert [record.message for record in caplog.records if "started again" in record.message] == [
        "the death watch ended by itself; it is started again"
    ] * 3


async def test_one_that_ends_each_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a storm of processes for the rest of the day."""
    false = shutil.which("false")
    assert false is not None
    guard = Watch(lambda: [false])
    lease = guard.lease()
    await until_async(lambda: "again and again" in caplog.text, 20.0)
    assert guard.pid is None
    other = guard.lease()
    assert guard.pid is None
    await lease.release()
    await other.release()
    assert caplog.text.count("no death watch") == 1


@pytest.mark.parametrize("how", ["no interpreter", "frozen", "not there", "not to be run"])
async def test_it_cannot_be_started(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It costs the guard, never a server; and it is said once."""
    specs = {"a": fault_server(), "b": fault_server()}
    monkeypatch.setattr(watch, "_warned", False)
    match how:
        case "frozen":
            monkeypatch.setattr(sys, "frozen", True, raising=False)
        case "no interpreter":
            monkeypatch.setattr(sys, "executable", "")
        case "not there":
            monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        case _:
            (tmp_path / "python").write_text("")
            monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for _ in range(2):
        async with AsyncHost(specs, state_dir=False) as host:
            assert (await host.wait_ready(10)).all_ready
            assert watch.pid is None
            assert (await host.call("a__echo", {"text": "x"})).text == "x"
    assert caplog.text.count("no death watch") == 1


async def test_no_descriptor_is_left_for_its_pipe(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> Any:
        raise OSError(24, "Too many open files")

    guard = Watch()
    with monkeypatch.context() as patch:
        patch.setattr(watch_module.descriptors, "pipe", refused)
        lease = guard.lease()
    assert guard.pid is None
    assert caplog.text.count("no death watch") == 1
    again = guard.lease()
    assert procs.alive(pid_of(guard)), "the next server tries again"
    await lease.release()
    await again.release()


# --- it is stuck


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Any]:
    """Watches that write down what they are told, in a file each."""
    cat = shutil.which("cat")

    class Recorder:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self) -> list[str]:
            self.count += 1
            return ["/bin/sh", "-c", f"exec {cat} > {self.file()}"]

        def file(self) -> Path:
            return tmp_path / f"told{self.count}"

        def lines(self) -> list[str]:
            return self.file().read_text().splitlines() if self.file().exists() else []

    yield Recorder()


async def test_one_that_is_stopped_and_flooded_is_replaced(recorder: Any) -> None:
    """It does not take lines any more: another is told everything, and the loop never waits for it."""
    guard = Watch(recorder)
    leases = [guard.lease() for _ in range(1001)]
    for n in range(1000):
        leases[n].tell(1_000_000 + n, n)
    old = pid_of(guard)
    os.kill(old, signal.SIGSTOP)
    await until_async(lambda: procs.state(old) == "T")
    while guard._write(b"+1 1\n"):
        pass
    assert guard.pid == old
    before = time.monotonic()
    leases[1000].tell(1_001_000, 1000)
    assert time.monotonic() - before < 0.5
    assert guard.pid not in (None, old)
    assert procs.state(old) is None
    told = [f"+{1_000_000 + each} {each}" for each in range(1001)]
    await until_async(lambda: len(recorder.lines()) == len(told))
    assert recorder.lines() == told
    for lease in leases:
        await lease.release()
    assert guard.pid is None


async def test_one_that_is_stopped_hears_of_an_end_too(recorder: Any) -> None:
    """A line that says that a server ended is not lost either: the new one does not know that server any more."""
    guard = Watch(recorder)
    leases = [guard.lease() for _ in range(3)]
    for n, lease in enumerate(leases):
        lease.tell(1_000_000 + n, n)
    os.kill(old := pid_of(guard), signal.SIGSTOP)
    while guard._write(b"+1 1\n"):
        pass
    await leases[0].release()
    # It is told of all that end in one turn of the loop together.
    await until_async(lambda: guard.pid not in (None, old))
    await until_async(lambda: len(recorder.lines()) == 2)
    assert recorder.lines() == ["+1000001 1", "+1000002 2"]
    for lease in leases:
        await lease.release()


async def test_one_that_is_stopped_does_not_hold_up_a_close() -> None:
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        pid = pid_of(watch)
        os.kill(pid, signal.SIGSTOP)
        report = await host.close()
    assert report.clean
    assert report.elapsed < 1.0
    assert procs.state(pid) is None


@pytest.mark.parametrize("way", ["release", "replace", "exit"])
async def test_the_end_of_its_pipe_never_comes_while_the_host_lives(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driven by hand: between the steps of ending a watch it is given all the time it wants. What bears our mark
    meanwhile, a server that was started a moment later, is not touched."""
    kill = subprocess.Popen.kill

    def slow_kill(self: subprocess.Popen[bytes]) -> None:
        # The watch looks and signals within milliseconds of the end of its pipe.
        time.sleep(0.5)
        kill(self)

    guard = Watch()
    with stranger(environment={MARK: owner_mark("x")}) as later:
        lease = guard.lease()
        pid = pid_of(guard)
        await until_async(lambda: ignores_signals(pid))
        with monkeypatch.context() as patch:
            patch.setattr(subprocess.Popen, "kill", slow_kill)
            if way == "release":
                await lease.release()
            elif way == "replace":
                os.kill(pid, signal.SIGSTOP)
                while guard._write(b"+1 1\n"):
                    pass
                lease.tell(1, 1)
                assert guard.pid not in (None, pid)
            else:
                guard.end_at_exit()
        assert procs.state(pid) is None
        assert procs.alive(later.pid)
        await lease.release()


async def test_many_come_and_go_while_a_server_of_ours_lives() -> None:
    """The same under load: it is never hit."""
    guard = Watch()
    with stranger(environment={MARK: owner_mark("x")}) as later:
        for n in range(40):
            lease = guard.lease()
            lease.tell(later.pid, start_time(later.pid))
            if n % 4 == 0:
                pid = pid_of(guard)
                await until_async(lambda pid=pid: ignores_signals(pid))
            await lease.release()
        assert procs.alive(later.pid)


async def test_a_cancelled_release_ends_it_all_the_same() -> None:
    """Callers may be cancelled once or often; the cancellation strikes after the end."""
    guard = Watch()
    lease = guard.lease()
    pid = pid_of(guard)
    task = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
    assert procs.state(pid) is None
    assert guard.pid is None


# --- what it is


async def test_it_ignores_what_a_terminal_or_a_service_manager_sends_to_all(tmp_path: Path) -> None:
    async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
        await host.wait_ready(10)
        pid = pid_of(watch)
        await until_async(lambda: ignores_signals(pid))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        assert procs.alive(pid)
        assert (await host.call("a__echo", {"text": "x"})).text == "x"
        assert watch.pid == pid


async def test_it_knows_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its environment is empty, its command line holds the mark alone, and it keeps no folder and no file of ours."""
    monkeypatch.setenv("API_KEY", "topsecret")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        command = watch_module._command()
        assert command is not None and str(PROGRAM) in command
        spec = fault_server(env={"TOKEN": "topsecret"})
        async with AsyncHost({"a": spec}, state_dir=False) as host:
            await host.wait_ready(10)
            pid = pid_of(watch)
            await until_async(lambda: ignores_signals(pid))
            assert environment_of(pid) == b""
            assert command_of(pid).split(b"\0") == [
                *(part.encode() for part in (*command, owner_mark())),
                b"",
            ]
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            assert sorted(procs.descriptors(pid)) == [0, 1, 2]
            fields = procs.stat(pid)
            assert fields is not None
            assert (int(fields[2]), int(fields[3])) == (pid, pid), "a group and session of its own"
            server = host.status()["a"].pid
            assert server is not None
            assert environment_of(server).count(f"{MARK}={owner_mark()}.".encode()) == 1


async def test_an_interpreter_that_needs_its_libraries_named_gets_that_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/lib")
    guard = Watch()
    lease = guard.lease()
    pid = pid_of(guard)
    await until_async(lambda: ignores_signals(pid))
    assert environment_of(pid) == b"LD_LIBRARY_PATH=/somewhere/lib\0"
    await lease.release()


async def test_it_costs_nothing_while_it_waits(tmp_path: Path) -> None:
    guard = Watch()
    lease = guard.lease()
    pid = pid_of(guard)
    await until_async(lambda: ignores_signals(pid))
    before = procs.cpu_seconds(pid)
    await asyncio.sleep(1.0)
    assert procs.cpu_seconds(pid) == before
    await lease.release()


async def test_a_lease_is_released_once() -> None:
    """A second release, or one without a process, takes nothing from the others."""
    guard = Watch()
    first, second = guard.lease(), guard.lease()
    await first.release()
    await first.release()
    assert guard.pid is not None
    await Lease(guard).release()
    assert guard.pid is not None
    await second.release()
    assert guard.pid is None


# --- whom it ends


class Processes:
    """A /proc of our own making, for ``watch_main.targets``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        pid: int,
        session: int,
        start: int,
        *,
        group: int = 0,
        state: str = "S",
        environ: bytes = b"",
    ) -> None:
        there = self.folder / str(pid)
        there.mkdir()
        (there / "stat").write_text(
            f"{pid} (a) b) {state} 1 {group or session} {session}{' 0' * 15} {start} 0 0\n"
        )
        (there / "environ").write_bytes(environ)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(watch_main, "PROC", str(tmp_path))
    return Processes(tmp_path)


def test_a_told_session_and_all_its_groups(table: Processes) -> None:
    table.add(10, 10, 500)
    table.add(11, 10, 600)
    table.add(12, 10, 600, group=12)
    table.add(13, 10, 600, state="Z")
    table.add(20, 20, 500)
    assert watch_main.targets({10: 500}, b"tok") == ({10: 500, 11: 600, 12: 600}, {10})


def test_a_session_whose_leader_is_gone(table: Processes) -> None:
    """As behind ``npx``: what it left behind is younger than it was."""
    table.add(11, 10, 600)
    table.add(12, 10, 499)
    assert watch_main.targets({10: 500}, b"tok") == ({11: 600}, {10})


def test_f3_7_a_number_that_was_given_to_strangers(table: Processes) -> None:
    """F3.7: the leader has another start time, so neither it nor its children are ours."""
    table.add(10, 10, 900)
    table.add(11, 10, 950)
    assert watch_main.targets({10: 500}, b"tok") == ({}, set())


def test_a_leader_that_is_dead_and_not_reaped_still_names_its_session(table: Processes) -> None:
    table.add(10, 10, 500, state="Z")
    table.add(11, 10, 600)
    assert watch_main.targets({10: 500}, b"tok") == ({11: 600}, {10})


def test_a_group_in_another_session_is_a_strangers(table: Processes) -> None:
    """Our servers lead sessions; a group of that number in another session was never theirs."""
    table.add(10, 7, 600, group=10)
    assert watch_main.targets({10: 500}, b"tok") == ({}, set())


@pytest.mark.parametrize(
    ("environ", "ours"),
    [
        (b"MOORINGS_OWNER=tok\0", True),
        (b"A=1\0MOORINGS_OWNER=tok.7\0B=1\0", True),
        (b"A=1\0MOORINGS_OWNER=tok", True),
        (b"XMOORINGS_OWNER=tok\0MOORINGS_OWNER=tok.1\0", True),
        (b"XMOORINGS_OWNER=tok\0", False),
        (b"A=MOORINGS_OWNER=tok\0", False),
        (b"MOORINGS_OWNER=token\0", False),
        (b"MOORINGS_OWNER=to\0", False),
        (b"MOORINGS_OWNER=\0tok\0", False),
        (b"", False),
    ],
)
def test_who_carries_the_mark(environ: bytes, ours: bool, table: Processes) -> None:
    table.add(10, 10, 500, environ=environ)
    table.add(11, 11, 500, environ=environ, state="Z")
    assert watch_main.targets({}, b"tok")[0] == ({10: 500} if ours else {})


def test_the_program_ends_what_was_told_and_nobody_else() -> None:
    """The whole program: strangers with a mark that is alike, and one that leads a told number with another start."""
    mark = "f" * 32
    ours = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(100)"],
                            start_new_session=True)  # fmt: skip
    alike = {MARK: mark + "f", "X" + MARK: mark, "A": f"{MARK}={mark}"}
    with stranger() as told, stranger(environment=alike) as marked:
        lines = f"+{ours.pid} {start_time(ours.pid)}\n+{told.pid} {(start_time(told.pid) or 0) - 1}\n"
        lines += "+4000001 5\n-4000001\n"
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(PROGRAM), mark],
            input=lines.encode(),
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert ours.wait(5) == -signal.SIGTERM
        assert procs.alive(told.pid)
        assert procs.alive(marked.pid)


RECYCLED = """
import os, signal, subprocess, sys, time
import msgspec
from moorings.transport import watch_main
from moorings.transport._posix import PosixChild
from moorings.transport.identity import read_stat, signal_confirmed

QUIET = [sys.executable, "-S", "-E", "-c", "import time; time.sleep(100)"]

def as_number(pid, **options):
    # The next process gets the number after the last one given away.
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    process = subprocess.Popen(QUIET, start_new_session=True, **options)
    assert process.pid == pid, (process.pid, pid)
    return process

old = subprocess.Popen(QUIET, start_new_session=True)
info = read_stat(old.pid)
watch = subprocess.Popen([sys.executable, "-I", "-S", watch_main.__file__, "f" * 32], stdin=subprocess.PIPE)
watch.stdin.write(b"+%d %d\\n" % (info.pid, info.start))
watch.stdin.flush()
old.kill()
old.wait()
while True:
    stranger = as_number(info.pid)
    if read_stat(stranger.pid).start != info.start:
        break
    stranger.kill()
    stranger.wait()
assert not signal_confirmed(info, signal.SIGKILL)
watch.stdin.close()
assert watch.wait(20) == 0
assert stranger.poll() is None, "the watch hit a stranger"
stranger.kill()
stranger.wait()

# The same for the host's own side: a server that somebody else reaped, so that nothing holds its number.
child = PosixChild([sys.executable, "-S", "-E", "-c", "pass"], dict(os.environ), None)
os.waitpid(child.pid, 0)
assert child.exited()
assert child.others() == [] and child.strays() == []
stranger = as_number(child.pid)
child.terminate()
child.kill()
assert child.others() == []
child.reap()
assert stranger.poll() is None, "the host hit a stranger"
print("well", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of process numbers is for root to make")
def test_f3_7_a_number_is_given_away_again() -> None:
    """F3.7, for real: in a namespace where the next number can be chosen, a stranger gets that of a dead server."""
    unshare = shutil.which("unshare")
    assert unshare is not None, "unshare (util-linux) is needed"
    done = subprocess.run(
        [unshare, "--pid", "--fork", "--mount-proc", "--kill-child", *child_command(RECYCLED)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


async def test_a_stranger_of_the_same_program_is_left_alone(tmp_path: Path) -> None:
    """The host ends its servers; a process that this program started itself stays."""
    log = FaultLog(tmp_path / "journal")
    spec: StdioServer = fault_server(journal=log.path, bounds=QUICK, **STUBBORN)
    with stranger(own_session=False) as own, stranger() as apart:
        async with AsyncHost({"a": spec}, state_dir=False) as host:
            await host.wait_ready(10)
        assert await procs.gone(log.pids(), 1.0)
        assert procs.alive(own.pid)
        assert procs.alive(apart.pid)


def test_the_log_is_quiet_when_all_is_well(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with AsyncHost({"a": fault_server()}, state_dir=False) as host:
            await host.wait_ready(10)

    with caplog.at_level(logging.WARNING, "moorings"):
        asyncio.run(main())
    assert caplog.records == []
