"""Class 16 of the field, where it is about OAuth: where secrets go, and where they are not seen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from moorings import (
    AsyncHost,
    AuthSettings,
    CredentialSettings,
    LoginPrompt,
    MooringsError,
    NeedsLogin,
    NotSent,
    login,
)
from moorings.auth.dpop import new_key
from tests.auth.host_kit import (
    BOUNDS,
    MEMORY,
    Person,
    files,
    holding,
    logged_in,
    outcome,
    spec,
    stored,
)
from tests.auth.login_kit import Someone, follow
from tests.faults.auth_server import AuthFaults, consent, form_of
from tests.host.kit import Events
from tests.secretgate import spelt

REFRESH = "token:refresh_token"
CODE = "token:authorization_code"


# --- F16.1 to F16.4: where we go -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "https://169.254.169.254",
        "https://10.1.2.3",
        "https://[fd00::1]",
        "https://[::ffff:10.1.2.3]",
        "https://[64:ff9b::a01:203]",
        "https://100.64.0.1",
        "http://example.com",
    ],
)
async def test_f16_1_an_authorization_server_inside(place: str) -> None:
    """F16.1: refused before connecting, typed, and nobody is sent there."""
    async with AuthFaults(servers=[place]) as server:
        person = Person()
        began = time.monotonic()
        async with holding({"s": spec(server)}, browser=person, ready=False) as (host, events):
            error = await outcome(host)
            assert isinstance(error, NeedsLogin) and error.reason == "server"
            await events.seen("s", "needs_auth")
        assert time.monotonic() - began < 10.0 and not person.urls


@pytest.mark.parametrize("field", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
async def test_f16_1_endpoints_inside(field: str) -> None:
    """F16.1: the same for each endpoint of a server that is outside itself."""
    async with AuthFaults(metadata={field: "https://10.1.2.3/x"}) as server:
        person = Person()
        async with holding({"s": spec(server)}, browser=person, ready=False) as (host, _):
            error = await outcome(host)
            assert isinstance(error, MooringsError), error
            assert not server.grants()
        # A person's own browser goes where it can; what we ask ourselves does not go there.
        assert not person.urls or field != "registration_endpoint"


@pytest.mark.parametrize("endpoint", [CODE, REFRESH, "register"])
@pytest.mark.parametrize("status", [302, 307, 308])
async def test_f16_3_a_redirect_of_an_endpoint(status: int, endpoint: str, tmp_path: Path) -> None:
    """F16.3: not followed, so that secrets go nowhere; a typed error."""
    async with AuthFaults() as thief, AuthFaults(register_method="client_secret_post") as server:
        if endpoint == REFRESH:
            await logged_in(server, tmp_path / "c")
            server.expire()
        server.set(on={endpoint: f"redirect:{status}:{thief.origin}/token"})
        async with holding({"s": spec(server)}, files(tmp_path / "c"), browser=Person(), ready=False) as (
            host,
            _,
        ):
            error = await outcome(host)
            assert isinstance(error, MooringsError)
        assert not thief.requests


@pytest.mark.parametrize("what", ["server/discover", "initialize", "tools/call", "GET"])
@pytest.mark.parametrize("code", [301, 307, 308])
async def test_f16_3_the_server_leads_elsewhere(code: int, what: str, tmp_path: Path) -> None:
    """F16.3: the token goes to its own origin alone."""
    async with AuthFaults(open=True) as thief, AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.set(on={what: f"redirect:{code}:{thief.origin}/mcp"})
        async with holding({"s": spec(server)}, files(tmp_path / "c"), ready=False) as (host, _):
            got = await outcome(host)
            # The stream is optional, and a server without the probe is spoken to in the older way.
            assert (got == "x") is (what in ("GET", "server/discover"))
        assert not thief.requests


@pytest.mark.parametrize("where", ["/sse", "/messages"])
async def test_f16_3_an_event_stream_that_leads_elsewhere(where: str, tmp_path: Path) -> None:
    """F16.3: the same for HTTP+SSE, by a redirect and by the place that it names for messages."""
    async with AuthFaults(open=True, era="sse") as thief, AuthFaults(era="sse") as server:
        await logged_in(server, tmp_path / "c", transport="sse")
        if where == "/sse":
            server.set(on={"/sse": f"redirect:307:{thief.origin}/sse"})
        else:
            server.set(endpoint=f"to:{thief.origin}/messages?session=1")
        async with holding({"s": spec(server, transport="sse")}, files(tmp_path / "c"), ready=False) as (
            host,
            _,
        ):
            assert isinstance(await outcome(host), NotSent)
        assert not thief.requests


@pytest.mark.parametrize(
    "place",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "http://evil.example/authorize",
        "https://u:p@x.example/",
    ],
)
async def test_f16_4_an_authorization_url_that_is_none(place: str) -> None:
    """F16.4: refused, and the browser function is not called."""
    async with AuthFaults(metadata={"authorization_endpoint": place}) as server:
        person = Person()
        async with holding({"s": spec(server)}, browser=person, ready=False) as (host, events):
            assert isinstance(await outcome(host), NeedsLogin)
            await events.seen("s", "needs_auth")
        assert not person.urls


ODD = "{issuer}/authorize?a=\"&calc;'$(x)`y`\x1b[2J"
NO_PART = "\"'`<> \x1b$;()|\\"
"""Of a URL, as a shell or a terminal would read them."""


async def test_f16_4_an_authorization_url_with_more_than_it_should_have() -> None:
    """F16.4: one text, with nothing in it that a shell or a terminal would read."""
    async with AuthFaults(metadata={"authorization_endpoint": ODD}) as server:
        seen: list[str] = []

        async def look(name: str, url: str) -> str:
            seen.append(url)
            return await consent(url)

        async with holding({"s": spec(server)}, browser=look, ready=False) as (host, _):
            await outcome(host)
        for url in seen:
            assert url.startswith(server.issuer) and not set(url) & set(NO_PART)


# --- F16.5: what is not seen ---------------------------------------------------------------------------------------

SHORTEST = 12
"""Characters of what is looked for; shorter values stand in other words."""
NOT_SECRET = {"client_id", "redirect_uri", "scope", "resource", "grant_type", "client_assertion_type", "audience",
              "subject_token_type", "requested_token_type", "assertion_type", "token_type_hint"}  # fmt: skip


class Known(AuthFaults):
    """One that remembers each secret that it gave or got."""

    def __init__(self, **script: Any) -> None:
        self.given: set[str] = set()
        super().__init__(**script)

    def fresh(self, kind: str) -> str:
        made = super().fresh(kind)
        if kind != "client":
            self.given.add(made)
        return made

    def secrets(self) -> set[str]:
        found = set(self.given) | {
            each["client_secret"] for each in self.clients.values() if "client_secret" in each
        }
        for seen in self.requests:
            _, _, login = seen.headers.get("authorization", "").partition(" ")
            found |= {login, seen.headers.get("dpop", "")}
            found |= {value for name, value in form_of(seen).items() if name not in NOT_SECRET}
            found |= {
                value
                for name, value in parse_qsl(urlsplit(seen.path).query)
                if name in ("code", "state", "code_challenge")
            }
        return found


def told(value: Any) -> str:
    """All that can be read in a value: as text, as repr, with its parts and causes, its traceback, its crash dump."""
    parts = [str(value), repr(value)]
    if isinstance(value, BaseException):
        crash = traceback.TracebackException.from_exception(value, capture_locals=True)
        parts += ["".join(traceback.format_exception(value)), "".join(crash.format()), repr(vars(value))]
    with contextlib.suppress(TypeError, ValueError):
        parts.append(json.dumps(value, default=repr))
    return "\n".join(parts)


def objects() -> Iterator[Any]:
    """Every object of ours that lives."""
    for each in gc.get_objects():
        if str(type(each).__module__).startswith("moorings.") and not isinstance(each, type):
            yield each


class Heard:
    """Everything that people may read of a run."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        for name in ("aiohttp", "asyncio", "moorings"):
            caplog.set_level(logging.DEBUG, name)
        self._caplog = caplog
        self.parts: list[str] = []

    def add(self, what: str, value: Any) -> None:
        self.parts.append(f"{what}: {told(value)}")

    async def look(self, host: AsyncHost, events: Events) -> None:
        """At a host that is open."""
        self.add("host", host)
        for status in host.status().values():
            self.add("status", status)
            self.add("last error", status.last_error)
        self.add("tasks", [repr(task) for task in asyncio.all_tasks()])
        self.add("threads", [repr(thread) for thread in threading.enumerate()])
        self.add("events", events.all)
        for each in objects():
            self.parts.append(f"object {type(each).__qualname__}: {each!r}")

    def text(self, stderr: str, folder: Path) -> list[str]:
        logs = [
            f"log: {self._caplog.handler.format(record)} {record.args!r}" for record in self._caplog.records
        ]
        kept = [
            f"file {path.name}: {path.name} {path.read_text('utf-8', 'replace')}"
            for path in folder.rglob("*")
            if path.is_file() and "credentials" not in path.parts
        ]
        return [*self.parts, *logs, *kept, f"stderr: {stderr}"]


def found(parts: list[str], secrets: set[str]) -> list[str]:
    """Where a secret is seen, with the secret itself cut short."""
    seen = []
    for secret in secrets:
        if len(secret) < SHORTEST:
            continue
        for form in spelt(secret):
            seen += [f"{form[:14]}… in {part[:60]}" for part in parts if form in part]
    return seen


Scenario = Callable[["Run"], Awaitable[None]]


class Run:
    """What a scenario plays with."""

    def __init__(self, heard: Heard, tmp_path: Path) -> None:
        self.heard = heard
        self.state = tmp_path / "state"
        self.secrets: set[str] = set()

    @property
    def folder(self) -> Path:
        return self.state / "credentials"

    @contextlib.asynccontextmanager
    async def server(self, **script: Any) -> AsyncIterator[Known]:
        async with Known(**script) as server:
            try:
                yield server
            finally:
                self.secrets |= server.secrets()

    async def login(self, server: AuthFaults, someone: Someone, **options: Any) -> None:
        """A login that somebody asked for, and what the browser shows at its end."""
        try:
            self.heard.add(
                "login",
                await login(
                    spec(server), name="s", on_login_url=someone, state_dir=self.state, force=True, **options
                ),
            )
        except MooringsError as error:
            self.heard.add("login", error)
        for prompt in someone.prompts:
            self.heard.add("prompt", prompt)
        for page in await someone.every_page():
            self.heard.add("page", page)

    async def host(
        self,
        server: AuthFaults,
        auth: AuthSettings | bool = True,
        *,
        browser: Any = None,
        on_login_url: Any = None,
        calls: int = 2,
        before: Callable[[], None] | None = None,
        credentials: CredentialSettings | None = None,
        **fields: Any,
    ) -> None:
        """A host that starts, calls, and closes; everything is listened to."""
        events = Events()
        it = spec(server, auth, **fields)
        self.heard.add("spec", it)
        self.heard.add("spec", it.__rich_repr__())
        async with AsyncHost(
            {"s": it},
            state_dir=self.state,
            browser=browser,
            on_login_url=on_login_url,
            on_event=events,
            credentials=credentials,
        ) as host:
            self.heard.add("ready", await host.wait_ready(20))
            if before is not None:
                before()
            for _ in range(calls):
                self.heard.add("call", await outcome(host))
            with contextlib.suppress(MooringsError):
                self.heard.add("tools", await host.tools(servers=["s"]))
            await self.heard.look(host, events)
            self.heard.add("close", await host.close(5.0))
        self.heard.add("events", events.all)

    async def logged_in(self, server: AuthFaults, auth: AuthSettings | bool = True, **fields: Any) -> None:
        await self.host(server, auth, browser=Person(), calls=1, **fields)
        for each in await stored(self.folder):
            secrets = [each.access_token, each.refresh_token, each.registration.client_secret, each.dpop_jwk]
            self.secrets |= {secret.reveal() for secret in secrets if secret}


async def a_whole_life(run: Run) -> None:
    async with run.server(register_method="client_secret_basic") as server:
        await run.logged_in(server)
        await run.host(server, before=server.expire)
        await run.host(server, before=lambda: server.end(server.families[0]))


async def passing_failures(run: Run) -> None:
    async with run.server() as server:
        await run.logged_in(server)
        for word in ("status:503", "die_after", "html"):
            server.set(on={REFRESH: word})
            server.expire()
            await run.host(server, bounds=msgspec.structs.replace(BOUNDS, auth=0.5))


async def a_client_without_a_person(run: Run) -> None:
    for method in ("client_secret_basic", "client_secret_post"):
        secret = "s3cret+of/the=machine%&ü-" + method
        client = {"client_secret": secret, "token_endpoint_auth_method": method}
        run.secrets.add(secret)
        async with run.server(clients={"machine": client}) as server:
            auth = AuthSettings(
                client_id="machine",
                client_secret=secret,
                auth_method=method,
                flow="client_credentials",
                issuer=server.issuer,
            )
            run.heard.add("settings", auth)
            await run.host(server, auth, before=server.expire, credentials=MEMORY)
            server.clients.clear()
            await run.host(server, auth, before=server.expire, credentials=MEMORY)
            for word in ("repeat:400", "repeat:401:page", "repeat:500"):
                server.set(on={"token": word})
                await run.host(server, auth, credentials=MEMORY)


async def a_client_with_a_key(run: Run) -> None:
    key = new_key().reveal()
    run.secrets |= {key, json.loads(key)["d"]}
    client = {"token_endpoint_auth_method": "private_key_jwt"}
    async with run.server(clients={"machine": client}) as server:
        auth = AuthSettings(
            client_id="machine",
            auth_method="private_key_jwt",
            private_key=key,
            flow="client_credentials",
            issuer=server.issuer,
        )
        run.heard.add("settings", auth)
        await run.host(server, auth, before=server.expire, credentials=MEMORY)
        server.set(on={"token": "repeat:400"})
        await run.host(server, auth, credentials=MEMORY)


async def a_workload(run: Run) -> None:
    assertion = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3b3JrbG9hZCJ9.c2lnbmF0dXJl"
    run.secrets.add(assertion)
    client = {"token_endpoint_auth_method": "none"}
    async with run.server(clients={"load": client}) as server:
        auth = AuthSettings(client_id="load", flow="workload", assertion=assertion, issuer=server.issuer)
        run.heard.add("settings", auth)
        await run.host(server, auth, before=server.expire, credentials=MEMORY)
        server.set(on={"token": "repeat:400:page"})
        await run.host(server, auth, credentials=MEMORY)

    def raises() -> str:
        raise RuntimeError(assertion)

    async with run.server(clients={"load": client}) as server:
        auth = AuthSettings(client_id="load", flow="workload", assertion=raises, issuer=server.issuer)
        await run.host(server, auth, credentials=MEMORY)


async def a_company(run: Run) -> None:
    id_token = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm5hIn0.aWR0b2tlbg"
    run.secrets |= {id_token, "secret-at-the-company"}
    idp = {"client_secret": "secret-at-the-company", "token_endpoint_auth_method": "client_secret_basic"}
    clients = {"us": {"token_endpoint_auth_method": "none"}}
    async with run.server(clients={"us-there": idp}) as company, run.server(clients=clients) as server:
        auth = AuthSettings(
            client_id="us", flow="enterprise", issuer=server.issuer, idp_issuer=company.issuer,
            idp_client_id="us-there", idp_client_secret="secret-at-the-company", idp_token=id_token,
        )  # fmt: skip
        run.heard.add("settings", auth)
        await run.host(server, auth, before=server.expire, credentials=MEMORY)
        for at, word in ((company, "repeat:400"), (server, "repeat:401:challenge")):
            at.set(on={"token": word})
            await run.host(server, auth, credentials=MEMORY)


async def bound_to_a_key(run: Run) -> None:
    async with run.server(token_fields={"token_type": "DPoP"}) as server:
        await run.host(server, AuthSettings(dpop="on"), browser=Person())
        for each in await stored(run.folder):
            assert each.dpop_jwk is not None
            run.secrets |= {each.dpop_jwk.reveal(), json.loads(each.dpop_jwk.reveal())["d"]}


async def browsers_that_fail(run: Run) -> None:
    async def raises(name: str, url: str) -> str:
        raise RuntimeError(await consent(url))

    async def another_state(name: str, url: str) -> str:
        back = await consent(url)
        return back.replace("state=", "state=x")

    async def nonsense(name: str, url: str) -> str:
        return "nothing of it: " + (await consent(url)).replace("?", "!")

    for browser in (raises, another_state, nonsense):
        async with run.server() as server:
            await run.host(server, browser=browser)
    async with run.server(deny="access_denied") as server:
        await run.host(server, browser=Person())
    async with run.server(iss="https://evil.example") as server:
        await run.host(server, browser=Person())


async def logins_with_a_listener(run: Run) -> None:
    """Pages, pastes, refusals, a code for a device; asked for, and by a host."""
    async with run.server(metadata={"device_authorization_endpoint": "{origin}/device"}) as server:
        stray = Someone()

        async def astray(prompt: LoginPrompt) -> str | None:
            back = await consent(prompt.url)
            if not prompt.problem:
                return back.replace("state=", "state=x")
            run.heard.add("problem", prompt.problem)
            stray.open(follow(back))
            return None

        async def raises(prompt: LoginPrompt) -> str | None:
            raise RuntimeError(await consent(prompt.url))

        stray._act = astray
        for someone, options in (
            (Someone(), {}),
            (stray, {}),
            (Someone(raises), {}),
            (Someone(never), {"flow": "device"}),
        ):
            await run.login(server, someone, **options)
        for word in ("repeat:400", "repeat:500:page", "refuse:invalid_grant"):
            server.set(on={CODE: word})
            await run.login(server, Someone())
        server.set(on={}, deny="access_denied")
        await run.login(server, Someone())
        server.set(deny=None)
        await run.host(server, on_login_url=Someone())


async def never(prompt: LoginPrompt) -> str | None:
    await asyncio.Event().wait()
    return None


async def a_damaged_file(run: Run) -> None:
    async with run.server() as server:
        await run.logged_in(server)
        for file in list(run.folder.glob("*.credential")):
            whole = file.read_bytes()
            for bad in (
                whole[:-30],
                whole + b"}",
                whole.replace(b"access-", b"\xffccess-"),
                whole.split(b"\n", 1)[1],
            ):
                file.write_bytes(bad)
                await run.host(server)
            file.write_bytes(whole)


async def registrations_that_fail(run: Run) -> None:
    odd: list[dict[str, Any]] = [
        {"token_endpoint_auth_method": "private_key_jwt"},
        {"token_endpoint_auth_method": "none"},
        {"client_id": 7},
        {"client_secret_expires_at": 1},
        {"registration_client_uri": "http://evil.example/"},
    ]
    for fields in odd:
        async with run.server(register_method="client_secret_basic", register_fields=fields) as server:
            await run.host(server, browser=Person())


def repeats(endpoint: str, word: str) -> Scenario:
    async def scenario(run: Run) -> None:
        async with run.server(register_method="client_secret_post") as server:
            if endpoint == CODE:
                server.set(on={endpoint: word})
                await run.host(server, browser=Person())
                return
            await run.logged_in(server)

            def begin() -> None:
                if endpoint == REFRESH:
                    server.expire()
                server.set(on={endpoint: word})

            await run.host(server, before=begin)
            await run.host(server)

    return scenario


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        a_whole_life,
        passing_failures,
        a_client_without_a_person,
        a_client_with_a_key,
        a_workload,
        a_company,
        bound_to_a_key,
        browsers_that_fail,
        logins_with_a_listener,
        a_damaged_file,
        registrations_that_fail,
    )
}
SCENARIOS |= {
    f"{endpoint} answers {word}": repeats(endpoint, word)
    for endpoint in (CODE, REFRESH, "tools/call", "mcp")
    for word in (
        "repeat:400",
        "repeat:401",
        "repeat:500:page",
        "repeat:401:challenge",
        "repeat:403:challenge",
    )
}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_f16_5_no_secret_of_oauth_is_seen(
    scenario: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """F16.5: every token, code, verifier, secret, assertion and key that a server gave or got, looked for in the logs
    at DEBUG, in errors with their causes and tracebacks, in status, events and reports, in the repr of every object of
    ours, in the files of the state folder but for the store itself, and on stderr."""
    run = Run(Heard(caplog), tmp_path)
    await SCENARIOS[scenario](run)
    captured = capfd.readouterr()
    parts = run.heard.text(captured.err + captured.out, run.state)
    assert len(run.secrets) > 1 and any("log:" in part for part in parts)
    assert found(parts, run.secrets) == []


def test_f16_5_the_search_itself_finds(caplog: pytest.LogCaptureFixture) -> None:
    """F16.5: what is planted is found, in each spelling: else the tests above would show nothing."""
    secret = "s3cret+of/the=machine%&ü"
    assert found([f"x {form} y" for form in spelt(secret)], {secret}) != []
    heard = Heard(caplog)
    logging.getLogger("moorings").debug("it is %s", secret)
    heard.add("error", RuntimeError(secret))
    assert len(found(heard.text("", Path("/nonexistent")), {secret})) >= 2
