"""A protected MCP server and its authorization server, on one port: ``protected.py SECONDS`` is what a call takes.

The messages are those of ``scripted.py``. A token is given to any client that names itself (client credentials), and
holds for ever, so that what is measured is what clients do with the one they have.
"""

from __future__ import annotations

import asyncio
import re
import sys

from scripted import Connection, Server, encode, over_http, whole

WELL_KNOWN = "/.well-known/oauth-"
TOKEN = "a-token-of-the-bench"
BEARER = re.compile(rb"\r\nauthorization: bearer a-token-of-the-bench(\r|$)", re.IGNORECASE)


class Protected(Connection):
    """One connection. Requests wait for nobody but those before them on the same one."""

    def __init__(self, server: Server, seconds: float) -> None:
        super().__init__(server, False, None)
        self._seconds = seconds

    def _answer(self, head: bytes, body: bytes) -> bytes:
        host, port = self._transport.get_extra_info("sockname")
        origin = f"http://{host}:{port}"
        path = head.split(b" ", 2)[1].decode()
        if path != "/mcp":
            return self._document(origin, path)
        if not BEARER.search(head):
            where = f"{origin}{WELL_KNOWN}protected-resource/mcp"
            return whole("401 Unauthorized", f'WWW-Authenticate: Bearer resource_metadata="{where}"')
        answer = super()._answer(head, body)
        if b'"tools/call"' not in body:
            return answer
        asyncio.get_running_loop().call_later(self._seconds, self._transport.write, answer)
        return b""

    def _document(self, origin: str, path: str) -> bytes:
        documents = {
            f"{WELL_KNOWN}protected-resource/mcp": {
                "resource": f"{origin}/mcp",
                "authorization_servers": [origin],
            },
            f"{WELL_KNOWN}authorization-server": {
                "issuer": origin,
                "authorization_endpoint": f"{origin}/authorize",
                "token_endpoint": f"{origin}/token",
                "response_types_supported": ["code"],
                "grant_types_supported": ["client_credentials"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                "code_challenge_methods_supported": ["S256"],
            },
            "/token": {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600},
        }
        document = documents.get(path)
        if document is None:
            return whole("404 Not Found")
        return whole("200 OK", "Content-Type: application/json", body=encode(document))


if __name__ == "__main__":
    _server = Server(0, modern=False, http=True)
    asyncio.run(over_http(lambda: Protected(_server, float(sys.argv[1])), 1))
