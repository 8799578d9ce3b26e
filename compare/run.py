"""The same scripted servers under Moorings and other clients: who survives what, seen from outside.

    python compare/run.py [ROW ...]     all rows, or those named

A table all of whose rows ran goes into docs/topics/compare.md. ``runner.py`` drives one client through one row;
``stdio_rows.py`` and ``login_rows.py`` hold the rows. A row says in one sentence when it counts as held; nothing is
asserted, and the exit code is 0 whatever the clients do. ``tools/setup_env.py compare`` makes the environments.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compare import login_rows, stdio_rows  # noqa: E402
from compare.runner import Cell, Peer, Row, measure  # noqa: E402

PAGE = ROOT / "docs" / "topics" / "compare.md"
END = "<!-- end -->"
Cells = dict[tuple[str, str], Cell]
"""What was found, by row and client."""


class Table(NamedTuple):
    """Rows that the same clients are driven through."""

    mark: str
    """Names its place in the page."""
    rows: tuple[Row, ...]
    peers: tuple[Peer, ...]

    def pick(self, keys: list[str]) -> Table:
        """With these rows alone; without any words, with all."""
        return self._replace(rows=tuple(row for row in self.rows if not keys or row.key in keys))


TABLES = (
    Table("compare", stdio_rows.ROWS, stdio_rows.PEERS),
    Table("logins", login_rows.ROWS, login_rows.PEERS),
)


def measure_all(tables: list[Table]) -> Cells:
    """Rows that mostly wait run side by side; the others one client after another."""
    pairs = [
        (row, peer)
        for each in tables
        for row in each.rows
        for peer in each.peers
        if peer.name not in row.leaves_out
    ]
    waiting = [pair for pair in pairs if not pair[0].alone]
    waiting.sort(key=lambda pair: -pair[0].limit * pair[0].starts)  # the long ones first
    with ThreadPoolExecutor(6) as pool:
        cells = pool.map(lambda pair: measure(*pair), waiting)
        found = {(row.key, peer.name): cell for (row, peer), cell in zip(waiting, cells, strict=True)}
    found |= {(row.key, peer.name): measure(row, peer) for row, peer in pairs if row.alone}
    return found


def versions(peers: tuple[Peer, ...]) -> list[str]:
    """Name and version of each client."""
    found = []
    for peer in peers:
        program = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
        done = subprocess.run(
            [str(peer.python), "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        found.append(f"{peer.name} {done.stdout.strip()}")
    return found


def text_of(table: Table, cells: Cells, names: list[str]) -> str:
    """The table as it stands in the docs."""
    lines = [f"| | situation | held when | {' | '.join(names)} |", f"|---|---|---|{'---|' * len(names)}"]
    for row in table.rows:
        found = [cells.get((row.key, peer.name)) for peer in table.peers]
        said = [f"{'✓' if cell.held else '✗'} {cell.text}" if cell else "–" for cell in found]
        said = [each.replace("|", "\\|") for each in said]
        lines.append(f"| {row.key} | {title(row)} | {row.held_when} | {' | '.join(said)} |")
    lines.append(f"| | held | | {' | '.join(held(table, cells, peer) for peer in table.peers)} |")
    return "\n".join(lines)


def held(table: Table, cells: Cells, peer: Peer) -> str:
    mine = [cell for row in table.rows if (cell := cells.get((row.key, peer.name)))]
    return f"{sum(cell.held for cell in mine)} of {len(mine)}"


def title(row: Row) -> str:
    return row.title.format(python=platform.python_version())


def show(table: Table, cells: Cells, names: list[str]) -> None:
    """For people, where stdout is a terminal; as it stands in the docs otherwise."""
    if not sys.stdout.isatty():
        print(text_of(table, cells, names))
        return
    from rich import table as rich_table
    from rich.console import Console
    from rich.markup import escape

    shown = rich_table.Table(show_lines=True)
    for heading in ("", "situation", *names):
        shown.add_column(heading, overflow="fold")
    for row in table.rows:
        found = [cells.get((row.key, peer.name)) for peer in table.peers]
        marks = [
            f"{'[green]✓[/]' if cell.held else '[red]✗[/]'} {escape(cell.text)}" if cell else "–"
            for cell in found
        ]
        shown.add_row(row.key, f"{title(row)}\n[dim]held when {row.held_when}[/]", *marks)
    Console().print(shown)


def write(table: Table, text: str, names: list[str]) -> None:
    """Put the table into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- measured: {table.mark} -->\n")
    _, _, after = rest.partition(END)
    where = f"Python {platform.python_version()} on {platform.system()} ({os.cpu_count()} cores)"
    made = f"{', '.join(names)}; {where}; `make compare`.\n\n{text}\n"
    PAGE.write_text(f"{before}{begin}{made}{END}{after}", encoding="utf-8")


def main(words: list[str]) -> int:
    known = [row.key for table in TABLES for row in table.rows]
    if unknown := set(words) - set(known):
        print(f"compare: no such row: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    began = time.monotonic()
    tables = [each for each in (table.pick(words) for table in TABLES) if each.rows]
    names = {table.mark: versions(table.peers) for table in tables}
    clients = dict.fromkeys(name for each in names.values() for name in each)
    print(f"compare: {sum(len(each.rows) for each in tables)} situations, {', '.join(clients)}", flush=True)
    cells = measure_all(tables)
    for table in tables:
        show(table, cells, names[table.mark])
        if table in TABLES:
            write(table, text_of(table, cells, names[table.mark]), names[table.mark])
            print(f"compare: written into {PAGE.name}")
    print(f"compare: {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
