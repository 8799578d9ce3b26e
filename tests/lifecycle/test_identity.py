"""Who is who: processes read from a /proc of our own making, the owner mark and its traps, signals and reaping by
confirmed identity."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from moorings.transport import _posix, descriptors, identity
from moorings.transport._posix import PosixChild, Syscalls
from moorings.transport.identity import (
    MARK,
    Snapshot,
    owner_mark,
    read_stat,
    reap_confirmed,
    signal_confirmed,
    start_time,
)
from tests.faults import procs
from tests.lifecycle.kit import bearing, stranger

pytestmark = pytest.mark.smoke


class Proc:
    """A /proc of our own making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()
        (folder / "meminfo").write_text("")

    def process(
        self,
        pid: int,
        *,
        name: str = "x",
        state: str = "S",
        parent: int = 1,
        group: int | None = None,
        session: int | None = None,
        start: int = 100,
        environ: bytes | None = b"",
    ) -> None:
        there = self.folder / str(pid)
        there.mkdir()
        group = pid if group is None else group
        session = group if session is None else session
        zeros = " 0" * 15
        (there / "stat").write_text(
            f"{pid} ({name}) {state} {parent} {group} {session}{zeros} {start} 0 0 0\n"
        )
        if environ is not None:
            (there / "environ").write_bytes(environ)

    def snapshot(self) -> Snapshot:
        taken = Snapshot.take(str(self.folder))
        assert taken is not None
        return taken


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def entry(mark: str, name: str = MARK) -> bytes:
    return f"{name}={mark}".encode()


# --- reading


def test_a_process_is_read_whatever_its_name_holds(proc: Proc) -> None:
    proc.process(10, name="a) R 1 99 (b", state="S", parent=3, group=7, session=8, start=12345)
    info = read_stat(10, str(proc.folder))
    assert info is not None
    assert (info.pid, info.state, info.parent, info.group, info.session, info.start) == (
        (10, "S", 3, 7, 8, 12345)
    )  # fmt: skip


def test_what_is_gone_or_cut_off_is_none(proc: Proc) -> None:
    (proc.folder / "11").mkdir()
    (proc.folder / "12").mkdir()
    (proc.folder / "12" / "stat").write_text("12 (x) S 1 12")
    assert read_stat(10, str(proc.folder)) is None
    assert read_stat(11, str(proc.folder)) is None
    assert read_stat(12, str(proc.folder)) is None
    assert proc.snapshot().processes == {}


def test_our_own_start_time_is_that_of_proc() -> None:
    assert start_time(os.getpid()) == procs.start_time(os.getpid())


def test_no_proc_is_no_snapshot(tmp_path: Path) -> None:
    assert Snapshot.take(str(tmp_path)) is None
    assert Snapshot.take(str(tmp_path / "missing")) is None


def test_a_session_has_all_its_groups_and_zombies(proc: Proc) -> None:
    proc.process(10)
    proc.process(11, group=10, session=10)
    proc.process(12, group=12, session=10)
    proc.process(13, group=10, session=10, state="Z")
    proc.process(20)
    assert {info.pid for info in proc.snapshot().session(10)} == {10, 11, 12, 13}


# --- the mark


@pytest.mark.parametrize(
    "environ",
    [
        entry("tok") + b"\0",
        entry("tok") + b"\0A=1\0",
        b"A=1\0" + entry("tok") + b"\0B=2\0",
        b"A=1\0" + entry("tok"),
        b"A=1\0" + entry("tok.7") + b"\0",
        entry("tok.7.1"),
        entry("tok", "X" + MARK) + b"\0" + entry("tok") + b"\0",
        entry("other", "X" + MARK) + b"\0A=" + entry("other") + b"\0" + entry("tok.3") + b"\0",
    ],
    ids=[
        "alone",
        "start",
        "middle",
        "no end",
        "a life",
        "a life, no end",
        "behind a longer name",
        "behind a value",
    ],
)
def test_the_mark_is_found(environ: bytes, proc: Proc) -> None:
    proc.process(10, environ=environ)
    assert [info.pid for info in proc.snapshot().marked("tok")] == [10]


@pytest.mark.parametrize(
    "environ",
    [
        b"",
        b"A=1\0",
        entry("tok", "X" + MARK) + b"\0",
        entry("tok", MARK + "S") + b"\0",
        b"A=" + entry("tok") + b"\0",
        b"A=1 " + entry("tok") + b"\0",
        entry("to") + b"\0",
        entry("token") + b"\0",
        entry("toktok.1") + b"\0",
        entry("") + b"\0",
        entry(" tok") + b"\0",
        MARK.encode() + b"\0tok\0",
        None,
    ],
)  # fmt: skip
def test_what_only_looks_like_the_mark_is_not(environ: bytes | None, proc: Proc) -> None:
    proc.process(10, environ=environ)
    assert proc.snapshot().marked("tok") == []


def test_a_life_is_told_from_one_whose_number_begins_alike(proc: Proc) -> None:
    """Life 1 is neither life 10 nor life 11; all are of the host."""
    for pid, life in ((10, "tok.1"), (11, "tok.10"), (12, "tok.11"), (13, "tok")):
        proc.process(pid, environ=entry(life) + b"\0")
    snapshot = proc.snapshot()
    assert [info.pid for info in snapshot.marked("tok.1")] == [10]
    assert sorted(info.pid for info in snapshot.marked("tok")) == [10, 11, 12, 13]


def test_the_dead_and_ourselves_carry_no_mark(proc: Proc) -> None:
    """A zombie has no environment to read, and nobody ends himself."""
    proc.process(10, state="Z", environ=entry("tok"))
    proc.process(os.getpid(), environ=entry("tok"))
    assert proc.snapshot().marked("tok") == []


def test_a_forked_child_has_a_mark_of_its_own() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, owner_mark().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        theirs = file.read()
    os.waitpid(pid, 0)
    assert len(theirs) == len(owner_mark()) == 32
    assert theirs != owner_mark()
    assert owner_mark("5") == f"{owner_mark()}.5"


# --- signals and reaping


@pytest.mark.parametrize("pidfds", [True, False])
def test_f3_7_another_start_time_is_another_process(pidfds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3.7: the number of a process that is gone names a stranger now; he is not signalled."""
    if not pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    with stranger() as process:
        info = read_stat(process.pid)
        assert info is not None
        for start in (info.start - 1, info.start + 1, 0):
            assert signal_confirmed(msgspec.structs.replace(info, start=start), signal.SIGKILL) is False
        assert procs.alive(process.pid)


@pytest.mark.parametrize("pidfds", [True, False])
def test_a_confirmed_process_gets_the_signal(pidfds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(100)"])
    info = read_stat(process.pid)
    assert info is not None
    assert signal_confirmed(info, signal.SIGKILL) is True
    assert process.wait(10) == -signal.SIGKILL
    assert signal_confirmed(info, signal.SIGKILL) is False


def test_the_process_goes_between_its_pidfd_and_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pidfd holds the old one; the number shows nobody, or a stranger."""
    with stranger() as process:
        info = read_stat(process.pid)
        assert info is not None
        for seen in (None, info.start + 1):
            monkeypatch.setattr(identity, "start_time", lambda pid, seen=seen: seen)
            assert signal_confirmed(info, signal.SIGKILL) is False


def test_only_the_confirmed_dead_is_reaped() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read(); sys.exit(3)"],
                               stdin=subprocess.PIPE)  # fmt: skip
    info = read_stat(process.pid)
    assert info is not None
    reap_confirmed(info)
    assert procs.alive(process.pid), "one that lives is not waited for"
    process.communicate()
    assert process.returncode == 3
    dead = subprocess.Popen([sys.executable, "-S", "-E", "-c", ""])
    info = read_stat(dead.pid)
    assert info is not None
    assert procs.wait_gone(dead.pid, 10)
    reap_confirmed(msgspec.structs.replace(info, start=info.start + 1))
    assert procs.state(dead.pid) == "Z"
    reap_confirmed(info)
    assert procs.state(dead.pid) is None
    assert dead.wait() == 0


# --- in the middle of an exec


def test_one_that_becomes_another_program_is_not_overlooked(proc: Proc) -> None:
    """For a moment it has no environment to show. It is neither ours nor nobody's: one has to look again."""
    zeros = b" 0" * 3
    for pid, flags, end, start in ((10, 0, 0, 100), (11, 0, 7, 100), (12, 4, 0, 100), (13, 0, 0, 99)):
        proc.process(pid)
        fields = b"%d (x) S 1 %d %d%s %d%s %d%s %d 0" % (
            pid, pid, pid, b" 0 0", flags, b" 0" * 12, start, b" 0" * 28, end,
        )  # fmt: skip
        assert len(fields.split()) == 52
        (proc.folder / str(pid) / "stat").write_bytes(fields + zeros)
    snapshot = proc.snapshot()
    assert snapshot.marked("tok") == []
    assert [info.pid for info in snapshot.unsettled(100)] == [10]
    assert sorted(info.pid for info in snapshot.unsettled(0)) == [10, 13]


def test_an_empty_environment_is_settled() -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(flush=True); import time; time.sleep(100)"],
        env={},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = Snapshot.take()
        assert taken is not None
        assert process.pid not in [info.pid for info in taken.unsettled(0)]
        process.kill()


@pytest.mark.parametrize("looks", [10_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_whatever_moment_one_looks_at_it(looks: int, tmp_path: Path) -> None:
    """A process that becomes a program for ever: each look finds its mark, or finds that it cannot tell."""
    script = tmp_path / "again.sh"
    script.write_text('exec /bin/sh "$0"\n')
    with subprocess.Popen(["/bin/sh", str(script)], env={MARK: "tok"}, start_new_session=True) as process:
        try:
            info = read_stat(process.pid)
            assert info is not None
            told, untold = 0, 0
            for _ in range(looks):
                snapshot = Snapshot({info.pid: info})
                if snapshot.marked("tok"):
                    told += 1
                else:
                    assert snapshot.unsettled(info.start) == [info]
                    untold += 1
        finally:
            process.kill()
    assert told > untold


async def test_a_stop_is_not_over_while_one_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Driven by hand: nothing has the mark, but somebody is in the middle of an exec. That counts, though not for long:
    one that hangs there is not waited for, as it may be anybody's."""
    answers = [True, True, False]

    class Calls(Syscalls):
        strays = staticmethod(lambda mark, pgid: [])
        unsettled = staticmethod(lambda start: answers.pop(0) if answers else True)

    child = PosixChild([sys.executable, "-S", "-E", "-c", ""], dict(os.environ), None, calls=Calls)
    try:
        assert child.strays() == [0]
        assert child.strays() == [0]
        assert child.strays() == []
        monkeypatch.setattr(_posix, "UNSETTLED", 0.0)
        child._unsettled_until = None
        assert child.strays() == []
    finally:
        assert procs.wait_gone(child.pid, 10)
        child.reap()
        for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
            descriptors.close(fd)


@pytest.mark.parametrize("rounds", [5, pytest.param(1000, marks=pytest.mark.soak)])
async def test_a_daemon_that_is_just_becoming_a_program_is_ended(rounds: int, tmp_path: Path) -> None:
    """Under load: servers end at once after they let a daemon go, which execs at that very moment."""
    code = (
        "import os\n"
        "for n in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        for fd in (0, 1, 2): os.close(fd)\n"
        "        os.execv('/bin/sleep', ['sleep', '50'])\n"
    )

    async def one() -> None:
        mark = identity.life_mark()
        child = PosixChild([sys.executable, "-S", "-E", "-c", code], {**os.environ, MARK: mark}, None)
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        child.watch(asyncio.get_running_loop(), ended.set_result)
        await asyncio.wait_for(ended, 10)
        while child.others() or child.strays():
            child.kill()
            await asyncio.sleep(0.002)
        child.reap()
        child.close()
        for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
            descriptors.close(fd)

    for _ in range(rounds):
        await asyncio.gather(*(one() for _ in range(8)))
    await asyncio.sleep(0.1)
    left = bearing(f"{MARK}={owner_mark()}.")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
