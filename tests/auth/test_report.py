"""What is told of stored logins: all that people need, nothing that is secret, and the store stays as it is."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorings import (
    AuthSettings,
    ConfigError,
    CredentialSettings,
    HttpServer,
    Login,
    Logins,
    Secret,
    StdioServer,
    StoreFailed,
    read_logins,
)
from moorings.auth.flows import Account
from moorings.auth.model import (
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    encode_credential,
    encode_registration,
    registration_key,
)
from moorings.auth.renewal import INTENT, about
from moorings.auth.service import AuthService
from moorings.store.credentials import CredentialStore, StoreError, StoreUnusable
from moorings.store.files import FileStore
from tests.auth.grants_kit import soon

ISSUER, RESOURCE = "https://as.example", "https://mcp.example/mcp"
SERVER = HttpServer(url=RESOURCE + "?key=hidden")
SECRETS = ("access-s3cret", "refresh-s3cret", "client-s3cret", "rat-s3cret", "key-s3cret", "hidden")


def credential(**fields: Any) -> Credential:
    now = time.time()
    where = {"principal": "local", "issuer": ISSUER, "client_id": "client", "resource": RESOURCE}
    key = CredentialKey(**{name: fields.pop(name, value) for name, value in where.items()})
    given: dict[str, Any] = {
        "registration": Registration(
            issuer=key.issuer,
            client_id=key.client_id,
            client_secret=Secret("client-s3cret"),
            auth_method="client_secret_basic",
            registration_access_token=Secret("rat-s3cret"),
            client_secret_expires_at=now + 5000,
        ),
        "metadata": ServerMetadata(
            issuer=key.issuer,
            token_endpoint=key.issuer + "/token",
            source=key.issuer + "/.well-known/x",
            problems=("jwks_uri is no text; passed over",),
        ),
        "access_token": Secret("access-s3cret"),
        "refresh_token": Secret("refresh-s3cret"),
        "expires_at": now + 1000,
        "obtained_at": now,
        "scopes": ("read",),
        "requested_scopes": ("read", "write"),
        "version": 7,
    }
    return Credential(key=key, **{**given, **fields})


@asynccontextmanager
async def stored(folder: Path, *credentials: Credential) -> AsyncIterator[FileStore]:
    store = FileStore(folder)
    try:
        for each in credentials:
            digest = each.key.digest()
            async with store.lock(digest, soon()) as lease:
                await store.save(digest, encode_credential(each), lease, about=about(each))
        yield store
    finally:
        await store.aclose()


async def read(folder: Path, server: Any = SERVER, principal: str = "local") -> Logins:
    settings = CredentialSettings(store=f"file:{folder}", principal=principal)
    return await read_logins({"s": server}, credentials=settings)


async def login_of(folder: Path, server: Any = SERVER) -> Login:
    login = (await read(folder, server)).servers["s"].login
    assert login is not None
    return login


async def test_all_that_people_need_and_nothing_secret(tmp_path: Path) -> None:
    made = credential(dpop_jwk=Secret("key-s3cret"))
    async with stored(tmp_path / "c", made):
        told = await read(tmp_path / "c")
    server = told.servers["s"]
    login = server.login
    assert (told.store, told.principal, told.others) == (f"file:{tmp_path / 'c'}", "local", ())
    assert (server.how, server.flow) == ("oauth", "authorization_code")
    assert login is not None and made.expires_at is not None
    assert (login.issuer, login.client_id, login.resource) == (ISSUER, "client", RESOURCE)
    assert (login.client, login.auth_method, login.state) == ("registered", "client_secret_basic", "good")
    assert (login.scopes, login.requested_scopes) == (("read",), ("read", "write"))
    assert (login.expires_at, login.refreshable, login.dpop) == (made.expires_at, True, True)
    assert login.renews_at == pytest.approx(made.expires_at - 150)
    assert (login.version, login.notes) == (7, ("jwks_uri is no text; passed over",))
    for text in (repr(told), msgspec.json.encode(told).decode()):
        assert not [secret for secret in SECRETS if secret in text]


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


async def test_the_store_is_left_as_it_is(tmp_path: Path) -> None:
    assert (await read(tmp_path / "none")).servers["s"].login is None
    assert not (tmp_path / "none").exists()
    async with stored(tmp_path / "c", credential()):
        before = seen(tmp_path)
        await read(tmp_path / "c")
        assert seen(tmp_path) == before


PERSON = AuthSettings()
MACHINE = AuthSettings(client_id="client", client_secret="s3cret-s3cret", flow="client_credentials")
NEXT = [
    (PERSON, {}, "renewed ahead of its end"),
    (PERSON, {"expires_at": time.time() - 10}, "renewed with the next use"),
    (PERSON, {"expires_at": None}, "until the server refuses it, and renewed then"),
    (PERSON, {"expires_at": None, "refresh_token": None}, "refuses it; then a person must log in"),
    (PERSON, {"refresh_token": None}, "until it ends; then a person must log in"),
    (PERSON, {"expires_at": time.time() - 10, "refresh_token": None}, "a person must log in"),
    (PERSON, {"state": "refused", "reason": "invalid_grant"}, "a person must log in"),
    (MACHINE, {"state": "lost", "reason": "x", "grant": "client_credentials"}, "another is got by itself"),
    (
        MACHINE,
        {"refresh_token": None, "grant": "client_credentials"},
        "until it ends; then another is got by itself",
    ),
]


@pytest.mark.parametrize(("auth", "fields", "said"), NEXT)
async def test_what_happens_next(
    auth: AuthSettings, fields: dict[str, Any], said: str, tmp_path: Path
) -> None:
    async with stored(tmp_path / "c", credential(**fields)):
        told = await read(tmp_path / "c", HttpServer(url=RESOURCE, auth=auth))
    server = told.servers["s"]
    assert said in server.next
    assert server.login is not None and server.login.reason == fields.get("reason", "")


@pytest.mark.parametrize(
    ("server", "how", "said"),
    [
        (StdioServer(command="x"), "program", "is a program"),
        (HttpServer(url=RESOURCE, auth=False), "off", "never started"),
        (HttpServer(url=RESOURCE, headers={"authorization": "Bearer x"}), "header", "that is sent"),
        (HttpServer(url=RESOURCE), "oauth", "a person must log in where the server wants one"),
        (HttpServer(url=RESOURCE, auth=MACHINE), "oauth", "got by itself where the server wants one"),
    ],
)
async def test_servers_without_a_login(server: Any, how: str, said: str, tmp_path: Path) -> None:
    told = (await read(tmp_path / "c", server)).servers["s"]
    assert (told.how, told.login) == (how, None)
    assert said in told.next


async def test_of_several_logins_the_one_that_the_broker_uses_is_told(tmp_path: Path) -> None:
    now = time.time()
    made = [
        credential(client_id="old", obtained_at=now - 50, version=1),
        credential(client_id="new", obtained_at=now - 20, version=2),
        credential(client_id="dead", obtained_at=now - 10, state="refused", version=3),
        credential(client_id="elsewhere", resource="https://other.example/mcp", version=4),
        credential(client_id="theirs", principal="anna", version=5),
    ]
    folder = tmp_path / "c"
    async with stored(folder, *made) as store:
        key = registration_key(ISSUER, "http://127.0.0.1:33418/callback")
        async with store.lock(key, soon()) as lease:
            said = {"issuer": ISSUER, "client_id": "new", "kind": "registration"}
            await store.save(key, encode_registration(made[1].registration), lease, about=said)
        told = await read(folder)

    async def opened() -> CredentialStore:
        return FileStore(folder)

    service = AuthService(opened, environ=dict)
    access = service.access(Account(url=RESOURCE, settings=AuthSettings()))
    bearer = await access.bearer(soon())
    await access.aclose()
    assert bearer is not None
    login = told.servers["s"].login
    assert login is not None and login.client_id == bearer.credential.key.client_id == "new"
    assert {each.client_id for each in told.others} == {"old", "dead", "elsewhere"}
    assert told.other_principals == 1
    by_hand = HttpServer(url=RESOURCE, auth=AuthSettings(client_id="old"))
    assert (await login_of(folder, by_hand)).client_id == "old"


async def test_a_newer_login_that_is_over_hides_none_that_can_be_renewed(tmp_path: Path) -> None:
    """A token without a person, of another program, is over; the login of a person is there still."""
    now = time.time()
    made = [
        credential(client_id="person", obtained_at=now - 50, expires_at=now + 900),
        credential(client_id="machine", obtained_at=now - 20, expires_at=now - 1, refresh_token=None),
    ]
    folder = tmp_path / "c"
    async with stored(folder, *made):
        told = await read(folder)

    async def opened() -> CredentialStore:
        return FileStore(folder)

    access = AuthService(opened, environ=dict).access(Account(url=RESOURCE, settings=AuthSettings()))
    bearer = await access.bearer(soon())
    await access.aclose()
    assert bearer is not None and bearer.credential.key.client_id == "person"
    login = told.servers["s"].login
    assert login is not None and login.client_id == "person"


async def test_a_refresh_that_was_begun_is_told(tmp_path: Path) -> None:
    made = credential()
    mark = made.key.digest() + INTENT
    async with stored(tmp_path / "c", made) as store:
        for version, pending in ((b"6", False), (b"7", True)):
            async with store.lock(made.key.digest(), soon()) as lease:
                await store.save(mark, version, lease)
            told = (await read(tmp_path / "c")).servers["s"]
            assert told.login is not None and told.login.pending is pending
            assert ("a refresh was begun" in told.next) is pending


async def test_a_damaged_login_is_told_by_its_file_and_hides_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    async with stored(folder, credential(), credential(client_id="other", resource="https://o.example/mcp")):
        file = folder / f"{credential().key.digest()}.credential"
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
        told = await read(folder)
        login = told.servers["s"].login
        assert login is not None and login.state == "unreadable" and str(file) in login.reason
        assert "move it away" in told.servers["s"].next
        assert [each.client_id for each in told.others] == ["other"]
        file.write_bytes(b"")
        told = await read(folder)
        assert told.servers["s"].login is None and str(file) in told.problems[0]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(StoreUnusable("no", store="x", fix="mend"), ConfigError), (StoreError("away", store="x"), StoreFailed)],
)
async def test_a_store_that_fails_is_no_empty_one(
    error: Exception, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def keys(store: object) -> None:
        raise error

    monkeypatch.setattr(FileStore, "keys", keys)
    with pytest.raises(kind, match="the store of logins"):
        await read(tmp_path)


async def test_logins_in_memory_cannot_be_seen() -> None:
    for given in (CredentialSettings(store="memory"), CredentialSettings()):
        told = await read_logins({"s": SERVER}, credentials=given, state_dir=False)
        assert told.store == "memory"
        assert "cannot be seen" in told.servers["s"].next


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield monkeypatch.setenv


async def test_the_proxy_to_the_authorization_server_is_told_without_its_login(
    tmp_path: Path, no_proxies: Callable[[str, str], None]
) -> None:
    async with stored(tmp_path / "c", credential()):
        assert (await read(tmp_path / "c")).servers["s"].proxy == ""
        no_proxies("https_proxy", "http://me:s3cret@proxy.example:3128")
        proxy = (await read(tmp_path / "c")).servers["s"].proxy
        assert "proxy.example:3128" in proxy and "s3cret" not in proxy
        # It is that to the authorization server, not that to the MCP server.
        inside = HttpServer(url=RESOURCE, no_proxy=("as.example",))
        assert (await read(tmp_path / "c", inside)).servers["s"].proxy == ""


async def test_the_usual_folder_is_that_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with stored(tmp_path / "moorings" / "credentials", credential()):
        assert (await read_logins({"s": SERVER})).servers["s"].login is not None
        told = await read_logins({"s": SERVER}, state_dir=str(tmp_path / "moorings"))
        assert told.servers["s"].login is not None
