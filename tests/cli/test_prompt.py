"""A login shown to a person at a terminal: what is said, and ``terminal`` over real ones."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shlex
import signal
import socket
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings import LoginPrompt
from moorings.cli.prompt import is_interactive, ssh_hint, terminal
from moorings.cli.qr import qr_lines
from tests import procs
from tests.cli.ptys import PATIENCE, Pty

URL = "https://as.example/authorize?response_type=code&state=s&redirect_uri=" + "x" * 300
BACK = "http://127.0.0.1:45123/callback/abc"
PASTE = BACK + "?state=s&code=a-secret-code-" + "c" * 20_000

LOGIN = LoginPrompt(
    server="tickets",
    resource="https://mcp.example/mcp",
    issuer="https://as.example",
    url=URL,
    redirect_uri=BACK,
    listening=True,
    scopes=("read", "write"),
    seconds=300.0,
)
DEVICE = msgspec.structs.replace(
    LOGIN,
    url="https://as.example/device",
    complete_url="https://as.example/device?user_code=WDJB-MJHT",
    user_code="WDJB-MJHT",
    redirect_uri="",
    listening=False,
)
AWAY = msgspec.structs.replace(LOGIN, redirect_uri="https://me.example/cb", listening=False)
NOWHERE: dict[str, str] = {"PATH": "/nowhere", "TERM": "xterm"}


def changed(prompt: LoginPrompt, **fields: Any) -> LoginPrompt:
    return msgspec.structs.replace(prompt, **fields)


async def said(prompt: LoginPrompt, environ: dict[str, str] | None = None, **options: Any) -> str:
    """What is told where nothing can be read."""
    stderr = io.StringIO()
    answer = await terminal(
        prompt, stdin=io.StringIO("a line\n"), stderr=stderr, environ=environ or NOWHERE, **options
    )
    assert answer is None
    return stderr.getvalue()


# --- who is there ---------------------------------------------------------------------------------------


async def test_a_person_is_there_or_not() -> None:
    with Pty() as pty:
        person, nobody = pty.stream(), io.StringIO()
        assert is_interactive(person, person, {"TERM": "dumb"}, False) == ""
        assert is_interactive(person, person, {"CI": "false"}) == ""
        assert is_interactive(person, person, {}, True) == "--no-input was given"
        assert is_interactive(person, person, {"CI": "true"}) == "the variable CI is set"
        assert is_interactive(nobody, person, {}) == "stdin is not a terminal"
        assert is_interactive(None, person, {}) == "stdin is not a terminal"
        assert is_interactive(person, nobody, {}) == "stderr is not a terminal"
        closed = pty.stream()
        closed.close()
        assert is_interactive(closed, person, {}) == "stdin is not a terminal"


# --- texts ----------------------------------------------------------------------------------------------


async def test_the_url_stands_in_full_on_a_line_of_its_own() -> None:
    text = await said(LOGIN)
    assert URL in text.splitlines()
    for part in ("tickets", "https://mcp.example/mcp", "https://as.example", "read write", "5 min", "Ctrl-C"):
        assert part in text
    assert "paste" not in text  # it could not be read


async def test_f12_8_why_no_browser_is_opened_is_said() -> None:
    assert "No browser is opened: there is no desktop here" in await said(LOGIN)
    assert "browser is opened" not in await said(LOGIN, browser=False)


async def test_what_servers_say_is_escaped() -> None:
    evil = "\x1b[2Jx\u202ey\nz"
    prompt = changed(
        DEVICE, server=evil, resource=evil, issuer=evil, url=evil, complete_url=evil, user_code=evil
    )
    prompt = changed(prompt, scopes=(evil,))
    for each in (prompt, changed(prompt, user_code=""), changed(prompt, problem=evil)):
        text = await said(changed(each, redirect_uri=f"http://127.0.0.1:1/{evil}"), {"PATH": "/nowhere"})
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
        assert "\\x1b[2Jx\\u202ey\\nz" in text
        assert "\nz" not in text


async def test_a_device_login_shows_code_and_both_addresses() -> None:
    lines = (await said(DEVICE, {"PATH": "/nowhere"})).splitlines()
    assert "    WDJB-MJHT" in lines
    assert "https://as.example/device" in lines
    assert "https://as.example/device?user_code=WDJB-MJHT" in lines
    assert not [line for line in lines if "█" in line]  # no terminal


@pytest.mark.parametrize(
    ("environ", "shown"),
    [({}, "\x1b[1mWDJB-MJHT\x1b[0m"), ({"NO_COLOR": "1"}, "WDJB-MJHT"), ({"TERM": "dumb"}, "WDJB-MJHT")],
)
async def test_the_code_of_a_device_login_stands_out_at_a_terminal(
    environ: dict[str, str], shown: str
) -> None:
    with Pty() as pty:
        await terminal(
            changed(DEVICE, complete_url=""),
            stdin=io.StringIO(),
            stderr=pty.stream(),
            environ=NOWHERE | environ,
        )
        await pty.shows(f"    {shown}\r\n")
    # A log has no use for it.
    assert "    WDJB-MJHT\n" in await said(changed(DEVICE, complete_url=""), NOWHERE | environ)


@pytest.mark.parametrize(
    ("environ", "hint"),
    [
        ({"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.5 22"}, "ssh -N -L 45123:127.0.0.1:45123 me@10.0.0.5"),
        (
            {"SSH_CONNECTION": "::1 1 fe80::1%eth0 2222"},
            "ssh -N -L 45123:127.0.0.1:45123 -p 2222 me@fe80::1%eth0",
        ),
        ({"SSH_CONNECTION": "garbage"}, f"ssh -N -L 45123:127.0.0.1:45123 me@{socket.gethostname()}"),
        (
            {"SSH_CONNECTION": "a b $(id) -oProxyCommand=x"},
            f"ssh -N -L 45123:127.0.0.1:45123 me@{socket.gethostname()}",
        ),
        ({"SSH_TTY": "/dev/pts/1"}, f"ssh -N -L 45123:127.0.0.1:45123 me@{socket.gethostname()}"),
        ({}, ""),
    ],
)
async def test_the_hint_for_ssh(environ: dict[str, str], hint: str) -> None:
    environ = {**NOWHERE, "USER": "me", **environ}
    assert ssh_hint(LOGIN, environ) == hint
    lines = (await said(LOGIN, environ)).splitlines()
    assert [line for line in lines if "ssh" in line] == [hint] * bool(hint)
    assert ssh_hint(AWAY, environ) == ssh_hint(DEVICE, environ) == ""


def test_the_hint_is_one_command_whatever_the_names() -> None:
    environ = {"USER": "a b;id", "SSH_CONNECTION": "1.2.3.4 1 10.0.0.5 22"}
    assert shlex.split(ssh_hint(LOGIN, environ)) == [
        "ssh",
        "-N",
        "-L",
        "45123:127.0.0.1:45123",
        "a b;id@10.0.0.5",
    ]
    six = changed(LOGIN, redirect_uri="http://[::1]:45123/x")
    assert ssh_hint(six, environ).startswith("ssh -N -L '45123:[::1]:45123'")
    for uri in ("http://127.0.0.1/x", "http://127.0.0.1:99999/x", "http://[x/", ""):
        assert ssh_hint(changed(LOGIN, redirect_uri=uri), environ) == ""


# --- QR -------------------------------------------------------------------------------------------------


def test_a_qr_code_is_what_was_asked_for() -> None:
    """Read back from the text, module by module; black on white whatever the terminal's colours."""
    import segno

    text = DEVICE.complete_url
    rows: list[list[int]] = []
    for line in qr_lines(text, 100, 50):
        blocks = line.removeprefix("\x1b[40;97m").removesuffix("\x1b[0m")
        rows.append([{"█": 0, "▀": 0, "▄": 1, " ": 1}[each] for each in blocks])
        rows.append([{"█": 0, "▀": 1, "▄": 0, " ": 1}[each] for each in blocks])
    assert all(len(row) == len(rows[0]) for row in rows)
    wanted = [list(row) for row in segno.make_qr(text, error="l").matrix_iter(border=2)]
    assert rows[: len(wanted)] == wanted
    assert not any(sum(row) for row in rows[len(wanted) :])


def test_no_code_where_it_does_not_fit() -> None:
    size = len(qr_lines(DEVICE.complete_url, 100, 50))
    assert qr_lines(DEVICE.complete_url, 100, size)
    assert qr_lines(DEVICE.complete_url, 100, size - 1) == []
    assert qr_lines(DEVICE.complete_url, 20, 50) == []
    assert qr_lines("x" * 5000, 1000, 1000) == []


@pytest.mark.parametrize(
    ("columns", "lines", "environ", "encoding", "there"),
    [
        (80, 40, {"TERM": "xterm"}, "utf-8", True),
        (30, 40, {"TERM": "xterm"}, "utf-8", False),
        (80, 20, {"TERM": "xterm"}, "utf-8", False),
        (0, 0, {"TERM": "xterm"}, "utf-8", False),
        (80, 40, {"TERM": "dumb"}, "utf-8", False),
        (80, 40, {"TERM": "xterm"}, "iso-8859-1", False),
    ],
)
async def test_a_qr_code_is_shown_where_it_can_be(
    columns: int, lines: int, environ: dict[str, str], encoding: str, there: bool
) -> None:
    with Pty(columns, lines) as pty:
        stderr = pty.stream()
        stderr.reconfigure(encoding=encoding, errors="backslashreplace")  # type: ignore[attr-defined]
        answer = await terminal(
            DEVICE, stdin=pty.stream("r"), stderr=stderr, environ={"PATH": "/x", **environ}
        )
        assert answer is None
        await pty.shows("goes on by itself")
        assert ("█▀" in pty.seen) == there


# --- over terminals -------------------------------------------------------------------------------------


@asynccontextmanager
async def asked(
    pty: Pty, prompt: LoginPrompt = LOGIN, **options: Any
) -> AsyncIterator[asyncio.Task[str | None]]:
    """``terminal`` at work; when this is left the terminal is as it was."""
    before = pty.mode()
    options = {"environ": NOWHERE, **options}
    async with asyncio.TaskGroup() as group:
        task = group.create_task(terminal(prompt, stdin=pty.stream("r"), stderr=pty.stream(), **options))
        await pty.shows("> ")
        yield task
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task])
    assert pty.mode() == before


@pytest.mark.parametrize("prompt", [LOGIN, AWAY, changed(LOGIN, problem="the state in it is another one")])
async def test_f12_8_what_is_pasted_is_returned_and_never_shown(prompt: LoginPrompt) -> None:
    with Pty() as pty:
        async with asked(pty, prompt) as task:
            await pty.type(PASTE + "\n")
        assert await task == PASTE
        await pty.shows(f"({len(PASTE)} characters)")
        await pty.ends_with("\r\n")
        assert "a-secret-code" not in pty.seen
        assert "ccc" not in pty.seen


async def test_asked_again_the_reason_is_said_and_no_browser_is_opened() -> None:
    with Pty() as pty:
        prompt = changed(LOGIN, problem="the state in it is another one")
        async with asked(pty, prompt, environ={"BROWSER": "/bin/false"}) as task:
            await pty.type("code\n")
        assert await task == "code"
        assert "That was not it: the state in it is another one." in pty.seen
        assert URL not in pty.seen
        assert "rowser" not in pty.seen


async def test_what_is_edited_is_counted() -> None:
    with Pty() as pty:
        async with asked(pty) as task:
            await pty.type("abc")
            await pty.shows("> •••")
            await pty.type("\x7f" * 3 + "x" * 20)
            await pty.shows("> •••••••••••• (20 characters)")
            await pty.type("\x15")
            await pty.type("end\n")
        assert await task == "end"


@pytest.mark.parametrize("keys", ["", "half of it"])
async def test_f12_8_given_up_the_terminal_is_free(keys: str) -> None:
    """The listener won: it ends at once, and what is typed next goes to whoever reads next."""
    with Pty() as pty:
        async with asked(pty) as task:
            await pty.type(keys)
            await pty.shows("> " + "•" * len(keys))
            task.cancel()
        assert task.cancelled()
        await pty.ends_with("\r\n")
        await pty.type("next\n")
        await pty.shows("next")
        assert os.read(pty.fd, 100) == b"next\n"


async def test_ctrl_d_means_that_nothing_will_be_pasted() -> None:
    with Pty() as pty:
        async with asked(pty) as task:
            await pty.type("\x04")
        assert await task is None


async def test_what_must_not_be_read_is_not_read() -> None:
    with Pty() as pty:
        stdin, stderr = pty.stream("r"), pty.stream()
        for prompt, paste in ((LOGIN, False), (DEVICE, True)):
            answer = await terminal(prompt, paste=paste, stdin=stdin, stderr=stderr, environ=NOWHERE)
            assert answer is None
        stdin.close()
        assert await terminal(LOGIN, stdin=stdin, stderr=stderr, environ=NOWHERE) is None
        stderr.close()
        assert await terminal(LOGIN, stdin=stdin, stderr=stderr, environ=NOWHERE) is None


async def test_without_any_streams_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("sys.stderr", None)
    assert await terminal(LOGIN, environ=NOWHERE) is None


async def test_two_logins_at_one_terminal_have_one_reader() -> None:
    with Pty() as pty:
        async with asked(pty) as task:
            other = await terminal(
                changed(LOGIN, server="other"), stdin=pty.stream("r"), stderr=pty.stream(), environ=NOWHERE
            )
            assert other is None
            await pty.type("mine\n")
        assert await task == "mine"


# --- with a browser -------------------------------------------------------------------------------------


def browser(folder: Path, then: str) -> dict[str, str]:
    file = folder / "browse"
    file.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{folder}/url'\n{then}\n")
    file.chmod(0o755)
    return {"PATH": os.defpath, "BROWSER": str(file), "TERM": "xterm"}


async def test_f12_8_a_browser_that_fails_is_told_while_the_paste_is_awaited(tmp_path: Path) -> None:
    with Pty() as pty:
        os.mkfifo(tmp_path / "go")
        async with asked(pty, environ=browser(tmp_path, f"read x < '{tmp_path}/go'; exit 1")) as task:
            await pty.type("half")
            await pty.shows("> ••••")
            (tmp_path / "go").write_text("go\n")
            await pty.shows("No browser could be opened: browse ended with exit code 1.")
            # The line that is typed in stands below it again, and holds what it held.
            await pty.shows("yourself.\r\n> ••••")
            await pty.type(" whole\n")
        assert await task == "half whole"
        assert (tmp_path / "url").read_text() == URL + "\n"


@pytest.mark.parametrize("ended_by", ["paste", "listener"])
async def test_a_browser_that_is_open_stays_open(tmp_path: Path, ended_by: str) -> None:
    with Pty() as pty:
        os.mkfifo(tmp_path / "pid")
        fifo = os.open(tmp_path / "pid", os.O_RDWR | os.O_NONBLOCK)
        there = asyncio.Event()
        asyncio.get_running_loop().add_reader(fifo, there.set)
        try:
            environ = browser(tmp_path, f"echo $$ > '{tmp_path}/pid'; exec sleep 600")
            async with asked(pty, environ=environ) as task:
                async with asyncio.timeout(PATIENCE):
                    await there.wait()
                if ended_by == "paste":
                    await pty.type("code\n")
                else:
                    task.cancel()
            pid = int(os.read(fifo, 100))
        finally:
            asyncio.get_running_loop().remove_reader(fifo)
            os.close(fifo)
        process = procs.read(pid)
        os.kill(pid, signal.SIGKILL)
        assert process is not None and process.state != "Z"
        assert procs.wait_gone(pid)
        assert task.cancelled() == (ended_by == "listener")


async def test_a_device_login_opens_the_address_with_the_code(tmp_path: Path) -> None:
    with Pty() as pty:
        environ = browser(tmp_path, "exit 0")
        answer = await terminal(DEVICE, stdin=pty.stream("r"), stderr=pty.stream(), environ=environ)
        assert answer is None
        assert (tmp_path / "url").read_text() == DEVICE.complete_url + "\n"


# --- a whole program ------------------------------------------------------------------------------------

PROGRAM = """
import asyncio, sys
from moorings import LoginPrompt
from moorings.cli.prompt import terminal

login = LoginPrompt(server="s", resource="https://x/mcp", issuer="https://as", url="https://as/a", seconds=60,
                    redirect_uri="http://127.0.0.1:1/x", listening=True)

async def main():
    try:
        async with asyncio.timeout(float(sys.argv[1])):
            print("got", len(await terminal(login) or ""), flush=True)
    except TimeoutError:
        print("time is over", flush=True)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
print("asked:", input("more? ") == "yes", flush=True)
"""


@pytest.mark.parametrize(("keys", "code"), [(PASTE + "\n", 0), ("\x04", 0), ("half\x03", 130)])
async def test_a_program_at_a_terminal(keys: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with Pty() as pty:
        before = pty.mode()
        with pty.run(file, "60", environ={"BROWSER": "none"}) as running:
            await pty.shows("> ")
            await pty.type(keys)
            if code == 0:
                await pty.shows(f"got {len(PASTE) if len(keys) > 1 else 0}")
                await pty.shows("more? ")
                assert pty.mode()[3] & termios.ECHO
                await pty.type("yes\n")
                await pty.shows("asked: True")
            assert await running.ended() == code
        assert pty.mode() == before


async def test_a_program_whose_login_ends_by_its_time_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    with Pty() as pty:
        with pty.run(file, "1", environ={"BROWSER": "none"}) as running:
            await pty.shows("time is over")
            await pty.shows("more? ")
            await pty.type("yes\n")
            await pty.shows("asked: True")
            assert await running.ended() == 0
