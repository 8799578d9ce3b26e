"""What a store keeps for a subject, and for how long it is good. Nothing here has state."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ..store.credentials import CredentialStore
from ..store.entry import ABOUT_TEXT
from .asked import Subject
from .model import ALONE, LOGIN, Credential
from .renewal import INTENT, Damaged, load

__all__ = [
    "MARGIN",
    "NOTES",
    "covers",
    "due_at",
    "fits",
    "of_kind",
    "over_at_once",
    "stored_for",
    "usable",
    "works",
]

NOTES = (INTENT, LOGIN)
"""Endings of keys under which there is no credential."""

_log = logging.getLogger("moorings")

MARGIN, MARGIN_SHARE = 5.0, 0.1
"""Seconds, or part of its life, before its end from which a token is not sent any more: it has a way to go, and clocks
differ."""
EARLIEST = 600.0
"""Seconds; no token is refreshed earlier than that before its end."""
SHARE = (0.05, 0.15)
"""Part of its life before its end at which a token is refreshed; where in between is drawn for each."""


def usable(credential: Credential, wall: float, age: float) -> bool:
    """Whether its access token can be sent now.

    Args:
        wall: seconds of the wall clock.
        age: seconds since it was taken into use here, by a clock that does not jump.
    """
    if credential.state != "good":
        return False
    if credential.expires_at is None:
        return True
    left = credential.expires_at - wall
    whole = credential.expires_at - credential.obtained_at
    # A wall clock that was set back must not make it live longer than it was given.
    return left > min(MARGIN, MARGIN_SHARE * whole) and age < whole


def works(credential: Credential, wall: float) -> bool:
    """Whether it can be sent now, or renewed: of several, one that can goes before one that is only newer."""
    return credential.state == "good" and (
        credential.refresh_token is not None or usable(credential, wall, 0.0)
    )


def due_at(credential: Credential, draw: float) -> float | None:
    """Seconds of the wall clock from which it is renewed ahead of its end; None if that is not known."""
    if credential.expires_at is None or credential.refresh_token is None:
        return None
    life = max(0.0, credential.expires_at - credential.obtained_at)
    low, high = SHARE
    return credential.expires_at - min(life * (low + (high - low) * draw), EARLIEST)


async def stored_for(
    store: CredentialStore, subject: Subject, wall: float
) -> tuple[Credential | None, list[str]]:
    """The stored credential of a subject: of several, the one that works, then the newest; and what cannot be read.

    Raises:
        StoreError: it is not known what is stored.
    """
    found: list[Credential] = []
    damaged: list[str] = []
    for each in await store.keys():
        if each.key.endswith(NOTES):
            continue
        if each.problem:
            # Whose it is cannot be read either.
            damaged.append(each.problem)
            continue
        if not fits(subject, each.about):
            continue
        try:
            credential = await load(store, each.key)
        except Damaged as error:
            # It is there, and nobody can use it: a login takes its place, and it is kept aside then.
            _log.error("a stored credential is damaged: %s", error)
            damaged.append(error.reason)
            continue
        if credential is None or not of_kind(subject, credential):
            continue
        if (credential.key.principal, credential.key.resource) == (subject.principal, subject.resource):
            found.append(credential)
    found.sort(key=lambda each: (works(each, wall), each.obtained_at))
    return (found[-1] if found else None), damaged


def of_kind(subject: Subject, credential: Credential) -> bool:
    """Whether a credential came the way that the subject's do."""
    return subject.alone is None or subject.alone == (credential.grant in ALONE)


def fits(subject: Subject, said: Mapping[str, str]) -> bool:
    """Whether an entry may be one of the subject's, by what is said of it. Long words are cut there."""

    def same(name: str, mine: str) -> bool:
        return said.get(name) == mine[:ABOUT_TEXT]

    return (
        same("principal", subject.principal)
        and same("resource", subject.resource)
        and (not subject.issuer or same("issuer", subject.issuer))
        and (not subject.client_id or same("client_id", subject.client_id))
    )


def over_at_once(credential: Credential) -> bool:
    """Whether its access token was over when it came."""
    return credential.expires_at is not None and credential.expires_at <= credential.obtained_at


def covers(credential: Credential, scopes: tuple[str, ...]) -> bool:
    """Whether a credential has all of these scopes, or was asked for them."""
    return set(scopes) <= {*credential.scopes, *credential.requested_scopes}
