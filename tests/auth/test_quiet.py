"""A program with nobody to ask, whose login is over at its start, at a call, on its stream, or at its exit. F12.6."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from pathlib import Path

import pytest

from tests.auth.host_kit import PRELUDE, by_then, logged_in
from tests.faults.auth_server import AuthFaults
from tests.host.kit import ROOT

# Loaded by each Python beside it: what a program binds, listens at or starts is written down.
WATCH = """
import os, sys
def told(event, args):
    if event in ("socket.bind", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "webbrowser.open"):
        with open(os.environ["DONE"], "a") as file:
            file.write(f"{event} {args}\\n")
sys.addaudithook(told)
"""

PROGRAM = """
server = HttpServer(url=argv[0], transport="http", auth=True, bounds=Bounds(connect=20.0, cooldown=0.0))
with open(argv[2], "w") as said:
    async with AsyncHost({"s": server}, credentials=files(Path(argv[1])), state_dir=False) as host:
        await host.wait_ready(20)
        print("began", file=said, flush=True)
        while await asyncio.to_thread(sys.stdin.readline) == "call\\n":
            try:
                print((await host.call("s__echo", {"text": "x"})).text, file=said, flush=True)
            except NeedsLogin as error:
                print("needs", error.server, error.reason, error.fix, file=said, flush=True)
"""


@pytest.mark.parametrize("when", ["start", "call", "stream", "exit"])
async def test_f12_6_a_program_with_nobody_to_ask_stays_quiet(when: str, tmp_path: Path) -> None:
    """With a desktop and no terminal, as under cron: nothing is opened, bound, started or printed."""
    watch, programs, done, said = (tmp_path / name for name in ("watch", "bin", "done", "said"))
    for folder in (watch, programs):
        folder.mkdir()
    (watch / "sitecustomize.py").write_text(WATCH)
    browser = programs / "xdg-open"
    browser.write_text(f"#!/bin/sh\necho xdg-open >> {done}\n")
    browser.chmod(0o755)
    body = textwrap.indent(textwrap.dedent(PROGRAM), "    ")

    def lines() -> list[str]:
        return said.read_text().splitlines() if said.exists() else []

    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "logins")
        server.requests.clear()

        def over() -> None:
            server.expire()
            for each in server.families:
                each.revoked = True

        if when == "start":
            over()
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                f"{PRELUDE}async def main(argv):\n{body}\nasyncio.run(main(sys.argv[1:]))\n",
            ),
            *(server.url, str(tmp_path / "logins"), str(said)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join([str(watch), str(ROOT), str(ROOT / "src")]),
                "DONE": str(done),
                "DISPLAY": ":7",
            },
        )
        try:
            await by_then(lambda: lines() == ["began"], 40)
            if when != "start":
                await server.seen("GET")
                over()
            if when == "stream":
                server.end_listens()
                await server.until(lambda _: server.at("GET")[-1].status == 401, 20)
            assert process.stdin is not None
            if when != "exit":
                process.stdin.write(b"call\n")
                await by_then(lambda: len(lines()) == 2, 40)
            process.stdin.close()
            async with asyncio.timeout(40):
                out, problems = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert (process.returncode, out, problems) == (0, b"", b"")
        assert not done.exists(), done.read_text()
        assert all(line.startswith("needs s revoked log in: moor login s") for line in lines()[1:]), lines()
        assert len(lines()) == (1 if when == "exit" else 2)
        assert not server.at("authorize") and not server.at("register")
        if when == "exit":
            # The end is said with what there is, and nothing is begun when it is refused.
            assert server.requests[-1].status == 401 and not server.at("token")
