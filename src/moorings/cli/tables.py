"""Tables: laid out by ``rich`` on a terminal, one line a row with tabs between the cells otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from .output import Output

__all__ = ["print_table"]


def print_table(output: Output, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells that are already visible text. Titles are for people and left out elsewhere."""
    if not output.for_person:
        for row in rows:
            output.line(
                "\t".join(cell.replace("\n", "\\n").replace("\t", "\\t") for cell in row).rstrip("\t")
            )
        return
    from io import StringIO
    from shutil import get_terminal_size

    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, title in enumerate(titles):
        table.add_column(title, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    laid_out = StringIO()
    Console(file=laid_out, width=get_terminal_size().columns, highlight=False, color_system=None).print(table)
    for line in laid_out.getvalue().rstrip("\n").splitlines():
        output.line(line.rstrip())
