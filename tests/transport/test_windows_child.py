"""The decisions of a child process on Windows, with the kernel put in its place: a scripted one that notes each call,
and one that stands on this system's processes, so that the whole transport runs over it. No Windows was here."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from moorings.transport import _windows
from moorings.transport._posix import group_members
from moorings.transport._windows import KILLED, WindowsChild, batch_line
from tests.faults import procs
from tests.transport.kit import Line, fault_line


class ScriptedKernel:
    """Processes and jobs in memory, every call noted; ``fails`` names the call that raises."""

    def __init__(self, *, console: bool = True, fails: str = "") -> None:
        self.console = console
        self.fails = fails
        self.calls: list[tuple[Any, ...]] = []
        self.handles: dict[int, str] = {}
        self.fds: set[int] = set()
        self.in_job: list[int] = []
        """Living processes of the job, by pid."""
        self.suspended = False
        self.command: Sequence[str] | str = ""
        self.flags = 0
        self.code: int | None = None
        self._numbers = itertools.count(100)
        self._changed = threading.Condition()
        self._event_set = False

    def _do(self, name: str, *what: Any) -> None:
        self.calls.append((name, *what))
        if name == self.fails:
            raise OSError(errno.EACCES, f"{name} is refused")

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]

    def _handle(self, kind: str) -> int:
        number = next(self._numbers)
        self.handles[number] = kind
        return number

    def process_exits(self, code: int) -> None:
        """The leader ends; others of its job go on."""
        with self._changed:
            self.code = code
            self.in_job = [pid for pid in self.in_job if pid != 77]
            self._changed.notify_all()

    # Syscalls

    def shell(self) -> str:
        return r"C:\Windows\System32\cmd.exe"

    def has_console(self) -> bool:
        return self.console

    def pipe(self) -> tuple[int, int]:
        self._do("pipe")
        ends = next(self._numbers), next(self._numbers)
        self.fds.update(ends)
        return ends

    def close_fd(self, fd: int) -> None:
        self.fds.remove(fd)

    def create_job(self) -> int:
        self._do("create_job")
        return self._handle("job")

    def create_event(self) -> int:
        self._do("create_event")
        return self._handle("event")

    def spawn(
        self,
        command: Sequence[str] | str,
        ends: tuple[int, int, int],
        environment: Mapping[str, str],
        cwd: str | None,
        flags: int,
    ) -> tuple[int, int, Any]:
        self._do("spawn", ends)
        self.command, self.flags = command, flags
        self.suspended = bool(flags & _windows.CREATE_SUSPENDED)
        process = self._handle("process")
        return 77, process, process

    def assign(self, job: int, process: int) -> None:
        self._do("assign", self.handles[job], self.handles[process])
        assert self.suspended, "it could have started a child outside the job by now"
        self.in_job.append(77)

    def resume(self, process: int) -> None:
        self._do("resume", self.handles[process])
        self.suspended = False

    def break_group(self, pid: int) -> None:
        self._do("break_group", pid)

    def terminate_process(self, process: int, code: int) -> None:
        self._do("terminate_process", self.handles[process])
        self.process_exits(code)

    def terminate_job(self, job: int, code: int) -> None:
        self._do("terminate_job", self.handles[job])
        self._end_job(code)

    def _end_job(self, code: int) -> None:
        if 77 in self.in_job:
            self.process_exits(code)
        self.in_job.clear()

    def job_pids(self, job: int) -> list[int]:
        assert self.handles[job] == "job"
        self._do("job_pids")
        return list(self.in_job)

    def set_event(self, event: int) -> None:
        assert self.handles[event] == "event"
        with self._changed:
            self._event_set = True
            self._changed.notify_all()

    def wait(self, process: int, event: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.code is not None or self._event_set)
            return self.code is not None

    def exit_code(self, process: int) -> int | None:
        assert self.handles[process] == "process"
        return self.code

    def close(self, handle: int) -> None:
        kind = self.handles.pop(handle)
        self.calls.append(("close", kind))
        if kind == "job":
            self._end_job(KILLED)  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE

    def release(self, keeper: Any, code: int) -> None:
        self.calls.append(("release", code))
        assert self.handles.pop(keeper) == "process"


def child_of(kernel: ScriptedKernel, argv: Sequence[str] = ("server.exe",)) -> WindowsChild:
    return WindowsChild(argv, {"PATH": "x"}, None, calls=kernel, close_fd=kernel.close_fd)


async def watched(child: WindowsChild) -> asyncio.Future[int]:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    child.watch(loop, ended.set_result)
    return ended


# --- the spawn


def test_the_process_is_in_its_job_before_it_runs() -> None:
    """Suspended, assigned, resumed, in this order: no child of it can escape."""
    kernel = ScriptedKernel()
    child = child_of(kernel)
    names = [call[0] for call in kernel.calls]
    assert names == [*["pipe"] * 3, "create_job", "create_event", "spawn", "assign", "resume"]
    assert kernel.named("assign") == [("job", "process")]
    assert kernel.flags & _windows.CREATE_SUSPENDED and kernel.flags & _windows.CREATE_NEW_PROCESS_GROUP
    assert child.pid == 77
    assert kernel.fds == {child.stdin_fd, child.stdout_fd, child.stderr_fd}
    child.kill()
    assert child.reap() == KILLED
    assert kernel.handles == {}


@pytest.mark.parametrize("console", [True, False])
def test_no_window_opens_where_the_host_has_no_console(console: bool) -> None:
    kernel = ScriptedKernel(console=console)
    child = child_of(kernel)
    assert bool(kernel.flags & _windows.CREATE_NO_WINDOW) is not console
    child.kill()
    child.reap()


@pytest.mark.parametrize("call", ["pipe", "create_job", "create_event", "spawn", "assign", "resume"])
def test_a_spawn_that_fails_at_any_step_leaves_nothing(call: str) -> None:
    """No process (not even a suspended one), no handle, no descriptor; the error is an OSError."""
    kernel = ScriptedKernel(fails=call)
    with pytest.raises(OSError, match=f"{call} is refused"):
        child_of(kernel)
    assert kernel.handles == {}
    assert kernel.fds == set()
    assert bool(kernel.named("terminate_process")) is (call in ("assign", "resume"))


def test_what_popen_refuses_is_an_oserror() -> None:
    class Refuses(ScriptedKernel):
        def spawn(self, *args: Any) -> Any:
            raise ValueError("embedded null character")

    kernel = Refuses()
    with pytest.raises(OSError, match="null"):
        child_of(kernel)
    assert (kernel.handles, kernel.fds) == ({}, set())


# --- the end


async def test_f3_10_the_root_exits_first_and_its_child_lives() -> None:
    """F3.10: the job knows the child, and ends it; also by its last handle alone."""
    kernel = ScriptedKernel()
    child = child_of(kernel)
    ended = await watched(child)
    kernel.in_job.append(88)
    kernel.process_exits(0)
    assert await asyncio.wait_for(ended, 5) == 0
    assert child.others() == [88]
    child.terminate()
    assert kernel.named("break_group") == [], "its number is that of no console group any more"
    child.kill()
    assert kernel.named("terminate_job") == [("job",)]
    assert child.others() == []
    assert child.reap() == 0
    assert kernel.handles == {}


async def test_f3_10_closing_the_job_ends_whom_nothing_else_ended() -> None:
    """F3.10: ``TerminateJobObject`` fails, and still the child does not outlive us."""
    kernel = ScriptedKernel(fails="terminate_job")
    child = child_of(kernel)
    ended = await watched(child)
    kernel.in_job.append(88)
    kernel.process_exits(3)
    assert await asyncio.wait_for(ended, 5) == 3
    child.kill()
    assert child.others() == [88]
    assert child.reap() == 3
    assert kernel.in_job == []
    assert kernel.handles == {}


async def test_the_break_goes_to_the_group_while_its_leader_lives() -> None:
    kernel = ScriptedKernel()
    child = child_of(kernel)
    ended = await watched(child)
    child.terminate()
    assert kernel.named("break_group") == [(77,)]
    assert not ended.done()
    child.kill()
    assert await asyncio.wait_for(ended, 5) == KILLED
    child.terminate()
    child.reap()
    child.terminate()
    child.kill()
    assert len(kernel.named("break_group")) == 1
    assert len(kernel.named("terminate_job")) == 1


@pytest.mark.parametrize("kernel", [ScriptedKernel(console=False), ScriptedKernel(fails="break_group")])
def test_without_a_console_in_common_only_the_job_can_end_it(kernel: ScriptedKernel) -> None:
    child = child_of(kernel)
    child.terminate()
    assert bool(kernel.named("break_group")) is kernel.console
    assert child.others() == []
    child.kill()
    assert child.reap() == KILLED


async def test_the_exit_is_told_once_and_the_watch_ends_with_it() -> None:
    before = threading.active_count()
    kernel = ScriptedKernel()
    child = child_of(kernel)
    ended = await watched(child)
    assert threading.active_count() == before + 1
    kernel.process_exits(5)
    assert await asyncio.wait_for(ended, 5) == 5
    assert threading.active_count() == before
    assert child.reap() == 5 == child.reap()
    child.close()
    child.close()
    assert kernel.handles == {}


async def test_the_watch_of_a_process_that_would_not_die_ends_with_close() -> None:
    """The thread waits for two things, so it is never left behind."""
    before = threading.active_count()
    kernel = ScriptedKernel(fails="terminate_job")
    child = child_of(kernel)
    ended = await watched(child)
    child.kill()
    assert child.reap() is None
    kernel.process_exits = lambda code: None  # type: ignore[method-assign]
    child.close()
    child.close()
    assert threading.active_count() == before
    assert not ended.done()
    assert child.others() == []
    child.kill()
    assert len(kernel.named("terminate_job")) == 1
    assert set(kernel.handles.values()) == {"process"}


async def test_a_job_that_cannot_be_asked_counts_as_empty() -> None:
    kernel = ScriptedKernel(fails="job_pids")
    child = child_of(kernel)
    assert child.others() == []
    child.kill()
    child.reap()


def test_a_loop_that_was_closed_costs_no_noise() -> None:
    loop = asyncio.new_event_loop()
    kernel = ScriptedKernel()
    child = child_of(kernel)
    child.watch(loop, lambda code: None)
    loop.close()
    kernel.process_exits(0)
    child.close()
    assert child.reap() == 0


def test_here_there_are_no_jobs() -> None:
    with pytest.raises(OSError, match="Job Objects"):
        WindowsChild(["x"], {}, None)


# --- batch files


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([r"C:\n\npx.cmd", "-y", "pkg@1.2"], r'"C:\n\npx.cmd" -y pkg@1.2'),
        ([r"C:\a b\npx.CMD", ""], r'"C:\a b\npx.CMD" ""'),
        (["x.bat", "a b", "a&b", "a|b>c<d^e", "(a)", "a;b,c=d", "!x!"],
         '"x.bat" "a b" "a&b" "a|b>c<d^e" "(a)" "a;b,c=d" "!x!"'),
        (["x.cmd", "%PATH%"], '"x.cmd" "%%cd:~,%PATH%%cd:~,%"'),
        (["x.cmd", 'say "hi" & del x'], '"x.cmd" "say ""hi"" & del x"'),
        (["x.cmd", 'a\\"b'], '"x.cmd" "a\\\\""b"'),
        (["x.cmd", "C:\\dir\\"], '"x.cmd" "C:\\dir\\\\"'),
        (["x.cmd", "ü"], '"x.cmd" "ü"'),
    ],
)  # fmt: skip
def test_f14_4_no_argument_of_a_batch_file_becomes_a_command(words: list[str], line: str) -> None:
    """F14.4: ``npx`` is ``npx.cmd`` on Windows, and cmd.exe splits lines by rules of its own."""
    assert batch_line(words, r"C:\cmd.exe") == rf'"C:\cmd.exe" /e:ON /v:OFF /d /c "{line}"'


@pytest.mark.parametrize("word", ["a\nb", "a\rb", "a\0b"])
def test_f14_4_what_cmd_cannot_take_whole_is_refused(word: str) -> None:
    """F14.4: and nothing was made by then."""
    kernel = ScriptedKernel()
    with pytest.raises(OSError, match="line break"):
        child_of(kernel, ["x.cmd", word])
    assert kernel.calls == []


@pytest.mark.parametrize("name", ["npx.cmd", "NPX.CMD", "run.bat"])
def test_batch_files_are_run_by_the_shell_of_the_system(name: str) -> None:
    kernel = ScriptedKernel()
    child = child_of(kernel, [name, "a b"])
    assert kernel.command == batch_line([name, "a b"], kernel.shell())
    child.kill()
    child.reap()
    kernel = ScriptedKernel()
    child = child_of(kernel, ["node.exe", "a b"])
    assert kernel.command == ["node.exe", "a b"]
    child.kill()
    child.reap()


# --- the whole transport over it


class StandIn:
    """The calls, made out of this system's: a job is a process group, CTRL_BREAK is TERM."""

    def __init__(self) -> None:
        self.wake: dict[int, int] = {}
        self.group = 0

    def shell(self) -> str:
        return "cmd.exe"

    def has_console(self) -> bool:
        return True

    def pipe(self) -> tuple[int, int]:
        return os.pipe()

    def create_job(self) -> int:
        return 1_000_001

    def create_event(self) -> int:
        read, write = os.pipe()
        self.wake[read] = write
        return read

    def spawn(
        self,
        command: Sequence[str] | str,
        ends: tuple[int, int, int],
        environment: Mapping[str, str],
        cwd: str | None,
        flags: int,
    ) -> tuple[int, int, Any]:
        popen = subprocess.Popen(
            command,
            stdin=ends[0],
            stdout=ends[1],
            stderr=ends[2],
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        self.group = popen.pid
        return popen.pid, os.pidfd_open(popen.pid), popen

    def assign(self, job: int, process: int) -> None: ...

    def resume(self, process: int) -> None: ...

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass

    def break_group(self, pid: int) -> None:
        self._signal(signal.SIGTERM)

    def terminate_process(self, process: int, code: int) -> None:
        self._signal(signal.SIGKILL)

    def terminate_job(self, job: int, code: int) -> None:
        self._signal(signal.SIGKILL)

    def job_pids(self, job: int) -> list[int]:
        return group_members(self.group) or []

    def set_event(self, event: int) -> None:
        os.write(self.wake[event], b"x")

    def wait(self, process: int, event: int) -> bool:
        import select

        ready, _, _ = select.select([process, event], [], [])
        return process in ready

    def exit_code(self, process: int) -> int | None:
        info = os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else 0xC0000000 + info.si_status

    def close(self, handle: int) -> None:
        if handle == 1_000_001:
            self._signal(signal.SIGKILL)
        else:
            os.close(handle)
            os.close(self.wake.pop(handle))

    def release(self, keeper: Any, code: int) -> None:
        keeper.wait()


def windows(made: list[WindowsChild]) -> dict[str, Any]:
    def spawn(argv: Sequence[str], environment: Mapping[str, str], cwd: str | None) -> WindowsChild:
        child = WindowsChild(argv, environment, cwd, calls=StandIn())
        made.append(child)
        return child

    return {"spawn": spawn, "threads": True}


async def closing(line: Line, made: list[WindowsChild]) -> Any:
    record = await line.stop()
    for child in made:
        os.close(child._process)
    return record


@pytest.mark.parametrize(
    ("script", "forced"),
    [
        ({}, ()),
        ({"ignore_eof": True}, ("TERM",)),
        ({"ignore_eof": True, "ignore_term": True}, ("TERM", "KILL")),
        ({"stderr_first": 300_000}, ()),
    ],
    ids=["good", "ignores EOF", "ignores CTRL_BREAK", "noisy"],
)
async def test_the_transport_over_jobs_and_threads(script: dict[str, Any], forced: tuple[str, ...]) -> None:
    """A real server, talked to by threads, taken down by its job: the ladder is that of every system."""
    made: list[WindowsChild] = []
    line = await fault_line(stop=(0.4, 0.3, 5.0), options=windows(made), **script)
    assert await line.call("echo", text="x" * 300_000) == "x" * 300_000
    record = await closing(line, made)
    assert (record.forced, record.survivors) == (forced, ())
    assert made[0].pid and procs.state(made[0].pid) is None


async def test_f3_10_the_transport_ends_a_child_whose_root_went_first() -> None:
    """F3.10: through the whole ladder; and a CTRL_BREAK is sent to nobody once the root is gone."""
    made: list[WindowsChild] = []
    line = await fault_line(
        wrapper="exit_first", ignore_eof=True, stop=(0.2, 0.2, 5.0), options=windows(made)
    )
    await line.heard.until(lambda: line.heard.leaders)
    (server,) = made[0].others()
    assert await line.call("echo", text="here") == "here"
    record = await closing(line, made)
    assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
    assert not procs.alive(server)


async def test_f3_6_an_exit_code_and_the_last_words_come_by_way_of_threads() -> None:
    """F3.6: the exit is seen by one thread, stderr by another: the error has both, whichever is first."""
    for _ in range(5):
        made: list[WindowsChild] = []
        line = await fault_line(options=windows(made))
        line.tool("die", code=3, stderr="Traceback\nlast words\n")
        how = await line.heard.end()
        assert (how.reason, how.exit_code, how.stderr_tail) == ("exited", 3, "Traceback\nlast words\n")
        await closing(line, made)
