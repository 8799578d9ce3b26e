"""Whole logins with a person at a real terminal: the paste and the listener race, and either may win. F12.8."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from moorings import AuthSettings, LoginResult
from moorings.cli.prompt import terminal
from tests.auth.host_kit import spec
from tests.auth.login_kit import browse, log_in
from tests.cli.ptys import PATIENCE, Pty
from tests.faults.auth_server import AuthFaults, consent

NO_BROWSER = {"PATH": os.defpath, "BROWSER": "none"}


@asynccontextmanager
async def logging_in(
    server: AuthFaults, folder: Path, pty: Pty, settings: AuthSettings | None = None
) -> AsyncIterator[tuple[asyncio.Task[LoginResult], str]]:
    """A login that is shown; when this is left it has ended, and the terminal is as it was."""
    before = pty.mode()
    shows = partial(terminal, stdin=pty.stream("r"), stderr=pty.stream(), environ=NO_BROWSER)
    async with asyncio.TaskGroup() as group:
        target = spec(server, settings) if settings else server
        task = group.create_task(log_in(target, folder, on_login_url=shows))
        await pty.shows("\n> ")
        yield task, next(line for line in pty.seen.split("\r\n") if "code_challenge" in line)
        async with asyncio.timeout(PATIENCE):
            await task
    assert pty.mode() == before


async def test_f12_8_a_paste_of_another_login_is_said_and_asked_again(tmp_path: Path) -> None:
    with Pty() as pty:
        async with AuthFaults() as server:
            async with logging_in(server, tmp_path, pty) as (task, url):
                back = await consent(url)
                state = dict(parse_qsl(urlsplit(url).query))["state"]
                await pty.type(back.replace(state, "another-state") + "\n")
                await pty.shows("That was not it: ")
                await pty.shows("\n> ", times=2)
                await pty.type(back + "\n")
            assert task.result().fresh
        assert pty.seen.count(url) == 1


@pytest.mark.parametrize("typed", ["", "half of a paste"])
async def test_f12_8_the_listener_wins_and_the_terminal_is_free(typed: str, tmp_path: Path) -> None:
    with Pty() as pty:
        async with AuthFaults() as server:
            async with logging_in(server, tmp_path, pty) as (task, url):
                await pty.type(typed)
                if typed:
                    await pty.shows(
                        f"({len(typed)} characters)"
                    )  # What was not read by then is the next reader's.
                page = await browse(url)
            assert "logged in to" in page.lower()
            assert task.result().fresh
        await pty.ends_with("\r\n")
        await pty.type("next\n")
        await pty.shows("next")
        assert os.read(pty.fd, 100) == b"next\n"


async def test_f12_8_only_an_external_redirect_is_allowed_and_is_pasted(tmp_path: Path) -> None:
    with Pty() as pty:
        async with AuthFaults() as server:
            settings = AuthSettings(redirect_uri="https://me.example/back")
            async with logging_in(server, tmp_path, pty, settings) as (task, url):
                assert "https://me.example/back?…" in pty.seen
                await pty.type(await consent(url) + "\n")
            assert task.result().fresh
