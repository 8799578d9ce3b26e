"""What a server is that is an address: spoken to over HTTP, with all that says how it is reached.

A plain frozen value, as the others of ``config/spec.py``. How the connections are made is the work of ``net/``, what is
said over them that of ``transport/``. What a file may say of it is read in ``config/http_entry.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from .._urls import shown_url
from ..errors import MisuseError
from .auth_spec import AuthSettings
from .headers import checked_headers, same_name
from .spec import Conflict, ServerSpec, StdioServer, text, words
from .urls import place_of, proxy_fault, server_url_fault

__all__ = ["PATHS", "Headers", "HttpServer", "Server", "Transport", "conflicts"]

Transport = Literal["auto", "http", "sse"]
"""How it is spoken to over HTTP: Streamable HTTP (``http``), the older HTTP+SSE (``sse``), or found out (``auto``)."""

Headers = Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Headers of every request: a table, or a function that gives one, sync or async."""

PATHS = ("ca_file", "client_cert", "client_key", "unix_socket")
"""Fields that are paths."""
_FLAGS = ("verify", "cookies", "redirects")
_HIDDEN = "…"


class HttpServer(ServerSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server that is an address, spoken to over HTTP.

    Headers that come from several sides are sent together; where two give the same header, that of ``headers_command``
    counts.
    """

    url: str
    """Its address, ``http`` or ``https``, without user, password and fragment. What stands in its query is taken for a
    secret and not shown."""
    transport: Transport = "auto"
    """``http`` is Streamable HTTP, ``sse`` the older HTTP+SSE; ``auto`` finds out."""
    headers: Headers = msgspec.field(default_factory=dict)
    """Sent with every request to this origin and to no other. From code also a function, sync or async, which is asked
    again when the server turns its headers away (401)."""
    headers_command: tuple[str, ...] = ()
    """A program and its arguments, never a shell line. It writes ``Name: value`` lines or one JSON object of texts to
    its stdout, and is run again when the server turns its headers away (401)."""
    ca_file: str | None = None
    """PEM file of certificate authorities that are trusted besides those of the system."""
    client_cert: str | None = None
    """PEM file of the certificate (and its chain) that is shown to the server."""
    client_key: str | None = None
    """PEM file of its key; not needed if ``client_cert`` holds it too."""
    client_key_password: str | None = None
    """What the key is encrypted with."""
    verify: bool = True
    """False takes any certificate of any name: who sits in between reads and changes all. For a test machine."""
    proxy: str | None = None
    """URL of a proxy (http, https, socks5, socks5h); an empty text means none; if not set, the environment says it."""
    no_proxy: tuple[str, ...] = ()
    """What is reached without the proxy: host names with all below them, ``host:port``, addresses, networks (CIDR),
    ``*``. Loopback always is."""
    unix_socket: str | None = None
    """Path of a socket through which the server is reached; the URL is then an ``http`` one."""
    cookies: bool = False
    """True keeps the cookies of the server as long as it is held."""
    user_agent: str | None = None
    """In place of ``moorings/VERSION``."""
    redirects: bool = True
    """Follow redirects within the origin of the URL. Others are never followed."""
    auth: AuthSettings | bool = True
    """How tokens are got where the server wants one (OAuth): a table of settings; True is all defaults. False never
    starts OAuth. Without a 401 from the server nothing is asked and nobody logs in."""

    def __post_init__(self) -> None:
        """Paths are taken as text, lists as tuples, headers as they are sent; what cannot be meant is refused at once.

        Raises:
            MisuseError: a field of the wrong kind or form; values are not shown, as they may be secrets.
        """
        super().__post_init__()
        set_ = msgspec.structs.force_setattr
        _check_text("url", self.url)
        if self.transport not in get_args(Transport):
            raise MisuseError(f"transport is one of {', '.join(get_args(Transport))}, not {self.transport!r}")
        if isinstance(self.headers, Mapping) or not callable(self.headers):
            set_(self, "headers", checked_headers(self.headers))
        set_(self, "headers_command", words("headers_command", self.headers_command))
        if self.headers_command and not self.headers_command[0]:
            raise MisuseError("headers_command begins with an empty word, where the program is wanted")
        for name in PATHS:
            if getattr(self, name) is not None:
                set_(self, name, text(name, getattr(self, name)))
        for name in ("client_key_password", "proxy", "user_agent"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise MisuseError(f"{name} is True or False, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.auth, AuthSettings | bool):
            raise MisuseError(f"auth is an AuthSettings, True or False, not {type(self.auth).__name__}")
        set_(self, "no_proxy", words("no_proxy", self.no_proxy))
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        for conflict in conflicts(given):
            raise MisuseError(f"{conflict.field}: {conflict.message}", fix=conflict.fix)

    def _shown(self, name: str, value: Any) -> Any:
        """Without the values of headers and query, user and password of the proxy, and the password of the key."""
        if name == "headers":
            # A function may carry a secret in what it is made of (``functools.partial``): only its name is told.
            named = getattr(value, "__qualname__", type(value).__name__)
            return dict.fromkeys(value, _HIDDEN) if isinstance(value, Mapping) else f"function {named}"
        if name == "client_key_password":
            return value and _HIDDEN
        if name == "headers_command":
            # Its first word says which program it is; what follows may be a key.
            return (*value[:1], *([_HIDDEN] * len(value[1:])))
        return shown_url(value) if value and name in ("url", "proxy") else value

    def fingerprint(self) -> str:
        """What makes two specifications the same place: the key under which its era is remembered.

        Scheme, host, port, path, and the socket if there is one. The query and the headers stay out: they hold secrets.
        """
        try:
            place = place_of(self.url)
        except ValueError:  # an entry that cannot be enabled, with references in its URL
            place = ("", "", 0, "")
        parts = f"{('http', *place, self.unix_socket)!r}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(parts).hexdigest()[:32]


Server = StdioServer | HttpServer
"""The specification of a server, of either kind."""


def conflicts(given: Mapping[str, Any]) -> Iterator[Conflict]:
    """What is wrong with values of the right kind, one by one and beside each other; those that are absent are not set.

    Texts that hold references (``unresolved``) are not judged.
    """
    unresolved = bool(given.get("unresolved"))
    url, proxy = given.get("url"), given.get("proxy")
    if url is not None and not unresolved:
        fault = server_url_fault(url)
        if fault is not None:
            yield Conflict("url", fault.message, fault.fix)
        elif given.get("unix_socket") is not None and not url.lower().startswith("http:"):
            yield Conflict("unix_socket", "there is no TLS over a Unix socket", "write http:// in the URL")
    if proxy and not unresolved and (fault := proxy_fault(proxy)) is not None:
        yield Conflict("proxy", fault.message, fault.fix)
    if proxy and given.get("unix_socket") is not None:
        yield Conflict("unix_socket", "a Unix socket is not reached through a proxy", "set one of them")
    for key in ("client_key", "client_key_password"):
        if given.get(key) is not None and given.get("client_cert") is None:
            yield Conflict(key, f"{key} is set without client_cert", "name the certificate too")
    for name in PATHS:
        if given.get(name) == "":
            yield Conflict(name, "the path is empty")
    agent, headers = given.get("user_agent"), given.get("headers")
    if agent is not None and (not agent.strip() or not agent.isprintable()):
        yield Conflict("user_agent", "it is empty, or holds a control character")
    elif agent is not None and isinstance(headers, Mapping) and same_name("user-agent", headers):
        yield Conflict("user_agent", "headers holds a User-Agent too", "set one of them")
    auth = given.get("auth")
    if (
        isinstance(auth, AuthSettings)
        and isinstance(headers, Mapping)
        and same_name("authorization", headers)
    ):
        yield Conflict(
            "auth",
            "headers holds an Authorization too, and a request has one",
            "take the header out, or the settings of OAuth",
        )


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise MisuseError(f"{field} is text, not {type(value).__name__}")
