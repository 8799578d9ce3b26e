"""The report: medians over rounds, ratios to the floor, marks, tables as text and Markdown, JSON, and a plot as SVG."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from cases import CASES, CLIENTS, MARKS, PLOT, THREADED, Case, Figure, Mark, Ref
from harness import Outcome

__all__ = ["Results", "Run", "write"]

Results = dict[str, dict[str, list[Outcome]]]
"""Case → client → the outcome of each round."""

COLOURS = {
    "floor": "#8a8f98",
    "moorings": "#0b7285",
    "sdk": "#c2410c",
    "fastmcp": "#a16207",
    "typescript": "#6d28d9",
}
FLOORS = {case.name: case.floor for case in CASES}
FIGURES = {(case.name, figure.key): figure for case in CASES for figure in case.figures}


class Run(NamedTuple):
    """What a run was, and what came of it."""

    about: dict[str, Any]
    """Date, machine, versions, server, mode, rounds, what to know of it."""
    results: Results


class Judged(NamedTuple):
    """A mark and what was measured."""

    mark: Mark
    value: float | None
    bound: float
    met: bool | None
    """None where it was not measured."""
    spread: tuple[float, float] | None = None
    """The least and the most of single rounds: far apart, the machine had other things to do."""


# --- figures


def value(results: Results, ref: Ref) -> float | None:
    """The median of a figure over the rounds; None where there is none."""
    outcomes = results.get(ref.case, {}).get(ref.client, ())
    values = [one.figures[ref.key] for one in outcomes if one.figures and ref.key in one.figures]
    return statistics.median(values) if values else None


def spread(results: Results, mark: Mark) -> tuple[float, float] | None:
    """Between what the rounds lie, each taken by itself; None where there was one, or where they do not pair."""

    def rounds(ref: Ref) -> list[float]:
        outcomes = results.get(ref.case, {}).get(ref.client, ())
        return [one.figures[ref.key] for one in outcomes if one.figures and ref.key in one.figures]

    values = rounds(mark.of)
    if mark.against is not None:
        others = rounds(mark.against)
        if len(others) != len(values) or not all(others):
            return None
        values = [own / other for own, other in zip(values, others, strict=True)]
    return (min(values), max(values)) if len(values) > 1 else None


def why_not(outcomes: Sequence[Outcome]) -> str:
    """Why a client has no figures in a case: it failed, or has no part in it; empty if it was not run."""
    for outcome in outcomes:
        if outcome.failed:
            return f"failed: {outcome.failed}"
    return next((f"no part in it: {one.unsupported}" for one in outcomes if one.unsupported), "")


def judge(results: Results, mark: Mark) -> Judged:
    """A mark against its figure."""
    measured = value(results, mark.of)
    if measured is not None and mark.against is not None:
        other = value(results, mark.against)
        measured = measured / other if other else None
    bound = mark.at_most if mark.at_most is not None else mark.at_least
    assert bound is not None
    if mark.or_at_most is not None:
        bound = max(bound, value(results, mark.or_at_most) or 0.0)
    if measured is None:
        return Judged(mark, None, bound, None)
    met = measured >= bound if mark.at_least is not None else measured <= bound
    return Judged(mark, measured, bound, met, spread(results, mark))


# --- text


def number(amount: float) -> str:
    """Three digits that count."""
    if amount == 0:
        return "0"
    if abs(amount) >= 100:
        return f"{amount:,.0f}"
    return (
        f"{amount:.{max(0, 2 - math.floor(math.log10(abs(amount))))}f}"
        if abs(amount) >= 0.01
        else f"{amount:.3f}"
    )


def cell(results: Results, case: Case, figure: Figure, client: str) -> str:
    """A figure and, where the floor has it too, how many times the floor's it is."""
    own = value(results, Ref(case.name, client, figure.key))
    if own is None:
        outcomes = results.get(case.name, {}).get(client, ())
        if figure is case.figures[0] and why_not(outcomes):
            return "failed" if any(outcome.failed for outcome in outcomes) else "–"
        return ""
    floor = value(results, Ref(case.name, case.floor, figure.key))
    if client == case.floor or not floor or floor < 0 or figure.unit == "MB":
        return number(own)
    return f"{number(own)} ({number(own / floor)}×)"


class Table(NamedTuple):
    """Rows of text under a heading."""

    title: str
    head: list[str]
    rows: list[list[str]]


def tables(run: Run) -> list[Table]:
    """Marks, figures of all clients over stdio and over HTTP, figures of threads."""
    judged = [judge(run.results, mark) for mark in MARKS]
    rows = [
        [
            one.mark.text,
            "–" if one.value is None else number(one.value),
            "" if one.spread is None else " … ".join(map(number, one.spread)),
            f"{'≥' if one.mark.at_least is not None else '≤'} {number(one.bound)}",
            {None: "not measured", True: "met", False: "MISSED"}[one.met],
        ]
        for one in judged
        if one.mark.of.case in run.results
    ]
    made = [Table("Marks", ["mark", "figure", "single rounds", "bound", ""], rows)]
    everybody = [client for client in CLIENTS if client not in THREADED]
    for title, clients, http in (
        ("Over stdio (in brackets: times the floor)", everybody, False),
        ("Over HTTP (in brackets: times bare aiohttp)", everybody, True),
        ("From threads", list(THREADED), False),
    ):
        ran = [
            case
            for case in CASES
            if (case.http is not None) is http and set(run.results.get(case.name, {})) & set(clients)
        ]
        shown = [client for client in clients if any(client in run.results[case.name] for case in ran)]
        if not shown:
            continue
        rows = [
            [
                f"{case.title}: {figure.label}{', ' + figure.unit if figure.unit else ''}",
                *(cell(run.results, case, figure, client) for client in shown),
            ]
            for case in ran
            for figure in case.figures
        ]
        made.append(Table(title, ["figure", *(CLIENTS[client] for client in shown)], rows))
    return made


def gaps(run: Run) -> list[str]:
    """Why figures are missing, one sentence part each."""
    return [
        f"{case}, {CLIENTS[client]}: {why}"
        for case, clients in run.results.items()
        for client, outcomes in clients.items()
        if (why := why_not(outcomes))
    ]


def about(run: Run) -> list[str]:
    """What it ran on and with."""
    told = run.about
    machine = told["machine"]
    return [
        f"{told['date']}, {told['mode']} mode, {told['seconds']:.0f} s: {told['rounds']}",
        f"{machine['cores']} cores of {machine['processor']}, {machine['system']}, Python {machine['python']}, "
        f"load {machine['load']} before",
        "; ".join(f"{CLIENTS[client]}: {version}" for client, version in told["versions"].items()),
        f"server in {told['server']}" + (f" ({told['note']})" if told["note"] else ""),
    ]


def as_text(run: Run) -> str:
    """For a terminal."""
    lines = [*about(run), ""]
    for table in tables(run):
        widths = [max(map(len, column)) for column in zip(table.head, *table.rows, strict=True)]
        for row in (table.head, ["─" * width for width in widths], *table.rows):
            first, *others = (
                text.rjust(width) if at else text.ljust(width)
                for at, (text, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join((first, *others)).rstrip())
        lines.append("")
    return "\n".join(lines + gaps(run))


def as_markdown(run: Run) -> str:
    """For a page."""
    lines = ["# Bench", "", *(f"- {line}" for line in about(run))]
    for table in tables(run):
        lines += ["", f"## {table.title}", ""]
        lines.append(f"| {' | '.join(table.head)} |")
        lines.append("|" + "---|" + "---:|" * (len(table.head) - 1))
        lines += [f"| {' | '.join(row)} |" for row in table.rows]
    if missing := gaps(run):
        lines += ["", "## Missing figures", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def as_json(run: Run) -> str:
    """Everything, each round too."""
    told = {
        case: {
            client: {
                "figures": {
                    key: value(run.results, Ref(case, client, key))
                    for one in outcomes
                    for key in one.figures or ()
                },
                "rounds": [one.figures for one in outcomes],
                "seconds": [round(one.seconds, 2) for one in outcomes],
                "missing": why_not(outcomes) or None,
            }
            for client, outcomes in clients.items()
        }
        for case, clients in run.results.items()
    }
    marks = [
        {"mark": one.mark.text, "figure": one.value, "rounds": one.spread, "bound": one.bound, "met": one.met}
        for one in (judge(run.results, mark) for mark in MARKS)
    ]
    return json.dumps({**run.about, "marks": marks, "cases": told}, indent=1, ensure_ascii=False) + "\n"


# --- the plot: a row for each figure, a dot for each client, on a logarithmic scale of "times the floor"

LEFT, RIGHT, WIDTH, ROW, TOP = 250, 160, 1000, 34, 92


def _costs(results: Results, case: str, key: str) -> dict[str, float]:
    """Client → how many times worse than the floor of the case, which goes as ``floor``; below 1 is better."""
    figure = FIGURES[case, key]
    floor = value(results, Ref(case, FLOORS[case], key))
    costs = {}
    for client in COLOURS:
        own = floor if client == "floor" else value(results, Ref(case, client, key))
        if floor and own and floor > 0 and own > 0:
            costs[client] = floor / own if figure.more_is_better else own / floor
    return costs


def _text(x: float, y: float, text: str, **style: str) -> str:
    attributes = " ".join(f'{key.replace("_", "-")}="{escape(one)}"' for key, one in style.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{escape(text)}</text>'


def as_svg(run: Run) -> str:
    """The plot."""
    rows = [(case, key, costs) for case, key in PLOT if len(costs := _costs(run.results, case, key)) > 1]
    highest = max((cost for _, _, costs in rows for cost in costs.values()), default=10.0)
    lowest = min((cost for _, _, costs in rows for cost in costs.values()), default=1.0)
    low, high = math.log10(min(lowest / 1.15, 0.8)), math.log10(max(highest * 1.3, 3.0))
    height = TOP + ROW * len(rows) + 62

    def across(cost: float) -> float:
        return LEFT + (math.log10(cost) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1f2933">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(
            20,
            30,
            "What it costs, in times of a bare floor (left is better)",
            font_size="18",
            font_weight="600",
        ),
        *_legend(sorted({client for _, _, costs in rows for client in costs}, key=list(COLOURS).index)),
        *_axis(across, 10**low, 10**high, TOP + ROW * len(rows)),
    ]
    for at, (case, key, costs) in enumerate(rows):
        drawn += _row(run, TOP + ROW * at + ROW / 2, case, key, costs, across)
    drawn.append(_text(20, height - 14, "; ".join(about(run)[:2]), font_size="11", fill="#616e7c"))
    return "\n".join((*drawn, "</svg>")) + "\n"


def _legend(clients: Iterable[str]) -> list[str]:
    drawn, x = [], 26.0
    for client in clients:
        drawn.append(f'<circle cx="{x:.1f}" cy="53" r="6" fill="{COLOURS[client]}"/>')
        drawn.append(_text(x + 12, 57.5, CLIENTS[client]))
        x += 44 + 7.2 * len(CLIENTS[client])
    return drawn


def _axis(across: Any, low: float, high: float, bottom: float) -> list[str]:
    drawn = []
    for cost in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if not low <= cost <= high:
            continue
        x, colour = across(cost), "#52606d" if cost == 1 else "#e4e7eb"
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{colour}"/>')
        label = "floor" if cost == 1 else f"{cost:g}×"
        drawn.append(_text(x, bottom + 18, label, text_anchor="middle", font_size="12", fill="#52606d"))
    return drawn


def _row(run: Run, y: float, case: str, key: str, costs: dict[str, float], across: Any) -> list[str]:
    figure = FIGURES[case, key]
    unit = f" {figure.unit}" if figure.unit else ""
    drawn = [
        _text(20, y + 4.5, PLOT[case, key]),
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#e4e7eb" stroke-dasharray="2 3"/>',
    ]
    # Ours last: on top where dots meet.
    for client in sorted(costs, key=lambda one: one == "moorings"):
        name = FLOORS[case] if client == "floor" else client
        own = value(run.results, Ref(case, name, key))
        assert own is not None
        title = f"<title>{escape(CLIENTS[name])}: {number(own)}{unit}</title>"
        drawn.append(
            f'<circle cx="{across(costs[client]):.1f}" cy="{y}" r="6" fill="{COLOURS[client]}" '
            f'fill-opacity="0.9">{title}</circle>'
        )
    if "moorings" in costs:
        at = across(costs["moorings"])
        drawn.append(
            _text(
                at,
                y - 9,
                f"{number(costs['moorings'])}×",
                text_anchor="middle",
                font_size="10.5",
                fill=COLOURS["moorings"],
            )
        )
    floor = value(run.results, Ref(case, FLOORS[case], key))
    assert floor is not None
    unit = " times its size" if figure.unit == "×" else unit
    drawn.append(
        _text(
            WIDTH - 16,
            y + 4.5,
            f"{CLIENTS[FLOORS[case]]} {number(floor)}{unit}",
            text_anchor="end",
            font_size="12",
            fill="#616e7c",
        )
    )
    return drawn


def write(run: Run, folder: Path) -> str:
    """Write JSON, Markdown and SVG; the text for the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_text(as_json(run))
    (folder / "latest.md").write_text(as_markdown(run))
    (folder / "latest.svg").write_text(as_svg(run))
    return as_text(run)
