"""Write the parts of the docs that are made from the code: between `<!-- made: NAME -->` and `<!-- end -->`.

    python tools/docs.py            writes them
    python tools/docs.py --check    only says which are out of date, and ends with 1 if any is

What is made: the diagram of a server's life, the table of bounds, the tree and table of errors, the exit codes of
`moor`, and the environment that a server gets. A test holds that they are current.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from pathlib import Path

from moorings import errors
from moorings.cli import exit_codes
from moorings.config import spec
from moorings.config.bounds import BOUNDS
from moorings.host.async_host import DEFAULT_STARTING, AsyncHost
from moorings.server import states
from moorings.transport import environment

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- made: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


class UnknownPart(Exception):
    """A page wants a part that nothing here makes."""


def life() -> str:
    """The transition table of a server as a diagram."""
    return f"```mermaid\n{states.diagram()}\n```\n"


def state_meanings() -> str:
    """Each state with its sentence."""
    said = attribute_docs(states, "State")
    rows = [f"| `{states.State[name].value}` | {text} |" for name, text in said.items()]
    return "\n".join(["| state | meaning |", "|---|---|", *rows, ""])


def bounds() -> str:
    """Every bound: its name, its default, what it bounds."""
    said = attribute_docs(spec, "Bounds")
    rows = []
    for name in spec.Bounds.__struct_fields__:
        kind, _ = BOUNDS[name]
        rows.append(f"| `{name}` | {amount(getattr(spec.Bounds(), name), kind)} | {said[name]} |")
    return "\n".join(["| bound | default | what it bounds |", "|---|---|---|", *rows, ""])


def host_bounds() -> str:
    """The bounds of a host."""
    close = inspect.signature(AsyncHost.close).parameters["timeout"].default
    rows = [
        f"| `max_starting` | {DEFAULT_STARTING} | Servers that start at one time. |",
        f"| `close(timeout=)` | {close:g} s | The close of the host as a whole. |",
    ]
    return "\n".join(["| bound | default | what it bounds |", "|---|---|---|", *rows, ""])


def amount(value: float, kind: str) -> str:
    """A bound as people write it."""
    if kind == "time":
        return f"{value:g} s"
    if kind == "size":
        return f"{value // 1024**2:g} MiB" if value % 1024**2 == 0 else f"{value // 1024:g} KiB"
    return f"{value:g}"


def error_tree() -> str:
    """The tree at the top of ``errors.py``."""
    text = inspect.getdoc(errors) or ""
    tree = text.partition("::\n\n")[2].partition("\n\n")[0]
    return f"```text\n{inspect.cleandoc(tree).replace('``', '')}\n```\n"


def error_codes() -> str:
    """Class, code and first sentence of every error."""
    rows = []
    for name in errors.__all__:
        kind = getattr(errors, name)
        rows.append(f"| `{name}` | `{kind.code}` | {first_sentence(kind)} |")
    return "\n".join(["| exception | code | what happened |", "|---|---|---|", *sorted(rows), ""])


def exit_code_table() -> str:
    """What ``moor`` ends with."""
    rows = []
    for line in exit_codes.table().splitlines():
        number, _, meaning = line.strip().partition(" ")
        rows.append(f"| {number} | {meaning.strip()} |")
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows, ""])


def baseline() -> str:
    """The environment that every server gets."""
    return ", ".join(f"`{name}`" for name in sorted(environment.BASELINE)) + "\n"


PARTS = {
    "life": life,
    "states": state_meanings,
    "bounds": bounds,
    "host-bounds": host_bounds,
    "error-tree": error_tree,
    "error-codes": error_codes,
    "exit-codes": exit_code_table,
    "baseline": baseline,
}


def attribute_docs(module: object, class_name: str) -> dict[str, str]:
    """Attribute → the string that stands under it in the source."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name)
    found: dict[str, str] = {}
    for statement, below in itertools.pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]  # type: ignore[assignment]
        if not isinstance(target, ast.Name) or not isinstance(below, ast.Expr):
            continue
        if isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            found[target.id] = inspect.cleandoc(below.value.value).replace("\n", " ").replace("``", "`")
    return found


def first_sentence(kind: type) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(kind) or "").split()).replace("``", "`")
    return text.partition(". ")[0].rstrip(".") + "."


def pages() -> list[Path]:
    """The pages that may hold made parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def current(text: str) -> str:
    """A page with its made parts as the code has them now.

    Raises:
        UnknownPart: it names a part that nothing makes.
    """

    def made(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise UnknownPart(f"nothing makes {match[2]!r}; known are {', '.join(PARTS)}")
        return match[1] + PARTS[match[2]]() + match[4]

    return PART.sub(made, text)


def main(words: list[str]) -> int:
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fresh = current(text)
        if fresh == text:
            continue
        stale.append(str(page.relative_to(ROOT)))
        if "--check" not in words:
            page.write_text(fresh, encoding="utf-8")
    if stale:
        print(f"docs: {'out of date' if '--check' in words else 'written'}: {', '.join(stale)}")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
