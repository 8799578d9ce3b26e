"""A rotation that could not be stored: the store holds a refresh token that is used up, memory the one that is good."""

from __future__ import annotations

from tests.auth.broker_kit import SUBJECT, Clock, Shared, TokenEndpoint, broken, broker, credential, used
from tests.auth.grants_kit import soon


async def test_f10_13_what_could_not_be_stored_is_stored_with_the_next_renewal_and_used_for_it() -> None:
    clock = Clock()
    shared, endpoint = Shared(), TokenEndpoint(clock)
    shared.put(credential(clock))
    clock.pass_by(3600)
    made, store = broker(shared, endpoint, clock)
    with used(made):
        store.fail["save"] = broken()
        first = await made.bearer(SUBJECT, soon())
        assert first is not None and first.token.reveal() == "a1"
        del store.fail["save"]
        clock.pass_by(3600)
        second = await made.bearer(SUBJECT, soon())
        assert second is not None and second.token.reveal() == "a2"
        assert not endpoint.revoked
    assert (shared.credential().version, shared.credential().state) == (3, "good")


async def test_f10_13_what_could_not_be_stored_outlives_its_users() -> None:
    """The last user leaves, and the next one finds it: memory is all that there is of it."""
    clock = Clock()
    shared, endpoint = Shared(), TokenEndpoint(clock)
    shared.put(credential(clock))
    clock.pass_by(3600)
    made, store = broker(shared, endpoint, clock)
    with used(made):
        store.fail["save"] = broken()
        assert (await made.bearer(SUBJECT, soon())).token.reveal() == "a1"
    store.fail.clear()
    with used(made):
        assert (await made.bearer(SUBJECT, soon())).token.reveal() == "a1"
        clock.pass_by(3600)
        assert (await made.bearer(SUBJECT, soon())).token.reveal() == "a2"
    assert not endpoint.revoked and shared.credential().access_token.reveal() == "a2"
