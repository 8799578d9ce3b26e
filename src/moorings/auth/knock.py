"""One real request to an MCP server, to learn whether it wants a token, and whether it takes this one.

``server/discover`` of 2026-07-28 serves, as it is answered without a session and changes nothing; what an older server
answers does not matter, only whether it refuses it for the token (401). One that takes no POST there is one of
HTTP+SSE, and is asked for its stream. Nothing of an answer but its head is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import msgspec

from .._secret import Secret
from ..wire.eras import LATEST_MODERN, META_CAPABILITIES, META_CLIENT, META_VERSION
from .challenge import parse_challenges
from .dpop import Prover
from .http import AuthHttp, AuthNetError

__all__ = ["Knocked", "challenges_of", "is_let_in", "knock"]

METHOD = "server/discover"

NO_POST = frozenset({404, 405})
NO_ANSWER = frozenset({403, 407, 408, 429})
"""Refusals that say nothing of a token."""

Knocked = Literal["taken", "refused", "unknown"]
"""``refused``: 401, with or for want of a token. ``taken``: it was let in. ``unknown``: something is in the way."""


async def knock(
    http: AuthHttp,
    url: str,
    given: Mapping[str, str],
    *,
    within: float,
    token: Secret | None = None,
    prover: Prover | None = None,
) -> Knocked:
    """Ask the server with this token. ``given``: further headers; ``within``: seconds."""
    stream, nonces = False, 1
    while True:
        headers = dict(given)
        if token is not None:
            headers["Authorization"] = f"{'DPoP' if prover else 'Bearer'} {token.reveal()}"
        if token is not None and prover is not None:
            method = "GET" if stream else "POST"
            headers["DPoP"] = prover.proof(method, url, now=time.time(), access_token=token).reveal()
        try:
            status, answer = await _ask(http, url, headers, within, stream=stream)
        except AuthNetError:
            return "unknown"
        if status in NO_POST and not stream:
            stream = True
        elif status == 401:
            if nonces and prover is not None and prover.nonces.learn(url, answer):
                nonces -= 1  # It wanted a nonce of its own (RFC 9449 section 9).
                continue
            # Without a challenge it may be something in between that wants something else.
            schemes = {each.scheme for each in parse_challenges(_all(answer))}
            return "refused" if schemes & {"bearer", "dpop"} or token is None else "unknown"
        else:
            return "taken" if is_let_in(status) else "unknown"


def is_let_in(status: int) -> bool:
    """Whether this is the answer of the server itself to a request that it let in. What an older server says to the
    question does not matter; a redirect is that of something in between, to a page where people log in."""
    return status < 500 and not 300 <= status <= 399 and status != 401 and status not in NO_ANSWER


async def challenges_of(
    http: AuthHttp, url: str, given: Mapping[str, str], *, within: float
) -> tuple[int, tuple[str, ...]]:
    """What the server says to one without a token: the status and its ``WWW-Authenticate``.

    Raises:
        AuthNetError: it was not reached.
    """
    status, answer = await _ask(http, url, given, within, stream=False)
    if status in NO_POST:
        status, answer = await _ask(http, url, given, within, stream=True)
    return status, tuple(_all(answer))


async def _ask(
    http: AuthHttp, url: str, given: Mapping[str, str], within: float, *, stream: bool
) -> tuple[int, Mapping[str, str]]:
    if stream:
        return await http.knock(url, {**given, "Accept": "text/event-stream"}, None, within=within)
    return await http.knock(url, {**given, **_headers()}, _body(), within=within)


def _headers() -> dict[str, str]:
    return {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": LATEST_MODERN,
        "Mcp-Method": METHOD,
    }


def _body() -> bytes:
    from .._version import __version__

    meta = {
        META_VERSION: LATEST_MODERN,
        META_CAPABILITIES: {},
        META_CLIENT: {"name": "moorings", "version": __version__},
    }
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": METHOD, "params": {"_meta": meta}})


def _all(headers: Mapping[str, str]) -> list[str]:
    return list(headers.getall("WWW-Authenticate", ()))  # type: ignore[attr-defined]
