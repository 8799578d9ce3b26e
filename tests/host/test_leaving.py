"""How a process is left or split: Ctrl-C in a blocking call, fork, and an interpreter that ends without a close.

Each case is a short program in a Python of its own, looked at from outside: what it prints, what it leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorings import Host
from tests.faults.procs import alive, wait_gone
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import child_command, child_environment, loop_threads, run_program
from tests.strike import struck_at

HEAD = """
import json, os, signal, sys, threading, time, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.12 warns of every fork with threads
from moorings import *
from tests.faults.script import FaultLog, fault_server
from tests.host.kit import SOON, STUBBORN, Events
"""

# --- Ctrl-C -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(text: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A program that runs, in a process group of its own as under a terminal."""
    with subprocess.Popen(
        child_command(HEAD + text, *args),
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        # A program that hangs says where: it has the fault handler.
        watchdog = threading.Timer(30, process.send_signal, (signal.SIGABRT,))
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            watchdog.join()
            if process.poll() is None:
                process.kill()


INTERRUPTED = """
what, journal = sys.argv[1:]
log = FaultLog(journal)
quiet = {} if what in ("call", "run", "result") else {"on_initialize": "silent", "lazy": what != "wait_ready"}
script = [quiet, {}] if quiet else [{}]
lazy = quiet.pop("lazy", False)
host = Host({"a": fault_server(journal=journal, by_start=script, lazy=lazy, bounds=SOON)}, state_dir=False)
with host:
    try:
        if what == "call":
            host.call("a__never")
        elif what == "result":
            handle = host.submit("a__never")
            handle.result()
        elif what == "run":
            with host.run(timeout=60):
                host.call("a__never")
        elif what == "connecting":
            host.call("a__echo")
        elif what == "wait_ready":
            host.wait_ready()
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
    if what in ("call", "run"):
        log.wait_for("cancelled")
    if what == "result":
        handle.cancel()
        log.wait_for("cancelled")
    if what == "wait_ready":
        host.restart("a")
    print(host.call("a__echo", {"text": "usable"}).text, flush=True)
    print(len(log.entries("signal")), flush=True)
print("closed", flush=True)
"""


@pytest.mark.parametrize(
    ("what", "method"),
    [
        ("call", "tools/call"),
        ("result", "tools/call"),
        ("run", "tools/call"),
        ("connecting", "initialize"),
        ("wait_ready", "initialize"),
    ],
)
def test_ctrl_c_in_a_blocking_call(what: str, method: str, tmp_path: Path) -> None:
    """KeyboardInterrupt within 0.5 s, the server told, the host usable; the servers get no signal (F2.8, F3.8)."""
    log = FaultLog(tmp_path / "journal")
    with program(INTERRUPTED, what, log.path) as process:
        log.wait_for("received", method=method)
        assert process.stdout is not None
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        said = process.stdout.readline().split()
        assert said[0] == "interrupted"
        assert float(said[1]) - began < 0.5
        # Not by ``communicate``, which knows nothing of what this reader has read ahead; the watchdog is the bound.
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        process.wait(20)
    assert out.splitlines() == ["usable", "0", "closed"]
    assert err == ""
    assert process.returncode == 0
    assert not any(alive(pid) for pid in log.pids())


UNCAUGHT = """
log = FaultLog(sys.argv[1])
with Host({"a": fault_server(journal=sys.argv[1])}, state_dir=False) as host:
    host.call("a__never")
"""


def test_ctrl_c_that_nobody_catches(tmp_path: Path) -> None:
    """The block is left, the host closed; what is printed is the program's own traceback and nothing else."""
    log = FaultLog(tmp_path / "journal")
    with program(UNCAUGHT, log.path) as process:
        log.wait_for("received", tool="never")
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert err.startswith("Traceback (most recent call last):")
    assert err.count("Traceback") == 1
    assert err.strip().endswith("KeyboardInterrupt")
    assert not any(alive(pid) for pid in log.pids())
    assert len(log.entries("cancelled")) == 1


CLOSING = """
log = FaultLog(sys.argv[1])
host = Host({"a": fault_server(journal=sys.argv[1], bounds=Bounds(stop_eof=1.5, stop_term=0.2), **STUBBORN)},
            state_dir=False)
host.start()
host.wait_ready(10)
try:
    host.close()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(host.close().forced, flush=True)
"""


def test_ctrl_c_in_a_close(tmp_path: Path) -> None:
    """The caller is free, the close goes on, and the next one gets its report."""
    log = FaultLog(tmp_path / "journal")
    with program(CLOSING, log.path) as process:
        log.wait_for("eof")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert out.splitlines() == ["interrupted", "{'a': ('TERM', 'KILL')}"]
    assert err == ""
    assert not any(alive(pid) for pid in log.pids())


def test_ctrl_c_at_any_step_of_a_close() -> None:
    """By hand: whatever step it strikes, the next close comes to its end."""
    for step in itertools.count():
        host = Host({}, state_dir=False)
        host.start()
        struck = struck_at(step, host.close)
        again = threading.Thread(target=host.close, daemon=True)
        again.start()
        again.join(20)
        assert not again.is_alive(), f"the close hangs after it was struck at step {step}"
        if not struck:
            break
    assert step > 20
    assert not loop_threads()


def test_ctrl_c_while_the_loop_thread_starts() -> None:
    """By hand: it strikes in the wait for the loop. The thread comes up; the next start finds it, a close ends it."""
    host = Host({}, state_dir=False)
    make = host._make_thread

    def interrupted() -> object:
        thread = make()
        running = thread._running

        class Strike:
            struck = False

            def wait(self, timeout: float | None = None) -> bool:
                if not self.struck:
                    self.struck = True
                    raise KeyboardInterrupt
                return running.wait(timeout)

            set, is_set = running.set, running.is_set

        thread._running = Strike()  # type: ignore[assignment]
        return thread

    host._make_thread = interrupted  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        host.start()
    host.start()
    assert len(loop_threads()) == 1
    assert host.status() == {}
    host.close()
    assert loop_threads() == []


# --- fork ---------------------------------------------------------------------------------------------------------

FORKED = """
how, journal, child_journal = sys.argv[1:]
host = Host({"a": fault_server(journal=journal)}, state_dir=False)
host.start()
host.wait_ready(10)
handle = host.server("a")
mine = json.loads(host.call("a__pid").text)["pid"]
closed_read, closed_write = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(closed_write)
    for use in (lambda: host.call("a__echo"), host.status, lambda: handle.call("echo")):
        try:
            use()
        except HostClosedError as error:
            assert "not started" in str(error), error
        else:
            raise SystemExit("the child has the parent's host")
    if how == "nothing":
        sys.exit(0)
    if how == "_exit":
        os._exit(0)
    if how == "outlives":
        os.read(closed_read, 1)  # until the parent has closed its host and its end
        sys.exit(0)
    host.start()
    theirs = json.loads(host.call("a__pid").text)
    assert theirs["pid"] != mine and theirs["ppid"] == os.getpid(), theirs
    assert json.loads(handle.call("pid").text) == theirs
    if how == "close":
        assert host.close().clean
    sys.exit(0)
os.close(closed_read)
if how != "outlives":
    assert os.waitpid(pid, 0)[1] == 0
assert json.loads(host.call("a__pid").text)["pid"] == mine
assert int(handle.call("counter").text) == 3
began = time.monotonic()
report = host.close()
print(report.clean, report.servers["a"].exit_code, time.monotonic() - began < 1.5)
if how == "outlives":
    os.close(closed_write)
    assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("how", ["nothing", "_exit", "close", "no close", "outlives"])
def test_after_a_fork_the_child_has_a_fresh_host_and_the_parent_its_own(how: str, tmp_path: Path) -> None:
    """F2.10: the child starts its own servers; its exit, and its mere life, touch nothing of the parent."""
    ended = run_program(HEAD + FORKED, how, tmp_path / "journal", tmp_path / "child")
    assert (ended.stdout, ended.stderr, ended.returncode) == ("True 0 True\n", "", 0)
    log = FaultLog(tmp_path / "journal")
    assert len(log.starts()) == (2 if how in ("close", "no close") else 1)
    assert wait_gone(log.pids(), 5)


FORKED_UNDER_LOAD = """
rounds = int(sys.argv[1])
# Without a journal: each new server reads what is in it, and four threads at full speed fill it with 100,000 lines.
host = Host({"a": fault_server()}, state_dir=False)
with host:
    host.wait_ready(10)
    go_on = True
    failed = []

    def calls():
        while go_on:
            try:
                host.call("a__echo", {"text": "x"})
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(rounds):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60)
            host.start()
            assert host.call("a__echo", {"text": "child"}).text == "child"
            host.close()
            os._exit(0)
        if (ended := os.waitpid(pid, 0)[1]) != 0:
            failed.append(f"the child ended with {ended}")
            break
    go_on = False
    for thread in threads:
        thread.join()
    print(failed)
"""


@pytest.mark.parametrize("rounds", [10, pytest.param(300, marks=pytest.mark.soak)])
def test_forks_under_load(rounds: int) -> None:
    """F2.10: calls go on in four threads of the parent meanwhile, and none of them fails."""
    ended = run_program(HEAD + FORKED_UNDER_LOAD, rounds, timeout=rounds * 3 + 75)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("[]\n", "", 0)


# --- an interpreter that ends without a close ---------------------------------------------------------------------

LEFT = """
how, what, journal = sys.argv[1:]
log = FaultLog(journal)
keys = {
    "good": {},
    "stubborn": {"bounds": SOON, **STUBBORN},
    "parked": {"on_initialize": "exit:3"},
    "connecting": {"on_initialize": "silent", "bounds": SOON, **STUBBORN},
    "in flight": {"bounds": SOON},
}[what]

def work():
    host = Host({"a": fault_server(journal=journal, **keys)}, state_dir=False)
    host.start()
    if what == "connecting":
        log.wait_for("received", method="initialize")
    else:
        host.wait_ready(10)
    if what == "in flight":
        def call():
            try:
                host.call("a__never")
            except CallError:
                pass
        threading.Thread(target=call, daemon=True).start()
        log.wait_for("received", tool="never")
    return host

if how == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
elif how == "dropped":
    work()
else:
    host = work()
if how == "exception":
    raise LookupError("the program's own")
if how == "sys.exit":
    sys.exit(7)
"""


@pytest.mark.parametrize("what", ["good", "stubborn", "parked", "connecting", "in flight"])
@pytest.mark.parametrize("how", ["return", "exception", "sys.exit", "thread", "dropped"])
def test_an_interpreter_that_ends_without_a_close(how: str, what: str, tmp_path: Path) -> None:
    """F2.9, F2.2, F2.6: no process is left, the end takes no longer than the stop, and nothing of ours is printed."""
    log = FaultLog(tmp_path / "journal")
    began = time.monotonic()
    ended = run_program(HEAD + LEFT, how, what, log.path)
    assert time.monotonic() - began < 15.0  # two Pythons start and end in it, on a machine that may be busy
    assert not any(alive(pid) for pid in log.pids())
    assert ended.returncode == {"exception": 1, "sys.exit": 7}.get(how, 0)
    assert ended.stdout == ""
    if how == "exception":
        assert re.fullmatch(
            r"Traceback \(most recent call last\):\n(  .*\n)+LookupError: the program's own\n", ended.stderr
        )
    else:
        assert ended.stderr == ""


LEFT_ASYNC = """
import asyncio

how, what, journal = sys.argv[1:]
keys = {"good": {}, "stubborn": {"bounds": SOON, **STUBBORN}, "connecting": {"on_initialize": "silent"}}[what]
log = FaultLog(journal)

async def main():
    host = AsyncHost({"a": fault_server(journal=journal, **keys)}, state_dir=False)
    await host.start()
    if what == "connecting":
        await log.seen("received", method="initialize")
    else:
        await host.wait_ready(10)
    if how == "exception":
        raise LookupError("the program's own")
    if how == "sys.exit":
        sys.exit(7)

asyncio.run(main())
"""


@pytest.mark.parametrize("what", ["good", "stubborn", "connecting"])
@pytest.mark.parametrize("how", ["return", "exception", "sys.exit"])
def test_an_async_program_that_ends_without_a_close(how: str, what: str, tmp_path: Path) -> None:
    """F2.6: ``asyncio.run`` cancels what it finds; the owners finish their work all the same."""
    log = FaultLog(tmp_path / "journal")
    ended = run_program(HEAD + LEFT_ASYNC, how, what, log.path)
    assert not any(alive(pid) for pid in log.pids())
    assert ended.returncode == {"exception": 1, "sys.exit": 7}.get(how, 0)
    assert ended.stderr.count("Traceback") == (1 if how == "exception" else 0), ended.stderr
    if how != "exception":
        assert ended.stderr == ""


def test_nothing_of_a_host_can_be_inherited() -> None:
    """A program that the user starts himself gets no descriptor of a host."""

    def inheritable() -> set[int]:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
        found = set()
        for number in numbers:
            with contextlib.suppress(OSError):
                if os.get_inheritable(number):
                    found.add(number)
        return found

    before = inheritable()
    with Host({"a": fault_server()}, state_dir=False) as host:
        host.wait_ready(10)
        assert inheritable() == before
