"""What hands out tokens for protected servers: an ``AuthService`` for a store and process, an ``Access`` for each user.

The service joins the broker to what it stands on: the store, the connections to authorization servers, the flow of each
account. Made by whoever configures a store (``shared.py`` keeps one for each); holds nothing while no ``Access`` is
awake. An ``Access`` is made by a sender of requests (a transport, an ``httpx`` client) and ended by it; it sleeps, and
costs nothing, while there is no sign that its server is protected.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from .._secret import Secret
from ..store.credentials import CredentialStore, StoreError
from .asked import Ask, Bearer, Subject
from .broker import Broker
from .callback import Listeners
from .challenge import bearer as bearer_of
from .challenge import parse_challenges
from .dpop import Nonces, Prover
from .faults import LoginAbandoned, NeedsPerson, NotWanted
from .flows import Account, AccountFlow
from .http import AuthHttp, on_this_machine
from .knock import Knocked, challenges_of, is_let_in
from .model import ALONE
from .renewal import Gone, Postponed
from .scopes import parse_scope
from .wanted import Wanted
from .worker import Ending

if TYPE_CHECKING:
    from ..net.client import Net
    from .model import Credential

__all__ = ["Access", "AuthService", "LoginUnderWay", "ask_of"]

MOST_LEFT = 64
"""Subjects that nobody uses now and of which is remembered what failed; of older ones the store knows what counts."""
SENT = 4
"""Tokens that were sent of late and are remembered, as a server may repeat them."""
END_WITHIN = 2.0
"""Seconds for which the last user waits for the end of the broker's thread; what it finishes goes on by itself."""


_inherited: list[object] = []
"""Connections of the parent, in a forked child."""


class AuthService:
    """See the module."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[CredentialStore]],
        *,
        may_hold: Callable[[], bool] = lambda: True,
        environ: Callable[[], Mapping[str, str]],
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            open_store: makes the store, on the broker's loop.
            may_hold: a quick look whether something may be stored, so whether it is worth opening.
            environ: the environment that says which proxies are used.
        """
        self.may_hold = may_hold
        self.nonces = Nonces()
        self._environ = environ
        self._wall = wall
        self._net: Net | None = None
        self._listeners: Listeners | None = None
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._accounts: dict[Subject, list[Account]] = {}
        """Those of the users there are, by subject."""
        self._flows: dict[Subject, tuple[Account, AccountFlow]] = {}
        self._left: dict[Subject, None] = {}
        """Those that nobody uses, the latest last."""
        self.broker = Broker(
            open_store,
            flow=self._flow,
            closing=self._close_net,
            forked=self._forget_net,
            wall=wall,
            steady=steady,
        )

    def access(self, account: Account) -> Access:
        """For one user of one account. Raises ValueError: the URL is none of http or https."""
        subject = account.subject
        with self._gate:
            self._accounts.setdefault(subject, []).append(account)
            self._left.pop(subject, None)
        return Access(self, account, subject)

    def forget(self, subject: Subject, account: Account) -> None:
        """One user less. A login that nobody waits for any more is given up."""
        with self._gate:
            users = [each for each in self._accounts.get(subject, ()) if each is not account]
            if users:
                self._accounts[subject] = users
            else:
                self._accounts.pop(subject, None)
                self._left[subject] = None
            oldest = next(iter(self._left)) if len(self._left) > MOST_LEFT else None
            if oldest is not None:
                del self._left[oldest]
        if oldest is not None:
            self.broker.run(partial(self._drop, oldest))
        made = self._flows.get(subject)
        if made is not None and not users:
            self.broker.run(made[1].abandon)

    def _drop(self, subject: Subject) -> None:
        if subject not in self._accounts:
            self._flows.pop(subject, None)
            self.broker.forget(subject)

    def _flow(self, subject: Subject) -> AccountFlow | None:
        users = self._accounts.get(subject)
        if not users:
            return None
        # Of several, one that can ask a person; else the latest.
        account = next((each for each in users if each.asks), users[-1])
        made = self._flows.get(subject)
        if made is not None and made[0] is account:
            return made[1]
        flow = self._make_flow(account)
        self._flows[subject] = (account, flow)
        return flow

    def flow_of(self, account: Account) -> AccountFlow:
        """A flow for one account alone, on the broker's loop."""
        return self._make_flow(account)

    def _make_flow(self, account: Account) -> AccountFlow:
        if self._net is None:
            from ..net.client import Net

            self._net = Net(self._environ)
        settings = account.settings
        net = account.net
        if settings.user_agent is not None:
            net = msgspec.structs.replace(net, user_agent=settings.user_agent)
        http = AuthHttp(
            self._net,
            net,
            loopback=on_this_machine(account.url, settings.issuer, settings.idp_issuer),
            private_networks=settings.private_networks,
        )
        if self._listeners is None:
            self._listeners = Listeners()
        return AccountFlow(account, http, self.nonces, self._listeners, wall=self._wall)

    def _forget_net(self) -> None:
        if self._listeners is not None:
            # The port is the parent's: it must not stay taken for as long as this process lives.
            self._listeners.forget_after_fork()
        _inherited.append((self._net, self._listeners))  # not to be finalized here
        self._net = self._listeners = None
        self._flows.clear()

    async def _close_net(self) -> None:
        net, self._net = self._net, None
        listeners, self._listeners = self._listeners, None
        self._flows.clear()
        if listeners is not None:
            await listeners.aclose()
        if net is not None:
            await net.aclose()


class Access:
    """The tokens of one account, for one user. Any thread and loop may use it; ``aclose`` or ``close`` ends it."""

    def __init__(self, service: AuthService, account: Account, subject: Subject) -> None:
        self.account = account
        self.subject = subject
        self._service = service
        self._broker = service.broker
        self._provers: dict[str, Prover] = {}
        self._raised: set[str] = set()
        """Operations for which the scopes were raised, and that have not run since."""
        self.carried = False
        """True once a request carried a token."""
        self._sent: deque[Secret] = deque(maxlen=SENT)
        self._gate = threading.Lock()  # held for bookkeeping alone
        self._joined = False
        self._ended = False
        self._over: Ending | None = None
        if service.may_hold():
            self.wake()

    @property
    def patience(self) -> float:
        """Seconds for which a request waits for a token: what is said to servers, and a person where one is asked."""
        account = self.account
        return 2 * account.within + (account.settings.timeout if self.asks else 0.0)

    @property
    def asks(self) -> bool:
        """True if there is a person who may be asked to log in."""
        return self.account.asks

    @property
    def waits_for_person(self) -> bool:
        """True while a person is at a login."""
        return self._joined and self._broker.waits_for_person(self.subject)

    @property
    def able(self) -> bool:
        """True if a first token can be got: without a person, or as there is one to ask."""
        return self.account.kind in ALONE or self.asks

    @property
    def awake(self) -> bool:
        """True once there is a sign that its server is protected: something stored, or a refusal."""
        return self._joined

    def wake(self) -> None:
        """Begin to use the broker."""
        with self._gate:
            # Of threads that are refused at once, one joins: it will leave once.
            if not self._joined and not self._ended:
                self._broker.join(self)
                self._joined = True

    @property
    def known(self) -> Credential | None:
        """The credential in memory, usable or not."""
        return self._broker.known(self.subject)

    # Tokens

    def at_hand(self, *, ahead: bool = True) -> Bearer | None:
        """A token that can be sent now, without waiting; see ``Broker.at_hand``."""
        return self._broker.at_hand(self.subject, ahead=ahead) if self._joined else None

    @property
    def has_none(self) -> bool:
        """True if it is known that there is none, so that a request is sent without."""
        return not self._joined or self._broker.has_none(self.subject)

    async def bearer(self, until: float) -> Bearer | None:
        """See ``Broker.bearer``. Where the store cannot be read, and nothing is known, there is none for now: what
        needs no token must not depend on it, and what does is refused and asks again."""
        try:
            return None if self.has_none else await self._broker.bearer(self.subject, until)
        except Postponed:
            if self.known is not None:
                raise
            return None

    async def refused(self, bearer: Bearer | None, until: float, ask: Ask) -> Bearer:
        """See ``Broker.refused``."""
        self._before(ask)
        return await self._broker.refused(self.subject, bearer, until, ask)

    def wait_bearer(self, timeout: float) -> Bearer | None:
        """As ``bearer``, for a thread without a loop."""
        try:
            return None if self.has_none else self._broker.wait_bearer(self.subject, timeout)
        except Postponed:
            if self.known is not None:
                raise
            return None

    def wait_refused(self, bearer: Bearer | None, timeout: float, ask: Ask) -> Bearer:
        """As ``refused``, for a thread without a loop."""
        self._before(ask)
        return self._broker.wait_refused(self.subject, bearer, timeout, ask)

    def _before(self, ask: Ask) -> None:
        self.wake()
        if ask.insufficient:
            self._raised.add(ask.operation)

    def served(self, operation: str) -> None:
        """A request was answered."""
        if self._raised and operation in self._raised:
            self._raised.discard(operation)
            self._broker.served(self.subject, operation)

    def on_change(self, told: Callable[[], None]) -> Callable[[], None]:
        """See ``Broker.on_change``; it wakes."""
        self.wake()
        return self._broker.on_change(self.subject, told)

    # Requests

    def headers(self, bearer: Bearer, method: str, url: str) -> dict[str, str]:
        """What a request carries.

        Raises:
            AuthFault: the token is bound to a key that cannot be used.
        """
        self.carried = True
        if bearer.token not in self._sent:
            self._sent.append(bearer.token)
        credential = bearer.credential
        if bearer.scheme != "DPoP" or credential.dpop_jwk is None:
            return {"Authorization": f"{bearer.scheme} {bearer.token.reveal()}"}
        proof = self._prover(credential.dpop_jwk.reveal(), bearer).proof(
            method, url, now=time.time(), access_token=bearer.token
        )
        return {"Authorization": f"DPoP {bearer.token.reveal()}", "DPoP": proof.reveal()}

    def _prover(self, jwk: str, bearer: Bearer) -> Prover:
        prover = self._provers.get(jwk)
        if prover is None:
            assert bearer.credential.dpop_jwk is not None
            self._provers = {jwk: Prover(bearer.credential.dpop_jwk, self._service.nonces)}
            prover = self._provers[jwk]
        return prover

    def learn(self, url: str, headers: Mapping[str, str]) -> bool:
        """Take the nonce that an answer brings for DPoP; True if it is new."""
        return self._service.nonces.learn(url, headers)

    def secrets(self) -> tuple[str, ...]:
        """What a server must not be shown to repeat: the tokens of now, and those sent of late."""
        current = self._broker.known(self.subject)
        if current is None:
            return tuple(each.reveal() for each in self._sent)
        given = (*self._sent, current.access_token, current.refresh_token, current.registration.client_secret)
        return tuple(dict.fromkeys(each.reveal() for each in given if each))

    def log_in(self, account: Account, bearer: Bearer | None, *, force: bool) -> LoginUnderWay:
        """Begin a login that somebody asked for.

        Args:
            account: of the same subject, with whom may be asked for this login alone.
            bearer: what is there, and will do if the server takes it.
            force: log in whatever there is, and whether or not the server wants it.
        """
        self.wake()
        return LoginUnderWay(self._service, account, self.subject, bearer, force=force)

    # The end

    def leave(self) -> Ending | None:
        """It is used no more. Returns what tells when nothing of the broker runs, for the last one to leave."""
        with self._gate:
            self._ended, self._joined = True, False
        # Each step whether or not it was done before: that may have been cut off by Ctrl-C.
        self._service.forget(self.subject, self.account)
        over = self._broker.leave(self)
        if over is not None:
            self._over = over
        return self._over

    async def aclose(self) -> None:
        """It is used no more; the last user waits a moment for the end of the broker's thread."""
        over = self.leave()
        if over is not None:
            try:
                await over.outcome(asyncio.get_running_loop().time() + END_WITHIN)
            except TimeoutError:
                pass  # A refresh is finished, and its lock given back, whoever waits.

    def close(self) -> None:
        """As ``aclose``, for a thread without a loop."""
        over = self.leave()
        if over is not None:
            try:
                over.wait(END_WITHIN)
            except TimeoutError:
                pass  # As above.


class LoginUnderWay:
    """A login that somebody asked for, from any thread or loop. See ``Access.log_in``."""

    def __init__(
        self, service: AuthService, account: Account, subject: Subject, bearer: Bearer | None, *, force: bool
    ) -> None:
        self._service = service
        self._account = account
        self._bearer = bearer
        self._force = force
        self._flow: AccountFlow | None = None
        self._wanted = Wanted()
        """What is said to servers outside of an attempt, which looks to that itself."""
        self.fresh = True
        """False: what there was does."""
        self.proof: Knocked | Literal["open"] = "unknown"
        """``taken``: the server refuses what comes without a token, and takes this. ``open``: it refuses nothing."""
        self.unsaved: StoreError | None = None
        """Why it could not be stored, if so."""
        self.outcome = service.broker.log_in(subject, self._obtain)
        """What came of it; raises ``AuthFault``, ``StoreError``."""

    def cancel(self) -> None:
        """Nobody wants it any more; it has an outcome soon, and has changed nothing unless it was done."""
        self._wanted.abandoned = True
        self._service.broker.run(self._abandon)

    def _abandon(self) -> None:
        self._wanted.abandon()
        if self._flow is not None:
            self._flow.abandon()

    async def _obtain(self, store: CredentialStore, known: Credential | None) -> Credential:
        flow = self._flow = self._service.flow_of(self._account)
        async with self._wanted.work():
            open_, challenges = await self._looked()
            if self._bearer is not None and not self._force:
                self.proof = await flow.proven(self._bearer.credential)
                if self.proof == "taken":
                    self.fresh = False
                    return self._bearer.credential
        if not flow.able:
            raise NeedsPerson(Gone("the server does not take the login there is"))
        fresh = await flow.obtain(store, Ask(challenges, anew=self._force), known)
        self.unsaved = flow.unsaved
        # It is stored: who does not wait for the proof does without.
        with contextlib.suppress(LoginAbandoned):
            async with self._wanted.work():
                self.proof = "open" if open_ else await flow.proven(fresh)
        return fresh

    async def _looked(self) -> tuple[bool, tuple[str, ...]]:
        """Whether the server answers without a login, and its challenges."""
        account = self._account
        assert self._flow is not None
        given = {} if account.headers is None else await account.headers()
        status, challenges = await challenges_of(self._flow.http, account.url, given, within=account.within)
        open_ = is_let_in(status)
        if open_ and not self._force:
            raise NotWanted("the server answers without a login")
        return open_, challenges


def ask_of(
    status: int,
    challenges: Sequence[str],
    bearer: Bearer | None,
    *,
    operation: str,
    anew: bool,
    able: bool,
) -> Ask | None:
    """What a refusal asks for; None if it is not one for want of a token.

    Args:
        challenges: the ``WWW-Authenticate`` headers.
        bearer: what was sent.
        operation: the method and what it names, for the count of step-ups.
        anew: the token was got for this very request.
        able: a first token can be got, and nothing else speaks for another way in (headers of the user).
    """
    wanted = bearer_of(parse_challenges(challenges))
    if status == 403:
        if wanted is None or wanted.get("error") != "insufficient_scope" or bearer is None:
            return None
        scopes = parse_scope(wanted.get("scope")) or ()
        return Ask(tuple(challenges), scopes, operation, anew, insufficient=True)
    # Without a challenge it may be OAuth (2025-03-26), or something in between that wants something else.
    if status != 401 or (wanted is None and bearer is None and not able):
        return None
    return Ask(tuple(challenges), (), operation, anew)
