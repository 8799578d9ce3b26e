"""`moor logout`, `moor auth refresh`, `moor auth export` and `moor auth import`, as people and programs use them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings.auth import transfer
from moorings.auth.model import Credential
from moorings.cli import main
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.host_kit import changed, logged_in, put, stored
from tests.faults.auth_server import AuthFaults, in_thread

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., tuple[int, str, str]]
WORDS = "a whole sentence, as it should be"
CONFIG = """
[host]
state_dir = "state"
[servers.tickets]
url = "{url}"
bounds = {{ auth = 10 }}
[servers.other]
url = "{origin}/other"
[servers.plain]
command = "x"
[servers.off]
url = "https://off.example/mcp"
enabled = false
"""


@pytest.fixture
def server() -> Iterator[AuthFaults]:
    with in_thread() as server:
        yield server


@pytest.fixture
def kept(server: AuthFaults, tmp_path: Path) -> Credential:
    """Somebody has logged in to tickets."""
    return asyncio.run(logged_in(server, tmp_path / "state" / "credentials"))


@pytest.fixture
def run(server: AuthFaults, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    file = tmp_path / "m.toml"
    file.write_text(CONFIG.format(url=server.url, origin=server.origin))

    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--config", str(file)])
        out, err = capsys.readouterr()
        assert WORDS not in out + err
        return code, out, err

    return run


@pytest.fixture
def words(tmp_path: Path) -> str:
    """A file with the passphrase."""
    (tmp_path / "words").write_text(WORDS + "\n")
    return str(tmp_path / "words")


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "COST", 2**4)


def left(tmp_path: Path) -> list[Credential]:
    return asyncio.run(stored(tmp_path / "state" / "credentials"))


# --- logout -------------------------------------------------------------------------------------------------------


def test_logout_for_people(run: Run, kept: Credential, server: AuthFaults, tmp_path: Path) -> None:
    code, out, err = run("logout", "tickets", "other")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "tickets: logged out",
        f"  issuer    {server.issuer}",
        f"  client    {kept.key.client_id} (its registration was deleted)",
        "  refresh   token revoked",
        "  access    token revoked",
        "other: there is no login",
    ]
    assert left(tmp_path) == [] and server.families[0].revoked
    assert "  login     none\n" in run("auth", "status", "tickets")[1]


def test_logout_as_json(run: Run, kept: Credential, server: AuthFaults) -> None:
    server.set(on={"revoke": "status:503"})
    code, out, err = run("logout", "--all", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert set(told) == {"file", "servers"} and set(told["servers"]) == {"tickets", "other"}
    tickets = told["servers"]["tickets"]
    assert set(tickets) == {"store", "principal", "resource", "logins", "all_revoked", "problems", "next"}
    assert tickets["all_revoked"] is False and "a person must log in" in tickets["next"]
    (login,) = tickets["logins"]
    assert (login["refresh_token"], login["access_token"], login["client"]) == ("failed", "failed", "deleted")
    assert "HTTP 503" in login["problems"][0]
    other = told["servers"]["other"]
    assert other["logins"] == [] and other["all_revoked"] is True


def test_what_was_not_revoked_is_a_message(
    run: Run, kept: Credential, server: AuthFaults, tmp_path: Path
) -> None:
    server.set(on={"revoke": "hold", "client": "hold"})
    began = time.monotonic()
    code, out, err = run("logout", "tickets", "--timeout", "0.5")
    assert code == 0 and time.monotonic() - began < 5.0
    assert "  refresh   token NOT revoked: it holds until it ends\n" in out
    assert "(its registration was forgotten here)" in out
    assert "moor: tickets: the refresh token was not revoked: " in err and "within" in err
    assert left(tmp_path) == []
    server.release("revoke")
    server.release("client")


def test_logout_of_this_machine_alone(run: Run, kept: Credential, server: AuthFaults, tmp_path: Path) -> None:
    code, out, _ = run("logout", "tickets", "--local")
    assert code == 0 and "  refresh   token not revoked: the server was not asked\n" in out
    assert not server.at("revoke") and left(tmp_path) == []


def test_a_store_that_fails_in_one_server_is_told_after_the_others(
    run: Run, kept: Credential, server: AuthFaults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(
        kept, key=msgspec.structs.replace(kept.key, resource=server.origin + "/other")
    )
    asyncio.run(put(tmp_path / "state" / "credentials", other))
    remove = FileStore.remove

    async def failing(store: FileStore, key: str, lease: Any) -> None:
        if key == kept.key.digest():
            raise StoreError("the disk is gone", store=store.name)
        await remove(store, key, lease)

    monkeypatch.setattr(FileStore, "remove", failing)
    code, out, err = run("logout", "--all")
    assert code == 3 and out.startswith("other: logged out\n")
    assert "server 'tickets': the store of logins: " in err and "the disk is gone; nothing was removed" in err
    code, out, _ = run("logout", "--all", "--json")
    assert code == 3 and json.loads(out)["error"]["code"] == "MOOR_STORE_FAILED"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (["logout"], 2, "or give --all"),
        (["logout", "tickets", "--all"], 2, "either names of servers or --all"),
        (["logout", "ticket"], 7, "did you mean 'tickets'"),
        (["logout", "plain"], 2, "is a program"),
        (["logout", "off"], 2, "disabled"),
        (["logout", "tickets", "--timeout", "0"], 2, "no time at all"),
        (["auth", "refresh"], 2, "Missing argument"),
        (["auth", "refresh", "plain"], 2, "is a program"),
        (["auth", "export", "tickets"], 2, "--to"),
        (["auth", "export", "--to", "x"], 2, "NAME"),
        (["auth", "export", "plain", "--to", "x"], 2, "is a program"),
        (["auth", "import"], 2, "FILE"),
    ],
)
def test_a_wrong_command_line(line: list[str], code: int, said: str, run: Run) -> None:
    got, out, err = run(*line)
    assert (got, out) == (code, "") and said in err


# --- refresh ------------------------------------------------------------------------------------------------------


def test_refresh(run: Run, kept: Credential, server: AuthFaults, tmp_path: Path) -> None:
    code, out, err = run("auth", "refresh", "tickets")
    assert (code, err) == (0, "") and out.startswith("tickets: renewed\n  login     good\n")
    assert "  expires   " in out and len(server.grants("refresh_token")) == 1
    told = json.loads(run("auth", "refresh", "tickets", "--json")[1])
    assert told["server"] == "tickets" and told["login"]["version"] == kept.version + 2
    (after,) = left(tmp_path)
    assert after.version == kept.version + 2


def test_a_refresh_that_brings_nothing(
    run: Run, kept: Credential, server: AuthFaults, tmp_path: Path
) -> None:
    server.set(on={"token:refresh_token": "status:503"})
    code, out, err = run("auth", "refresh", "tickets")
    assert (code, out) == (3, "") and "server 'tickets'" in err and "HTTP 503" in err
    code, out, _ = run("auth", "refresh", "other", "--json")
    assert code == 4
    error = json.loads(out)["error"]
    assert (error["code"], error["server"], error["reason"]) == ("MOOR_NEEDS_LOGIN", "other", "login")
    asyncio.run(changed(tmp_path / "state" / "credentials", state="lost", reason="it died", version=9))
    code, _, err = run("auth", "refresh", "tickets")
    assert code == 4 and "it died" in err and "moor login" in err


# --- export and import --------------------------------------------------------------------------------------------


def test_a_login_goes_to_another_machine(
    run: Run, kept: Credential, server: AuthFaults, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "logins"
    code, out, err = run("auth", "export", "tickets", "--to", str(file), "--passphrase-file", words)
    assert code == 0 and out.startswith(f"{file}: copied\n  {server.resource} at {server.issuer}, client ")
    assert "both logins end as soon as both are used" in err and "--move" in err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and len(left(tmp_path)) == 1
    code, _, err = run("auth", "export", "tickets", "--to", str(file), "--passphrase-file", words)
    assert code == 2 and "it is there already" in err
    file.unlink()
    code, out, err = run("auth", "export", "tickets", "--to", str(file), "--passphrase-file", words, "--move")
    assert (code, err) == (0, "") and out.startswith(f"{file}: moved\n") and left(tmp_path) == []
    code, out, err = run("auth", "import", str(file), "--passphrase-file", words)
    assert (code, err) == (0, "")
    assert out.startswith(f"{file}: imported into file:{tmp_path}/state/credentials\n")
    assert out.endswith("\nused for: tickets\n")
    assert msgspec.structs.replace(left(tmp_path)[0], version=kept.version) == kept
    code, out, err = run("auth", "import", str(file), "--passphrase-file", words)
    assert code == 0 and "  1 of them were here already\n" in out
    assert run("call", "tickets__echo", "text=x")[0] == 0


def test_import_and_export_as_json(
    run: Run, kept: Credential, server: AuthFaults, words: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "logins")
    code, out, err = run("auth", "export", "tickets", "--to", file, "--passphrase-file", words, "--json")
    assert code == 0 and "--move" in err
    told = json.loads(out)
    assert told["file"] == file and told["report"]["moved"] is False
    assert [each["resource"] for each in told["report"]["logins"]] == [server.resource]
    asyncio.run(changed(tmp_path / "state" / "credentials", scopes=("more",)))
    code, out, _ = run("auth", "import", file, "--passphrase-file", words, "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["reason"]) == (2, "MOOR_LOGIN_FILE", "exists")
    assert error["file"] == file
    code, out, err = run("auth", "import", file, "--passphrase-file", words, "--json", "--replace")
    told = json.loads(out)
    assert (code, err) == (0, "") and (told["servers"], told["report"]["replaced"]) == (["tickets"], 1)


def test_an_import_that_no_server_uses(run: Run, kept: Credential, words: str, tmp_path: Path) -> None:
    file = str(tmp_path / "logins")
    assert run("auth", "export", "tickets", "--to", file, "--passphrase-file", words, "--move")[0] == 0
    config = tmp_path / "m.toml"
    config.write_text(
        re.sub(r'(?m)^url = ".*/mcp"$', 'url = "https://x.example/mcp"', config.read_text(), count=1)
    )
    code, _, err = run("auth", "import", file, "--passphrase-file", words)
    assert code == 0 and "no server of this configuration uses them" in err


def test_files_that_cannot_be_taken(run: Run, kept: Credential, words: str, tmp_path: Path) -> None:
    file = tmp_path / "logins"
    assert run("auth", "export", "tickets", "--to", str(file), "--passphrase-file", words)[0] == 0
    whole = file.read_bytes()
    (tmp_path / "wrong").write_text("another sentence")
    for data, given, said in (
        (whole, str(tmp_path / "wrong"), "the passphrase is not that of the file"),
        (whole[:-30], words, "cut off"),
        (whole.replace(b'"format":1', b'"format":2'), words, "format 2"),
        (b"hello", words, "no file of logins"),
    ):
        file.write_bytes(data)
        code, out, err = run("auth", "import", str(file), "--passphrase-file", given)
        assert (code, out) == (2, "") and said in err, err
    code, _, err = run("auth", "import", str(tmp_path / "none"), "--passphrase-file", words)
    assert code == 2 and "cannot be read" in err


def test_the_passphrase_from_a_file_or_a_pipe(
    run: Run, kept: Credential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "logins"
    export = ("auth", "export", "tickets", "--to", str(file), "--passphrase-file")
    for name, data, said in (
        ("empty", b"\n", "there is no passphrase in"),
        ("latin", b"sch\xfcssel-wort", "not UTF-8"),
        ("long", b"x" * 5000, "too long"),
        ("short", b"1234567", "at least 8"),
    ):
        (tmp_path / name).write_bytes(data)
        code, _, err = run(*export, str(tmp_path / name))
        assert code == 2 and said in err
    code, _, err = run(*export, str(tmp_path / "none"))
    assert code == 2 and "No such file" in err
    code, _, err = run(*export[:-1])
    assert code == 2 and "nobody can be asked" in err and not file.exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(WORDS.encode() + b"\r\n")))
    assert run(*export, "-")[0] == 0
    (tmp_path / "words").write_text(WORDS)
    assert run("auth", "import", str(file), "--passphrase-file", str(tmp_path / "words"))[0] == 0


AT_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("moorings", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A command at a terminal of its own, whose Ctrl-C reaches it."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "CI": "", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", AT_TERMINAL, *words], stdin=theirs, stdout=theirs, stderr=theirs,
            env=env, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.said = ""

    def until(self, text: str) -> None:
        """Read until it says so, from where it was read before."""
        end = time.monotonic() + 60
        while text not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self._ours], [], [], 1.0)[0]:
                try:
                    self.said += os.read(self._ours, 4096).decode()
                except OSError:  # it has ended
                    raise AssertionError(self.said) from None
        self.said = self.said.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        code = self.process.wait(60)
        os.close(self._ours)
        return code


def test_a_person_is_asked_for_the_passphrase(
    kept: Credential, server: AuthFaults, run: Run, tmp_path: Path
) -> None:
    file, config = tmp_path / "logins", str(tmp_path / "m.toml")
    terminal = Terminal("auth", "export", "tickets", "--to", str(file), "--config", config)
    terminal.until("Passphrase: ")
    terminal.type("short\n")
    terminal.until("fewer than 8 characters")
    terminal.until("Passphrase: ")
    terminal.type("not the same\n")
    terminal.until("Repeat for confirmation: ")
    terminal.type("by two keys\n")
    terminal.until("do not match")
    for question in ("Passphrase: ", "Repeat for confirmation: "):
        terminal.until(question)
        terminal.type(WORDS + "\n")
    terminal.until("copied")
    assert terminal.ended() == 0 and WORDS not in terminal.said
    terminal = Terminal("auth", "import", str(file), "--config", config)
    terminal.until("Passphrase: ")
    terminal.type(WORDS + "\n")
    terminal.until("used for: tickets")
    assert terminal.ended() == 0 and WORDS not in terminal.said
    terminal = Terminal("auth", "import", str(file), "--config", config)
    terminal.until("Passphrase: ")
    terminal.type("\x03")
    terminal.until("interrupted")
    assert terminal.ended() == 130
