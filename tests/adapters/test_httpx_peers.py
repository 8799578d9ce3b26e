"""``MooringsAuth`` in the official SDK and in FastMCP: real clients of theirs, whose logins and refreshes are ours.

Both live in environments of their own (``tools/setup_env.py compare``); here ours is laid over one of them, so that
what both have is taken from ours. Without that environment, or with one of another Python, there is nothing to test.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.faults.auth_server import AuthFaults
from tests.host.kit import child_command, child_environment

pytestmark = [pytest.mark.real, pytest.mark.slow]

ENV = Path(__file__).resolve().parent.parent.parent / ".env"

SDK = """
import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

@contextlib.asynccontextmanager
async def connected(url, auth):
    async with (
        httpx2.AsyncClient(auth=auth, timeout=30) as client,
        streamable_http_client(url, http_client=client) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        yield session
"""

FASTMCP = """
import fastmcp
from fastmcp.client.transports import StreamableHttpTransport

def connected(url, auth):
    return fastmcp.Client(StreamableHttpTransport(url, auth=auth), mode="legacy")
"""

PROGRAM = """
import asyncio, contextlib, sys
url, folder, packages = sys.argv[1:]
sys.path.append(packages)

from moorings import CredentialSettings
from moorings.adapters.httpx_auth import MooringsAuth
from tests.faults.auth_server import consent
{peer}
async def main():
    kept = CredentialSettings(store="file:" + folder)
    async with MooringsAuth(url, credentials=kept, browser=consent) as auth, connected(url, auth) as session:
        async def call(text):
            return (await session.call_tool("echo", {{"text": text}})).content[0].text

        print(await call("one"), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(*await asyncio.gather(*(call(str(number)) for number in range(16))), flush=True)

asyncio.run(main())
"""


def packages_of(name: str) -> str:
    """The folder of its packages."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    found = ENV / f"compare-{name}" / "lib" / version / "site-packages"
    if not found.is_dir():
        pytest.skip(
            f".env/compare-{name} is not there for this Python; `tools/setup_env.py compare` makes it"
        )
    return str(found)


@pytest.mark.parametrize(("name", "peer"), [("sdk", SDK), ("fastmcp", FASTMCP)], ids=["sdk", "fastmcp"])
async def test_its_calls_bear_our_tokens_and_share_one_refresh(name: str, peer: str, tmp_path: Path) -> None:
    packages = packages_of(name)
    async with AuthFaults(get="ok") as server:
        child = await asyncio.create_subprocess_exec(
            *child_command(PROGRAM.format(peer=peer), server.url, tmp_path / "logins", packages),
            env=child_environment(HOME=str(tmp_path), FASTMCP_LOG_ENABLED="false"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        try:
            async with asyncio.timeout(100):
                said = (await child.stdout.readline()).decode()
                assert said.strip() == "one", (await child.stderr.read()).decode()
                server.expire()
                child.stdin.write(b"\n")
                out, err = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        assert (child.returncode, out.decode().split()) == (0, [str(n) for n in range(16)]), err.decode()
        assert len(server.at("register")) == len(server.grants("authorization_code")) == 1
        assert len(server.grants("refresh_token")) == 1
        assert not server.violations
