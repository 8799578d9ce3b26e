"""Configuration files as people have them are read as they are meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from moorings.config import Bounds, ConfigProblems, HostSettings, StdioServer, load, parse
from moorings.errors import ConfigError

CLAUDE = """{
  "mcpServers": {
    "filesystem": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${PROJECT:-.}"],
      "env": {"TOKEN": "${TOKEN}"}
    }
  }
}"""

VSCODE = """{
  // comments and trailing commas, as the editor writes them
  "inputs": [{"type": "promptString", "id": "key"}],
  "servers": {
    "memory": {"type": "stdio", "command": "npx", "args": ["-y", "memory",], "dev": {"watch": "**"}},
  },
}"""

OTHERS = """{"mcpServers": {"weather": {
  "command": "uv", "args": ["run", "weather"], "disabled": true, "autoApprove": ["get"], "alwaysAllow": [],
  "timeout": 60, "description": "the weather"}}}"""

OWN = """
[host]
max_starting = 2
close_timeout = "5s"
state_dir = "state"

[bounds]
call = "2m"
max_message = "1MiB"

[servers.git]
command = "~/bin/git-server"
args = ["--repo", "~/src/${REPO}", "~", "a~/b"]
cwd = "~"
env = { PRICE = "$5 $$ $HOME $${X}", HERE = "~/x" }
include = ["git_*"]

[servers.git.bounds]
connect = 10

[servers."Ä b"]
command = "x"
timeout = "10s"
"""


def test_the_format_of_claude_desktop_and_code() -> None:
    config = parse(CLAUDE, file=".mcp.json", environ={"TOKEN": "t"})
    assert config.servers == {
        "filesystem": StdioServer(
            command="npx", args=("-y", "@modelcontextprotocol/server-filesystem", "."), env={"TOKEN": "t"}
        )
    }
    assert config.host == HostSettings()
    assert config.file == ".mcp.json"


def test_the_format_of_vs_code_with_comments() -> None:
    assert parse(VSCODE, file="mcp.json").servers == {
        "memory": StdioServer(command="npx", args=("-y", "memory"))
    }


def test_keys_that_other_products_write() -> None:
    server = parse(OTHERS, file="mcp_settings.json").servers["weather"]
    assert server == StdioServer(
        command="uv", args=("run", "weather"), enabled=False, bounds=Bounds(call=60.0)
    )


def test_our_own_format() -> None:
    config = parse(OWN, file="/etc/moor/moorings.toml", environ={"HOME": "/home/ada", "REPO": "${HOME} x"})
    assert config.host == HostSettings(
        max_starting=2,
        close_timeout=5.0,
        state_dir="/etc/moor/state",
        bounds=Bounds(call=120.0, max_message=1 << 20),
    )
    assert list(config.servers) == ["git", "Ä b"]
    assert config.servers["git"] == StdioServer(
        command="/home/ada/bin/git-server",
        args=("--repo", "/home/ada/src/${HOME} x", "~", "a~/b"),
        cwd="/home/ada/",
        env={"PRICE": "$5 $$ $HOME ${X}", "HERE": "~/x"},
        include=("git_*",),
        bounds=Bounds(call=120.0, max_message=1 << 20, connect=10.0),
    )
    assert config.servers["Ä b"].bounds == Bounds(call=10.0, max_message=1 << 20)


def test_blanks_quotes_and_signs_reach_the_server_as_they_are() -> None:
    """F14.4"""
    words = ["a b", '"q"', "$", "&", "ü", "`x`", "%PATH%", "a;b", "\\", "*", ""]
    text = json.dumps({"mcpServers": {"a": {"command": "/my prog/ü & $x", "args": words, "cwd": "/a b"}}})
    server = parse(text, file="m.json", environ={}).servers["a"]
    assert (server.command, server.args, server.cwd) == ("/my prog/ü & $x", tuple(words), "/a b")


def test_an_unset_variable_of_a_disabled_server_is_no_error_and_of_an_enabled_one_is() -> None:
    """F14.2"""
    entry = {"command": "x", "env": {"TOKEN": "${TOKEN}"}, "disabled": True}
    assert not parse(json.dumps({"mcpServers": {"a": entry}}), file="m.json", environ={}).servers["a"].enabled
    entry["disabled"] = False
    with pytest.raises(
        ConfigProblems, match=r"m\.json:1: mcpServers\.a\.env\.TOKEN: the variable TOKEN is not set"
    ):
        parse(json.dumps({"mcpServers": {"a": entry}}), file="m.json", environ={})


def test_no_servers_is_a_configuration_too() -> None:
    assert parse('{"mcpServers": {}}', file="m.json").servers == {}
    assert parse("[servers]", file="m.toml").servers == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.toml", OWN),
        ("m", "[servers]"),
        ("m.conf", '{"servers": {}}'),
        ("M.JSON", "{'x"),
        (".mcp.json", CLAUDE),
    ],
)
def test_the_format_is_that_of_the_ending_or_else_of_the_first_character(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    try:
        load(tmp_path / name, environ={"HOME": "/h", "REPO": "r", "TOKEN": "t"})
    except ConfigProblems as problems:
        assert "not valid JSON" in str(problems)
        assert name == "M.JSON"


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "moorings.toml"
    file.write_bytes(b"\xef\xbb\xbf" + b"[servers.a]\r\ncommand = 'x'\r\ntimout = 3\r\n")
    with pytest.raises(ConfigProblems) as caught:
        load(file)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("data", "part"),
    [("{}".encode("utf-16"), "UTF-16"), (b'{\n"mcpServers": {"\xff": 1}}', "0xff")],
)
def test_a_file_that_is_not_utf_8(data: bytes, part: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(data)
    with pytest.raises(ConfigProblems) as caught:
        load(tmp_path / "m.json")
    assert part in str(caught.value)
    assert caught.value.line == (1 if part == "UTF-16" else 2)


def test_what_cannot_be_read_is_an_error_with_the_file_and_never_a_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="folder"):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        load(tmp_path / "pipe.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load("a\0b")
    (tmp_path / "huge.toml").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than 4 MiB") as caught:
        load(tmp_path / "huge.toml")
    assert caught.value.file == str(tmp_path / "huge.toml")


def test_the_environment_of_the_process_is_used_if_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOORINGS_TEST", "there")
    (tmp_path / "m.toml").write_text("[servers.a]\ncommand = 'x'\nargs = ['${env:MOORINGS_TEST}']")
    assert load(tmp_path / "m.toml").servers["a"].args == ("there",)
