"""Class F14: each mistake in a configuration file is told with file, key, line, what was found and what is wanted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from moorings import AsyncHost
from moorings.config import Bounds, ConfigProblems, Problem, StdioServer, parse
from moorings.config.bounds import BOUNDS
from moorings.config.keys import IGNORED_KEYS, RENAMED_KEYS
from moorings.errors import CallTimeout, ConfigError, MooringsError, Refused, StartError, shortened

HOME = {"HOME": "/home/ada"}


def problems_of(
    text: str, file: str = "/c/moorings.toml", environ: dict[str, str] = HOME
) -> tuple[Problem, ...]:
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file=file, environ=environ)
    assert caught.value.file == file
    return caught.value.problems


def only(problems: tuple[Problem, ...]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


def in_server(line: str) -> str:
    """A TOML file in which ``line`` is line 4."""
    return f"# comment\n[servers.git]\ncommand = 'uvx'\n{line}\n"


# key, line of TOML, part of the key path, found, wanted
FAULTS = [
    ("misspelt key", "timout = 3", "timout", "", "'timeout'"),
    ("misspelt key, camel case", "connectTimeout = 3", "connectTimeout", "", "'connect_timeout'"),
    ("misspelt bound", "bounds = { conect = 3 }", "bounds.conect", "", "'connect'"),
    ("shortcut as a bound", "bounds = { timeout = 3 }", "bounds.timeout", "", "'call'"),
    ("key of another product", "disabledTools = ['x']", "disabledTools", "", "'exclude'"),
    ("limit of abc", "timeout = 'abc'", "timeout", "'abc'", '"30s"'),
    ("negative number", "timeout = -3", "timeout", "-3", "seconds"),
    ("negative text", "timeout = '-3s'", "timeout", "'-3s'", "seconds"),
    ("zero", "timeout = 0", "timeout", "0", "seconds"),
    ("no end", "timeout = inf", "timeout", "inf", "seconds"),
    ("no number", "timeout = nan", "timeout", "nan", "seconds"),
    ("yes as a limit", "timeout = true", "timeout", "true", "seconds"),
    ("a year and more", "bounds = { total = '400d' }", "bounds.total", "'400d'", "seconds"),
    ("size with a time's unit", "bounds = { max_message = '16m' }", "bounds.max_message", "'16m'", '"16MiB"'),
    ("half a byte", "bounds = { max_message = 0.5 }", "bounds.max_message", "0.5", "whole"),
    (
        "count as text",
        "bounds = { max_pages = '10' }",
        "bounds.max_pages",
        "'10'",
        "a whole number, 1 or more",
    ),
    ("count of zero", "bounds = { max_pages = 0 }", "bounds.max_pages", "0", "a whole number, 1 or more"),
    ("bounds as a number", "bounds = 3", "bounds", "a number", "call"),
    ("date", "timeout = 2026-01-01", "timeout", "a date or time", "seconds"),
    ("args as a text", "args = '-y pkg'", "args", "a text", 'args = ["-y", "pkg"]'),
    ("args as a number", "args = 3", "args", "a number", '["word", "word"]'),
    ("arg as a number", "args = ['-p', 3]", "args[1]", "a number", "a text in quotes"),
    ("env as a list", "env = ['A=1']", "env", "a list", '{"NAME": "value"}'),
    ("env as a number", "env = { PORT = 3000 }", "env.PORT", "a number", "a text in quotes"),
    ("env name", "env = { 'A=B' = '1' }", 'env."A=B"', "'A=B'", ""),
    ("cwd as a list", "cwd = []", "cwd", "an empty list", "the path of a folder"),
    ("empty cwd", "cwd = ''", "cwd", "", "the path of a folder"),
    ("unknown protocol", "protocol = 'handshak'", "protocol", "'handshak'", "'handshake'"),
    ("protocol as a number", "protocol = 2", "protocol", "2", "'auto'"),
    ("flag as text", "lazy = 'yes'", "lazy", "'yes'", "true or false"),
    ("flag as number", "required = 1", "required", "1", "true or false"),
    ("enabled and disabled", "enabled = true\ndisabled = false", "disabled", "both", "one of them"),
    ("globs as a text", "include = 'read_*'", "include", "'read_*'", 'include = ["read_*"]'),
    ("globs of numbers", "exclude = [1]", "exclude", "a list", '["read_*"]'),
    ("inherit_env as a text", "inherit_env = 'PATH'", "inherit_env", "'PATH'", '["NAME", "NAME"]'),
    ("headers", "headers = {}", "headers", "", "'env'"),
    ("command and url", "url = 'https://example.com/mcp'", "url", "both", "one of them"),
    ("unknown type", "type = 'stdoi'", "type", "'stdoi'", "'stdio'"),
    ("remote type", "type = 'http'", "type", "", "'url'"),
    ("key of a remote server", "headers_command = ['x']", "headers_command", "", ""),
    ("misspelt key of a remote server", "proxi = ''", "proxi", "", ""),
    ("type as a number", "type = 3", "type", "a number", "'stdio'"),
    ("shortcut and bound", "timeout = 3\nbounds = { call = 4 }", "timeout", "", "one of them"),
    ("call above total", "timeout = 30000", "timeout", "30000 s above 3600 s", "'bounds.total'"),
    ("cooldowns", "bounds = { cooldown = 100 }", "bounds.cooldown", "100 s above 60 s", "at least as long"),
    ("unset variable", "args = ['${NOPE}']", "args[0]", "", ""),
    ("reference of another product", "args = ['${input:key}']", "args[0]", "", ""),
    ("NUL", 'args = ["a\\u0000b"]', "args[0]", "", ""),
]


@pytest.mark.parametrize(
    ("line", "key", "found", "wanted"), [row[1:] for row in FAULTS], ids=[r[0] for r in FAULTS]
)
def test_a_fault_in_a_server_names_key_line_found_and_wanted(
    line: str, key: str, found: str, wanted: str
) -> None:
    problem = only(problems_of(in_server(line)))
    assert problem.key == f"servers.git.{key}"
    assert problem.line == (5 if key == "disabled" else 4)
    assert problem.server == "git"
    assert problem.message
    assert problem.found == found
    assert wanted in problem.wanted


JSON_KEYS = [row for row in FAULTS if row[0] not in {"no end", "no number", "date"}]


@pytest.mark.parametrize(
    ("line", "key", "found", "wanted"), [row[1:] for row in JSON_KEYS], ids=[row[0] for row in JSON_KEYS]
)
def test_the_same_fault_in_json(line: str, key: str, found: str, wanted: str) -> None:
    import tomllib

    entry = {"command": "uvx", **tomllib.loads(line)}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in entry.items())
    text = '{"mcpServers": {\n"git": {\n' + lines + "}}}"
    problem = only(problems_of(text, ".mcp.json"))
    assert problem.key == f"mcpServers.git.{key}"
    assert problem.line == 3 + list(entry).index(key.split(".")[0].split("[")[0])
    assert problem.found == found
    assert wanted in problem.wanted


# text, key, line, part of the sentence
WHOLE_FILES = [
    ("missing command", "[servers.git]\nargs = []", "servers.git", 1, "'command' is missing"),
    ("empty command", "[servers.git]\ncommand = ''", "servers.git.command", 2, "the command is empty"),
    ("blank command", "[servers.git]\ncommand = ' '", "servers.git.command", 2, "the command is empty"),
    ("command expands to nothing", "[servers.git]\ncommand = '${A:-}'", "servers.git.command", 2, "is empty"),
    (
        "command as a list",
        "[servers.git]\ncommand = ['npx', '-y']",
        "servers.git.command",
        2,
        "list of words",
    ),
    ("command as a number", "[servers.git]\ncommand = 3", "servers.git.command", 2, "found a number"),
    ("server as a text", "[servers]\ngit = 'uvx'", "servers.git", 2, "a server is a table"),
    ("servers as a list", "servers = []", "servers", 1, "table by name"),
    ("empty name", "[servers.'']\ncommand = 'x'", 'servers.""', 1, "needs a name"),
    ("name with ESC", '[servers."a\\u001b"]\ncommand = "x"', 'servers."a\\x1b"', 1, "control character"),
    ("unknown table", "[server.git]\ncommand = 'x'", "server", 1, "wanted 'servers'"),
    ("unknown host setting", "[host]\nmax_startin = 3\n[servers]", "host.max_startin", 2, "'max_starting'"),
    ("max_starting of 0", "[host]\nmax_starting = 0\n[servers]", "host.max_starting", 2, "1 or more"),
    ("close_timeout", "[host]\nclose_timeout = 'x'\n[servers]", "host.close_timeout", 2, "not a time"),
    ("state_dir", "[host]\nstate_dir = 3\n[servers]", "host.state_dir", 2, "a path"),
    ("state_dir unset", "[host]\nstate_dir = '${X}'\n[servers]", "host.state_dir", 2, "variable X"),
    ("host as a number", "host = 3\n[servers]", "host", 1, "table of keys"),
    ("bounds for all", "[bounds]\ncall = '2h'\n[servers.a]\ncommand='x'", "bounds.call", 2, "'bounds.total'"),
    ("unknown bound for all", "[bounds]\ncal = '2h'\n[servers]", "bounds.cal", 2, "wanted 'call'"),
    ("no servers", "[bounds]\ncall = 3", "", None, "no 'servers'"),
    (
        "neither command nor url",
        "[servers.a]\nlazy = true",
        "servers.a",
        1,
        "(or 'url', for a server over HTTP)",
    ),
    ("remote by type", "[servers.a]\ntype = 'sse'", "servers.a", 1, "'url' is missing"),
    ("stdio with url", "[servers.a]\ntype = 'stdio'\nurl = 'x'", "servers.a.url", 3, "remote address"),
    ("not TOML", "[servers\n", "", 1, "not valid TOML"),
    ("half written TOML", "[servers.a]\ncommand = 'x'\nargs = [\n", "", None, "not valid TOML"),
    ("duplicate TOML key", "[servers.a]\ncommand = 'x'\ncommand = 'y'", "", 3, "not valid TOML"),
]


@pytest.mark.parametrize(
    ("text", "key", "line", "part"), [row[1:] for row in WHOLE_FILES], ids=[row[0] for row in WHOLE_FILES]
)
def test_a_fault_of_a_whole_toml_file(text: str, key: str, line: int | None, part: str) -> None:
    problem = only(problems_of(text))
    assert problem.key == key
    assert line is None or problem.line == line
    assert part in problem.sentence()


JSON_FILES = [
    ("half written", '{"mcpServers": {\n"a": {"command"', "", 2, "half written"),
    ("half written text", '{"mcpServers": {\n"a": {"comm', "", 2, "does not end"),
    ("empty", "", "", 1, "half written"),
    ("single quotes", "{\n'a': 1}", "", 2, "double quote"),
    ("typographic quotes", "{\n“a”: 1}", "", 2, "double quote"),
    ("missing comma", '{"mcpServers": {\n"a": {"command": "x"}\n"b": {}}}', "", 3, "',' or '}'"),
    ("missing colon", '{\n"a" 1}', "", 2, "':' is wanted"),
    ("key without quotes", "{\na: 1}", "", 2, "unexpected 'a'"),
    ("two documents", '{"mcpServers": {}}\n{}', "", 2, "after the end"),
    ("NaN", '{"mcpServers": NaN}', "", 1, "unexpected 'N'"),
    ("leading zero", '{"mcpServers": 01}', "", 1, "unexpected '0'"),
    ("open comment", '{"mcpServers": {} /* x }', "", 1, "comment is not closed"),
    ("wrong escape", '{"mcpServers": {"\\q": 1}}', "", 1, "wrong escape"),
    ("a list", "[]", "", 1, "table of keys"),
    ("nested too deep", '{"mcpServers":' + "[" * 100 + "]" * 100 + "}", "", 1, "nested deeper"),
    (
        "huge number",
        '{"mcpServers": {"a": {"command": "x", "timeout": ' + "9" * 5000 + "}}}",
        "",
        1,
        "digits",
    ),
    (
        "repeated server",
        '{"mcpServers": {\n"a": {"command": "x"},\n"a": {"command": "y"}}}',
        "mcpServers.a",
        3,
        "stands twice; found it on line 2 too",
    ),
    (
        "repeated key",
        '{"mcpServers": {"a": {"command": "x",\n"command": "y"}}}',
        "mcpServers.a.command",
        2,
        "twice",
    ),
    ("both tables", '{"mcpServers": {},\n"servers": {}}', "servers", 2, "together"),
    ("misspelt table", '{\n"mcpServer": {}}', "mcpServer", 2, "wanted 'mcpServers'"),
    ("unknown beside it", '{"mcpServers": {},\n"bound": {}}', "bound", 2, "wanted 'bounds'"),
    ("surrogate", '{"mcpServers": {"a": {"command": "\\ud800"}}}', "mcpServers.a.command", 1, "surrogate"),
    ("null entry", '{"mcpServers": {"a": null}}', "mcpServers.a", 1, "found null"),
]


@pytest.mark.parametrize(
    ("text", "key", "line", "part"), [row[1:] for row in JSON_FILES], ids=[row[0] for row in JSON_FILES]
)
def test_a_fault_of_a_whole_json_file(text: str, key: str, line: int, part: str) -> None:
    problem = only(problems_of(text, "mcp.json"))
    assert (problem.key, problem.line) == (key, line)
    assert part in problem.sentence()


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = """
[servers.a]
command = ''
args = '-y x'
[servers.b]
comand = 'x'
[servers.c]
command = '${NOPE}'
[bounds]
call = 'abc'
"""
    with pytest.raises(ConfigError) as caught:
        parse(text, file="m.toml", environ=HOME)
    assert isinstance(caught.value, ConfigProblems)
    assert [problem.line for problem in caught.value.problems] == [3, 4, 6, 8, 10]
    shown = str(caught.value)
    assert shown.startswith("m.toml: 5 problems [MOOR_CONFIG]\n  line 3: servers.a.command: ")
    assert len(shown.splitlines()) == 6
    assert (caught.value.key, caught.value.line, caught.value.server) == ("servers.a.command", 3, "a")


def test_one_problem_is_one_line_with_file_line_key_and_next_step() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(in_server("timout = 3"), file="m.toml", environ=HOME)
    assert str(caught.value) == (
        "m.toml:4: servers.git.timout: unknown key 'timout'; wanted 'timeout'. "
        "Next step: write 'timeout' if that is meant. [MOOR_CONFIG]"
    )


def test_thousands_of_problems_make_a_text_of_bounded_length() -> None:
    text = "[servers.git]\ncommand = 'x'\n" + "\n".join(f"zzz{n} = 1" for n in range(3000))
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file="m.toml")
    assert len(caught.value.problems) == 3000
    assert str(caught.value).endswith("... and 2950 more")


SECRET = "s3cr3t-Value-0123456789"


@pytest.mark.parametrize(
    "line",
    [
        f"env = {{ TOKEN = ['{SECRET}'] }}",
        f"env = '{SECRET}'",
        f"env = {{ TOKEN = '{SECRET}${{' }}",
        f"env = {{ TOKEN = '${{{SECRET}' }}",
        f"env = {{ TOKEN = '${{X:-{SECRET}${{Y}}}}' }}",
        f"env = {{ TOKEN = '{SECRET}${{NOPE}}' }}",
        f'env = {{ TOKEN = "{SECRET}\\u0000" }}',
        f"args = '--token {SECRET}'",
        f"args = '--token={SECRET}'",
        f"args = 'TOKEN={SECRET}'",
        f"args = ['{SECRET}${{NOPE}}']",
        f"args = [['{SECRET}']]",
        f"headers = {{ Authorization = 'Bearer {SECRET}' }}",
        f"url = 'https://example.com/?key={SECRET}'",
        f"cwd = ['{SECRET}']",
        f"include = ['{SECRET}', 3]",
    ],
)
def test_a_secret_never_stands_in_the_error(line: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        parse(in_server(line), file="m.toml", environ={"X": ""})
    everything = str(caught.value) + repr(caught.value) + repr(caught.value.problems)
    assert SECRET not in everything
    assert SECRET[:12] not in everything


def test_what_a_variable_holds_never_stands_in_the_error() -> None:
    text = in_server("args = ['${A}\\u0000', '${A} ${NOPE}']".replace("'", '"'))
    with pytest.raises(ConfigProblems) as caught:
        parse(text, file="m.toml", environ={"A": SECRET})
    assert SECRET not in str(caught.value) + repr(caught.value.problems)


def test_names_of_a_file_are_escaped_in_errors() -> None:
    text = json.dumps(
        {"mcpServers": {"a": {"command": "x", "\x1b]8;;x\x07\u202e\U000e0041": 1}}}, ensure_ascii=False
    )
    with pytest.raises(ConfigProblems) as caught:
        parse(text.replace("\x1b", "\\u001b").replace("\x07", "\\u0007"), file="m.json")
    assert str(caught.value).isascii()


@pytest.mark.parametrize("value", [30, 30.0, "30", "30s", "30 s".replace(" ", ""), "0.5m", "30000ms"])
def test_thirty_seconds_in_every_form(value: Any) -> None:
    entry = {"command": "x", "timeout": value, "connect_timeout": value}
    config = parse(json.dumps({"mcpServers": {"a": entry}}), file="m.json")
    assert config.servers["a"].bounds.call == 30.0
    assert config.servers["a"].bounds.connect == 30.0


def test_zero_is_taken_where_it_is_documented_and_nowhere_else() -> None:
    for name, (_, allowed) in BOUNDS.items():
        text = json.dumps({"mcpServers": {"a": {"command": "x", "bounds": {name: 0}}}})
        if name == "cooldown_max":
            text = text.replace('{"cooldown_max"', '{"cooldown": 0, "cooldown_max"')
        if allowed:
            assert getattr(parse(text, file="m.json").servers["a"].bounds, name) == 0
        else:
            assert only(problems_of(text, "m.json")).key == f"mcpServers.a.bounds.{name}"


def test_the_table_of_bounds_is_that_of_the_specification() -> None:
    assert set(BOUNDS) == set(Bounds.__struct_fields__)
    for field in msgspec.structs.fields(Bounds):
        kind = BOUNDS[field.name][0]
        assert field.type is (float if kind == "time" else int), field.name


def test_every_key_of_the_specification_can_be_written() -> None:
    entry = {
        "command": "x",
        "args": ["a"],
        "env": {"A": "1"},
        "inherit_env": ["B"],
        "cwd": "/tmp",
        "protocol": "2026-07-28",
        "required": True,
        "lazy": True,
        "enabled": False,
        "include": [],
        "exclude": ["x_*"],
        "bounds": {"call": 5},
    }
    # "unresolved" is what reading finds out, and no key.
    assert set(entry) == set(StdioServer.__struct_fields__) - {"unresolved"}
    server = parse(json.dumps({"mcpServers": {"a": entry}}), file="m.json").servers["a"]
    assert server == StdioServer(
        command="x",
        args=("a",),
        env={"A": "1"},
        inherit_env=("B",),
        cwd="/tmp",
        protocol="2026-07-28",
        required=True,
        lazy=True,
        enabled=False,
        include=(),
        exclude=("x_*",),
        bounds=Bounds(call=5.0),
    )


def test_keys_of_other_products_that_matter_are_never_ignored() -> None:
    assert not IGNORED_KEYS & RENAMED_KEYS.keys()
    for key, ours in RENAMED_KEYS.items():
        text = json.dumps({"mcpServers": {"a": {"command": "x", key: []}}})
        assert only(problems_of(text, "m.json")).wanted == repr(ours)


# --- a specification


def test_names_that_are_no_utf_8_have_a_fingerprint() -> None:
    """Names of files come with lone surrogates where their bytes are no text (PEP 383)."""
    odd = [
        StdioServer(command="x\udc80"),
        StdioServer(command="x", args=("\udcff",)),
        StdioServer(command="x", cwd="/\udcff"),
        StdioServer(command="x", env={"\udcff": "1"}),
    ]
    prints = {spec.fingerprint() for spec in odd}
    assert len(prints) == 4 and prints == {spec.fingerprint() for spec in odd}


def test_a_specification_shows_no_value_of_the_environment() -> None:
    spec = StdioServer(command="x", args=("a",), env={"TOKEN": "s3cret"})
    for text in (
        repr(spec),
        str(spec),
        repr([spec]),
        repr(spec.__rich_repr__()),
        repr(AsyncHost({"s": spec})),
    ):
        assert "s3cret" not in text
    assert "'TOKEN'" in repr(spec) and "command='x', args=('a',)" in repr(spec)
    assert spec.env["TOKEN"] == "s3cret"


def test_the_text_of_every_error_is_bounded_and_the_whole_stays_in_it() -> None:
    """A server may refuse with a message of any length."""
    long = "x" * 1_000_000
    for error in (
        Refused(long, server="s", tool="t"),
        CallTimeout(long, sent=True, tool=long, fix=long),
        MooringsError(long),
        StartError(long),
    ):
        assert len(str(error)) < 5000
        assert "(1,000,000 characters in all)" in str(error)
        assert error.message == long
    assert shortened("short") == "short"


def test_the_library_writes_nothing_where_no_logging_was_set_up() -> None:
    code = "import moorings, logging; moorings.Host; logging.getLogger('moorings').warning('noise')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
