"""What all Python clients of the bench share: the cases, written once against ``Client``, and what they measure with.

A client is a program that calls ``main`` with its own class; ``bench/harness.py`` runs it as

    CLIENT CASE '{"param": value}'        with BENCH_SERVER, the path of the server, in the environment;
                                          over HTTP BENCH_URLS too, of servers that run already

It runs one case once, in a fresh process, and prints one JSON object of figures as its last line; it exits with 3 and
``{"unsupported": why}`` for a case that is not for it. Standard library only: it runs in each client's environment.
Times are of ``perf_counter``, CPU times of this process alone, all its threads included.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = [
    "CASES",
    "Client",
    "Figures",
    "MACHINE",
    "Listed",
    "Place",
    "Unsupported",
    "call",
    "commands",
    "current_rss",
    "main",
    "microseconds",
    "percentile",
    "places",
    "protected",
    "reset_peak_rss",
]

Figures = dict[str, Any]
Params = dict[str, Any]
Place = list[str] | str
"""Where a server is: a command line, or a URL."""

BURST = 0.1
"""Seconds: a rate is the median over bursts, as other processes disturb some of them."""
MACHINE = ("machine", "the secret of the machine")
"""Client id and secret at the authorization servers of protected servers."""
MB = 1_000_000
"""All sizes here are decimal; only the kernel counts in KiB."""
clock = time.perf_counter
cpu_clock = time.process_time
MARK = f"bench-{os.getpid()}"
"""Stands in the command line of each server, so that those of this process can be counted."""


class Unsupported(Exception):
    """The client has no part in the case."""


class Listed(Protocol):
    """A tool as the client's users get it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...


class Client(Protocol):
    """A client over a number of servers. Made, opened and closed in one task, on one loop; used in any task."""

    def __init__(self, servers: Sequence[Place], state: str) -> None:
        """``servers``: where they are. ``state``: a folder that all clients of this process share."""

    async def open(self) -> Sequence[Sequence[Listed]]:
        """Start all servers side by side (or reach them), negotiate, list; the tools of each server."""
        ...

    async def close(self) -> None:
        """End all servers, or all that was with them."""

    async def call(self, server: int, tool: str, arguments: dict[str, Any]) -> str:
        """Call a tool; the text of the first block of its typed result."""
        ...

    async def tools(self, server: int) -> Sequence[Listed]:
        """All tools of a server, as it has them now."""
        ...


Make = Callable[[Sequence[Place], str], Client]
Case = Callable[[Make, Params, str], Coroutine[Any, Any, Figures]]


# --- measuring


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def microseconds(seconds: Sequence[float], share: float) -> float:
    """A percentile of durations, in µs."""
    return percentile(seconds, share) * 1e6


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise Unsupported(f"no {field} in /proc/self/status")


def current_rss() -> int:
    """Bytes resident now."""
    return _status("VmRSS:")


def peak_rss() -> int:
    """Bytes resident at most since the last reset."""
    return _status("VmHWM:")


def reset_peak_rss() -> None:
    """Let the peak begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def servers_left() -> int:
    """Servers of this process that still exist, those not yet reaped included."""
    found = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == str(os.getpid()):
            continue
        try:
            by_mark = MARK.encode() in (entry / "cmdline").read_bytes().split(b"\0")
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += by_mark or (state == "Z" and parent == str(os.getpid()))
    return found


def commands(servers: int = 1, tools: int = 0) -> list[list[str]]:
    """The command lines of so many servers that list so many tools each, besides their three own."""
    return [[os.environ["BENCH_SERVER"], "--mark", MARK, "--tools", str(tools)]] * servers


def places(servers: int = 1, tools: int = 0) -> Sequence[Place]:
    """Where so many servers are; over HTTP they run, and were told of how many tools."""
    urls = os.environ.get("BENCH_URLS", "").split()
    return urls[:servers] if urls else commands(servers, tools)


def protected() -> bool:
    """Whether the servers of this case want tokens, which ``MACHINE`` gets."""
    return sys.argv[1] == "protected"


def check(holds: bool, what: str) -> None:
    """A client that does less than it should is not measured."""
    if not holds:
        raise AssertionError(what)


async def opened(make: Make, state: str, servers: int = 1, tools: int = 0) -> Client:
    """A client over fresh servers, its lists looked at."""
    client = make(places(servers, tools), state)
    lists = await client.open()
    check([len(listed) for listed in lists] == [tools + 3] * servers, f"lists: {[len(one) for one in lists]}")
    return client


async def warmed(make: Make, state: str) -> None:
    """Start and end one server, so that what is made lazily, and what is remembered of servers, is there."""
    client = await opened(make, state)
    check(await client.call(0, "echo", {"text": "hello"}) == "hello", "the answer")
    await client.close()


async def sequential(client: Client, calls: int) -> list[float]:
    """So many calls one after another; the seconds of each."""
    took = []
    call = client.call
    for _ in range(calls):
        began = clock()
        text = await call(0, "echo", {"text": "hello"})
        took.append(clock() - began)
        if text != "hello":
            raise AssertionError(f"the answer is {text!r}")
    return took


class Load:
    """Calls in many tasks at once: task n on server n modulo their number, each with a text of its own."""

    def __init__(self, client: Client, in_flight: int, servers: int) -> None:
        self._client, self._in_flight, self._servers = client, in_flight, servers
        self._left = 0
        self.done = 0

    def stop(self) -> None:
        """Let no further call begin."""
        self._left = 0

    async def _work(self, number: int) -> None:
        server, call, own = number % self._servers, self._client.call, f"hello {number}"
        while self._left > 0:
            self._left -= 1
            text = await call(server, "echo", {"text": own})
            if text != own:
                raise AssertionError(f"the answer to {own!r} is {text!r}")
            self.done += 1

    async def run(self, calls: int) -> float:
        """So many calls, or fewer if it is stopped; calls per second."""
        self._left, before, began = calls, self.done, clock()
        await asyncio.gather(*(self._work(number) for number in range(self._in_flight)))
        return (self.done - before) / (clock() - began)


# --- the cases


async def start(make: Make, params: Params, state: str) -> Figures:
    """One server (or more): started, negotiated and listed; and closed again."""
    ms, close_ms = [], []
    await warmed(make, state)
    for _ in range(params["repeats"]):
        began = clock()
        client = await opened(make, state, params["servers"])
        ms.append((clock() - began) * 1e3)
        began = clock()
        await client.close()
        close_ms.append((clock() - began) * 1e3)
    return {"ms": ms, "close_ms": close_ms}


async def call(make: Make, params: Params, state: str) -> Figures:
    """Sequential calls of a small tool."""
    client = await opened(make, state)
    await sequential(client, params["warmup"])
    began = cpu_clock()
    took = await sequential(client, params["calls"])
    cpu = cpu_clock() - began
    await client.close()
    return {
        "p50_us": microseconds(took, 0.5),
        "p99_us": microseconds(took, 0.99),
        "cpu_us": cpu / len(took) * 1e6,
    }


async def rate(make: Make, params: Params, state: str) -> Figures:
    """Calls in many tasks at once, on one server or spread over several."""
    servers = params.get("servers", 1)
    client = await opened(make, state, servers)
    load = Load(client, params["in_flight"], servers)
    await load.run(params["warmup"])
    load.done, rates, began = 0, [], cpu_clock()
    for _ in range(max(1, round(params["seconds"] / BURST))):
        asyncio.get_running_loop().call_later(BURST, load.stop)
        rates.append(await load.run(sys.maxsize))
    cpu = (cpu_clock() - began) / load.done
    await client.close()
    return {"per_s": percentile(rates, 0.5), "cpu_us": cpu * 1e6}


async def side_by_side(make: Make, params: Params, state: str) -> Figures:
    """Calls at once on a protected server that takes its time for each: the time until the last one is there."""
    client = await opened(make, state)
    took = []
    for _ in range(params["repeats"]):
        began = clock()
        texts = await asyncio.gather(
            *(client.call(0, "echo", {"text": str(number)}) for number in range(params["calls"]))
        )
        took.append((clock() - began) * 1e3)
        check(texts == [str(number) for number in range(params["calls"])], f"answers: {texts}")
    await client.close()
    return {"ms": took}


async def large(make: Make, params: Params, state: str) -> Figures:
    """A large result: what the first costs in memory over its own size, and what all take."""
    size = params["bytes"]
    client = await opened(make, state)
    await sequential(client, 1)
    before = current_rss()
    reset_peak_rss()
    began = clock()
    text = await client.call(0, "big", {"bytes": size})
    first = clock() - began
    ratio = (peak_rss() - before) / size
    check(len(text) == size and text.isascii() and text.startswith("The harbour"), "the large text")
    del text
    took = []
    for _ in range(params["repeats"]):
        began = clock()
        text = await client.call(0, "big", {"bytes": size})
        took.append(clock() - began)
        check(len(text) == size, "the large text")
        del text
    await client.close()
    return {"ms": percentile(took, 0.5) * 1e3, "first_ms": first * 1e3, "rss_ratio": ratio}


def read_all(listed: Sequence[Listed]) -> dict[str, str]:
    """Name → description of each tool: what is lazy is decoded by this."""
    return {tool.name: tool.description or "" for tool in listed}


async def listing(make: Make, params: Params, state: str) -> Figures:
    """A long list: what the first costs in memory, and what it takes to fetch it anew."""
    tools = params["tools"]
    await warmed(make, state)
    client = make(places(1, tools), state)
    before = current_rss()
    reset_peak_rss()
    began = clock()
    (held,) = await client.open()
    first = clock() - began
    check(len(read_all(held)) == tools + 3, f"{len(held)} tools")
    peak, after = peak_rss(), current_rss()
    del held
    took = []
    for _ in range(params["repeats"]):
        count = await client.call(0, "touch", {})
        began = clock()
        read = read_all(await client.tools(0))
        took.append(clock() - began)
        check(len(read) == tools + 3, f"{len(read)} tools")
        touch = next(text for name, text in read.items() if name.endswith("touch"))
        check(touch.endswith(count), f"an old list: {touch!r} after touch {count}")
        del read
    await client.close()
    return {
        "ms": percentile(took, 0.5) * 1e3,
        "first_ms": first * 1e3,
        "rss_mb": (peak - before) / MB,
        "rss_held_mb": (after - before) / MB,
    }


async def many(make: Make, params: Params, state: str) -> Figures:
    """Many servers in one process: until all are listed, what they cost, until all are gone.

    ``more_mb`` is the memory on top of that of a process which has had one of them, and its imports done.
    """
    empty = current_rss()
    await warmed(make, state)
    warm = current_rss()
    began, began_cpu = clock(), cpu_clock()
    client = await opened(make, state, params["servers"])
    ready, cpu = clock() - began, cpu_clock() - began_cpu
    rss = current_rss()
    for server in range(params["servers"]):
        check(await client.call(server, "echo", {"text": "hello"}) == "hello", f"server {server}")
    began = clock()
    await client.close()
    closed = clock() - began
    return {
        "ready_ms": ready * 1e3,
        "close_ms": closed * 1e3,
        "cpu_ms": cpu * 1e3,
        "rss_mb": rss / MB,
        "rss_empty_mb": empty / MB,
        "more_mb": (rss - warm) / MB,
        "left": servers_left(),
    }


async def growth(make: Make, params: Params, state: str) -> Figures:
    """The cost of a call in windows of a long series: ``windows`` holds [first, end] of each.

    The CPU time of a window is the median over ten slices of it, as other processes disturb some of them.
    """
    slices = 10
    client = await opened(make, state)
    await sequential(client, params["warmup"])
    cpu_us, rss_mb, done = [], [], 0
    for first, end in params["windows"]:
        for _ in range(done, first):
            await client.call(0, "echo", {"text": "hello"})
        cpu = []
        for _ in range(slices):
            began = cpu_clock()
            for _ in range((end - first) // slices):
                await client.call(0, "echo", {"text": "hello"})
            cpu.append((cpu_clock() - began) / ((end - first) // slices))
        done = end
        cpu_us.append(microseconds(cpu, 0.5))
        rss_mb.append(current_rss() / MB)
    await client.close()
    return {
        "cpu_us": cpu_us,
        "rss_mb": rss_mb,
        "first_cpu_us": cpu_us[0],
        "last_cpu_us": cpu_us[-1],
        "drift": cpu_us[-1] / cpu_us[0],
        "rss_growth_mb": rss_mb[-1] - rss_mb[0],
    }


async def lag(make: Make, params: Params, state: str) -> Figures:
    """How much later than it asked for a neighbour wakes up while large results arrive."""
    step = 0.001
    late: list[float] = []
    client = await opened(make, state)
    await client.call(0, "big", {"bytes": params["bytes"]})

    async def neighbour() -> None:
        while True:
            asked = clock() + step
            await asyncio.sleep(step)
            late.append(clock() - asked)

    ticking = asyncio.create_task(neighbour())
    for _ in range(params["repeats"]):
        text = await client.call(0, "big", {"bytes": params["bytes"]})
        check(len(text) == params["bytes"], "the large text")
    ticking.cancel()
    await client.close()
    return {
        "p50_ms": percentile(late, 0.5) * 1e3,
        "p99_ms": percentile(late, 0.99) * 1e3,
        "max_ms": max(late) * 1e3,
        "ticks": len(late),
    }


CASES: dict[str, Case] = {
    "start": start,
    "call": call,
    "rate": rate,
    "spread": rate,
    "protected": side_by_side,
    "large": large,
    "list": listing,
    "many": many,
    "growth": growth,
    "lag": lag,
}


def unsupported(why: str) -> int:
    """Say that the client has no part in the case."""
    print(json.dumps({"unsupported": why}))
    return 3


def main(make: Make) -> None:
    """Run the case that the command line names."""
    name, params = sys.argv[1], json.loads(sys.argv[2])
    case = CASES.get(name)
    if case is None:
        sys.exit(unsupported(f"no case {name!r}"))
    with tempfile.TemporaryDirectory(prefix="bench-") as state:
        try:
            figures = asyncio.run(case(make, params, state))
        except Unsupported as error:
            sys.exit(unsupported(str(error)))
    print(json.dumps(figures))
