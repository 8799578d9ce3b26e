"""The token side of one message: what it carries, and what is done when the server refuses it for that (401, 403).

Made for each message by both HTTP transports. Nothing is held while a request is under way, nor while a token is waited
for: that work is the broker's (``auth/broker.py``), and whoever waits here may stop at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._tasks import run_in_thread
from ..config.headers import same_name
from .base import Failure, Request

if TYPE_CHECKING:
    from ..auth.asked import Ask, Bearer
    from ..auth.faults import AuthFault
    from ..auth.service import Access
    from ..net.exchange import Answer

__all__ = ["Gate", "Pass", "Withheld"]

MOST_REFUSALS = 2
"""Refusals of one message after which another token is asked for: the first may be old, the second was new."""
MOST_NONCES = 2
"""Times that one message is sent again with a nonce that the server gave (RFC 9449 §9)."""

LOG_IN = "log in: moor login {name}; it goes on by itself as soon as that is done"

AGAIN = "it is tried again when it is used next, after a pause; see whether what failed is well by then"

_NOTHING: Mapping[str, str] = {}


class Gate:
    """Where the tokens of one server come from. Nothing of OAuth is loaded before there is a sign that the server is
    protected: something stored, or a refusal."""

    def __init__(self, make: Callable[[], Access], *, signs: bool) -> None:
        """``signs``: something is stored, that may be for this server."""
        self._make = make
        self._signs = signs
        self.access: Access | None = None
        """None while there is no sign."""
        self.logged_in = False
        """True once a person logged in while a message waited for it."""

    def open(self) -> Access:
        """There is a sign."""
        if self.access is None:
            self.access = self._make()
        return self.access

    async def prepare(self) -> None:
        """Before the first message: load what it will take, where there are signs."""
        if self._signs and self.access is None:
            await run_in_thread(_load, name="moorings-load")
            self.open()

    @property
    def waits_for_person(self) -> bool:
        """True while a person is at a login to it."""
        return self.access is not None and self.access.waits_for_person

    def secrets(self) -> tuple[str, ...]:
        """What a server must not be shown to repeat."""
        return () if self.access is None else self.access.secrets()

    def leave(self) -> None:
        """It is used no more."""
        if self.access is not None:
            self.access.leave()

    async def aclose(self) -> None:
        """It is used no more; the last user of a broker waits a moment for its end."""
        if self.access is not None:
            await self.access.aclose()


def _load() -> None:
    from ..auth import service, shared  # noqa: F401


class Withheld(Exception):
    """There is no token for a message, so it is not sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Pass:
    """See the module."""

    __slots__ = ("_bearer", "_gate", "_nonces", "_operation", "_own", "_refusals", "_since")

    def __init__(self, gate: Gate | None, operation: str) -> None:
        """``operation`` is the method and what it names: scopes are raised for it, and tries are counted for it."""
        self._gate = gate
        self._operation = operation
        self._own = False
        """True if the user's headers hold a login of their own: then it is none of ours."""
        self._bearer: Bearer | None = None
        self._refusals = 0
        self._since = 0.0
        """By the wall clock: when it was refused first."""
        self._nonces = 0

    async def headers(
        self, method: str, url: str, given: Mapping[str, str], request: Request | None = None
    ) -> Mapping[str, str]:
        """What the message carries beside the headers that the user gave.

        Raises:
            Withheld: a login is needed, or no token came in time.
        """
        access = self._gate.access if self._gate is not None else None
        if access is None:
            self._own = self._gate is not None and same_name("authorization", given) is not None
            return _NOTHING
        self._own = same_name("authorization", given) is not None
        if self._own or access.has_none:
            self._bearer = None
            return _NOTHING
        from ..auth.faults import AuthFault

        try:
            bearer = access.at_hand()
            if bearer is None:
                began = time.time()
                with _standing_still(access, request):
                    bearer = await access.bearer(self._until(access))
                self._look(access, bearer, began)
            self._bearer = bearer
            return _NOTHING if bearer is None else access.headers(bearer, method, url)
        except AuthFault as fault:
            raise Withheld(_failure(access, fault, None)) from None
        except TimeoutError:
            raise Withheld(_too_slow(access, None)) from None

    def last_headers(self, method: str, url: str, given: Mapping[str, str]) -> Mapping[str, str]:
        """As ``headers``, for what is said at the end: nothing is waited for, and nothing new is begun.

        Raises:
            Withheld: there is no token at hand.
        """
        access = self._gate.access if self._gate is not None else None
        if access is None or same_name("authorization", given) is not None or access.has_none:
            return _NOTHING
        from ..auth.faults import AuthFault

        bearer = access.at_hand(ahead=False)
        if bearer is None:
            raise Withheld(Failure(kind="unsent", reason="there is no token any more"))
        try:
            return access.headers(bearer, method, url)
        except AuthFault as fault:
            raise Withheld(_failure(access, fault, None)) from None

    async def refused(self, answer: Answer, given: Mapping[str, str]) -> Ask | None:
        """What an answer asks for, if it refuses the message for want of a (better) token; else None."""
        gate = self._gate
        if gate is None or self._own:
            return None
        bearer, access = self._bearer, gate.access
        if access is None:
            if answer.status not in (401, 403):
                return None
            # What OAuth needs is loaded now, for the first time perhaps, and not on the loop.
            await run_in_thread(_load, name="moorings-load")
            access = gate.open()
        news = bearer is not None and bearer.scheme == "DPoP" and access.learn(answer.url, answer.headers)
        if answer.status not in (401, 403):
            if answer.status < 400:
                access.served(self._operation)
            return None
        from ..auth.asked import Ask
        from ..auth.service import ask_of

        headers: Any = answer.headers
        challenges = headers.getall("WWW-Authenticate", ())
        if news and answer.status == 401 and self._nonces < MOST_NONCES:
            self._nonces += 1
            return Ask(nonce=True)
        return ask_of(
            answer.status,
            challenges,
            bearer,
            operation=self._operation,
            # Else it is one that was there already: it may be old, and is renewed first.
            anew=self._refusals > 0 and bearer is not None and bearer.credential.obtained_at >= self._since,
            able=access.able and not given,
        )

    async def again(self, ask: Ask, failure: Failure, request: Request | None = None) -> Failure | None:
        """Get what a refusal asks for. None: it is there, and the message is sent once more; else why there is none.

        ``failure`` is what the refusal means if nothing comes.
        """
        assert self._gate is not None
        access = self._gate.open()
        if ask.nonce:
            return None
        if self._refusals == MOST_REFUSALS:
            return _in_vain(access, ask, failure)
        began = time.time()
        self._since = self._since or began
        self._refusals += 1
        from ..auth.faults import AuthFault

        try:
            with _standing_still(access, request):
                self._bearer = await access.refused(self._bearer, self._until(access), ask)
            self._look(access, self._bearer, began)
        except AuthFault as fault:
            return _failure(access, fault, failure)
        except TimeoutError:
            return _too_slow(access, failure)
        return None

    def _look(self, access: Access, bearer: Bearer | None, began: float) -> None:
        """Whether it was a person that was waited for."""
        if self._gate is not None and access.asks and bearer is not None:
            granted = bearer.credential.granted_at
            if granted is not None and granted >= began:
                self._gate.logged_in = True

    def _until(self, access: Access) -> float:
        return asyncio.get_running_loop().time() + access.patience


@contextlib.contextmanager
def _standing_still(access: Access, request: Request | None) -> Iterator[None]:
    """A person's time is not that of the request that waits for their login."""
    if request is None or not access.asks:
        yield
        return
    loop = asyncio.get_running_loop()
    request.login_begins(loop.time(), access.patience)
    try:
        yield
    finally:
        request.question_ends(loop.time())


def _failure(access: Access, fault: AuthFault, refusal: Failure | None) -> Failure:
    from ..auth.faults import passes
    from ..auth.needs import TO_CONFIGURE, needs_of

    needs = "" if passes(fault) else needs_of(fault)
    if not needs:
        fix: str | None = AGAIN
    else:
        fix = TO_CONFIGURE.get(
            needs, LOG_IN.format(name=shlex.quote(access.account.name or access.account.url))
        )
    reason = fault.reason
    if refusal is not None:
        # What a person has to do something about comes first.
        reason = f"{fault.reason}; {refusal.reason}" if needs else f"{refusal.reason}; {fault.reason}"
    return Failure(
        kind="unsent" if refusal is None else refusal.kind,
        reason=reason,
        http=None if refusal is None else refusal.http,
        fix=fault.fix or fix,
        needs=needs,
        had_login=access.carried,
    )


def _in_vain(access: Access, ask: Ask, refusal: Failure) -> Failure:
    """What it means that the tokens got for this very message do not do: more of them would not, either."""
    from ..auth.model import ALONE

    if ask.insufficient:
        reason = f"{ask.operation} was refused for its scopes after {MOST_REFUSALS} new tokens"
        fix, needs = "the account may lack the right to it, or auth.scopes must name more", "scope"
    else:
        reason = "it does not take the tokens that were got for it, either"
        fix = "see whether auth.issuer and auth.resource are those of this server"
        # Where each try would send a person to a browser, it rests; without one it is tried again as any start.
        needs = "" if access.account.kind in ALONE else "server"
    return Failure(
        kind=refusal.kind,
        reason=f"{refusal.reason}; {reason}",
        http=refusal.http,
        fix=fix,
        needs=needs,
    )


def _too_slow(access: Access, refusal: Failure | None) -> Failure:
    reason = f"no token came within {access.patience:.4g} s"
    return Failure(
        kind="unsent" if refusal is None else refusal.kind,
        reason=reason if refusal is None else f"{refusal.reason}; {reason}",
        http=None if refusal is None else refusal.http,
        fix=AGAIN,
    )
