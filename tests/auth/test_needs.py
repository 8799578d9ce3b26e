"""What a call is told where nobody can be asked, by how the login came to its end; and how the host wakes by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from moorings import AsyncHost, Bounds, LoginPrompt, NeedsLogin
from tests.auth.host_kit import away, by_then, files, holding, logged_in, outcome, run_out, spec
from tests.auth.login_kit import Someone
from tests.faults.auth_server import AuthFaults, consent
from tests.host.kit import Events

ELSEWHERE = """
from tests.auth.login_kit import browse

async def shows(prompt):
    await browse(prompt.url)

server = HttpServer(url=argv[0], transport="http", auth=True)
await login(server, name="s", credentials=files(Path(argv[1])), state_dir=False, on_login_url=shows)
"""


async def _expired(server: AuthFaults, folder: Path) -> None:
    """Over by the clock, and there never was a refresh token."""
    await run_out(folder)
    server.expire()


async def _revoked(server: AuthFaults, folder: Path) -> None:
    server.expire()
    for each in server.families:
        each.revoked = True


async def _client_gone(server: AuthFaults, folder: Path) -> None:
    server.forget_clients()
    server.expire()


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "expired": (_expired, {"token_fields": {"refresh_token": None}}),
    "revoked": (_revoked, {}),
    "client_gone": (_client_gone, {}),
}


@pytest.mark.parametrize("reason", CASES)
async def test_f12_6_why_is_told_and_a_login_elsewhere_wakes_it_at_once(reason: str, tmp_path: Path) -> None:
    """The server, the reason and the command; nothing is tried again by itself; then within a second."""
    ends, script = CASES[reason]
    async with AuthFaults(**script) as server:
        await logged_in(server, tmp_path)
        await ends(server, tmp_path)
        async with holding({"s": spec(server)}, files(tmp_path), ready=False) as (host, events):
            async with asyncio.timeout(20):
                while not isinstance(error := await outcome(host), NeedsLogin):
                    await asyncio.sleep(0.05)  # A client that is not known once may be a mishap.
            assert (error.server, error.reason) == ("s", reason)
            assert error.fix and "moor login s" in error.fix
            await events.seen("s", "needs_auth")
            status = host.status()["s"]
            assert status.next_attempt is None and status.fix and "moor login s" in status.fix
            count = len(server.requests)
            again = await outcome(host)
            assert isinstance(again, NeedsLogin) and (again.reason, again.sent) == (reason, False)
            assert len(server.requests) == count
            before = len(events.states("s"))

            async def woken() -> float:
                await by_then(lambda: len(events.states("s")) > before, within=60.0)
                return time.time()

            # Looked for from now on: the end of the other process takes its time, too.
            waking = asyncio.ensure_future(woken())
            await away(ELSEWHERE, server.url, tmp_path)
            written = max(each.stat().st_mtime for each in tmp_path.glob("*.credential"))
            assert await waking - written < 3.0
            await by_then(lambda: host.status()["s"].state == "ready")
            assert await outcome(host) == "x"


@pytest.mark.parametrize("era", ["handshake", "sse"])
async def test_f12_7_a_person_who_is_done_before_the_limit_of_the_start(era: str, tmp_path: Path) -> None:
    """What they took is not taken from the server: its start has its own time, and fails for no want of it."""

    async def act(prompt: LoginPrompt) -> str | None:
        await asyncio.sleep(1.5)
        return await consent(prompt.url)

    someone, bounds = Someone(act), Bounds(connect=3.0, probe=3.0, call=30.0, http_close=0.5, cooldown=20.0)
    how = {"transport": "sse"} if era == "sse" else {}
    async with AuthFaults(era=era, on={"initialize": "slow:2"}) as server:
        events = Events()
        async with AsyncHost(
            {"s": spec(server, bounds=bounds, **how)},
            state_dir=False,
            credentials=files(tmp_path),
            on_login_url=someone,
            on_event=events,
        ) as host:
            await events.seen("s", "ready")
            assert "parked" not in events.states("s") and await outcome(host) == "x"
        assert len(someone.prompts) == 1 == len(server.grants("authorization_code"))
