"""How one server is reached over HTTP: TLS, proxy, pool and identity of the client, as plain frozen values.

Equal settings share one TLS context and one pool (``client.Net``). No I/O and no aiohttp here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from .._urls import PROXY_SCHEMES, shown_url
from .._version import __version__
from ..errors import MisuseError

if TYPE_CHECKING:
    from ..config.http_spec import HttpServer

__all__ = ["NetSettings", "settings_of"]


USER_AGENT = f"moorings/{__version__}"


class NetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the connections to one server; times in seconds."""

    ca_file: str | None = None
    """PEM file of certificate authorities that are trusted besides the system's."""
    client_cert: str | None = None
    """PEM file of the client's certificate (and its chain)."""
    client_key: str | None = None
    """PEM file of its key; None if ``client_cert`` holds it too."""
    client_key_password: str | None = None
    verify: bool = True
    """False: any certificate of any name is taken, so that anybody on the way can read and change all."""
    proxy: str | None = None
    """None: from the environment. Empty: never. Else the URL of a proxy (``PROXY_SCHEMES``)."""
    no_proxy: tuple[str, ...] = ()
    """What is reached without the proxy, besides loopback: hosts, suffixes, host:port, CIDR, or ``*``."""
    unix_socket: str | None = None
    """Path of the socket through which every ``http://`` URL is reached."""
    dial: float = 15.0
    """DNS, TCP, the proxy and TLS together, until the connection can carry a request."""
    max_connections: int = 128
    """Connections to one origin at a time; further requests wait for one of them."""
    keep_alive: float = 4.0
    """An idle connection is kept so long: below the 5 s after which uvicorn and Node close theirs. 0: never."""
    cookies: bool = False
    """True: cookies are kept, by this client alone, until it is gone."""
    user_agent: str = USER_AGENT
    vetted: bool = False
    """True, for URLs that a server gave: https alone, and only to public addresses (``vetting.py``), which are checked
    where the connection is made. Behind a proxy a name is checked by what it means here; the rest is the proxy's."""
    private_networks: bool = False
    """With ``vetted``: private, unique local and shared (CGNAT) addresses pass as well."""
    loopback: bool = False
    """With ``vetted``: URLs that name this machine pass as well, http too; they lead nowhere else."""

    def __post_init__(self) -> None:
        """
        Raises:
            MisuseError: values that cannot be meant; secrets are not shown.
        """
        if self.client_key is not None and self.client_cert is None:
            raise MisuseError("client_key is set without client_cert")
        for name in ("dial", "keep_alive"):
            if not getattr(self, name) >= 0:
                raise MisuseError(f"{name} is a number of seconds, 0 or more")
        if not self.vetted and (self.private_networks or self.loopback):
            raise MisuseError("private_networks and loopback mean something with vetted alone")
        if self.max_connections < 1:
            raise MisuseError("max_connections is 1 or more")
        if self.proxy:
            check_proxy(self.proxy)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The fields, without the password and the proxy's login."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.client_key_password:
            shown["client_key_password"] = "…"
        if self.proxy:
            shown["proxy"] = shown_url(self.proxy)
        return list(shown.items())

    def __repr__(self) -> str:
        return f"NetSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def settings_of(server: HttpServer) -> NetSettings:
    """How a server of a configuration is reached.

    Raises:
        MisuseError: values that cannot be meant.
    """
    bounds = server.bounds
    return NetSettings(
        ca_file=server.ca_file,
        client_cert=server.client_cert,
        client_key=server.client_key,
        client_key_password=server.client_key_password,
        verify=server.verify,
        proxy=server.proxy,
        no_proxy=server.no_proxy,
        unix_socket=server.unix_socket,
        dial=bounds.dial,
        max_connections=bounds.max_connections,
        keep_alive=bounds.keep_alive,
        cookies=server.cookies,
        user_agent=server.user_agent or USER_AGENT,
    )


def check_proxy(url: str) -> None:
    """
    Raises:
        MisuseError: not the URL of a proxy that can be used.
    """
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in PROXY_SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        usable = False
    if not usable:
        raise MisuseError(
            f"{shown_url(url)} is not the URL of a proxy",
            fix=f"use one of {', '.join(PROXY_SCHEMES)}://host:port",
        )
