"""``moor login`` in processes of its own, for tests: at real terminals, in pipes, with a browser that leaves a mark."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from moorings import CredentialSettings
from tests.auth.login_kit import is_free
from tests.auth.step_kit import lying_in, notes
from tests.cli.ptys import ROOT, Program, Pty
from tests.faults.auth_server import AuthFaults, consent

MOOR = ROOT / "src" / "moorings" / "cli" / "__main__.py"

# Loaded by each Python beside it: what a program binds is written down.
WATCH = """
import os, sys
def told(event, args):
    if event == "socket.bind":
        with open(os.environ["BOUND"], "a") as file:
            file.write(f"{args[1]}\\n")
sys.addaudithook(told)
"""


class Stage:
    """A folder with a configuration of one protected server, ``s``, and what programs in it leave."""

    def __init__(self, folder: Path, server: AuthFaults, auth: str = "") -> None:
        self.folder = folder
        self.server = server
        self.file = folder / "moorings.toml"
        self.file.write_text(
            "[host]\nstate_dir = 'state'\n[servers.s]\n"
            f"url = '{server.url}'\ntransport = 'http'\nauth = {{ {auth} }}\nbounds = {{ connect = 20.0 }}\n"
        )
        self.opened, self.bound = folder / "opened", folder / "bound"
        programs, watch = folder / "bin", folder / "watch"
        programs.mkdir()
        watch.mkdir()
        browser = programs / "xdg-open"
        browser.write_text(f'#!/bin/sh\necho "$1" >> {self.opened}\n')
        browser.chmod(0o755)
        (watch / "sitecustomize.py").write_text(WATCH)
        self._path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self._python = os.pathsep.join([str(watch), str(ROOT), str(ROOT / "src")])

    @property
    def credentials(self) -> CredentialSettings:
        return CredentialSettings(store=f"file:{self.store}")

    @property
    def store(self) -> Path:
        return self.folder / "state" / "credentials"

    def environ(self, **more: str) -> dict[str, str]:
        """Without a home and a desktop, unless told."""
        return {"PATH": self._path, "PYTHONPATH": self._python, "BOUND": str(self.bound), **more}

    def at(self, pty: Pty, *words: str, **environ: str) -> Program:
        """``moor login s`` at a terminal."""
        return pty.run(
            MOOR, "login", "s", "--config", str(self.file), *words, environ=self.environ(**environ)
        )

    async def piped(self, *words: str, **environ: str) -> tuple[int, str, str]:
        """``python -m moorings.cli login s`` with nothing at its input: exit code, stdout, stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorings.cli", "login", "s", "--config", str(self.file), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.folder,
            env=self.environ(PYTHONWARNINGS="error", TMPDIR=os.environ.get("TMPDIR", "/tmp"), **environ),
        )
        try:
            async with asyncio.timeout(30):
                out, problems = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out.decode(), problems.decode()

    @contextlib.asynccontextmanager
    async def asked(self, *words: str, **environ: str) -> AsyncIterator[tuple[Pty, Program, str]]:
        """``moor login s`` at a terminal of its own, once it shows its URL."""
        with Pty() as pty:
            before = pty.mode()
            with self.at(pty, *words, **environ) as running:
                yield pty, running, await url_of(pty)
            if pty.master >= 0:
                assert pty.mode() == before

    async def logs_in(self) -> None:
        """The next ``moor login`` is not held up, and works."""
        async with self.asked("--force") as (pty, running, url):
            assert "waiting for that" not in pty.seen
            await pty.type(await consent(url) + "\n")
            assert await running.ended() == 0
        assert not notes(await lying_in(self.store))

    async def nothing_is_left(self, url: str = "") -> None:
        """Of a login that was ended: no port, no note, no tokens."""
        if url:
            assert is_free(redirect_of(url))
        lying = await lying_in(self.store)
        assert not notes(lying)
        assert not [each for each in lying.values() if b'"moorings":"credential"' in each]


def redirect_of(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query))["redirect_uri"]


async def url_of(pty: Pty) -> str:
    """The URL that a terminal shows for a browser."""
    await pty.shows("\n> ")
    found = re.search(r"^(http://\S+/authorize\?\S+)\r$", pty.seen, re.MULTILINE)
    assert found is not None, pty.seen
    return found[1]
