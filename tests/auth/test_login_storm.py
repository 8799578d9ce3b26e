"""Everybody at once on one store: processes log in, out, renew, call and carry logins about. What is left is sound.

A server that rotates refresh tokens ends a login whose old one is used again: that is seen if two use one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from moorings import CredentialSettings
from tests.auth.host_kit import ROOT
from tests.auth.login_kit import Someone, log_in
from tests.faults.auth_server import AuthFaults

KINDS = ("files", "redis", "postgres")
PLAYERS, ROUNDS = 5, 4
SEED = int(os.environ.get("MOORINGS_STORM_SEED", "7"))

pytestmark = pytest.mark.timeout(600)  # each wait within has a bound of its own

PLAYER = """
import asyncio, json, os, random, sys
from pathlib import Path
from moorings import *
from moorings import export_logins, import_logins, logout, read_logins, refresh_login
from tests.auth.host_kit import BOUNDS
from tests.auth.login_kit import Someone

url, store, folder, seed, rounds = sys.argv[1:]
chance = random.Random(int(seed))
server = HttpServer(url=url, transport="http", auth=AuthSettings(timeout=60.0), bounds=BOUNDS)
where = dict(credentials=CredentialSettings(store=store), state_dir=False)

async def act(what, number):
    if what in ("login", "force"):
        someone = Someone()
        await login(server, name="s", on_login_url=someone, force=what == "force", **where)
        for page in await someone.every_page():
            assert "logged in to" in page.lower(), page
    elif what == "logout":
        await logout(server, **where)
    elif what == "refresh":
        await refresh_login(server, **where)
    elif what == "call":
        async with AsyncHost({"s": server}, **where) as host:
            await host.wait_ready(20)
            await host.call("s__echo", {"text": "x"}, timeout=20)
    elif what == "read":
        await read_logins({"s": server}, **where)
    elif what == "both":
        await asyncio.gather(act("force", number), act("call", number), return_exceptions=True)
    elif what == "cancel":
        task = asyncio.ensure_future(act("force", number))
        await asyncio.sleep(chance.random() * 0.4)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    elif what == "carry":
        file = Path(folder) / f"{os.getpid()}-{number}"
        await export_logins({"s": server}, file, "a passphrase", move=True, **where)
        await import_logins(file, "a passphrase", replace=True, **where)

async def main():
    for number in range(int(rounds)):
        what = chance.choice(
            ["login", "login", "force", "logout", "refresh", "call", "read", "both", "cancel", "carry"]
        )
        try:
            async with asyncio.timeout(120):
                await act(what, number)
            said = "ok"
        except MooringsError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"RAW {type(error).__name__}: {error!r}"
        print(json.dumps([what, said]), flush=True)

asyncio.run(main())
"""


def store_at(kind: str, request: pytest.FixtureRequest, folder: Path) -> CredentialSettings:
    if kind == "files":
        return CredentialSettings(store=f"file:{folder / 'credentials'}")
    engine = request.getfixturevalue(f"{kind}_server")
    return CredentialSettings(store=engine.url)


async def plays(server: AuthFaults, store: str, folder: Path, seed: int, rounds: int) -> Any:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PLAYER, server.url, store, str(folder), str(seed), str(rounds)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def told(outs: list[tuple[bytes, bytes]]) -> Counter[tuple[str, str]]:
    return Counter((what, how) for out, _ in outs for what, how in map(json.loads, out.decode().splitlines()))


async def is_sound(server: AuthFaults, where: CredentialSettings) -> None:
    """Nobody holds anything up, and the next login works."""
    async with asyncio.timeout(60):
        assert (await log_in(server, where, on_login_url=Someone(), force=True)).fresh


@pytest.mark.parametrize("kind", KINDS)
async def test_everybody_at_once(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    where = store_at(kind, request, tmp_path)
    async with AuthFaults() as server:
        players = [await plays(server, where.store, tmp_path, SEED + n, ROUNDS) for n in range(PLAYERS)]
        outs = await asyncio.gather(*(each.communicate() for each in players))
        for each, (_, problems) in zip(players, outs, strict=True):
            assert each.returncode == 0, problems.decode()
        said = told(outs)
        assert not [each for each in said if each[1].startswith("RAW")], said
        assert not server.revoked_by_reuse, said
        assert any(how == "ok" for _, how in said)
        await is_sound(server, where)


@pytest.mark.parametrize("kind", KINDS)
async def test_some_are_killed_and_some_stand_still(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = store_at(kind, request, tmp_path)
    chance = random.Random(SEED)
    async with AuthFaults() as server:
        players = [await plays(server, where.store, tmp_path, SEED + n, ROUNDS) for n in range(PLAYERS)]
        outs = [asyncio.ensure_future(each.communicate()) for each in players]
        for each, number in zip(players, (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP), strict=False):
            seen = len(server.requests)
            await server.until(lambda s, n=seen: len(s.requests) > n + chance.randrange(10), 60.0)
            with contextlib.suppress(ProcessLookupError):
                each.send_signal(number)
        # The others do not wait for those who are gone.
        await asyncio.gather(*outs[3:])
        try:
            await is_sound(server, where)
        except TimeoutError:
            # Who stands still with the lock of the store is not dead, and keeps it (``at_store.LOCK_WITHIN``). If that
            # was it, its death sets the lock free, and the next login works.
            players[2].kill()
            await is_sound(server, where)
        with contextlib.suppress(ProcessLookupError):
            players[2].send_signal(signal.SIGCONT)
        said = told(list(await asyncio.gather(*outs)))
        assert not [each for each in said if each[1].startswith("RAW")], said
        await is_sound(server, where)
