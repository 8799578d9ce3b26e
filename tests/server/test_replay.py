"""May this call be sent again by itself? The whole table (law 4, field faults 6)."""

from __future__ import annotations

import itertools

import pytest

from moorings import AmbiguousDelivery, CallCancelled, CallTimeout, NotSent, Refused
from moorings.errors import CallError
from moorings.server.replay import may_repeat

KINDS: dict[str, CallError] = {
    "not sent": NotSent("x", sent=False),
    "ambiguous": AmbiguousDelivery("x", sent=True),
    "refused": Refused("x", rpc_code=-32000),
    "timed out": CallTimeout("x", sent=True),
    "timed out unsent": CallTimeout("x", sent=False),
    "cancelled": CallCancelled("x", sent=True),
}
REPEATED = {
    # outcome, connection lost, attempts so far, declared or said to be harmless
    ("not sent", True, 1, False),
    ("not sent", True, 1, True),
    ("ambiguous", True, 1, True),
}


@pytest.mark.parametrize(
    ("kind", "lost", "attempts", "harmless"),
    list(itertools.product(KINDS, (True, False), (1, 2, 3), (True, False))),
)
def test_only_what_never_left_or_does_no_harm_is_repeated_and_once(
    kind: str, lost: bool, attempts: int, harmless: bool
) -> None:
    again = may_repeat(KINDS[kind], connection_lost=lost, attempts=attempts, harmless=harmless)
    assert again is ((kind, lost, attempts, harmless) in REPEATED)
