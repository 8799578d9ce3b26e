"""Measure Moorings beside a bare floor and other clients, all against the same scripted server.

    python bench/run.py [--full] [--cases a,b] [--clients a,b] [--rounds N] [--out DIR]

Rounds are interleaved: in each, every client runs every case once, in a fresh process and another order each time; a
figure is the median over the rounds. Quick mode, the default, takes less than 3 minutes; there, what no mark hangs on
runs in every other round. Writes ``latest.json``, ``latest.md`` and ``latest.svg`` and prints the table. The exit code
is 1 if a client failed in a case, and 0 whatever the figures are. ``tools/setup_env.py bench`` makes the environments.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import harness
import report
from cases import CASES, CLIENTS, MARKED, PEERS, Case, Params

QUICK_ROUNDS, FULL_ROUNDS = 5, 5
QUICK_SECONDS = 170.0
"""No round of quick mode begins that would pass this; on a busy machine there are fewer."""
PEER_ROUNDS = {"quick": 1, "full": 3}
"""In how many of the rounds the peers run at all: their figures are far from any bound."""
LIMIT = {"quick": 60.0, "full": 600.0}
"""Seconds for one client in one case."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(given: str | None, known: dict[str, str], what: str) -> list[str]:
    """The names asked for: whole, or the part before a dash that several share (``rate`` is ``rate-1``, …)."""
    if given is None:
        return list(known)
    names = []
    for word in given.split(","):
        found = [name for name in known if name == word or name.startswith(f"{word}-")]
        if not found:
            sys.exit(f"bench: no {what} {word!r}; there are {', '.join(known)}")
        names += [name for name in found if name not in names]
    return names


def parameters(case: Case, client: str, mode: str) -> Params | None:
    """With what a client runs a case in this mode; None if it does not."""
    params = case.full if mode == "full" else case.quick
    if params is None or client not in case.clients:
        return None
    if client not in PEERS:
        return params
    return params | dict(case.slow) if mode == "full" or client in case.quick_peers else None


def due(case: Case, client: str, turn: int, peer_rounds: int, every: bool) -> bool:
    """Whether a client runs a case in this round. ``every``: also in odd ones where no mark hangs on it."""
    if client in PEERS:
        return turn < (1 if case.heavy else peer_rounds)
    return every or turn % 2 == 0 or (case.name, client) in MARKED


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="the default: under 3 minutes")
    mode.add_argument("--full", action="store_true", help="longer runs, more sizes, more rounds")
    parser.add_argument("--cases", help="only these, or those that begin so: call,rate,many-100")
    parser.add_argument("--clients", help=f"only these: {','.join(CLIENTS)}")
    parser.add_argument("--rounds", type=int, help="rounds of every client")
    parser.add_argument("--out", type=Path, default=harness.BENCH / "results", help="folder for the results")
    given = parser.parse_args()

    named = "full" if given.full else "quick"
    rounds = given.rounds or (FULL_ROUNDS if given.full else QUICK_ROUNDS)
    peer_rounds = given.rounds or PEER_ROUNDS[named]
    every = given.full or given.rounds is not None
    names = chosen(given.cases, {case.name: case.title for case in CASES}, "case")
    clients = chosen(given.clients, CLIENTS, "client")

    about: dict[str, object] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "mode": named,
        "machine": harness.machine(),
        "versions": harness.versions(clients),
    }
    server = harness.build_server(say)
    harness.raise_limits()
    began = time.monotonic()
    results: report.Results = {}
    done, longest = 0, 0.0
    for turn in range(rounds):
        round_began = time.monotonic()
        if named == "quick" and given.rounds is None and round_began - began + longest > QUICK_SECONDS:
            break
        say(f"bench: round {turn + 1} of {rounds}, {round_began - began:.0f} s so far")
        own = 0.0
        for at, case in enumerate(case for case in CASES if case.name in names):
            # Neighbours stay neighbours: what is compared most closely runs under the same load.
            for client in clients if (turn + at) % 2 == 0 else clients[::-1]:
                params = parameters(case, client, named)
                if params is None or not due(case, client, turn, peer_rounds, every):
                    continue
                since = time.monotonic()
                if case.kind == "import":
                    outcome = harness.imports(client, params["repeats"])
                else:
                    outcome = harness.run_client(client, case, params, server.path, LIMIT[named])
                outcome = outcome._replace(seconds=time.monotonic() - since)
                own += 0.0 if client in PEERS else outcome.seconds
                results.setdefault(case.name, {}).setdefault(client, []).append(outcome)
                if outcome.failed:
                    say(f"bench: {case.name}, {CLIENTS[client]}: failed: {outcome.failed}")
        done += 1
        longest = max(longest, own)
    about |= {
        "rounds": f"medians of {done} rounds, {'' if every else 'of every other where no mark hangs on it, '}"
        f"of {min(peer_rounds, done)} for the peers",
        "server": server.language,
        "note": server.note,
        "seconds": time.monotonic() - began,
    }
    print(report.write(report.Run(about, results), given.out))
    failed = any(one.failed for by in results.values() for outcomes in by.values() for one in outcomes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
