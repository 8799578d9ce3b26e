"""The rows about processes: what is done, and what is looked at. Each server is ``tests/faults/server.py``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare.runner import ROOT, Cell, Peer, Row, Run, how, left_text

STUBBORN: dict[str, Any] = {"ignore_eof": True, "ignore_term": True}

PEERS = (
    Peer("Moorings", "drive_moorings.py", Path(sys.executable), "moorings"),
    Peer("official SDK", "drive_sdk.py", ROOT / ".env" / "compare-sdk" / "bin" / "python", "mcp"),
    Peer("FastMCP", "drive_fastmcp.py", ROOT / ".env" / "compare-fastmcp" / "bin" / "python", "fastmcp"),
)


def look_cancelled_close(run: Run) -> Cell:
    began = run.wait("cancelled")["t"]
    left, took = run.left_after(began)
    owner = run.wait("owner")
    run.go()
    ended = f"owner ended after {owner['took']:.1f} s" if owner["ended"] else "owner had not ended after 10 s"
    return Cell(bool(owner["ended"]) and not left, f"{ended}; {left_text(left, took)}")


def look_closed_elsewhere(run: Run) -> Cell:
    closed = run.wait("closed")
    left, took = run.left_after(closed["t"], 3.0)
    opener = run.wait("opener")
    run.go()
    said = f"closed in {closed['took']:.2f} s" if closed["raised"] is None else how(closed)
    opened = "the opener was cancelled" if opener["ended"] else "the opener went on"
    held = closed["raised"] is None and not opener["ended"] and not left
    return Cell(held, f"{said}; {opened}; {left_text(left, took)}")


def look_start(within: float) -> Callable[[Run], Cell]:
    def look(run: Run) -> Cell:
        opened, answered = run.wait("opened"), run.wait("answered")
        starts = run.starts("s")
        held = opened["raised"] is None and answered["raised"] is None and opened["took"] <= within
        word = f"open in {opened['took']:.1f} s" if opened["raised"] is None else how(opened)
        if starts != 1:
            word += f" ({starts} processes started)"
        return Cell(held, word)

    return look


def look_host_killed(run: Run) -> Cell:
    run.wait("ready")
    before = len(run.processes())
    run.driver.kill()
    left, took = run.left_after(time.monotonic(), 6.0)
    return Cell(not left, f"of {before} processes {left_text(left, took)}")


def look_three_calls(run: Run) -> Cell:
    run.wait("called")
    started = run.starts("s")
    run.go()
    return Cell(started == 1, f"{started} process{'es' if started != 1 else ''}")


def look_one_bad(run: Run) -> Cell:
    opened = run.wait("opened")
    listed, answered = run.wait("listed"), run.wait("answered")
    tools = 0 if listed["raised"] else len(listed["value"])
    failed = opened["value"] or {}
    named = "the bad one named" if "bad" in failed else "the bad one not named"
    held = answered["raised"] is None and tools > 0 and "bad" in failed
    return Cell(held, f"open in {opened['took']:.1f} s; {tools} tools of the good one; {named}")


def look_at_once(run: Run) -> Cell:
    answered, bystander = run.wait("answered"), run.wait("bystander")
    other = "the program's own task was ended" if bystander["ended"] else "the program's own task went on"
    held = answered["raised"] is None and answered["took"] < 2 and not bystander["ended"]
    return Cell(held, f"{how(answered)}; {other}")


def look_stubborn(run: Run) -> Cell:
    run.wait("opened")
    closed = run.wait("closed")
    left, _ = run.left_after(closed["t"], 0.5)
    run.go()
    said = f"closed in {closed['took']:.1f} s" if closed["raised"] is None else how(closed)
    return Cell(closed["took"] < 10 and not left and closed["raised"] is None, f"{said}; {left} left")


def look_left(run: Run) -> Cell:
    left, took = run.left_after(run.wait("left")["t"], 3.0)
    run.go()
    return Cell(not left, left_text(left, took))


def look_fifty(run: Run) -> Cell:
    opened, threads, closed = run.wait("opened"), run.wait("threads"), run.wait("closed")
    run.go()
    if opened["raised"]:
        return Cell(False, how(opened))
    more = threads["after"] - threads["before"]
    text = f"{more} more threads; open in {opened['took']:.1f} s, closed in {closed['took']:.1f} s"
    return Cell(more == 0, text)


def look_death(run: Run) -> Cell:
    died, answered = run.wait("died"), run.wait("answered")
    known = "exit code 3" if "code 3" in (died["raised"] or "") else "no exit code"
    tail = "stderr" if "out of cheese" in (died["raised"] or "") else "no stderr"
    held = died["raised"] is not None and died["took"] < 1 and answered["raised"] is None
    return Cell(held, f"{how(died)} ({known}, {tail} in the text); next call: {how(answered)}")


def look_large(run: Run) -> Cell:
    large, answered = run.wait("large"), run.wait("answered")
    held = answered["raised"] is None
    return Cell(held, f"{how(large)}; next call: {how(answered)}")


ROWS = (
    Row(
        "P5",
        "`task.cancel()` while a server that ignores end of input and TERM, with a child, is closed",
        "the owner ends and no process is left 10 s later",
        "cancelled_close",
        {"s": STUBBORN},
        look_cancelled_close,
        limit=40,
    ),
    Row(
        "P6",
        "opened in one task, closed from another",
        "the close returns, the opener goes on, no process is left 3 s later",
        "closed_elsewhere",
        {"s": {}},
        look_closed_elsewhere,
        limit=40,
    ),
    Row(
        "P9",
        "a server silent on `server/discover`, two starts of the program",
        "the second start takes less than 1 s",
        "start",
        {"s": {"on_probe": "silent"}},
        look_start(1.0),
        limit=40,
        starts=2,
    ),
    Row(
        "P10",
        "a server that exits on `server/discover`",
        "it is open, and a call is answered",
        "start",
        {"s": {"on_probe": "exit:1"}},
        look_start(60.0),
        limit=60,
    ),
    Row(
        "P11",
        "the program is killed (SIGKILL); stubborn server with a child",
        "no process is left 6 s later",
        "host_killed",
        {"s": STUBBORN},
        look_host_killed,
    ),
    Row(
        "P12a",
        "three calls of one tool",
        "one server process",
        "three_calls",
        {"s": {}},
        look_three_calls,
    ),
    Row(
        "P12b",
        "two servers, one of which exits at once",
        "the tools of the good one are there and callable, the bad one is named by the client",
        "one_bad_of_two",
        {"good": {}, "bad": {"on_probe": "exit:3", "on_initialize": "exit:3"}},
        look_one_bad,
        limit=60,
    ),
    Row(
        "P15",
        "8 calls of 1 s at once to one server; then close",
        "answered in less than 2 s, a task of the program's own goes on after the close",
        "at_once",
        {"s": {}},
        look_at_once,
    ),
    Row(
        "P20",
        "close of 10 servers that ignore end of input and TERM",
        "closed in less than 10 s, no process left",
        "many",
        {f"s{n}": STUBBORN for n in range(10)},
        look_stubborn,
        limit=90,
    ),
    Row(
        "P21",
        "`async with` over one server is left, the program goes on",
        "no process is left 3 s later",
        "left",
        {"s": {}},
        look_left,
    ),
    Row(
        "P22",
        "50 servers, Python {python}",
        "no thread more than before",
        "many",
        {f"s{n}": {} for n in range(50)},
        look_fifty,
        limit=60,
        alone=True,
    ),
    Row(
        "death",
        "the server exits with code 3 in the middle of a call",
        "the call ends in less than 1 s, and the next call is answered",
        "death",
        {"s": {}},
        look_death,
        limit=60,
    ),
    Row(
        "17 MiB",
        "an answer of 17 MiB (Moorings' cap is 16 MiB, a setting)",
        "the next call is answered",
        "large",
        {"s": {}},
        look_large,
        limit=60,
        alone=True,
    ),
    Row(
        "stderr",
        "1 MB on stderr before the first answer",
        "it is open, and a call is answered",
        "start",
        {"s": {"stderr_first": 1_000_000}},
        look_start(60.0),
        limit=60,
        alone=True,
    ),
)
