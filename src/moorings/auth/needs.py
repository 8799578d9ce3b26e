"""What a fault of OAuth asks of people, in one word: for errors, states and reports."""

from __future__ import annotations

from typing import Literal

from .discovery import DiscoveryFault
from .faults import (
    AuthFault,
    GrantError,
    Insufficient,
    LoginDenied,
    NeedsClient,
    NeedsExtra,
    NeedsPerson,
    NotTaken,
    StepUpRefused,
)
from .renewal import ClientGone, Dead

__all__ = ["TO_CONFIGURE", "Needs", "needs_of"]

Needs = Literal[
    "login", "expired", "revoked", "lost", "client_gone", "scope", "denied", "client", "server", "package"
]
"""``login``: nobody has logged in, or somebody logged out. ``expired``, ``revoked``, ``lost``: the login is over, and
how it came to that. ``client_gone``: so is the client that we registered; a login registers another. ``scope``: it is
good, and not for this. ``denied``: the server or the person said no. ``client``: who we are must be configured.
``server``: so must the authorization server. ``package``: something is to be installed."""

TO_CONFIGURE = {
    "client": "see whether auth.client_id, its secret or key, and auth.auth_method are those "
    "that the authorization server has",
    "server": "see whether auth.issuer and auth.resource are those of this server",
    "package": "install what is missing",
}
"""What is to be done where no login helps and the fault itself does not say it."""


def needs_of(fault: AuthFault) -> Needs:
    """The word for a fault that does not pass by itself."""
    if isinstance(fault, NeedsPerson):
        return needs_of(fault.why)
    if isinstance(fault, ClientGone):
        return "client_gone" if fault.ours else "client"
    if isinstance(fault, NeedsClient):
        return "client"
    if isinstance(fault, GrantError):
        return "client" if fault.code in _ABOUT_US else "server"
    if isinstance(fault, Insufficient | StepUpRefused):
        return "scope"
    if isinstance(fault, Dead):
        return (
            "lost"
            if fault.credential.state == "lost"
            else ("revoked" if fault.credential.state == "refused" else "expired")
        )
    if isinstance(fault, LoginDenied):
        return "denied"
    if isinstance(fault, NeedsExtra):
        return "package"
    if isinstance(fault, DiscoveryFault | NotTaken):
        return "server"
    return "login"


_ABOUT_US = frozenset({"invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_grant"})
"""Refusals of a grant without a person, and of one with a fresh code, that the configuration of the client mends."""
