"""Where the browser comes back to: chosen, and its listener bound, before a person has a URL (RFC 8252 §7.3).

Used by a login attempt. What is set by hand is used letter by letter. A client that is configured, or that a document
describes, comes back to its registered path, and to its registered port if that is free. One that registers by itself
comes back to the port and the path that were free when it was registered; if they are not free now, another
registration of ours is used, or made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from ..net.addresses import is_loopback
from ..store.credentials import CredentialStore
from .callback import Listeners, PortTaken, Seat
from .discovery import Discovered
from .faults import LoginFault
from .identity import SLOTS, fixed_place, slot, stored_registration
from .model import registration_key
from .registration import takes_document

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from .flows import Account

__all__ = ["CALLBACK_PATH", "CALLBACK_PORT", "Landing", "landings"]

CALLBACK_PORT = 33418
"""Of the redirect URI, where no other is set."""
CALLBACK_PATH = "/callback"
TRIES = 3
"""Looks at one place, at which others may register at the same time."""


class Landing(Struct, frozen=True):
    """One place to come back to."""

    place: str
    """Where its registration is kept (``identity.py``)."""
    redirect_uri: str
    seat: Seat | None
    """Its listener; None where it is somebody else's address, so that the answer must be pasted."""

    async def aclose(self) -> None:
        """Give the port back."""
        if self.seat is not None:
            await self.seat.aclose()


async def landings(
    account: Account, listeners: Listeners, store: CredentialStore, found: Discovered
) -> AsyncGenerator[Landing, None]:
    """Places that can be used, the best first. Each is bound when it is given, and its taker's to close.

    Raises:
        PortTaken: the one that is set by hand is another's.
        LoginFault: it cannot be bound at all.
    """
    settings = account.settings
    host, port = settings.redirect_host, settings.redirect_port
    if account.browser is not None:
        yield Landing(account.redirect_uri, account.redirect_uri, None)
        return
    if settings.redirect_uri:
        yield await _as_set(settings.redirect_uri, listeners)
        return
    fixed = fixed_place(host, port) if port else ""
    if settings.client_id or takes_document(settings, found.metadata):
        place = fixed or account.redirect_uri
        if fixed:
            yield _landed(place, await listeners.seat(host, port, CALLBACK_PATH))
            return
        try:
            seat = await listeners.seat(host, CALLBACK_PORT, CALLBACK_PATH)
        except PortTaken:
            # Any port is to be allowed for a client of a machine (RFC 8252 section 7.3).
            seat = await listeners.seat(host, 0, CALLBACK_PATH)
        yield _landed(seat.redirect_uri, seat)
        return
    for number in range(1 if fixed else SLOTS):
        place = fixed or slot(host, number)
        tried: str | None = None
        for _ in range(TRIES):
            stored = await stored_registration(store, registration_key(found.issuer, place))
            registered = stored.redirect_uris[0] if stored is not None and stored.redirect_uris else ""
            if registered == tried:
                break
            tried, known = registered, urlsplit(registered)
            try:
                if known.port is not None:
                    seat = await listeners.seat(host, port or known.port, known.path)
                else:
                    seat = await listeners.seat(host, port, "")
            except PortTaken:
                if fixed:
                    raise
                break
            yield _landed(place, seat)
            # It was not taken, as somebody registered for this place meanwhile: that may be had, too, as logins of one
            # process share their ports.
    raise LoginFault(f"{SLOTS} registrations at {found.issuer} have a port each, and all of these are taken")


async def _as_set(redirect_uri: str, listeners: Listeners) -> Landing:
    parts = urlsplit(redirect_uri)
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        return Landing(redirect_uri, redirect_uri, None)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    seat = await listeners.seat(parts.hostname or "", parts.port or 80, path)
    return Landing(redirect_uri, redirect_uri, seat)


def _landed(place: str, seat: Seat) -> Landing:
    return Landing(place, seat.redirect_uri, seat)
