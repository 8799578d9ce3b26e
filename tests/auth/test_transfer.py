"""Logins in a file: what comes out is what went in, nobody reads it, and what is here is not lost by it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorings import (
    ConfigError,
    CredentialSettings,
    ExportReport,
    HttpServer,
    ImportReport,
    LoginFileError,
    NeedsLogin,
    Secret,
    StoreFailed,
    export_logins,
    import_logins,
    read_logins,
)
from moorings.auth import transfer
from moorings.auth.model import Credential, encode_registration, registration_key
from moorings.auth.renewal import INTENT
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.grants_kit import soon
from tests.auth.host_kit import files, holding, logged_in, outcome, put, spec, stored
from tests.auth.test_report import ISSUER, RESOURCE, SECRETS, SERVER, credential
from tests.faults.auth_server import AuthFaults

WORDS = "a whole sentence, as it should be"
SERVERS = {"s": SERVER}
CLIENT = registration_key(ISSUER, "http://127.0.0.1:33418/callback")


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrypt takes half a second, as it should."""
    monkeypatch.setattr(transfer, "COST", 2**4)


async def kept(folder: Path, *credentials: Credential, client: bool = True) -> None:
    """Store logins, and the client of the first."""
    for each in credentials:
        await put(folder, each)
    if client:
        store = FileStore(folder)
        registration = credentials[0].registration
        said = {"issuer": ISSUER, "client_id": registration.client_id, "kind": "registration"}
        async with store.lock(CLIENT, soon()) as lease:
            await store.save(CLIENT, encode_registration(registration), lease, about=said)
        await store.aclose()


async def exported(folder: Path, file: Path, servers: Any = SERVERS, **options: Any) -> ExportReport:
    return await export_logins(servers, file, WORDS, credentials=files(folder), **options)


async def imported(file: Path, folder: Path, words: Any = WORDS, **options: Any) -> ImportReport:
    principal = options.pop("principal", "local")
    return await import_logins(file, words, credentials=files(folder, principal), **options)


def names(folder: Path) -> list[str]:
    return sorted(each.name.partition(".")[0] for each in folder.glob("*.credential"))


# --- there and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [False, True])
async def test_what_is_written_here_is_there(move: bool, tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "logins"
    made = credential(dpop_jwk=Secret("key-s3cret"), reason="ümläut")
    other = credential(client_id="second", obtained_at=made.obtained_at - 5)
    await kept(here, made, other, credential(resource="https://o.example/mcp"), credential(principal="anna"))
    told = await exported(here, file, move=move)
    assert (told.file, told.store, told.principal) == (str(file), f"file:{here}", "local")
    assert {each.client_id for each in told.logins} == {"client", "second"} and told.clients == 1
    assert (told.moved, told.skipped) == (move, ())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    back = await imported(Path(os.path.relpath(file)), there, Secret(WORDS))
    assert (back.file, back.store) == (str(file), f"file:{there}")
    assert (back.replaced, back.unchanged) == (0, 0)
    found = {each.key.client_id: each for each in await stored(there)}
    assert set(found) == {"client", "second"}
    assert msgspec.structs.replace(found["client"], version=7) == made
    assert CLIENT in names(there)
    left = {(each.key.principal, each.key.client_id, each.key.resource) for each in await stored(here)}
    stays = {("local", "client", "https://o.example/mcp"), ("anna", "client", RESOURCE)}
    assert left == (stays if move else stays | {("local", "client", RESOURCE), ("local", "second", RESOURCE)})
    assert CLIENT in names(here)  # others here use that client
    login = (await read_logins(SERVERS, credentials=files(there))).servers["s"].login
    assert login is not None and login.client_id == "client"


async def test_nothing_of_it_can_be_read(tmp_path: Path) -> None:
    made = credential(dpop_jwk=Secret("key-s3cret"))
    await kept(tmp_path / "c", made)
    told = await exported(tmp_path / "c", tmp_path / "f")
    back = await imported(tmp_path / "f", tmp_path / "there")
    data = (tmp_path / "f").read_bytes()
    plain = base64.b64decode(b"".join(data.split(b"\n")[1:]))
    for text in (repr(told), repr(back), data.decode(), repr(plain), msgspec.json.encode(told).decode()):
        assert not [each for each in SECRETS if each in text]
    for word in ("mcp.example", "as.example", "client", "local"):
        assert word not in data.decode() and word.encode() not in plain
    assert max(map(len, data.split(b"\n")[1:])) <= 76 and data.isascii() and data.endswith(b"\n")
    # Another time another key and another nonce.
    await exported(tmp_path / "c", tmp_path / "g")
    one, two = (json.loads((tmp_path / name).read_bytes().split(b"\n")[0]) for name in "fg")
    assert one["salt"] != two["salt"] and one["nonce"] != two["nonce"]


async def test_a_passphrase_costs_what_it_should(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f")
    head = json.loads((tmp_path / "f").read_bytes().split(b"\n")[0])
    assert (head["kdf"], head["n"], head["r"], head["p"]) == ("scrypt", 131072, 8, 1)
    assert (await imported(tmp_path / "f", tmp_path / "there")).logins


async def test_the_same_letters_by_another_keyboard(tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    await export_logins(SERVERS, tmp_path / "f", "schl\u00fcsselwort", credentials=files(tmp_path / "c"))
    assert (await imported(tmp_path / "f", tmp_path / "there", "schlu\u0308sselwort")).logins


@pytest.mark.parametrize("how", ["crlf", "blanks", "one line"])
async def test_a_file_that_went_through_a_terminal(how: str, tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f")
    data = (tmp_path / "f").read_bytes()
    head, _, rest = data.partition(b"\n")
    changed = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "blanks": head + b"\n\n  " + rest.replace(b"\n", b" \n") + b"\n\n",
        "one line": head + b"\n" + rest.replace(b"\n", b""),
    }
    (tmp_path / "f").write_bytes(changed[how])
    assert (await imported(tmp_path / "f", tmp_path / "there")).logins


# --- what is here -------------------------------------------------------------------------------------------------


async def test_a_login_that_is_here_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "f"
    made = credential()
    second = credential(client_id="second")
    await kept(here, made, second)
    await exported(here, file)
    # As it is in the file already.
    await put(there, made)
    told = await imported(file, there)
    assert (told.unchanged, told.replaced) == (1, 0) and len(await stored(there)) == 2
    for other, reason in (
        (msgspec.structs.replace(made, access_token=Secret("x"), version=7), "exists"),
        (msgspec.structs.replace(made, access_token=Secret("x"), version=6), "exists"),
        (msgspec.structs.replace(made, access_token=Secret("x"), version=8), "older"),
        (msgspec.structs.replace(made, obtained_at=made.obtained_at + 9, version=1), "older"),
        (msgspec.structs.replace(made, state="refused", version=7), "exists"),
    ):
        fresh = tmp_path / f"{reason}-{other.version}-{other.state}"
        await put(fresh, other)
        with pytest.raises(LoginFileError) as refused:
            await imported(file, fresh)
        assert refused.value.reason == reason and "--replace" in str(refused.value)
        assert await stored(fresh) == [other]  # none of them, then
        told = await imported(file, fresh, replace=True)
        assert (told.replaced, told.unchanged) == (1, 0)
        found = {each.key.client_id: each for each in await stored(fresh)}
        assert found["client"].version > other.version and found["client"].access_token == made.access_token
        assert set(found) == {"client", "second"}


async def test_a_damaged_login_is_in_nobodys_way(tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f")
    (tmp_path / "c" / f"{credential().key.digest()}.credential").write_bytes(b"x")
    assert (await imported(tmp_path / "f", tmp_path / "c")).replaced == 0
    assert len(list((tmp_path / "c").glob("*.corrupt-*"))) == 1 and len(await stored(tmp_path / "c")) == 1


async def test_a_client_that_is_here_stays(tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f")
    await kept(tmp_path / "there", credential(client_id="mine", resource="https://o.example/mcp"))
    before = (tmp_path / "there" / f"{CLIENT}.credential").read_bytes()
    await imported(tmp_path / "f", tmp_path / "there")
    assert (tmp_path / "there" / f"{CLIENT}.credential").read_bytes() == before


async def test_the_mark_of_a_refresh_is_none_of_its(tmp_path: Path) -> None:
    """It would say of the new one that its refresh was interrupted."""
    made = credential()
    await kept(tmp_path / "c", made)
    await exported(tmp_path / "c", tmp_path / "f", move=True)
    store = FileStore(tmp_path / "c")
    digest = made.key.digest()
    async with store.lock(digest, soon()) as lease:
        await store.save(digest + INTENT, b"7", lease)
    await store.aclose()
    await imported(tmp_path / "f", tmp_path / "c")
    assert digest + INTENT not in names(tmp_path / "c") and digest in names(tmp_path / "c")


async def test_logins_of_somebody_else_are_not_taken(tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f")
    with pytest.raises(LoginFileError, match=r"'local'.*'anna'") as refused:
        await imported(tmp_path / "f", tmp_path / "there", principal="anna")
    assert refused.value.reason == "principal" and not (tmp_path / "there").exists()


# --- what leaves --------------------------------------------------------------------------------------------------


async def test_only_what_is_worth_something_is_written(tmp_path: Path) -> None:
    await kept(
        tmp_path / "c", credential(), credential(client_id="dead", state="lost", reason="it died", version=3)
    )
    told = await exported(tmp_path / "c", tmp_path / "f")
    assert [each.client_id for each in told.logins] == ["client"]
    (skipped,) = told.skipped
    assert "'dead'" in skipped and "lost: it died" in skipped
    for dead in ([credential(state="refused", reason="x")], []):
        folder = tmp_path / f"d{len(dead)}"
        for each in dead:
            await put(folder, each)
        with pytest.raises(ConfigError, match="no login of it that works") as missing:
            await exported(folder, tmp_path / "g")
        assert missing.value.server == "s" and not (tmp_path / "g").exists()


async def test_of_several_servers_all_or_none(tmp_path: Path) -> None:
    other = HttpServer(url="https://o.example/mcp")
    await kept(tmp_path / "c", credential())
    with pytest.raises(ConfigError) as missing:
        await exported(tmp_path / "c", tmp_path / "f", {"s": SERVER, "o": other}, move=True)
    assert (
        missing.value.server == "o"
        and not (tmp_path / "f").exists()
        and len(await stored(tmp_path / "c")) == 1
    )
    await put(tmp_path / "c", credential(resource="https://o.example/mcp"))
    assert len((await exported(tmp_path / "c", tmp_path / "f", {"s": SERVER, "o": other})).logins) == 2


async def test_the_client_moves_with_its_last_login(tmp_path: Path) -> None:
    """Else a logout here would delete it at the server, and end the login over there."""
    await kept(tmp_path / "c", credential())
    await exported(tmp_path / "c", tmp_path / "f", move=True)
    assert names(tmp_path / "c") == []
    await imported(tmp_path / "f", tmp_path / "c")
    assert len(names(tmp_path / "c")) == 2


async def test_a_renewal_under_way_is_let_finish(tmp_path: Path) -> None:
    """Else the file would hold the refresh token that it uses up."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, events):
            server.expire()
            server.set(on={"token:refresh_token": "hold"})
            call = asyncio.ensure_future(outcome(host))
            await server.until(lambda _: len(server.grants("refresh_token")) == 1, 20)
            moving = asyncio.ensure_future(
                exported(tmp_path / "c", tmp_path / "f", {"s": spec(server)}, move=True)
            )
            await asyncio.sleep(0.3)  # it tries the lock; nothing tells of that
            assert not moving.done() and not (tmp_path / "f").exists()
            server.release("token:refresh_token")
            await moving
            await call
            async with asyncio.timeout(20):
                while isinstance(error := await outcome(host), str):
                    await asyncio.sleep(0.02)
            assert isinstance(error, NeedsLogin) and error.reason == "login"
            assert not server.at("revoke") and server.clients
            # And back: whoever waits for a login goes on with it.
            server.set(on={"token:refresh_token": "ok"})
            await imported(tmp_path / "f", tmp_path / "c")
            await events.seen("s", "ready", 2)
            assert await outcome(host) == "x"
            server.expire()
            assert await outcome(host) == "x" and server.revoked_by_reuse == 0


async def test_a_login_that_is_replaced_counts_at_once_where_it_is_used(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "there")
        await exported(tmp_path / "there", tmp_path / "f", {"s": spec(server)})
        (taken,) = await stored(tmp_path / "there")
        mine = msgspec.structs.replace(taken, access_token=Secret("mine"), refresh_token=None, version=9)
        server.access["mine"] = next(iter(server.access.values()))
        await put(tmp_path / "c", mine)
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
            await imported(tmp_path / "f", tmp_path / "c", replace=True)
            async with asyncio.timeout(20):
                while server.of("tools/call")[-1].headers["authorization"] == "Bearer mine":
                    assert await outcome(host) == "x"
                    await asyncio.sleep(0.02)
            assert not server.grants("refresh_token")


async def test_what_cannot_be_removed_here_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(store: FileStore, key: str, lease: Any) -> None:
        raise StoreError("the disk is gone", store=store.name)

    await kept(tmp_path / "c", credential())
    monkeypatch.setattr(FileStore, "remove", failing)
    with pytest.raises(StoreFailed, match=r"is written.*the disk is gone.*--local"):
        await exported(tmp_path / "c", tmp_path / "f", move=True)
    monkeypatch.undo()
    monkeypatch.setattr(transfer, "COST", 2**4)
    assert (tmp_path / "f").exists() and len(await stored(tmp_path / "c")) == 1


# --- what is no such file -----------------------------------------------------------------------------------------


@asynccontextmanager
async def written(folder: Path) -> AsyncIterator[Path]:
    await kept(folder / "c", credential())
    await exported(folder / "c", folder / "f")
    yield folder / "f"
    assert not (folder / "there").exists()


async def refused(file: Path, words: str = WORDS) -> LoginFileError:
    with pytest.raises(LoginFileError) as caught:
        await imported(file, file.parent / "there", words)
    error = caught.value
    assert error.file == str(file) and str(file) in str(error)
    assert not [each for each in (*SECRETS, WORDS) if each in str(error)]
    assert error.__cause__ is None
    return error


async def test_another_passphrase(tmp_path: Path) -> None:
    async with written(tmp_path) as file:
        for words in (WORDS + " ", "", WORDS.upper()):
            assert (await refused(file, words)).reason == "passphrase"


async def test_a_passphrase_that_is_too_short(tmp_path: Path) -> None:
    await kept(tmp_path / "c", credential())
    with pytest.raises(LoginFileError, match="at least 8") as caught:
        await export_logins(SERVERS, tmp_path / "f", "1234567", credentials=files(tmp_path / "c"))
    assert caught.value.reason == "passphrase" and not (tmp_path / "f").exists()


def resealed(data: bytes, **fields: Any) -> bytes:
    """The same file with other words in its first line, and a sum that fits."""
    line, _, rest = data.partition(b"\n")
    return json.dumps({**json.loads(line), **fields}).encode() + b"\n" + rest


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"format": 2}, "version"),
        ({"format": "new"}, "version"),
        ({"format": None}, "version"),
        ({"moorings": "credential"}, "damaged"),
        ({"kdf": "none"}, "damaged"),
        ({"cipher": "none"}, "damaged"),
        ({"n": 2**40}, "damaged"),
        ({"n": 3}, "damaged"),
        ({"n": -8}, "damaged"),
        ({"r": 2**30}, "damaged"),
        ({"r": 0}, "damaged"),
        ({"p": 10**9}, "damaged"),
        ({"n": 2**17, "r": 1}, "damaged"),
        ({"salt": "!"}, "damaged"),
        ({"salt": ""}, "damaged"),
        ({"nonce": "AAAA"}, "damaged"),
        ({"nonce": 3}, "damaged"),
        ({"size": 1}, "damaged"),
        ({"sha256": "0"}, "damaged"),
        ({"more": 1}, "damaged"),
        # These open nothing: the whole line is bound in.
        ({"p": 2}, "passphrase"),
        ({"salt": base64.b64encode(bytes(16)).decode()}, "passphrase"),
        ({"nonce": base64.b64encode(bytes(12)).decode()}, "passphrase"),
    ],
)
async def test_another_first_line(fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    async with written(tmp_path) as file:
        file.write_bytes(resealed(file.read_bytes(), **fields))
        assert (await refused(file)).reason == reason


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"{}\n", b"[]", b"\xff\xfe", b"[" * 100_000, b"{" + b"\x00" * 99]
)
async def test_none_of_ours(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(data)
    assert (await refused(tmp_path / "f")).reason == "damaged"


async def test_no_file_a_folder_a_pipe_and_one_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "p")
    for name in ("none", "d", "p"):
        assert (await refused(tmp_path / name)).reason == "file"
    with open(tmp_path / "f", "wb") as file:
        file.truncate(10**9)
    assert (await refused(tmp_path / "f")).reason == "damaged"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_or_changed_anywhere_is_taken_for_no_other(data: st.DataObject, tmp_path: Path) -> None:
    if not (tmp_path / "f").exists():

        async def write() -> None:
            async with written(tmp_path):
                pass

        asyncio.run(write())
    whole = (tmp_path / "f").read_bytes()
    at = data.draw(st.integers(0, len(whole) - 2))
    if data.draw(st.booleans()):
        broken = whole[:at]
    else:
        byte = data.draw(st.integers(0, 255).filter(lambda each: each != whole[at]))
        broken = whole[:at] + bytes([byte]) + whole[at + 1 :]
    same = b"".join(broken.split()) == b"".join(whole.split())  # a blank for a line's end
    (tmp_path / "g").write_bytes(broken)

    async def take() -> None:
        try:
            await imported(tmp_path / "g", tmp_path / "there")
        except LoginFileError as error:
            assert error.reason in ("damaged", "version", "passphrase")
            assert not [each for each in SECRETS if each in str(error)]
        else:
            assert same
            shutil.rmtree(tmp_path / "there")

    asyncio.run(take())


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b'{"credentials":["x"],"registrations":[]}',
        b'{"credentials":[],"registrations":[{"key":"../../x","record":"y"}]}',
        b"\xff",
    ],
)
async def test_what_was_sealed_and_is_no_login(content: bytes, tmp_path: Path) -> None:
    head = transfer._fresh_head()
    key = await transfer._key(head, WORDS.encode(), tmp_path / "f")
    (tmp_path / "f").write_bytes(transfer._sealed(head, key, content))
    assert (await refused(tmp_path / "f")).reason == "version"


async def test_a_key_of_a_client_is_a_digest(tmp_path: Path) -> None:
    record = encode_registration(credential().registration).decode()
    content = {"credentials": [], "registrations": [{"key": "a-intent", "record": record}]}
    head = transfer._fresh_head()
    key = await transfer._key(head, WORDS.encode(), tmp_path / "f")
    (tmp_path / "f").write_bytes(transfer._sealed(head, key, json.dumps(content).encode()))
    assert (await refused(tmp_path / "f")).reason == "version"


async def test_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept(tmp_path / "c", credential())
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link", "no/folder"):
        with pytest.raises(LoginFileError) as caught:
            await exported(tmp_path / "c", tmp_path / name, move=True)
        assert caught.value.reason == "file" and caught.value.fix
    assert (tmp_path / "there").read_text() == "mine"

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "write_atomic", full)
    with pytest.raises(LoginFileError, match="No space left"):
        await exported(tmp_path / "c", tmp_path / "f", move=True)
    assert len(await stored(tmp_path / "c")) == 1


async def test_without_cryptography_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with written(tmp_path) as file:
        monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.kdf.scrypt", None)
        with pytest.raises(ConfigError, match=r'pip install "moorings\[jwt\]"'):
            await imported(file, tmp_path / "there")
        with pytest.raises(ConfigError, match="cryptography"):
            await exported(tmp_path / "c", tmp_path / "g", move=True)
        assert len(await stored(tmp_path / "c")) == 1 and not (tmp_path / "g").exists()


async def test_a_store_in_memory(tmp_path: Path) -> None:
    memory = CredentialSettings(store="memory")
    with pytest.raises(ConfigError, match="the process that uses them"):
        await export_logins(SERVERS, tmp_path / "f", WORDS, credentials=memory)
    async with written(tmp_path) as file:
        with pytest.raises(ConfigError, match="the process that uses them"):
            await import_logins(file, WORDS, credentials=memory)


def test_the_sum_is_that_of_what_is_encrypted(tmp_path: Path) -> None:
    """A file can be told to be whole without its passphrase, by anybody."""
    asyncio.run(kept(tmp_path / "c", credential()))
    asyncio.run(exported(tmp_path / "c", tmp_path / "f"))
    line, *rest = (tmp_path / "f").read_bytes().split(b"\n")
    sealed = base64.b64decode(b"".join(rest))
    head = json.loads(line)
    assert (head["size"], head["sha256"]) == (len(sealed), hashlib.sha256(sealed).hexdigest())
