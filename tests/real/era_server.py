"""A small MCP server that runs unchanged under every SDK version of the era matrix (mcp 1.2.1 to 2.3.0).

It is started by the interpreter of a version's own virtual environment, so it imports nothing of ours.
SDK 2.x renamed `FastMCP` to `MCPServer`; the decorators stayed the same.
"""

try:
    from mcp.server import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server

server = Server("era")


@server.tool()
def echo(text: str) -> str:
    """Give back the text."""
    return text


@server.tool()
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


if __name__ == "__main__":
    server.run()
