"""Text from servers made safe to print: what a terminal would obey, or a reader would not see, is shown as an escape.

Control characters, bidi marks, tag characters, line separators and other invisible characters become ``\\x1b``,
``\\u202e``, ``\\U000e0041``; nothing is dropped. In JSON they become ``\\u001b`` and the like, so the document stays
what it was.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

__all__ = ["json_text", "visible", "visible_lines"]

_SUSPECT = re.compile(r"[^\x20-\x7e]")
"""Everything else is plain ASCII and needs no look."""

_INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0"  # joiners and fillers that show as nothing
    + "".join(map(chr, range(0xFE00, 0xFE10)))  # variation selectors
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)

_USUAL_IN_TEXT = frozenset("\n\t\u200c\u200d\ufe0f")
"""Lines and tabs, and what Persian, Indic scripts and emoji need inside words."""


def visible(text: str) -> str:
    """``text`` on one line, every invisible or unusual blank escaped: for names and table cells."""
    return _SUSPECT.sub(
        lambda match: match.group() if _is_plain(match.group()) else _escape(match.group()), text
    )


def visible_lines(text: str) -> str:
    """``text`` with its lines, tabs, blanks and joiners kept and everything else as in ``visible``."""
    return _SUSPECT.sub(
        lambda match: match.group() if _is_usual(match.group()) else _escape(match.group()),
        text.replace("\r\n", "\n"),
    )


def json_text(document: Any, *, indent: bool = False, ascii_only: bool = False) -> str:
    """One JSON document, on one line unless ``indent``. Structs and raw parts of results may stand in it."""
    import msgspec

    try:
        data = msgspec.json.encode(document, enc_hook=_raw_of)
    except UnicodeEncodeError:
        data = msgspec.json.encode(_sound(document), enc_hook=_raw_of)
    data = msgspec.json.format(data, indent=2 if indent else -1)
    lines = data.decode("utf-8", "replace")
    return _SUSPECT.sub(lambda match: _json_escaped(match.group(), ascii_only), lines)


def _is_plain(character: str) -> bool:
    return character.isprintable() and character not in _INVISIBLE


def _is_usual(character: str) -> bool:
    return character in _USUAL_IN_TEXT or not _is_unsafe(character)


def _is_unsafe(character: str) -> bool:
    return not _is_plain(character) and unicodedata.category(character) != "Zs"


def _escape(character: str) -> str:
    simple = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    if simple:
        return simple
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _json_escaped(character: str, ascii_only: bool) -> str:
    if character == "\n" or not (
        ascii_only or _is_unsafe(character)
    ):  # a line end here stands between values
        return character
    point = ord(character)
    if point < 0x10000:
        return f"\\u{point:04x}"
    point -= 0x10000
    return f"\\u{0xD800 + (point >> 10):04x}\\u{0xDC00 + (point & 0x3FF):04x}"


def _raw_of(value: Any) -> Any:
    """A content block of an unknown kind is printed as it came."""
    raw = getattr(value, "raw", None)
    if raw is None:
        raise TypeError(f"{type(value).__name__} is nothing JSON can hold")
    return raw


def _sound(value: Any) -> Any:
    """The same with what is no Unicode (from a command line, say) as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_sound(key): _sound(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_sound(part) for part in value]
    return value
