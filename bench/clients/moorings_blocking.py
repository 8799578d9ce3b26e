"""Moorings from plain threads: the blocking ``Host``, and beside it what a program would write with asyncio alone.

    moorings_blocking.py blocking '{"threads": 32, "seconds": 1, "warmup": 300, "via": "host"}'

``via`` is ``host`` for ``Host.call``, or ``run_coroutine_threadsafe`` for an ``AsyncHost`` on a loop in a thread, with
``asyncio.run_coroutine_threadsafe(host.call(...), loop).result()``. The same calls awaited on a loop are measured in
the same process first: what the way from a thread to the loop and back costs is the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import measure

from moorings import AsyncHost, Host, StdioServer

Call = Callable[[str], str]
"""Gives the text of ``echo`` for a text."""
clock = time.perf_counter


def server() -> dict[str, StdioServer]:
    """One server under the name ``s``."""
    ((command, *args),) = measure.commands()
    return {"s": StdioServer(command=command, args=tuple(args))}


async def awaited(state: str, calls: int, warmup: int) -> list[float]:
    """The seconds of each call, awaited on a loop."""
    took = []
    async with AsyncHost(server(), state_dir=state) as host:
        await host.wait_ready()
        for _ in range(warmup + calls):
            began = clock()
            result = await host.call("s__echo", {"text": "hello"})
            took.append(clock() - began)
            measure.check(result.text == "hello", "the answer")
    return took[warmup:]


@contextlib.contextmanager
def by_host(state: str) -> Iterator[Call]:
    """``Host.call``."""
    with Host(server(), state_dir=state) as host:
        host.wait_ready()
        yield lambda text: host.call("s__echo", {"text": text}).text


@contextlib.contextmanager
def by_coroutine(state: str) -> Iterator[Call]:
    """``run_coroutine_threadsafe`` onto a loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    host = AsyncHost(server(), state_dir=state)

    async def ready() -> None:
        await host.start()
        await host.wait_ready()

    def call(text: str) -> str:
        return asyncio.run_coroutine_threadsafe(host.call("s__echo", {"text": text}), loop).result().text

    try:
        asyncio.run_coroutine_threadsafe(ready(), loop).result()
        yield call
    finally:
        asyncio.run_coroutine_threadsafe(host.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


WAYS = {"host": by_host, "run_coroutine_threadsafe": by_coroutine}


def threaded(call: Call, threads: int, seconds: float) -> tuple[list[float], float]:
    """Calls from so many threads for so long: the seconds of each call, and of all."""
    took: list[list[float]] = [[] for _ in range(threads)]
    failed: list[BaseException] = []
    gate = threading.Barrier(threads + 1)
    over = threading.Event()

    def work(number: int) -> None:
        own, mine = f"hello {number}", took[number]
        gate.wait()
        try:
            while not over.is_set():
                began = clock()
                text = call(own)
                mine.append(clock() - began)
                measure.check(text == own, f"the answer to {own!r} is {text!r}")
        except Exception as error:  # boundary: raised again in the thread that asked
            failed.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    began = clock()
    over.wait(seconds)
    over.set()
    for worker in workers:
        worker.join()
    whole = clock() - began
    if failed:
        raise failed[0]
    return [each for mine in took for each in mine], whole


def blocking(threads: int, seconds: float, warmup: int, via: str, state: str) -> measure.Figures:
    """Blocking calls from so many threads."""
    reference = asyncio.run(awaited(state, max(warmup, 1000), warmup))
    with WAYS[via](state) as call:
        for _ in range(warmup):
            call("hello")
        began = time.process_time()
        took, whole = threaded(call, threads, seconds)
        cpu = time.process_time() - began
    awaited_us, p50_us = measure.microseconds(reference, 0.5), measure.microseconds(took, 0.5)
    return {
        "per_s": len(took) / whole,
        "p50_us": p50_us,
        "p99_us": measure.microseconds(took, 0.99),
        "cpu_us": cpu / len(took) * 1e6,
        "async_p50_us": awaited_us,
        "over_async_us": p50_us - awaited_us,
    }


def main() -> None:
    """Run the one case there is here."""
    name, params = sys.argv[1], json.loads(sys.argv[2])
    if name != "blocking":
        sys.exit(measure.unsupported("measures blocking calls only"))
    with tempfile.TemporaryDirectory(prefix="bench-") as state:
        print(json.dumps(blocking(**params, state=state)))


if __name__ == "__main__":
    main()
