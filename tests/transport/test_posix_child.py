"""Child processes on POSIX systems, with the system calls put in the place of the real ones: who may be signalled, and
how an exit is seen where there is no pidfd, no /proc, or somebody else who reaps."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.transport import descriptors
from moorings.transport._posix import PosixChild, Syscalls, group_members
from tests.faults import procs
from tests.procs import adopt_orphans
from tests.transport.kit import fault_line

WAITS = [sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read(); sys.exit(4)"]


class Fakes(Syscalls):
    """Counts the signals and passes nothing on; each test gets a class of its own."""

    sent: list[tuple[int, int]]


def fakes(**calls: Any) -> type[Fakes]:
    kind: type[Fakes] = type("Case", (Fakes,), {name: _plain(call) for name, call in calls.items()})
    kind.sent = []
    if "killpg" not in calls:
        kind.killpg = staticmethod(lambda pgid, number: kind.sent.append((pgid, number)))
    return kind


def _plain(call: Any) -> Any:
    return staticmethod(call) if callable(call) else call


def raises(error: int) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise OSError(error, os.strerror(error))

    return call


class Children:
    """Makes children and sees that each is gone after the test, whatever the injected calls did not do."""

    def __init__(self) -> None:
        self.made: list[PosixChild] = []

    def __call__(self, calls: type[Syscalls] = Syscalls, argv: list[str] = WAITS) -> PosixChild:
        child = PosixChild(argv, dict(os.environ), None, calls=calls)
        self.made.append(child)
        return child

    def end(self) -> None:
        for child in self.made:
            for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
                descriptors.close(fd)
            if procs.alive(child.pid):
                os.kill(child.pid, signal.SIGKILL)
            procs.wait_gone(child.pid, 5)
            child._calls = Syscalls
            child.reap()
            child.close()


@pytest.fixture
def make() -> Iterator[Children]:
    children = Children()
    yield children
    children.end()


async def exit_of(child: PosixChild, *, close_stdin: bool = True) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    child.watch(loop, ended.set_result)
    if close_stdin:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, child.stdin_fd)  # the end of its stdin, the number stays taken
        os.close(null)
    return await asyncio.wait_for(ended, 10)


# --- how an exit is seen


@pytest.mark.parametrize(
    "pidfd_open",
    [None, raises(errno.ENOSYS), raises(errno.EMFILE), raises(errno.EPERM)],
    ids=["no such call", "old kernel", "no descriptor left", "sandbox"],
)
async def test_without_a_pidfd_a_thread_sees_the_exit(pidfd_open: Any, make: Children) -> None:
    """It sees it as the pidfd does: with the code, without reaping, and it is over by then."""
    before = threading.active_count()
    child = make(fakes(pidfd_open=pidfd_open))
    code = await exit_of(child)
    assert code == 4
    assert procs.state(child.pid) == "Z"
    assert threading.active_count() == before
    assert child.reap() == 4
    assert procs.state(child.pid) is None


async def test_with_a_pidfd_there_is_no_thread(make: Children) -> None:
    before = threading.active_count()
    child = make()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    child.watch(loop, ended.set_result)
    assert threading.active_count() == before
    child.kill()
    assert await asyncio.wait_for(ended, 10) == -signal.SIGKILL


def killpg_of_macos(pgid: int, number: int) -> None:
    if not procs.group_members(pgid):
        zombie = any(procs.stat(pid) and procs.state(pid) == "Z" for pid in procs.children())
        raise PermissionError if zombie else ProcessLookupError
    os.killpg(pgid, number)


@pytest.mark.parametrize("system", ["macOS", "Linux without /proc"])
async def test_the_whole_ladder_without_a_pidfd_and_without_proc(system: str) -> None:
    """A thread waits, and the group is asked by a signal 0, which each system answers in its own way."""
    mac = system == "macOS"
    calls = fakes(pidfd_open=None, members=lambda pgid: None, killpg=killpg_of_macos if mac else os.killpg)
    calls.zombies_take_signals = not mac

    def spawn(argv: Any, environment: Any, cwd: Any) -> PosixChild:
        return PosixChild(argv, environment, cwd, calls=calls)

    for script, forced in (({}, ()), ({"ignore_eof": True, "ignore_term": True}, ("TERM", "KILL"))):
        line = await fault_line(stop=(0.3, 0.2, 5.0), options={"spawn": spawn}, **script)
        record = await line.stop()
        assert (record.forced, record.survivors) == (forced, ())
    line = await fault_line(stop=(0.3, 0.2, 5.0), options={"spawn": spawn})
    grandchild = int(await line.call("fork_child", ignore_term=True))
    record = await line.stop()
    assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
    assert not procs.alive(grandchild)


# --- who is signalled


async def test_signals_go_to_the_group_that_the_child_leads(make: Children) -> None:
    calls = fakes()
    child = make(calls)
    child.terminate()
    child.kill()
    assert calls.sent == [(child.pid, signal.SIGTERM), (child.pid, signal.SIGKILL)]


async def test_f3_7_a_reaped_childs_number_is_never_signalled(make: Children) -> None:
    """F3.7: by then it may be a stranger's, whom even the list of members shows."""
    calls = fakes(members=lambda pgid: [pgid, 4711])
    child = make(calls)
    assert await exit_of(child) == 4
    child.terminate()
    assert calls.sent == [(child.pid, signal.SIGTERM)], "the zombie still keeps the number for us"
    assert child.reap() == 4
    child.terminate()
    child.kill()
    assert child.others() == []
    assert len(calls.sent) == 1


async def test_f3_7_our_own_group_is_never_signalled(make: Children) -> None:
    """F3.7: whatever number we think is that of the child."""
    calls = fakes()
    child = make(calls)
    calls.getpgrp = staticmethod(lambda: child.pid)
    child.terminate()
    child.kill()
    assert calls.sent == []


@pytest.mark.parametrize("error", [errno.ESRCH, errno.EPERM])
async def test_a_signal_that_finds_nobody_is_no_error(error: int, make: Children) -> None:
    """ESRCH: all are gone. EPERM: only a zombie is left (macOS), or the group belongs to another user by now."""
    child = make(fakes(killpg=raises(error), members=lambda pgid: None))
    child.terminate()
    child.kill()
    assert child.others() == []


@pytest.mark.parametrize("sees", ["pidfd", "thread"])
async def test_f3_7_a_child_that_somebody_else_reaped_is_let_go_of(sees: str, make: Children) -> None:
    """F3.7: a host that waits for any child took it: its code is unknown, its number free, nobody is signalled."""
    calls = fakes(**({} if sees == "pidfd" else {"pidfd_open": None}), waitid=raises(errno.ECHILD))
    child = make(calls)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    child.watch(loop, ended.set_result)
    if not ended.done():
        await asyncio.wait_for(ended, 10)
    child.terminate()
    child.kill()
    assert calls.sent == []
    assert child.others() == []
    assert child.reap() == 0


async def test_the_group_of_a_child_that_somebody_else_reaped_is_ours_while_it_has_members(
    make: Children,
) -> None:
    """The kernel gives no number away that a group still bears. Once the group was seen empty, it is over for good."""
    members = [[4711], [4711], [], [4712], [4712]]
    calls = fakes(waitid=raises(errno.ECHILD), members=lambda pgid: members.pop(0))
    child = make(calls)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    loop = asyncio.get_running_loop()
    child.watch(loop, lambda code: None)
    child._exit_seen()
    assert child.others() == [4711]
    child.terminate()
    assert calls.sent == [(child.pid, signal.SIGTERM)]
    child.kill()
    assert child.others() == []
    child.kill()
    assert calls.sent == [(child.pid, signal.SIGTERM)]
    assert members == [[4712], [4712]], "a stranger's group is not even looked at"


async def test_sigchld_is_ignored_by_the_host() -> None:
    """Daemons do that: the kernel reaps for them. The ladder goes to its end all the same, grandchildren included."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        line = await fault_line(stop=(0.2, 0.2, 5.0), wrapper="exit_first", ignore_eof=True, ignore_term=True)
        await line.heard.until(lambda: line.heard.leaders)
        grandchild = int(await line.call("fork_child", ignore_term=True))
        record = await line.stop()
        assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
        assert await procs.gone(grandchild, 5.0)
        line = await fault_line()
        line.tool("die", code=3)
        how = await line.heard.end()
        assert how.reason == "exited"
        record = await line.stop()
        assert (record.forced, record.survivors) == ((), ())
    finally:
        signal.signal(signal.SIGCHLD, before)


async def test_a_host_that_waits_for_any_child_costs_no_server_its_end() -> None:
    """A thread of the host takes each exit in our place."""
    line = await fault_line()
    pid = line.transport.pid
    assert pid is not None
    taker = threading.Thread(target=os.waitpid, args=(pid, 0))
    taker.start()
    line.tool("die", code=3)
    assert (await line.heard.end()).reason == "exited"
    taker.join()
    record = await line.stop()
    assert (record.forced, record.survivors) == ((), ())


# --- the rest of the group


def test_members_of_a_group_are_read_from_proc(tmp_path: Path) -> None:
    """Zombies are dead, names may hold anything, and who ends while we look is no error."""

    def process(pid: int, name: str, state: str, pgid: int) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(
            f"{pid} ({name}) {state} 1 {pgid} {pgid} 0 -1 4194304" + " 0" * 43
        )

    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("")
    process(10, "sh", "S", 10)
    process(11, "a) R 1 99 (b", "R", 10)
    process(12, "gone", "Z", 10)
    process(13, "dead", "X", 10)
    process(14, "other", "S", 14)
    (tmp_path / "15").mkdir()
    assert sorted(group_members(10, proc=str(tmp_path)) or []) == [10, 11]
    assert group_members(99, proc=str(tmp_path)) == []


def test_no_proc_is_not_an_empty_group(tmp_path: Path) -> None:
    """None is "ask in another way", [] is "all are gone"; a folder of that name that is none does not count."""
    assert group_members(1, proc=str(tmp_path / "missing")) is None
    assert group_members(1, proc=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("members", "found"),
    [(lambda g: [g], []), (lambda g: [g, 5], [5]), (lambda g: [], []), (lambda g: [5, 6], [5, 6])],
)
async def test_the_leader_is_not_among_the_others(members: Any, found: list[int], make: Children) -> None:
    child = make(fakes(members=members))
    assert child.others() == found


async def test_without_proc_a_group_that_takes_a_signal_has_somebody_left(make: Children) -> None:
    """As on macOS. While the leader lives it is the leader, so nothing is known of others."""
    calls = fakes(members=lambda pgid: None, zombies_take_signals=False)
    child = make(calls)
    assert child.others() == []
    assert await exit_of(child) == 4
    assert child.others() == [child.pid]
    calls.killpg = staticmethod(raises(errno.EPERM))
    assert child.others() == []


@pytest.mark.parametrize("wrapper", [None, "exit_first"])
async def test_the_dead_of_the_group_that_we_inherit_are_reaped(wrapper: str | None) -> None:
    """As process 1 of a container does: a grandchild whose parents are gone is ours, and so is its zombie."""
    assert adopt_orphans()
    line = await fault_line(stop=(0.1, 0.1, 5.0), wrapper=wrapper)
    grandchildren = [int(await line.call("fork_child", ignore_term=n == 1)) for n in range(3)]
    assert (await line.stop()).survivors == ()
    assert [procs.state(pid) for pid in grandchildren] == [None, None, None]
    assert procs.zombies() == []


# --- made and unmade


def test_a_spawn_that_fails_leaves_no_descriptor() -> None:
    before = procs.descriptors()
    for argv in (["/nowhere"], [str(Path(__file__))], ["nul\0"]):
        with pytest.raises(OSError):
            PosixChild(argv, dict(os.environ), None)
    assert procs.descriptors() == before


async def test_close_and_reap_may_be_done_in_any_order_and_twice(make: Children) -> None:
    child = make()
    child.watch(asyncio.get_running_loop(), lambda code: None)
    assert child.reap() is None
    child.close()
    child.close()
    assert child.reap() is None
    child.kill()
    assert procs.wait_gone(child.pid, 5)
    assert child.reap() == -signal.SIGKILL
    assert child.reap() == -signal.SIGKILL
    child.close()


async def test_the_exit_is_told_once(make: Children) -> None:
    told: list[int] = []
    child = make()
    child.watch(asyncio.get_running_loop(), told.append)
    child.kill()
    assert await procs.gone(child.pid, 5)
    await asyncio.sleep(0)
    child._exit_seen()
    child._exit_seen()
    assert told == [-signal.SIGKILL]
