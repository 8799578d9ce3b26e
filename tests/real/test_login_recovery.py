"""Logins that come back: a server that forgot every client, and a refresh token that is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moorings.store.memory_store import Memory
from tests.real.test_access import Person, accessed, served

pytestmark = pytest.mark.real


async def test_f11_6_a_server_that_forgot_all_gets_a_new_registration(better_auth_with: Any) -> None:
    memory, person = Memory(), Person()
    with better_auth_with() as provider:
        access = accessed(provider, person, memory)
        await served(access, provider)
        await access.aclose()
    with better_auth_with(port=provider.port) as again:
        for attempt in range(
            3
        ):  # the first two end at an error page of the server, as no client is known there
            access = accessed(again, Person(), memory)
            try:
                await served(access, again)
                return
            except Exception as error:
                print(attempt, type(error).__name__, error)
            finally:
                await access.aclose()
    raise AssertionError("the dead registration is used for ever")


async def test_f10_1_a_lapsed_token_and_a_dead_refresh_token_ask_the_person_who_is_there(
    provider_with: Any,
) -> None:
    memory, person = Memory(), Person()
    with provider_with(accessSeconds=1, refreshSeconds=1) as provider:
        access = accessed(provider, person, memory)
        await served(access, provider)
        await asyncio.sleep(1.2)
        await served(access, provider)  # today: Dead, though there is a browser
        await access.aclose()
        assert person.asked == 2
