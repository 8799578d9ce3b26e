"""What the bench measures: the cases with their parameters, who takes part, how figures read, and the marks.

Plain data. What takes the peers long is run by them in the first round only (``heavy``), with less work (``slow``), or
in full mode only (``quick_peers``): the marks against them are factors of 5 to 20, and one run says enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["CASES", "CLIENTS", "MARKED", "MARKS", "PEERS", "PLOT", "Case", "Figure", "Mark", "Ref"]

Params = dict[str, Any]

CLIENTS = {
    "floor": "floor",
    "floor-sockets": "floor on sockets",
    "floor-aiohttp": "bare aiohttp",
    "moorings": "Moorings",
    "moorings-blocking": "Moorings, Host",
    "moorings-rcts": "Moorings, run_coroutine_threadsafe",
    "sdk": "official SDK",
    "sdk-moorings": "official SDK, MooringsAuth",
    "fastmcp": "FastMCP",
    "typescript": "TypeScript SDK",
}
"""Every client by its key and its name."""
PEERS = ("sdk", "fastmcp", "typescript")
HEAVY = ("sdk", "typescript")
"""Without FastMCP, which hands large messages to the SDK, and goes over HTTP by it."""
OWN = ("floor", "moorings")
HTTP_OWN = ("floor-sockets", "floor-aiohttp", "moorings")
"""Over HTTP the floor is aiohttp by itself; what is below it is for information."""
THREADED = ("moorings-blocking", "moorings-rcts")


class Figure(NamedTuple):
    """A figure that the report shows."""

    key: str
    label: str
    unit: str
    more_is_better: bool = False


class Case(NamedTuple):
    """One case: what is asked of a client, in which mode, and what comes of it."""

    name: str
    title: str
    kind: str
    """The name under which the clients know it."""
    quick: Params | None
    """None: in full mode only."""
    full: Params
    figures: tuple[Figure, ...]
    pin: str = "one"
    """``one``: client and server share a core, so that what one call costs is not hidden behind the time that a core
    takes to wake up; ``two``: one core for the client, another for its servers."""
    clients: tuple[str, ...] = (*OWN, *PEERS)
    quick_peers: tuple[str, ...] = PEERS
    """The peers that take part in quick mode."""
    heavy: bool = False
    """Whether peers run it in the first round only, whatever the mode."""
    slow: Mapping[str, Any] = MappingProxyType({})
    """Other parameters for the peers."""
    http: tuple[str, ...] | None = None
    """Over HTTP: what the server is told besides. None: over stdio."""
    server: str = ""
    """Over HTTP: another server than the usual one, a file of ``bench/server``, which is told this alone."""

    @property
    def floor(self) -> str:
        """The client that its figures are compared with."""
        return "floor" if self.http is None else "floor-aiohttp"


class Ref(NamedTuple):
    """A figure of a client in a case."""

    case: str
    client: str
    key: str


class Mark(NamedTuple):
    """A bound: on a figure, or on its ratio to another."""

    text: str
    of: Ref
    against: Ref | None = None
    at_most: float | None = None
    at_least: float | None = None
    or_at_most: Ref | None = None
    """A figure that may stand in for the bound: what the floor itself does."""


P50 = Figure("p50_us", "p50", "µs")
P99 = Figure("p99_us", "p99", "µs")
CPU = Figure("cpu_us", "CPU per call", "µs")
PER_S = Figure("per_s", "calls", "1/s", more_is_better=True)
LATE = (
    Figure("p50_ms", "late, p50", "ms"),
    Figure("p99_ms", "late, p99", "ms"),
    Figure("max_ms", "late, max", "ms"),
)
MB = 1_000_000


def _rate(in_flight: int, peers: tuple[str, ...] = ()) -> Case:
    params = {"in_flight": in_flight, "seconds": 0.5, "warmup": max(300, in_flight)}
    return Case(
        f"rate-{in_flight}",
        f"{in_flight} in flight, one server",
        "rate",
        params,
        params | {"seconds": 2.0, "warmup": 3000},
        (PER_S, CPU),
        pin="two",
        quick_peers=peers,
    )


def _large(megabytes: int, peers: tuple[str, ...] = ()) -> Case:
    return Case(
        f"large-{megabytes}",
        f"result of {megabytes} MB",
        "large",
        {"bytes": megabytes * MB, "repeats": 7},
        {"bytes": megabytes * MB, "repeats": 15},
        (Figure("ms", "p50", "ms"), Figure("rss_ratio", "peak memory over its size", "×")),
        quick_peers=peers,
        heavy=True,
        slow={"repeats": 2},
    )


def _list(tools: int, peers: tuple[str, ...] = ()) -> Case:
    return Case(
        f"list-{tools}",
        f"list of {tools:,} tools",
        "list",
        {"tools": tools, "repeats": 3},
        {"tools": tools, "repeats": 7},
        (
            Figure("first_ms", "start and first list", "ms"),
            Figure("ms", "fetched anew", "ms"),
            Figure("rss_mb", "peak memory", "MB"),
        ),
        quick_peers=peers,
        heavy=True,
        slow={"repeats": 1},
    )


def _many(servers: int, quick: bool) -> Case:
    return Case(
        f"many-{servers}",
        f"{servers} servers" if servers > 1 else "1 server",
        "many",
        {"servers": servers} if quick else None,
        {"servers": servers},
        (
            Figure("ready_ms", "ready", "ms"),
            Figure("close_ms", "closed", "ms"),
            Figure("cpu_ms", "CPU until ready", "ms"),
            Figure("rss_mb", "client memory", "MB"),
            Figure("rss_empty_mb", "before", "MB"),
            Figure("left", "processes left", ""),
        ),
        pin="two",
    )


def _http_call(name: str, title: str, *more: str, peers: tuple[str, ...] = PEERS) -> Case:
    return Case(
        name,
        title,
        "call",
        {"calls": 2000, "warmup": 300},
        {"calls": 10_000, "warmup": 1000},
        (P50, P99, CPU),
        clients=(*HTTP_OWN, *PEERS),
        quick_peers=peers,
        slow={"calls": 500, "warmup": 100},
        http=more,
    )


def _http_rate(in_flight: int, peers: tuple[str, ...] = ()) -> Case:
    params = {"in_flight": in_flight, "seconds": 0.5, "warmup": max(300, in_flight)}
    return Case(
        f"http-rate-{in_flight}",
        f"{in_flight} in flight, one server",
        "rate",
        params if peers else None,
        params | {"seconds": 2.0, "warmup": 3000},
        (PER_S, CPU),
        clients=(*HTTP_OWN, *PEERS),
        quick_peers=peers,
        slow={"seconds": 0.5, "warmup": in_flight},
        http=(),
    )


def _http_large(megabytes: int, how: str, *more: str, peers: tuple[str, ...] = ()) -> Case:
    return Case(
        f"http-{how.lower()}-{megabytes}",
        f"result of {megabytes} MB by {how}",
        "large",
        {"bytes": megabytes * MB, "repeats": 5},
        {"bytes": megabytes * MB, "repeats": 15},
        (Figure("ms", "p50", "ms"), Figure("rss_ratio", "peak memory over its size", "×")),
        clients=(*(HTTP_OWN if peers else HTTP_OWN[1:]), *PEERS),
        quick_peers=peers,
        heavy=True,
        slow={"repeats": 2},
        http=more,
    )


def _http_many(servers: int) -> Case:
    return Case(
        f"http-many-{servers}",
        f"{servers} servers with sessions",
        "many",
        {"servers": servers},
        {"servers": servers},
        (
            Figure("ready_ms", "ready", "ms"),
            Figure("close_ms", "closed", "ms"),
            Figure("cpu_ms", "CPU until ready", "ms"),
            Figure("rss_mb", "client memory", "MB"),
            Figure("more_mb", "on top of one server", "MB"),
        ),
        clients=(*HTTP_OWN, *PEERS),
        quick_peers=HEAVY,
        http=("--session",),
    )


def _blocking(threads: int) -> Case:
    params = {"threads": threads, "seconds": 0.5, "warmup": 500}
    figures = [PER_S, P50, P99, CPU]
    if threads == 1:
        figures += [
            Figure("async_p50_us", "the same awaited, p50", "µs"),
            Figure("over_async_us", "over that", "µs"),
        ]
    return Case(
        f"blocking-{threads}",
        "blocking calls, 1 thread" if threads == 1 else f"blocking calls, {threads} threads",
        "blocking",
        params,
        params | {"seconds": 2.0},
        tuple(figures),
        clients=THREADED,
    )


def _windows(*starts: int) -> list[list[int]]:
    return [[start, start + 10_000] for start in starts]


CASES = (
    Case(
        "import",
        "import, over bare Python",
        "import",
        {"repeats": 4},
        {"repeats": 10},
        (
            Figure("ms", "import", "ms"),
            Figure("host_ms", "with the host's class", "ms"),
            Figure("command_ms", "moor --version", "ms"),
            Figure("bare_ms", "bare Python itself", "ms"),
        ),
        clients=("moorings", "sdk", "fastmcp"),
        slow={"repeats": 1},
    ),
    Case(
        "start",
        "one server: start, negotiate, list",
        "start",
        {"servers": 1, "repeats": 15},
        {"servers": 1, "repeats": 50},
        (Figure("ms", "ready", "ms"), Figure("close_ms", "closed", "ms")),
    ),
    Case(
        "call",
        "call, one after another",
        "call",
        {"calls": 3000, "warmup": 500},
        {"calls": 20_000, "warmup": 1000},
        (P50, P99, CPU),
    ),
    Case(
        "call-two-cores",
        "the same, server on another core",
        "call",
        {"calls": 2000, "warmup": 300},
        {"calls": 10_000, "warmup": 1000},
        (P50, P99, CPU),
        pin="two",
        quick_peers=(),
    ),
    _rate(1),
    _rate(16),
    _rate(128, PEERS),
    _rate(1000),
    Case(
        "spread",
        "128 in flight over 50 servers",
        "spread",
        {"servers": 50, "in_flight": 128, "seconds": 0.5, "warmup": 500},
        {"servers": 50, "in_flight": 128, "seconds": 2.0, "warmup": 3000},
        (PER_S, CPU),
        pin="two",
    ),
    _large(1),
    _large(5),
    _large(10, HEAVY),
    _large(15),
    _list(1000),
    _list(10_000, HEAVY),
    _many(1, quick=False),
    _many(10, quick=False),
    _many(50, quick=False),
    _many(100, quick=True),
    _many(300, quick=False),
    _blocking(1),
    _blocking(32),
    Case(
        "growth",
        "CPU of a call over a long life",
        "growth",
        {"calls": 100_000, "warmup": 1000, "windows": _windows(0, 45_000, 90_000)},
        {"calls": 1_000_000, "warmup": 1000, "windows": _windows(0, 10_000, 100_000, 500_000, 990_000)},
        (
            Figure("first_cpu_us", "first 10⁴ calls", "µs"),
            Figure("last_cpu_us", "last 10⁴ calls", "µs"),
            Figure("drift", "last over first", "×"),
            Figure("rss_growth_mb", "memory grown by", "MB"),
        ),
        clients=OWN,
    ),
    Case(
        "lag",
        "a neighbour on the loop while 10 MB results arrive",
        "lag",
        {"bytes": 10 * MB, "repeats": 10},
        {"bytes": 10 * MB, "repeats": 50},
        LATE,
        pin="two",
        quick_peers=HEAVY,
        heavy=True,
        slow={"repeats": 2},
    ),
    _http_call("http-call", "call, one after another"),
    _http_call("http-call-sse", "the same, answered by SSE", "--sse", peers=()),
    _http_rate(16),
    _http_rate(128, HEAVY),
    _http_large(5, "JSON"),
    _http_large(10, "JSON", peers=HEAVY),
    _http_large(15, "JSON"),
    _http_large(5, "SSE", "--sse"),
    _http_large(10, "SSE", "--sse", peers=HEAVY),
    _http_large(15, "SSE", "--sse"),
    _http_many(100),
    Case(
        "protected-16",
        "16 protected calls at once, of 0.2 s each",
        "protected",
        {"calls": 16, "repeats": 3},
        {"calls": 16, "repeats": 9},
        (Figure("ms", "all answered", "ms"),),
        clients=("moorings", "sdk", "sdk-moorings"),
        heavy=True,
        slow={"repeats": 1},
        http=("0.2",),
        server="protected.py",
    ),
)


def _times(case: str, key: str, client: str = "floor") -> tuple[Ref, Ref]:
    return Ref(case, "moorings", key), Ref(case, client, key)


def _http(case: str, key: str, client: str = "floor-aiohttp") -> tuple[Ref, Ref]:
    return _times(case, key, client)


def _linear(case: str) -> tuple[Ref, Ref]:
    return Ref(f"{case}-15", "moorings", "ms"), Ref(f"{case}-5", "moorings", "ms")


def _own(case: str, key: str, client: str = "moorings") -> Ref:
    return Ref(case, client, key)


MARKS = (
    Mark("call p50, against the floor", *_times("call", "p50_us"), at_most=1.5),
    Mark("call p50, against the SDK", *_times("call", "p50_us", "sdk"), at_most=1 / 5),
    Mark("calls/s, 128 in flight, against the floor", *_times("rate-128", "per_s"), at_least=0.6),
    Mark("calls/s, 128 in flight, against the SDK", *_times("rate-128", "per_s", "sdk"), at_least=10),
    Mark("10 MB result, against the floor", *_times("large-10", "ms"), at_most=1.5),
    Mark("10 MB result, peak memory over its size", _own("large-10", "rss_ratio"), at_most=2.5),
    Mark(
        "15 MB result against 5 MB (3 is linear, 9 quadratic)",
        _own("large-15", "ms"),
        _own("large-5", "ms"),
        at_most=4.0,
    ),
    Mark("list of 10,000 tools, against the floor", *_times("list-10000", "ms"), at_most=1.5),
    Mark("list of 10,000 tools, against the SDK", *_times("list-10000", "ms", "sdk"), at_most=1 / 20),
    Mark(
        "list of 10,000 tools, memory against the SDK", *_times("list-10000", "rss_mb", "sdk"), at_most=1 / 6
    ),
    Mark("100 servers ready, against the floor", *_times("many-100", "ready_ms"), at_most=1.5),
    Mark("100 servers closed, against the floor", *_times("many-100", "close_ms"), at_most=1.5),
    Mark("memory of the client with 100 servers, MB", _own("many-100", "rss_mb"), at_most=45),
    Mark("processes left after the close of 100", _own("many-100", "left"), at_most=0),
    Mark(
        "blocking call over the awaited one, µs",
        _own("blocking-1", "over_async_us", "moorings-blocking"),
        at_most=60,
    ),
    Mark(
        "32 threads, against run_coroutine_threadsafe",
        _own("blocking-32", "per_s", "moorings-blocking"),
        _own("blocking-32", "per_s", "moorings-rcts"),
        at_least=1.5,
    ),
    Mark("import moorings over bare Python, ms", _own("import", "ms"), at_most=40),
    Mark("moor --version over bare Python, ms", _own("import", "command_ms"), at_most=60),
    Mark(
        "CPU of the last calls over the first (or the floor's own)",
        _own("growth", "drift"),
        at_most=1.1,
        or_at_most=Ref("growth", "floor", "drift"),
    ),
    Mark("memory grown by then, MB", _own("growth", "rss_growth_mb"), at_most=1.0),
    Mark("a neighbour's lateness under 10 MB results, p99 in ms", _own("lag", "p99_ms"), at_most=20),
    Mark("HTTP call p50, against bare aiohttp", *_http("http-call", "p50_us"), at_most=1.3),
    Mark(
        "HTTP calls/s, 128 in flight, against bare aiohttp", *_http("http-rate-128", "per_s"), at_least=0.75
    ),
    Mark("HTTP calls/s, 128 in flight, against the SDK", *_http("http-rate-128", "per_s", "sdk"), at_least=6),
    Mark("10 MB result by JSON, against bare aiohttp", *_http("http-json-10", "ms"), at_most=1.5),
    Mark("15 MB by JSON against 5 MB", *_linear("http-json"), at_most=4.0),
    Mark("10 MB result by SSE, against bare aiohttp", *_http("http-sse-10", "ms"), at_most=1.5),
    Mark("15 MB by SSE against 5 MB", *_linear("http-sse"), at_most=4.0),
    Mark(
        "CPU until 100 HTTP servers are ready, against the SDK",
        *_http("http-many-100", "cpu_ms", "sdk"),
        at_most=0.1,
    ),
    Mark("memory of 100 HTTP servers on top of one, MB", _own("http-many-100", "more_mb"), at_most=15),
    Mark("16 protected calls of 0.2 s at once, ms", _own("protected-16", "ms"), at_most=300),
    Mark(
        "the same in the official SDK with MooringsAuth, ms",
        _own("protected-16", "ms", "sdk-moorings"),
        at_most=300,
    ),
    Mark("the same, against the SDK's own OAuth", *_http("protected-16", "ms", "sdk"), at_most=0.1),
)

MARKED = {
    (ref.case, ref.client)
    for mark in MARKS
    for ref in (mark.of, mark.against, mark.or_at_most)
    if ref is not None
}
"""The cases that marks hang on, and whose figures these are."""

PLOT = {
    ("call", "p50_us"): "a call, one after another",
    ("rate-128", "per_s"): "a call, 128 in flight",
    ("spread", "per_s"): "the same over 50 servers",
    ("start", "ms"): "one server ready",
    ("many-100", "ready_ms"): "100 servers ready",
    ("many-100", "close_ms"): "100 servers closed",
    ("large-10", "ms"): "a result of 10 MB",
    ("large-10", "rss_ratio"): "its peak memory",
    ("list-10000", "ms"): "a list of 10,000 tools",
    ("list-10000", "rss_mb"): "its peak memory",
    ("lag", "max_ms"): "longest stall under 10 MB results",
    ("http-call", "p50_us"): "HTTP: a call, one after another",
    ("http-rate-128", "per_s"): "HTTP: a call, 128 in flight",
    ("http-json-10", "ms"): "HTTP: a result of 10 MB, JSON",
    ("http-sse-10", "ms"): "HTTP: the same by SSE",
    ("http-many-100", "cpu_ms"): "HTTP: CPU until 100 are ready",
}
"""The figures that the plot shows, over those of the floor of their case, and what it calls them."""
