"""The race for one refresh token at oidc-provider, which rotates, and ends the family of one that comes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorings.auth import grants
from moorings.auth.authorization import AuthorizationRequest
from moorings.auth.model import read_server_metadata
from moorings.auth.registration import register
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.auth.race_kit import Nursery, Stage, credential_of, crew_of, nursery, place_of, race
from tests.real.oidc import Browser, Provider, oidc_provider

__all__ = ["nursery"]  # the fixture

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

PROCESSES, THREADS = 8, 8


class OidcProvider:
    """The real one, as a race looks at it. It answers when it likes."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._before = provider.facts()["token"]

    def requests(self) -> int:
        return int(self.provider.facts()["token"]) - self._before

    def revoked(self) -> int:
        return int(self.provider.facts()["revokedFamilies"])

    def hold(self) -> None:
        pass

    def release(self) -> None:
        pass


async def signed_in(provider: Provider) -> Any:
    """A credential, by a whole login."""
    metadata = read_server_metadata(provider.metadata())
    assert metadata is not None
    async with plain_http() as http:
        client = await register(http, metadata, Settings(), REDIRECT, soon())
        request = AuthorizationRequest.begin(
            metadata,
            client,
            redirect_uri=REDIRECT,
            resource=provider.resource,
            scopes=("a", "offline_access"),
        )
        code = request.finish(Browser().visit(request.url, REDIRECT))
        tokens = await grants.exchange_code(
            http,
            metadata,
            client,
            code=code,
            verifier=request.verifier,
            redirect_uri=REDIRECT,
            resource=provider.resource,
            deadline=soon(),
        )
    assert tokens.refresh_token is not None
    return credential_of(
        metadata,
        client,
        provider.resource,
        access=tokens.access_token.reveal(),
        refresh=tokens.refresh_token.reveal(),
    )


@pytest.mark.parametrize("rounds", [5, pytest.param(100, marks=pytest.mark.soak)])
async def test_f10_3_eight_processes_of_eight_threads_rotate_once_a_round(
    rounds: int,
    real_server: Callable[..., list[str]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    nursery: Nursery,
) -> None:
    with oidc_provider(real_server, tmp_path) as provider:
        stage = Stage(place_of("files", request, tmp_path), OidcProvider(provider), await signed_in(provider))
        await stage.save(stage.credential)
        async with crew_of(nursery) as crew:
            players = await crew.enlist(PROCESSES, stage, threads=THREADS)
            await race(stage, players, rounds, threads=THREADS)
        assert provider.ask((await stage.stored()).access_token.reveal())[0] == 200
        assert provider.facts()["errors"] == []
