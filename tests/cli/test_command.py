"""The command as people and programs run it: a process of its own, real servers, every exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moorings import exposed_name
from tests.faults.procs import alive
from tests.faults.script import FaultLog, fault_argv

EVIL = "evil\x1b[2J\u202e\U000e0041"


class Moor:
    """Runs ``moor`` in a home of its own, with a configuration of scripted servers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.config = home / "config" / "moorings" / "moorings.toml"
        self.config.parent.mkdir(parents=True)
        self.environ = {
            **os.environ,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.servers: dict[str, Any] = {}

    def server(self, name: str, *, settings: dict[str, Any] | None = None, **script: Any) -> FaultLog:
        """Add a scripted server to the configuration."""
        journal = self.home / f"{len(self.servers)}.journal"
        command, *args = fault_argv(journal=journal, **script)
        self.add(name, command=command, args=args, **(settings or {}))
        return FaultLog(journal)

    def add(self, name: str, **entry: Any) -> None:
        self.servers[name] = entry
        lines = []
        for name, entry in self.servers.items():
            lines.append(f"[servers.{json.dumps(name)}]")
            lines += [f"{key} = {as_toml(value)}" for key, value in entry.items()]
        self.config.write_text("\n".join(lines))

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "moorings", *words]

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.environ | options.pop("environ", {}),
            cwd=options.pop("cwd", self.home),
            capture_output=True,
            encoding="utf-8",
            timeout=60,
            stdin=subprocess.DEVNULL,
            **options,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env=self.environ,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
        )


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {as_toml(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)


@pytest.fixture
def moor(tmp_path: Path) -> Moor:
    return Moor(tmp_path)


def gone(log: FaultLog) -> bool:
    return not any(alive(pid) for pid in log.pids())


# --- versions and help


HEAVY = {"click", "rich", "msgspec", "asyncio", "logging", "json"}


def test_version_imports_nothing_heavy(moor: Moor) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import moorings.cli; code = moorings.cli.main(['--version'])\n"
        "print(code, *sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=moor.environ, capture_output=True, text=True, check=True
    )
    version, loaded = done.stdout.splitlines()
    assert version.startswith("moor 0.")
    code_, *modules = loaded.split()
    assert code_ == "0"
    assert not HEAVY & set(modules)
    assert {name for name in modules if name.startswith("moorings")} == {
        "moorings",
        "moorings.cli",
        "moorings._version",
    }


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--json", "--version"]])
def test_version(words: list[str], moor: Moor) -> None:
    done = moor(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ('{"version": "0.1.0"}\n' if "--json" in words else moor("--version").stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["test", "-h"],
        ["tools", "--help"],
        ["call", "-h"],
        ["auth", "-h"],
        ["auth", "status", "-h"],
    ],
)
def test_help_tells_the_exit_codes(words: list[str], moor: Moor) -> None:
    done = moor(*words)
    assert done.returncode == 0
    assert "  130  interrupted" in done.stdout


def test_the_module_of_the_command_is_the_command(moor: Moor) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "moorings.cli", "-V"], env=moor.environ, capture_output=True, text=True
    )
    assert done.stdout == moor("-V").stdout


def test_completion(moor: Moor) -> None:
    words = {"_MOOR_COMPLETE": "bash_complete", "COMP_WORDS": "moor t", "COMP_CWORD": "1"}
    assert moor(environ=words).stdout.split() == ["plain,test", "plain,tools"]


# --- moor test


@pytest.mark.smoke
def test_all_servers_ready(moor: Moor) -> None:
    logs = [
        moor.server("one"),
        moor.server("two", era="modern", tools=3, settings={"lazy": True}),
        moor.server("slow", start_delay=0.3),
    ]
    moor.add("off", command="x", enabled=False)
    done = moor("test")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [(row[0], row[1]) for row in rows] == [
        ("one", "ready"), ("two", "ready"), ("slow", "ready"), ("off", "disabled")
    ]  # fmt: skip
    assert "2026-07-28" in rows[1][2]
    done = moor("test", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["all_ready"] is True
    two = document["servers"]["two"]
    assert (two["state"], two["ready"], two["error"]) == ("ready", True, None)
    assert two["tools"] >= 3
    assert two["server_info"]["name"] == "faults"
    assert sum(two["steps"].values()) > 0
    assert document["servers"]["off"]["state"] == "disabled"
    assert all(gone(log) for log in logs)


def test_a_server_that_is_not_ready_is_told_with_its_reason(moor: Moor) -> None:
    """F7.1, F7.8"""
    moor.server("good")
    moor.add("missing", command="no-such-program-xyz", required=True)
    moor.server("dies", on_probe="exit:3:oh\x1b[31m no", on_initialize="exit:3:oh\x1b[31m no")
    moor.server("mute", on_probe="silent", on_initialize="silent", settings={"connect_timeout": 1.5})
    done = moor("test", "--json")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document["all_ready"] is False
    servers = document["servers"]
    assert servers["good"]["ready"]
    assert servers["missing"]["error"]["code"] == "MOOR_COMMAND_NOT_FOUND"
    assert servers["dies"]["error"]["code"] == "MOOR_SERVER_DIED"
    assert "oh\x1b[31m no" in servers["dies"]["error"]["stderr_tail"]
    assert "\x1b" not in done.stdout
    for name in ("missing", "dies", "mute"):
        assert not servers[name]["ready"]
        assert servers[name]["reason"]
        assert servers[name]["error"]["message"]
        assert servers[name]["since"]
    done = moor("test")
    assert done.returncode == 3
    assert "oh\\x1b[31m no" in done.stdout
    assert "no-such-program-xyz" in done.stdout
    assert "\x1b" not in done.stdout
    assert moor("test", "good").returncode == 0
    assert moor("test", "good", "missing").returncode == 3
    assert moor("test", "nobody").returncode == 7


def test_good_in_test_is_good_in_use_and_bad_is_bad(moor: Moor) -> None:
    """F7.7"""
    moor.server("good", builtins=True)
    moor.server("bad", on_probe="exit:3", on_initialize="exit:3")
    assert moor("test", "good").returncode == 0
    assert moor("call", "good__echo", "text=hi").stdout == "hi\n"
    assert moor("test", "bad").returncode == 3
    assert moor("call", "bad__echo", "text=hi").returncode == 3


def test_a_limit_on_the_wait(moor: Moor) -> None:
    log = moor.server("slow", start_delay=30)
    done = moor("test", "--timeout", "300ms", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["servers"]["slow"]["reason"]
    assert gone(log)


# --- moor tools


TOOLS = [
    {"name": "plain", "description": "A plain one.\nSecond line.", "inputSchema": {"type": "object"}},
    {"name": EVIL, "description": EVIL + "\r\n\x07", "inputSchema": {"type": "object", "title": EVIL}},
]


def test_the_catalog(moor: Moor) -> None:
    """F16.7"""
    moor.server("a", builtins=False, tools=TOOLS)
    done = moor("tools")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "a__plain\tA plain one.\\nSecond line." in lines
    assert len(lines) == 2
    assert not set(EVIL[4:]) & set("\x1b\u202e\U000e0041\x07") & set(done.stdout)
    assert "\\x1b[2J\\u202e\\U000e0041" in done.stdout
    done = moor("tools", "a", "--json")
    tools = json.loads(done.stdout)["tools"]
    assert [tool["tool"] for tool in tools] == sorted(["plain", EVIL]) or {
        tool["tool"] for tool in tools
    } == {"plain", EVIL}
    evil = next(tool for tool in tools if tool["tool"] == EVIL)
    assert evil["input_schema"]["title"] == EVIL
    assert evil["server"] == "a"
    assert not {"\x1b", "\u202e", "\U000e0041", "\x07"} & set(done.stdout)


def test_tools_of_the_ready_are_listed_though_others_are_not(moor: Moor) -> None:
    moor.server("a", builtins=False, tools=TOOLS[:1])
    moor.add("missing", command="no-such-program-xyz")
    done = moor("tools")
    assert done.returncode == 3
    assert done.stdout.startswith("a__plain\t")
    assert "'missing' is not ready" in done.stderr
    document = json.loads(moor("tools", "--json").stdout)
    assert document["not_ready"]["missing"]["error"]["code"] == "MOOR_COMMAND_NOT_FOUND"
    assert len(document["tools"]) == 1


def test_a_table_on_a_terminal(moor: Moor) -> None:
    moor.server("a", builtins=False, tools=TOOLS)
    parent, child = pty.openpty()
    try:
        with subprocess.Popen(
            moor.command("tools"),
            env=moor.environ | {"COLUMNS": "60"},
            cwd=moor.home,
            stdin=child,
            stdout=child,
        ) as running:
            os.close(child)
            shown = read_all(parent)
        assert running.returncode == 0
    finally:
        os.close(parent)
    assert "a__plain" in shown
    assert "Second line." in shown
    assert "\\u202e" in shown
    assert not {"\x1b", "\u202e", "\U000e0041", "\x07"} & set(shown)


def read_all(terminal: int) -> str:
    data = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux tells that the other side is closed
            part = b""
        if not part:
            return data.decode()
        data += part


# --- moor call


CALLS: list[tuple[str, list[str], int, str]] = [
    ("answered", ["a__echo", "text=hi"], 0, ""),
    ("the tool's error", ["a__fail", "text=oh"], 1, ""),
    ("usage", ["a__echo", "x"], 2, "MOOR_USAGE"),
    ("not there", ["missing__x"], 3, "MOOR_"),
    ("dies at the start", ["dies__x"], 3, "MOOR_"),
    ("refused", ["a__rpc_error", "code=-32602"], 4, "MOOR_REFUSED"),
    ("too long", ["a__never", "--timeout", "0.3"], 5, "MOOR_CALL_TIMEOUT"),
    ("ambiguous", ["a__die_after_effect"], 6, "MOOR_AMBIGUOUS"),
    ("no such tool", ["a__nothing"], 7, "MOOR_UNKNOWN_TOOL"),
    ("no such server", ["zzz__echo"], 7, "MOOR_UNKNOWN_TOOL"),
]


@pytest.mark.parametrize(
    ("words", "code", "error"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS]
)
def test_each_end_of_a_call(words: list[str], code: int, error: str, moor: Moor) -> None:
    log = moor.server("a")
    moor.add("missing", command="no-such-program-xyz")
    moor.server("dies", on_probe="exit:3:oh", on_initialize="exit:3:oh")
    done = moor("call", *words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (code in (0, 1))
    assert bool(done.stderr) == (code != 0)
    done = moor("call", *words, "--json")
    assert done.returncode == code
    document = json.loads(done.stdout)
    if error:
        assert document["error"]["code"].startswith(error)
        assert document["error"]["exit_code"] == code
        assert done.stderr == ""
    else:
        assert document["is_error"] == (code == 1)
        assert document["content"][0]["text"] in ("hi", "oh")
    assert gone(log)


def test_only_the_server_of_the_tool_is_started(moor: Moor) -> None:
    logs = {name: moor.server(name) for name in ("a", "ab", "b", "a-b")}
    assert moor("call", "a__echo", "text=hi").stdout == "hi\n"
    assert {name: len(log.starts()) for name, log in logs.items()} == {"a": 1, "ab": 0, "b": 0, "a-b": 0}


def test_a_tool_whose_name_carries_a_hash(moor: Moor) -> None:
    moor.server(
        "a.b", builtins=False, tools=[TOOLS[0] | {"name": "Get File", "does": "echo", "with": {"text": "x"}}]
    )
    other = moor.server("other")
    assert moor("call", exposed_name("a.b", "Get File")).stdout == "x\n"
    assert not other.starts()


def test_arguments_reach_the_tool(moor: Moor) -> None:
    moor.server("a")
    given = {"value": {"n": 3, "s": "007", "t": "ü & $x", "on": True}}
    done = moor("call", exposed_name("a", "structured"), json.dumps(given), "--json")
    assert json.loads(done.stdout)["structured_content"] == given["value"]
    assert moor("call", "a__echo", "text:=[1, 2]").stdout == "[1, 2]\n"
    assert moor("call", "a__echo", "text=a  b\n$HOME").stdout == "a  b\n$HOME\n"


def test_what_a_tool_says_is_escaped_for_people_and_whole_in_json(moor: Moor) -> None:
    """F16.7"""
    moor.server("a")
    done = moor("call", "a__echo", f"text={EVIL}")
    assert done.stdout == "evil\\x1b[2J\\u202e\\U000e0041\n"
    done = moor("call", "a__echo", f"text={EVIL}", "--json")
    assert not set(EVIL[4:5] + EVIL[8:]) & set(done.stdout)
    assert json.loads(done.stdout)["content"][0]["text"] == EVIL
    done = moor("call", "a__rpc_error", f"message={EVIL}")
    assert done.returncode == 4
    assert "evil\\x1b[2J\\u202e" in done.stderr


def test_blocks_of_unknown_kinds_are_in_the_json_as_they_came(moor: Moor) -> None:
    moor.server("a")
    blocks = [{"type": "hologram", "x": [1, {"y": "\x1b"}]}, {"type": "text", "text": "t"}]
    done = moor("call", "a__content", json.dumps({"blocks": blocks}), "--json")
    assert json.loads(done.stdout)["content"] == blocks


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_any_encoding_of_the_terminal(encoding: str, moor: Moor) -> None:
    moor.server("a")
    done = moor(
        "call", "a__echo", "text=日本 ü", "--json", environ={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    )
    assert json.loads(done.stdout)["content"][0]["text"] == "日本 ü"
    done = moor("call", "a__echo", "text=日本", environ={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert done.stdout == ("日本\n" if encoding == "utf-8" else "\\u65e5\\u672c\n")


# --- options and files


def orders(*options: Sequence[str]) -> list[list[str]]:
    verb = ["call", "a__echo", "text=hi"]
    before = [word for option in options for word in option]
    return [before + verb, verb + before, [*options[0], *verb, *options[1]], ["call", *before, *verb[1:]]]


def test_options_stand_before_or_after_the_verb(moor: Moor, tmp_path: Path) -> None:
    moor.server("a")
    file = moor.config.rename(tmp_path / "other.toml")
    for words in orders(["--json"], ["--config", str(file)]):
        done = moor(*words)
        assert done.returncode == 0, (words, done)
        assert json.loads(done.stdout)["content"][0]["text"] == "hi"


def test_a_file_of_the_current_folder_is_read_only_if_it_is_named(moor: Moor, tmp_path: Path) -> None:
    """F16.8"""
    command, *args = fault_argv(journal=tmp_path / "j")
    work = tmp_path / "work"
    work.mkdir()
    entry = {"mcpServers": {"here": {"command": command, "args": args}}}
    for name in (".mcp.json", "moorings.toml", "mcp.json"):
        (work / name).write_text(json.dumps(entry))
    done = moor("test", "--json", cwd=work)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["file"] == str(moor.config)
    assert not (tmp_path / "j").exists()
    done = moor("test", "--json", "--config", ".mcp.json", cwd=work)
    assert done.returncode == 0
    assert list(json.loads(done.stdout)["servers"]) == ["here"]


def test_an_unset_variable_starts_nothing(moor: Moor) -> None:
    """F14.2"""
    log = moor.server("a")
    moor.add("b", command="x", env={"TOKEN": "${MOORINGS_NO_SUCH_VARIABLE}"})
    for words in (["test"], ["tools"], ["call", "a__echo"]):
        done = moor(*words)
        assert done.returncode == 2
        assert (
            f"{moor.config}:6: servers.b.env.TOKEN: the variable MOORINGS_NO_SUCH_VARIABLE is not set"
            in done.stderr
        )
    assert not log.starts()


def test_what_outlives_the_command_is_private(moor: Moor) -> None:
    moor.server("a")
    assert moor("test", preexec_fn=lambda: os.umask(0)).returncode == 0
    state = moor.home / "state" / "moorings"
    assert state.stat().st_mode & 0o777 == 0o700
    for path in state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


# --- how it is ended


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize(
    "words", [["call", "a__never"], ["--json", "call", "a__never"]], ids=["text", "json"]
)
def test_a_signal_ends_it_with_its_servers_and_no_traceback(
    number: signal.Signals, code: int, words: list[str], moor: Moor
) -> None:
    log = moor.server("a")
    with moor.start(*words) as running:
        log.wait_for("received", method="tools/call")
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert running.returncode == code
    assert "Traceback" not in err
    if "--json" in words:
        assert json.loads(out)["error"]["code"] == "MOOR_INTERRUPTED"
    else:
        assert out == ""
        assert "moor: " in err
    assert gone(log)


def test_ctrl_c_while_servers_start(moor: Moor) -> None:
    log = moor.server("a", on_probe="silent", on_initialize="silent")
    with moor.start("test") as running:
        log.wait_for("start")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert gone(log)


@pytest.mark.parametrize(
    "words", [["tools"], ["tools", "--json"], ["call", "a__big", "bytes=3000000"], ["--help"], ["test"]]
)
def test_a_reader_who_goes_away_ends_it_quietly(words: list[str], moor: Moor) -> None:
    log = moor.server("a")
    with moor.start(*words) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        err = running.stderr.read()
        running.wait(30)
    assert running.returncode == 141
    assert err == ""
    assert gone(log)


def test_messages_to_nobody_harm_nothing(moor: Moor) -> None:
    moor.server("a")
    with moor.start("call", "a__fail", "text=oh") as running:
        assert running.stderr is not None
        running.stderr.close()
        assert running.stdout is not None
        assert running.stdout.read() == "oh\n"
        running.wait(30)
    assert running.returncode == 1
