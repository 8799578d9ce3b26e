"""One login of a person: an object with one state machine and one life, from its turn to its end.

Made by a flow (``flows.py``) for one login and run on the broker's loop; its steps are those of ``TABLE``. Its listener
is bound before there is a URL. It has one state, one verifier, one issuer and one redirect URI, fixed for its life
(``authorization.py``). What was in use before stays in use until the new tokens are stored, and where they would take
the place of a login that works, until the server took them. It ends in success, refusal, cancel, failure, or by its
bound, and gives its port back in each case. RFC 6749 §4.1, RFC 8252, RFC 8628.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from .._secret import Secret
from .._tasks import TaskOwner
from .._urls import shown_url
from ..store.credentials import CredentialStore, StoreError
from . import grants
from .asked import Ask
from .authorization import MOST_URL, AuthorizationRequest, check_browser_url, push
from .discovery import Discovered
from .dpop import Prover
from .faults import (
    AuthFault,
    GrantError,
    LoginAbandoned,
    LoginDenied,
    LoginFault,
    LoginTooLate,
    NotAsync,
    NotProven,
    NotTaken,
    StrayCallback,
)
from .grants import TokenSet
from .kept import stored_for, works
from .landing import Landing, landings
from .model import Credential, Registration
from .prompt import LoginPrompt
from .turn import Turn, take_turn
from .wanted import Wanted

if TYPE_CHECKING:
    from .flows import AccountFlow

__all__ = ["TABLE", "LoginAttempt", "LoginState"]

MOST_PASTES = 20
"""Times that a person is asked again for what was pasted wrong."""


class LoginState(Enum):
    """Where a login is."""

    WAITING = "waiting"
    """For its turn: another login to the same server is under way."""
    PREPARING = "preparing"
    """It is found out where tokens come from."""
    BOUND = "bound"
    """The listener waits; there is no URL yet. (Device flow, or another's redirect URI: nothing is bound.)"""
    SHOWN = "shown"
    """A person has the URL, or the code."""
    ANSWERED = "answered"
    """The code came back."""
    GRANTED = "granted"
    """There are tokens, and nothing of them is stored."""
    STORED = "stored"
    ADOPTED = "adopted"
    """What another login brought is used."""
    REFUSED = "refused"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"
    FAILED = "failed"


_ENDS = frozenset({LoginState.REFUSED, LoginState.CANCELLED, LoginState.TIMED_OUT, LoginState.FAILED})

TABLE: Mapping[LoginState, frozenset[LoginState]] = {
    LoginState.WAITING: frozenset({LoginState.PREPARING, LoginState.ADOPTED}) | _ENDS,
    LoginState.PREPARING: frozenset({LoginState.BOUND}) | _ENDS,
    LoginState.BOUND: frozenset({LoginState.SHOWN}) | _ENDS,
    # The device flow goes from the code to the tokens.
    LoginState.SHOWN: frozenset({LoginState.ANSWERED, LoginState.GRANTED}) | _ENDS,
    LoginState.ANSWERED: frozenset({LoginState.GRANTED}) | _ENDS,
    LoginState.GRANTED: frozenset({LoginState.STORED}) | _ENDS,
    # A failure to take notes afterwards undoes nothing.
    LoginState.STORED: frozenset(),
    LoginState.ADOPTED: frozenset(),
    **{end: frozenset() for end in _ENDS},
}
"""What may follow what."""


class LoginAttempt:
    """See the module."""

    def __init__(self, flow: AccountFlow) -> None:
        self._flow = flow
        self._account = flow.account
        self.state = LoginState.WAITING
        self.waits = False
        """True while a person, here or at another login, is waited for."""
        self.unsaved: StoreError | None = None
        """Why it could not be stored, if so: then it lives in this process alone."""
        self._wanted = Wanted()

    def abandon(self) -> None:
        """Nobody wants it any more: it ends now, and changes nothing, unless its tokens are being stored."""
        if self.state in _REVOCABLE:
            self._wanted.abandon()

    async def run(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        """Log in, once.

        Raises:
            AuthFault: no tokens, and why; nothing is changed.
            StoreError: a lock of the store.
        """
        try:
            return await self._run(store, ask, known)
        except LoginAbandoned:
            self._end(LoginState.CANCELLED)
            raise
        except LoginTooLate:
            self._end(LoginState.TIMED_OUT)
            raise
        except LoginDenied:
            self._end(LoginState.REFUSED)
            raise
        except asyncio.CancelledError:
            self._end(LoginState.CANCELLED)
            raise
        except BaseException:  # boundary: its end is noted, and it is raised again
            self._end(LoginState.FAILED)
            raise

    def _to(self, state: LoginState) -> None:
        assert state in TABLE[self.state], f"{self.state} to {state}"
        self.state = state

    def _end(self, state: LoginState) -> None:
        if state in TABLE[self.state]:
            self.state = state

    async def _run(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        turn: Turn | None = None
        try:
            async with self._wanted.work():
                until = asyncio.get_running_loop().time() + self._account.settings.timeout
                while (turn := await self._turn(store, until)) is None:
                    brought = await self._brought_elsewhere(store, known)
                    if brought is not None:
                        self._to(LoginState.ADOPTED)
                        return brought
                    if not self._account.asked:
                        raise LoginFault("the login that was under way elsewhere ended without tokens")
                    # Somebody asked for this one, and whoever was before is gone: it is their turn.
                there = await self._there(store, ask, known)
                if there is not None:
                    self._to(LoginState.ADOPTED)
                    return there
                self._to(LoginState.PREPARING)
                return await self._log_in(store, ask, known)
        finally:
            # Whoever wants the login no more: those after it are not to wait for what is left of it.
            if turn is not None:
                await turn.aclose()

    # Its turn

    async def _turn(self, store: CredentialStore, until: float) -> Turn | None:
        self.waits = True
        try:
            return await take_turn(
                store,
                self._account.principal,
                self._account.subject.resource,
                until=until,
                waiting=self._account.waiting,
                wall=self._flow.wall,
            )
        finally:
            self.waits = False

    async def _brought_elsewhere(self, store: CredentialStore, known: Credential | None) -> Credential | None:
        """What the login brought that was waited for; None if it came to nothing."""
        stored, _ = await stored_for(store, self._account.subject, self._flow.wall())
        return None if stored is None or stored.state != "good" or stored == known else stored

    async def _there(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential | None:
        """What another login brought that ended before this one had its turn, and after it was begun."""
        if ask.anew:
            return None
        try:
            stored, _ = await stored_for(store, self._account.subject, self._flow.wall())
        except StoreError:
            return None  # It will say so when something is to be kept.
        if stored is None or not self._flow.helps(stored, ask, known):
            return None
        # It may be the old one, renewed by others meanwhile, that the server does not take.
        return None if await self._flow.proven(stored) == "refused" else stored

    # The login

    async def _log_in(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        flow = self._flow
        deadline = flow.deadline()
        found = await flow.discover(ask, known, deadline)
        scopes = ask.scopes or found.scopes_hint
        jwk = flow.key_for(found, ask, known)
        prover = Prover(jwk, flow.nonces) if jwk is not None else None
        landing, registration = await self._land(store, found, scopes, deadline, known)
        seat = landing.seat
        try:
            self._to(LoginState.BOUND)
            try:
                if self._account.kind == "device":
                    now, tokens = await self._by_code(found, registration, scopes, prover)
                else:
                    now, tokens = await self._by_browser(found, landing, registration, scopes, prover)
                self._to(LoginState.GRANTED)
                fresh = flow.credential(found, registration, tokens, now, scopes, jwk, known)
                replaces = known is not None and works(known, now)
                if self._account.asked or replaces:
                    await self._check(fresh, replaces=replaces)
            except (GrantError, LoginFault) as error:
                await flow.identity.suspect(
                    store, landing.place, registration, error, abandoned=self._wanted.abandoned
                )
                raise
            self._wanted.check()
            self._to(LoginState.STORED)
            fresh, self.unsaved = await flow.keep(store, found, registration, tokens, now, scopes, jwk, known)
            if seat is not None and self.unsaved is None:
                seat.succeeded()
            elif seat is not None:
                seat.failed("The tokens could not be stored: this login ends with the program.")
            with contextlib.suppress(StoreError):
                await flow.identity.served(store, landing.place, registration)
            return fresh
        except AuthFault as fault:
            if seat is not None:
                seat.failed(fault.reason)
            raise
        finally:
            await landing.aclose()

    async def _land(
        self,
        store: CredentialStore,
        found: Discovered,
        scopes: tuple[str, ...],
        deadline: float,
        known: Credential | None,
    ) -> tuple[Landing, Registration]:
        """Where the browser comes back to, and the client that may come back there."""
        flow, identity = self._flow, self._flow.identity
        if self._account.kind == "device":
            client = await identity.registration(store, found, "", "", scopes, deadline, known)
            assert client is not None
            return Landing("", "", None), client
        places = landings(self._account, flow.listeners, store, found)
        async with contextlib.aclosing(places):
            async for landing in places:
                try:
                    client = await identity.registration(
                        store, found, landing.place, landing.redirect_uri, scopes, deadline, known
                    )
                except BaseException:  # boundary: its port is given back, and it is raised again
                    await landing.aclose()
                    raise
                if client is not None:
                    return landing, client
                await landing.aclose()
        raise LoginFault("others registered for each place that the browser could come back to")

    async def _by_browser(
        self,
        found: Discovered,
        landing: Landing,
        registration: Registration,
        scopes: tuple[str, ...],
        prover: Prover | None,
    ) -> tuple[float, TokenSet]:
        flow, settings = self._flow, self._account.settings
        request = AuthorizationRequest.begin(
            found.metadata,
            registration,
            redirect_uri=landing.redirect_uri,
            resource=found.resource_param,
            scopes=scopes,
            authorize_params=settings.authorize_params,
            dpop_jkt=prover.thumbprint if prover is not None else None,
            now=flow.wall(),
        )
        if found.metadata.require_pushed_authorization_requests:
            request = await push(flow.http, found.metadata, registration, request, flow.deadline())
        if len(request.url) > MOST_URL:
            raise LoginFault(
                f"the URL of the login has {len(request.url):,} characters, which no browser takes",
                fix="set auth.scopes to those that are needed" if scopes else None,
            )
        if landing.seat is not None:
            landing.seat.expect(request.state, self._account.name or shown_url(self._account.url))
        self._to(LoginState.SHOWN)
        async with self._person():
            if self._account.browser is not None:
                code = await self._brought(request)
            else:
                code = await self._answer(found, landing, request)
        self._to(LoginState.ANSWERED)
        now = flow.wall()
        tokens = await grants.exchange_code(
            flow.http,
            found.metadata,
            registration,
            code=code,
            verifier=request.verifier,
            redirect_uri=landing.redirect_uri,
            resource=found.resource_param,
            deadline=flow.deadline(),
            prover=prover,
        )
        return now, tokens

    async def _by_code(
        self,
        found: Discovered,
        registration: Registration,
        scopes: tuple[str, ...],
        prover: Prover | None,
    ) -> tuple[float, TokenSet]:
        """The device flow: the person is shown a code, and we ask until they are done."""
        flow, settings = self._flow, self._account.settings
        device = await grants.device_begin(
            flow.http,
            found.metadata,
            registration,
            scopes=scopes,
            resource=found.resource_param,
            deadline=flow.deadline(),
        )
        check_browser_url(device.verification_uri, "address to type the code at")
        complete = device.verification_uri_complete
        try:
            check_browser_url(complete)
        except LoginFault:
            complete = ""
        life = min(settings.timeout, device.expires_in)
        prompt = LoginPrompt(
            server=self._account.name,
            resource=self._account.subject.resource,
            issuer=found.issuer,
            url=device.verification_uri,
            complete_url=complete,
            user_code=device.user_code,
            scopes=scopes,
            seconds=life,
        )
        self._to(LoginState.SHOWN)
        owner = TaskOwner("login")
        async with self._person():
            try:
                assert self._account.ask is not None
                shown = owner.start(_shown(self._account.ask, prompt), name="show the code")
                polled = owner.start(
                    grants.device_wait(
                        flow.http,
                        found.metadata,
                        registration,
                        device,
                        resource=found.resource_param,
                        deadline=asyncio.get_running_loop().time() + settings.timeout,
                        prover=prover,
                    ),
                    name="wait for the person",
                )
                await asyncio.wait({shown, polled}, return_when=asyncio.FIRST_COMPLETED)
                if shown.done():
                    shown.result()  # Who cannot be shown the code will not type it.
                # When it was given is not known better.
                return flow.wall(), await polled
            finally:
                await owner.aclose()

    # The person

    @contextlib.asynccontextmanager
    async def _person(self) -> AsyncIterator[None]:
        limit = self._account.settings.timeout
        self.waits = True
        try:
            async with asyncio.timeout(limit) as bound:
                yield
        except TimeoutError:
            if not bound.expired():
                raise
            raise LoginTooLate(f"nobody logged in within {limit:.4g} s (auth.timeout)") from None
        finally:
            self.waits = False

    async def _brought(self, request: AuthorizationRequest) -> Secret:
        """The program that embeds us shows the URL, and brings the answer by a listener of its own."""
        assert self._account.browser is not None
        try:
            callback = await self._account.browser(request.url)
        except Exception as error:  # boundary: what shows a login is somebody else's code
            # Its text may hold the code.
            raise LoginFault(f"what was to show the login failed: {type(error).__name__}") from None
        try:
            return request.finish(callback)
        except StrayCallback:
            raise LoginFault("the address that came back is not the end of this login") from None

    async def _answer(self, found: Discovered, landing: Landing, request: AuthorizationRequest) -> Secret:
        """The code, by the listener or by a paste, whichever is first."""
        ask, seat, problem = self._account.ask, landing.seat, ""
        assert ask is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + self._account.settings.timeout
        owner = TaskOwner("login")
        try:
            arrived = None if seat is None else owner.start(seat.arrived(), name="listen")
            for _ in range(MOST_PASTES):
                prompt = LoginPrompt(
                    server=self._account.name,
                    resource=self._account.subject.resource,
                    issuer=found.issuer,
                    url=request.url,
                    redirect_uri=landing.redirect_uri,
                    listening=seat is not None,
                    scopes=request.scopes,
                    seconds=max(0.0, until - loop.time()),
                    problem=problem,
                )
                shown = owner.start(_shown(ask, prompt), name="show the login")
                await asyncio.wait(
                    {each for each in (shown, arrived) if each is not None},
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if arrived is not None and arrived.done():
                    return _finish(request, arrived.result())
                pasted = shown.result()
                if pasted is None:
                    if arrived is None:
                        raise LoginFault("nothing was pasted, and nothing else can bring the answer")
                    return _finish(request, await arrived)
                try:
                    answer = _whole(pasted, request)
                    if request.is_cut_short(answer):
                        raise StrayCallback("a part of the address is missing: paste all of it, to its end")
                    return request.finish(answer)
                except StrayCallback as stray:
                    problem = stray.reason
            raise LoginFault(f"what was pasted was not the answer of this login, {MOST_PASTES} times")
        finally:
            await owner.aclose()

    # The new tokens

    async def _check(self, fresh: Credential, *, replaces: bool) -> None:
        proof = await self._flow.proven(fresh)
        if proof == "refused":
            raise NotTaken("the server does not take the tokens that came; what there was before is kept")
        if proof != "taken" and replaces and self._account.asked:
            raise NotProven(
                "the server gave no answer that shows whether it takes the tokens that came; "
                "what there was before is kept"
            )


_REVOCABLE = frozenset(state for state, after in TABLE.items() if after)


async def _shown(ask: object, prompt: LoginPrompt) -> str | None:
    try:
        said = await ask(prompt)  # type: ignore[operator]  # an OnLoginUrl
    except NotAsync:
        raise
    except Exception as error:  # boundary: what shows a login is somebody else's code
        # Its text may hold the code.
        raise LoginFault(f"what was to show the login failed: {type(error).__name__}") from None
    if said is not None and not isinstance(said, str):
        raise LoginFault(f"what was to show the login returned {type(said).__name__}, not text or None")
    return said


def _finish(request: AuthorizationRequest, query: str) -> Secret:
    try:
        return request.finish(query)
    except StrayCallback as stray:
        # The listener looked at its state: it is ours, and cannot be read.
        raise LoginFault(stray.reason) from None


def _whole(pasted: str, request: AuthorizationRequest) -> str | list[tuple[str, str]]:
    """What was pasted: a URL, its query, or the code alone."""
    text = "".join(pasted.split())
    # A code may end like Base64 does.
    if "=" in text.rstrip("=") or "?" in text or "/" in text.partition("://")[2]:
        return text
    if not text:
        raise StrayCallback("nothing was pasted")
    if request.iss_promised:
        raise StrayCallback("a code alone does not say which server it is from: paste the whole address")
    return [("code", text), ("state", request.state.reveal())]
