"""Class 10 of the field: tokens and refresh, as the users of a host see them.

The steps of a refresh, and its races between processes, are shown one by one in ``test_broker.py`` and
``test_race.py``; here a host stands before authorization servers that do what those of the field do.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings import AsyncHost, AuthSettings, CallTimeout, MooringsError, NeedsLogin, NotSent, Refused
from moorings._secret import Secret
from tests.auth.host_kit import (
    BOUNDS,
    Person,
    away,
    bearers,
    brokers,
    by_then,
    files,
    holding,
    logged_in,
    logged_out,
    outcome,
    put,
    run_out,
    spec,
    stored,
)
from tests.faults.auth_server import AuthFaults

ERAS = ("handshake", "modern")
REFRESH = "token:refresh_token"
QUICK = msgspec.structs.replace(BOUNDS, auth=0.5)
"""Little time for what is said to authorization servers."""


async def after_the_pause(host: AsyncHost) -> str:
    """Call again and again, as a caller would, until what failed for a passing reason is tried again."""
    async with asyncio.timeout(20):
        while True:
            result = await outcome(host)
            if isinstance(result, str):
                return result
            assert isinstance(result, (NotSent, Refused)) and not isinstance(result, NeedsLogin), result
            await asyncio.sleep(0.05)


# --- F10.1 to F10.3: when it is renewed, and how often ------------------------------------------------------------


@pytest.mark.parametrize("era", ERAS)
async def test_f10_1_a_restart_with_a_token_that_ran_out(era: str, tmp_path: Path) -> None:
    """F10.1: one refresh before anything is sent, no 401 on the way, no browser."""
    async with AuthFaults(era=era) as server:
        await logged_in(server, tmp_path / "c")
        await run_out(tmp_path / "c")
        server.requests.clear()
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
            assert await outcome(host) == "x"
        assert [form["grant_type"] for form in server.grants()] == ["refresh_token"]
        assert not person.urls and 401 not in [seen.status for seen in server.requests]
        assert {seen.path for seen in server.requests} == {"/mcp", "/token"}  # nothing is discovered anew


@pytest.mark.parametrize("era", ERAS)
async def test_f10_1_a_401_although_the_token_looks_valid(era: str, tmp_path: Path) -> None:
    """F10.1, F6.4: one refresh, one repeat, one execution, no browser."""
    async with AuthFaults(era=era) as server:
        await logged_in(server, tmp_path / "c")
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, events):
            server.expire()
            assert await outcome(host, "s__effect", name="e") == "1"
            assert server.effects["e"] == 1
            assert [seen.status for seen in server.of("tools/call")] == [401, 200]
            assert len(server.grants("refresh_token")) == 1 and not person.urls
            assert events.states("s") == ["connecting", "ready"]


@pytest.mark.parametrize("word", ["status:503", "later:429:1", "silent", "die", "close_now", "garbage"])
async def test_f10_2_a_token_endpoint_that_fails_once(word: str, tmp_path: Path) -> None:
    """F10.2: the tokens are kept, it is tried again after a pause, no browser, and the server stays ready."""
    async with AuthFaults() as server:
        before = await logged_in(server, tmp_path / "c")
        person = Person()
        async with holding({"s": spec(server, bounds=QUICK)}, files(tmp_path / "c"), browser=person) as (
            host,
            events,
        ):
            server.expire()
            server.set(on={REFRESH: [word, "ok"]})
            first = await outcome(host)
            assert isinstance(first, Refused) and not isinstance(first, NeedsLogin)
            assert "/token" in str(first) or server.issuer in str(first)
            assert await stored(tmp_path / "c") == [before]
            assert len(server.grants("refresh_token")) == 1
            # Within the pause nothing is asked for, and the answer is the same.
            assert isinstance(await outcome(host), (NotSent, Refused))
            assert len(server.grants("refresh_token")) == 1
            assert await after_the_pause(host) == "x"
            assert len(server.grants("refresh_token")) == 2
            assert not person.urls and events.states("s") == ["connecting", "ready"]
            forms = server.grants("refresh_token")
            assert forms[0]["refresh_token"] == forms[1]["refresh_token"]


@pytest.mark.parametrize("how", ["ran out", "refused"])
@pytest.mark.parametrize("era", ERAS)
async def test_f10_3_fifty_calls_that_find_it_expired(era: str, how: str, tmp_path: Path) -> None:
    """F10.3, in one process: one token request, each call is run once. (Between processes: ``test_race.py``.)"""
    async with AuthFaults(era=era) as server:
        await logged_in(server, tmp_path / "c")
        if how == "ran out":
            await run_out(tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            count = len(server.grants("refresh_token"))
            if how == "refused":
                server.expire()
            got = await asyncio.gather(*(outcome(host, text=str(n)) for n in range(50)))
            assert got == [str(n) for n in range(50)]
            assert len(server.grants("refresh_token")) == count + (how == "refused")
            assert server.effects["tool:echo"] == 50
            assert server.revoked_by_reuse == 0


async def test_f10_3_sixteen_calls_in_their_middle(tmp_path: Path) -> None:
    """F10.3: the token ends while 16 calls wait for the token endpoint: one request for all of them."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            server.set(on={REFRESH: "hold"})
            calls = [asyncio.ensure_future(outcome(host, text=str(n))) for n in range(16)]
            await server.until(
                lambda each: each.count("tools/call") == 16 and len(server.grants("refresh_token")) == 1
            )
            late = asyncio.ensure_future(outcome(host, text="late"))
            server.release(REFRESH)
            assert await asyncio.gather(*calls, late) == [*map(str, range(16)), "late"]
            assert len(server.grants("refresh_token")) == 1


# --- F10.4 to F10.8: what a refresh is --------------------------------------------------------------------------------


async def test_f10_4_a_sibling_was_faster(tmp_path: Path) -> None:
    """F10.4: between our 401 and our lock another process has rotated it: adopted, without a token request."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            server.expire()
            # Another process, and ours has not looked at the folder since.
            (old,) = await stored(tmp_path / "c")
            family = server.families[0]
            family.spent.add(family.live)
            family.live = server.fresh("refresh")
            newer = msgspec.structs.replace(
                old,
                access_token=Secret(server.token()),
                refresh_token=Secret(family.live),
                version=old.version + 1,
            )
            await put(tmp_path / "c", newer)
            assert await outcome(host) == "x"
            assert not server.grants("refresh_token") and server.revoked_by_reuse == 0
            assert bearers(server)[-1] == f"Bearer {newer.access_token.reveal()}"
            assert events.states("s") == ["connecting", "ready"]


async def test_f10_4_a_refused_refresh_token_and_a_store_that_has_not_moved(tmp_path: Path) -> None:
    """F10.4: only then is a login needed; it is said why, in the error, the state and the store."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            server.end(server.families[0])
            error = await outcome(host)
            assert isinstance(error, NeedsLogin)
            assert (error.reason, error.sent, error.server) == ("revoked", False, "s")
            assert "invalid_grant" in str(error) and "moor login s" in (error.fix or "")
            await events.seen("s", "needs_auth")
            assert [each.state for each in await stored(tmp_path / "c")] == ["refused"]
            # Nothing is tried again by itself, nor by calls.
            count = len(server.requests)
            for _ in range(3):
                again = await outcome(host)
                assert isinstance(again, NeedsLogin) and again.reason == "revoked"
            assert len(server.requests) == count


async def test_f10_5_a_refresh_that_says_neither_refresh_token_nor_scope(tmp_path: Path) -> None:
    """F10.5: both stay, over several refreshes and a restart."""
    async with AuthFaults(rotate=False) as server:
        first = await logged_in(server, tmp_path / "c", AuthSettings(scopes=("a", "b")))
        server.set(token_fields={"scope": None})
        auth = AuthSettings(scopes=("a", "b"))
        for _ in range(2):
            async with holding({"s": spec(server, auth)}, files(tmp_path / "c")) as (host, _):
                for _ in range(2):
                    server.expire()
                    assert await outcome(host) == "x"
        (last,) = await stored(tmp_path / "c")
        assert last.version == first.version + 4
        assert last.refresh_token == first.refresh_token and last.scopes == first.scopes == ("a", "b")


async def test_f10_6_all_callers_are_gone_and_the_host_closes(tmp_path: Path) -> None:
    """F10.6: the rotated token is on the disk, and the next start uses it without another refresh."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            server.set(on={REFRESH: "hold"})
            calls = [asyncio.ensure_future(host.call("s__echo", {"text": "x"})) for _ in range(8)]
            await server.until(lambda _: len(server.grants("refresh_token")) == 1)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            closing = asyncio.ensure_future(host.close(10.0))
            await asyncio.sleep(0)
            server.release(REFRESH)
            await closing
        (kept,) = await stored(tmp_path / "c")
        assert kept.refresh_token is not None and kept.refresh_token.reveal() == server.families[0].live
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
        assert len(server.grants("refresh_token")) == 1


async def test_f10_6_a_close_while_the_authorization_server_holds_the_answer(tmp_path: Path) -> None:
    """F10.6: the close keeps its bound, and what was begun is finished whole: the new token is stored."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            server.set(on={REFRESH: "hold"})
            call = asyncio.ensure_future(outcome(host))
            await server.until(lambda _: len(server.grants("refresh_token")) == 1)
            began = time.monotonic()
            await host.close(3.0)
            assert time.monotonic() - began < 4.0
            ended = await call
            assert isinstance(ended, MooringsError), ended
            assert len(server.grants("refresh_token")) == 1
            server.release(REFRESH)
            await by_then(lambda: not brokers())
        (kept,) = await stored(tmp_path / "c")
        assert kept.refresh_token is not None and kept.refresh_token.reveal() == server.families[0].live
        assert server.families[0].spent


# --- F10.7 to F10.12: how long a token lives, and who waits -------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "known"), [(None, False), ("3600abc", False), (-1, False), ("3600", True), (3600, True)]
)
async def test_f10_7_what_is_said_of_the_end_of_a_token(said: object, known: bool, tmp_path: Path) -> None:
    """F10.7: unknown is used until a 401, after a restart too, and then refreshed without a browser."""
    async with AuthFaults(expires_in=said, lifetime=3600) as server:
        kept = await logged_in(server, tmp_path / "c")
        assert (kept.expires_at is not None) is known
        person = Person()
        for _ in range(2):
            async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
                assert await outcome(host) == "x"
        assert not server.grants("refresh_token")
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
            server.expire()
            assert await outcome(host) == "x"
        assert len(server.grants("refresh_token")) == 1 and not person.urls


async def test_f10_8_an_authorization_server_on_another_host(tmp_path: Path) -> None:
    """F10.8: after a restart the refresh goes where the login was, as the client it was, for the resource it was."""
    async with (
        AuthFaults(register_method="client_secret_basic") as issuer,
        AuthFaults(servers=[issuer.issuer], trusts=issuer) as server,
    ):
        kept = await logged_in(server, tmp_path / "c")
        assert kept.registration.auth_method == "client_secret_basic" and kept.key.issuer == issuer.issuer
        await run_out(tmp_path / "c")
        server.requests.clear()
        issuer.requests.clear()
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
        assert {seen.path for seen in server.requests} == {"/mcp"}
        assert issuer.paths() == ["/token"]
        (asked,) = issuer.at("token")
        assert asked.headers["authorization"].startswith("Basic ")
        (form,) = issuer.grants("refresh_token")
        assert form["resource"] == server.resource and "client_id" not in form and not issuer.violations


async def test_f10_9_calls_do_not_queue_behind_each_other(tmp_path: Path) -> None:
    """F10.9: two calls of 2 s and one that takes no time, with one credential."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            began = time.monotonic()
            slow = [asyncio.ensure_future(outcome(host, "s__sleep", seconds=2)) for _ in range(2)]
            await server.seen("tools/call", 2)
            at = time.monotonic()
            assert await outcome(host) == "x"
            assert time.monotonic() - at < 0.5
            await asyncio.gather(*slow)
            assert 2.0 <= time.monotonic() - began < 3.0
            assert all(not isinstance(each.result(), MooringsError) for each in slow)


async def test_f10_9_nor_behind_the_login_of_another_server(tmp_path: Path) -> None:
    """F10.9: while one server's token is waited for, others of the same store are called as ever."""
    async with AuthFaults() as slow, AuthFaults() as quick:
        for each in (slow, quick):
            await logged_in(each, tmp_path / "c")
        async with holding({"a": spec(slow), "b": spec(quick)}, files(tmp_path / "c")) as (host, _):
            slow.expire()
            slow.set(on={REFRESH: "hold"})
            waiting = asyncio.ensure_future(outcome(host, "a__echo"))
            await slow.until(lambda _: slow.grants("refresh_token"))
            quick.expire()
            assert await outcome(host, "b__echo") == "x"
            assert not waiting.done()
            slow.release(REFRESH)
            assert await waiting == "x"


@pytest.mark.parametrize("how", ["limit", "cancel", "restart"])
async def test_f10_10_a_call_is_gone_during_its_auth_step(how: str, tmp_path: Path) -> None:
    """F10.10: nothing is stranded: the refresh goes on, and the next call takes what it brought."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            server.set(on={REFRESH: "hold"})
            first = asyncio.ensure_future(outcome(host, timeout=0.5 if how == "limit" else None))
            await server.until(lambda _: len(server.grants("refresh_token")) == 1)
            match how:
                case "limit":
                    error = await first
                    assert isinstance(error, CallTimeout)
                case "cancel":
                    first.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await first
                case "restart":
                    again = asyncio.ensure_future(host.restart("s", timeout=20))
                    # It was refused before it ran, so it goes out again with the new generation.
                    await by_then(lambda: host.status()["s"].generation == 2)
            second = asyncio.ensure_future(outcome(host))
            server.release(REFRESH)
            assert await second == "x"
            if how == "restart":
                await again
                ended = await first
                assert ended == "x" or isinstance(ended, MooringsError)
            assert await outcome(host) == "x"
            assert len(server.grants("refresh_token")) == 1


async def test_f10_11_the_token_ends_while_the_stream_is_open(tmp_path: Path) -> None:
    """F10.11: the next POST carries the new one, and the stream lives on and is heard."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.requests.clear()
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            stream = await server.seen("GET")
            old = bearers(server, "tools/list")[-1]
            server.expire()
            assert await outcome(host) == "x"
            assert bearers(server)[-1] != old
            assert server.count("GET") == 1 and not stream.gone
            lists = server.count("tools/list")
            server.list_changed()
            await host.tools()
            await server.until(lambda each: each.count("tools/list") > lists)
            assert bearers(server, "tools/list")[-1] == bearers(server)[-1]


async def test_f10_12_a_token_endpoint_that_never_answers(tmp_path: Path) -> None:
    """F10.12: bounded by its own limit and a pause; a start is not held for minutes, and there is no storm."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        await run_out(tmp_path / "c")
        server.set(on={REFRESH: "silent"})
        quick = msgspec.structs.replace(QUICK, cooldown=30.0)
        began = time.monotonic()
        async with holding({"s": spec(server, bounds=quick)}, files(tmp_path / "c"), ready=False) as (
            host,
            events,
        ):
            assert time.monotonic() - began < 5.0
            await events.seen("s", "parked")
            error = host.status()["s"].last_error
            assert error is not None and server.issuer in str(error) and "0.5 s" in str(error)
            for _ in range(20):
                assert isinstance(await outcome(host), NotSent)
            assert len(server.grants("refresh_token")) <= 2
        assert time.monotonic() - began < 10.0


async def test_f10_12_a_token_endpoint_that_hangs_while_the_server_is_ready(tmp_path: Path) -> None:
    """F10.12: calls end by the limit of the exchange, and within the pause at once; one request for all."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server, bounds=QUICK)}, files(tmp_path / "c")) as (host, events):
            server.expire()
            server.set(on={REFRESH: "silent"})
            began = time.monotonic()
            got = await asyncio.gather(*(outcome(host) for _ in range(20)))
            assert all(
                isinstance(each, (Refused, NotSent)) and not isinstance(each, NeedsLogin) for each in got
            )
            assert time.monotonic() - began < 5.0
            assert len(server.grants("refresh_token")) == 1
            assert events.states("s") == ["connecting", "ready"]


async def test_f10_12_tokens_that_are_over_on_arrival(tmp_path: Path) -> None:
    """F10.12, F10.7: a typed error and a pause, however many calls come; what was rotated is stored."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            server.set(expires_in=0, lifetime=0)
            server.expire()
            for _ in range(20):
                error = await outcome(host)
                assert isinstance(error, (Refused, NotSent)) and not isinstance(error, NeedsLogin)
                assert "over when they arrive" in str(error)
            assert len(server.grants("refresh_token")) <= 3
            server.set(expires_in=3600, lifetime=None)
            assert await after_the_pause(host) == "x"
            assert server.revoked_by_reuse == 0 and events.states("s") == ["connecting", "ready"]


async def test_f10_12_logins_that_bring_tokens_that_are_over(tmp_path: Path) -> None:
    """F10.12: nobody is sent to a browser again and again for them."""
    async with AuthFaults(expires_in=0, lifetime=0) as server:
        person = Person()
        async with holding({"s": spec(server)}, browser=person, ready=False) as (host, events):
            await events.seen("s", "needs_auth")
            for _ in range(5):
                assert isinstance(await outcome(host), NeedsLogin)
            assert len(person.urls) == 1


# --- F10.13 to F10.17: the store, and servers that take nothing ---------------------------------------------------


async def test_f10_13_a_disk_that_is_full_after_a_rotation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F10.13: the new token is used from memory, and it is said aloud what that may cost."""
    async with AuthFaults() as server:
        before = await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            server.set(on={REFRESH: "hold"})
            call = asyncio.ensure_future(outcome(host))
            await server.until(lambda _: len(server.grants("refresh_token")) == 1)
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, most[1]))
            try:
                server.release(REFRESH)
                assert await call == "x"
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
            assert await stored(tmp_path / "c") == [before]
            assert await outcome(host) == "x" and len(server.grants("refresh_token")) == 1
    loud = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(loud) == 1 and "could not be stored" in loud[0] and server.resource in loud[0]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda whole: b"",
    "cut off": lambda whole: whole[: len(whole) // 2],
    "a trailing brace": lambda whole: whole + b"}",
    "another byte": lambda whole: whole[:-20] + b"#" + whole[-19:],
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_f10_14_a_file_that_is_damaged(damage: str, tmp_path: Path) -> None:
    """F10.14: that login alone is unusable, needs_auth names the file, and it is kept aside by the next login."""
    folder = tmp_path / "c"
    async with AuthFaults() as server, AuthFaults() as other:
        kept = await logged_in(server, folder)
        await logged_in(other, folder)
        file = folder / f"{kept.key.digest()}.credential"
        bad = DAMAGE[damage](file.read_bytes())
        file.write_bytes(bad)
        async with holding({"s": spec(server), "o": spec(other)}, files(folder), ready=False) as (
            host,
            events,
        ):
            await events.seen("s", "needs_auth")
            assert file.name in str(host.status()["s"].last_error)
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and file.name in str(error) and error.reason == "login"
            assert await outcome(host, "o__echo") == "x"
        assert file.read_bytes() == bad  # nobody who cannot replace it takes it away
        person = Person()
        async with holding({"s": spec(server)}, files(folder), browser=person) as (host, _):
            assert await outcome(host) == "x" and len(person.urls) == 1
        asides = [each for each in folder.iterdir() if ".corrupt-" in each.name]
        assert [each.read_bytes() for each in asides] == [bad]
        assert len(await stored(folder)) == 2


async def test_f10_15_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    """F10.15: never taken for "no token": no browser, no registration, no discovery."""
    async with AuthFaults() as server:
        (tmp_path / "c").write_text("no folder")
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person, ready=False) as (
            host,
            events,
        ):
            await events.seen("s", "parked")
            error = await outcome(host)
            assert isinstance(error, NotSent) and "the store of credentials" in str(error)
            assert str(tmp_path / "c") in str(error)
            assert {seen.path for seen in server.requests} <= {"/mcp"} and not person.urls
            # It passes, with nothing done by anybody.
            (tmp_path / "c").unlink()
            await logged_in(server, tmp_path / "c")
            assert await after_the_pause(host) == "x"
            assert not person.urls


USES: dict[str, Callable[[AsyncHost], Any]] = {
    "tools/call": lambda host: host.call("s__echo", {"text": "x"}),
    "tools/list": lambda host: host.server("s").tools(),
    "prompts/list": lambda host: host.server("s").prompts(),
    "resources/list": lambda host: host.server("s").resources(),
    "prompts/get": lambda host: host.get_prompt_raw("s", "greet", {}),
    "resources/read": lambda host: host.read_resource("x:y", server="s"),
}


@pytest.mark.parametrize("method", USES)
async def test_f10_16_a_401_right_after_a_fresh_refresh(method: str, tmp_path: Path) -> None:
    """F10.16: one repeat, then a typed auth error, never an empty list; no more token requests, however often."""
    declared = {"tools": {"listChanged": True}, "prompts": {}, "resources": {}}
    async with AuthFaults(capabilities=declared) as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            tokens, before = len(server.grants()), server.count(method)
            server.set(on={method: "unauthorized:Bearer"})
            if method == "tools/list":
                server.list_changed()
                await events.seen("s", "needs_auth")
            for _ in range(100):
                with pytest.raises(NeedsLogin):
                    await USES[method](host)
            assert server.count(method) - before == 2
            assert len(server.grants()) - tokens == 1
            await events.seen("s", "needs_auth")
            assert events.states("s") == ["connecting", "ready", "stopping", "needs_auth"]
            assert host.status()["s"].next_attempt is None


async def test_f10_16_a_person_is_not_asked_for_each_call(tmp_path: Path) -> None:
    """F10.16: with a browser one login is tried, and then it is said that the server takes none of its tokens."""
    async with AuthFaults() as server:
        person = Person()
        async with holding({"s": spec(server)}, browser=person) as (host, events):
            server.set(on={"tools/call": "unauthorized:Bearer"})
            for _ in range(20):
                assert isinstance(await outcome(host), Refused)
            await events.seen("s", "needs_auth")
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and "takes none of the tokens" in str(error)
            assert len(person.urls) <= 3
            assert len(server.grants("refresh_token")) <= 3


async def test_f10_16_a_machine_goes_on_when_the_server_takes_tokens_again() -> None:
    """F10.16: where no person is needed, it passes by itself, and meanwhile there is no storm of token requests."""
    machine = {"client_secret": "s3cret-of-machine", "token_endpoint_auth_method": "client_secret_basic"}
    async with AuthFaults(clients={"machine": machine}) as server:
        auth = AuthSettings(
            client_id="machine",
            client_secret="s3cret-of-machine",
            flow="client_credentials",
            issuer=server.issuer,
        )
        async with holding({"s": spec(server, auth)}) as (host, _):
            server.set(on={"tools/call": "unauthorized:Bearer"})
            tokens = len(server.grants())
            for _ in range(20):
                assert isinstance(await outcome(host), (Refused, NotSent))
            assert len(server.grants()) - tokens <= 6
            server.set(on={"tools/call": "ok"})
            assert await after_the_pause(host) == "x"


async def test_f10_17_the_url_changes_under_the_same_name(tmp_path: Path) -> None:
    """F10.17: the old token does not go to the new host; changing back finds it again."""
    async with AuthFaults() as one, AuthFaults() as two:
        await logged_in(one, tmp_path / "c")
        async with holding({"s": spec(two)}, files(tmp_path / "c"), ready=False) as (host, events):
            await events.seen("s", "needs_auth")
            assert isinstance(await outcome(host), NeedsLogin)
        assert not [seen for seen in two.requests if "authorization" in seen.headers]
        grants = len(one.grants())
        async with holding({"s": spec(one)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
        assert len(one.grants()) == grants


# --- What others do to the store counts ---------------------------------------------------------------------------


LOG_IN = """
    url, folder = argv
    server = HttpServer(url=url, transport="http", bounds=BOUNDS)
    async with holding({"s": server}, files(Path(folder)), browser=Person()):
        print(max(each.obtained_at for each in await stored(Path(folder))))
"""


@pytest.mark.parametrize("before", ["nobody", "revoked"])
async def test_f10_a_login_by_another_process_wakes_a_server(before: str, tmp_path: Path) -> None:
    """Class 10: within a second of its being stored, whether nobody had logged in or the login was revoked."""
    async with AuthFaults() as server:
        if before == "revoked":
            await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c"), ready=before == "revoked") as (
            host,
            events,
        ):
            if before == "revoked":
                server.end(server.families[0])
                assert isinstance(await outcome(host), NeedsLogin)
            await events.seen("s", "needs_auth")
            ready: list[float] = []
            waking = asyncio.ensure_future(events.seen("s", "idle", timeout=60))
            waking.add_done_callback(lambda _: ready.append(time.time()))
            (when,) = await away(LOG_IN, server.url, tmp_path / "c")
            await waking
            # The bound is the subject: a second, and one for a machine that is busy.
            assert ready[0] - float(when) < 2.0
            await events.seen("s", "ready", 2 if before == "revoked" else 1)
            assert await outcome(host) == "x"
            assert len(server.grants("authorization_code")) == (2 if before == "revoked" else 1)


async def test_f10_a_logout_by_another_process_counts(tmp_path: Path) -> None:
    """Class 10: within a second no request carries the token any more, and it is said that nobody is logged in."""
    async with AuthFaults() as server:
        kept = await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            assert await outcome(host) == "x"
            await logged_out(tmp_path / "c", kept)
            async with asyncio.timeout(20):
                while isinstance(error := await outcome(host), str):
                    await asyncio.sleep(0.05)
            assert isinstance(error, NeedsLogin) and error.reason == "login"
            assert bearers(server)[-1] == ""
            await events.seen("s", "needs_auth")
            assert not server.grants("refresh_token")


async def test_f10_two_principals_on_one_store_share_nothing(tmp_path: Path) -> None:
    """Class 10: the tokens of one are never those of the other, whoever is refreshed or revoked."""
    async with AuthFaults() as server:
        for who in ("anna", "bob"):
            await logged_in(server, tmp_path / "c", principal=who)
        (a, b) = (files(tmp_path / "c", who) for who in ("anna", "bob"))
        async with (
            holding({"s": spec(server)}, a) as (anna, _),
            holding({"s": spec(server)}, b) as (bob, there),
        ):
            server.requests.clear()
            tokens: dict[str, set[str]] = {"anna": set(), "bob": set()}
            for turn in range(3):
                for who, host in (("anna", anna), ("bob", bob)):
                    assert await outcome(host) == "x"
                    tokens[who].add(bearers(server)[-1])
                if turn < 2:
                    server.expire()
            assert len(tokens["anna"]) == len(tokens["bob"]) == 3 and not tokens["anna"] & tokens["bob"]
            (anna_family, _) = server.families
            server.end(anna_family)
            assert isinstance(await outcome(anna), NeedsLogin)
            assert await outcome(bob) == "x" and there.states("s") == ["connecting", "ready"]
        async with holding({"s": spec(server)}, files(tmp_path / "c", "carl"), ready=False) as (carl, events):
            await events.seen("s", "needs_auth")
            assert isinstance(await outcome(carl), NeedsLogin)


async def test_f10_a_dead_login_in_the_store_and_somebody_at_a_browser(tmp_path: Path) -> None:
    """Class 10: what is stored does not work any more, so a new start has the person log in, once."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.end(server.families[0])
        async with holding({"s": spec(server)}, files(tmp_path / "c"), ready=False) as (_, events):
            await events.seen("s", "needs_auth")
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
            assert await outcome(host) == "x"
        assert len(person.urls) == 1
        (now,) = await stored(tmp_path / "c")
        assert now.state == "good"


async def test_f10_a_login_and_its_end_by_others_before_the_first_401(tmp_path: Path) -> None:
    """Class 10: a server that asked for nothing begins to; what others stored by then is old, and is renewed."""
    async with AuthFaults(open=True) as server:
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            assert await outcome(host) == "x" and not brokers()
            server.set(open=False)
            await away(LOG_IN, server.url, tmp_path / "c")
            server.expire()
            assert await outcome(host) == "x"
            assert len(server.grants("refresh_token")) == 1 and events.states("s") == ["connecting", "ready"]
            assert bearers(server)[0] == "" and server.effects["tool:echo"] == 2


async def test_f8_9_the_lists_of_another_account_are_not_shown(tmp_path: Path) -> None:
    """F8.9: a list that is fresh for a minute is fetched anew for the account that has logged in meanwhile."""
    async with AuthFaults(era="modern", ttl_ms=60_000) as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            await host.tools()
            before = server.count("tools/list")
            server.end(server.families[0])
            assert isinstance(await outcome(host), NeedsLogin)
            await events.seen("s", "needs_auth")
            server.set(tools=[{"name": "theirs", "inputSchema": {"type": "object"}}])
            await away(LOG_IN, server.url, tmp_path / "c")
            await events.seen("s", "ready", 2, timeout=30)
            assert "s__theirs" in [each.name for each in await host.tools()]
            # One by the other process, one by us.
            assert server.count("tools/list") == before + 2
