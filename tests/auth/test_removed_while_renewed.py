"""A login that is removed while it is renewed stays removed: nothing is written back, and nothing is used on."""

from __future__ import annotations

import threading

import pytest

from moorings.auth.broker import Broker
from moorings.auth.faults import AuthFault
from moorings.store.credentials import LeaseLost, StoreError
from tests.auth.broker_kit import (
    KEY,
    SUBJECT,
    Clock,
    Shared,
    Store,
    TokenEndpoint,
    broker,
    credential,
    used,
)

LOST = LeaseLost(KEY.digest(), store="memory", why="somebody else has it")


class Scene:
    """A broker that waits for the answer to a refresh."""

    def __init__(self) -> None:
        self.clock, self.shared = Clock(), Shared()
        self.endpoint = TokenEndpoint(self.clock)
        self.endpoint.gate = threading.Event()
        self.shared.put(credential(self.clock))
        self.broker: Broker
        self.store: Store
        self.broker, self.store = broker(self.shared, self.endpoint, self.clock)

    def renewed(self, meanwhile: str, fail: dict[str, Exception]) -> AuthFault | None:
        """Renew; in the middle of it the entry is removed (or not), and the steps of the store fail like this."""
        assert self.broker.wait_bearer(SUBJECT, 10) is not None
        outcome = self.broker.renew(SUBJECT)
        assert self.endpoint.entered.wait(10)
        if meanwhile == "removed":
            # By somebody who has the lock now, or who asks for none.
            self.shared.write(KEY.digest(), None, None)
        self.store.fail = fail
        assert self.endpoint.gate is not None
        self.endpoint.gate.set()
        try:
            outcome.wait(10)
        except AuthFault as fault:
            return fault
        return None


@pytest.mark.parametrize("fail", [{}, {"save": LOST}], ids=["by hand", "lock lost"])
def test_a_removed_login_is_not_written_back_and_not_used_on(fail: dict[str, Exception]) -> None:
    scene = Scene()
    with used(scene.broker):
        fault = scene.renewed("removed", fail)
        assert fault is not None and "removed while it was refreshed" in fault.reason
        assert KEY.digest() not in scene.shared.entries
        assert scene.broker.at_hand(SUBJECT) is None and scene.broker.has_none(SUBJECT)
        assert scene.broker.wait_bearer(SUBJECT, 10) is None
        if not fail:
            assert not scene.shared.entries  # nor is the mark of the refresh left


def test_a_store_that_cannot_be_read_costs_no_login() -> None:
    """Whether it was removed is not known: what came is kept, and written."""
    scene = Scene()
    with used(scene.broker):
        assert scene.renewed("nothing", {"load": StoreError("away", store="memory")}) is None
        bearer = scene.broker.at_hand(SUBJECT)
        assert bearer is not None and bearer.version == 2
        assert scene.shared.credential().version == 2


def test_a_lock_that_was_lost_to_one_who_did_nothing_costs_no_login() -> None:
    scene = Scene()
    with used(scene.broker):
        assert scene.renewed("nothing", {"save": LOST}) is None
        bearer = scene.broker.at_hand(SUBJECT)
        assert bearer is not None and bearer.token.reveal() == "a1"
