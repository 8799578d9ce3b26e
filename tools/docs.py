"""Write the parts of the docs that are made from the code: between `<!-- made: NAME -->` and `<!-- end -->`.

    python tools/docs.py            writes them
    python tools/docs.py --check    only says which are out of date, and ends with 1 if any is

What is made: the diagrams of a server's life and of a login's, the keys of a server in a file, the tables of bounds,
the tree and table of errors, the exit codes of `moor`, the environment that a server gets, the table of the bench, and
which test shows which fault of the field. A test holds that they are current.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from moorings import errors
from moorings.auth import login
from moorings.cli import exit_codes
from moorings.config import auth_spec, credential_spec, http_spec, keys, spec
from moorings.config.bounds import BOUNDS
from moorings.host import loop_thread
from moorings.host.async_host import DEFAULT_STARTING, AsyncHost
from moorings.server import life as life_of_server
from moorings.server import states
from moorings.transport import environment

# Not by `from moorings.transport import watch`: names of the package may be objects of the same name.
adopted, live, stdio, watch, watch_main = (
    importlib.import_module(f"moorings.transport.{name}")
    for name in ("adopted", "live", "stdio", "watch", "watch_main")
)

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- made: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


BENCH = ROOT / "bench" / "results" / "latest.md"
CASES = ROOT / "tests" / "faults" / "cases.toml"
IN_NAME = re.compile(r"(?<=_)f(\d+)_(\d+)(?=_)")
IN_TEXT = re.compile(r"\bF\d+\.\d+\b")
MOST_SHOWN = 4
"""Tests that are named for one case; of the others the number is told."""

FIXED = (
    ("EXIT_GRACE", stdio),
    ("THREAD_GRACE", stdio),
    ("ALIVE_PROBE", life_of_server),
    ("ALIVE_BUSY", life_of_server),
    ("HANDLERS_END", life_of_server),
    ("JOIN_MARGIN", loop_thread),
    ("EXIT_STEP", live),
    ("END_WAIT", watch),
    ("MOST_RESTARTS", watch),
    ("TERM_WAIT", watch_main),
    ("KILL_WAIT", watch_main),
    ("QUIET", watch_main),
    ("LOOK", adopted),
)
"""Bounds of the life and death of processes that are no settings."""


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


def login_life() -> str:
    """The transition table of a login as a diagram. What ends it early is reached from everywhere, and drawn once."""
    ways = [frozenset(after) for after in login.TABLE.values() if after]
    early = frozenset.intersection(*ways)
    lines = ["stateDiagram-v2", f'    state "{", ".join(sorted(each.value for each in early))}" as early']
    lines.append(f"    [*] --> {next(iter(login.TABLE)).value}")
    for state, after in login.TABLE.items():
        if state not in early:
            lines += [
                f"    {state.value} --> {each.value}" for each in login.LoginState if each in after - early
            ]
            lines.append(f"    {state.value} --> {'early' if after else '[*]'}")
    lines.append("    early --> [*]")
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def login_states() -> str:
    """Each state of a login with its sentence, where its name does not say it."""
    said = attribute_docs(login, "LoginState")
    rows = [f"| `{login.LoginState[name].value}` | {text} |" for name, text in said.items()]
    return "\n".join(["| state | meaning |", "|---|---|", *rows, ""])


def bounds() -> str:
    """Every bound: its name, its default, what it bounds."""
    return bounds_table(spec.Bounds.__struct_fields__)


def life_bounds() -> str:
    """Those that concern how a server lives and dies, and those of the host."""
    mine = ("connect", "probe", "stop_eof", "stop_term", "stop_kill", "cooldown", "cooldown_max")
    return bounds_table(mine) + "".join(host_bounds().splitlines(keepends=True)[2:])


def bounds_table(names: Iterable[str]) -> str:
    """Name, default and sentence of these bounds of a server."""
    said = attribute_docs(spec, "Bounds")
    rows = []
    for name in names:
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


def shared_keys() -> str:
    """The keys that every server has."""
    return keys_table(spec, "ServerSpec", without=("unresolved",))


def stdio_keys() -> str:
    """Those of a program."""
    return keys_table(spec, "StdioServer")


def http_keys() -> str:
    """Those of an address."""
    return keys_table(http_spec, "HttpServer")


def auth_keys() -> str:
    """The settings of OAuth of such a server."""
    return keys_table(auth_spec, "AuthSettings", without=("unresolved",))


def foreign_auth_keys() -> str:
    """Keys of other products in such a table, and what is done about each."""
    rows = [f"| `{key}` | read as `{ours}` |" for key, ours in keys.AUTH_ALIASES.items()]
    rows += [f"| `{key}` | {text} |" for key, text in keys.AUTH_SPECIAL.items()]
    rows += [f"| `{key}` | an error that names `{ours}` |" for key, ours in keys.RENAMED_AUTH_KEYS.items()]
    return "\n".join(["| key | what is done |", "|---|---|", *sorted(rows, key=str.casefold), ""])


def credential_keys() -> str:
    """The keys of ``[credentials]``."""
    return keys_table(credential_spec, "CredentialSettings")


def keys_table(module: object, class_name: str, without: tuple[str, ...] = ()) -> str:
    """Key, default and sentence of the fields that a specification has itself."""
    kind = getattr(module, class_name)
    defaults = {field.name: field for field in msgspec.structs.fields(kind)}
    rows = []
    for name, text in attribute_docs(module, class_name).items():
        if name not in without:
            rows.append(f"| `{name}` | {default_of(defaults[name])} | {text} |")
    return "\n".join(["| key | default | what it says |", "|---|---|---|", *rows, ""])


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """The default of a field as a file would write it."""
    if field.required:
        return "must be given"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return (
        f"`{value:g}`"
        if isinstance(value, int | float)
        else f"`{value}`"
        if isinstance(value, str)
        else "none"
    )


def foreign_keys() -> str:
    """Keys of other products, and what is done about each."""
    rows = [f"| `{key}` | read as {text} |" for key, text in keys.HEADER_KEYS.items()]
    for key, transport in keys.REMOTE_URL_KEYS.items():
        if key != "url":
            rows.append(f"| `{key}` | read as `url`{f', transport `{transport}`' if transport else ''} |")
    renamed = {**keys.RENAMED_KEYS, **keys.RENAMED_HTTP_KEYS}
    rows += [f"| `{key}` | an error that names `{ours}` |" for key, ours in renamed.items()]
    rows += [f"| `{key}` | {text} |" for key, text in keys.LOGIN_KEYS.items()]
    rows += [f"| `{key}` | left alone: it changes nothing here |" for key in keys.IGNORED_KEYS]
    return "\n".join(["| key | what is done |", "|---|---|", *sorted(rows, key=str.casefold), ""])


def transport_words() -> str:
    """What ``type`` may say of an address."""
    rows = [f"| `{word}` | `{transport}` |" for word, transport in sorted(keys.HTTP_KINDS.items())]
    return "\n".join(["| `type` or `transport` | means |", "|---|---|", *rows, ""])


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
        if not issubclass(kind, errors.MooringsError):
            continue
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


def process_bounds() -> str:
    """The bounds of what a whole process does: they are constants, named where they hold."""
    rows = []
    for name, module in FIXED:
        said = constant_docs(module)[name]
        where = module.__name__.removeprefix("moorings.").replace(".", "/")
        rows.append(f"| `{name}` | {getattr(module, name):g} | {said} | `{where}.py` |")
    return "\n".join(["| name | value | what it bounds | where |", "|---|---|---|---|", *rows, ""])


def faults() -> str:
    """Case of the field → the tests that name it, and what the rest of it waits for."""
    told = tomllib.loads(CASES.read_text(encoding="utf-8"))
    tests = tests_by_case()
    lines = []
    for number, title in told["classes"].items():
        lines += [
            f"## {number}. {title}",
            "",
            "| case | what is met → what must happen | tests |",
            "|---|---|---|",
        ]
        for case, text in told["cases"].items():
            if not case.startswith(f"F{number}."):
                continue
            shown = [f"`{name}` ({file})" for file, name in tests.get(case, [])[:MOST_SHOWN]]
            if (more := len(tests.get(case, [])) - MOST_SHOWN) > 0:
                shown.append(f"and {more} more")
            if case in told["waits"]:
                shown.append(f"*waits for {told['waits'][case]}*")
            lines.append(f"| {case} | {text} | {'<br>'.join(shown)} |")
        lines.append("")
    return "\n".join(lines)


def bench() -> str:
    """The table of the last `make bench` that was kept, one level deeper."""
    _, _, text = BENCH.read_text().partition("\n")
    return re.sub(r"^## ", "### ", text.strip(), flags=re.MULTILINE) + "\n"


def tests_by_case() -> dict[str, list[tuple[str, str]]]:
    """Case → (file, test) of each test that names it, in its own name or in its docstring."""
    found: dict[str, list[tuple[str, str]]] = {}
    for page in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(page.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith(
                "test_"
            ):
                continue
            named = {f"F{a}.{b}" for a, b in IN_NAME.findall(node.name)}
            for case in named | set(IN_TEXT.findall(ast.get_docstring(node) or "")):
                found.setdefault(case, []).append((str(page.relative_to(ROOT / "tests")), node.name))
    return found


PARTS = {
    "bench": bench,
    "life": life,
    "states": state_meanings,
    "login-life": login_life,
    "login-states": login_states,
    "bounds": bounds,
    "host-bounds": host_bounds,
    "life-bounds": life_bounds,
    "process-bounds": process_bounds,
    "faults": faults,
    "shared-keys": shared_keys,
    "stdio-keys": stdio_keys,
    "http-keys": http_keys,
    "auth-keys": auth_keys,
    "foreign-auth-keys": foreign_auth_keys,
    "credential-keys": credential_keys,
    "foreign-keys": foreign_keys,
    "transport-words": transport_words,
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


def constant_docs(module: object) -> dict[str, str]:
    """Constant of a module → the string that stands under it in the source."""
    found = {}
    for statement, below in itertools.pairwise(ast.parse(inspect.getsource(module)).body):  # type: ignore[arg-type]
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text = inspect.cleandoc(str(below.value.value)).replace("\n", " ").replace("``", "`")
            found[statement.targets[0].id] = text
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
