"""Which era a server speaks: the probe, the handshake, and what is remembered.

The owner of the server calls ``negotiate`` once per process. In ``auto`` a bounded ``server/discover`` goes first; a
modern answer or a modern error code means modern, everything else the handshake (F9). The probe stays open while
``initialize`` waits: a server that was merely slow to start may still show that it is modern. A server that exits on
the probe ends the session: the owner starts it once more, with ``probe=False``. Source: MCP ``basic/versioning``.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from ..errors import AmbiguousDelivery, CallError, NeedsLogin, Refused, StartError
from ..wire.eras import (
    EXTENSIONS,
    HANDSHAKE_REVISIONS,
    LATEST_HANDSHAKE,
    LATEST_MODERN,
    METHOD_NOT_FOUND,
    MODERN_ERRORS,
    MODERN_REVISIONS,
    Era,
    VerdictKind,
    client_capabilities,
    envelope,
    judge_probe_error,
    judge_probe_result,
    supported_list,
)
from ..wire.http_rules import ProbeKind, judge_http_probe
from ..wire.jsonrpc import RpcError
from ..wire.types import (
    DiscoverResult,
    Implementation,
    InitializeResult,
    InvalidAnswer,
    ServerCapabilities,
    decode_result,
)
from .clock import CallClock
from .handlers import Handlers
from .pending import Pending
from .session import Session

__all__ = ["Negotiated", "Start", "negotiate"]

Start = Literal["probe", "handshake", "modern"]
"""How to begin: find out, or with what was remembered or configured."""


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """What was settled with a server."""

    era: Era
    revision: str
    capabilities: ServerCapabilities
    server_info: Implementation | None = None
    instructions: str | None = None
    proven_modern: bool = False
    """True if the server showed that it is modern, even where this process speaks the handshake with it."""


ASKED_AGAIN = 1.0
"""Seconds after which a modern server that has not answered the probe is asked once more."""


class _Unsuitable(Exception):
    """The server refused the way of speaking that was tried."""

    def __init__(self, error: CallError | StartError) -> None:
        super().__init__(str(error))
        self.error = error


class _ModernAnswer(_Unsuitable):
    """It shook hands on a revision that has no handshake."""


async def negotiate(
    session: Session,
    handlers: Handlers,
    client: dict[str, str],
    *,
    start: Start,
    strict: bool,
    probe_limit: float,
    deadline: float,
) -> Negotiated:
    """Settle the era with a fresh process.

    Args:
        start: what is known of the server.
        strict: True if ``start`` was configured: nothing else is tried.
        probe_limit: seconds that the probe may take before the server is taken for one of the handshake era.
        deadline: the loop's time at which all of it must be over.

    Raises:
        StartError: no revision in common, or the server refuses.
        CallError: the connection ended, or the deadline passed.
    """
    talk = _Talk(session, handlers, client, deadline)
    try:
        if start == "handshake":
            try:
                return await talk.initialize()
            except _Unsuitable:
                if strict:
                    raise
                # What was remembered does not fit any more: find out, once (F9.6).
                return await talk.discover_only()
        if strict:
            return await talk.discover_only()
        # A server that is remembered as modern gets half of the time before anything else is tried.
        left = deadline - asyncio.get_running_loop().time()
        return await talk.probe(probe_limit if start == "probe" else max(probe_limit, left / 2))
    except _Unsuitable as unsuitable:
        raise talk.refused(unsuitable.error) from None


class _Talk:
    """The steps of one negotiation."""

    def __init__(self, session: Session, handlers: Handlers, client: dict[str, str], deadline: float) -> None:
        self._session = session
        self._handlers = handlers
        self._client = client
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()

    def _clock(self, limit: float | None = None) -> CallClock:
        now = self._loop.time()
        left = max(self._deadline - now, 0.0)
        seconds = left if limit is None else min(limit, left)
        return CallClock.of(now, seconds, seconds)

    def _capabilities(self, era: Era) -> dict[str, Any]:
        handlers = self._handlers
        return client_capabilities(
            roots=handlers.roots is not None,
            sampling=handlers.sample is not None,
            elicitation_form=handlers.elicit is not None,
            elicitation_url=handlers.elicit_url is not None,
            era=era,
            extensions=EXTENSIONS,
        )

    def _meta(self, revision: str) -> dict[str, Any]:
        return envelope(revision, self._capabilities(Era.MODERN), self._client)

    # The probe

    async def probe(self, limit: float) -> Negotiated:
        """Ask for the modern era; whatever is no modern answer means the handshake."""
        revision = LATEST_MODERN
        pending = self._session.begin(
            "server/discover", {"_meta": self._meta(revision)}, self._clock(), label="server/discover"
        )
        try:
            done, _ = await asyncio.wait({pending.future}, timeout=limit)
            if not done:
                return await self._handshake_beside(pending)
            raw = pending.future.result()
        except asyncio.CancelledError:
            if not pending.done:
                self._session.cancel(pending, "the start was given up")
            raise
        except Refused as error:
            return await self._after_probe_error(error, revision)
        except AmbiguousDelivery as error:
            # An answer that cannot be read is no sign of the modern era either. An ended connection is the owner's.
            if self._session.end is not None or not _decides(error):
                raise
            return await self.initialize_or_fail()
        return await self._after_probe_result(bytes(raw), revision)

    async def _after_probe_error(self, error: Refused, asked: str) -> Negotiated:
        if not _decides(error):
            raise self.refused(error)
        verdict = judge_probe_error(_rpc(error), asked)
        if error.http is not None and error.http.status == 404 and error.rpc_code == METHOD_NOT_FOUND:
            # Only a modern server says "unknown method" with both.
            return self._settle_modern(asked, None)
        if verdict.kind is VerdictKind.HANDSHAKE:
            return await self.initialize_or_fail()
        if verdict.kind is VerdictKind.MODERN:
            return self._settle_modern(asked, None)
        if verdict.kind is VerdictKind.ASK_AGAIN:
            return await self._discover(verdict.revision)
        if asked in verdict.supported:
            # It refuses the very revision that it lists: once more, and then no more.
            return await self._discover_again(asked)
        raise self._nothing_in_common(verdict.supported)

    async def _discover_again(self, revision: str) -> Negotiated:
        try:
            return await self._discover(revision)
        except Refused as error:
            raise self.refused(error) from None

    async def _after_probe_result(self, raw: bytes, asked: str) -> Negotiated:
        try:
            discovered = decode_result(raw, DiscoverResult)
        except InvalidAnswer:
            # Any other answer, in whatever form, is no sign of the modern era.
            return await self.initialize_or_fail()
        verdict = judge_probe_result(discovered.supported_versions, asked)
        if verdict.kind is VerdictKind.HANDSHAKE:
            return await self.initialize_or_fail()
        if verdict.kind is VerdictKind.INCOMPATIBLE:
            raise self._nothing_in_common(verdict.supported)
        return self._settle_modern(verdict.revision, discovered)

    async def _handshake_beside(self, pending: Pending) -> Negotiated:
        """The probe is silent: shake hands, and still hear the probe if it answers late."""
        try:
            negotiated = await self.initialize()
        except _Unsuitable as unsuitable:
            # Nothing else is left to try: a server that was merely slow may still show that it is modern.
            left = max(0.0, self._deadline - self._loop.time()) / 2
            modern = isinstance(unsuitable, _ModernAnswer) or _rpc_code(unsuitable.error) in MODERN_ERRORS
            # One that has shown itself to be modern can be asked once more.
            await asyncio.wait({pending.future}, timeout=min(left, ASKED_AGAIN) if modern else left)
            late_error = pending.future.exception() if pending.done else None
            if pending.done and late_error is None:
                return await self._after_probe_result(bytes(pending.future.result()), LATEST_MODERN)
            if isinstance(late_error, Refused) and _rpc_code(late_error) in MODERN_ERRORS:
                return await self._after_probe_error(late_error, LATEST_MODERN)
            if modern:
                return await self.discover_only()
            raise self.refused(unsuitable.error) from None
        finally:
            late = pending.done and pending.future.exception() is None
            if not pending.done:
                self._session.cancel(pending, "no answer to the probe")
        if late:
            try:
                versions = decode_result(bytes(pending.future.result()), DiscoverResult).supported_versions
            except InvalidAnswer:
                versions = []
            if any(r in versions for r in MODERN_REVISIONS):
                return msgspec.structs.replace(negotiated, proven_modern=True)
        return negotiated

    # The modern era

    async def discover_only(self) -> Negotiated:
        """Discover with a server that is known, or has shown itself, to be modern."""
        try:
            return await self._discover(LATEST_MODERN)
        except Refused as error:
            verdict = judge_probe_error(_rpc(error), LATEST_MODERN)
            if verdict.kind is VerdictKind.INCOMPATIBLE:
                raise self._nothing_in_common(verdict.supported) from None
            if verdict.kind is VerdictKind.MODERN:
                return self._settle_modern(LATEST_MODERN, None)
            raise _Unsuitable(error) from None

    async def _discover(self, revision: str) -> Negotiated:
        raw = await self._session.request(
            "server/discover", {"_meta": self._meta(revision)}, self._clock(), label="server/discover"
        )
        try:
            discovered = decode_result(bytes(raw), DiscoverResult)
        except InvalidAnswer as error:
            raise StartError(
                f"its answer to server/discover cannot be read: {error}", server=self._session.server
            ) from None
        verdict = judge_probe_result(discovered.supported_versions, revision)
        if verdict.kind is VerdictKind.HANDSHAKE:
            raise _Unsuitable(
                Refused(
                    "it speaks the handshake revisions only",
                    server=self._session.server,
                    tool="server/discover",
                )
            )
        if verdict.kind is VerdictKind.INCOMPATIBLE:
            raise self._nothing_in_common(verdict.supported)
        return self._settle_modern(verdict.revision, discovered)

    def _settle_modern(self, revision: str, discovered: DiscoverResult | None) -> Negotiated:
        self._session.settle(Era.MODERN, revision, self._meta(revision))
        return Negotiated(
            era=Era.MODERN,
            revision=revision,
            capabilities=discovered.capabilities if discovered else ServerCapabilities(),
            server_info=discovered.server_info if discovered else None,
            instructions=discovered.instructions if discovered else None,
            proven_modern=True,
        )

    # The handshake era

    async def initialize_or_fail(self) -> Negotiated:
        """Shake hands; a refusal is final."""
        try:
            return await self.initialize()
        except _Unsuitable as unsuitable:
            raise self.refused(unsuitable.error) from None

    async def initialize(self, revision: str = LATEST_HANDSHAKE, *, again: bool = True) -> Negotiated:
        """Shake hands. Raises _Unsuitable when the server refuses."""
        session = self._session
        params = {
            "protocolVersion": revision,
            "capabilities": self._capabilities(Era.HANDSHAKE),
            "clientInfo": self._client,
        }
        try:
            raw = await session.request("initialize", params, self._clock())
        except Refused as error:
            listed = supported_list(error.data) or ()
            mutual = [r for r in reversed(HANDSHAKE_REVISIONS) if r in listed and r != revision]
            if again and mutual:
                return await self.initialize(mutual[0], again=False)
            raise _Unsuitable(error) from None
        try:
            result = decode_result(bytes(raw), InitializeResult)
        except InvalidAnswer as error:
            unreadable = StartError(
                f"its answer to initialize cannot be read: {error}", server=session.server
            )
            raise _Unsuitable(unreadable) from None
        if result.protocol_version in MODERN_REVISIONS:
            raise _ModernAnswer(self._nothing_in_common((result.protocol_version,)))
        if result.protocol_version not in HANDSHAKE_REVISIONS:
            raise self._nothing_in_common((result.protocol_version,))
        session.settle(Era.HANDSHAKE, result.protocol_version)
        session.notify("notifications/initialized")
        return Negotiated(
            era=Era.HANDSHAKE,
            revision=result.protocol_version,
            capabilities=result.capabilities,
            server_info=result.server_info,
            instructions=result.instructions,
        )

    # Failures

    def refused(self, error: CallError | StartError) -> StartError:
        """The failure of a start that the server's refusal means."""
        if isinstance(error, StartError):
            return error
        refused = StartError(
            f"it refused {error.tool or 'initialize'}: {error.message}", server=self._session.server
        )
        refused.http = error.http
        refused.rpc_code = _rpc_code(error)
        if isinstance(error, Refused):
            refused.fix = error.fix
        if isinstance(error, NeedsLogin):
            refused.needs = error.reason
        return refused

    def _nothing_in_common(self, theirs: tuple[str, ...]) -> StartError:
        ours = ", ".join((*HANDSHAKE_REVISIONS, *MODERN_REVISIONS))
        return StartError(
            f"no protocol revision in common: it speaks {', '.join(theirs) or 'none that it names'}; we speak {ours}",
            server=self._session.server,
            fix="use a version of the server that speaks one of ours",
        )


def _decides(error: CallError) -> bool:
    """Whether an answer to the probe says anything of the era: a wish for authorization does not, nor what stands in
    between or is the matter of a moment."""
    if error.http is None or not isinstance(error, Refused | AmbiguousDelivery):
        return True
    if 300 <= error.http.status < 400:
        # A page in front of it may catch what it does not know: whether that is all there is, ``initialize`` shows.
        return True
    kind = judge_http_probe(error.http.status, None).kind
    # Whatever stands in the body of a 401: who asks for credentials speaks either era (F9.4).
    if kind is ProbeKind.NOTHING:
        return _rpc_code(error) in MODERN_ERRORS
    return kind is not ProbeKind.AUTHORIZE


def _rpc_code(error: CallError | StartError) -> int | None:
    return error.rpc_code if isinstance(error, Refused) else None


def _rpc(error: CallError) -> RpcError:
    assert isinstance(error, Refused)
    return RpcError(error.rpc_code or 0, error.message, error.data)
