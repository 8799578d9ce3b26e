"""A text that must not be shown: a token, a code, a verifier, a client secret, an assertion, a key.

``reveal()`` is the one way to it, so a reader of the source finds each place where one leaves its wrapper. Whatever
shows values by itself (repr, str, format, tracebacks, rich, pickle, a JSON encoder without the hook) shows ``…``.
"""

from __future__ import annotations

import hmac
from typing import Any, NoReturn

__all__ = ["SHOWN", "Secret", "decode_hook", "reveal_hook", "show_hook"]

SHOWN = "…"


class Secret:
    """A frozen, hashable text that shows itself nowhere. Equal only to a Secret with the same text."""

    __slots__ = ("_text",)
    _text: str | None

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a secret is made of a str, not of {type(text).__name__}")
        object.__setattr__(self, "_text", text)

    def reveal(self) -> str:
        """The text itself.

        Raises:
            ValueError: this one went through pickle, which takes no secret along.
        """
        if self._text is None:
            raise ValueError("this secret was pickled, and its text stayed behind")
        return self._text

    def __bool__(self) -> bool:
        return self._text != ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        if self._text is None or other._text is None:
            return self is other
        # The time must not tell how much of it is right.
        return hmac.compare_digest(_bytes(self._text), _bytes(other._text))

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __repr__(self) -> str:
        return f"Secret({SHOWN})"

    def __str__(self) -> str:
        return SHOWN

    def __format__(self, spec: str) -> str:
        return SHOWN

    def __rich__(self) -> str:
        return SHOWN

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _lost, ()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _lost() -> Secret:
    """What comes out of a pickle."""
    secret = Secret.__new__(Secret)
    object.__setattr__(secret, "_text", None)
    return secret


def reveal_hook(value: Any) -> Any:
    """msgspec's ``enc_hook`` for what goes into a store, and nowhere else: secrets are written."""
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"no {type(value).__name__} is stored")


def show_hook(value: Any) -> Any:
    """msgspec's ``enc_hook`` for what people and programs see: secrets are dots."""
    if isinstance(value, Secret):
        return SHOWN
    raise NotImplementedError(f"no {type(value).__name__} is shown")


def decode_hook(kind: type, value: Any) -> Any:
    """msgspec's ``dec_hook``: a text becomes a Secret where one is wanted."""
    if kind is Secret and isinstance(value, str):
        return Secret(value)
    raise NotImplementedError(f"no {kind.__name__} is read")
