"""`make demo-oauth` does what it shows, leaves nothing however it ends, and says why when it cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.cli import ptys
from tests.real.oidc import Browser

TOOLS = Path(__file__).resolve().parent.parent.parent / "tools"
DEMO = TOOLS / "demo_oauth.py"
PORTS = re.compile(r"http://127\.0\.0\.1:(\d+)")
PATIENCE = 100.0


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "CI": "true"}


def demo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DEMO), *words],
        stdin=subprocess.DEVNULL,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def nothing_is_left(folder: Path, shown: str) -> None:
    """Processes are the leak gate's matter."""
    assert list(folder.iterdir()) == []
    for port in set(PORTS.findall(shown)):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", int(port))) != 0, f"port {port}"


@pytest.mark.real
def test_a_person_is_played_and_everything_is_gone(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "log in: moor login tides" in done.stdout
    assert "logged in to tides at http://127.0.0.1:" in done.stdout
    assert "which says “Logged in to tides”" in done.stdout
    assert "captain, with tides:read" in done.stdout
    assert "login     good" in done.stdout
    assert "refresh   token revoked" in done.stdout
    assert "✓ everything shown was checked" in done.stdout
    assert done.stderr == ""
    nothing_is_left(tmp_path, done.stdout)


@pytest.mark.real
@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGINT, "Moorings"), (signal.SIGTERM, "$ moor test"), (signal.SIGINT, "$ moor login")],
)
def test_what_breaks_it_off_leaves_nothing(number: signal.Signals, when: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", str(DEMO)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(tmp_path),
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        shown = ""
        while when not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        process.send_signal(number)
        process.send_signal(number)  # in a hurry
        shown += process.stdout.read()
    assert process.wait(PATIENCE) == 130, shown
    assert shown.endswith("interrupted; both programs were stopped\n")
    nothing_is_left(tmp_path, shown)


@pytest.mark.real
async def test_you_log_in_yourself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptys, "PATIENCE", PATIENCE)
    more = {
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(TOOLS), str(ptys.ROOT / "src")]),
        "PYTHONWARNINGS": "",
        "BROWSER": "none",
        "TERM": "dumb",
    }
    with ptys.Pty() as pty, pty.run(DEMO, "me", environ=more) as program:
        await pty.shows("Ctrl-C ends the login.")
        url = next(line for line in pty.seen.split() if "/auth?" in line)
        assert "captain and ahoy" in pty.seen
        back = Browser("captain").visit(url, parse_qs(urlsplit(url).query)["redirect_uri"][0])
        await pty.type(back + "\n")
        await pty.shows("everything shown was checked")
        assert await program.ended() == 0
        nothing_is_left(tmp_path, pty.seen)


def test_it_says_why_it_cannot_be_shown(tmp_path: Path) -> None:
    done = demo(tmp_path, "me")
    assert done.returncode == 1
    assert "✗ the demo failed: PERSON=me needs a terminal" in done.stdout
    done = demo(tmp_path, "you")
    assert "✗ the demo failed: PERSON is 'you'; it is played or me" in done.stdout
    assert done.stderr == ""
