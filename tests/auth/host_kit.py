"""What the tests of protected servers under a host share: logins that lie in a folder, and other processes beside it.

A host of a test is what a user has; what is stored is looked at, and changed, as another process would, through a store
of its own. ``away`` is another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec

from moorings import AsyncHost, AuthSettings, Bounds, CredentialSettings, HttpServer, MooringsError
from moorings.auth.model import Credential, decode_credential, encode_credential
from moorings.auth.renewal import about
from moorings.store.files import FileStore
from tests.faults.auth_server import AuthFaults, consent
from tests.host.kit import ROOT, Events

MEMORY = CredentialSettings(store="memory")
BOUNDS = Bounds(connect=20.0, probe=5.0, call=30.0, http_close=0.5, cooldown=0.0)


def files(folder: Path, principal: str = "local") -> CredentialSettings:
    """Logins in a folder, which others may share."""
    return CredentialSettings(store=f"file:{folder}", principal=principal)


def spec(server: AuthFaults, auth: AuthSettings | bool = True, **fields: Any) -> HttpServer:
    bounds = fields.pop("bounds", BOUNDS)
    return HttpServer(url=server.url, **{"transport": "http", "auth": auth, "bounds": bounds, **fields})


class Person:
    """A browser and somebody at it, who says yes; ``urls`` are those that were opened."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def __call__(self, name: str, url: str) -> str:
        self.urls.append(url)
        return await consent(url)


@contextlib.asynccontextmanager
async def holding(
    servers: dict[str, HttpServer],
    credentials: CredentialSettings = MEMORY,
    *,
    browser: Any = None,
    ready: bool = True,
    **options: Any,
) -> AsyncIterator[tuple[AsyncHost, Events]]:
    """A host of these servers, and its events; ``ready``: they all are."""
    events = Events()
    async with AsyncHost(
        servers, state_dir=False, credentials=credentials, browser=browser, on_event=events, **options
    ) as host:
        report = await host.wait_ready(20)
        if ready:
            assert report.all_ready, {name: str(each.last_error) for name, each in host.status().items()}
        yield host, events


async def logged_in(
    server: AuthFaults,
    folder: Path,
    auth: AuthSettings | bool = True,
    principal: str = "local",
    **fields: Any,
) -> Credential:
    """Have somebody log in to a server, by a host that is closed again; gives what is stored of it."""
    person = Person()
    async with holding({"s": spec(server, auth, **fields)}, files(folder, principal), browser=person):
        pass
    resource = server.resource if server.script["era"] != "sse" else server.url
    found = [
        each
        for each in await stored(folder)
        if each.key.resource == resource and each.key.principal == principal
    ]
    return found[-1]


# --- what is stored, as another process sees it -------------------------------------------------------------------


async def stored(folder: Path) -> list[Credential]:
    """The credentials in a folder."""
    store = FileStore(folder)
    try:
        found = []
        for each in await store.keys():
            if each.about.get("resource") and not each.key.endswith("-intent"):
                data = await store.load(each.key)
                assert data is not None
                found.append(decode_credential(data))
        return found
    finally:
        await store.aclose()


async def put(folder: Path, credential: Credential) -> None:
    """Store a credential."""
    store = FileStore(folder)
    digest = credential.key.digest()
    try:
        async with store.lock(digest, asyncio.get_running_loop().time() + 10) as lease:
            await store.save(digest, encode_credential(credential), lease, about=about(credential))
    finally:
        await store.aclose()


async def logged_out(folder: Path, credential: Credential) -> None:
    """Remove a credential."""
    store = FileStore(folder)
    digest = credential.key.digest()
    try:
        async with store.lock(digest, asyncio.get_running_loop().time() + 10) as lease:
            await store.remove(digest, lease)
    finally:
        await store.aclose()


async def changed(folder: Path, **fields: Any) -> None:
    """Change fields of every credential in a folder that no process uses."""
    for each in await stored(folder):
        await put(folder, msgspec.structs.replace(each, **fields))


async def run_out(folder: Path) -> None:
    """The access tokens in a folder are over by the clock."""
    await changed(folder, expires_at=time.time() - 1.0)


# --- another process ----------------------------------------------------------------------------------------------

PRELUDE = """
import asyncio, sys, time
from pathlib import Path
from moorings import *
from tests.auth.host_kit import *
"""


async def away(program: str, *arguments: object, timeout: float = 60.0) -> list[str]:
    """Run a program (the body of an async function, with the names of this module and ``argv``) in another process;
    gives the lines that it prints.
    """
    text = PRELUDE + "async def main(argv):\n" + textwrap.indent(textwrap.dedent(program), "    ")
    text += "\nasyncio.run(main(sys.argv[1:]))\n"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        text,
        *(str(each) for each in arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            out, problems = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, problems.decode()
    return out.decode().splitlines()


# --- what comes of calls ------------------------------------------------------------------------------------------


async def outcome(
    host: AsyncHost, tool: str = "s__echo", timeout: float | None = None, **arguments: Any
) -> Any:
    """The text of a call, or its error."""
    try:
        return (await host.call(tool, arguments or {"text": "x"}, timeout=timeout)).text
    except MooringsError as error:
        return error


async def by_then(met: Callable[[], object], within: float = 20.0) -> None:
    """Wait for what nobody announces."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    while not met():
        assert loop.time() < until, "it did not come"
        await asyncio.sleep(0.01)  # nothing tells of it


def brokers() -> list[threading.Thread]:
    """The threads of brokers that live."""
    return [each for each in threading.enumerate() if "broker" in each.name]


def bearers(server: AuthFaults, what: str = "tools/call") -> list[str]:
    """The Authorization headers of the requests of one kind, in order."""
    return [seen.headers.get("authorization", "") for seen in server.of(what)]
