"""The floor over HTTP that the marks are measured by: a bare ``aiohttp.ClientSession``, and msgspec.

Used as its documentation says, one session for all servers, with as many connections as there are calls in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aiohttp
import measure
from floor import Tool
from floor_http import HttpFloor


class Client(HttpFloor):
    """Over aiohttp."""

    async def open(self) -> Sequence[Sequence[Tool]]:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return await super().open()

    async def close(self) -> None:
        await super().close()
        await self._session.close()

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> tuple[bytes, Mapping[str, str]]:
        async with self._session.post(url, data=body, headers=headers) as response:
            return await response.read(), response.headers

    async def delete(self, url: str, headers: dict[str, str]) -> None:
        async with self._session.delete(url, headers=headers) as response:
            await response.read()


if __name__ == "__main__":
    measure.main(Client)
