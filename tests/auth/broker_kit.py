"""A store in memory whose steps can be made to fail or to wait, a token endpoint that rotates, and clocks to set."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from moorings._secret import Secret
from moorings.auth.asked import Ask, Subject
from moorings.auth.broker import Broker
from moorings.auth.faults import GrantError
from moorings.auth.grants import TokenSet, merged
from moorings.auth.model import (
    LOCAL,
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    decode_credential,
    encode_credential,
)
from moorings.auth.renewal import about
from moorings.auth.scopes import step_up
from moorings.store.credentials import CredentialStore, Lease, LockTimeout, StoredKey, StoreError

ISSUER, RESOURCE = "https://as.example", "https://mcp.example/mcp"
SUBJECT = Subject(LOCAL, RESOURCE)
KEY = CredentialKey(LOCAL, ISSUER, "client", RESOURCE)


class Clock:
    """Both clocks of a broker."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_000_000.0, 500.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


class Shared:
    """What several brokers share, as processes share a folder: entries, a lock, and who is told of changes."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.gate = threading.Lock()
        self.locked: set[str] = set()
        self.stores: list[Store] = []

    def put(self, credential: Credential, by: Store | None = None) -> None:
        self.write(credential.key.digest(), (encode_credential(credential), about(credential)), by)

    def write(self, key: str, value: tuple[bytes, dict[str, str]] | None, by: Store | None) -> None:
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value
        for store in self.stores:
            if store is not by:
                store.tell(key)

    def credential(self) -> Credential:
        return decode_credential(self.entries[KEY.digest()][0])


class _Lease:
    def __init__(self, name: str) -> None:
        self.name, self.fence, self.held = name, 0, True


class Store:
    """One process's view. ``fail`` maps a step (``load``, ``save``, ``save-intent``, ``remove-intent``) to errors."""

    name = "memory"

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.fail: dict[str, Exception] = {}
        self.locks = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: Callable[[str], None] | None = None

    def _step(self, what: str, key: str) -> None:
        error = self.fail.get(what + ("-intent" if key.endswith("-intent") else ""))
        if error is not None:
            raise error

    async def load(self, key: str) -> bytes | None:
        self._step("load", key)
        found = self.shared.entries.get(key)
        return None if found is None else found[0]

    async def save(
        self, key: str, value: bytes, lease: Lease, *, about: Mapping[str, str] | None = None
    ) -> None:
        assert lease.held
        self._step("save", key)
        self.shared.write(key, (value, dict(about or {})), self)

    async def remove(self, key: str, lease: Lease) -> None:
        assert lease.held
        self._step("remove", key)
        self.shared.write(key, None, self)

    async def keys(self) -> list[StoredKey]:
        return [StoredKey(key=key, about=said) for key, (_, said) in self.shared.entries.items()]

    @contextlib.asynccontextmanager
    async def lock(self, name: str, until: float) -> AsyncIterator[Lease]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            with self.shared.gate:
                if name not in self.shared.locked:
                    self.shared.locked.add(name)
                    break
            if loop.time() >= until:
                raise LockTimeout(name, store=self.name, waited=loop.time() - began)
            await asyncio.sleep(0.001)  # as with the lock of another process: nobody tells
        self.locks += 1
        lease = _Lease(name)
        try:
            yield lease
        finally:
            lease.held = False
            with self.shared.gate:
                self.shared.locked.discard(name)

    async def watch(self, changed: Callable[[str], None]) -> Store:
        self._loop, self._changed = asyncio.get_running_loop(), changed
        self.shared.stores.append(self)
        return self

    def tell(self, key: str) -> None:
        loop, changed = self._loop, self._changed
        if loop is not None and changed is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(changed, key)

    async def aclose(self) -> None:
        if self in self.shared.stores:
            self.shared.stores.remove(self)
        self._changed = None


class TokenEndpoint:
    """Rotates: each refresh token is good once, and the second use of one revokes the family."""

    def __init__(self, clock: Clock, life: float | None = 3600.0) -> None:
        self.clock = clock
        self.life = life
        self.count = 0
        self.good = "r0"
        self.revoked = False
        self.errors: list[Exception] = []
        """Raised by the next requests, before anything is done."""
        self.drop_answers = 0
        """So many answers are lost after the rotation."""
        self.gate: threading.Event | None = None
        """Answers wait for it."""
        self.entered = threading.Event()

    async def refresh(self, credential: Credential) -> Credential:
        self.entered.set()
        if self.errors:
            raise self.errors.pop(0)
        assert credential.refresh_token is not None
        token = credential.refresh_token.reveal()
        if self.revoked or token != self.good:
            self.revoked = True
            raise GrantError("invalid_grant", "reused", status=400)
        self.count += 1
        self.good = f"r{self.count}"
        tokens = TokenSet(
            access_token=Secret(f"a{self.count}"), expires_in=self.life, refresh_token=Secret(self.good)
        )
        sent = self.clock.wall
        while self.gate is not None and not self.gate.is_set():
            await asyncio.sleep(0.001)  # it is set in another thread, which knows no loop
        if self.drop_answers:
            self.drop_answers -= 1
            raise Killed
        return merged(credential, tokens, now=sent)


class EndpointFlow:
    """A flow over a token endpoint; ``first`` gets a credential without a person, where it is given."""

    def __init__(
        self,
        endpoint: TokenEndpoint,
        first: Callable[[Ask, Credential | None], Awaitable[Credential]] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.first = first
        self.clients_gone = 0
        self.waits_for_person = False

    @property
    def alone(self) -> bool:
        return self.first is not None

    @property
    def able(self) -> bool:
        return self.first is not None

    def renewable(self, credential: Credential) -> bool:
        return credential.refresh_token is not None

    async def refresh(self, credential: Credential) -> Credential:
        return await self.endpoint.refresh(credential)

    def scopes_for(self, credential: Credential, challenged: tuple[str, ...]) -> tuple[str, ...]:
        return step_up(credential.requested_scopes, challenged)

    async def obtain(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        assert self.first is not None
        return await self.first(ask, known)

    async def client_is_gone(self, store: CredentialStore, credential: Credential) -> None:
        self.clients_gone += 1


class Killed(BaseException):
    """Stands for the death of the process in this step: nothing that follows it runs."""


def credential(clock: Clock, *, life: float | None = 3600.0, **fields: Any) -> Credential:
    made = Credential(
        key=KEY,
        registration=Registration(issuer=ISSUER, client_id="client", auth_method="none"),
        metadata=ServerMetadata(issuer=ISSUER, token_endpoint=f"{ISSUER}/token"),
        access_token=Secret("a0"),
        expires_at=None if life is None else clock.wall + life,
        obtained_at=clock.wall,
        refresh_token=Secret("r0"),
    )
    return msgspec.structs.replace(made, **fields)


def broker(shared: Shared, endpoint: TokenEndpoint, clock: Clock, **options: Any) -> tuple[Broker, Store]:
    store = Store(shared)

    async def opened() -> Store:
        return store

    options.setdefault("draw", lambda: 0.5)
    flow = options.pop("flow", None) or EndpointFlow(endpoint, options.pop("first", None))
    made = Broker(
        opened, flow=lambda subject: flow, wall=lambda: clock.wall, steady=lambda: clock.steady, **options
    )
    return made, store


@contextlib.contextmanager
def used(*brokers: Broker) -> Any:
    for each in brokers:
        each.join()
    try:
        yield
    finally:
        ends = [each.leave() for each in brokers]
        for end in ends:
            assert end is not None and end.wait(10)


def broken(reason: str = "no space left") -> StoreError:
    return StoreError(reason, store="memory")
