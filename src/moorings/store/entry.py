"""The file of one credential: a line for people and the secret after it. Pure: no I/O.

::

    {"moorings": "credential", "format": 1, "key": …, "about": {…}, "written": …, "sealed": …, "size": …, "sha256": …}
    <the bytes of the value, sealed or not>

The line is JSON and holds no secret, so that ``head -n 1`` shows whose file it is. Size and sum tell a file that was
cut off, added to or edited from a sound one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

__all__ = [
    "ABOUT_TEXT",
    "MAX_HEAD",
    "MAX_FILE",
    "Head",
    "Malformed",
    "about_of",
    "decode",
    "encode",
    "head_of",
]

MAX_HEAD = 16 * 1024
"""Bytes of the first line."""

MAX_FILE = 2 * 1024 * 1024
"""Bytes of a whole file; a longer one is none of ours."""

_ABOUT_ENTRIES = 20
ABOUT_TEXT = 300
"""Characters of each of its words."""


class Malformed(ValueError):
    """No sound entry. The text continues a sentence that begins with the name of the file."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    moorings: str
    format: int
    key: str
    about: dict[str, str]
    written: float
    sealed: str
    """The name of the key that the value is encrypted with; empty if it is not."""
    size: int
    """Bytes of the value as it stands there."""
    sha256: str
    """Their sum."""


_head = msgspec.json.Decoder(Head)


def about_of(about: Mapping[str, str] | None) -> dict[str, str]:
    """Words about an entry, of bounded number and length."""
    pairs = list((about or {}).items())[:_ABOUT_ENTRIES]
    return {str(name)[:ABOUT_TEXT]: str(word)[:ABOUT_TEXT] for name, word in pairs}


def encode(
    key: str, payload: bytes, *, about: Mapping[str, str] | None, written: float, sealed: str
) -> bytes:
    """The whole file."""
    head = Head(
        moorings="credential",
        format=1,
        key=key,
        about=about_of(about),
        written=round(written, 3),
        sealed=sealed,
        size=len(payload),
        sha256=hashlib.sha256(payload).hexdigest(),
    )
    return b"%b\n%b" % (msgspec.json.encode(head), payload)


def head_of(key: str, start: bytes, size: int) -> tuple[Head, int]:
    """The first line, from the ``start`` of a file of ``size`` bytes, and where the value begins.

    Raises:
        Malformed: it is none, is of another key, or the file is shorter or longer than it says.
    """
    if not size:
        raise Malformed("is empty")
    end = start.find(b"\n", 0, MAX_HEAD)
    try:
        head = _head.decode(start[: max(end, 0)])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        # The fault's own text is not passed on: it may quote what stands there.
        raise Malformed("does not begin with the line of a credential") from fault
    if head.moorings != "credential":
        raise Malformed("does not begin with the line of a credential")
    if head.format != 1:
        raise Malformed(f"is of format {head.format}, which a later version wrote")
    if head.key != key:
        raise Malformed("holds the credential of another key")
    if size != end + 1 + head.size:
        less = size < end + 1 + head.size
        raise Malformed("is cut off" if less else "is longer than its first line says")
    return head, end + 1


def decode(key: str, data: bytes) -> tuple[Head, bytes]:
    """A whole file: its first line, and the value, which may be sealed.

    Raises:
        Malformed: it is not what was written.
    """
    head, begin = head_of(key, data[:MAX_HEAD], len(data))
    payload = data[begin:]
    if hashlib.sha256(payload).hexdigest() != head.sha256:
        raise Malformed("was changed after it was written")
    return head, payload
