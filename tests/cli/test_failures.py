"""How every failure of a call is told: exit code, one JSON document, only results on stdout. With a stub host."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import moorings
from moorings import CredentialSettings, errors
from moorings.cli import main

Run = Callable[..., tuple[int, str, str]]


class StubHost:
    """A host whose one call does what the test says."""

    made: ClassVar[list[StubHost]] = []
    act: ClassVar[Callable[..., Any]]
    stubborn: ClassVar[bool] = False

    def __init__(self, servers: dict[str, Any], **settings: Any) -> None:
        self.servers = servers
        self.settings = settings
        self.closed = 0
        self.made.append(self)

    def __enter__(self) -> StubHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float = 10) -> Any:
        self.closed += 1
        return SimpleNamespace(survivors=(4711,) if self.stubborn else ())

    def tools(self, *, servers: list[str]) -> list[Any]:
        return [SimpleNamespace(name=f"{name}__t") for name in servers]

    def call(self, name: str, arguments: dict[str, Any], timeout: float | None = None) -> Any:
        return type(self).act(name, arguments, timeout)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    file = tmp_path / "m.toml"
    file.write_text(
        f"[host]\nmax_starting = 3\nstate_dir = '{tmp_path}'\n"
        "[servers.git]\ncommand = 'x'\nlazy = false\n[servers.other]\ncommand = 'y'\n"
        "[servers.off]\ncommand='z'\nenabled=false"
    )
    monkeypatch.setattr(moorings, "Host", StubHost, raising=False)
    monkeypatch.setattr(StubHost, "made", [])

    def run(*words: str, act: Callable[..., Any] | None = None) -> tuple[int, str, str]:
        StubHost.act = act or (
            lambda *_: SimpleNamespace(content=[], structured_content=None, is_error=False)
        )
        code = main(["--config", str(file), *words])
        out, err = capsys.readouterr()
        assert all(host.closed for host in StubHost.made)
        return code, out, err

    return run


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*_: object) -> Any:
        raise error

    return act


ENDS = [
    (errors.StartError("no start", server="git", elapsed=1.0, allowed=2.0, stderr_tail="oh\x1b[2J"), 3),
    (errors.CommandNotFound("no program", server="git"), 3),
    (errors.NotSent("not ready", server="git", tool="t", sent=False), 3),
    (errors.Refused("no", server="git", tool="t", rpc_code=-32602, data={"x": ["\u202e"]}), 4),
    (errors.CallTimeout("too long", server="git", tool="t", sent=True, elapsed=2.0, allowed=2.0), 5),
    (errors.AmbiguousDelivery("died", server="git", tool="t", sent=True), 6),
    (errors.UnknownTool("no such tool"), 7),
    (errors.CallCancelled("closed", sent=True), 130),
    (errors.MooringsError("something"), 70),
    (RuntimeError("a bug"), 70),
    (BrokenPipeError("inside the host"), 70),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), ENDS, ids=[type(error).__name__ for error, _ in ENDS])
def test_a_call_that_ends_without_a_result(error: BaseException, code: int, run: Run) -> None:
    assert run("call", "git__t", "--json", act=raising(error))[0] == code
    got, out, err = run("call", "git__t", "--json", act=raising(error))
    assert got == code
    document = json.loads(out)["error"]
    assert document["exit_code"] == code
    assert document["message"]
    assert document["code"].startswith("MOOR_")
    assert "\u202e" not in out
    assert "Traceback" not in err or code == 70

    got, out, err = run("call", "git__t", act=raising(error))
    assert (got, out) == (code, "")
    assert err.lstrip().startswith("moor: ")
    assert "\x1b" not in err
    assert "Traceback" not in err or code == 70


def test_a_signal_ends_the_command_in_order(run: Run) -> None:
    def act(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    code, out, _ = run("call", "git__t", "--json", act=act)
    assert code == 143
    assert json.loads(out)["error"]["code"] == "MOOR_INTERRUPTED"
    assert StubHost.made[0].closed
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_refusal_of_a_tool_that_is_not_there_is_an_unknown_tool(run: Run) -> None:
    refused = errors.Refused("no", server="git", tool="x", rpc_code=-32602)
    code, out, _ = run("call", "git__x", "--json", act=raising(refused))
    document = json.loads(out)["error"]
    assert (code, document["code"]) == (7, "MOOR_UNKNOWN_TOOL")
    assert "'git__t'" in document["message"]


def test_processes_that_would_not_end_are_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubHost, "stubborn", True)
    code, _, err = run("call", "git__t")
    assert code == 0
    assert "would not end: 4711" in err


def test_arguments_limit_and_the_one_server_reach_the_host(run: Run, tmp_path: Path) -> None:
    seen: list[Any] = []

    def act(*given: Any) -> Any:
        seen.append(given)
        return SimpleNamespace(content=[], structured_content=None, is_error=False)

    assert run("call", "git__t", "n=3", "s=x", "--timeout", "2m", act=act)[0] == 0
    assert seen == [("git__t", {"n": 3, "s": "x"}, 120.0)]
    (host,) = StubHost.made
    assert list(host.servers) == ["git"]
    assert host.servers["git"].lazy
    usual = CredentialSettings()
    assert host.settings == {"max_starting": 3, "state_dir": str(tmp_path), "credentials": usual}


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["call", "git__t", "nonsense"], 2, "neither key=value"),
        (["call", "git__t", "--timeout", "abc"], 2, "not a time"),
        (["call", "git__t", "--timeout", "-1"], 2, "negative"),
        (["call"], 2, "Missing argument"),
        (["call", "nothing"], 7, "SERVER__TOOL"),
        (["call", "off__t"], 7, "SERVER__TOOL"),
        (["test", "gti"], 7, "'git'"),
        (["tools", "off"], 2, "disabled"),
        (["tset"], 2, "No such command"),
        (["auth", "login"], 2, "it is 'moor login'"),
        (["auth", "list"], 2, "it is 'moor auth status'"),
        (["test", "--config", "/x/y"], 2, "given twice"),
        (["test", "--jsn"], 2, "No such option"),
        ([], 2, "Missing command"),
    ],
)
def test_a_command_line_that_is_wrong_starts_nothing(
    words: list[str], code: int, part: str, run: Run
) -> None:
    got, out, err = run(*words)
    assert (got, out) == (code, "")
    assert part in err
    got, out, err = run(*words, "--json")
    assert (got, err) == (code, "")
    document = json.loads(out)["error"]
    assert part in document["message"] + str(document["fix"])
    assert document["exit_code"] == code
    assert not StubHost.made


def test_a_file_with_problems_is_told_whole_and_starts_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"mcpServers": {"a": {"command": "x",\n"argz": [],\n"timeout": "abc"}}}')
    assert main(["test", "-c", str(bad)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "line 2: mcpServers.a.argz" in err
    assert "line 3: mcpServers.a.timeout" in err
    assert main(["--json", "test", "-c", str(bad)]) == 2
    document = json.loads(capsys.readouterr().out)["error"]
    assert (document["code"], document["file"], document["line"]) == ("MOOR_CONFIG", str(bad), 2)
    assert [problem["line"] for problem in document["problems"]] == [2, 3]
    assert not StubHost.made


def test_results_for_people(run: Run) -> None:
    def block(**what: Any) -> SimpleNamespace:
        return SimpleNamespace(**what)

    blocks = [
        block(type="text", text="one\n\x1b[31mtwo"),
        block(type="image", data="AAAA", mime_type="image/png"),
        block(type="resource_link", uri="file:///x\u202e"),
        block(type="resource", resource=block(uri="x", text="inside", blob=None, mime_type=None)),
        block(type="resource", resource=block(uri="b", text=None, blob="AAAA", mime_type="a/b")),
        block(type="new\x1b"),
    ]
    result = SimpleNamespace(content=blocks, structured_content={"x": 1}, is_error=True)
    code, out, err = run("call", "git__t", act=lambda *_: result)
    assert code == 1
    assert out.splitlines() == [
        "one",
        "\\x1b[31mtwo",
        "[image/png, 3 bytes; --json shows it]",
        "[link file:///x\\u202e]",
        "inside",
        "[resource b, a/b, 4 base64]",
        "[a block of the unknown kind 'new\\x1b'; --json shows it]",
    ]
    assert "answered with an error" in err


def test_a_result_without_blocks_shows_its_structure(run: Run) -> None:
    result = SimpleNamespace(content=[], structured_content={"x": "\u202e"}, is_error=False)
    code, out, _ = run("call", "git__t", act=lambda *_: result)
    assert (code, json.loads(out)) == (0, {"x": "\u202e"})
    assert "\u202e" not in out
