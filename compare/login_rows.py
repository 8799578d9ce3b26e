"""The rows about logins: one protected server (``tests/faults/auth_server.py``), a person who always says yes.

What counts is what the authorization server was asked, and how often a browser was opened. ``tests/peers`` has the same
situations: Moorings must hold each, and of the others it reports which they hold.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from compare.runner import ROOT, Cell, Peer, Row, Run, how

from tests.faults.http_server import Seen

PEERS = (
    Peer("Moorings", "login_moorings.py", Path(sys.executable), "moorings"),
    Peer("official SDK", "login_sdk.py", ROOT / ".env" / "compare-sdk" / "bin" / "python", "mcp"),
    Peer("mcp-use", "login_mcp_use.py", ROOT / ".env" / "compare-mcp-use" / "bin" / "python", "mcp-use"),
)

LIFE = 7
"""Seconds that an access token lives where a row waits for its end; Moorings sends none in its last five."""
CALLS, EACH = 16, 0.2
LIMIT = 90.0
"""Seconds for a run; mcp-use takes several to be imported."""


def number(count: int, one: str, many: str) -> str:
    return f"{count or 'no'} {many if count > 1 else one}"


def since(run: Run) -> list[Seen]:
    """What the server was asked in this run."""
    assert run.auth is not None
    return run.auth.requests[run.earlier :]


def refreshes(run: Run) -> int:
    assert run.auth is not None
    return sum("token:refresh_token" in run.auth.keys(seen) for seen in since(run))


def wait_for_the_end(run: Run) -> None:
    """The time of the access tokens passes, for the client and at the server."""
    time.sleep(LIFE + 0.2)


def look_restart(run: Run) -> Cell:
    opened, answered = run.wait("opened"), run.wait("answered")
    run.wait("closed")
    browsers, refreshed = run.count("browser"), refreshes(run)
    refused = sum(seen.status == 401 for seen in since(run))
    if not run.earlier:
        wait_for_the_end(run)
    held = answered["raised"] is None and (browsers, refreshed) == (0, 1)
    text = f"{number(browsers, 'browser', 'browsers')}, {number(refreshed, 'refresh', 'refreshes')}, {refused} × 401"
    return Cell(held, text if answered["raised"] is None else f"{how(opened)}; {how(answered)}; {text}")


def look_renewed(run: Run) -> Cell:
    run.wait("served")
    before = run.count("browser")
    wait_for_the_end(run)
    run.go()
    first, second = run.wait("first"), run.wait("second")
    browsers = run.count("browser") - before
    text = f"{how(first)}; then {how(second)}; {number(browsers, 'more browser', 'more browsers')}"
    return Cell(second["raised"] is None and not browsers, text)


def look_abandoned(run: Run) -> Cell:
    run.wait("served")
    assert run.auth is not None
    run.auth.expire()
    run.go()
    closed, answered = run.wait("abandoned"), run.wait("answered")
    said = "given up" if closed["raised"] is None else closed["raised"].partition(":")[0]
    return Cell(answered["raised"] is None, f"{said}; next call: {how(answered)}")


def look_at_once(run: Run) -> Cell:
    run.wait("served")
    run.go()
    answered = run.wait("answered")
    began = [seen.at for seen in since(run) if seen.tool == "sleep"]
    # Each stays for that long at the server, so those that came within that time were there together.
    most = max((sum(0 <= other - at < EACH for other in began) for at in began), default=0)
    return Cell(
        answered["raised"] is None and most == CALLS, f"{how(answered)}; {most} at once at the server"
    )


def look_open(run: Run) -> Cell:
    run.wait("opened")
    answered = run.wait("answered")
    assert run.auth is not None
    asked = sum(seen.path.partition("?")[0] != run.auth.path for seen in since(run))
    browsers = run.count("browser")
    requests = number(asked, "OAuth request", "OAuth requests")
    text = f"{how(answered)}; {number(browsers, 'browser', 'browsers')}, {requests}"
    return Cell(answered["raised"] is None and not browsers and not asked, text)


DOCUMENTS: dict[str, Any] = {"prm": ["path", "root"], "documents": ["oauth", "oidc"]}

ROWS = (
    Row(
        "P1",
        "two starts of the program, the second when the access token is over and the refresh token good",
        "the second start makes one refresh and opens no browser",
        "start",
        {},
        look_restart,
        limit=LIMIT,
        protected={"expires_in": LIFE},
        starts=2,
    ),
    Row(
        "P2",
        "the access token is over, and the token endpoint answers 503 once",
        "a call two seconds later is answered, and no browser is opened",
        "renewed",
        {},
        look_renewed,
        limit=LIMIT,
        protected={"expires_in": LIFE, "on": {"token:refresh_token": ["status:503", "ok"]}},
    ),
    Row(
        "P3",
        "a request is given up by another task than its own, in the middle of what it does for its token",
        "the next call is answered",
        "abandoned",
        {},
        look_abandoned,
        limit=LIMIT,
        protected={"on": {"token:refresh_token": "slow:0.6"}},
        leaves_out=("mcp-use",),  # it does nothing for a token once it is connected
    ),
    Row(
        "P4",
        f"{CALLS} calls of {EACH} s at once",
        f"all {CALLS} are at the server at one time",
        "at_once",
        {},
        look_at_once,
        limit=LIMIT,
        protected={},
        alone=True,
    ),
    Row(
        "P13",
        "a server that asks for no auth, though it has the documents of OAuth",
        "a call is answered with no browser and no request to OAuth",
        "start",
        {},
        look_open,
        limit=LIMIT,
        protected={"open": True, **DOCUMENTS},
    ),
)
