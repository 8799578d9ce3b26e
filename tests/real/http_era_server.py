"""The small server of `era_server.py` over Streamable HTTP or SSE, under the official SDK of either generation.

    python http_era_server.py streamable-http|sse PORT

It is started by the interpreter of a version's own virtual environment, so it imports nothing of ours.
"""

import sys

from era_server import Server, server

try:
    from mcp.server.mcpserver import Context
except ImportError:
    from mcp.server.fastmcp import Context

CALLS = {"count": 0}


@server.tool()
def count() -> str:
    """How often this was called: an effect that a test can see twice."""
    CALLS["count"] += 1
    return str(CALLS["count"])


@server.tool()
async def steps(n: int, ctx: Context) -> str:
    """Tell of n steps, then end."""
    for step in range(1, n + 1):
        await ctx.report_progress(step, n, f"step {step}")
    return "done"


@server.resource("note://one")
def note() -> str:
    """A resource."""
    return "a note"


@server.prompt()
def greet(name: str) -> str:
    """A prompt."""
    return f"Greet {name}"


def main(transport: str, port: int) -> None:
    where = {"host": "127.0.0.1", "port": port}
    if Server.__name__ == "FastMCP":  # SDK 1.x keeps them in its settings
        server.settings.host, server.settings.port = where["host"], where["port"]
        where = {}
    server.run(transport, **where)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
