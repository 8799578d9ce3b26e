"""One line from a person, over real terminals: as long as it likes, shown nowhere, and given up at any moment."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.cli import paste
from moorings.cli.paste import LineEditor, can_read, read_line
from tests.cli.ptys import PATIENCE, Pty

LONG = "http://127.0.0.1:45123/callback/x?state=s&code=" + "c" * 20_000


class Reading:
    """``read_line`` at work."""

    def __init__(self, terminal: Pty) -> None:
        self.terminal = terminal
        self.counts: list[int] = []
        self.ready = asyncio.Event()
        self.moved = asyncio.Event()

    def show(self, count: int) -> None:
        self.counts.append(count)
        self.ready.set()
        self.moved.set()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.counts[-1] != count:
                self.moved.clear()
                await self.moved.wait()


@asynccontextmanager
async def reading(terminal: Pty) -> AsyncIterator[tuple[Reading, asyncio.Task[str | None]]]:
    """While entered a line is read; when left the terminal is as it was."""
    before = terminal.mode()
    state = Reading(terminal)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(read_line(terminal.fd, state.show))
        async with asyncio.timeout(PATIENCE):
            await state.ready.wait()
        assert not terminal.mode()[3] & (termios.ICANON | termios.ECHO)
        assert terminal.mode()[3] & termios.ISIG
        yield state, task
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
    assert terminal.mode() == before
    assert not paste._reading
    assert not asyncio.get_running_loop().remove_reader(terminal.fd)


# --- keys -----------------------------------------------------------------------------------------------


def typed(data: bytes) -> LineEditor:
    editor = LineEditor()
    for byte in data:
        if editor.take(byte):
            break
    return editor


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (b"abc\n", "abc"),
        (b"  abc \r", "abc"),
        (b"abx\x7fc\n", "abc"),
        (b"abx\x08c\n", "abc"),
        ("aé€😀".encode() + b"\x7f\x7f\x7f\n", "a"),
        (b"\x7f\x7fa\n", "a"),
        (b"wrong\x15right\n", "right"),
        (b"wrong\x17right\n", "right"),
        (b"\x1b[200~http://x/?code=1\x1b[201~\n", "http://x/?code=1"),
        (b"\x1b[200~http://x/\r\n?code=1\n\x1b[201~\n", "http://x/?code=1"),
        (b"\x1b[200~half\x15whole\n", "whole"),
        (b"a\x1b[Db\x1bOAc\x1b[1;5Cd\x1bxe\n", "abcde"),
        (b"a\x1b\x1b[Ab\n", "ab"),
        (b"a\x1b\nb", "a"),
        (b"a\x00\x01\tb\n", "ab"),
        (b"ab\x04cd\n", "ab"),
        (b"\xff\xfea\n", "\ufffd\ufffda"),
        (b"\x1b[" + b"1" * 40 + b"a\n", "11111111a"),
    ],
)
def test_keys(keys: bytes, text: str) -> None:
    editor = typed(keys)
    assert (editor.text, editor.ended) == (text, False)


def test_ctrl_d_in_an_empty_line_ends_all() -> None:
    assert typed(b"a\x7f\x04").ended
    assert not typed(b"\x1b[200~a\x04").ended


def test_the_keys_of_the_terminal_count_too() -> None:
    editor = LineEditor(erase=b"#", kill=b"@", end=b"!")
    assert [editor.take(each) for each in b"zz@ab#c\x04!"] == [False] * 8 + [True]
    assert editor.text == "ac"


@given(st.binary(max_size=300))
def test_any_bytes_give_a_line_without_control_characters(data: bytes) -> None:
    editor = typed(data)
    assert all(character >= " " and character != "\x7f" for character in editor.text)
    assert editor.length <= len(data)


def test_a_line_has_a_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste, "LONGEST", 10)
    assert typed(b"a" * 50 + b"\n").text == "a" * 10


# --- over terminals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["http://127.0.0.1/?code=1", LONG])
async def test_a_line_of_any_length_comes_whole_and_is_not_shown(line: str) -> None:
    with Pty() as terminal:
        async with reading(terminal) as (state, task):
            await terminal.type(line + "\n")
        assert await task == line
        assert state.counts[0] == 0
        assert state.counts[-1] == len(line)
        assert terminal.seen == ""


async def test_empty_lines_ask_nothing() -> None:
    with Pty() as terminal:
        async with reading(terminal) as (_, task):
            await terminal.type("\n  \r\n\nhere\n")
        assert await task == "here"


async def test_what_comes_after_the_line_is_left_there() -> None:
    with Pty() as terminal:
        async with reading(terminal) as (_, task):
            await terminal.type("first\nsecond\n")
        assert await task == "first"
        assert os.read(terminal.fd, 100) == b"second\n"


async def test_what_was_typed_before_is_read_too() -> None:
    with Pty() as terminal:
        await terminal.type("ear")
        await terminal.shows("ear")
        async with reading(terminal) as (state, task):
            await state.has(3)
            await terminal.type("ly\n")
        assert await task == "early"


async def test_ctrl_d_means_that_nothing_will_be_pasted() -> None:
    with Pty() as terminal:
        async with reading(terminal) as (_, task):
            await terminal.type("\x04")
        assert await task is None


async def test_a_terminal_that_goes_away_means_that_too() -> None:
    with Pty() as terminal:
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(read_line(terminal.fd, lambda _: ready.set()))
            await ready.wait()
            terminal.hang_up()
        assert task.result() is None


@pytest.mark.parametrize("keys", ["", "half of it", LONG])
async def test_given_up_at_any_moment_the_terminal_is_as_it_was(keys: str) -> None:
    with Pty() as terminal:
        async with reading(terminal) as (state, task):
            await terminal.type(keys)
            await state.has(len(keys))
            task.cancel()
        assert task.cancelled()
        # In its usual mode again: a line at a time, and shown.
        await terminal.type("next\n")
        await terminal.shows("next")
        assert os.read(terminal.fd, 100) == b"next\n"


async def test_given_up_before_it_began_nothing_was_touched() -> None:
    with Pty() as terminal:
        before = terminal.mode()
        task = asyncio.ensure_future(read_line(terminal.fd))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert terminal.mode() == before


async def test_given_up_in_the_moment_in_which_the_line_came() -> None:
    with Pty() as terminal:
        before = terminal.mode()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(read_line(terminal.fd, lambda count: cancel() if count else None))

            def cancel() -> None:
                task.cancel()

            await terminal.type("line\n")
        assert task.cancelled()
        assert terminal.mode() == before


async def test_a_terminal_has_one_reader() -> None:
    with Pty() as terminal:
        async with reading(terminal) as (_, task):
            assert not can_read(terminal.fd)
            assert await read_line(terminal.fd) is None
            await terminal.type("mine\n")
        assert await task == "mine"
        assert can_read(terminal.fd)


async def test_what_is_no_terminal_is_not_read(tmp_path: Path) -> None:
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b"line\n")
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        for fd in (reading_end, file, 9999):
            assert await read_line(fd) is None
        assert os.read(reading_end, 100) == b"line\n"
    finally:
        for fd in (reading_end, writing_end, file):
            os.close(fd)


# --- signals, in a program of its own -------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from moorings.cli.paste import read_line

async def main():
    try:
        print("got", repr(await read_line(0, lambda count: print("count", count, flush=True))), flush=True)
    finally:
        print("over", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""

# A shell with job control, as small as it can be: one command in a group of its own, stopped and continued.
SHELL = """
import os, signal, sys, termios
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
mine = termios.tcgetattr(0)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, sys.argv[1]])
_, status = os.waitpid(pid, os.WUNTRACED)
print("stopped", os.WIFSTOPPED(status), "as it was", termios.tcgetattr(0) == mine, flush=True)
os.tcsetpgrp(0, os.getpgrp())
sys.stdin.readline()
if sys.argv[2] == "fg":
    os.tcsetpgrp(0, pid)
os.kill(pid, signal.SIGCONT)
_, status = os.waitpid(pid, os.WUNTRACED)
os.tcsetpgrp(0, os.getpgrp())
print("ended", os.WIFEXITED(status), "as it was", termios.tcgetattr(0) == mine, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "reads.py"
    file.write_text(PROGRAM)
    return file


async def test_ctrl_c_stays_a_signal_and_the_terminal_is_put_back(program: Path) -> None:
    with Pty() as terminal:
        before = terminal.mode()
        with terminal.run(program) as running:
            await terminal.shows("count 0")
            await terminal.type("half")
            await terminal.shows("count 4")
            await terminal.type("\x03")
            assert await running.ended() == 130
        await terminal.shows("over")
        assert terminal.mode() == before


@pytest.mark.parametrize("after", ["fg", "bg"])
async def test_stopped_by_ctrl_z_the_shell_has_the_terminal_as_it_was(
    program: Path, tmp_path: Path, after: str
) -> None:
    shell = tmp_path / "shell.py"
    shell.write_text(SHELL)
    with Pty() as terminal:
        with terminal.run(shell, str(program), after) as running:
            await terminal.shows("count 0")
            await terminal.type("one")
            await terminal.shows("count 3")
            await terminal.type("\x1a")
            await terminal.shows("stopped True as it was True")
            await terminal.type("\n")
            if after == "fg":
                await terminal.shows("count 3", times=2)
                await terminal.type(" two\n")
                await terminal.shows("got 'one two'")
            else:
                await terminal.shows("got None")
            await terminal.shows("ended True as it was True")
            assert await running.ended() == 0


async def test_in_the_background_it_does_not_touch_the_terminal(program: Path, tmp_path: Path) -> None:
    started = tmp_path / "background.py"
    started.write_text(
        "import os, subprocess, sys\n"
        "print('code', subprocess.run([sys.executable, sys.argv[1]], process_group=0, timeout=20).returncode)\n"
    )
    with Pty() as terminal:
        with terminal.run(started, str(program)) as running:
            await terminal.shows("got None")
            assert await running.ended() == 0


async def test_a_signal_that_the_program_ends_by_puts_the_terminal_back(tmp_path: Path) -> None:
    """As the command does it: the handler raises, wherever the loop is at that moment."""
    file = tmp_path / "reads.py"
    file.write_text("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n" + PROGRAM)
    with Pty() as terminal:
        before = terminal.mode()
        with terminal.run(file) as running:
            await terminal.shows("count 0")
            await terminal.type("half")
            await terminal.shows("count 4")
            os.kill(running.pid, signal.SIGTERM)
            assert await running.ended() == 143
        await terminal.shows("over")
        assert terminal.mode() == before


async def test_ctrl_backslash_ends_it_at_once_and_the_terminal_is_put_back(tmp_path: Path) -> None:
    file = tmp_path / "reads.py"
    file.write_text("import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + PROGRAM)
    with Pty() as terminal:
        before = terminal.mode()
        with terminal.run(file) as running:
            await terminal.shows("count 0")
            await terminal.type("half")
            await terminal.shows("count 4")
            await terminal.type("\x1c")
            assert await running.ended() == -signal.SIGQUIT
        assert terminal.mode() == before


async def test_a_signal_that_ends_the_program_is_not_held_up(program: Path) -> None:
    with Pty() as terminal:
        with terminal.run(program) as running:
            await terminal.shows("count 0")
            os.kill(running.pid, signal.SIGTERM)
            assert await running.ended() == -signal.SIGTERM
