"""What is done to each client: the same steps for all, told as JSON lines on stdout with the clock of the machine.

A driver (``drive_*.py``) gives a ``Client`` with five methods and calls ``main``; it is started as
``python drive_x.py '<json>'`` by ``run.py``, which looks at everything from outside. Standard library only: it runs
in the environment of each client. Nothing here judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

MIB = 1024 * 1024
OUT = sys.stdout
"""Where the runner is told; a driver whose client prints keeps the rest away from it."""


class Client(Protocol):
    """One client over a number of servers. Made by a scenario, in one task."""

    def __init__(self, servers: dict[str, list[str]], env: dict[str, str], state: str) -> None: ...

    async def open(self) -> dict[str, str]:
        """Start all servers. Server → why it is not there; raises if the client does."""

    async def leave(self) -> None:
        """What the end of ``async with`` does."""

    async def close(self) -> None:
        """End all, as the client's documentation says."""

    async def tools(self) -> list[str]:
        """Names of all tools."""

    async def call(self, server: str, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        """Call a tool, and give its first text."""


def say(event: str, **facts: Any) -> None:
    """Tell the runner."""
    print(json.dumps({"event": event, "t": time.monotonic(), **facts}), file=OUT, flush=True)


async def told_to_go() -> None:
    """Wait for a line from the runner; the loop goes on meanwhile."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_reader(0, told.set)
    await told.wait()
    loop.remove_reader(0)
    os.read(0, 100)


async def tell(event: str, work: Awaitable[Any], limit: float = 60.0) -> None:
    """Say how a piece of work ended and what it took."""
    began = time.monotonic()
    value, raised = None, None
    try:
        async with asyncio.timeout(limit):
            value = await work
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    say(event, took=time.monotonic() - began, raised=raised, value=value)


def threads() -> int:
    """Threads of this process, those of C code too."""
    return len(os.listdir("/proc/self/task"))


# --- the scenarios ------------------------------------------------------------------------------------------------


async def cancelled_close(make: Callable[[], Client]) -> None:
    """A native cancel strikes the task that closes."""
    opened = asyncio.Event()

    async def owner() -> None:
        client = make()
        await client.open()
        await client.call("s", "fork_child", {"ignore_term": True, "seconds": 100}, 20)
        opened.set()
        await client.close()

    task = asyncio.create_task(owner())
    await opened.wait()
    await asyncio.sleep(0.5)
    task.cancel()
    say("cancelled")
    began = time.monotonic()
    await asyncio.wait({task}, timeout=10)
    say("owner", ended=task.done(), took=time.monotonic() - began)
    await told_to_go()


async def closed_elsewhere(make: Callable[[], Client]) -> None:
    """One task opens and goes on, another closes."""
    client, opened = make(), asyncio.Event()

    async def opener() -> None:
        await client.open()
        opened.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(opener())
    await opened.wait()
    await tell("closed", client.close(), 20)
    await asyncio.wait({task}, timeout=1)
    say("opener", ended=task.done())
    await told_to_go()


async def start(make: Callable[[], Client]) -> None:
    """Open, call once, close."""
    client = make()
    await tell("opened", client.open())
    await tell("answered", client.call("s", "echo", {"text": "here"}, 20), 25)
    await tell("closed", client.close())


async def host_killed(make: Callable[[], Client]) -> None:
    """Open and wait for the end."""
    client = make()
    await client.open()
    await client.call("s", "fork_child", {"ignore_term": True, "seconds": 100}, 20)
    say("ready")
    await told_to_go()


async def three_calls(make: Callable[[], Client]) -> None:
    """Three calls one after another."""
    client = make()
    await client.open()
    for n in range(3):
        await client.call("s", "echo", {"text": str(n)}, 20)
    say("called")
    await told_to_go()
    await client.close()


async def one_bad_of_two(make: Callable[[], Client]) -> None:
    """Two servers, one of which exits at once."""
    client = make()
    await tell("opened", client.open(), 30)
    await tell("listed", client.tools(), 20)
    await tell("answered", client.call("good", "echo", {"text": "here"}, 20), 25)
    await client.close()


async def at_once(make: Callable[[], Client]) -> None:
    """Eight calls of 1 s at once; and a task of the program's own that must not feel the close."""
    bystander = asyncio.create_task(asyncio.sleep(300))
    client = make()
    await client.open()
    await client.call("s", "echo", {"text": "warm"}, 20)
    calls = [client.call("s", "sleep", {"seconds": 1}, 30) for _ in range(8)]
    await tell("answered", asyncio.gather(*calls))
    await tell("closed", client.close())
    await asyncio.sleep(0.1)
    say("bystander", ended=bystander.done())
    bystander.cancel()


async def many(make: Callable[[], Client]) -> None:
    """Open all, count threads, close."""
    before = threads()
    client = make()
    await tell("opened", client.open())
    say("threads", before=before, after=threads())
    await tell("closed", client.close(), 100)
    say("done")
    await told_to_go()


async def left(make: Callable[[], Client]) -> None:
    """Leave the context and go on with other things."""
    client = make()
    await client.open()
    await client.call("s", "echo", {"text": "here"}, 20)
    await client.leave()
    say("left")
    await told_to_go()


async def death(make: Callable[[], Client]) -> None:
    """The server exits in the middle of a call; then another call."""
    client = make()
    await client.open()
    await tell("died", client.call("s", "die", {"code": 3, "stderr": "out of cheese\n"}, 30), 40)
    await tell("answered", client.call("s", "echo", {"text": "here"}, 10), 15)
    with contextlib.suppress(Exception):
        await client.close()


async def large(make: Callable[[], Client]) -> None:
    """One message of 17 MiB; then another call."""
    client = make()
    await client.open()
    await tell("large", client.call("s", "big", {"bytes": 17 * MIB}, 30), 40)
    await tell("answered", client.call("s", "echo", {"text": "here"}, 10), 15)
    with contextlib.suppress(Exception):
        await client.close()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        *(cancelled_close, closed_elsewhere, start, host_killed, three_calls, one_bad_of_two),
        *(at_once, many, left, death, large),
    )
}


def main(kind: type[Client]) -> None:
    """Run what the command line says."""
    given = json.loads(sys.argv[1])

    def make() -> Client:
        return kind(given["servers"], given["env"], given["state"])

    asyncio.run(SCENARIOS[given["scenario"]](make))
