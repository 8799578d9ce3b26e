"""A program that leaves in one of many ways while it holds servers over HTTP: `python leaving.py ROW SPECS`.

Run by test_exit_matrix.py as a child; SPECS is JSON, name → fields of the server. It has no processes of its own: what
must be gone afterwards are its connections, and what it may print is its own traceback alone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import moorings
from moorings import Bounds, HttpServer, MooringsError
from tests.lifecycle import leaving
from tests.lifecycle.leaving import kept, say

BOUNDS = Bounds(http_close=0.5, probe=10.0, connect=20.0)
PARKED = ("starting", "parked", "dialling")
"""Servers that never come up."""


def specs() -> dict[str, HttpServer]:
    return {name: HttpServer(**fields, bounds=BOUNDS) for name, fields in json.loads(sys.argv[2]).items()}


def up() -> list[str]:
    return [name for name in leaving.SPECS if not name.startswith(PARKED)]


def use(host: moorings.Host) -> None:
    ready = host.wait_ready(30, servers=up())
    assert ready.all_ready, ready
    for name in up():
        assert host.call(f"{name}__echo", {"text": "x"}, timeout=10).text == "x"
        kept.append(host.submit(f"{name}__hold", timeout=60))
    say(f"up {time.monotonic()}")


async def started_async() -> moorings.AsyncHost:
    host = moorings.AsyncHost(leaving.SPECS, state_dir=False)
    await host.start()
    ready = await host.wait_ready(30, servers=up())
    assert ready.all_ready, ready
    for name in up():
        assert (await host.call(f"{name}__echo", {"text": "x"}, timeout=10)).text == "x"
    say(f"up {time.monotonic()}")
    return host


def interrupt(after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def interrupt_in_call() -> None:
    host = leaving.started()
    interrupt(0.3)
    host.call("good__hold", timeout=30)


def interrupt_in_start() -> None:
    host = moorings.Host({"starting": leaving.SPECS["starting"]}, state_dir=False)
    host.start()
    say(f"up {time.monotonic()}")
    interrupt(0.5)
    host.wait_ready(30)


def interrupt_in_close() -> None:
    host = leaving.started()
    interrupt(0.1)
    host.close()


def closed() -> None:
    leaving.started().close()


def async_collected() -> None:
    async def main() -> None:
        host = await started_async()
        lives = [server.life.task for server in host._servers.values() if server.life is not None]
        del host
        gc.collect()
        await asyncio.wait_for(asyncio.gather(*lives, return_exceptions=True), 10)

    asyncio.run(main())


def async_cancelled() -> None:
    """The loop is closed by Ctrl-C, with calls under way."""

    async def main() -> None:
        host = await started_async()
        interrupt(0.2)
        await host.call("good__hold", timeout=30)

    asyncio.run(main())


def while_it_imports() -> None:
    """The end of main comes at once: the first request is still importing what it needs."""
    host = moorings.Host(leaving.SPECS, state_dir=False)
    host.start()
    kept.append(host)
    say(f"up {time.monotonic()}")


def async_dropped(closed: bool) -> None:
    """Loop and host are dropped with everything up; the program goes on for a while."""
    leaving.SPECS = {name: spec for name, spec in leaving.SPECS.items() if name in up()}
    loop = asyncio.new_event_loop()
    host = loop.run_until_complete(started_async())
    if closed:
        loop.close()
    del host, loop
    for _ in range(3):
        gc.collect()


def fork_child_lives_on() -> None:
    """The parent closes while a forked child lives, which must hold none of its connections open."""
    host = leaving.started()
    pid = os.fork()
    if pid == 0:
        # It must not hold the test up, which reads until the last writer is gone.
        os.close(1)
        os.close(2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(30)
        signal.pause()
    say(f"child {pid}")
    host.close()


def calls_when_deleted() -> None:
    class Calls:
        def __init__(self, host: moorings.Host) -> None:
            self.host = host

        def __del__(self) -> None:
            try:
                self.host.call("good__echo", {"text": "late"}, timeout=2)
            except MooringsError:
                pass

    kept.append(Calls(leaving.started()))


ROWS: dict[str, Any] = {
    **{
        row: leaving.ROWS[row]
        for row in (
            "end of main", "exception", "sys.exit", "sys.exit in a thread", "os._exit", "SIGTERM", "SIGHUP", "SIGKILL",
            "collected", "made in a thread", "two hosts", "async, run returned", "async, loop left open",
            "async, loop closed", "in a running loop", "uvloop", "fork, child first", "fork, parent first",
            "multiprocessing fork", "call from atexit", "call from a daemon thread",
        )
    },
    "closed": closed,
    "async, open loop dropped": lambda: async_dropped(False),
    "async, closed loop dropped": lambda: async_dropped(True),
    "fork, child lives on": fork_child_lives_on,
    "SIGINT in a call": interrupt_in_call,
    "SIGINT in a start": interrupt_in_start,
    "SIGINT in close": interrupt_in_close,
    "async, collected": async_collected,
    "async, SIGINT in a call": async_cancelled,
    "while it imports": while_it_imports,
    "call from __del__": calls_when_deleted,
}  # fmt: skip

if __name__ == "__main__":
    leaving.SPECS = specs()
    leaving.show = use
    leaving.started_async = started_async
    ROWS[sys.argv[1]]()
