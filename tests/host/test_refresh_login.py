"""Renewing a login at once: what comes counts wherever it is used, and what does not come costs nothing."""

from __future__ import annotations

import asyncio
import time
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
    MisuseError,
    NeedsLogin,
    RefreshFailed,
    refresh_login,
)
from moorings.store.credentials import StoreError
from moorings.store.files import FileStore
from tests.auth.host_kit import (
    BOUNDS,
    brokers,
    by_then,
    changed,
    files,
    holding,
    logged_in,
    outcome,
    put,
    run_out,
    spec,
    stored,
)
from tests.faults.auth_server import AuthFaults

REFRESH = "token:refresh_token"


async def renewed(
    server: AuthFaults, folder: Path, auth: AuthSettings | bool = True, **options: Any
) -> Login:
    return await refresh_login(spec(server, auth), credentials=files(folder), **options)


@pytest.mark.parametrize("over", [False, True])
async def test_it_is_renewed_once_due_or_not(over: bool, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        before = await logged_in(server, tmp_path / "c")
        if over:
            await run_out(tmp_path / "c")
        began = time.time()
        login = await renewed(server, tmp_path / "c")
        (after,) = await stored(tmp_path / "c")
        assert len(server.grants("refresh_token")) == 1
        assert login.version == after.version == before.version + 1 and login.state == "good"
        assert login.obtained_at == after.obtained_at and after.obtained_at >= began
        assert after.access_token != before.access_token and after.access_token.reveal() not in repr(login)
        assert not brokers()


async def test_what_comes_counts_where_it_is_used(tmp_path: Path) -> None:
    """By a host of this process, whose broker it shares, and by one that looks at the store."""
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        async with holding({"s": spec(server)}, files(tmp_path / "c")) as (host, _):
            assert await outcome(host) == "x"
            (before,) = await stored(tmp_path / "c")
            login = await renewed(server, tmp_path / "c")
            (after,) = await stored(tmp_path / "c")
            newest = after.access_token.reveal()
            server.access = {newest: server.access[newest]}
            assert await outcome(host) == "x" and login.version == before.version + 1
            assert len(server.grants("refresh_token")) == 1
        assert not brokers()


@pytest.mark.parametrize(
    ("how", "said"), [("status:503", "HTTP 503"), ("die", "network"), ("hold", "within")]
)
async def test_what_does_not_come_costs_nothing(how: str, said: str, tmp_path: Path) -> None:
    async with AuthFaults() as server:
        before = await logged_in(server, tmp_path / "c")
        server.set(on={REFRESH: how})
        with pytest.raises(RefreshFailed, match=said) as failed:
            await renewed(server, tmp_path / "c", within=1.0)
        assert "kept as it was" in str(failed.value) and failed.value.__cause__ is None
        (after,) = await stored(tmp_path / "c")
        assert after == before


async def test_a_server_that_is_slow_for_another_process(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        kept = await logged_in(server, tmp_path / "c")
        store = FileStore(tmp_path / "c")
        async with store.lock(kept.key.digest(), asyncio.get_running_loop().time() + 10):
            with pytest.raises(RefreshFailed, match=r"not renewed within 0\.4 s"):
                await renewed(server, tmp_path / "c", within=0.2)
        await store.aclose()
        await by_then(lambda: not brokers())  # it had waited on


@pytest.mark.parametrize(
    ("fields", "reason", "said"),
    [
        ({"state": "refused", "reason": "it was revoked"}, "revoked", "it was revoked"),
        ({"state": "lost", "reason": "it died"}, "lost", "it died"),
        ({"refresh_token": None}, "expired", "no refresh token"),
        ({"refresh_token": None, "expires_at": 1.0}, "expired", "no refresh token"),
    ],
)
async def test_one_that_only_a_person_can_mend(
    fields: dict[str, Any], reason: str, said: str, tmp_path: Path
) -> None:
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        await changed(tmp_path / "c", **fields)
        with pytest.raises(NeedsLogin, match=said) as needed:
            await renewed(server, tmp_path / "c")
        assert needed.value.reason == reason and "moor login" in str(needed.value)
        assert "after" not in str(needed.value)  # no call, so none that took a time
        assert not server.grants("refresh_token")


async def test_one_that_the_server_ended(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        server.end(server.families[0])
        with pytest.raises(NeedsLogin, match="invalid_grant") as needed:
            await renewed(server, tmp_path / "c")
        assert needed.value.reason == "revoked"
        assert [each.state for each in await stored(tmp_path / "c")] == ["refused"]


async def test_nobody_has_logged_in(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        with pytest.raises(NeedsLogin) as needed:
            await renewed(server, tmp_path / "c")
        assert needed.value.reason == "login" and not server.requests


async def test_a_machine_gets_another(tmp_path: Path) -> None:
    clients = {"m": {"client_secret": "s3cret-of-m", "token_endpoint_auth_method": "client_secret_basic"}}
    async with AuthFaults(clients=clients) as server:
        auth = AuthSettings(
            client_id="m", client_secret="s3cret-of-m", flow="client_credentials", issuer=server.issuer
        )
        before = await logged_in(server, tmp_path / "c", auth)
        login = await renewed(server, tmp_path / "c", auth)
        assert login.version == before.version + 1 and len(server.grants("client_credentials")) == 2


async def test_a_workload_reads_its_proof_anew(tmp_path: Path) -> None:
    """By a command of the settings, as a host does."""
    async with AuthFaults(clients={"w": {"token_endpoint_auth_method": "none"}}) as server:
        auth = AuthSettings(client_id="w", assertion_command=("echo", "a.b.c"), issuer=server.issuer)
        before = await logged_in(server, tmp_path / "c", auth)
        login = await renewed(server, tmp_path / "c", auth)
        assert login.version > before.version and len(server.grants("jwt-bearer")) == 2


async def test_a_store_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(store: FileStore) -> None:
        raise StoreError("the disk is gone", store=store.name)

    async with AuthFaults() as server:
        await logged_in(server, tmp_path / "c")
        monkeypatch.setattr(FileStore, "keys", failing)
        with pytest.raises(RefreshFailed, match="the disk is gone"):
            await renewed(server, tmp_path / "c")
    with pytest.raises(ConfigError, match="the process that uses them"):
        await refresh_login(
            HttpServer(url="https://mcp.example/mcp"), credentials=CredentialSettings(store="memory")
        )


async def test_its_bound_is_that_of_the_server(tmp_path: Path) -> None:
    async with AuthFaults() as server:
        await put(tmp_path / "c", msgspec.structs.replace(await logged_in(server, tmp_path / "c"), version=5))
        server.set(on={REFRESH: "hold"})
        short = spec(server, bounds=msgspec.structs.replace(BOUNDS, auth=0.5))
        began = time.monotonic()
        with pytest.raises(RefreshFailed):
            await refresh_login(short, credentials=files(tmp_path / "c"))
        assert time.monotonic() - began < 4.0  # twice the bound, and room for a busy machine


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (HttpServer(url="https://mcp.example/mcp", auth=False), "auth is false"),
        (HttpServer(url="https://mcp.example/mcp", headers={"authorization": "Bearer x"}), "of their own"),
    ],
    ids=["off", "an own login"],
)
async def test_where_no_login_is_used_there_is_none_to_renew(
    server: HttpServer, why: str, tmp_path: Path
) -> None:
    with pytest.raises(MisuseError, match=why):
        await refresh_login(server, credentials=files(tmp_path))
