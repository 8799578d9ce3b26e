"""`moor login` as a command: its exit codes, and what is said where nobody can be asked. F12.10."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moorings.cli import main, prompt
from moorings.cli.browser import BrowserTry
from tests.auth.login_kit import browse
from tests.faults.auth_server import in_thread

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server() -> Iterator[Any]:
    with in_thread() as server:
        yield server


@pytest.fixture
def run(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """There is no terminal; a browser that is opened belongs to a person who says yes."""
    file = tmp_path / "m.toml"
    file.write_text(f'[host]\nstate_dir = "state"\n[servers.tickets]\nurl = "{server.url}"\n')

    async def opened(url: str, _: object) -> BrowserTry:
        await browse(url)
        return BrowserTry("true", "")

    monkeypatch.setattr(prompt, "open_browser", opened)
    monkeypatch.setenv("BROWSER", "true")
    monkeypatch.delenv("CI", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["login", *words, "--config", str(file)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.mark.parametrize(
    ("words", "environ", "why"),
    [
        ((), {}, "stdin is not a terminal"),
        (("--flow", "paste"), {}, "stdin is not a terminal"),
        (("--flow", "browser"), {"CI": "true"}, "the variable CI is set"),
        (("--flow", "device", "--no-input"), {}, "--no-input was given"),
    ],
)
def test_where_nobody_can_be_asked_it_ends_at_once(
    words: tuple[str, ...],
    environ: dict[str, str],
    why: str,
    run: Run,
    server: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, out, err = run("tickets", *words)
    assert (code, out) == (4, "")
    assert f"nobody can be asked: {why}" in err and "moor login tickets" in err
    assert len(server.requests) == 1, "whether it wants a login"


def test_a_flow_that_is_named_needs_no_terminal_and_then_nobody_is_asked(run: Run, server: Any) -> None:
    code, out, _ = run("tickets", "--flow", "browser")
    assert code == 0 and out.startswith(f"logged in to tickets at {server.issuer}")
    code, out, err = run("tickets", "--no-input")
    assert (code, err) == (0, "") and "the login there is works" in out
    code, out, err = run("--all", "--json")
    assert (code, err) == (0, "") and json.loads(out)["servers"]["tickets"]["login"]["fresh"] is False


def test_f12_10_how_it_fails_is_its_exit_code(run: Run, server: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run("tickets", "--flow", "browser", "--port", str(port))
    assert code == 3 and f"port {port} of 127.0.0.1 is in use already" in err
    server.set(deny="access_denied")
    code, _, err = run("tickets", "--flow", "browser")
    assert code == 4 and "access_denied" in err
    server.set(deny=None, open=True)
    code, _, err = run("tickets", "--flow", "browser")
    assert code == 4 and "answers without a login" in err
    for words in (("--flow", "browser"), ("--no-input",)):
        assert run("--all", *words) == (0, "", "moor: tickets: answers without a login\n")
    code, _, err = run("nobody")
    assert code == 7


def test_all_passes_over_a_server_with_a_key_of_its_own(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "m.toml").open("a") as file:
        file.write(
            '[servers.key]\nurl = "http://127.0.0.1:1/mcp"\nheaders = { Authorization = "Bearer k-s3cret" }\n'
        )
    code, out, err = run("--all", "--flow", "browser")
    assert code == 0 and out.startswith("logged in to tickets") and "moor: key: its headers hold" in err
    code, _, err = run("key", "--flow", "browser")
    assert code == 2 and "'key'" in err and "s3cret" not in err


def test_f12_10_nobody_comes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def shut(*_: object) -> BrowserTry:
        return BrowserTry("true", "")

    monkeypatch.setattr(prompt, "open_browser", shut)
    code, out, err = run("tickets", "--flow", "browser", "--timeout", "1s")
    assert (code, out) == (5, "") and "nobody logged in within 1 s" in err
