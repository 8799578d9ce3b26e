"""``WWW-Authenticate`` (RFC 9110 §11.6.1): any number of challenges in any number of headers, as plain data.

A comma parts challenges and parameters alike, so a word is the name of a scheme if no ``=`` follows it. What is wrong
is passed over up to the next comma, and what can mean only one thing is accepted: blanks around ``=``, values without
quotes, a quoted text without its end. One pass, linear in its length; bounded. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["Challenge", "bearer", "parse_challenges"]

MOST_CHARACTERS = 16 * 1024
"""Of one header; the rest is not read."""
MOST_CHALLENGES = 32
MOST_PARAMETERS = 64
"""Of one challenge."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BLANK = re.compile(r"[ \t]*")
_TOKEN68 = re.compile(r"[0-9A-Za-z._~+/-]+=*(?=[ \t]*(?:,|$))")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*+)"?', re.DOTALL)
_BARE = re.compile(r"[^, \t\"]*")
"""It ends at a blank, too: a parameter whose comma was forgotten may begin there."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class Challenge(NamedTuple):
    """One of the ways in which a server wants to be convinced."""

    scheme: str
    """In small letters."""
    params: Mapping[str, str]
    """Names in small letters; of one that came twice, the first."""
    token68: str = ""
    """What stands in place of parameters, where it does."""


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """All challenges, in their order. Nothing is raised: what cannot be read is not there."""
    found: list[Challenge] = []
    for header in headers:
        for challenge in _read(header[:MOST_CHARACTERS]):
            if len(found) == MOST_CHALLENGES:
                return found
            found.append(challenge)
    return found


def bearer(challenges: Sequence[Challenge]) -> Mapping[str, str] | None:
    """The parameters of the first challenge for a bearer or a bound (DPoP) token; None if there is none.

    Where there are several, the first that names the resource's metadata counts (RFC 9728 §5.1).
    """
    fitting = [each.params for each in challenges if each.scheme in ("bearer", "dpop")]
    named = [each for each in fitting if each.get("resource_metadata")]
    return next(iter(named or fitting), None)


def _read(text: str) -> Iterator[Challenge]:
    at, end = 0, len(text)
    scheme: str | None = None
    token68 = ""
    params: dict[str, str] = {}
    while at < end:
        at = _after(_BLANK, text, at)
        name = _NAME.match(text, at)
        if name is None:
            at = _skip(text, at)
            continue
        behind = _after(_BLANK, text, name.end())
        if behind < end and text[behind] == "=":
            value, at = _value(text, _after(_BLANK, text, behind + 1))
            # Before any scheme it is nobody's.
            if scheme is not None and len(params) < MOST_PARAMETERS:
                params.setdefault(name[0].lower(), value)
            at = _skip(text, at)
            continue
        if scheme is not None:
            yield Challenge(scheme, MappingProxyType(params), token68)
        scheme, token68, params, at = name[0].lower(), "", {}, name.end()
        if behind == name.end():  # no blank behind it, so no parameters
            at = _skip(text, at)
            continue
        at = behind
        token = _TOKEN68.match(text, at)
        if token is not None:
            # ``Bearer, Basic`` and ``Negotiate abc==`` alike: the word behind a scheme is its token.
            token68, at = token[0], _skip(text, token.end())
    if scheme is not None:
        yield Challenge(scheme, MappingProxyType(params), token68)


def _value(text: str, at: int) -> tuple[str, int]:
    if at < len(text) and text[at] == '"':
        quoted = _QUOTED.match(text, at)
        assert quoted is not None
        return _ESCAPED.sub(r"\1", quoted[1]), quoted.end()
    bare = _BARE.match(text, at)
    assert bare is not None
    return bare[0], bare.end()


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found is not None else at


def _skip(text: str, at: int) -> int:
    """Where the next element begins: behind a comma that is in no quotes, or at a name after a blank."""
    end = len(text)
    while at < end:
        each = text[at]
        if each == ",":
            return at + 1
        if each == '"':
            quoted = _QUOTED.match(text, at)
            assert quoted is not None
            at = quoted.end()
        elif each in " \t":
            at = _after(_BLANK, text, at)
            if at < end and _NAME.match(text, at) is not None:
                return at
        else:
            at += 1
    return end
