"""The stdio transport on real processes: three pipes served all the time, and one ladder on which each of them ends.

What holds for both kinds of pipe ends, those watched by the loop and those served by threads, is run on both.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from moorings.transport import _posix, descriptors, pipes
from moorings.transport.base import OutboxFull
from moorings.transport.child import spawn
from tests.faults import procs
from tests.faults.script import FaultLog
from tests.transport.kit import Line, fault_line

MB = 1024 * 1024

both = pytest.mark.parametrize("options", [{}, {"threads": True}], ids=["watched", "threads"])


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", code]


# --- in and out


@both
async def test_f3_5_a_megabyte_on_stderr_before_the_first_answer_blocks_nothing(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """F3.5: and 256 KB more with each call; the tail stays inside its limit."""
    options = {**options, "stderr_tail": 2000, "log_path": tmp_path / "log", "log_file": 300_000}
    line = await fault_line(stderr_first=MB, options=options)
    for _ in range(4):
        assert await line.call("stderr", bytes=256 * 1024) == "said"
    assert len(line.transport.stderr_tail()) <= 2000
    assert line.transport.stderr_tail().endswith("noise on stderr\n")
    record = await line.stop()
    assert (record.exit_code, record.forced, record.survivors) == (0, (), ())
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"log", "log.1"} and all(size <= 300_000 for size in sizes.values())


@both
async def test_f13_2_five_megabytes_both_ways(options: dict[str, Any]) -> None:
    """F13.2: one frame of 5 MB out and one in, beside small ones."""
    line = await fault_line(options=options)
    small, _ = line.tool("echo", text="before")
    big, _ = line.tool("echo", text="x" * 5 * MB)
    after, _ = line.tool("echo", text="after")
    answers = [await line.heard.answer(id_) for id_ in (small, big, after)]
    assert [len(a["result"]["content"][0]["text"]) for a in answers] == [6, 5 * MB, 5]
    assert (await line.stop()).forced == ()


@both
async def test_f13_3_a_server_that_writes_byte_by_byte_with_crlf(options: dict[str, Any]) -> None:
    """F13.3: same messages."""
    line = await fault_line(chunking=1, crlf=True, banner="a banner\r\n\r\n", options=options)
    assert await line.call("echo", text="Grüße 🌊") == "Grüße 🌊"
    assert line.heard.lines[0] == b"a banner\r"
    await line.stop()


@both
async def test_f13_2_a_frame_over_the_cap_costs_only_itself(options: dict[str, Any]) -> None:
    """F13.2: its id is told, and the next call is answered."""
    line = await fault_line(options={**options, "max_message": 100_000})
    id_, _ = line.tool("big", bytes=2 * MB)
    (frame,) = await line.heard.until(lambda: line.heard.oversized)
    assert (frame.id, frame.cap, frame.has_method) == (id_, 100_000, False)
    assert frame.size > 2 * MB
    assert await line.call("echo", text="next") == "next"
    await line.stop()


@both
async def test_f3_9_a_server_that_stops_reading_blocks_no_caller_and_no_stop(options: dict[str, Any]) -> None:
    """F3.9: 5 MB for a deaf server: send returns at once, what did not leave can be taken back, the outbox has a
    bound, and the stop is the ordinary ladder."""
    line = await fault_line(stop=(0.2, 5.0, 5.0), options={**options, "max_outbox": 6 * MB})
    assert await line.call("stop_reading") == "deaf"
    loop = asyncio.get_running_loop()
    before = loop.time()
    _, big = line.tool("echo", text="x" * 5 * MB)
    _, second = line.tool("echo", text="waits")
    with pytest.raises(OutboxFull):
        line.tool("echo", text="y" * 2 * MB)
    assert loop.time() - before < 0.5
    await line.heard.until(lambda: True)
    assert not big.finished and not second.started
    assert line.transport.withdraw(second) is True
    record = await line.stop()
    assert record.forced == ("TERM",)
    assert record.exit_code == -signal.SIGTERM
    assert 0.2 <= record.elapsed < 1.7
    assert line.transport.withdraw(second) is True
    assert line.transport.withdraw(big) is not big.started


@both
async def test_a_frame_after_the_end_never_left(options: dict[str, Any]) -> None:
    line = await fault_line(options=options)
    line.tool("die", code=0)
    await line.heard.end()
    with pytest.raises(ConnectionError):
        line.tool("echo", text="x")
    await line.stop()
    with pytest.raises(ConnectionError):
        line.tool("echo", text="x")


async def test_a_frame_of_two_lines_is_refused_before_it_leaves() -> None:
    line = await fault_line()
    with pytest.raises(ValueError, match="line break"):
        line.transport.send(b'{"a":\n1}\n')
    with pytest.raises(ValueError, match="line break"):
        line.transport.send(b"{}")
    await line.stop()


async def test_f14_4_arguments_and_folders_reach_the_child_unchanged(tmp_path: Path) -> None:
    """F14.4: blanks, quotes, ``$``, ``&``, nothing at all and non-ASCII in args and cwd: no shell sees them."""
    words = ["a b", "", '"q"', "'", "$HOME", "&& rm", "%PATH%", "`x`", "ü🌊", "*", "\\", "\t"]
    folder = tmp_path / "a b & ü"
    folder.mkdir()
    code = (
        "import sys, os, json; print(json.dumps([sys.argv[1:], os.getcwd()]), flush=True); sys.stdin.read()"
    )
    line = Line([*python(code), *words], cwd=str(folder))
    line.transport.start()
    (told,) = await line.heard.until(lambda: line.heard.lines)
    assert json.loads(told) == [words, str(folder)]
    assert (await line.stop()).forced == ()


async def test_the_child_inherits_three_descriptors_and_no_more() -> None:
    """A pipe of another server in its hands would keep that server from ever seeing its end."""
    lines = [await fault_line() for _ in range(3)]
    assert [json.loads(await line.call("descriptors")) for line in lines] == [{}, {}, {}]
    records = await asyncio.gather(*(line.stop() for line in lines))
    assert [record.forced for record in records] == [(), (), ()]


# --- how it ends by itself


@both
@pytest.mark.parametrize("code", [3, 0, -9])
async def test_f3_6_an_exit_is_told_with_its_code_and_the_last_of_stderr(
    code: int, options: dict[str, Any]
) -> None:
    """F3.6: within a second; nothing after it."""
    line = await fault_line(options=options)
    before = asyncio.get_running_loop().time()
    line.tool("die", code=code, stderr="Traceback ...\nValueError: boom\n")
    how = await line.heard.end()
    assert asyncio.get_running_loop().time() - before < 1.0
    assert how.reason == "exited"
    assert how.exit_code == code
    assert how.stderr_tail.endswith("ValueError: boom\n")
    record = await line.stop()
    assert (record.exit_code, record.forced, record.survivors) == (code, (), ())
    assert len(line.heard.ends) == 1 and line.heard.after_end == 0


@both
async def test_what_it_wrote_right_before_it_ended_is_heard_first(options: dict[str, Any]) -> None:
    """An answer of 300 KB, a last word on stderr, and the exit in the same moment: all three arrive, in this order."""
    code = (
        "import os, sys; sys.stdin.readline()\n"
        "data = b'x' * 300000 + b'\\n'\n"
        "while data: data = data[os.write(1, data):]\n"
        "os.write(2, b'last words'); os._exit(5)"
    )
    line = Line(python(code), **options)
    line.transport.start()
    line.ask("go")
    how = await line.heard.end()
    assert [len(each) for each in line.heard.lines] == [300_000]
    assert (how.reason, how.exit_code, how.stderr_tail) == ("exited", 5, "last words")
    await line.stop()


@both
async def test_the_process_is_killed_from_outside(options: dict[str, Any]) -> None:
    line = await fault_line(options=options)
    assert line.transport.pid is not None
    os.kill(line.transport.pid, signal.SIGKILL)
    how = await line.heard.end()
    assert (how.reason, how.exit_code) == ("exited", -signal.SIGKILL)
    assert line.transport.exit_code == -signal.SIGKILL
    assert (await line.stop()).forced == ()


@both
async def test_stdout_is_closed_but_the_process_lives(options: dict[str, Any]) -> None:
    """The connection is over after a short grace, without a code; the ladder still ends the process."""
    line = await fault_line(options=options)
    line.tool("close_stdout")
    how = await line.heard.end()
    assert how.reason == "closed its stdout without exiting"
    assert how.exit_code is None
    assert line.transport.pid is not None and procs.alive(line.transport.pid)
    record = await line.stop()
    assert (record.exit_code, record.forced) == (0, ())


@both
async def test_stdin_is_closed_but_the_process_lives(options: dict[str, Any]) -> None:
    code = "import os, sys, time; os.close(0); os.write(1, b'ready\\n'); time.sleep(60)"
    line = Line(python(code), stop=(0.1, 5.0, 5.0), **options)
    line.transport.start()
    await line.heard.until(lambda: line.heard.lines)
    try:
        line.ask("x")
    except ConnectionError:
        assert not options
    how = await line.heard.end()
    assert how.reason == "closed its stdin without exiting"
    assert (await line.stop()).forced == ("TERM",)


async def test_a_closed_stderr_means_nothing_by_itself() -> None:
    code = "import os, sys; os.close(2); os.write(1, sys.stdin.readline().encode()); sys.stdin.read()"
    line = Line(python(code))
    line.transport.start()
    line.ask("x")
    await line.heard.until(lambda: line.heard.lines)
    assert not line.heard.ends
    assert (await line.stop()).forced == ()
    assert not line.heard.ends


@both
async def test_nothing_is_heard_after_the_end_was_told(options: dict[str, Any]) -> None:
    line = await fault_line(options=options)
    line.transport.give_up("was given up")
    assert [how.reason for how in line.heard.ends] == ["was given up"]
    heard = len(line.heard.lines)
    await line.stop()
    assert (len(line.heard.lines), len(line.heard.ends)) == (heard, 1)


# --- wrappers


@both
async def test_f3_1_a_wrapper_that_exits_first_leaves_its_server_at_work(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """F3.1: the receiver is told that the leader went, calls go on, and after the stop the grandchild is gone."""
    log = FaultLog(tmp_path / "journal")
    line = await fault_line(wrapper="exit_first", journal=log.path, options=options)
    assert await line.heard.until(lambda: line.heard.leaders) == [0]
    assert await line.call("echo", text="still here") == "still here"
    assert not line.heard.ends
    record = await line.stop()
    assert (record.exit_code, record.forced, record.survivors) == (0, (), ())
    assert not any(procs.alive(pid) for pid in log.pids())


async def test_f3_1_a_stubborn_grandchild_of_a_wrapper_that_exited_first(tmp_path: Path) -> None:
    """F3.1: it ignores the end of stdin and TERM; KILL reaches it by the group that the wrapper left."""
    log = FaultLog(tmp_path / "journal")
    line = await fault_line(
        wrapper="exit_first", ignore_eof=True, ignore_term=True, journal=log.path, stop=(0.1, 0.1, 5.0)
    )
    await line.heard.until(lambda: line.heard.leaders)
    record = await line.stop()
    assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
    assert not any(procs.alive(pid) for pid in log.pids())


async def test_the_server_of_a_gone_wrapper_ends_too() -> None:
    line = await fault_line(wrapper="exit_first")
    await line.heard.until(lambda: line.heard.leaders)
    line.tool("die", code=7)
    how = await line.heard.end()
    assert (how.reason, how.exit_code) == ("closed its stdout", 0)
    await line.stop()


async def test_f3_11_a_detached_server_ends_because_stdin_is_closed_before_any_signal(tmp_path: Path) -> None:
    """F3.11: a stand-in for ``docker run -i``; killing the front would leave the server behind."""
    log = FaultLog(tmp_path / "journal")
    line = await fault_line(wrapper="front", journal=log.path)
    assert await line.call("echo", text="x") == "x"
    record = await line.stop()
    assert record.forced == ()
    assert await procs.gone(log.pids(), 5.0)


# --- the ladder


@both
async def test_a_good_server_ends_by_itself(options: dict[str, Any], tmp_path: Path) -> None:
    log = FaultLog(tmp_path / "journal")
    line = await fault_line(journal=log.path, options=options)
    pid = line.transport.pid
    record = await line.stop()
    assert (record.exit_code, record.forced, record.survivors) == (0, (), ())
    assert pid is not None and procs.state(pid) is None
    assert log.entries("eof") and not log.entries("signal")
    assert not line.heard.ends


@both
@pytest.mark.parametrize(
    ("script", "forced", "code", "least"),
    [
        ({"ignore_eof": True}, ("TERM",), -signal.SIGTERM, 0.2),
        ({"ignore_eof": True, "ignore_term": True}, ("TERM", "KILL"), -signal.SIGKILL, 0.5),
        ({"slow_exit": 0.1}, (), 0, 0.1),
    ],
    ids=["ignores EOF", "ignores TERM", "slow but willing"],
)
async def test_each_step_of_the_ladder(
    script: dict[str, Any], forced: tuple[str, ...], code: int, least: float, options: dict[str, Any]
) -> None:
    line = await fault_line(stop=(0.2, 0.3, 5.0), options=options, **script)
    record = await line.stop()
    assert (record.forced, record.exit_code, record.survivors) == (forced, code, ())
    assert least <= record.elapsed < least + 1.0


@both
@pytest.mark.parametrize("ignore_term", [False, True])
@pytest.mark.parametrize("hold_pipes", [False, True])
async def test_grandchildren_end_with_their_server(
    ignore_term: bool, hold_pipes: bool, options: dict[str, Any]
) -> None:
    """The server leaves well, its child stays: TERM, and KILL if it must be, go to the whole group."""
    line = await fault_line(stop=(0.1, 0.3, 5.0), options=options)
    child = int(await line.call("fork_child", ignore_term=ignore_term, hold_pipes=hold_pipes))
    assert procs.alive(child)
    record = await line.stop()
    assert record.forced == (("TERM", "KILL") if ignore_term else ("TERM",))
    assert (record.exit_code, record.survivors) == (0, ())
    assert not procs.alive(child)


async def test_one_short_deadline_shortens_each_step() -> None:
    """30 s of ladder under a deadline of 0.6 s: all steps in their order, KILL within it."""
    line = await fault_line(stop=(10.0, 10.0, 10.0), ignore_eof=True, ignore_term=True)
    record = await line.stop(within=0.6)
    assert record.forced == ("TERM", "KILL")
    assert record.exit_code == -signal.SIGKILL
    assert record.elapsed < 1.6


async def test_a_deadline_that_has_passed_still_ends_everything() -> None:
    line = await fault_line(ignore_eof=True, ignore_term=True)
    record = await line.stop(within=-1.0)
    assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
    assert record.elapsed < 1.0


@both
async def test_a_stop_under_100_native_cancellations_is_whole(options: dict[str, Any]) -> None:
    """It is never cut short, and the cancellation strikes when the work is done."""
    line = await fault_line(stop=(0.4, 0.4, 5.0), ignore_eof=True, ignore_term=True, options=options)
    child = int(await line.call("fork_child", ignore_term=True, hold_pipes=True))
    records = []
    began = asyncio.Event()

    async def owner() -> None:
        began.set()
        records.append(await line.stop())
        await asyncio.sleep(0)  # where the cancellation strikes

    task = asyncio.create_task(owner())
    await began.wait()
    for n in range(100):
        assert task.cancel()
        await asyncio.sleep(0.01 if n % 4 == 0 else 0)  # in bursts, over the waits for EOF and TERM
    await asyncio.wait([task])
    assert task.cancelled() and task.cancelling() == 100
    (record,) = records
    assert (record.forced, record.survivors) == (("TERM", "KILL"), ())
    assert not procs.alive(child)


async def test_stop_before_start_and_a_second_stop_do_nothing() -> None:
    line = Line(python("pass"))
    assert (await line.stop()).elapsed == 0.0
    line = await fault_line()
    first = await line.stop()
    again = await line.stop()
    assert again.exit_code == first.exit_code == 0
    assert (again.forced, again.survivors) == ((), ())


async def test_a_stop_right_after_the_spawn() -> None:
    for _ in range(3):
        line = await fault_line(hands=False)
        assert (await line.stop()).survivors == ()


@both
async def test_ten_servers_start_and_stop_side_by_side(options: dict[str, Any]) -> None:
    before = threading.active_count()
    lines = await asyncio.gather(*(fault_line(options=options) for _ in range(10)))
    texts = await asyncio.gather(*(line.call("echo", text=str(n)) for n, line in enumerate(lines)))
    assert texts == [str(n) for n in range(10)]
    records = await asyncio.gather(*(line.stop() for line in lines))
    assert {record.forced for record in records} == {()}
    assert threading.active_count() == before


# --- the system refuses


@both
@pytest.mark.parametrize(
    ("argv", "cwd", "environment"),
    [
        (["/nowhere/at/all"], None, {}),
        ([str(Path(__file__))], None, {}),
        (["/"], None, {}),
        (python("pass"), "/nowhere/at/all", {}),
        ([*python("pass"), "nul\0"], None, {}),
        (python("pass"), None, {"NUL": "a\0b"}),
        (python("pass"), None, {"A=B": "x"}),
        ([*python("pass"), "x" * 200_000], None, {}),
    ],
)
async def test_a_spawn_that_fails_is_an_oserror_and_leaves_nothing(
    argv: list[str], cwd: str | None, environment: dict[str, str], options: dict[str, Any]
) -> None:
    before = procs.descriptors(), procs.children()
    line = Line(argv, cwd=cwd, environment=environment, **options)
    with pytest.raises(OSError):
        line.transport.start()
    assert (await line.stop()).elapsed == 0.0
    # Servers that other tests share may be children of ours.
    assert (procs.descriptors(), procs.children()) == before


async def test_a_process_without_descriptors_left_spawns_nothing_and_loses_none() -> None:
    """EMFILE at each point of the spawn, from no descriptor left to one less than enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    holes = [os.open(os.devnull, os.O_RDONLY)]
    while holes[-1] < max(procs.descriptors()):
        holes.append(os.dup(holes[0]))
    before = procs.descriptors()
    outcomes = []
    for more in range(12):
        line = Line(python("import sys; sys.stdin.read()"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + 1 + more, hard))
        try:
            line.transport.start()
            outcomes.append("started")
        except OSError as error:
            assert error.errno == errno.EMFILE
            outcomes.append("refused")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        record = await line.stop()
        assert (record.survivors, record.forced) == ((), ())
        assert procs.descriptors() == before
    for hole in holes:
        os.close(hole)
    assert outcomes == sorted(outcomes, key=["refused", "started"].index)
    assert set(outcomes) == {"refused", "started"}


@both
@pytest.mark.parametrize("step", ["watch", "first", "second", "third"])
async def test_a_start_that_fails_after_the_spawn_still_ends_the_process(
    step: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is ours from the spawn: whatever fails then, stop ends it and no descriptor is left."""
    before = procs.descriptors()
    names = ["first", "second", "third"]
    made = 0

    def refuse(original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if step in names and made == names.index(step) + 1:
                raise RuntimeError("can't start new thread")
            return original(*args, **kwargs)

        return make

    from moorings.transport import stdio

    for name in ("ThreadReader", "ThreadWriter", "FdReader", "FdWriter"):
        kind = getattr(pipes, name)
        monkeypatch.setattr(kind, "__init__", refuse(kind.__init__))
    assert stdio.ThreadReader is pipes.ThreadReader

    class Failing(_posix.PosixChild):
        def watch(self, *args: Any) -> None:
            if step == "watch":
                raise OSError(28, "no space left")
            super().watch(*args)

    line = Line(python("import sys; sys.stdin.read()"), spawn=Failing, stop=(0.3, 0.1, 0.1), **options)
    with pytest.raises(OSError):
        line.transport.start()
    pid = line.transport.pid
    assert pid is not None
    record = await line.stop()
    assert record.survivors == ()
    assert procs.state(pid) is None
    assert procs.descriptors() == before


# --- neighbours


async def test_f3_7_two_spawn_in_the_same_instant_and_one_fails_at_once() -> None:
    """F3.7: each knows its own process from the spawn; the end of one is not the end of the other."""
    good = await fault_line()
    bad = Line(python("raise SystemExit(9)"))
    bad.transport.start()
    other = Line(python("import sys; sys.stdin.read()"))
    other.transport.start()
    how = await bad.heard.end()
    assert how.exit_code == 9
    await bad.stop()
    assert await good.call("echo", text="here") == "here"
    assert other.transport.pid is not None and procs.alive(other.transport.pid)
    await good.stop()
    assert (await other.stop()).exit_code == 0


async def test_f3_8_a_server_is_in_a_session_of_its_own() -> None:
    """F3.8: so a Ctrl-C at our terminal does not reach it."""
    line = await fault_line()
    ids = json.loads(await line.call("pid"))
    assert ids["pid"] == ids["pgid"] == ids["sid"] == line.transport.pid
    assert ids["sid"] != os.getsid(0)
    await line.stop()


async def test_a_flood_on_one_pipe_does_not_keep_others_waiting() -> None:
    """One server writes without end; another is answered meanwhile."""
    code = "import os\nwhile True: os.write(1, b'noise and more noise\\n' * 3000)"
    flood = Line(python(code), stop=(0.1, 5.0, 5.0))
    flood.heard.lines = _Nowhere()  # type: ignore[assignment]
    flood.transport.start()
    line = await fault_line()
    for n in range(20):
        assert await line.call("echo", text=str(n)) == str(n)
    await line.stop()
    record = await flood.stop()
    assert record.survivors == ()


class _Nowhere(list[bytes]):
    def append(self, line: bytes) -> None:
        pass


async def test_spawn_is_one_step_that_knows_its_process() -> None:
    child = spawn(python("import sys; sys.stdin.read()"), dict(os.environ), None)
    assert os.getpgid(child.pid) == child.pid != os.getpgrp()
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    child.watch(asyncio.get_running_loop(), ended.set_result)
    for fd in (child.stdin_fd, child.stdout_fd, child.stderr_fd):
        descriptors.close(fd)
    assert await asyncio.wait_for(ended, 5) == 0
    assert procs.state(child.pid) == "Z"
    assert child.reap() == 0
    assert child.reap() == 0
    assert procs.state(child.pid) is None
    child.close()
    child.close()
