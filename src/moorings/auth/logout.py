"""Logging out: the tokens are revoked at their server, then nothing of the login is left in the store.

::

    for each login of this principal and server, whoever issued it, whichever client got it:
        lock → read → revoke the refresh token, then the access token (RFC 7009) → remove it and its marks → unlock
        the client: no other login uses it? delete it at its server (RFC 7592), forget it here

The lock is that of a renewal: one that is under way is let finish, so what is revoked is what it brought; one that
waits finds nothing. A server that cannot be asked keeps nothing here. Killed before the removal, all is as it was but
revoked, and can be done again. Used by ``moor logout`` and programs like it, in a loop of their own; hosts of this and
other processes see it by the watch of their store.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Literal

import msgspec

from ..config import CredentialSettings, HttpServer
from ..errors import MooringsError, StoreFailed
from ..store.credentials import CorruptEntry, CredentialStore, Lease, LeaseLost, StoredKey, StoreError
from . import clients, grants
from .accounts import account_of
from .asked import Subject
from .at_store import LOCK_WITHIN, TURNS, store_at
from .clients_kept import end_client
from .faults import AuthFault
from .flows import Account
from .http import AuthHttp, on_this_machine
from .identity import Identity
from .kept import fits
from .model import BadRecord, Credential, Registration, decode_credential
from .renewal import INTENT
from .report import what_next

if TYPE_CHECKING:
    from ..net.client import Net

__all__ = ["LoggedOut", "LogoutReport", "drop_intent", "logout", "logins_of"]

_log = logging.getLogger("moorings")

Ended = Literal["none", "revoked", "not_offered", "not_asked", "failed"]
"""What became of a token at its server. ``none``: there was none. ``not_offered``: the server has no way to revoke it,
so it holds until it ends. ``not_asked``: so it was wanted. ``failed``: the server did not answer, or refused."""


class LoggedOut(msgspec.Struct, frozen=True, kw_only=True):
    """One login that is not here any more."""

    issuer: str
    client_id: str
    state: Literal["good", "refused", "lost", "unreadable"]
    """What it was before, as ``Login.state`` says."""
    refresh_token: Ended
    access_token: Ended
    client: Literal["kept", "deleted", "forgotten", ""] = ""
    """The registration that it was got with. ``deleted``: at the server and here. ``forgotten``: here alone, as the
    server could not be asked. ``kept``: another login uses it, or one that is under way may; or the server has no way
    to delete it, or was not to be asked. Empty if it was not registered by ourselves."""
    problems: tuple[str, ...] = ()
    """What could not be done, and why."""


class LogoutReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was logged out, and what may still hold elsewhere."""

    store: str
    """Its name, without passwords."""
    principal: str
    resource: str
    """The MCP server."""
    logins: tuple[LoggedOut, ...] = ()
    """Empty if there was none."""
    problems: tuple[str, ...] = ()
    """Entries of the store of which it cannot be read whose they are; they stay."""
    next: str = ""
    """What happens when the server is used next."""

    @property
    def all_revoked(self) -> bool:
        """True if no token of these logins is known to hold anywhere."""
        ended = [each for login in self.logins for each in (login.refresh_token, login.access_token)]
        return all(each in ("none", "revoked") for each in ended)


async def logout(
    server: HttpServer,
    *,
    credentials: CredentialSettings | None = None,
    state_dir: str | os.PathLike[str] | bool | None = None,
    local: bool = False,
    within: float | None = None,
) -> LogoutReport:
    """End all logins of one principal to one server: revoked there, removed here, whatever the server says.

    Args:
        server: its specification, as a host takes it.
        credentials: as a host takes them; the principal is that of these.
        state_dir: as a host takes it.
        local: no server is asked; what was copied elsewhere holds until it ends.
        within: seconds for what is said to the authorization server of one login; ``bounds.auth`` if not set.

    Raises:
        ConfigError: the store cannot be used here, or is the memory of a process.
        StoreFailed: it did not answer, or refused: what is left in it is not known.
    """
    settings = credentials or CredentialSettings()
    account = account_of(server, settings.principal, within=within)
    from ..net.client import Net

    async with store_at(settings, state_dir) as store:
        net = Net(lambda: os.environ)
        try:
            return await _Logout(store, account, net, local).run()
        finally:
            await net.aclose()


def logins_of(entries: list[StoredKey], account: Account) -> list[StoredKey]:
    """The entries of the logins of an account, by whatever issuer and client."""
    return [
        each
        for each in entries
        if fits(Subject(account.principal, account.subject.resource), each.about)
        and not each.key.endswith(INTENT)
    ]


async def drop_intent(store: CredentialStore, digest: str, lease: Lease) -> None:
    """Take the mark of a renewal away with its login."""
    try:
        await store.remove(digest + INTENT, lease)
    except StoreError as error:
        # It names a version, and does no harm.
        _log.debug("the mark of a refresh stays: %s", error)


class _Logout:
    """One server's."""

    def __init__(self, store: CredentialStore, account: Account, net: Net, local: bool) -> None:
        self._store = store
        self._account = account
        self._local = local
        settings = account.settings
        http_settings = account.net
        if settings.user_agent is not None:
            http_settings = msgspec.structs.replace(http_settings, user_agent=settings.user_agent)
        self._http = AuthHttp(
            net,
            http_settings,
            loopback=on_this_machine(account.url, settings.issuer, settings.idp_issuer),
            private_networks=settings.private_networks,
        )
        self._identity = Identity(account, self._http, time.time)

    async def run(self) -> LogoutReport:
        entries = await self._store.keys()
        ended: list[LoggedOut] = []
        failed: list[StoreError] = []
        for each in logins_of(entries, self._account):
            try:
                told = await self._end(each)
            except StoreError as error:
                failed.append(error)  # the others go all the same
            else:
                ended += [told] if told is not None else []
        if failed:
            done = f"{len(ended)} of {len(ended) + len(failed)} logins" if ended else "nothing"
            raise StoreFailed(
                f"the store of logins: {failed[0]}; {done} was removed", fix="log out again"
            ) from failed[0]
        return LogoutReport(
            store=self._store.name,
            principal=self._account.principal,
            resource=self._account.subject.resource,
            logins=tuple(ended),
            problems=tuple(each.problem for each in entries if each.problem and not each.about),
            next=what_next(self._account.kind, None, time.time(), self._store.name),
        )

    async def _end(self, entry: StoredKey) -> LoggedOut | None:
        """End one login; None if somebody else did. Raises StoreError."""
        digest = entry.key
        told: LoggedOut | None = None
        asked: Credential | None = None
        deadline = 0.0
        lost: LeaseLost | None = None
        for _ in range(TURNS):
            try:
                async with self._store.lock(digest, _now() + LOCK_WITHIN) as lease:
                    try:
                        credential, damage = await self._load(digest), ""
                    except (CorruptEntry, BadRecord) as fault:
                        credential, damage = None, str(fault)
                    if credential is None and not damage:
                        break
                    if credential is not None and credential.key.resource != self._account.subject.resource:
                        break  # Another's, whose long URL begins as ours does.
                    if credential is None:
                        told = _unreadable(entry, damage)
                    elif credential != asked:
                        deadline = _now() + self._account.within
                        told, asked = await self._revoke(credential, deadline), credential
                    await self._store.remove(digest, lease)
                    await drop_intent(self._store, digest, lease)
                break
            except LeaseLost as error:
                # Somebody took it from us, and may have renewed what we revoked.
                lost = error
        else:
            assert lost is not None
            raise lost
        if told is None or asked is None:
            return told
        return await self._end_client(told, asked, deadline)

    async def _load(self, digest: str) -> Credential | None:
        data = await self._store.load(digest)
        return None if data is None else decode_credential(data)

    # At the server

    async def _revoke(self, credential: Credential, deadline: float) -> LoggedOut:
        problems: list[str] = []
        # The refresh token first: it is what brings others, and most servers end all of its access tokens with it.
        refresh = await self._revoked(credential, "refresh_token", deadline, problems)
        access = await self._revoked(credential, "access_token", deadline, problems)
        return LoggedOut(
            issuer=credential.key.issuer,
            client_id=credential.key.client_id,
            state=credential.state,
            refresh_token=refresh,
            access_token=access,
            client="kept" if credential.registration.source == "dynamic" else "",
            problems=tuple(problems),
        )

    async def _revoked(
        self,
        credential: Credential,
        hint: Literal["refresh_token", "access_token"],
        deadline: float,
        problems: list[str],
    ) -> Ended:
        token = credential.refresh_token if hint == "refresh_token" else credential.access_token
        if not token:
            return "none"
        if self._local:
            return "not_asked"
        if not credential.metadata.revocation_endpoint:
            return "not_offered"
        try:
            async with asyncio.timeout_at(deadline):  # a key may have to be read
                client = await self._client(credential)
            done = await grants.revoke(
                self._http, credential.metadata, client, token=token, hint=hint, deadline=deadline
            )
        except (AuthFault, MooringsError, TimeoutError) as fault:
            why = str(fault) or "there was no time for it"
            problems.append(f"the {hint.replace('_', ' ')} was not revoked: {why}")
            return "failed"
        return "revoked" if done else "not_offered"

    async def _client(self, credential: Credential) -> Registration:
        """Who we are there. Raises AuthFault: it cannot prove itself."""
        client = clients.normalised(credential.registration, credential.metadata)
        if client.source == "configured" and client.auth_method == "none":
            return client  # Without a secret the configuration need not know it any more.
        return await self._identity.restored(credential)

    async def _end_client(self, told: LoggedOut, credential: Credential, deadline: float) -> LoggedOut:
        if self._local or credential.registration.source != "dynamic":
            return told
        try:
            how = await end_client(self._store, self._http, credential, deadline)
        except (StoreError, MooringsError) as fault:
            problem = f"the registration of the client stays: {fault}"
            return msgspec.structs.replace(told, problems=(*told.problems, problem))
        if how == "failed":
            problem = "the registration of the client was not deleted at the server"
            return msgspec.structs.replace(told, client="forgotten", problems=(*told.problems, problem))
        return msgspec.structs.replace(told, client="deleted" if how == "deleted" else "kept")


def _unreadable(entry: StoredKey, damage: str) -> LoggedOut:
    return LoggedOut(
        issuer=entry.about.get("issuer", ""),
        client_id=entry.about.get("client_id", ""),
        state="unreadable",
        refresh_token="not_asked",
        access_token="not_asked",
        problems=(f"nothing of it could be revoked, as it cannot be read: {damage}",),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
