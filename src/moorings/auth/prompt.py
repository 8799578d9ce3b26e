"""What a person is shown when a login needs one, and the function that shows it (RFC 6749 §4.1, RFC 8628 §3.3).

Plain data, made by the login and read by whoever talks to people: the terminal of ``moor login``, or a program of
the user's that was given as ``on_login_url``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

__all__ = ["LoginPrompt", "OnLoginUrl"]


class LoginPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One login that waits for a person.

    The texts come from the configuration and from servers: escape them where control characters or markup would count.
    """

    server: str
    """Its name in the host."""
    resource: str
    """The URL of the MCP server."""
    issuer: str
    """The authorization server where the person logs in."""
    url: str
    """To be opened in a browser, in full. For the device flow: where the code is typed in."""
    complete_url: str = ""
    """Device flow: the URL that has the code in it already, if the server gave one."""
    user_code: str = ""
    """Device flow: the code that is typed in. Empty for every other flow."""
    redirect_uri: str = ""
    """Where the browser comes back. Empty for the device flow."""
    listening: bool = False
    """True: this process waits at ``redirect_uri``. False: only a paste brings the answer (or, in the device flow, the
    authorization server)."""
    scopes: tuple[str, ...] = ()
    """What is asked for."""
    seconds: float = 0.0
    """The time that is left."""
    problem: str = ""
    """Why what was pasted is not the answer: the same login, asked once more. Empty the first time."""

    def __repr__(self) -> str:
        # The URL holds the state of the login, and a device's code is as good as a password: neither is for a log.
        return f"LoginPrompt(server={self.server!r}, issuer={self.issuer!r})"


OnLoginUrl: TypeAlias = Callable[[LoginPrompt], Awaitable[str | None]]
"""Shows a login to a person.

It returns what the person pasted: the URL that the browser came back to, or its query, or the code alone; or ``None``
if nothing will be pasted: the login then waits for its listener, or for the device flow to end. It is cancelled as soon
as the answer came another way, the login ended, or its time passed. If what it returned is not the answer of this login
it is called again, with ``problem`` set.
"""
