"""The store of logins for those who do something to it beside hosts: it is opened for that alone, and closed again.

A host of this process sees what is done here as it sees the work of other processes. Store errors become public ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ..errors import ConfigError, StoreFailed
from ..store.credentials import CredentialStore, StoreError, StoreUnusable
from .shared import state_folder, store_of

if TYPE_CHECKING:
    from ..config.credential_spec import CredentialSettings

__all__ = ["IN_MEMORY", "LOCK_WITHIN", "TURNS", "no_memory", "store_at"]

IN_MEMORY = "logins live in the process that uses them"
LOCK_WITHIN = 60.0
"""Seconds that the store's lock is waited for: a renewal that is under way is let finish."""
TURNS = 3
"""Times that the lock is taken, if it is lost before the work was done."""


@contextlib.asynccontextmanager
async def store_at(
    settings: CredentialSettings, state_dir: str | os.PathLike[str] | bool | None
) -> AsyncIterator[CredentialStore]:
    """The store of these settings, closed at the end. Its errors leave the block as those that users meet.

    Raises:
        ConfigError: it cannot be used here, or is the memory of a process.
        StoreFailed: it did not answer, or refused.
    """
    opened = store_of(settings, state_folder(state_dir))
    if opened is None:
        raise no_memory()
    try:
        store = await opened()
        try:
            yield store
        finally:
            await store.aclose()
    except StoreUnusable as fault:
        raise ConfigError(f"the store of logins cannot be used: {fault}", fix=fault.fix or None) from fault
    except StoreError as fault:
        raise StoreFailed(f"the store of logins: {fault}") from fault


def no_memory() -> ConfigError:
    """What is said where there is no store that outlives a process."""
    return ConfigError(
        f"{IN_MEMORY}, and end with it: there is no store to work on",
        fix="keep them in files, in the keyring or in a database (credentials.store)",
    )
