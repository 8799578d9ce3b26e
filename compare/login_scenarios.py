"""What is done to each client of a protected server: the same steps for all. It goes with ``scenarios.py``.

A driver (``login_*.py``) gives a ``Client`` with four methods and calls ``main``. The browser is a function that opens
the authorization URL, as a person who is logged in there and says yes, and brings back where that leads.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from scenarios import say, tell, told_to_go

Browser = Callable[[str], Awaitable[str]]


class Client(Protocol):
    """A client of one server. Made by a scenario, in one task."""

    def __init__(self, url: str, state: str, browser: Browser) -> None:
        """``state`` is a path for what it keeps, the same at each start of the program."""

    async def open(self) -> None:
        """Connect, and log in if need be."""

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        """Call a tool, and give its first text."""

    async def abandon(self) -> None:
        """Begin a request, and have another task give it up in the middle of what it does for its token."""

    async def close(self) -> None:
        """End it, as the client's documentation says."""


def visit(url: str) -> str:
    """Open a URL, and say where it leads."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().headers["Location"] or ""
    finally:
        connection.close()


async def browser(url: str) -> str:
    say("browser")
    return await asyncio.to_thread(visit, url)


# --- the scenarios ------------------------------------------------------------------------------------------------


async def start(client: Client) -> None:
    """Open, call once, close."""
    await tell("opened", client.open(), 20)
    await tell("answered", client.call("echo", {"text": "here"}, 10), 15)
    await tell("closed", client.close(), 20)


async def renewed(client: Client) -> None:
    """A call after the token is over, and another two seconds later."""
    await client.open()
    await client.call("echo", {"text": "here"}, 10)
    say("served")
    await told_to_go()
    await tell("first", client.call("echo", {"text": "here"}, 10), 15)
    await asyncio.sleep(2)
    await tell("second", client.call("echo", {"text": "here"}, 10), 15)
    await tell("closed", client.close(), 20)


async def abandoned(client: Client) -> None:
    """A request is given up; then a call."""
    await client.open()
    await client.call("echo", {"text": "here"}, 10)
    say("served")
    await told_to_go()
    await tell("abandoned", client.abandon(), 10)
    await tell("answered", client.call("echo", {"text": "here"}, 5), 6)
    await tell("closed", client.close(), 20)


async def at_once(client: Client) -> None:
    """Sixteen calls at once."""
    await client.open()
    await client.call("echo", {"text": "here"}, 10)
    say("served")
    await told_to_go()
    calls = [client.call("sleep", {"seconds": 0.2}, 20) for _ in range(16)]
    await tell("answered", asyncio.gather(*calls), 25)
    await tell("closed", client.close(), 20)


SCENARIOS = {scenario.__name__: scenario for scenario in (start, renewed, abandoned, at_once)}


def main(kind: type[Client]) -> None:
    """Run what the command line says."""
    given = json.loads(sys.argv[1])

    async def run() -> None:
        await SCENARIOS[given["scenario"]](kind(given["url"], given["state"], browser))

    asyncio.run(run())
