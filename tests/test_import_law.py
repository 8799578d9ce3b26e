"""The law of the rooms: imports point downward only, and a few things are done in one place alone.

The table below is the law; the rest reads the source of `src/moorings` and holds it against the table. Imports in
functions and under `TYPE_CHECKING` count as well: a type that points upward is a dependency too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

SOURCE = Path(__file__).resolve().parent.parent / "src" / "moorings"

# From top to bottom. A room may import what stands on a lower line; rooms on one line do not know each other.
LEVELS = (
    ("door",),
    ("testing", "cli", "gateway", "agent", "adapters"),
    ("host",),
    ("server",),
    ("session",),
    ("transport",),
    ("auth",),
    ("net",),
    ("store",),
    ("config",),
    ("observe",),
    ("wire",),
    ("base",),  # errors.py and the modules with one leading underscore: for everybody
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}

ONLY = {"cli": {"door", "config"}}  # the command shows that the public door is enough
NO_IO = {
    *("asyncio", "concurrent", "multiprocessing", "select", "selectors", "signal", "socket", "socketserver"),
    *("ssl", "subprocess", "threading"),
}
TASK_MAKERS = {"create_task", "ensure_future"}


def room_of(module: str) -> str:
    """The room of a module named from the top, such as `moorings.wire.framing`."""
    parts = module.split(".")
    if len(parts) == 1:
        return "door"
    name = parts[1]
    if name == "__main__":
        return "cli"  # `python -m moorings` is the command under another name
    if name == "errors" or (name.startswith("_") and not name.startswith("__")):
        return "base"
    return name


def is_room(name: str) -> bool:
    return name in LEVEL and name not in ("door", "base")


def imports(module: str, tree: ast.AST, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every import in a file, as (line, absolute name of the module)."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            if origin != "moorings":
                yield node.lineno, origin
                continue
            for alias in node.names:  # `from moorings import wire` names a room, `import Host` the door
                inner = room_of(f"moorings.{alias.name}")
                named = is_room(alias.name) or (inner == "base" and alias.name != "__version__")
                yield node.lineno, f"moorings.{alias.name}" if named else "moorings"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = (
                node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            )
            if function in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def import_faults(module: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    room = room_of(module)
    if room not in LEVEL:
        yield f"{module}: the room {room!r} has no place in the law; give it a level"
        return
    for line, name in imports(module, tree, is_package):
        where = f"{module}:{line}"
        if room == "wire" and name.split(".")[0] in NO_IO:
            yield f"{where}: wire does no I/O, so it does not import {name}"
        if name.split(".")[0] != "moorings":
            continue
        target = room_of(name)
        if target not in LEVEL:
            yield f"{where}: {name} is in no room"
        elif module == "moorings.errors":
            yield f"{where}: errors imports nothing of ours, not even {name}"
        elif target == room:
            continue
        elif room in ONLY:
            if target not in ONLY[room]:
                yield f"{where}: {room} uses {' and '.join(sorted(ONLY[room]))} only, not {name}"
        elif LEVEL[target] == LEVEL[room]:
            yield f"{where}: {room} and {target} stand on one level and do not know each other"
        elif LEVEL[target] < LEVEL[room]:
            yield f"{where}: {room} stands below {target} and does not import it"


def task_faults(module: str, tree: ast.AST) -> Iterator[str]:
    """Tasks are made by their owners through `_tasks.py`, or by a TaskGroup; nobody sweeps."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.Attribute):
            holder = ast.unparse(node.value).lower()
            if node.attr != "create_task" or holder == "asyncio" or "loop" in holder:
                names = [node.attr]
        for name in names:
            if name == "all_tasks":
                yield f"{module}:{node.lineno}: all_tasks() reaches for what others own"
            elif name in TASK_MAKERS and module != "moorings._tasks":
                yield f"{module}:{node.lineno}: {name} outside _tasks.py makes a task without an owner"


def docstring_faults(module: str, tree: ast.Module, is_package: bool) -> Iterator[str]:
    if is_package and not ast.get_docstring(tree):
        yield f"{module}: a room says in its docstring what it is for"


def faults(module: str, source: str, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    return [
        *import_faults(module, tree, is_package),
        *task_faults(module, tree),
        *docstring_faults(module, tree, is_package),
    ]


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_the_source_keeps_the_law(module: str, path: Path) -> None:
    assert faults(module, path.read_text(encoding="utf-8"), path.name == "__init__.py") == []


def test_there_is_source_to_check() -> None:
    assert ("moorings._tasks" in dict(modules())) or not SOURCE.exists()


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("moorings.wire.sse", "from moorings.session import Session", "wire stands below session"),
        ("moorings.wire.sse", "from ..session import Session", "wire stands below session"),
        ("moorings.wire.sse", "from moorings import host", "wire stands below host"),
        ("moorings.server.states", "from moorings import Host", "server stands below door"),
        ("moorings.server.states", "import moorings.host.catalog", "server stands below host"),
        ("moorings.net.pool", "def f():\n    from moorings.auth import broker", "net stands below auth"),
        (
            "moorings.transport.stdio",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from moorings.server import Server",
            "transport stands below server",
        ),
        (
            "moorings.store.files",
            "import importlib\nimportlib.import_module('moorings.host')",
            "store stands below host",
        ),
        ("moorings.gateway.app", "from moorings.agent import run", "stand on one level"),
        ("moorings.testing.memory", "from ..cli import main", "stand on one level"),
        ("moorings.cli.call", "from moorings.host import AsyncHost", "cli uses config and door only"),
        ("moorings.__main__", "from moorings.session import Session", "cli uses config and door only"),
        ("moorings._clock", "from moorings.wire import messages", "base stands below wire"),
        ("moorings.errors", "from moorings._version import __version__", "errors imports nothing of ours"),
        ("moorings.host.core", "from moorings.cellar import wine", "moorings.cellar is in no room"),
        ("moorings.cellar.wine", "", "'cellar' has no place in the law"),
        ("moorings.wire.lines", "import asyncio", "wire does no I/O"),
        ("moorings.wire.lines", "from socket import socket", "wire does no I/O"),
        ("moorings.wire.lines", "import concurrent.futures", "wire does no I/O"),
        ("moorings.host.core", "import asyncio\nasyncio.create_task(f())", "create_task outside _tasks.py"),
        ("moorings.host.core", "self._loop.create_task(f())", "create_task outside _tasks.py"),
        ("moorings.host.core", "get_running_loop().create_task(f())", "create_task outside _tasks.py"),
        ("moorings.host.core", "from asyncio import create_task", "create_task outside _tasks.py"),
        ("moorings.host.core", "asyncio.ensure_future(f())", "ensure_future outside _tasks.py"),
        ("moorings.host.core", "make = asyncio.create_task", "create_task outside _tasks.py"),
        ("moorings._tasks", "import asyncio\nasyncio.all_tasks()", "all_tasks() reaches"),
        ("moorings.host.core", "from asyncio import all_tasks", "all_tasks() reaches"),
    ],
)
def test_a_breach_is_seen(module: str, source: str, said: str) -> None:
    assert any(said in fault for fault in faults(module, source)), faults(module, source)


def test_a_room_without_a_docstring_is_seen() -> None:
    assert faults("moorings.wire", "x = 1", is_package=True) == [
        "moorings.wire: a room says in its docstring what it is for"
    ]


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    assert faults("moorings.wire", '"""Room."""\nfrom .sse import Parser', is_package=True) == []
    assert faults("moorings.wire", '"""Room."""\nfrom ..host import Host', is_package=True) != []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("moorings.host.core", "from moorings.server.states import State\nfrom ..wire import messages"),
        ("moorings.host.core", "from moorings import errors, _tasks"),
        (
            "moorings.host.core",
            "async def g():\n    async with TaskGroup() as group:\n        group.create_task(f())",
        ),
        ("moorings.wire.sse", "import codecs\nfrom .framing import Frames\nfrom moorings.errors import Bad"),
        (
            "moorings.cli.call",
            "from moorings import Host, __version__\nfrom moorings.config import read\nimport rich",
        ),
        ("moorings._tasks", "import asyncio\nfrom moorings.errors import Bad\nasyncio.create_task(f())"),
        ("moorings.auth.broker", "import moorings.net.factory\nfrom moorings.store import files"),
        ("moorings", "from moorings.host import Host\nfrom moorings.wire import messages"),
    ],
)
def test_what_the_law_allows_passes(module: str, source: str) -> None:
    assert faults(module, source) == []
