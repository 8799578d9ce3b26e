"""The entry of a server that is an address: its own keys and those of other products, read into an ``HttpServer``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from .auth_entry import read_auth
from .entry import Entry
from .headers import header_fault, same_name
from .http_spec import HttpServer, conflicts
from .keys import (
    HTTP_KEYS,
    HTTP_KINDS,
    REMOTE_URL_KEYS,
    RENAMED_HTTP_KEYS,
    RENAMED_KEYS,
    STDIO_KEYS,
    WEBSOCKET_KINDS,
)
from .problems import shown
from .reader import Where
from .urls import PROXY_URL, SERVER_URL

__all__ = ["HttpEntry"]

_FILES = {
    "ca_file": "a PEM file",
    "client_cert": "a PEM file",
    "client_key": "a PEM file",
    "unix_socket": "a socket",
}
_KINDS = "'http', 'sse' or 'auto'"
_WANTED = {"url": SERVER_URL, "proxy": f'{PROXY_URL}, or "" for none'}
_SHELL = re.compile(r"""[\s"'`$&|;<>(){}*?\\#]""")
"""What only a shell gives a meaning to, or splits at."""
_REFERENCE = re.compile(r"\$\{[^}]*\}")


class HttpEntry(Entry):
    """Reads the entry of an address."""

    KEYS = HTTP_KEYS
    OTHER_KEYS = STDIO_KEYS
    OTHER_KIND = "a 'command'"
    RENAMED: ClassVar[Mapping[str, str]] = {**RENAMED_KEYS, **RENAMED_HTTP_KEYS}

    def read(self) -> HttpServer | None:
        """The specification; None if there were problems."""
        before = len(self.problems)
        shared = self.shared()
        own: dict[str, Any] = {
            "transport": self._transport(),
            "headers": self._headers(),
            "headers_command": self._headers_command(),
            **{key: self.file(key, what) for key, what in _FILES.items()},
            "client_key_password": self.optional("client_key_password", "a text in quotes", empty=False),
            "proxy": self.optional("proxy", _WANTED["proxy"]),
            "no_proxy": self.names("no_proxy", wanted='["localhost", "10.0.0.0/8"]') or (),
            "user_agent": self.optional("user_agent", "a text in quotes"),
            "verify": self.flag("verify", True),
            "cookies": self.flag("cookies", False),
            "redirects": self.flag("redirects", True),
        }
        auth_key, own["auth"] = read_auth(self)
        url_key, url = self._url(own["transport"])
        if REMOTE_URL_KEYS.get(url_key) and own["transport"] == "auto":
            own["transport"] = REMOTE_URL_KEYS[url_key]
        self._check({"url": url_key, "auth": auth_key}, {**own, "url": url})
        if len(self.problems) != before:
            return None
        return HttpServer(url=url or "", **own, **shared, unresolved=tuple(self.unresolved))

    def _check(self, keys: Mapping[str, str], values: dict[str, Any]) -> None:
        """Tell what is wrong in its form or does not go together, each at its key."""
        if self.entry.get("client_cert") is not None:
            # Told already if it could not be read; the key beside it is right all the same.
            values["client_cert"] = values["client_cert"] or "there"
        for each in conflicts({**values, "unresolved": self.unresolved}):
            key = keys.get(each.field, each.field)
            self.complain((key,), each.message, wanted=_WANTED.get(each.field, ""), fix=each.fix)

    def _transport(self) -> str:
        said = dict(self.kinds({**HTTP_KINDS, **dict.fromkeys(WEBSOCKET_KINDS, "")}, "http"))
        for key, kind in said.items():
            if not kind:
                self.complain(
                    (key,), "a WebSocket is no transport of MCP", found=shown(self.entry[key]), wanted=_KINDS
                )
        sure = {kind for kind in said.values() if kind not in ("", "auto")}
        if len(sure) > 1:
            self.complain(
                ("transport",), "'type' and 'transport' say different things", found="both", wanted=_KINDS
            )
        return min(sure, default="auto")

    def _url(self, transport: str) -> tuple[str, str | None]:
        """Its key and its value."""
        keys = [key for key in REMOTE_URL_KEYS if key in self.entry]
        if not keys:
            if not self.misspelt("url"):
                self.complain((), "'url' is missing", wanted=SERVER_URL)
            return "url", None
        if len(keys) > 1:
            self.complain(
                (keys[1],), f"{keys[0]!r} and {keys[1]!r} together", found="both", wanted="one of them"
            )
        sure = REMOTE_URL_KEYS[keys[0]]
        if sure and transport not in ("auto", sure):
            self.complain(
                (keys[0],),
                f"{keys[0]!r} is an address of Streamable HTTP, and another transport is named beside it",
                found=shown(transport),
                wanted="'url'",
            )
        return keys[0], self.text((keys[0],), self.entry[keys[0]], wanted=SERVER_URL, empty=False)

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for key in ("headers", "http_headers"):
            for name, value in self.table(key, what="headers", wanted='{"Name": "value"}').items():
                text = self.text((key, name), value, wanted="a text in quotes", empty=False)
                self._add_header(headers, (key, name), name, text)
        key = "env_http_headers"
        for name, variable in self.table(key, what="headers", wanted='{"Name": "VARIABLE"}').items():
            self._add_header(headers, (key, name), name, self.variable((key, name), variable))
        key = "bearer_token_env_var"
        if self.entry.get(key) is not None:
            token = self.variable((key,), self.entry[key])
            self._add_header(headers, (key,), "Authorization", token and f"Bearer {token}")
        return headers

    def _add_header(self, headers: dict[str, str], where: Where, name: str, value: str | None) -> None:
        reason = header_fault(name, value or "")
        if reason is None and same_name(name, headers) is not None:
            reason = f"the header {name} stands twice"
        if reason is not None:
            self.complain(where, reason)
        elif value is not None:
            headers[name] = value

    def _headers_command(self) -> tuple[str, ...]:
        command = self.command("headers_command")
        if self.entry.get("headersHelper") is None:
            return command
        if command:
            self.complain(
                ("headersHelper",),
                "'headers_command' and 'headersHelper' together",
                found="both",
                wanted="one of them",
            )
        helper = self.entry["headersHelper"]
        if isinstance(helper, str) and _SHELL.search(_REFERENCE.sub("", helper)):
            self.complain(
                ("headersHelper",),
                "a line for a shell, and there is no shell here",
                found="a text",
                wanted='headers_command = ["program", "word"]',
                fix="write its words as a list, or name a script",
            )
            return ()
        word = self.text(("headersHelper",), helper, wanted="the path of a program", tilde=True)
        if word == "":
            self.complain(("headersHelper",), "the program is empty", wanted="the path of a program")
        return (word,) if word else ()
