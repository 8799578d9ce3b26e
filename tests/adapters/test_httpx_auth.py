"""``MooringsAuth`` in clients of httpx and httpx2: what they get, what goes wrong, and what is left (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
import msgspec
import pytest

from moorings import (
    AuthSettings,
    CredentialSettings,
    MisuseError,
    MooringsError,
    NeedsLogin,
    NotSent,
    Refused,
    WrongLoopError,
)
from moorings.adapters.httpx_auth import MooringsAuth
from moorings.auth.model import Credential, decode_credential, encode_credential
from moorings.auth.renewal import about
from moorings.store.files import FileStore
from tests.adapters.httpx_kit import LIBRARIES, TOLD, ByHand, call, logged_in, made, message, request, text_of
from tests.faults.auth_server import AuthFaults, claims_of, consent, in_thread
from tests.host.kit import child_environment

both = pytest.mark.parametrize("library", LIBRARIES)


class TimesOut(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc]
    """A transport whose first read takes too long."""

    def __init__(self, library: Any) -> None:
        self.library, self.left = library, 1
        self.inner = library.AsyncHTTPTransport()

    async def handle_async_request(self, request: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.library.ReadTimeout("no answer", request=request)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


class TimesOutBlocking(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc]
    """The same for a blocking client."""

    def __init__(self, library: Any) -> None:
        self.library, self.left = library, 1
        self.inner = library.HTTPTransport()

    def handle_request(self, request: Any) -> Any:
        if self.left:
            self.left -= 1
            raise self.library.ReadTimeout("no answer", request=request)
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()


@both
async def test_a_login_then_calls_then_a_refresh(library: Any, tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server, made(server, tmp_path) as auth:
        assert isinstance(auth, library.Auth)
        async with library.AsyncClient(auth=auth) as client:
            assert [await call(client, server, text) for text in "ab"] == ["a", "b"]
            server.expire()
            assert await call(client, server, "c") == "c"
        assert len(server.grants("authorization_code")) == 1
        assert len(server.grants("refresh_token")) == 1


@both
def test_the_same_in_blocking_clients_of_several_threads(library: Any, tmp_path: Path) -> None:
    with in_thread(session=False) as server, made(server, tmp_path) as auth:
        got: dict[int, str] = {}

        def use(number: int) -> None:
            with library.Client(auth=auth, timeout=30) as client:
                answer = client.post(server.url, json=message(str(number)), headers=TOLD)
                got[number] = text_of(answer)

        for _ in range(2):
            threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert got == {number: str(number) for number in range(4)}
            got.clear()
            server.expire()
        assert len(server.grants("authorization_code")) == 1
        assert len(server.grants("refresh_token")) == 1


@both
async def test_a_read_that_times_out_reaches_the_caller_and_the_same_auth_goes_on(
    library: Any, tmp_path: Path
) -> None:
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)
        async with (
            made(server, tmp_path) as auth,
            library.AsyncClient(auth=auth, transport=TimesOut(library)) as client,
        ):
            with pytest.raises(library.ReadTimeout, match="no answer"):
                await call(client, server)
            assert await call(client, server) == "x"


@both
def test_a_blocking_read_that_times_out(library: Any, tmp_path: Path) -> None:
    with in_thread(session=False) as server, made(server, tmp_path) as auth:
        with library.Client(auth=auth, transport=TimesOutBlocking(library)) as client:
            with pytest.raises(library.ReadTimeout, match="no answer"):
                client.post(server.url, json=message(), headers=TOLD)
            assert text_of(client.post(server.url, json=message(), headers=TOLD)) == "x"


async def test_a_request_that_is_sent_twice_bears_the_token_of_each_time(tmp_path: Path) -> None:
    """What the first time left on it is ours, and no login of the user's own."""
    async with AuthFaults(session=False) as server, made(server, tmp_path) as auth:
        async with httpx.AsyncClient(auth=auth) as client:
            same = request(server)
            assert text_of(await client.send(same)) == "x"
            server.expire()
            assert text_of(await client.send(same)) == "x"
        assert len(server.grants("refresh_token")) == 1


async def test_a_body_that_is_a_stream_is_sent_again_whole(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)

        async def parts() -> Any:
            for part in (
                b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params":',
                b' {"name": "add",',
            ):
                yield part
            yield b' "arguments": {"a": 1, "b": 2}}}'

        async with made(server, tmp_path) as auth, httpx.AsyncClient(auth=auth) as client:
            answer = await client.post(
                server.url, content=parts(), headers={**TOLD, "Content-Type": "application/json"}
            )
            assert text_of(answer) == "3"
        assert [seen.status for seen in server.of("tools/call", tool="add")] == [401, 200]


async def test_a_login_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server, made(server, tmp_path) as auth:
        async with httpx.AsyncClient(auth=auth) as client:
            own = {**TOLD, "Authorization": "Bearer my-own"}
            answer = await client.post(server.url, json=message(), headers=own)
            assert answer.status_code == 401
        assert [seen.headers["authorization"] for seen in server.requests] == ["Bearer my-own"]


async def test_another_origin_gets_no_token_and_starts_no_login(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server, AuthFaults(session=False) as other:
        await logged_in(server, tmp_path)
        async with (
            made(server, tmp_path) as auth,
            httpx.AsyncClient(auth=auth, follow_redirects=True) as client,
        ):
            assert (await client.post(other.url, json=message(), headers=TOLD)).status_code == 401
            server.set(on={"mcp": ["redirect:307:" + other.url, "ok"]})
            assert (await client.post(server.url, json=message(), headers=TOLD)).status_code == 401
        assert [urlsplit(seen.path).path for seen in other.requests] == ["/mcp", "/mcp"]
        assert not [seen for seen in other.requests if "authorization" in seen.headers]
        assert not server.grants("refresh_token")


@both
async def test_without_a_person_it_says_what_is_needed(library: Any, tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        async with (
            made(server, tmp_path, browser=None) as auth,
            library.AsyncClient(auth=auth) as client,
        ):
            with pytest.raises(NeedsLogin, match="browser=") as needed:
                await call(client, server)
        error = needed.value
        assert (error.reason, error.sent, error.tool) == ("login", False, "tools/call echo")
        assert error.server == urlsplit(server.url).netloc
        assert error.http is not None and error.http.status == 401 and error.http.challenges
        assert not server.at("register") and not server.grants()


async def test_a_login_that_failed_says_how_it_is_shown_again(tmp_path: Path) -> None:
    async def astray(url: str) -> str:
        return "what somebody pasted"

    async with AuthFaults(session=False) as server:
        async with made(server, tmp_path, browser=astray) as auth, httpx.AsyncClient(auth=auth) as client:
            with pytest.raises(NeedsLogin, match="is not the end of this login") as needed:
                await call(client, server)
            fix = needed.value.fix or ""
            assert "a request shows the login again" in fix and "browser=" not in fix


def test_a_blocking_client_is_told_the_same(tmp_path: Path) -> None:
    with in_thread(session=False) as server, made(server, tmp_path, browser=None) as auth:
        with httpx.Client(auth=auth) as client, pytest.raises(NeedsLogin, match="browser="):
            client.post(server.url, json=message(), headers=TOLD)


async def test_what_passes_is_no_login_and_keeps_it(tmp_path: Path) -> None:
    async with AuthFaults(session=False, on={"token:refresh_token": ["status:503", "ok"]}) as server:
        await logged_in(server, tmp_path)
        async with made(server, tmp_path) as auth, httpx.AsyncClient(auth=auth) as client:
            with pytest.raises(Refused, match="503") as refused:
                await call(client, server)
            assert not isinstance(refused.value, NeedsLogin)
            assert not refused.value.sent
        # Later, by whoever comes then; the pause (at most 1 s) is that of the credential, whoever met it.
        async with (
            asyncio.timeout(10),
            made(server, tmp_path) as auth,
            httpx.AsyncClient(auth=auth) as client,
        ):
            while True:
                try:
                    assert await call(client, server) == "x"
                    break
                except Refused:
                    await asyncio.sleep(0.05)  # the pause of the broker is a matter of the clock, too
        assert len(server.grants("authorization_code")) == 1


async def test_an_ended_token_that_cannot_be_renewed_now_is_not_sent(tmp_path: Path) -> None:
    # The server would take it for longer than it says, so that a slow machine changes nothing.
    script = {"expires_in": 1, "lifetime": 3600, "on": {"token:refresh_token": "status:503"}}
    async with AuthFaults(session=False, **script) as server:
        async with made(server, tmp_path) as auth, httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
            calls = server.count("tools/call")
            async with asyncio.timeout(10):
                while auth._access.at_hand(ahead=False) is not None:
                    await asyncio.sleep(0.05)  # its end is a matter of the clock, and nobody tells of it
            with pytest.raises(NotSent, match="503"):
                await call(client, server)
            assert server.count("tools/call") == calls


async def test_no_token_in_time(tmp_path: Path) -> None:
    async with AuthFaults(session=False, on={"token:client_credentials": "hold"}) as server:
        auth = made(server, tmp_path, machine(server), browser=None, within=0.1)
        async with auth, httpx.AsyncClient(auth=auth) as client:
            with pytest.raises(Refused, match=r"within|in time|0\.1") as refused:
                await call(client, server)
            assert not refused.value.sent
        server.release("token:client_credentials")


def machine(server: AuthFaults, **more: Any) -> AuthSettings:
    """A client that is somebody by itself."""
    server.clients["machine"] = {
        "client_secret": "s3cret",
        "token_endpoint_auth_method": "client_secret_basic",
    }
    return AuthSettings(
        client_id="machine", client_secret="s3cret", flow="client_credentials", issuer=server.issuer, **more
    )


async def test_a_server_that_takes_no_token_is_asked_three_times(tmp_path: Path) -> None:
    """The last refusal is a response as any other."""
    async with AuthFaults(session=False, lifetime=0) as server:
        auth = made(server, tmp_path, machine(server), browser=None)
        async with auth, httpx.AsyncClient(auth=auth) as client:
            assert (await client.post(server.url, json=message(), headers=TOLD)).status_code == 401
        assert server.count("tools/call") == 3


async def test_more_scopes_for_one_operation(tmp_path: Path) -> None:
    asked: list[str] = []

    async with AuthFaults(session=False, needs={"effect": "write"}) as server:

        async def browser(url: str) -> str:
            asked.append(parse_qs(urlsplit(url).query).get("scope", [""])[0])
            return await consent(url)

        settings = AuthSettings(scopes=("read",))
        auth = made(server, tmp_path, settings, browser=browser)
        async with auth, httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
            body = message(tool="effect") | {"params": {"name": "effect", "arguments": {"name": "n"}}}
            assert (await client.post(server.url, json=body, headers=TOLD)).status_code == 200
        assert asked == ["read", "read write"]
        server.expire()
        # Nobody is there to be asked: that operation alone has none.
        server.set(needs={"effect": "more"})
        auth = made(server, tmp_path, settings, browser=None)
        async with auth, httpx.AsyncClient(auth=auth) as client:
            with pytest.raises(NeedsLogin) as needed:
                await client.post(server.url, json=body, headers=TOLD)
            assert (needed.value.reason, needed.value.tool) == ("scope", "tools/call effect")
            assert await call(client, server) == "x"


async def test_a_nonce_is_given_back_and_costs_no_token(tmp_path: Path) -> None:
    async with AuthFaults(session=False, token_fields={"token_type": "DPoP"}) as server:
        auth = made(server, tmp_path, machine(server, dpop="on"), browser=None)
        async with auth:
            flow = ByHand(auth, server)
            await flow.advance()
            await flow.advance()
            headers = {"DPoP-Nonce": "n-1", "WWW-Authenticate": 'DPoP error="use_dpop_nonce"'}
            for _ in range(2):  # the second time it is not new
                again = await flow.flow.asend(httpx.Response(401, request=flow.request, headers=headers))
                proof = claims_of(again.headers["DPoP"])
                assert again.headers["Authorization"].startswith("DPoP ")
                assert (proof["nonce"], proof["htm"], proof["htu"]) == ("n-1", "POST", server.url)
                if _ == 0:
                    assert len(server.grants()) == 1
            await flow.flow.aclose()


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_e_a_secret_that_was_registered_without_a_method(method: str, tmp_path: Path) -> None:
    """The server demands the secret: at the login, at a refresh, and at one by whoever reads it from the store."""
    script: dict[str, Any] = {
        "register_method": method,
        "metadata": {"token_endpoint_auth_methods_supported": [method]},
    }
    async with AuthFaults(session=False, **script) as server:
        server.set(register_fields={"token_endpoint_auth_method": None})
        keep_method(server, method)
        async with made(server, tmp_path) as auth, httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
            server.expire()
            assert await call(client, server) == "x"
        server.expire()
        async with made(server, tmp_path, browser=None) as auth, httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
        assert len(server.at("register")) == 1 and len(server.grants("refresh_token")) == 2
        assert not server.violations
        sent = [
            ("authorization" in seen.headers, b"client_secret=" in seen.body) for seen in server.at("token")
        ]
        assert sent == [(method == "client_secret_basic", method == "client_secret_post")] * 3


@pytest.mark.parametrize("said", [None, "none"])
@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_e_a_secret_that_lies_in_the_store_without_a_method(
    method: str, said: Any, tmp_path: Path
) -> None:
    """As another program, or an older release, may have left it: it is read as what it is, and written so."""
    script: dict[str, Any] = {
        "register_method": method,
        "metadata": {"token_endpoint_auth_methods_supported": [method]},
    }
    async with AuthFaults(session=False, **script) as server:
        await logged_in(server, tmp_path)
        for credential in await stored(tmp_path):
            client = msgspec.structs.replace(credential.registration, auth_method=said)
            await store(tmp_path, msgspec.structs.replace(credential, registration=client))
        async with made(server, tmp_path, browser=None) as auth, httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
        (credential,) = await stored(tmp_path)
        assert credential.registration.auth_method == method
        (refresh,) = [form for form in server.grants() if form["grant_type"] == "refresh_token"]
        assert ("client_secret" in refresh) == (method == "client_secret_post")
        assert not server.violations


async def stored(folder: Path) -> list[Credential]:
    """The credentials in a folder."""
    async with contextlib.aclosing(FileStore(folder / "logins")) as files:
        values = [await files.load(each.key) for each in await files.keys() if each.about.get("resource")]
    return [decode_credential(value) for value in values if value is not None]


async def store(folder: Path, credential: Credential) -> None:
    """Write one, as it is."""
    async with contextlib.aclosing(FileStore(folder / "logins")) as files:
        key = credential.key.digest()
        async with files.lock(key, asyncio.get_running_loop().time() + 10) as lease:
            await files.save(key, encode_credential(credential), lease, about=about(credential))


def keep_method(server: AuthFaults, method: str) -> None:
    """What the answer leaves out, the server still goes by."""
    register = server.serve_register

    def registered(exchange: Any) -> None:
        register(exchange)
        for client in server.clients.values():
            client["token_endpoint_auth_method"] = method

    server.serve_register = registered  # type: ignore[method-assign]


async def test_a_closed_one_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        auth = made(server, tmp_path)
        async with httpx.AsyncClient(auth=auth) as client:
            assert await call(client, server) == "x"
            await auth.aclose()
            await auth.aclose()
            with pytest.raises(MisuseError, match="closed"):
                await call(client, server)


async def test_who_waits_when_it_is_closed_is_told(tmp_path: Path) -> None:
    async with AuthFaults(session=False, on={"token:refresh_token": ["hold", "ok"]}) as server:
        await logged_in(server, tmp_path)
        auth = made(server, tmp_path)
        async with httpx.AsyncClient(auth=auth) as client:
            waiting = asyncio.create_task(call(client, server))
            await server.until(lambda _: server.grants("refresh_token"))
            closing = asyncio.create_task(auth.aclose())
            server.release("token:refresh_token")
            # It may have its token by then: what is under way is finished.
            try:
                assert await waiting == "x"
            except MooringsError as error:
                assert "closed" in str(error)
            await closing


async def test_a_loop_of_another_kind_is_told_at_once(tmp_path: Path) -> None:
    async with AuthFaults(session=False) as server:
        await logged_in(server, tmp_path)

        def elsewhere() -> None:
            """No asyncio loop runs here, as in one of trio's."""
            with made(server, tmp_path) as auth:
                flow = auth.async_auth_flow(request(server))
                with pytest.raises(WrongLoopError):
                    flow.__anext__().send(None)

        await asyncio.to_thread(elsewhere)


@pytest.mark.parametrize("url", ["ftp://mcp.example/mcp", "mcp.example", "https://", "https://a b/"])
def test_what_is_no_server(url: str) -> None:
    with pytest.raises(MisuseError):
        MooringsAuth(url)


def test_it_shows_no_secret_of_its_url() -> None:
    auth = MooringsAuth("https://me:word@mcp.example/k3y0123456789abcdefghij/mcp?key=v", state_dir=False)
    assert repr(auth) == "MooringsAuth('https://…@mcp.example/…/mcp?key=…')"


PROGRAM = """
import sys
import httpx
from moorings import AuthSettings, CredentialSettings
from moorings.adapters.httpx_auth import MooringsAuth
from moorings.auth.model import Credential, decode_credential, encode_credential
from moorings.auth.renewal import about
from moorings.store.files import FileStore

url, issuer, folder = sys.argv[1:]
auth = MooringsAuth(
    url,
    auth=AuthSettings(
        client_id="machine", client_secret="s3cret", flow="client_credentials", issuer=issuer
    ),
    credentials=CredentialSettings(store="file:" + folder),
)
BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "x"}}}

def call():
    with httpx.Client(auth=auth, timeout=30) as client:
        answer = client.post(url, json=BODY, headers={"Accept": "application/json, text/event-stream"})
        print(answer.status_code, flush=True)
"""

FORKED = """
import os
call()
child = os.fork()
if not child:
    call()
    auth.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
call()
"""


@pytest.mark.parametrize(("what", "answers"), [("call()", 1), (FORKED, 3)], ids=["unclosed", "forked"])
def test_a_program_that_never_closes_it_ends_in_silence(what: str, answers: int, tmp_path: Path) -> None:
    with in_thread(session=False) as server:
        machine(server)
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                PROGRAM + what,
                server.url,
                server.issuer,
                str(tmp_path / "s"),
            ],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["200"] * answers)
        # The child found the login of its parent in the store.
        assert len(server.grants("client_credentials")) == 1


async def test_logins_that_are_kept_in_memory_alone() -> None:
    async with AuthFaults(session=False) as server:
        for _ in range(2):
            auth = MooringsAuth(
                server.url, auth=machine(server), credentials=CredentialSettings(store="memory")
            )
            async with auth, httpx.AsyncClient(auth=auth) as client:
                assert await call(client, server) == "x"
        assert len(server.grants("client_credentials")) == 2
