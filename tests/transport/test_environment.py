"""What a server finds in its environment, and where its command is looked for: tables, with the platform injected."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings import AsyncHost, ConfigError
from moorings.transport.environment import (
    BASELINE,
    BASELINE_WINDOWS,
    NotFound,
    child_environment,
    find_command,
)
from tests.transport.kit import Line

HOST = {
    "PATH": "/usr/bin",
    "HOME": "/home/me",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LC_TIME": "en_GB",
    "TMPDIR": "/var/tmp",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/etc/ca.pem",
    "NODE_EXTRA_CA_CERTS": "/etc/ca.pem",
    "OPENAI_API_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "PYTHONPATH": "/host/only",
    "VIRTUAL_ENV": "/host/venv",
    "LD_PRELOAD": "/tmp/x.so",
    "NODE_OPTIONS": "--require x",
    "BASH_FUNC_x%%": "() { evil; }",
}


# --- the environment


def test_f14_1_its_own_variables_are_added_to_the_baseline() -> None:
    """F14.1: ``env = {A = "1"}`` takes nothing away."""
    assert child_environment({"A": "1"}, HOST, windows=False) == {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "LANG": "de_DE.UTF-8",
        "LC_ALL": "C.UTF-8",
        "LC_TIME": "en_GB",
        "TMPDIR": "/var/tmp",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "NODE_EXTRA_CA_CERTS": "/etc/ca.pem",
        "PYTHONUTF8": "1",
        "A": "1",
    }


async def test_f14_1_a_real_child_has_its_path_its_home_and_its_own() -> None:
    """F14.1: and no key of the host."""
    host = {"PATH": os.defpath, "HOME": "/home/me", "OPENAI_API_KEY": "secret"}
    environment = child_environment({"A": "ü"}, host)
    code = "import os, json; print(json.dumps(dict(os.environ)), flush=True)"
    line = Line([sys.executable, "-S", "-c", code])
    line.transport._settings = _replace(line.transport._settings, environment=environment)
    line.transport.start()
    (told,) = await line.heard.until(lambda: line.heard.lines)
    found = json.loads(told)
    found.pop("LC_CTYPE", None)  # Python's own doing in a C locale
    assert found.pop("MOORINGS_OWNER")  # by which its descendants are found
    assert found == {"PATH": os.defpath, "HOME": "/home/me", "PYTHONUTF8": "1", "A": "ü"}
    await line.stop()


def _replace(settings: Any, **fields: Any) -> Any:
    import dataclasses

    return dataclasses.replace(settings, **fields)


def test_f16_5_keys_of_the_host_are_not_for_the_servers_of_strangers() -> None:
    """F16.5: nor what would change how a program is loaded."""
    given = child_environment({}, HOST, windows=False)
    kept_from_it = {"OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "LD_PRELOAD", "NODE_OPTIONS"}
    assert not kept_from_it & set(given)
    for secret in ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL"):
        assert not [name for name in BASELINE | BASELINE_WINDOWS if secret in name]


def test_what_is_inherited_by_name_or_altogether() -> None:
    named = child_environment({}, HOST, inherit=["OPENAI_API_KEY", "NOT_SET"], windows=False)
    assert named["OPENAI_API_KEY"] == "secret"
    assert "NOT_SET" not in named and "PYTHONPATH" not in named
    everything = child_environment({"A": "1", "HOME": "/own"}, HOST, inherit=True, windows=False)
    assert everything == {**{k: v for k, v in HOST.items() if "()" not in v}, "PYTHONUTF8": "1", "A": "1",
                          "HOME": "/own"}  # fmt: skip
    assert child_environment({}, HOST, inherit=[], windows=False) == child_environment(
        {}, HOST, windows=False
    )


def test_functions_of_a_shell_are_code_and_stay_out() -> None:
    host = {"PATH": "/bin", "HOME": "() { :; }; evil", "BASH_FUNC_x%%": "() { evil; }"}
    for inherit in (False, True, ["BASH_FUNC_x%%"]):
        assert child_environment({}, host, inherit=inherit, windows=False) == {
            "PATH": "/bin",
            "PYTHONUTF8": "1",
        }


@pytest.mark.parametrize(
    ("own", "inherit", "value"),
    [({}, False, "1"), ({"PYTHONUTF8": "0"}, False, "0"), ({}, True, "0"), ({}, ["PYTHONUTF8"], "0")],
)
def test_f13_10_python_servers_speak_utf_8_unless_something_else_is_said(
    own: dict[str, str], inherit: Any, value: str
) -> None:
    """F13.10: by its own env, or by what it inherits."""
    for windows in (False, True):
        given = child_environment(own, {"PYTHONUTF8": "0"}, inherit=inherit, windows=windows)
        assert given["PYTHONUTF8"] == value


def test_names_have_no_letter_case_on_windows() -> None:
    host = {
        "Path": r"C:\Windows",
        "SystemRoot": r"C:\Windows",
        "ProgramFiles(x86)": "x",
        "My_Key": "s",
        "Temp": "t",
    }
    assert child_environment({}, host, windows=True) == {
        "Path": r"C:\Windows",
        "SystemRoot": r"C:\Windows",
        "ProgramFiles(x86)": "x",
        "Temp": "t",
        "PYTHONUTF8": "1",
    }
    assert child_environment({}, host, inherit=["MY_KEY"], windows=True)["My_Key"] == "s"
    changed = child_environment({"PATH": r"D:\own", "pythonutf8": "0"}, host, windows=True)
    assert changed["PATH"] == r"D:\own" and "Path" not in changed
    assert changed["pythonutf8"] == "0" and "PYTHONUTF8" not in changed
    assert "Path" not in child_environment({}, host, windows=False)


@given(
    own=st.dictionaries(st.text(min_size=1), st.text()),
    host=st.dictionaries(st.one_of(st.sampled_from(sorted(BASELINE)), st.text(min_size=1)), st.text()),
    windows=st.booleans(),
)
def test_its_own_always_wins_and_nothing_is_made_up(
    own: dict[str, str], host: dict[str, str], windows: bool
) -> None:
    given = child_environment(own, host, windows=windows)
    assert {**given, **own} == given
    for name in set(given) - set(own) - {"PYTHONUTF8"}:
        assert given[name] == host[name]
        assert name.upper() in BASELINE | BASELINE_WINDOWS or name in BASELINE or name.startswith("LC_")


# --- the command


class Files:
    """A file system of names: those that may be run, and those that are only there."""

    def __init__(self, runs: Iterable[str], there: Iterable[str] = ()) -> None:
        self.runs = set(runs)
        self.there = self.runs | set(there)
        self.asked: list[str] = []

    def usable(self, path: str) -> bool:
        self.asked.append(path)
        return path in self.runs

    def find(
        self, command: str, environment: dict[str, str], cwd: str | None = None, *, windows: bool = False
    ) -> str:
        return find_command(
            command, environment, cwd, windows=windows, usable=self.usable, exists=self.there.__contains__
        )


@pytest.mark.parametrize(
    ("command", "path", "cwd", "found"),
    [
        ("npx", "/a:/b:/c", None, "/b/npx"),
        ("npx", "/c:/b", None, "/c/npx"),
        ("npx", ":/b:", None, "/b/npx"),
        ("npx", "rel:/b", "/proj", "/proj/rel/npx"),
        ("/b/npx", "", None, "/b/npx"),
        ("./npx", "/b", "/proj/rel", "/proj/rel/./npx"),
        ("rel/npx", "", "/proj", "/proj/rel/npx"),
        ("../b/npx", "", "/x", "/x/../b/npx"),
    ],
)
def test_f14_3_a_command_is_found_on_the_path_of_the_child(
    command: str, path: str, cwd: str | None, found: str
) -> None:
    """F14.3: in the order of its PATH; a path is taken as it is, from where the child will be."""
    files = Files(["/b/npx", "/c/npx", "/proj/rel/npx", "/proj/rel/./npx", "/x/../b/npx"])
    assert files.find(command, {"PATH": path}, cwd) == found


@pytest.mark.parametrize(
    ("command", "environment", "found"),
    [
        ("npx", {"Path": r"C:\n;C:\m", "PATHEXT": ".EXE;.CMD"}, r"C:\n\npx.cmd"),
        ("npx", {"PATH": r"C:\n", "PathExt": ".EXE;.CMD"}, r"C:\n\npx.cmd"),
        ("npx", {"PATH": r"C:\n"}, r"C:\n\npx.cmd"),
        ("npx", {"PATH": r"C:\n", "PATHEXT": ";;"}, r"C:\n\npx.cmd"),
        ("npx.cmd", {"PATH": r"C:\n"}, r"C:\n\npx.cmd"),
        ("NPX.CMD", {"PATH": r"C:\n"}, r"C:\n\NPX.CMD"),
        ("uvx", {"PATH": r"C:\n;C:\m", "PATHEXT": ".COM;.EXE;.CMD"}, r"C:\m\uvx.exe"),
        ("run.v2", {"PATH": r"C:\m"}, r"C:\m\run.v2.exe"),
        (r"C:\n\npx", {"PATH": ""}, r"C:\n\npx.cmd"),
        (r"C:/m/uvx", {"PATH": ""}, r"C:/m/uvx.exe"),
        (r".\npx", {"PATH": ""}, r"C:\proj\.\npx.cmd"),
        (r"\\host\share\t.exe", {"PATH": ""}, r"\\host\share\t.exe"),
        ("t", {"PATH": r"tools;C:\n"}, r"C:\proj\tools\t.exe"),
    ],
)
def test_f14_3_on_windows_the_endings_of_pathext_are_tried(
    command: str, environment: dict[str, str], found: str
) -> None:
    """F14.3: ``npx`` is ``npx.cmd`` there, whatever the letter case of the variables."""
    files = Files(
        [
            *(r"C:\n\npx.cmd", r"C:\n\NPX.CMD", r"C:\m\uvx.exe", r"C:\m\run.v2.exe", r"C:/m/uvx.exe"),
            *(r"C:\proj\.\npx.cmd", r"\\host\share\t.exe", r"C:\proj\tools\t.exe"),
        ]
    )
    assert files.find(command, environment, r"C:\proj", windows=True) == found


def test_f14_3_not_found_says_where_it_looked() -> None:
    """F14.3: each place once, in order, in the text and as a list."""
    with pytest.raises(NotFound) as caught:
        Files([]).find("npx", {"PATH": "/a:/b:/a"})
    assert caught.value.looked == ("/a/npx", "/b/npx", "/a/npx")
    assert str(caught.value) == "'npx' was not found in the server's PATH; looked in /a, /b"
    with pytest.raises(NotFound) as caught:
        Files([]).find("npx", {"PATH": r"C:\n", "PATHEXT": ".EXE;.CMD"}, windows=True)
    assert caught.value.looked == (r"C:\n\npx.exe", r"C:\n\npx.cmd")
    assert r"C:\n\npx.exe, C:\n\npx.cmd" in str(caught.value)


@pytest.mark.parametrize(
    ("command", "path", "text"),
    [
        ("npx", "", "'npx' was not found: the PATH of the server is empty"),
        ("npx", ":", "'npx' was not found: the PATH of the server is empty"),
        ("/b/gone", "/b", "there is no /b/gone"),
        ("./gone", "/b", "there is no /proj/./gone"),
        ("plain", "/a:/b", "/b/plain is there but is not a file that may be run"),
        ("/b/plain", "", "/b/plain is there but is not a file that may be run"),
    ],
)
def test_f14_3_the_text_tells_absent_from_not_runnable(command: str, path: str, text: str) -> None:
    """F14.3: what a person must do differs."""
    with pytest.raises(NotFound) as caught:
        Files([], there=["/b/plain"]).find(command, {"PATH": path}, "/proj")
    assert str(caught.value) == caught.value.why == text
    assert caught.value.command == command


def test_f14_4_a_command_line_is_not_a_command() -> None:
    """F14.4: "npx -y pkg" is one name, never split; blanks in a path are part of it."""
    files = Files(["/b/npx", "/my tools/run it"])
    with pytest.raises(NotFound):
        files.find("npx -y pkg", {"PATH": "/b"})
    assert files.find("run it", {"PATH": "/my tools"}) == "/my tools/run it"
    assert files.find("/my tools/run it", {"PATH": ""}) == "/my tools/run it"


async def test_a_relative_command_is_that_of_the_childs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found is what is run: also when both the command and its cwd are relative."""
    folder = tmp_path / "sub"
    folder.mkdir()
    script = folder / "server.sh"
    script.write_text("#!/bin/sh\npwd\nread line\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for command, path in (("./server.sh", ""), ("server.sh", "."), ("server.sh", str(folder))):
        found = find_command(command, {"PATH": path}, "sub")
        assert os.path.isabs(found)
        line = Line([found], cwd="sub")
        line.transport.start()
        assert await line.heard.until(lambda heard=line.heard: heard.lines) == [os.fsencode(folder)]
        assert (await line.stop()).forced == ()


def test_a_folder_of_that_name_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "a" / "tool").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    tool = tmp_path / "b" / "tool"
    tool.write_text("")
    path = {"PATH": f"{tmp_path}/a:{tmp_path}/b"}
    with pytest.raises(NotFound, match="is there but is not a file that may be run"):
        find_command("tool", path, None)
    tool.chmod(0o755)
    assert find_command("tool", path, None) == str(tool)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process stands in a folder that is gone."""
    if os.name == "nt":
        pytest.skip("a folder in use cannot be removed on Windows")
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    yield
    # Back before monkeypatch asks where we are.
    os.chdir(tmp_path)


@pytest.mark.usefixtures("nowhere")
def test_a_deleted_folder_does_not_keep_a_command_from_being_found() -> None:
    files = Files(["/b/npx"])
    assert files.find("/b/npx", {"PATH": "rel"}) == "/b/npx"
    assert files.find("npx", {"PATH": "rel:/b"}) == "/b/npx"
    assert files.find("npx", {"PATH": "rel:/b"}, "also/rel") == "/b/npx"
    with pytest.raises(NotFound, match=r"there is no \./npx"):
        files.find("./npx", {"PATH": "/b"})


@pytest.mark.usefixtures("nowhere")
async def test_a_relative_state_folder_in_a_deleted_folder_is_a_typed_error() -> None:
    host = AsyncHost({}, state_dir="state")
    with pytest.raises(
        ConfigError, match="the state folder 'state' is relative, and the current folder is gone"
    ):
        await host.start()
    await host.close()
