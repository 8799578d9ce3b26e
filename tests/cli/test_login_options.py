"""The options of ``moor login`` in the login itself, and what ``moor auth status`` and ``moor test`` say then."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.auth.host_kit import holding, outcome, spec, stored
from tests.cli.login_kit import MOOR, Stage
from tests.cli.ptys import Pty
from tests.faults.auth_server import AuthFaults, consent
from tests.ports import free_port


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


async def log_in(stage: Stage, *words: str) -> dict[str, str]:
    """By a paste; gives the query of the URL that was shown."""
    async with stage.asked(*words) as (pty, running, url):
        await pty.type(await consent(url) + "\n")
        assert await running.ended() == 0, pty.seen
    return query_of(url)


async def moor(stage: Stage, *words: str) -> tuple[int, str, str]:
    """Another verb, with nobody to ask."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "moorings.cli", *words, "--config", str(stage.file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=stage.environ(),
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_they_are_in_the_url_and_what_comes_of_it_lasts(tmp_path: Path) -> None:
    """The configuration knows nothing of that client: a later host renews its tokens all the same."""
    async with AuthFaults(clients={"by-hand": {"token_endpoint_auth_method": "none"}}) as server:
        stage, port = Stage(tmp_path, server), free_port()
        words = ("--scope", "read", "--scope", "write", "--port", str(port), "--client-id", "by-hand")
        query = await log_in(stage, *words)
        assert (query["client_id"], query["scope"]) == ("by-hand", "read write")
        assert query["redirect_uri"] == f"http://127.0.0.1:{port}/callback"
        assert not server.at("register")
        server.expire()
        async with holding({"s": spec(server)}, stage.credentials) as (host, _):
            assert await outcome(host) == "x"
        assert len(server.grants("refresh_token")) == 1


async def test_a_login_that_is_there_does_not_stand_for_scopes_it_was_not_for(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        await log_in(stage, "--scope", "read")
        code, out, _ = await stage.piped("--scope", "read")
        assert code == 0 and "the login there is works" in out
        code, out, problems = await stage.piped("--scope", "admin")
        assert code == 4 and "nobody can be asked" in problems
        query = await log_in(stage, "--scope", "read", "--scope", "admin")
        assert query["scope"] == "read admin"
        (kept,) = await stored(stage.store)
        assert set(kept.scopes) == {"read", "admin"}


async def test_status_says_all_there_is_to_say_and_no_secret(tmp_path: Path) -> None:
    """Who, issuer, client, scopes, expiry, last renewal, store, what comes next."""
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        await log_in(stage, "--scope", "read")
        _, before, _ = await moor(stage, "auth", "status", "s")
        assert "  renewed " not in before
        assert (await moor(stage, "auth", "refresh", "s"))[0] == 0
        code, out, problems = await moor(stage, "auth", "status", "s")
        assert (code, problems) == (0, "")
        (kept,) = await stored(stage.store)
        for line in (
            rf"store: file:{re.escape(str(stage.store))}, logins of local",
            "s",
            "  login     good",
            rf"  issuer    {re.escape(server.issuer)}",
            rf"  client    {re.escape(kept.key.client_id)} \(registered.*\)",
            "  scopes    read",
            r"  obtained  \d{4}-.*, by authorization code",
            r"  renewed   \d{4}-.* \(.* ago\)",
            r"  expires   \d{4}-.* \(in .*\)",
            "  renewal   by a refresh token",
            "  next      it is renewed ahead of its end, while it is used",
        ):
            assert re.search(f"^{line}$", out, re.MULTILINE), (line, out)
        _, told, _ = await moor(stage, "auth", "status", "s", "--json")
        login: dict[str, Any] = json.loads(told)["servers"]["s"]["login"]
        assert login["granted_at"] < login["renewed_at"] == login["obtained_at"] < login["expires_at"]
        assert kept.refresh_token is not None
        secrets = [kept.access_token.reveal(), kept.refresh_token.reveal()]
        assert not [each for each in secrets if each in before + out + told]


async def test_a_want_of_a_login_is_told_apart_from_all_else(tmp_path: Path) -> None:
    """``moor test``: 4 if logins are all that is missing; a key that is refused, or a fault beside it, is another."""
    async with AuthFaults() as server, AuthFaults(open=True) as other:
        stage = Stage(tmp_path, server)
        lone = stage.file.read_text()
        key = f"[servers.key]\nurl = '{server.url}'\ntransport = 'http'\n"
        key += "headers = { Authorization = 'Bearer k' }\n"
        well = f"[servers.well]\nurl = '{other.url}'\ntransport = 'http'\n"
        dead = "[servers.dead]\nurl = 'http://127.0.0.1:1/mcp'\ntransport = 'http'\n"
        for text, code in ((lone, 4), (lone + well, 4), (lone + dead, 3), (lone + key, 3)):
            stage.file.write_text(text)
            assert (await moor(stage, "test"))[0] == code, text
        stage.file.write_text(lone)
        _, out, _ = await moor(stage, "test")
        assert "needs_auth" in out and "moor login s" in out
        stage.file.write_text(key)
        code, out, _ = await moor(stage, "test")
        assert code == 3 and "does not take the configured Authorization header" in out
        assert "needs_auth" not in out and "moor login" not in out
        for status in (403, 404, 500):
            other.set(on=dict.fromkeys(("server/discover", "initialize", "GET"), f"status:{status}"))
            stage.file.write_text(well)
            code, out, _ = await moor(stage, "test")
            assert code == 3 and "needs_auth" not in out and "moor login" not in out, (status, out)


@pytest.mark.parametrize("words", [("call", "s__echo", "text=x"), ("test",), ("tools",)])
async def test_the_other_verbs_ask_nobody(words: tuple[str, ...], tmp_path: Path) -> None:
    """A person is there, with a browser: only ``moor login`` is a login."""
    async with AuthFaults() as server:
        stage = Stage(tmp_path, server)
        with Pty() as pty:
            before = pty.mode()
            command = (*words, "--config", str(stage.file))
            with pty.run(MOOR, *command, environ=stage.environ(DISPLAY=":7")) as running:
                code = await running.ended()
            assert pty.mode() == before and "moor login s" in pty.seen and "/authorize" not in pty.seen
        assert code == 4, pty.seen
        assert not stage.opened.exists() and not stage.bound.exists()
        assert not server.at("authorize") and not server.at("register")
