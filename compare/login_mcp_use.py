"""mcp-use: one ``MCPClient`` over an ``mcpServers`` configuration. It opens the browser and keeps tokens by itself."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import webbrowser
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"
stdout, sys.stdout = sys.stdout, sys.stderr  # it prints

import login_scenarios  # noqa: E402
import scenarios  # noqa: E402
from mcp_use import MCPClient  # noqa: E402

scenarios.OUT = stdout


def port_of(program: Path) -> int:
    """A free port, the same at each start of the program: its client is registered with it."""
    if not program.exists():
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            program.write_text(str(opened.getsockname()[1]))
    return int(program.read_text())


class Client:
    def __init__(self, url: str, state: str, browser: login_scenarios.Browser) -> None:
        auth = {"callback_port": port_of(Path(state))}
        self.client = MCPClient({"mcpServers": {"s": {"url": url, "auth": auth}}})
        self.visits: set[asyncio.Task[None]] = set()

        async def visit(url: str) -> None:
            callback = await browser(url)
            while True:
                try:
                    await asyncio.to_thread(login_scenarios.visit, callback)
                    return
                except (
                    ConnectionRefusedError
                ):  # it opens the browser before it surely listens; a person is slower
                    await asyncio.sleep(0.1)

        def open_browser(url: str, *_: object) -> bool:
            self.visits.add(asyncio.get_running_loop().create_task(visit(url)))
            return True

        webbrowser.open = open_browser

    async def open(self) -> None:
        self.session = await self.client.create_session("s")

    async def call(self, tool: str, arguments: dict[str, Any], timeout: float) -> str:
        result = await self.session.call_tool(tool, arguments, timedelta(seconds=timeout))
        return result.content[0].text

    async def abandon(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self.client.close_all_sessions()


if __name__ == "__main__":
    login_scenarios.main(Client)
