"""The entry of a server that is a program: its own keys, read into a ``StdioServer``."""

from __future__ import annotations

from typing import Any

from .entry import Entry
from .keys import HTTP_KEYS, HTTP_KINDS, LOCAL_KINDS, STDIO_KEYS, WEBSOCKET_KINDS
from .problems import kind_of, shown
from .reader import quoted, text_fault
from .spec import StdioServer

__all__ = ["StdioEntry"]


class StdioEntry(Entry):
    """Reads the entry of a program."""

    KEYS = STDIO_KEYS
    OTHER_KEYS = HTTP_KEYS
    OTHER_KIND = "a 'url'"

    def read(self) -> StdioServer | None:
        """The specification; None if there were problems."""
        before = len(self.problems)
        shared = self.shared()
        self._check_kind()
        own: dict[str, Any] = {
            "command": self._command(),
            "args": self.words("args", told=_words_shown),
            "env": self._env(),
            "inherit_env": self._inherit_env(),
            "cwd": self.path_text("cwd", what="a folder"),
        }
        if len(self.problems) != before:
            return None
        return StdioServer(**own, **shared, unresolved=tuple(self.unresolved))

    def _check_kind(self) -> None:
        remote = HTTP_KINDS.keys() | WEBSOCKET_KINDS
        known = {**dict.fromkeys(LOCAL_KINDS, "local"), **dict.fromkeys(remote, "remote")}
        for key, kind in self.kinds(known, "stdio"):
            if kind == "remote":
                self.complain(
                    (key,),
                    f"{key} says {self.entry[key]!r}, and 'command' is a local program",
                    wanted="'url', or 'stdio' here",
                )

    def _command(self) -> str:
        wanted = "the program: a path or a name"
        if "command" not in self.entry:
            if not self.misspelt("command"):
                self.complain((), "'command' is missing (or 'url', for a server over HTTP)", wanted=wanted)
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
        text = self.text(("command",), value, wanted=wanted, tilde=True)
        if text is not None and not text.strip():
            self.complain(("command",), "the command is empty", wanted=wanted)
        return text or ""

    def _env(self) -> dict[str, str]:
        result = {}
        for variable, value in self.table("env", what="variables", wanted='{"NAME": "value"}').items():
            if not variable or "=" in variable or text_fault(variable):
                self.complain(("env", variable), "not the name of a variable", found=shown(variable))
                continue
            result[variable] = self.text(("env", variable), value, wanted="a text in quotes") or ""
        return result

    def _inherit_env(self) -> bool | tuple[str, ...]:
        value = self.entry.get("inherit_env", False)
        if isinstance(value, bool):
            return value
        if not isinstance(value, list) or not all(
            isinstance(word, str) and word and not text_fault(word) for word in value
        ):
            found = shown(value) if isinstance(value, str) else kind_of(value)
            self.complain(
                ("inherit_env",), "not understood", found=found, wanted='true, false or ["NAME", "NAME"]'
            )
            return False
        return tuple(value)


def _words_shown(text: str) -> str:
    """How a command line would be written as a list; what follows a long option or ``=`` may be a secret."""
    words = []
    hide_next = False
    for word in text.split():
        option, equals, _ = word.partition("=")
        shown_word = "..." if hide_next and not word.startswith("-") else option + ("=..." if equals else "")
        words.append(quoted(shown_word if len(shown_word) <= 40 else "..."))
        hide_next = word.startswith("--") and not equals
    if len(words) > 8:
        words[8:] = ['"..."']
    return f"[{', '.join(words)}]"
