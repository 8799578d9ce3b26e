"""oidc-provider behind a bad network, and after a start with nothing: what is spent, what is not, and what is said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moorings._secret import Secret
from moorings.auth import dpop, grants
from moorings.auth.authorization import AuthorizationRequest
from moorings.auth.faults import GrantError
from moorings.auth.model import ServerMetadata
from moorings.auth.registration import register, unregister
from tests.auth.grants_kit import REDIRECT, Settings, plain_http, soon
from tests.faults.tcp import At, Plan, TcpProxy
from tests.real.logins import a_login, authorized, metadata_of, refreshed
from tests.real.oidc import Browser, Provider

pytestmark = pytest.mark.real


def through(proxy: TcpProxy, metadata: ServerMetadata, provider: Provider) -> ServerMetadata:
    """The same server, its token endpoint behind the proxy."""
    assert metadata.token_endpoint.startswith(provider.origin)
    place = metadata.token_endpoint.removeprefix(provider.origin)
    return msgspec.structs.replace(metadata, token_endpoint=proxy.url + place)


async def test_a_slow_way_to_the_server_is_no_fault(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            async with TcpProxy(provider.port, Plan(latency=0.2)) as proxy:
                far = through(proxy, metadata, provider)
                second = await refreshed(provider, http, far, client, first.refresh_token)
            assert provider.ask(second.access_token.reveal())[0] == 200
            assert provider.facts()["revokedFamilies"] == 0


@pytest.mark.parametrize(
    "plan",
    [
        Plan(down=At(0, "blackhole")),  # no answer, ever
        Plan(down=At(1, "reset")),
        Plan(down=At(200, "reset")),  # in its headers
        Plan(down=At(1, "close")),
    ],
    ids=["silence", "reset", "cut", "closed"],
)
async def test_f10_2_an_answer_lost_on_its_way_has_spent_the_token_and_says_so(
    provider_with: Any, plan: Plan
) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            before = provider.facts()["success"]
            async with TcpProxy(provider.port, plan) as proxy:
                far = through(proxy, metadata, provider)
                with pytest.raises(GrantError) as caught:
                    await grants.refresh(
                        http,
                        far,
                        client,
                        refresh_token=first.refresh_token,
                        resource=provider.resource,
                        deadline=soon(1.5 if plan.down == At(0, "blackhole") else 10.0),
                    )
                error = caught.value
                assert (error.code, error.transient, error.sent) == ("network", True, True)
                await proxy.until(lambda each: each.links[0].swallowed and not each.open)
                assert proxy.connections == 1  # a refresh is never sent twice by itself
            assert provider.facts()["success"] == before + 1
            with pytest.raises(GrantError, match="invalid_grant"):
                await refreshed(provider, http, metadata, client, first.refresh_token)


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_f10_2_half_a_token_answer_is_none(provider_with: Any, how: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            async with TcpProxy(provider.port) as proxy:
                far = through(proxy, metadata, provider)
                second = await refreshed(provider, http, far, client, first.refresh_token)
                whole = proxy.bytes_down
                proxy.script(
                    Plan(down=At(whole - 40, how))
                )  # the next one is as long, and ends with its scope
                with pytest.raises(GrantError) as caught:
                    await refreshed(provider, http, far, client, second.refresh_token)
                error = caught.value
                assert (error.code, error.transient, error.sent) == ("network", True, True)


async def test_f10_2_a_request_that_never_arrived_has_spent_nothing(provider_with: Any) -> None:
    with provider_with() as provider:
        async with a_login(provider) as (http, metadata, client, first):
            before = provider.facts()["token"]
            plans = (Plan(accept="reset"), Plan(accept="close"), Plan(up=At(50, "reset")))
            async with TcpProxy(provider.port, *plans) as proxy:
                far = through(proxy, metadata, provider)
                for _ in plans:
                    with pytest.raises(GrantError) as caught:
                        await refreshed(provider, http, far, client, first.refresh_token)
                    assert (caught.value.code, caught.value.transient) == ("network", True)
                await proxy.refuse()
                with pytest.raises(GrantError) as caught:
                    await refreshed(provider, http, far, client, first.refresh_token)
                assert (caught.value.transient, caught.value.sent) == (True, False)
            assert provider.facts()["token"] == before
            second = await refreshed(provider, http, metadata, client, first.refresh_token)
            assert provider.ask(second.access_token.reveal())[0] == 200


@pytest.mark.parametrize("method", ["none", "client_secret_basic"])
async def test_f11_6_a_server_that_starts_anew_with_nothing(provider_with: Any, method: Any) -> None:
    with provider_with(methods=[method]) as provider:
        async with a_login(provider) as (http, metadata, client, first):
            pass
    with provider_with(methods=[method], port=provider.port) as again:
        async with plain_http() as http:
            with pytest.raises(GrantError) as caught:
                await refreshed(again, http, metadata, client, first.refresh_token)
            assert (caught.value.code, caught.value.transient) == ("invalid_client", False)
            # A login with that client ends at a page of the server: no callback will ever come.
            begun = AuthorizationRequest.begin(
                metadata, client, redirect_uri=REDIRECT, resource=again.resource, scopes=("a",)
            )
            assert "invalid_client" in Browser().visit(begun.url, REDIRECT)
            # There is nothing to delete any more, which is what was wanted.
            assert await unregister(http, client, metadata, soon()) == "deleted"
            fresh = await register(http, metadata, Settings(), REDIRECT, soon())
            assert fresh.client_id != client.client_id
            tokens = await authorized(http, metadata, fresh, resource=again.resource, scopes=("a",))
            assert again.ask(tokens.access_token.reveal())[0] == 200


async def test_a_dpop_nonce_that_the_server_forgot_costs_one_exchange(provider_with: Any) -> None:
    known = {
        "redirect_uris": [],
        "response_types": [],
        "grant_types": ["client_credentials"],
        "client_id": "m",
        "client_secret": "s",
        "token_endpoint_auth_method": "client_secret_basic",
    }
    prover = dpop.Prover(dpop.new_key(), dpop.Nonces())

    async def asked(provider: Provider) -> int:
        """How many token requests one token took."""
        metadata = metadata_of(provider)
        before = provider.facts()["token"]
        async with plain_http() as http:
            settings = Settings(client_id="m", client_secret=Secret("s"), auth_method="client_secret_basic")
            client = await register(http, metadata, settings, "", soon())
            tokens = await grants.client_credentials(
                http,
                metadata,
                client,
                scopes=("a",),
                resource=provider.resource,
                deadline=soon(),
                prover=prover,
            )
        assert tokens.token_type == "DPoP"
        return int(provider.facts()["token"] - before)

    with provider_with(clients=[known], nonces=True) as provider:
        assert [await asked(provider), await asked(provider)] == [2, 1]
    with provider_with(clients=[known], nonces=True, port=provider.port) as again:
        assert [await asked(again), await asked(again)] == [2, 1]
