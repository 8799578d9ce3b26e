"""The official SDK again, with ``MooringsAuth`` in place of its own OAuth: the same sessions, other tokens.

Runs in the environment of Moorings, behind which the packages of the SDK's stand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

ENV = Path(__file__).resolve().parent.parent.parent / ".env"
sys.path.append(
    str(ENV / "compare-sdk" / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages")
)

import measure  # noqa: E402
import sdk  # noqa: E402

from moorings import AuthSettings, CredentialSettings, Secret  # noqa: E402
from moorings.adapters.httpx_auth import MooringsAuth  # noqa: E402


class Client(sdk.Client):
    """Its own, but for who gets the tokens."""

    def __init__(self, servers: Sequence[measure.Place], state: str) -> None:
        super().__init__(servers, state)
        (url,) = servers
        assert isinstance(url, str)
        name, secret = measure.MACHINE
        self.auth = MooringsAuth(
            url,
            auth=AuthSettings(flow="client_credentials", client_id=name, client_secret=Secret(secret)),
            credentials=CredentialSettings(store="memory"),
        )

    def streams(self, place: measure.Place) -> AbstractAsyncContextManager[Any]:
        return sdk.protected(str(place), self.auth)

    async def close(self) -> None:
        await super().close()
        await self.auth.aclose()


if __name__ == "__main__":
    measure.main(Client)
