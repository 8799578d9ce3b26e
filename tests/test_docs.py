"""The docs say what is so: their made parts are current, their links lead somewhere, their code runs."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import moorings
from moorings.config import parse
from tests.faults.auth_server import in_thread

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
RUN = [ROOT / "README.md", ROOT / "docs" / "topics" / "getting-started.md"]
"""Pages whose code is run as it stands; that of others is an excerpt, which must compile and name what is there."""

LOGINS = [ROOT / "docs" / "topics" / name for name in ("oauth.md", "login.md")]
"""Pages whose code is run against an authorization server of the tests, in the place of its addresses."""
BROWSER = """
import builtins, urllib.request, webbrowser
def follow(url):
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=30).close()
webbrowser.open, builtins.input = follow, None
"""
"""A person who says yes, at a browser that follows where that leads."""

LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def title(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    found = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools" / "docs.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_parts_made_from_the_code_are_current(maker: ModuleType) -> None:
    stale = [title(page) for page in maker.pages() if maker.current(page.read_text()) != page.read_text()]
    assert not stale, f"run `make docs`: {stale}"
    made = {name for page in maker.pages() for _, name, _, _ in maker.PART.findall(page.read_text())}
    assert made == set(maker.PARTS)


def test_every_bound_and_state_is_told(maker: ModuleType) -> None:
    bounds, states = maker.bounds(), maker.state_meanings()
    assert all(f"| `{name}` |" in bounds for name in moorings.Bounds.__struct_fields__)
    assert all(f"| `{state.value}` |" in states for state in moorings.State)


def test_every_case_of_the_field_has_a_test_or_says_what_it_waits_for(maker: ModuleType) -> None:
    told = tomllib.loads(maker.CASES.read_text())
    tests = maker.tests_by_case()
    assert not [case for case in told["cases"] if case not in tests and case not in told["waits"]]
    assert set(told["waits"]) <= set(told["cases"])
    # A number that is no case is a slip of the pen.
    classes = tuple(f"F{number}." for number in told["classes"])
    assert not [case for case in tests if case.startswith(classes) and case not in told["cases"]]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_to_files(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_code_compiles_and_names_what_is_there(page: Path) -> None:
    for code in CODE.findall(page.read_text()):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module == "moorings":
                assert not [each.name for each in node.names if each.name not in moorings.__all__]


def codes(pages: list[Path], kind: re.Pattern[str]) -> list[object]:
    return [
        pytest.param(code, id=f"{page.stem}-{number}")
        for page in pages
        for number, code in enumerate(kind.findall(page.read_text()), 1)
    ]


@pytest.mark.real
@pytest.mark.parametrize("code", codes(RUN, CODE))
def test_code_runs_as_it_stands(code: str, real_server: Callable[..., list[str]], tmp_path: Path) -> None:
    """`npx` and `uvx` are stand-ins that find the servers installed here, so that no network is needed."""
    launchers = tmp_path / "bin"
    launchers.mkdir()
    for launcher, skip, packages in (
        ("npx", 2, {"server-everything": "everything", "server-filesystem": "filesystem"}),
        ("uvx", 1, {"mcp-server-time": "time"}),
    ):
        lines = ["#!/bin/sh", f"package=${{{skip}##*/}}; shift {skip}", 'case "$package" in']
        for package, name in packages.items():
            lines.append(f'  {package}) exec {shlex.join(real_server(name))} "$@" ;;')
        lines += ['  *) echo "no $package here" >&2; exit 1 ;;', "esac", ""]
        script = launchers / launcher
        script.write_text("\n".join(lines))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{launchers}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip()


@pytest.mark.parametrize("code", codes(LOGINS, CODE))
def test_code_about_logins_runs_against_a_protected_server(code: str, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(key)
    for name in ("id-token", "service-account-token"):
        (tmp_path / name).write_text("a.b.c")
    clients = {
        "my-agent": {
            "client_secret": "of my agent",
            "token_endpoint_auth_method": "client_secret_basic",
        },
        "my-signer": {"token_endpoint_auth_method": "private_key_jwt"},
        **{name: {"token_endpoint_auth_method": "none"} for name in ("jobs", "desk", "moorings")},
    }
    with in_thread(clients=clients) as server:
        code = code.replace("https://tickets.example.com/mcp", server.url)
        for name in ("login", "idp"):
            code = code.replace(f"https://{name}.example.com", server.issuer)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", BROWSER + code],
            cwd=tmp_path,
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "XDG_STATE_HOME": str(tmp_path / "state"),
                "TICKETS_SECRET": "of my agent",
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip().rpartition("\n")[2] not in ("", "[]")
    assert "MOOR_LOGIN_FAILED" not in done.stdout


@pytest.mark.parametrize("code", codes(LOGINS, TOML))
def test_settings_of_logins_are_read(code: str) -> None:
    assert parse(code, file="moorings.toml", environ={"TICKETS_SECRET": "x"}).servers
