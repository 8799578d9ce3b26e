"""Logging out of oidc-provider, which revokes (RFC 7009) and lets clients be deleted (RFC 7592), and of better-auth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from moorings import CredentialSettings, HttpServer, export_logins, import_logins, logout, refresh_login
from moorings.auth import grants
from moorings.auth.faults import GrantError
from moorings.auth.flows import Account
from moorings.auth.model import Credential
from moorings.auth.service import AuthService
from moorings.config.auth_spec import AuthSettings
from moorings.store.files import FileStore
from tests.auth.grants_kit import plain_http, soon
from tests.auth.host_kit import files, stored
from tests.real.oidc import Browser
from tests.real.test_access import Person, served

pytestmark = pytest.mark.real


async def logged_in(
    provider: Any, folder: Path, scopes: tuple[str, ...] = ("a", "offline_access")
) -> Credential:
    """A whole login of a person, kept in a folder; with these scopes there is a refresh token."""

    async def opened() -> FileStore:
        return FileStore(folder)

    service = AuthService(opened, environ=dict)
    settings = AuthSettings(scopes=scopes)
    access = service.access(
        Account(url=provider.resource, settings=settings, browser=Person(browser=Browser()), within=10.0)
    )
    await served(access, provider)
    await access.aclose()
    (kept,) = await stored(folder)
    return kept


async def refused(kept: Credential) -> str:
    """What the server says to the refresh token of a login that is over."""
    assert kept.refresh_token is not None
    async with plain_http() as http:
        with pytest.raises(GrantError) as caught:
            await grants.refresh(
                http,
                kept.metadata,
                kept.registration,
                refresh_token=kept.refresh_token,
                resource=kept.key.resource,
                deadline=soon(),
            )
    return caught.value.code


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
async def test_a_logout_ends_all_that_the_login_brought(
    method: str, provider_with: Any, tmp_path: Path
) -> None:
    with provider_with(methods=[method]) as provider:
        kept = await logged_in(provider, tmp_path / "c")
        server, credentials = HttpServer(url=provider.resource), files(tmp_path / "c")
        assert kept.refresh_token is not None
        assert provider.ask(kept.access_token.reveal())[0] == 200
        report = await logout(server, credentials=credentials)
        (login,) = report.logins
        assert report.all_revoked and login.problems == (), login
        assert (login.refresh_token, login.access_token, login.client) == ("revoked", "revoked", "deleted")
        assert provider.ask(kept.access_token.reveal())[0] == 401
        # The client is not known any more, so neither is the token.
        assert await refused(kept) == "invalid_client"
        assert not list((tmp_path / "c").glob("*.credential"))
        assert (await logout(server, credentials=credentials)).logins == ()


async def test_the_tokens_are_over_where_the_client_stays(provider_with: Any, tmp_path: Path) -> None:
    with provider_with() as provider:
        kept = await logged_in(provider, tmp_path / "c")
        (tmp_path / "d").mkdir(mode=0o700)
        await export_logins(
            {"s": HttpServer(url=provider.resource)},
            tmp_path / "f",
            "a passphrase",
            credentials=files(tmp_path / "c"),
        )
        await import_logins(tmp_path / "f", "a passphrase", credentials=files(tmp_path / "d"))
        # Another login of the same client, of whomever.
        store = FileStore(tmp_path / "c")
        async with store.lock("other", asyncio.get_running_loop().time() + 10) as lease:
            said = {
                "issuer": kept.key.issuer,
                "client_id": kept.key.client_id,
                "resource": "x",
                "principal": "y",
            }
            await store.save("other", b"x", lease, about=said)
        await store.aclose()
        (login,) = (await logout(HttpServer(url=provider.resource), credentials=files(tmp_path / "c"))).logins
        assert (login.refresh_token, login.access_token, login.client) == ("revoked", "revoked", "kept")
        assert await refused(kept) == "invalid_grant"
        # The copy in the other folder ends with it: it is the same login.
        credentials = CredentialSettings(store=f"file:{tmp_path / 'd'}")
        with pytest.raises(Exception, match="invalid_grant"):
            await refresh_login(HttpServer(url=provider.resource), credentials=credentials)


async def test_a_renewal_at_once(provider_with: Any, tmp_path: Path) -> None:
    with provider_with() as provider:
        kept = await logged_in(provider, tmp_path / "c")
        server, credentials = HttpServer(url=provider.resource), files(tmp_path / "c")
        login = await refresh_login(server, credentials=credentials)
        (after,) = await stored(tmp_path / "c")
        assert login.version == after.version == kept.version + 1
        assert after.refresh_token != kept.refresh_token  # it rotates
        assert provider.ask(after.access_token.reveal())[0] == 200
        report = await logout(server, credentials=credentials)
        assert report.all_revoked and provider.ask(after.access_token.reveal())[0] == 401


async def test_a_server_whose_access_tokens_cannot_be_revoked(better_auth_with: Any, tmp_path: Path) -> None:
    """They are JWTs; and it has no management of clients, so that this one stays for the next login."""
    with better_auth_with() as provider:
        kept = await logged_in(provider, tmp_path / "c", ())
        report = await logout(HttpServer(url=provider.resource), credentials=files(tmp_path / "c"))
        (login,) = report.logins
        assert (login.refresh_token, login.access_token, login.client) == ("revoked", "not_offered", "kept")
        assert not report.all_revoked and login.problems == ()
        assert await stored(tmp_path / "c") == []
        assert await refused(kept) == "invalid_grant"
