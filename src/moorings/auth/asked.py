"""What the broker is asked, and what it asks: for whom a token is wanted, what a server said, and how one is got."""

from __future__ import annotations

from typing import Protocol

import msgspec

from .._secret import Secret
from ..store.credentials import CredentialStore
from .model import Credential

__all__ = ["Ask", "Bearer", "Flow", "Subject"]


class Subject(msgspec.Struct, frozen=True):
    """For whom, and for what, a token is wanted."""

    principal: str
    resource: str
    """Canonical URL of the MCP server."""
    issuer: str = ""
    """The authorization server, where it is set by hand; empty for whichever gave the stored credential."""
    client_id: str = ""
    """The client, where it is set by hand."""
    alone: bool | None = None
    """Whether it is got without a person, or with one: a machine's token is none of a person's logins. None: either."""


class Bearer(msgspec.Struct, frozen=True):
    """What a request carries."""

    token: Secret
    scheme: str
    """``Bearer`` or ``DPoP``."""
    version: int
    """Of the credential: a refusal names it, so that it is refreshed once however many were refused."""
    credential: Credential

    def __repr__(self) -> str:
        return f"Bearer({self.scheme}, version {self.version})"


class Ask(msgspec.Struct, frozen=True):
    """What a server said when it refused a request."""

    challenges: tuple[str, ...] = ()
    """Its ``WWW-Authenticate`` headers."""
    scopes: tuple[str, ...] = ()
    """Those it wants for this operation; may be empty where it does not say."""
    operation: str = ""
    """What was refused for its scopes: the method and what it names."""
    anew: bool = False
    """It refused a token that was got for this very request: another refresh would bring no better one."""
    insufficient: bool = False
    """It took the token, and wants more scopes (403 ``insufficient_scope``)."""
    nonce: bool = False
    """It wants a nonce that it has just given (RFC 9449 §9), and nothing from the broker."""

    def __repr__(self) -> str:
        # What a server says may be what it was sent.
        return f"Ask({self.operation!r}, {len(self.challenges)} challenges, insufficient={self.insufficient})"


class Flow(Protocol):
    """How credentials of one subject are got. Made for a subject; used on the broker's loop alone."""

    @property
    def alone(self) -> bool:
        """True if it gets a credential without a person."""

    @property
    def able(self) -> bool:
        """True if it can get one at all: without a person, or with one who may be asked."""

    @property
    def waits_for_person(self) -> bool:
        """True while a person is at a login."""

    def renewable(self, credential: Credential) -> bool:
        """Whether ``refresh`` can renew it."""

    async def refresh(self, credential: Credential) -> Credential:
        """One exchange with the token endpoint; returns the merged credential. Raises ``AuthFault``."""

    def scopes_for(self, credential: Credential, challenged: tuple[str, ...]) -> tuple[str, ...]:
        """What a step-up asks for. Raises ``StepUpRefused``."""

    async def obtain(self, store: CredentialStore, ask: Ask, known: Credential | None) -> Credential:
        """A new credential, stored. Raises ``AuthFault``, ``StoreError``."""

    async def client_is_gone(self, store: CredentialStore, credential: Credential) -> None:
        """The server does not know the client: keep nothing that is bound to it. Raises ``StoreError``."""
