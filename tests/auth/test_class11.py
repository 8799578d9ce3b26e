"""Class 11 of the field: discovery, registration, resource and scopes, as the users of a host see them.

What each step makes of each answer is shown in the tests of that step (``test_discovery.py`` and its neighbours); here
a whole login, or its failure, is looked at from outside: state, error, and what the servers were asked.
"""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from moorings import AuthSettings, MooringsError, NeedsLogin, NotSent, Refused
from moorings.auth.model import decode_registration, encode_registration
from moorings.store.files import FileStore
from tests.auth.host_kit import (
    Person,
    bearers,
    brokers,
    files,
    holding,
    logged_in,
    outcome,
    spec,
    stored,
)
from tests.auth.login_kit import Someone, log_in
from tests.faults.auth_server import OAUTH, OIDC, PRM, AuthFaults, Json

REFRESH = "token:refresh_token"
NO_SERVER = {"/token": "status:404", "/register": "status:404", "/authorize": "status:404"}
"""An MCP server that is no authorization server of the first revision either."""


def asked(server: AuthFaults) -> list[Json]:
    """The parameters of the authorization requests, in order."""
    return [dict(parse_qsl(urlsplit(seen.path).query)) for seen in server.at("authorize")]


async def refusal(
    server: AuthFaults, auth: AuthSettings | bool = True, **fields: Any
) -> tuple[str, MooringsError]:
    """The state of a host's server that somebody stands ready to log in to, and what a call gets."""
    person = Person()
    async with holding({"s": spec(server, auth, **fields)}, browser=person, ready=False) as (host, events):
        error = await outcome(host)
        assert isinstance(error, MooringsError), error
        state = "needs_client" if isinstance(error, NeedsLogin) and error.reason == "client" else "needs_auth"
        if isinstance(error, NeedsLogin):
            await events.seen("s", state)
        for _ in range(3):
            assert type(await outcome(host)) is type(error)
        return str(host.status()["s"].state), error


async def login(server: AuthFaults, auth: AuthSettings | bool = True, **fields: Any) -> None:
    """A person logs in by a host, and a call is answered."""
    person = Person()
    async with holding({"s": spec(server, auth, **fields)}, browser=person) as (host, _):
        assert await outcome(host) == "x"
    assert len(person.urls) == 1 and not server.violations


# --- F11.1 to F11.3: who gives tokens -----------------------------------------------------------------------------


async def test_f11_1_an_issuer_that_differs_by_a_slash() -> None:
    """F11.1: refused with both strings and the setting; with the setting it works, and no slash is added anywhere."""
    async with AuthFaults(issuer_said="{issuer}/") as server:
        state, error = await refusal(server)
        assert state == "needs_auth" and isinstance(error, NeedsLogin) and error.reason == "server"
        assert f"'{server.issuer}'" in str(error) and f"'{server.issuer}/'" in str(error)
        assert "auth.accept_issuer" in (error.fix or "")
        assert not server.at("register") and not server.at("authorize")
    async with AuthFaults(issuer_said="{issuer}/") as server:
        await login(server, AuthSettings(accept_issuer=f"{server.issuer}/"))
        assert asked(server)[0]["resource"] == server.resource
        assert not [path for path in server.paths() if path.endswith("/") or "//" in path]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_f11_2_an_issuer_with_a_path(status: int) -> None:
    """F11.2: each form in its order, no doubled path; the root form where the path form is not to be had."""
    path_form = PRM + "/mcp"
    async with AuthFaults(
        issuer_path="/tenant",
        documents=["appended"],
        prm=["root"],
        on={path_form: f"status:{status}"},
        challenges=["Bearer"],
    ) as server:
        await login(server)
        wanted = [path_form, PRM, f"{OAUTH}/tenant", f"{OIDC}/tenant", f"/tenant{OIDC}"]
        assert [path for path in server.paths() if "/.well-known/" in path] == wanted


async def test_f11_3_no_metadata_and_the_authorization_server_elsewhere() -> None:
    """F11.3: typed, and says how to name it; named, it works. Every request carries our User-Agent."""
    async with (
        AuthFaults() as issuer,
        AuthFaults(trusts=issuer, prm=[], documents=[], challenges=["Bearer"], on=NO_SERVER) as server,
    ):
        _, error = await refusal(server)
        assert isinstance(error, NeedsLogin) and error.reason == "server"
        assert "auth.issuer" in str(error)
        assert not issuer.requests and not server.at("register") and not server.at("authorize")
        await login(
            server, AuthSettings(issuer=issuer.issuer, user_agent="our-agent/1"), user_agent="our-agent/1"
        )
        agents = {
            seen.headers.get("user-agent") for seen in issuer.requests if "authorize" not in issuer.keys(seen)
        }
        assert agents == {"our-agent/1"}
    assert all("user-agent" in seen.headers for seen in server.requests)


@pytest.mark.parametrize("how", ["no endpoint", "status:403", "status:404", "html"])
async def test_f11_3_nobody_is_registered(how: str) -> None:
    """F11.3: needs_client with an explanation, before a person is troubled; nothing is invented."""
    script: Json = (
        {"metadata": {"registration_endpoint": None}} if how == "no endpoint" else {"on": {"register": how}}
    )
    async with AuthFaults(**script) as server:
        state, error = await refusal(server)
        assert state == "needs_client" and isinstance(error, NeedsLogin) and error.reason == "client"
        assert "auth.client_id" in (error.fix or "") and server.issuer in str(error)
        assert len(server.at("register")) == (how != "no endpoint")
        assert not server.at("authorize")


# --- F11.4, F11.5: when nothing of this is any of our business ----------------------------------------------------


async def from_a_function() -> dict[str, str]:
    return {"authorization": "Bearer the-key"}


HEADERS: dict[str, Any] = {
    "fixed": {"Authorization": "Bearer the-key"},
    "any case": {"AUTHORIZATION": "Bearer the-key"},
    "function": from_a_function,
}


@pytest.mark.parametrize("when", ["start", "call"])
@pytest.mark.parametrize("how", HEADERS)
async def test_f11_4_a_401_to_a_configured_key(how: str, when: str) -> None:
    """F11.4: shown as a refused key; no discovery, no registration, no browser, and no thread of a broker."""
    async with AuthFaults(open=when == "call") as server:
        person = Person()
        server_spec = spec(server, headers=HEADERS[how])
        async with holding({"s": server_spec}, browser=person, ready=when == "call") as (host, events):
            server.set(open=False)
            error = await outcome(host)
            assert isinstance(error, NotSent if when == "start" else Refused) and not isinstance(
                error, NeedsLogin
            )
            assert error.http is not None and error.http.status == 401
            assert "the-key" not in str(error)
            if how != "function" or when == "call":
                assert "the server does not take the configured Authorization header" in str(error)
            assert "needs_auth" not in events.states("s")
            assert not brokers()
        assert {seen.path for seen in server.requests} == {"/mcp"} and not person.urls
        assert {seen.headers["authorization"] for seen in server.requests} == {"Bearer the-key"}


async def test_f11_4_auth_false() -> None:
    """F11.4: switched off for a server, its 401 is a refusal, whatever it challenges with."""
    async with AuthFaults() as server:
        person = Person()
        async with holding({"s": spec(server, False)}, browser=person, ready=False) as (host, events):
            error = await outcome(host)
            assert isinstance(error, NotSent) and error.http is not None and error.http.status == 401
            await events.seen("s", "parked")
            server.set(open=True)
            assert await outcome(host) == "x"
            server.set(open=False)
            error = await outcome(host)
            assert isinstance(error, Refused) and not isinstance(error, NeedsLogin)
            assert not brokers()
        assert {seen.path for seen in server.requests} == {"/mcp"} and not person.urls


async def test_f11_5_a_challenge_and_nothing_configured() -> None:
    """F11.5: needs_auth, typed, with what to do; nothing is asked of anybody but the server itself."""
    async with AuthFaults() as server:
        async with holding({"s": spec(server)}, ready=False) as (host, events):
            await events.seen("s", "needs_auth")
            status = host.status()["s"]
            assert status.fix and "log in" in status.fix and status.next_attempt is None
            count = len(server.requests)
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and (error.reason, error.sent) == ("login", False)
            assert error.fix and "log in" in error.fix
            assert len(server.requests) == count
        assert {seen.path for seen in server.requests} == {"/mcp"}


@pytest.mark.parametrize("stored_before", [False, True])
@pytest.mark.parametrize("era", ["handshake", "modern", "sse"])
async def test_f11_5_a_server_that_asks_for_nothing(era: str, stored_before: bool, tmp_path: Path) -> None:
    """F11.5: no discovery, no registration, no browser; without a stored login no thread, and no folder is made."""
    folder = tmp_path / "c"
    async with AuthFaults(era=era, open=True) as server, AuthFaults() as other:
        if stored_before:
            await logged_in(other, folder)
        person = Person()
        how = {"transport": "sse"} if era == "sse" else {}
        async with holding({"s": spec(server, **how)}, files(folder), browser=person) as (host, _):
            for n in range(5):
                assert await outcome(host, text=str(n)) == str(n)
            assert bool(brokers()) is stored_before
        assert not person.urls and folder.exists() is stored_before
        assert not [path for path in server.paths() if "well-known" in path]
        assert not [seen for seen in server.requests if "authorization" in seen.headers]


# --- F11.6, F11.7: the client -------------------------------------------------------------------------------------


async def test_f11_6_a_client_that_the_server_forgot(tmp_path: Path) -> None:
    """F11.6: once may be a mishap; twice it is believed: registered anew, and the new login works."""
    async with AuthFaults() as server:
        first = await logged_in(server, tmp_path / "d")
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "d")) as (host, events):
            server.forget_clients()
            server.expire()
            async with asyncio.timeout(20):
                while not isinstance(error := await outcome(host), NeedsLogin):
                    assert isinstance(error, (Refused, NotSent))
                    assert await stored(tmp_path / "d") == [first]
                    await asyncio.sleep(0.05)
            assert error.reason == "client_gone" and error.fix and "moor login s" in error.fix
            assert len(server.grants("refresh_token")) == 2
            await events.seen("s", "needs_auth")
        assert [each.state for each in await stored(tmp_path / "d")] == ["refused"]
        registered = len(server.at("register"))
        async with holding({"s": spec(server)}, files(tmp_path / "d"), browser=person) as (host, _):
            assert await outcome(host) == "x"
        assert len(person.urls) == 1 and len(server.at("register")) == registered + 1
        (now,) = await stored(tmp_path / "d")
        assert now.state == "good" and now.key.client_id != first.key.client_id


@pytest.mark.parametrize("word", ["refuse:invalid_client:401", "refuse:invalid_client:400", "status:500"])
async def test_f11_6_once_and_then_success(word: str, tmp_path: Path) -> None:
    """F11.6: nothing is dropped, nothing is registered, nobody is troubled."""
    async with AuthFaults() as server:
        first = await logged_in(server, tmp_path / "c")
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, events):
            server.set(on={REFRESH: [word, "ok"]})
            server.expire()
            async with asyncio.timeout(20):
                while not isinstance(got := await outcome(host), str):
                    assert isinstance(got, (Refused, NotSent)) and not isinstance(got, NeedsLogin)
                    await asyncio.sleep(0.05)
            assert events.states("s") == ["connecting", "ready"]
        (now,) = await stored(tmp_path / "c")
        assert now.key == first.key and now.state == "good"
        assert not person.urls and len(server.at("register")) == 1


async def test_f11_7_another_callback_port_than_the_registered_one(tmp_path: Path) -> None:
    """F11.7: a registration of its own is made before the URL is shown, and the first one is kept for its port."""
    async with AuthFaults() as server:
        for port in (40101, 40102, 40101):
            person = Person()
            auth = AuthSettings(redirect_port=port)
            for each in server.families:
                server.end(each)
            async with holding({"s": spec(server, auth)}, files(tmp_path / "c"), browser=person) as (host, _):
                assert await outcome(host) == "x"
            (url,) = person.urls
            assert dict(parse_qsl(urlsplit(url).query))["redirect_uri"] == f"http://127.0.0.1:{port}/callback"
        assert len(server.at("register")) == 2
        assert all(seen.status == 302 for seen in server.at("authorize"))


async def test_f11_7_the_port_of_a_registration_is_used_again_and_replaced_where_it_is_taken(
    tmp_path: Path,
) -> None:
    """F11.7: with a listener of ours, whose port was free when it registered: the server never sees another one."""
    async with AuthFaults() as server:
        someone = Someone()
        await log_in(server, tmp_path, on_login_url=someone)
        await log_in(server, tmp_path, on_login_url=someone, force=True)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", urlsplit(someone.prompts[0].redirect_uri).port))
            other.listen()
            await log_in(server, tmp_path, on_login_url=someone, force=True)
        first, second, third = (each.redirect_uri for each in someone.prompts)
        assert first == second != third
        assert len(server.at("register")) == 2
        assert all(seen.status == 302 for seen in server.at("authorize"))


# --- F11.8, F11.9: scopes -----------------------------------------------------------------------------------------

FORTY = [f"s{n}" for n in range(40)]
CHALLENGE = 'Bearer scope="one", resource_metadata="{prm}"'


@pytest.mark.parametrize(
    ("configured", "challenge", "resource", "wanted"),
    [
        (("c1", "c2"), CHALLENGE, ["r1", "r2", "r3"], "c1 c2"),
        ((), CHALLENGE, ["r1", "r2", "r3"], "one"),
        ((), 'Bearer resource_metadata="{prm}"', ["r1", "r2", "r3"], "r1 r2 r3"),
        ((), 'Bearer resource_metadata="{prm}"', [], None),
        ((), 'Bearer resource_metadata="{prm}"', None, None),
    ],
)
async def test_f11_8_which_scopes_a_login_asks_for(
    configured: tuple[str, ...], challenge: str, resource: list[str] | None, wanted: str | None
) -> None:
    """F11.8: those of the config, else the challenge's, else the resource's; what nobody names is left out."""
    async with AuthFaults(
        metadata={"scopes_supported": FORTY},
        prm_fields={"scopes_supported": resource},
        challenges=[challenge],
    ) as server:
        await login(server, AuthSettings(scopes=configured))
        assert asked(server)[0].get("scope") == wanted


async def test_f11_9_a_step_up_with_somebody_at_a_browser(tmp_path: Path) -> None:
    """F11.9: a fresh authorization for A and B, one repeat; then one for A, B and C; a refresh is not used for it."""
    async with AuthFaults(needs={"echo": "b", "add": "c"}) as server:
        person = Person()
        auth = AuthSettings(scopes=("a",))
        async with holding({"s": spec(server, auth)}, files(tmp_path / "c"), browser=person) as (
            host,
            events,
        ):
            assert await outcome(host, "s__effect", name="e") == "1"
            assert await outcome(host) == "x"
            assert await outcome(host, "s__add", a=1, b=2) == "3"
            assert [each.get("scope") for each in asked(server)] == ["a", "a b", "a b c"]
            assert server.count("tools/call", tool="echo") == 2 and server.effects["tool:echo"] == 1
            assert not server.grants("refresh_token") and len(person.urls) == 3
            # What was raised holds for all of them from now on.
            assert await outcome(host) == "x" and await outcome(host, "s__effect", name="e") == "2"
            assert len(person.urls) == 3 and events.states("s") == ["connecting", "ready"]
        (kept,) = await stored(tmp_path / "c")
        assert set(kept.requested_scopes) == {"a", "b", "c"}


async def test_f11_9_sixteen_calls_that_all_want_more() -> None:
    """F11.9: one login for all of them."""
    async with AuthFaults(needs={"echo": "b"}) as server:
        person = Person()
        async with holding({"s": spec(server, AuthSettings(scopes=("a",)))}, browser=person) as (host, _):
            got = await asyncio.gather(*(outcome(host, text=str(n)) for n in range(16)))
            assert got == [str(n) for n in range(16)] and len(person.urls) == 2


async def test_f11_9_the_same_403_again() -> None:
    """F11.9: at most two attempts for an operation, then typed; others of the server go on."""
    async with AuthFaults() as server:
        challenge = 'Bearer error="insufficient_scope", scope="b"'
        person = Person()
        async with holding({"s": spec(server, AuthSettings(scopes=("a",)))}, browser=person) as (
            host,
            events,
        ):
            assert await outcome(host) == "x"
            server.set(on={"tools/call": f"forbidden:{challenge}"})
            errors = [await outcome(host) for _ in range(5)]
            assert all(isinstance(each, Refused) for each in errors)
            last = errors[-1]
            assert isinstance(last, NeedsLogin) and last.reason == "scope" and "scope" in str(last)
            assert len(person.urls) <= 3
            server.set(on={"tools/call": "ok"})
            assert await outcome(host) == "x"
            assert events.states("s") == ["connecting", "ready"]


async def test_f11_9_without_a_browser(tmp_path: Path) -> None:
    """F11.9: that call alone gets NeedsLogin for its scope; others go on, and so does the server."""
    async with AuthFaults(needs={"echo": "b"}) as server:
        auth = AuthSettings(scopes=("a",))
        await logged_in(server, tmp_path / "c", auth)
        async with holding({"s": spec(server, auth)}, files(tmp_path / "c")) as (host, events):
            for _ in range(3):
                got = await asyncio.gather(
                    outcome(host), outcome(host, "s__effect", name="e"), outcome(host, "s__add", a=1, b=2)
                )
                assert isinstance(got[0], NeedsLogin) and (got[0].reason, got[0].sent) == ("scope", False)
                assert "b" in str(got[0]) and got[0].fix
                assert not isinstance(got[1], MooringsError) and got[2] == "3"
            assert events.states("s") == ["connecting", "ready"]
            assert not server.grants("refresh_token")
            assert server.effects["tool:echo"] == 0


async def test_f11_9_a_ceiling() -> None:
    """F11.9: with ``auth.scope_ceiling`` nobody is asked for more than is configured."""
    async with AuthFaults(needs={"echo": "b"}) as server:
        person = Person()
        auth = AuthSettings(scopes=("a",), scope_ceiling=True)
        async with holding({"s": spec(server, auth)}, browser=person) as (host, _):
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and error.reason == "scope" and "scope_ceiling" in str(error)
            assert await outcome(host, "s__add", a=1, b=2) == "3" and len(person.urls) == 1


# --- F11.10 to F11.15: servers in all their ways ------------------------------------------------------------------


@pytest.mark.parametrize(
    "challenges",
    [
        ['Basic realm="x, y"', 'Bearer scope="a b", resource_metadata="{prm}"'],
        ['Basic realm="x, y", Bearer realm=x ,  scope = "a b" , resource_metadata = "{prm}"'],
        ['bearer Scope="a b", RESOURCE_METADATA="{prm}"'],
        ['Negotiate abc==, Bearer scope="a b",,resource_metadata={prm}'],
    ],
)
async def test_f11_10_challenges_as_servers_write_them(challenges: list[str]) -> None:
    """F11.10: the Bearer parameters are found, wherever they stand: the metadata is nowhere else."""
    async with AuthFaults(
        prm=[], challenges=[each.replace("{prm}", "{origin}/meta") for each in challenges]
    ) as server:
        document = '{"resource": "{resource}", "authorization_servers": ["{issuer}"]}'
        server.set(on={"/meta": f"json_text:{document}"})
        await login(server)
        assert asked(server)[0]["scope"] == "a b"


async def test_f11_11_a_server_that_refuses_resource() -> None:
    """F11.11: the error names the setting; with it the login works, and its refreshes leave it out, too."""
    script: Json = {"resource": "refused", "prm_fields": {"scopes_supported": ["a"]}}
    async with AuthFaults(**script) as server:
        _, error = await refusal(server)
        assert isinstance(error, NeedsLogin) and 'auth.resource = "off"' in str(error)
        assert asked(server)[0]["resource"] == server.resource  # as it is, without a slash added
    async with AuthFaults(**script) as server:
        person = Person()
        async with holding({"s": spec(server, AuthSettings(resource="off"))}, browser=person) as (host, _):
            server.expire()
            assert await outcome(host) == "x"
        assert "resource" not in asked(server)[0]
        assert [form.get("resource") for form in server.grants()] == [None, None]


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_f11_12_a_strict_token_endpoint(method: str, tmp_path: Path) -> None:
    """F11.12: exactly one method, as the metadata says, for the code and for refreshes, after a restart too."""
    async with AuthFaults(
        metadata={"token_endpoint_auth_methods_supported": [method]}, register_method=method
    ) as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            server.expire()
            assert await outcome(host) == "x"
        assert len(server.grants()) == 2 and not server.violations
        for seen, form in zip(server.at("token"), server.grants(), strict=True):
            assert ("authorization" in seen.headers) is (method == "client_secret_basic")
            assert ("client_secret" in form) is (method == "client_secret_post")
            assert ("client_id" in form) is (method != "client_secret_basic")


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post", None])
async def test_f11_13_the_registration_answers_oddly(method: str | None, tmp_path: Path) -> None:
    """F11.13: the method that came back is used, or what fits the secret where none came back."""
    fields: Json = {"client_secret_expires_at": None}
    if method is None:
        fields |= {
            "token_endpoint_auth_method": None,
            "client_secret": "a-secret+/=",
            "registration_client_uri": None,
        }
    async with AuthFaults(register_method=method, register_fields=fields) as server:
        person = Person()
        async with holding({"s": spec(server)}, browser=person, ready=False) as (host, _):
            if method is not None:
                assert await outcome(host) == "x"
        if method is None:
            # What the server holds such a client to be is not known here; one method is used, and the secret sent.
            (seen,), (form,) = server.at("token"), server.grants()
            assert ("authorization" in seen.headers) != ("client_secret" in form)
        assert not server.violations


async def test_f11_13_a_method_without_its_secret() -> None:
    """F11.13: typed at once, before a person is sent to a browser."""
    async with AuthFaults(
        register_method="client_secret_basic", register_fields={"client_secret": None}
    ) as server:
        state, error = await refusal(server)
        assert state == "needs_client" and isinstance(error, NeedsLogin) and error.reason == "client"
        assert "secret" in str(error) and not server.at("authorize")


async def test_f11_13_a_secret_that_ran_out(tmp_path: Path) -> None:
    """F11.13: registered anew before it is used."""
    async with AuthFaults(register_method="client_secret_basic") as server:
        await logged_in(server, tmp_path / "c")
        store = FileStore(tmp_path / "c")
        for each in await store.keys():
            if each.about.get("kind") == "registration":
                data = await store.load(each.key)
                assert data is not None
                over = msgspec.structs.replace(
                    decode_registration(data), client_secret_expires_at=time.time() - 1
                )
                async with store.lock(each.key, asyncio.get_running_loop().time() + 10) as lease:
                    await store.save(each.key, encode_registration(over), lease, about=each.about)
        await store.aclose()
        server.end(server.families[0])
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person) as (host, _):
            assert await outcome(host) == "x"
        assert len(server.at("register")) == 2 and len(person.urls) == 1
        assert {each["client_id"] for each in asked(server)} == set(server.clients)


async def test_f11_14_the_resource_names_another_issuer(tmp_path: Path) -> None:
    """F11.14: a registration of its own there; the old credential goes nowhere else, and is not deleted."""
    async with AuthFaults() as new, AuthFaults() as server:
        old = await logged_in(server, tmp_path / "c")
        server.issued_by = new
        server.set(servers=[new.issuer])
        server.requests.clear()
        person = Person()
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=person, ready=False) as (
            host,
            _,
        ):
            assert await outcome(host) == "x"
        assert (
            len(new.at("register")) == 1 and len(person.urls) == 1 and person.urls[0].startswith(new.issuer)
        )
        secrets = [old.access_token.reveal(), old.refresh_token.reveal() if old.refresh_token else ""]
        sent = [f"{seen.path} {seen.headers} {seen.body!r}" for seen in new.requests]
        assert not [each for each in sent for secret in secrets if secret in each]


async def test_f11_14_two_servers_under_one_issuer(tmp_path: Path) -> None:
    """F11.14: two resources, one registration, two tokens that never cross, also where both are renewed."""
    async with AuthFaults() as issuer:
        others = {"trusts": issuer, "servers": [issuer.issuer], "documents": []}
        async with AuthFaults(**others) as a, AuthFaults(**others) as b:
            person = Person()
            both = {"a": spec(a), "b": spec(b)}
            async with holding(both, files(tmp_path / "c"), browser=person) as (host, _):
                for turn in range(2):
                    for name in both:
                        assert await outcome(host, f"{name}__echo") == "x"
                    if not turn:
                        issuer.expire()
            assert len(issuer.at("register")) == 1 and len(person.urls) == 2
            assert not set(bearers(a)) & set(bearers(b))
            for server in (a, b):
                held = {
                    issuer.access[token.removeprefix("Bearer ")].resource for token in bearers(server)[-1:]
                }
                assert held == {server.resource}
            assert {form["resource"] for form in issuer.grants()} == {a.resource, b.resource}


async def test_f11_15_token_answers_as_forms_and_errors_in_a_200(tmp_path: Path) -> None:
    """F11.15: a form is read by its content type; an error in a 200 is that error."""
    async with AuthFaults(on={"token": "form"}) as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            server.expire()
            assert await outcome(host) == "x"
            server.expire()
            server.set(on={"token": "refuse:invalid_grant:200"})
            error = await outcome(host)
            assert (
                isinstance(error, NeedsLogin) and error.reason == "revoked" and "invalid_grant" in str(error)
            )
            await events.seen("s", "needs_auth")
