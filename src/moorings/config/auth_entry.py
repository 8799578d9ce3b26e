"""How the entry of a server says that tokens are got: ``auth``, and what other products have in its place.

``auth`` and ``oauth`` are a table, true or false (or the text ``oauth``, which is true); ``scopes`` and
``oauth_resource`` may stand beside them. The keys are tables in ``keys.py``.
"""

from __future__ import annotations

from typing import Any

from .._secret import Secret
from .auth_spec import (
    CHOICES,
    COMMANDS,
    FLAGS,
    PATHS,
    SECRETS,
    TEXTS,
    AuthSettings,
    auth_conflicts,
    auth_forms,
)
from .keys import AUTH_ALIASES, AUTH_KEYS, OWN_AUTH_KEYS, RENAMED_AUTH_KEYS, VARIABLE_KEYS
from .problems import kind_of, shown
from .reader import Reader, Where

__all__ = ["read_auth"]

_TABLE = 'a table of settings, "oauth", true or false'
_BESIDE = {"scopes": "scopes", "oauth_resource": "resource"}
"""Keys of the entry itself that are settings of ours."""
_WANTED = {
    "issuer": '"https://host"',
    "idp_issuer": '"https://host"',
    "client_metadata_url": '"https://host/path"',
    "redirect_uri": '"http://127.0.0.1:PORT/path", or an https URL',
    "redirect_host": '"127.0.0.1"',
    "resource": '"auto", "off" or a URL',
}
_FILES = {
    "private_key_file": "a PEM or JWK file",
    "assertion_file": "a file with a token",
    "idp_token_file": "a file with a token",
}


def read_auth(entry: Reader) -> tuple[str, AuthSettings | bool]:
    """The key that says it, for problems, and what it says; True after problems, and where nothing is said."""
    tables, flags = [], {}
    for key in ("auth", "oauth"):
        value = entry.entry.get(key)
        if isinstance(value, dict):
            tables.append(key)
        elif isinstance(value, bool) or value == "oauth":
            flags[key] = value is not False
        elif value is not None:
            # Not shown: it may be a token.
            entry.complain(
                (key,),
                "not settings of OAuth",
                found=kind_of(value),
                wanted=_TABLE,
                fix="a token that you have goes into 'headers'",
            )
    _provider(entry)
    if len(tables) > 1:
        entry.complain(
            (tables[1],), f"{tables[0]!r} and {tables[1]!r} together", found="both", wanted="one of them"
        )
        return tables[1], True
    beside = {key: own for key, own in _BESIDE.items() if entry.entry.get(key) is not None}
    off = next((key for key, flag in flags.items() if not flag), None)
    if off is not None:
        for key in (*tables, *beside, *(key for key, flag in flags.items() if flag)):
            entry.complain(
                (key,), f"{off!r} is false, so OAuth is never started", found="both", wanted="one of them"
            )
        return off, False
    if not tables and not beside:
        return next(iter(flags), "auth"), True
    table = tables[0] if tables else None
    return table or next(iter(beside)), _Table(entry, table, beside).read()


def _provider(entry: Reader) -> None:
    value = entry.entry.get("authProviderType")
    if value not in (None, "dynamic_discovery"):
        entry.complain(
            ("authProviderType",),
            "tokens of this provider are not got here",
            found=shown(value),
            wanted="'dynamic_discovery', or none",
            fix="let a program print them: 'headers_command'",
        )


class _Table(Reader):
    """Reads the settings: those of the table, and those that stand beside it."""

    def __init__(self, entry: Reader, table: str | None, beside: dict[str, str]) -> None:
        super().__init__(
            entry.entry[table] if table else {},
            (*entry.path, table or "auth"),
            entry.problems,
            entry.environ,
            name=entry.name,
        )
        self.enabled = entry.enabled
        self.outer = entry
        self.beside = beside
        self.at: dict[str, Where] = {}
        """Setting → the key that gave it."""
        self.given: dict[str, Any] = {}
        """Setting → its value; ``...`` for one that could not be read, which is told."""

    def read(self) -> AuthSettings | bool:
        before, refer = len(self.problems), len(self.outer.unresolved)
        for key in self.entry:
            if key not in AUTH_KEYS:
                self.problems.unknown(
                    (*self.path, key),
                    "setting of OAuth",
                    sorted(OWN_AUTH_KEYS),
                    word=RENAMED_AUTH_KEYS.get(key),
                    server=self.name,
                )
        for name in sorted(OWN_AUTH_KEYS):
            self._setting(name)
        self._callback_port()
        for key, name in self.beside.items():
            self._put(self.outer, key, name)
        enabled = self.flag("enabled", True)
        self.outer.unresolved += self.unresolved
        self.unresolved = self.outer.unresolved[refer:]
        self._check()
        if not enabled:
            return False
        if len(self.problems) != before:
            return True
        return AuthSettings(**self.given, unresolved=tuple(self.unresolved))

    def _setting(self, name: str) -> None:
        """Under each key that it may have here."""
        for key in (name, *(alias for alias, own in AUTH_ALIASES.items() if own == name)):
            if self.entry.get(key) is not None:
                self._put(self, key, name)
        key = f"{name}_env"
        if key in VARIABLE_KEYS and self.entry.get(key) is not None and self._first(self, key, name):
            self._keep(name, self.variable((key,), self.entry[key]))

    def _put(self, reader: Reader, key: str, name: str) -> None:
        if not self._first(reader, key, name):
            return
        before = len(self.problems)
        value = self._value(reader, key, name)
        self._keep(name, value if len(self.problems) == before else None)

    def _first(self, reader: Reader, key: str, name: str) -> bool:
        """Whether no other key gave this setting."""
        if name in self.at:
            other = self.at[name][-1]
            reader.complain((key,), f"{other!r} says the same, and both are given", wanted="one of them")
            return False
        self.at[name] = (*reader.path, key)
        return True

    def _keep(self, name: str, value: Any) -> None:
        if name in SECRETS and isinstance(value, str):
            value = Secret(value)
        self.given[name] = ... if value is None else value

    def _value(self, reader: Reader, key: str, name: str) -> Any:
        if name in PATHS:
            return reader.file(key, _FILES[name])
        if name in COMMANDS:
            return reader.command(key)
        if name in FLAGS:
            return reader.flag(key, False)
        if name in CHOICES:
            return reader.choice(key, CHOICES[name], None, what=f"'{name}'")
        if name in SECRETS or name in TEXTS:
            return reader.optional(key, _WANTED.get(name, "a text in quotes"), empty=False)
        if name == "scopes":
            return _scopes(reader, key)
        if name == "authorize_params":
            return self._params(key)
        if name == "redirect_port":
            return _port(reader, key)
        assert name == "timeout"
        return reader.seconds(key)

    def _params(self, key: str) -> dict[str, str]:
        return {
            name: self.text((key, name), value, wanted="a text in quotes", empty=False) or ""
            for name, value in self.table(key, what="parameters", wanted='{"name": "value"}').items()
        }

    def _callback_port(self) -> None:
        key = "callbackPort"
        if self.entry.get(key) is None or not self._first(self, key, "redirect_uri"):
            return
        port = _port(self, key)
        if port == 0:
            self.complain(
                (key,), "not the port of a redirect URI", found="0", wanted="that which was registered"
            )
        self._keep("redirect_uri", f"http://localhost:{port}/callback" if port else None)

    def _check(self) -> None:
        """Tell what is wrong in its form or does not go together, each at its key."""
        known = {name: value for name, value in self.given.items() if value is not ...}
        # Beside one that could not be read, a setting may be right or wrong.
        judge = auth_conflicts if len(known) == len(self.given) else auth_forms
        for each in judge({**known, "unresolved": self.unresolved}):
            where = self.at.get(each.field, self.path)
            wanted = _WANTED.get(each.field, "") if each.fix is None else ""
            self.problems.add(where, each.message, wanted=wanted, fix=each.fix, server=self.name)


def _scopes(reader: Reader, key: str) -> tuple[str, ...] | None:
    """A list, or one text with blanks, as OAuth itself writes them."""
    value = reader.entry[key]
    if isinstance(value, str):
        text = reader.text((key,), value, wanted='["scope", "scope"]', empty=False)
        return None if text is None else tuple(text.split())
    if not isinstance(value, list):
        reader.complain((key,), "not a list of scopes", found=kind_of(value), wanted='["scope", "scope"]')
        return None
    found = [
        reader.text((key, at), each, wanted="a text in quotes", empty=False) for at, each in enumerate(value)
    ]
    return tuple(each or "" for each in found)


def _port(reader: Reader, key: str) -> int | None:
    value = reader.entry[key]
    if isinstance(value, bool) or not isinstance(value, int):
        reader.complain((key,), "not a port", found=shown(value), wanted="a whole number, 0 to 65535")
        return None
    if not 0 <= value <= 65535:
        reader.complain((key,), "no port", found=shown(value), wanted="a whole number, 0 to 65535")
        return None
    return value
