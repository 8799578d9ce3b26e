"""The broker: one refresh however many ask, nothing lost whoever gives up or dies, and no lock while others run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moorings._secret import Secret
from moorings.auth.asked import Bearer
from moorings.auth.broker import Broker
from moorings.auth.faults import GrantError, NeedsPerson
from moorings.auth.http import AuthNetError
from moorings.auth.kept import MARGIN, due_at, usable
from moorings.auth.model import CredentialKey
from moorings.auth.renewal import ClientGone, Dead, Gone, Postponed
from moorings.errors import MisuseError
from tests.auth.broker_kit import (
    KEY,
    SUBJECT,
    Clock,
    EndpointFlow,
    Killed,
    Shared,
    Store,
    TokenEndpoint,
    broken,
    broker,
    credential,
    used,
)

INTENT = KEY.digest() + "-intent"


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


def stage(life: float | None = 3600.0, **fields: Any) -> tuple[Shared, TokenEndpoint, Clock]:
    clock = Clock()
    shared = Shared()
    shared.put(credential(clock, life=life, **fields))
    return shared, TokenEndpoint(clock), clock


def token(bearer: Bearer | None) -> str | None:
    return None if bearer is None else bearer.token.reveal()


async def test_a_token_at_hand_costs_no_look_at_the_store() -> None:
    shared, endpoint, clock = stage()
    made, store = broker(shared, endpoint, clock)
    with used(made):
        assert made.at_hand(SUBJECT) is None
        assert token(await made.bearer(SUBJECT, soon())) == "a0"
        store.fail["load"] = broken()
        for _ in range(100):
            assert token(made.at_hand(SUBJECT)) == "a0"
            assert token(await made.bearer(SUBJECT, soon())) == "a0"
    assert endpoint.count == 0 and store.locks == 0


async def test_without_a_credential_there_is_no_bearer_and_a_refusal_says_so() -> None:
    made, _ = broker(Shared(), TokenEndpoint(Clock()), Clock())
    with used(made):
        assert await made.bearer(SUBJECT, soon()) is None
        with pytest.raises(NeedsPerson) as needed:
            await made.refused(SUBJECT, None, soon())
        assert isinstance(needed.value.why, Gone)


def test_f10_1_threads_and_loops_that_find_it_expired_cause_one_request() -> None:
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.gate = threading.Event()
    made, store = broker(shared, endpoint, clock)
    got: list[str | None] = []

    def one() -> None:
        async def ask() -> None:
            bearers = await asyncio.gather(*(made.bearer(SUBJECT, soon()) for _ in range(8)))
            got.extend(token(each) for each in bearers)

        asyncio.run(ask())

    with used(made):
        threads = [threading.Thread(target=one) for _ in range(8)]
        for each in threads:
            each.start()
        assert endpoint.entered.wait(10)
        endpoint.gate.set()
        for each in threads:
            each.join(20)
    assert got == ["a1"] * 64
    assert endpoint.count == 1 and store.locks == 1 and not endpoint.revoked


async def test_who_gives_up_leaves_the_refresh_whole() -> None:
    """F10.6: no cancellation of a caller stops it."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.gate = threading.Event()
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        with pytest.raises(TimeoutError):
            await made.bearer(SUBJECT, soon(0.05))
        cancelled = asyncio.ensure_future(made.bearer(SUBJECT, soon()))
        closed = made.bearer(SUBJECT, soon())
        closed.send(None)  # type: ignore[attr-defined]  # a flow that somebody closes in its middle
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        closed.close()
        endpoint.gate.set()
        assert token(await made.bearer(SUBJECT, soon())) == "a1"
    assert endpoint.count == 1


async def test_several_brokers_on_one_store_cause_one_request_and_adopt_it() -> None:
    """As processes do; each was refused with the same token."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    pairs = [broker(shared, endpoint, clock) for _ in range(8)]
    with used(*(made for made, _ in pairs)):
        bearers = await asyncio.gather(*(made.bearer(SUBJECT, soon()) for made, _ in pairs for _ in range(4)))
    assert {token(each) for each in bearers} == {"a1"}
    assert endpoint.count == 1 and not endpoint.revoked
    assert shared.credential().version == 2


async def test_a_refused_token_is_never_given_again() -> None:
    shared, endpoint, clock = stage(life=None)
    endpoint.life = None
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        first = await made.bearer(SUBJECT, soon())
        again = await asyncio.gather(*(made.refused(SUBJECT, first, soon()) for _ in range(16)))
        assert {token(each) for each in again} == {"a1"}
        assert endpoint.count == 1
        # One that comes late with the old one gets what is there.
        assert token(await made.refused(SUBJECT, first, soon())) == "a1"
        assert token(await made.refused(SUBJECT, again[0], soon())) == "a2"
    assert endpoint.count == 2


async def test_it_is_renewed_ahead_of_its_end_and_nobody_waits() -> None:
    shared, endpoint, clock = stage()
    endpoint.gate = threading.Event()
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        await made.bearer(SUBJECT, soon())
        clock.pass_by(3600 * 0.89)
        assert token(made.at_hand(SUBJECT)) == "a0"
        assert not endpoint.entered.is_set()
        clock.pass_by(3600 * 0.02)
        told = asyncio.Event()
        loop = asyncio.get_running_loop()
        made.on_change(SUBJECT, lambda: loop.call_soon_threadsafe(told.set))
        assert token(made.at_hand(SUBJECT)) == "a0"
        endpoint.gate.set()
        await asyncio.wait_for(told.wait(), 10)
        assert token(made.at_hand(SUBJECT)) == "a1"
    assert endpoint.count == 1


@pytest.mark.parametrize(
    "error",
    [
        GrantError("http", status=503, transient=True),
        GrantError("temporarily_unavailable", status=400, transient=True, retry_after=30.0),
        AuthNetError("no answer", url="https://as.example", transient=True, sent=True),
        AuthNetError("refused", url="https://as.example", transient=True, sent=False),
    ],
)
async def test_f10_what_passes_keeps_every_token(error: Exception) -> None:
    shared, endpoint, clock = stage()
    before = shared.credential()
    clock.pass_by(3600)
    endpoint.errors = [error]
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        with pytest.raises(Postponed):
            await made.bearer(SUBJECT, soon())
        assert shared.credential() == before
        with pytest.raises(Postponed):
            # Not at once again, and not for each who asks.
            await made.bearer(SUBJECT, soon())
        assert endpoint.count == 0
        clock.pass_by(31.0)
        assert token(await made.bearer(SUBJECT, soon())) == "a1"


async def test_a_transient_failure_ahead_of_the_end_costs_nothing() -> None:
    shared, endpoint, clock = stage()
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        await made.bearer(SUBJECT, soon())
        endpoint.errors = [GrantError("http", status=503, transient=True)]
        clock.pass_by(3600 * 0.95)
        assert token(made.at_hand(SUBJECT)) == "a0"
        assert token(await made.bearer(SUBJECT, soon())) == "a0"


async def test_a_refusal_is_final_and_said_to_all() -> None:
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.revoked = True
    made, _ = broker(shared, endpoint, clock)
    other, _ = broker(shared, endpoint, clock)
    with used(made, other):
        with pytest.raises(Dead, match="invalid_grant"):
            await made.bearer(SUBJECT, soon())
        assert shared.credential().state == "refused"
        with pytest.raises(Dead):
            await other.bearer(SUBJECT, soon())
    assert INTENT not in shared.entries


async def test_a_refusal_after_somebody_was_faster_is_none() -> None:
    """F10.4: a refused refresh token is no end, where the store holds a newer one by then."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    made, _ = broker(shared, endpoint, clock)
    newer = credential(clock, access_token=Secret("b1"), refresh_token=Secret("s1"), version=7)
    refuse = GrantError("invalid_grant", status=400)

    async def meanwhile(_: Any) -> Any:
        shared.put(newer)
        raise refuse

    endpoint.refresh = meanwhile  # type: ignore[method-assign]
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "b1"
    assert shared.credential() == newer


async def test_a_client_that_is_not_known_once_costs_nothing_and_twice_all_that_is_bound_to_it() -> None:
    """F11.6: one mishap, and then the server's word."""
    shared, endpoint, clock = stage()
    before = shared.credential()
    clock.pass_by(3600)
    endpoint.errors = [GrantError("invalid_client", status=401) for _ in range(2)]
    flow = EndpointFlow(endpoint)
    made, _ = broker(shared, endpoint, clock, flow=flow)
    with used(made):
        with pytest.raises(Postponed):
            await made.bearer(SUBJECT, soon())
        assert shared.credential() == before and not flow.clients_gone
        clock.pass_by(10)
        with pytest.raises(ClientGone):
            await made.bearer(SUBJECT, soon())
    assert flow.clients_gone == 1


async def test_a_pause_outlasts_those_who_were_told_to_wait() -> None:
    """A server that cannot start uses the broker anew with each start, maybe as its only user."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.errors = [GrantError("temporarily_unavailable", status=503, transient=True, retry_after=60.0)]
    made, _ = broker(shared, endpoint, clock)
    for _ in range(3):
        with used(made), pytest.raises(Postponed, match="temporarily_unavailable"):
            await made.bearer(SUBJECT, soon())
        clock.pass_by(15)
    assert endpoint.count == 0 and not endpoint.errors
    clock.pass_by(20)
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "a1"


async def test_a_pause_ends_with_the_credential_it_was_for() -> None:
    """Somebody has logged in while nobody used the broker."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.errors = [GrantError("temporarily_unavailable", status=503, transient=True, retry_after=60.0)]
    made, _ = broker(shared, endpoint, clock)
    with used(made), pytest.raises(Postponed):
        await made.bearer(SUBJECT, soon())
    shared.put(credential(clock, access_token=Secret("new"), version=7))
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "new"


async def test_a_client_that_is_not_known_twice_is_gone_though_each_time_asked_for_itself() -> None:
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.errors = [GrantError("invalid_client", status=401) for _ in range(2)]
    flow = EndpointFlow(endpoint)
    made, _ = broker(shared, endpoint, clock, flow=flow)
    with used(made), pytest.raises(Postponed):
        await made.bearer(SUBJECT, soon())
    clock.pass_by(10)
    with used(made), pytest.raises(ClientGone):
        await made.bearer(SUBJECT, soon())
    assert flow.clients_gone == 1


async def test_an_exit_in_the_thread_costs_what_was_under_way_and_no_more() -> None:
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.errors = [Killed()]  # type: ignore[list-item]
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        with pytest.raises(MisuseError):
            await made.bearer(SUBJECT, soon())
        assert token(await made.bearer(SUBJECT, soon())) == "a1"


async def test_tokens_that_cannot_be_stored_are_used_and_loudly_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F10.13: from memory, and aloud."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    made, store = broker(shared, endpoint, clock)
    with used(made):
        store.fail["save"] = broken()
        assert token(await made.bearer(SUBJECT, soon())) == "a1"
        assert token(made.at_hand(SUBJECT)) == "a1"
    assert "could not be stored" in caplog.text
    assert all(secret not in caplog.text for secret in ("a1", "r1'", "r0'"))


@pytest.mark.parametrize("step", ["load-intent", "save-intent"])
async def test_a_store_that_fails_before_the_request_sends_none(step: str) -> None:
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    made, store = broker(shared, endpoint, clock)
    with used(made):
        store.fail[step] = broken()
        with pytest.raises(Postponed, match="store"):
            await made.bearer(SUBJECT, soon())
    assert endpoint.count == 0


async def _die(shared: Shared, endpoint: TokenEndpoint, clock: Clock, prepare: Any) -> None:
    """One process dies at a step of its refresh: its lock goes with it, and nothing else is done."""
    made, store = broker(shared, endpoint, clock)
    made.join()
    prepare(store)
    with pytest.raises(MisuseError, match="closed meanwhile"):
        await made.bearer(SUBJECT, soon())
    end = made.leave()
    assert end is not None and end.wait(10)


async def test_killed_before_the_request_nothing_happened(caplog: pytest.LogCaptureFixture) -> None:
    """F10.6: before it."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    with caplog.at_level(logging.CRITICAL):
        await _die(shared, endpoint, clock, lambda store: store.fail.update({"save-intent": Killed()}))
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "a1"


async def test_killed_with_the_answer_on_its_way_the_login_is_lost_and_says_so() -> None:
    """F10.6: after the request was sent."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.drop_answers = 1
    await _die(shared, endpoint, clock, lambda store: None)
    assert INTENT in shared.entries
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        with pytest.raises(Dead, match="rotated"):
            await made.bearer(SUBJECT, soon())
    assert shared.credential().state == "lost"


async def test_killed_before_the_server_did_anything_the_next_one_succeeds() -> None:
    """The intent alone ends nothing."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    endpoint.errors = [Killed()]  # type: ignore[list-item]
    await _die(shared, endpoint, clock, lambda store: None)
    assert INTENT in shared.entries
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "a1"
    assert INTENT not in shared.entries and shared.credential().state == "good"


async def test_killed_after_it_was_stored_the_next_one_adopts() -> None:
    """F10.6: after the write."""
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    await _die(shared, endpoint, clock, lambda store: store.fail.update({"remove-intent": Killed()}))
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "a1"
        assert endpoint.count == 1
        clock.pass_by(3600)
        assert token(await made.bearer(SUBJECT, soon())) == "a2"


async def test_a_login_and_a_logout_of_another_process_count_at_once() -> None:
    shared, endpoint, clock = stage()
    made, _ = broker(shared, endpoint, clock)
    loop = asyncio.get_running_loop()
    with used(made):
        assert token(await made.bearer(SUBJECT, soon())) == "a0"
        told = asyncio.Event()
        stop = made.on_change(SUBJECT, lambda: loop.call_soon_threadsafe(told.set))
        shared.write(KEY.digest(), None, None)
        await asyncio.wait_for(told.wait(), 10)
        assert made.at_hand(SUBJECT) is None
        assert await made.bearer(SUBJECT, soon()) is None
        told.clear()
        shared.put(credential(clock, access_token=Secret("n1")))
        await asyncio.wait_for(told.wait(), 10)
        assert token(made.at_hand(SUBJECT)) == "n1"
        stop()


async def test_a_first_token_without_a_person_is_got_once() -> None:
    clock = Clock()
    asked = 0

    async def first(ask: Any, known: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return credential(clock, access_token=Secret("c1"), refresh_token=None, grant="client_credentials")

    made, _ = broker(Shared(), TokenEndpoint(clock), clock, first=first)
    with used(made):
        assert await made.bearer(SUBJECT, soon()) is None
        got = await asyncio.gather(*(made.refused(SUBJECT, None, soon()) for _ in range(8)))
        assert {token(each) for each in got} == {"c1"}
    assert asked == 1


async def test_a_lock_that_others_hold_is_waited_for_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moorings.auth.broker.LOCK_WITHIN", 0.1)
    shared, endpoint, clock = stage()
    clock.pass_by(3600)
    shared.locked.add(KEY.digest())
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        with pytest.raises(Postponed, match="somebody else"):
            await made.bearer(SUBJECT, soon())
    assert endpoint.count == 0


LIVES = st.floats(1.0, 1e6) | st.none()


@given(LIVES, st.floats(0, 2e6), st.floats(0, 2e6))
def test_neither_clock_makes_a_token_live_longer(life: float | None, wall: float, age: float) -> None:
    clock = Clock()
    # Not at the very edge, where sums of large numbers round.
    margin = min(MARGIN, 0.1 * life) if life is not None else 0.0
    assume(life is None or (abs(wall - (life - margin)) > 1e-3 and abs(age - life) > 1e-3))
    made = credential(clock, life=life)
    good = usable(made, clock.wall + wall, age)
    if life is None:
        assert good
    else:
        assert good == (wall < life - margin and age < life)
    assert not usable(msgspec.structs.replace(made, state="refused"), clock.wall, 0.0)


@given(st.floats(1.0, 1e6), st.floats(0, 1))
def test_renewal_ahead_is_within_its_share(life: float, draw: float) -> None:
    clock = Clock()
    made = credential(clock, life=life)
    assert made.expires_at is not None
    due = due_at(made, draw)
    assert due is not None and made.expires_at - min(600.0, life * 0.1501) <= due <= made.expires_at
    assert due_at(credential(clock, life=None), draw) is None


async def test_nothing_shows_a_secret() -> None:
    shared, endpoint, clock = stage()
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        bearer = await made.bearer(SUBJECT, soon())
    assert "a0" not in repr(bearer) and "r0" not in f"{bearer!r}{shared.credential()!r}"


def test_it_starts_again_after_the_last_one_left() -> None:
    shared, endpoint, clock = stage()
    made, _ = broker(shared, endpoint, clock)

    async def ask() -> str | None:
        return token(await made.bearer(SUBJECT, soon()))

    for _ in range(3):
        with used(made):
            assert asyncio.run(ask()) == "a0"
    assert isinstance(made, Broker) and isinstance(shared.stores, list) and Store is not None


async def test_a_machines_token_is_none_of_a_persons_logins() -> None:
    """One store, one resource, one principal: each way to a token has its own."""
    shared, endpoint, clock = stage()
    machine = CredentialKey(KEY.principal, KEY.issuer, "machine", KEY.resource)
    shared.put(
        credential(
            clock,
            key=machine,
            grant="client_credentials",
            access_token=Secret("m1"),
            refresh_token=None,
            obtained_at=clock.wall + 1,
        )
    )
    made, _ = broker(shared, endpoint, clock)
    with used(made):
        for alone, expected in ((False, "a0"), (True, "m1")):
            subject = msgspec.structs.replace(SUBJECT, alone=alone)
            assert token(await made.bearer(subject, soon())) == expected
