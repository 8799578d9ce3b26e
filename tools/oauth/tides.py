"""The MCP server of `make demo-oauth`: the official SDK, which takes tokens of one authorization server alone.

    python tides.py PORT ISSUER        its secret at the authorization server stands in DEMO_SECRET

It asks the authorization server about each token (RFC 7662) and takes those that were given for itself. Started by the
interpreter of the SDK's own environment, so it imports nothing of ours.
"""

from __future__ import annotations

import os
import sys

import httpx2
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

CLIENT = "tides-server"
SCOPE = "tides:read"
HIGH_WATER = {"brest": "04:12", "dover": "11:27", "cuxhaven": "01:48"}


class Introspection:
    """Says whose token it is, or that it is none."""

    def __init__(self, issuer: str, secret: str) -> None:
        self._endpoint = f"{issuer}/token/introspection"
        self._secret = secret

    async def verify_token(self, token: str) -> AccessToken | None:
        async with httpx2.AsyncClient(trust_env=False, timeout=10) as http:
            answer = await http.post(
                self._endpoint,
                data={"token": token, "token_type_hint": "access_token"},
                auth=(CLIENT, self._secret),
            )
        said = answer.raise_for_status().json()
        if not said.get("active"):
            return None
        return AccessToken(
            token=token,
            client_id=said["client_id"],
            scopes=said.get("scope", "").split(),
            expires_at=said.get("exp"),
            resource=said.get("aud"),
            subject=said.get("sub"),
        )


def main(port: int, issuer: str) -> None:
    server = MCPServer(
        "tides",
        token_verifier=Introspection(issuer, os.environ["DEMO_SECRET"]),
        auth=AuthSettings(
            issuer_url=issuer,
            resource_server_url=f"http://127.0.0.1:{port}/mcp",
            required_scopes=[SCOPE],
            validate_token_resource=True,
        ),
    )

    @server.tool()  # type: ignore[untyped-decorator]  # the SDK is not installed here
    def high_water(harbour: str) -> str:
        """When the water is highest today: Brest, Dover or Cuxhaven."""
        return HIGH_WATER.get(harbour.casefold(), "no such harbour")

    @server.tool()  # type: ignore[untyped-decorator]  # the SDK is not installed here
    def whoami() -> str:
        """Who is logged in, and with which scopes."""
        token = get_access_token()
        return f"{token.subject}, with {' '.join(token.scopes)}" if token else "nobody"

    server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
