"""The arguments of a tool on a command line.

One JSON object, or words of the form ``key=value`` and ``key:=json``:

- ``key=value``: the value is taken as JSON if it is JSON (``n=3``, ``on=true``, ``ids=[1,2]``), and as text
  otherwise.
- ``key:=json``: the value must be JSON. For a text that looks like something else: ``id:='"007"'`` or
  ``n:='"3"'``.

The key ends at the first ``=``. There is no ``@file``: ``key=@x`` is the text ``@x``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["BadArguments", "read_arguments"]


class BadArguments(ValueError):
    """The words are no arguments; the text says why."""


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """The arguments that the words stand for.

    Raises:
        BadArguments: they cannot be understood.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        value = _json(words[0], "the arguments")
        if not isinstance(value, dict):
            raise BadArguments("the arguments are not a JSON object")
        return value
    result: dict[str, Any] = {}
    for word in words:
        if word.lstrip().startswith("{"):
            raise BadArguments(
                "arguments are one JSON object in one word (quote it), or key=value words, not both"
            )
        key, equals, text = word.partition("=")
        if not equals:
            raise BadArguments(f"{word!r} is neither key=value nor a JSON object")
        must_be_json = key.endswith(":")
        key = key.removesuffix(":")
        if not key:
            raise BadArguments(f"{word!r} has no key before the '='")
        if key in result:
            raise BadArguments(f"the key {key!r} is given twice")
        result[key] = _json(text, f"the value of {key!r}") if must_be_json else _json_or_text(text)
        _check_text(key)
    return result


def _json_or_text(text: str) -> Any:
    try:
        return _json(text, "")
    except BadArguments:
        _check_text(text)
        return text


def _json(text: str, what: str) -> Any:
    import msgspec

    _check_text(text)
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise BadArguments(
            f"{what} are not valid JSON: {fault}"
            if what == "the arguments"
            else f"{what} is not valid JSON: {fault}"
        ) from None


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadArguments(f"{text!r} is not valid UTF-8") from None
