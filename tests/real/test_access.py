"""Tokens as a sender of requests gets them, of both authorization servers: all parts of ``auth`` together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from moorings.auth.flows import Account
from moorings.auth.service import Access, AuthService, ask_of
from moorings.config.auth_spec import AuthSettings
from moorings.store.memory_store import Memory, MemoryStore
from tests.real.oidc import Browser, Provider, request

pytestmark = pytest.mark.real

MOST_TRIES = 5


@dataclass
class Person:
    """Is asked, and says yes; keeps how often."""

    asked: int = 0
    browser: Browser = field(default_factory=Browser)

    async def __call__(self, url: str) -> str:
        self.asked += 1
        return self.browser.visit(url, "http://127.0.0.1:33418/callback")


def accessed(provider: Provider, person: Person | None, memory: Memory, **settings: Any) -> Access:
    async def store() -> MemoryStore:
        return MemoryStore(memory)

    service = AuthService(store, environ=dict)
    return service.access(
        Account(url=provider.resource, settings=AuthSettings(**settings), browser=person, within=10.0)
    )


async def served(access: Access, provider: Provider) -> int:
    """A request that is sent as often as it takes; how often that was."""
    until = asyncio.get_running_loop().time() + 20.0
    bearer = access.at_hand() or await access.bearer(until)
    anew = False
    for tries in range(1, MOST_TRIES + 1):
        sent = {} if bearer is None else access.headers(bearer, "GET", provider.resource)
        status, headers, _ = request("GET", provider.resource, sent)
        news = bearer is not None and access.learn(provider.resource, headers)
        if status == 200:
            return tries
        if news:
            continue
        challenges = headers.get_all("WWW-Authenticate") or ()
        ask = ask_of(status, challenges, bearer, operation="GET", anew=anew, able=True)
        assert ask is not None
        bearer, anew = await access.refused(bearer, until, ask), True
    raise AssertionError(f"refused {MOST_TRIES} times")


@pytest.fixture(params=["oidc-provider", "better-auth"])
def some_server(request: pytest.FixtureRequest) -> Any:
    """Either of them."""
    name = "provider_with" if request.param == "oidc-provider" else "better_auth_with"
    return request.getfixturevalue(name)


async def test_f10_1_a_person_logs_in_once_and_what_is_refused_is_renewed_without(some_server: Any) -> None:
    memory, person = Memory(), Person()
    with some_server() as provider:
        access = accessed(provider, person, memory)
        assert [await served(access, provider), await served(access, provider)] == [2, 1]
        for _ in range(3):
            provider.lever("expire")
            assert await served(access, provider) == 2
        await access.aclose()
        # Another life of the program, nobody at the screen.
        again = accessed(provider, None, memory)
        assert await served(again, provider) == 1
        provider.lever("expire")
        assert await served(again, provider) == 2
        await again.aclose()
        assert person.asked == 1 and provider.facts()["registered"] == 1


@pytest.mark.parametrize("apart", [False, True])
async def test_bound_tokens_with_nonces_of_both_servers(provider_with: Any, apart: bool) -> None:
    person = Person()
    with provider_with(nonces=True, apart=apart) as provider:
        access = accessed(provider, person, Memory(), dpop="on")
        assert await served(access, provider) == 3  # the login, and the nonce of the resource
        assert await served(access, provider) == 1
        provider.lever("new-nonce")
        assert await served(access, provider) == 2
        provider.lever("expire")
        assert await served(access, provider) <= 3
        assert access.known is not None and access.known.token_type == "DPoP"
        await access.aclose()
        assert person.asked == 1
