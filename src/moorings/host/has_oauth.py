"""Whether there can be a login at a server at all, asked before one is made or renewed."""

from __future__ import annotations

from collections.abc import Mapping

from ..config import HttpServer
from ..config.headers import same_name
from ..errors import MisuseError

__all__ = ["check_has_oauth"]


def check_has_oauth(server: HttpServer, name: str) -> None:
    """
    Raises:
        MisuseError: it is no server over HTTP, or what is sent to it is settled otherwise.
    """
    if not isinstance(server, HttpServer):  # programs that are not type-checked
        raise MisuseError(
            f"there is nothing to log in to: it is {type(server).__name__}, not HttpServer", server=name
        )
    if server.auth is False:
        raise MisuseError("auth is false for this server: there is nothing to log in to", server=name)
    if isinstance(server.headers, Mapping) and same_name("authorization", server.headers):
        raise MisuseError(
            "its headers hold an Authorization of their own, which is what is sent",
            server=name,
            fix="take it out of the headers to log in by OAuth",
        )
