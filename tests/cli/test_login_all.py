"""``moor login --all``: one that fails does not stop the others, and what is said of each has one shape."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from moorings.cli.app import run
from tests.auth.login_kit import Someone, log_in
from tests.faults.auth_server import AuthFaults, in_thread


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")


def said(folder: Path, urls: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    file = folder / "moorings.toml"
    servers = [f"[servers.s{n}]\nurl = '{url}'\ntransport = 'http'\n" for n, url in enumerate(urls)]
    store = f"[credentials]\nstore = 'file:{folder / 'logins'}'\n"
    file.write_text("[host]\nstate_dir = 'state'\n" + store + "".join(servers))
    code = run(["login", "--all", "--json", "--config", str(file)])
    return code, json.loads(capsys.readouterr().out)


def test_each_is_told_of_in_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_thread() as server:
        asyncio.run(logged_in(server, tmp_path / "logins"))
        # The first one wants somebody who can be asked.
        other = server.url.replace("127.0.0.1", "localhost")
        code, document = said(tmp_path, [other, server.url], capsys)
        assert code != 0 and set(document["servers"]) == {"s0", "s1"}
        assert "error" in document["servers"]["s0"]
        assert set(document["servers"]["s1"]) == {"login", "connected"}
        assert document["servers"]["s1"]["connected"]["ready"]


def test_one_alone_is_told_of_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with in_thread() as server:
        code, document = said(tmp_path, [server.url], capsys)
        assert code == 4 and document["servers"]["s0"]["error"]["code"] == "MOOR_NEEDS_LOGIN"


async def logged_in(server: AuthFaults, folder: Path) -> None:
    assert (await log_in(server, folder, on_login_url=Someone())).fresh
