"""Which scopes are asked for, first and after a 403 (client-rules §6.1, 7 and 14). Pure, and one small memory.

Configured scopes are a wish: they come before what servers name, and a step-up may add to them. With ``scope_ceiling``
they are also the most that is ever asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .faults import StepUpRefused

__all__ = ["MOST_TRIES", "StepUps", "first_scopes", "parse_scope", "step_up", "union"]

OFFLINE = "offline_access"
MOST_TRIES = 2
"""Authorizations for one operation that is refused again and again."""
MOST_OPERATIONS = 1000
MOST_SCOPES = 200
"""Scopes taken from one text of a server."""


def parse_scope(text: object) -> tuple[str, ...] | None:
    """The scopes of a ``scope`` parameter or member, each once; None if there is none. A list is read as one, too.

    What cannot be a scope (RFC 6749 §3.3) is left out.
    """
    if isinstance(text, str):
        words: Sequence[object] = text.split()
    elif isinstance(text, list | tuple):
        words = text
    else:
        return None
    return union(word for word in words[:MOST_SCOPES] if isinstance(word, str) and _is_scope(word))


def _is_scope(word: str) -> bool:
    return bool(word) and all("\x21" <= each <= "\x7e" and each not in '"\\' for each in word)


def union(*groups: Iterable[str]) -> tuple[str, ...]:
    """All of them, each once, in the order in which they come."""
    return tuple(dict.fromkeys(scope for group in groups for scope in group))


def first_scopes(
    configured: Sequence[str],
    challenged: Sequence[str] | None,
    resource_scopes: Sequence[str] | None,
    server_scopes: Sequence[str] | None,
    *,
    ceiling: bool = False,
) -> tuple[str, ...]:
    """What the first authorization asks for; empty: the parameter is left out.

    Configured, else challenged, else all the resource's. ``offline_access`` is added where the authorization server
    lists it, as a refresh token may hang on it, unless the configured scopes are all that may be asked for.
    """
    asked = union(configured or challenged or resource_scopes or ())
    if asked and OFFLINE not in asked and OFFLINE in (server_scopes or ()) and not (ceiling and configured):
        asked = (*asked, OFFLINE)
    return asked


def step_up(
    requested: Sequence[str],
    challenged: Sequence[str],
    *,
    ceiling: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """What a new authorization asks for after ``insufficient_scope``: what was asked before, and the challenged.

    ``requested``, not granted: what a server once left out would be lost with each step. ``ceiling`` is the configured
    list where that is the most.

    Raises:
        StepUpRefused: the challenge names no scope, or one above the ceiling.
    """
    if not challenged:
        raise StepUpRefused(
            "the server wants more scopes and does not say which", fix="set auth.scopes to what it needs"
        )
    if ceiling is not None:
        above = [scope for scope in challenged if scope not in ceiling]
        if above:
            raise StepUpRefused(
                f"the server wants {' '.join(above)[:300]}, and auth.scope_ceiling keeps it to the configured scopes",
                fix="add them to auth.scopes, or do without this operation",
            )
    return union(requested, challenged)


class StepUps:
    """Which authorizations did not help, by resource and operation. Made and used by one broker, in its loop.

    One that asks for nothing more than was asked before counts for the resource as a whole, too: what did not help one
    operation will not help the next.
    """

    def __init__(self, most_tries: int = MOST_TRIES, most_operations: int = MOST_OPERATIONS) -> None:
        self._most_tries = most_tries
        self._most_operations = most_operations
        self._tries: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._vain: OrderedDict[str, int] = OrderedDict()
        """By resource: those that asked for nothing more."""

    def begin(self, resource: str, operation: str, *, more: bool) -> int:
        """Count a step-up for this operation; gives its number. ``more``: it asks for what was not asked before.

        Raises:
            StepUpRefused: it was tried often enough.
        """
        at = (resource, operation)
        tries = self._tries.get(at, 0)
        vain = 0 if more else self._vain.get(resource, 0)
        if max(tries, vain) >= self._most_tries:
            raise StepUpRefused(
                f"{operation} was refused for its scopes after {max(tries, vain)} new authorizations",
                fix="the account may lack the right to it; log in again to try anew",
            )
        self._tries[at] = tries + 1
        self._tries.move_to_end(at)
        if not more:
            self._vain[resource] = vain + 1
            self._vain.move_to_end(resource)
        for counted in (self._tries, self._vain):
            while len(counted) > self._most_operations:
                counted.popitem(last=False)
        return tries + 1

    def succeeded(self, resource: str, operation: str) -> None:
        """It ran: the count begins anew."""
        self._tries.pop((resource, operation), None)
        self._vain.pop(resource, None)

    def forget(self, resource: str) -> None:
        """A new login: everything may be tried again there."""
        self._vain.pop(resource, None)
        for at in [at for at in self._tries if at[0] == resource]:
            del self._tries[at]
