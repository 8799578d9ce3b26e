"""The end of a server is the end of all that came from it: whatever its descendants ignore, leave or hold open."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from moorings import AmbiguousDelivery, AsyncHost, StdioServer
from moorings.transport._posix import PosixChild, Syscalls
from moorings.transport.identity import MARK, owner_mark
from moorings.transport.stdio import StdioTransport
from moorings.transport.watch import watch
from tests.faults import procs
from tests.faults.script import FaultLog, fault_argv, fault_server
from tests.lifecycle.kit import QUICK, STUBBORN, bearing, stranger, until_async

TREE = '''
"""Stands before a server: makes a tree of processes, notes each pid, and then becomes the server."""
import json, os, signal, sys, time

NOTES = sys.argv[1]

def note():
    fd = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, b"%d\\n" % os.getpid())
    os.close(fd)

def sleep(seconds=100):
    signal.alarm(120)
    time.sleep(seconds)
    os._exit(0)

def deaf():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

def fork(work, *args):
    """A child that notes itself before its parent goes on."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        work(write, *args)
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    os.close(read)

def ready(write):
    note()
    os.write(write, b".")
    os.close(write)

'''


def tree(tmp_path: Path, work: str, **script: Any) -> StdioServer:
    """A server that first makes a tree of processes; their pids stand in ``notes``."""
    fields = {key: script.pop(key) for key in ("bounds",) if key in script}
    program = tmp_path / "tree.py"
    program.write_text(TREE + textwrap.dedent(work) + "\nos.execv(sys.argv[2], sys.argv[2:])\n")
    server = fault_argv(journal=tmp_path / "journal", **script)
    return StdioServer(
        command=sys.executable,
        args=("-S", "-E", str(program), str(tmp_path / "notes"), *server),
        **{"bounds": QUICK, **fields},
    )


def noted(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "notes").read_text().split()]


async def lived(tmp_path: Path, spec: StdioServer, count: int) -> Any:
    """Start it, see its tree stand, stop it; the record of the stop. Nothing of it is left."""
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        assert (await host.wait_ready(10)).all_ready
        assert (await host.call("a__echo", {"text": "x"})).text == "x"
        pids = noted(tmp_path)
        assert len(pids) == count
        assert all(procs.alive(pid) for pid in pids)
        server = host.status()["a"].pid
        assert server is not None
        mark = owner_mark(mark_of(server))
        report = await host.close()
    assert [pid for pid in noted(tmp_path) if procs.alive(pid)] == []
    assert procs.group_members(server) == []
    assert bearing(mark) == []
    assert report.survivors == ()
    return report.servers["a"]


def mark_of(pid: int) -> str:
    """The life that a process belongs to."""
    data = Path(f"/proc/{pid}/environ").read_bytes()
    return data.partition(f"{MARK}={owner_mark()}.".encode())[2].partition(b"\0")[0].decode()


# --- children of every kind


async def test_grandchildren_that_left_stdin_open(tmp_path: Path) -> None:
    """They hold all three pipes and wait for nothing; the server itself ends at the end of its stdin."""
    record = await lived(tmp_path, tree(tmp_path, """
        def child(write):
            ready(write)
            sleep()
        for _ in range(3):
            fork(child)
    """), 3)  # fmt: skip
    assert record.forced == ("TERM",)
    assert record.exit_code == 0


async def test_children_that_ignore_term(tmp_path: Path) -> None:
    record = await lived(tmp_path, tree(tmp_path, """
        def child(write):
            deaf()
            ready(write)
            sleep()
        for _ in range(3):
            fork(child)
    """), 3)  # fmt: skip
    assert record.forced == ("TERM", "KILL")


async def test_children_that_fork_while_they_are_being_ended(tmp_path: Path) -> None:
    """At TERM each makes two more, deaf ones."""
    record = await lived(tmp_path, tree(tmp_path, """
        def more(number, frame):
            for _ in range(2):
                if os.fork() == 0:
                    deaf()
                    note()
                    sleep()
        def child(write):
            signal.signal(signal.SIGTERM, more)
            ready(write)
            while True:
                signal.pause()
        for _ in range(3):
            fork(child)
    """), 3)  # fmt: skip
    assert record.forced == ("TERM", "KILL")
    assert len(noted(tmp_path)) > 3


async def test_a_family_that_forks_all_the_time(tmp_path: Path) -> None:
    """In the group: each lives for a moment and makes the next, deaf to TERM. The group is killed as one."""
    record = await lived(tmp_path, tree(tmp_path, """
        def family(write):
            deaf()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            ready(write)
            signal.alarm(60)
            while True:
                if os.fork() == 0:
                    time.sleep(0.01)
                    os._exit(0)
                time.sleep(0.002)
        fork(family)
    """), 1)  # fmt: skip
    assert record.forced == ("TERM", "KILL")


@pytest.mark.parametrize("deaf", [False, True])
async def test_detached_daemons(deaf: bool, tmp_path: Path) -> None:
    """setsid, and setsid after a double fork with all descriptors closed: found by the mark they carry."""
    record = await lived(tmp_path, tree(tmp_path, f"""
        def detach(write):
            os.setsid()
            {"deaf()" if deaf else ""}
            ready(write)
            for fd in range(0, 20):
                try:
                    os.close(fd)
                except OSError:
                    pass
            sleep()
        def daemon(write):
            os.setsid()
            if os.fork():
                os._exit(0)
            detach_again(write)
        def detach_again(write):
            {"deaf()" if deaf else ""}
            ready(write)
            for fd in range(0, 20):
                try:
                    os.close(fd)
                except OSError:
                    pass
            sleep()
        fork(detach)
        fork(daemon)
    """), 2)  # fmt: skip
    assert record.forced == (("TERM", "KILL") if deaf else ("TERM",))


@pytest.mark.parametrize("own_group", [False, True])
async def test_a_daemon_that_scrubbed_its_environment(own_group: bool, tmp_path: Path) -> None:
    """It carries no mark, but stands in the session of the server, be it in a group of its own (a job of a shell)."""
    record = await lived(tmp_path, tree(tmp_path, f"""
        def scrubbed(write):
            if {own_group}:
                os.setpgid(0, 0)
            deaf()
            os.set_inheritable(write, True)
            code = "import os, sys, time; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600); " \\
                   "os.write(fd, b'%d\\\\n' % os.getpid()); os.write(int(sys.argv[2]), b'.'); time.sleep(100)"
            os.execve(sys.executable, [sys.executable, "-S", "-E", "-c", code, NOTES, str(write)], {{}})
        fork(scrubbed)
    """), 1)  # fmt: skip
    assert record.forced == ("TERM", "KILL")


async def test_a_browser_of_ten_processes(tmp_path: Path) -> None:
    """As Chromium stands: a launcher that goes, a browser in its own session, zygotes, renderers and a crash handler in
    sessions and groups of their own, some of which put another text where their environment was."""
    record = await lived(tmp_path, tree(tmp_path, """
        def renderer(write, n):
            if n % 2:
                os.setpgid(0, 0)
            ready(write)
            sleep()
        def zygote(write):
            os.setsid()
            for n in range(3):
                fork(renderer, n)
            ready(write)
            sleep()
        def crash_handler(write):
            os.setsid()
            if os.fork():
                os._exit(0)
            deaf()
            ready(write)
            sleep()
        def browser(write):
            os.setsid()
            fork(zygote)
            fork(zygote)
            fork(crash_handler)
            ready(write)
            sleep()
        def launcher(write):
            fork(browser)
            os.write(write, b".")
            os._exit(0)
        fork(launcher)
    """), 10)  # fmt: skip
    assert record.forced == ("TERM", "KILL")


# --- wrappers


@pytest.mark.parametrize("wrapper", ["wait", "exit_first", "exit_later:0.3", "front"])
@pytest.mark.parametrize("stubborn", [False, True])
async def test_f3_1_wrappers(wrapper: str, stubborn: bool, tmp_path: Path) -> None:
    """F3.1, F3.11: what waits, leaves first or stands in front; a detached one needs the end of stdin, or its mark."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, wrapper=wrapper, bounds=QUICK, **(STUBBORN if stubborn else {}))
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        assert (await host.wait_ready(10)).all_ready
        await host.call("a__fork_child", {"ignore_term": stubborn})
        report = await host.close()
    assert [pid for pid in log.pids() if procs.alive(pid)] == []
    assert report.survivors == ()


@pytest.mark.parametrize("line", ['"$@"', '"$@" & wait', '"$@" <&0 & exit 0', 'trap "" TERM; "$@" <&0 & wait'],
                         ids=["waits", "no stdin", "leaves", "deaf"])  # fmt: skip
async def test_shell_scripts(line: str, tmp_path: Path) -> None:
    """As ``npx`` and start scripts do it. One gives the server no stdin: that start fails, and leaves nothing."""
    log = FaultLog(tmp_path / "journal")
    argv = fault_argv(journal=log.path, era="handshake", ignore_term=True)
    spec = StdioServer(command="/bin/sh", args=("-c", line, "sh", *argv), bounds=QUICK)
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        pid = host.status()["a"].pid
        await host.close()
    assert await procs.gone(log.pids(), 1.0)
    assert pid is None or procs.group_members(pid) == []


async def test_f3_1_a_grandchild_holds_stdout_after_the_server_died(tmp_path: Path) -> None:
    """F3.1: the call ends, the holder is ended, the next call gets a new process."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, bounds=QUICK)
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        child = int((await host.call("a__fork_child", {"hold_pipes": True, "ignore_term": True})).text)
        with pytest.raises(AmbiguousDelivery):
            await host.call("a__die", {"code": 3})
        assert (await host.call("a__echo", {"text": "again"})).text == "again"
        assert not procs.alive(child)
        assert len([pid for pid in log.pids() if procs.alive(pid)]) == 1


# --- what will not die, and whom it is not about


def unreachable(patch: pytest.MonkeyPatch, spared: set[int]) -> None:
    """By the means of a test: no signal of the host reaches these processes."""

    class Calls(Syscalls):
        @staticmethod
        def signal_one(info: Any, number: int) -> bool:
            return info.pid not in spared and Syscalls.signal_one(info, number)

    original = StdioTransport.__init__

    def with_calls(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self._spawn = lambda argv, environment, cwd: PosixChild(argv, environment, cwd, calls=Calls)

    patch.setattr(StdioTransport, "__init__", with_calls)


async def the_watch_is_through() -> None:
    """The former watches that end what was handed over to them are gone, and reaped."""
    await until_async(lambda: all(each.poll() is not None for each in watch._sweeping), 12.0)
    watch._sweeping.clear()


async def test_the_report_names_who_would_not_die(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, the stop ends in time, the watch ends it in our place; what the host starts meanwhile lives on."""
    spared: set[int] = set()
    unreachable(monkeypatch, spared)
    async with AsyncHost({"a": fault_server(bounds=QUICK)}, state_dir=False) as host:
        child = int((await host.call("a__fork_child", {"new_session": True, "ignore_term": True})).text)
        spared.add(child)
        report = await host.close()
    assert report.survivors == (child,)
    assert report.servers["a"].forced == ("TERM", "KILL")
    assert not report.clean
    assert report.elapsed < 0.2 + 0.2 + 2.0 + 0.5
    assert procs.alive(child)
    async with AsyncHost({"a": fault_server(bounds=QUICK)}, state_dir=False) as host:
        await host.wait_ready(10)
        daemon = int((await host.call("a__fork_child", {"new_session": True})).text)
        pid = host.status()["a"].pid
        assert await procs.gone(child, 8.0)
        await the_watch_is_through()
        assert procs.alive(daemon)
        assert (await host.call("a__echo", {"text": "x"})).text == "x"
        assert host.status()["a"].pid == pid


async def test_a_watch_that_is_stopped_cannot_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no lines; so it is ended before its pipe is, and the next servers are not its prey."""
    spared: set[int] = set()
    unreachable(monkeypatch, spared)
    async with AsyncHost({"a": fault_server(bounds=QUICK)}, state_dir=False) as host:
        child = int((await host.call("a__fork_child", {"new_session": True})).text)
        spared.add(child)
        former = watch.pid
        assert former is not None
        os.kill(former, signal.SIGSTOP)
        while watch._write(b"+1 1\n"):
            pass
        assert (await host.close()).survivors == (child,)
        assert procs.state(former) is None
        assert watch._sweeping == []
    assert procs.alive(child)
    os.kill(child, signal.SIGKILL)
    assert await procs.gone(child, 5)


async def test_strangers_with_marks_that_are_alike_are_left_alone(tmp_path: Path) -> None:
    """Same user, same program: a longer name, a longer mark, the mark of another host, of another life, in a value."""
    log = FaultLog(tmp_path / "journal")
    spec = fault_server(journal=log.path, bounds=QUICK, **STUBBORN)
    async with AsyncHost({"a": spec}, state_dir=False) as host:
        await host.wait_ready(10)
        (pid,) = log.pids()
        life = mark_of(pid)
        mark = owner_mark(life)
        alike = [
            {"X" + MARK: mark},
            {MARK + "S": mark},
            {MARK: mark + "0"},
            {MARK: mark[:-1] if len(life) > 1 else owner_mark()},
            {MARK: "0" * 32 + "." + life},
            {"A": f"{MARK}={mark}"},
            {MARK: ""},
        ]
        running = [stranger(environment=each) for each in alike]
        for each in running:
            each.__enter__()
        try:
            report = await host.close()
        finally:
            # Each looks whether it still lives.
            for each in running:
                each.__exit__(None, None, None)
    assert report.forced == {"a": ("TERM", "KILL")}


async def test_two_servers_of_one_host_know_their_own(tmp_path: Path) -> None:
    """The end of one is not the end of the other's daemons."""
    logs = {name: FaultLog(tmp_path / name) for name in "ab"}
    specs = {name: fault_server(journal=log.path, bounds=QUICK) for name, log in logs.items()}
    async with AsyncHost(specs, state_dir=False) as host:
        children = {
            name: int((await host.call(f"{name}__fork_child", {"new_session": True})).text) for name in "ab"
        }
        await host.disable("a")
        assert not procs.alive(children["a"])
        assert procs.alive(children["b"])
    assert not procs.alive(children["b"])


async def test_a_server_that_is_itself_a_host(tmp_path: Path) -> None:
    """Its servers carry its own mark, not ours; when it is killed, its watch ends them."""
    inner = tmp_path / "inner.py"
    inner.write_text(
        textwrap.dedent("""
        import json, os, sys, threading
        import moorings
        from moorings.transport.watch import watch
        from tests.faults.script import fault_server

        host = moorings.Host({"inner": fault_server(ignore_eof=True)}, state_dir=False)
        host.start()
        host.wait_ready(20)
        with open(sys.argv[1], "w") as file:
            json.dump([watch.pid, *(status.pid for status in host.status().values())], file)
        os.rename(sys.argv[1], sys.argv[1] + ".done")
        threading.Event().wait(60)
    """)
    )
    notes = tmp_path / "notes"
    spec = StdioServer(
        command=sys.executable,
        args=(str(inner), str(notes)),
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        bounds=QUICK,
    )
    done = Path(f"{notes}.done")
    async with AsyncHost({"a": spec}, state_dir=False):
        await until_async(done.exists, 20.0)
        pids = json.loads(done.read_text())
        assert all(procs.alive(pid) for pid in pids)
    assert await procs.gone(pids, 5.0)


@pytest.mark.parametrize("rounds", [5, pytest.param(200, marks=pytest.mark.soak)])
async def test_under_load(rounds: int, tmp_path: Path) -> None:
    """Ten servers at a time with daemons of every kind, ended side by side, again and again."""
    logs = [FaultLog(tmp_path / f"journal{n}") for n in range(10)]
    for turn in range(rounds):
        specs = {
            f"s{n}": fault_server(journal=log.path, bounds=QUICK, **(STUBBORN if n % 3 == 0 else {}))
            for n, log in enumerate(logs)
        }
        async with AsyncHost(specs, state_dir=False) as host:
            await asyncio.gather(
                *(
                    host.call(f"s{n}__fork_child", {"new_session": n % 2 == 0, "ignore_term": n % 4 == 0})
                    for n in range(10)
                )
            )
            report = await host.close()
        assert report.survivors == (), turn
        assert [pid for log in logs for pid in log.pids() if procs.alive(pid)] == []


async def test_a_popen_of_the_program_itself_is_not_reaped(tmp_path: Path) -> None:
    """Its exit code is its owner's, whatever is reaped beside it."""
    own = [
        subprocess.Popen([sys.executable, "-S", "-E", "-c", f"import sys; sys.exit({n})"], start_new_session=n % 2 == 0)
        for n in range(1, 7)
    ]  # fmt: skip
    assert await procs.gone([each.pid for each in own], 10)
    spec = tree(tmp_path, """
        def daemon(write):
            os.setsid()
            if os.fork():
                os._exit(0)
            ready(write)
            sleep()
        fork(daemon)
    """)  # fmt: skip
    await lived(tmp_path, spec, 1)
    assert [each.wait() for each in own] == [1, 2, 3, 4, 5, 6]
