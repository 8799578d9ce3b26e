"""One entry of a file → one server specification: keys, types, bounds and references checked, all problems
collected.

The keys are those of ``StdioServer`` and, for what people already have, a few more; every key that is known
is in a table here, and any other is an error that names the nearest. What another product calls a key and
Moorings would misunderstand in silence (``disabledTools``, ``envFile``) is an error that says what to
write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from .bounds import SHORTCUTS, check_order, read_bound, read_bounds
from .expand import expand
from .problems import KeyPath, Problems, kind_of, nearest, shown
from .spec import Bounds, Protocol, StdioServer

__all__ = ["IGNORED_KEYS", "RENAMED_KEYS", "read_server", "text_fault"]

IGNORED_KEYS = frozenset({"alwaysAllow", "autoApprove", "description", "dev", "gallery", "trust", "version"})
"""Keys of other products that change nothing about how the server is run."""

RENAMED_KEYS = {
    "disabledTools": "exclude",
    "disabled_tools": "exclude",
    "enabledTools": "include",
    "enabled_tools": "include",
    "envFile": "env",
    "env_file": "env",
    "env_vars": "inherit_env",
    "excludeTools": "exclude",
    "includeTools": "include",
    "startup_timeout_sec": "connect_timeout",
    "tool_timeout_sec": "timeout",
}
"""Keys of other products that do matter, and what says it here."""

REMOTE_URL_KEYS = ("url", "serverUrl", "httpUrl")
REMOTE_TYPES = frozenset(
    {"http", "sse", "streamable-http", "streamable_http", "streamableHttp", "ws", "websocket"}
)
LOCAL_TYPES = frozenset({"stdio", "local"})

_OWN_KEYS = frozenset(StdioServer.__struct_fields__) - {"unresolved"}
_KNOWN_KEYS = sorted(_OWN_KEYS | SHORTCUTS.keys() | {"disabled", "type", "url"})
_PROTOCOLS = get_args(Protocol)


def read_server(
    name: str,
    entry: Any,
    path: KeyPath,
    problems: Problems,
    *,
    environ: Mapping[str, str],
    defaults: Bounds,
) -> StdioServer | None:
    """The specification an entry stands for; None if there were problems, which are then in ``problems``."""
    before = len(problems)
    reader = _Entry(name, entry, path, problems, environ, defaults)
    reader.check_name()
    if not isinstance(entry, dict):
        problems.add(
            path,
            "a server is a table of keys",
            found=kind_of(entry),
            wanted='{"command": "..."}',
            server=name,
        )
        return None
    if reader.is_remote():
        return None
    values = reader.values()
    return StdioServer(**values) if len(problems) == before else None


def text_fault(text: str) -> str | None:
    """Why a text cannot be given to a program, or None."""
    if "\0" in text:
        return "it holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds half of a surrogate pair, which is no character"
    return None


class _Entry:
    """Reads one entry. Each method takes one key, and returns its value or adds a problem."""

    def __init__(
        self,
        name: str,
        entry: Any,
        path: KeyPath,
        problems: Problems,
        environ: Mapping[str, str],
        defaults: Bounds,
    ) -> None:
        self.name = name
        self.entry = entry
        self.path = path
        self.problems = problems
        self.environ = environ
        self.defaults = defaults
        self.enabled = True
        self.unresolved: list[str] = []

    def complain(
        self,
        where: tuple[str | int, ...],
        message: str,
        *,
        found: str = "",
        wanted: str = "",
        fix: str | None = None,
    ) -> None:
        self.problems.add(
            (*self.path, *where), message, found=found, wanted=wanted, fix=fix, server=self.name
        )

    def check_name(self) -> None:
        if not self.name.strip():
            self.complain((), "a server needs a name", found=shown(self.name))
        elif not self.name.isprintable() or text_fault(self.name):
            self.complain((), "the name of a server holds a control character", found=shown(self.name))

    def is_remote(self) -> bool:
        """True if the entry is no stdio server; the reason is then in the problems."""
        kind = self.entry.get("type", self.entry.get("transport"))
        kind_key = "type" if "type" in self.entry else "transport"
        urls = [key for key in REMOTE_URL_KEYS if key in self.entry]
        if kind is not None and not isinstance(kind, str):
            self.complain((kind_key,), "not a kind of server", found=kind_of(kind), wanted="'stdio'")
            return bool(urls)
        if urls and "command" in self.entry:
            self.complain(
                (urls[0],),
                f"'command' and {urls[0]!r} together: a server is a local program or a remote address",
                found="both",
                wanted="one of them",
            )
            return True
        if urls and kind in LOCAL_TYPES:
            self.complain(
                (urls[0],),
                f"{kind_key} says {kind!r}, and {urls[0]!r} names a remote address",
                wanted="'command'",
            )
            return True
        if urls or kind in REMOTE_TYPES:
            self.complain(
                (urls[0] if urls else kind_key,),
                "remote servers come in a later release",
                wanted="'command', a local program",
                fix="take this entry out of the file for now",
            )
            return True
        if kind is not None and kind not in LOCAL_TYPES:
            near = nearest(kind, sorted(LOCAL_TYPES | REMOTE_TYPES))
            self.complain(
                (kind_key,), "unknown kind of server", found=shown(kind), wanted=repr(near or "stdio")
            )
        return False

    def values(self) -> dict[str, Any]:
        self._check_keys()
        self.enabled = self._enabled()
        return {
            "command": self._command(),
            "args": self._args(),
            "env": self._env(),
            "inherit_env": self._inherit_env(),
            "cwd": self._cwd(),
            "protocol": self._protocol(),
            "required": self._flag("required", False),
            "lazy": self._flag("lazy", False),
            "enabled": self.enabled,
            "unresolved": tuple(self.unresolved),
            "include": self._globs("include"),
            "exclude": self._globs("exclude") or (),
            "bounds": self._bounds(),
        }

    def _check_keys(self) -> None:
        for key in self.entry:
            if key in _KNOWN_KEYS or key in IGNORED_KEYS or key == "transport":
                continue
            if key == "headers":
                self.complain(
                    ("headers",), "'headers' belongs to a remote server", wanted="'env' for a local program"
                )
                continue
            self.problems.unknown(
                (*self.path, key), "key", _KNOWN_KEYS, word=RENAMED_KEYS.get(key), server=self.name
            )

    def _flag(self, key: str, default: bool) -> bool:
        value = self.entry.get(key, default)
        if not isinstance(value, bool):
            self.complain((key,), "not a yes or no", found=shown(value), wanted="true or false")
            return default
        return value

    def _enabled(self) -> bool:
        if "enabled" in self.entry and "disabled" in self.entry:
            self.complain(
                ("disabled",), "'enabled' and 'disabled' together", found="both", wanted="one of them"
            )
        if "disabled" in self.entry:
            return not self._flag("disabled", False)
        return self._flag("enabled", True)

    def _text(self, where: tuple[str | int, ...], value: Any, *, wanted: str, tilde: bool = False) -> str:
        """A text of the entry, expanded. Its value is never shown: it may be a secret."""
        if not isinstance(value, str):
            self.complain(where, "not a text", found=kind_of(value), wanted=wanted)
            return ""
        text, faults = expand(value, self.environ, tilde=tilde)
        if faults and not self.enabled:
            # It is not started, so its references need not be set; ``enable`` refuses it while this stands.
            self.unresolved.extend(fault.message for fault in faults)
            return value
        for fault in faults:
            self.complain(where, fault.message, fix=fault.fix)
        reason = text_fault(text)
        if reason:
            self.complain(where, f"cannot be given to a program: {reason}")
            return ""
        return text

    def _command(self) -> str:
        wanted = "the program: a path or a name"
        if "command" not in self.entry:
            if not any(nearest(key, _KNOWN_KEYS) == "command" for key in self.entry):  # told already
                self.complain((), "'command' is missing", wanted=wanted)
            return ""
        value = self.entry["command"]
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            self.complain(
                ("command",),
                "a list of words",
                wanted="the program alone, as a text",
                fix="keep the first word in 'command' and put the others in 'args'",
            )
            return ""
        before = len(self.problems)
        text = self._text(("command",), value, wanted=wanted, tilde=True)
        if not text.strip() and len(self.problems) == before:
            self.complain(("command",), "the command is empty", wanted=wanted)
        return text

    def _args(self) -> tuple[str, ...]:
        words = self.entry.get("args", [])
        if isinstance(words, str):
            self.complain(
                ("args",),
                "one text, where a list of words is wanted (words are never split here)",
                found="a text",
                wanted=f"args = {_words_shown(words)}",
            )
            return ()
        if not isinstance(words, list):
            self.complain(("args",), "not a list of words", found=kind_of(words), wanted='["word", "word"]')
            return ()
        return tuple(
            self._text(("args", index), word, wanted="a text in quotes", tilde=True)
            for index, word in enumerate(words)
        )

    def _env(self) -> dict[str, str]:
        table = self.entry.get("env", {})
        if not isinstance(table, dict):
            self.complain(
                ("env",), "not a table of variables", found=kind_of(table), wanted='{"NAME": "value"}'
            )
            return {}
        result = {}
        for variable, value in table.items():
            if not variable or "=" in variable or text_fault(variable):
                self.complain(("env", variable), "not the name of a variable", found=shown(variable))
                continue
            result[variable] = self._text(("env", variable), value, wanted="a text in quotes")
        return result

    def _inherit_env(self) -> bool | tuple[str, ...]:
        value = self.entry.get("inherit_env", False)
        if isinstance(value, bool):
            return value
        if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
            found = shown(value) if isinstance(value, str) else kind_of(value)
            self.complain(
                ("inherit_env",), "not understood", found=found, wanted='true, false or ["NAME", "NAME"]'
            )
            return False
        return tuple(value)

    def _cwd(self) -> str | None:
        if "cwd" not in self.entry or self.entry["cwd"] is None:
            return None
        before = len(self.problems)
        value = "~/" if self.entry["cwd"] == "~" else self.entry["cwd"]
        text = self._text(("cwd",), value, wanted="the path of a folder", tilde=True)
        if not text and len(self.problems) == before:
            self.complain(("cwd",), "the path is empty", wanted="the path of a folder, or no 'cwd'")
        return text

    def _protocol(self) -> str:
        value = self.entry.get("protocol", "auto")
        if value not in _PROTOCOLS or not isinstance(value, str):
            near = nearest(value, _PROTOCOLS) if isinstance(value, str) else None
            self.complain(
                ("protocol",),
                "unknown protocol",
                found=shown(value),
                wanted=f"one of {', '.join(map(repr, _PROTOCOLS))}",
                fix=f"write {near!r} if that is meant" if near else None,
            )
            return "auto"
        return value

    def _globs(self, key: str) -> tuple[str, ...] | None:
        value = self.entry.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            self.complain(
                (key,),
                "one text, where a list is wanted",
                found=shown(value),
                wanted=f"{key} = [{_quoted(value)}]",
            )
            return None
        if not isinstance(value, list) or not all(isinstance(glob, str) for glob in value):
            self.complain((key,), "not a list of names or globs", found=kind_of(value), wanted='["read_*"]')
            return None
        return tuple(value)

    def _bounds(self) -> Bounds:
        table = self.entry.get("bounds", {})
        before = len(self.problems)
        bounds = read_bounds(
            table, (*self.path, "bounds"), self.problems, base=self.defaults, server=self.name
        )
        for shortcut, key in SHORTCUTS.items():
            if shortcut not in self.entry:
                continue
            if isinstance(table, dict) and key in table:
                self.complain(
                    (shortcut,), f"{shortcut!r} is 'bounds.{key}', and both are given", wanted="one of them"
                )
                continue
            value = read_bound(key, self.entry[shortcut], (*self.path, shortcut), self.problems, self.name)
            if value is not None:
                bounds = msgspec.structs.replace(bounds, **{key: value})
        if len(self.problems) == before and bounds != self.defaults:
            timeout = (*self.path, "timeout") if "timeout" in self.entry else None
            check_order(bounds, (*self.path, "bounds"), self.problems, call=timeout, server=self.name)
        return bounds


def _words_shown(text: str) -> str:
    """How a command line would be written as a list; what follows a long option or ``=`` may be a secret."""
    words = []
    hide_next = False
    for word in text.split():
        option, equals, _ = word.partition("=")
        shown_word = "..." if hide_next and not word.startswith("-") else option + ("=..." if equals else "")
        words.append(_quoted(shown_word if len(shown_word) <= 40 else "..."))
        hide_next = word.startswith("--") and not equals
    if len(words) > 8:
        words[8:] = ['"..."']
    return f"[{', '.join(words)}]"


def _quoted(text: str) -> str:
    return '"' + ascii(text)[1:-1].replace('"', '\\"') + '"'
