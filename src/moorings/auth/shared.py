"""One ``AuthService`` for each store of credentials, for all hosts and clients of this process.

``service_for`` finds or makes it; it lives as long as anybody holds it. So however many hosts look after a login, one
broker refreshes it. In a forked child there are none yet: those of the parent are the parent's.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.places import state_dir as usual_state_dir
from ..errors import ConfigError
from ..store.credentials import CredentialStore, StoreUnusable
from ..store.memory_store import Memory, MemoryStore
from ..store.where import folder_of, holds, in_memory
from .service import AuthService

if TYPE_CHECKING:
    from ..config.credential_spec import CredentialSettings

__all__ = ["service_for", "state_folder", "store_of"]

FINISH_WITHIN = 10.0
"""Seconds for which the end of the interpreter waits for work of brokers."""

_services: weakref.WeakValueDictionary[tuple[object, ...], AuthService] = weakref.WeakValueDictionary()
_gate = threading.Lock()  # held for a look at a dictionary


def service_for(settings: CredentialSettings, state_dir: Path | None) -> AuthService:
    """The service of a store.

    Args:
        settings: which store it is.
        state_dir: the state folder; None if nothing is kept on the disk, so that the usual store is the memory.
    """
    kind = settings.kind
    if in_memory(settings, state_dir):
        memory = Memory()

        async def forgetful() -> CredentialStore:
            return MemoryStore(memory)

        return AuthService(forgetful, may_hold=lambda: bool(memory.entries), environ=_environ)
    folder = _folder(settings, state_dir)
    key = (
        kind,
        settings.store if kind in ("redis", "postgresql") else str(folder.absolute()),
        settings.encrypt,
    )
    with _gate:
        service = _services.get(key)
        if service is None:
            service = AuthService(
                _opener(settings, folder, state_dir),
                may_hold=(lambda: holds(folder)) if kind == "file" else lambda: True,
                environ=_environ,
            )
            _services[key] = service
        return service


def store_of(
    settings: CredentialSettings, state_dir: Path | None
) -> Callable[[], Awaitable[CredentialStore]] | None:
    """What opens the store of these settings, for one who only looks; None where it is the memory of a process."""
    if in_memory(settings, state_dir):
        return None
    return _opener(settings, _folder(settings, state_dir), state_dir)


def state_folder(state_dir: str | os.PathLike[str] | bool | None) -> Path | None:
    """The state folder that a ``state_dir`` of a host means; None: nothing is kept on the disk."""
    if state_dir is False:
        return None
    if state_dir is None or state_dir is True:
        try:
            return usual_state_dir()
        except ConfigError:
            return None  # the home is not known: nothing is kept, as in a host
    return Path(os.path.abspath(state_dir))


def _folder(settings: CredentialSettings, state_dir: Path | None) -> Path:
    return folder_of(settings, state_dir) or (state_dir or Path()) / "keyring"


def _environ() -> Mapping[str, str]:
    return os.environ


def _opener(
    settings: CredentialSettings, folder: Path, state_dir: Path | None
) -> Callable[[], Awaitable[CredentialStore]]:
    """Backends are imported where they are used: some need packages that not everybody has."""

    async def opened() -> CredentialStore:
        if settings.kind == "file":
            from ..store.files import FileStore

            if not settings.encrypt:
                return FileStore(folder)
            from ..store.sealing import KeyringSealing

            return FileStore(folder, sealing=KeyringSealing())
        if settings.kind == "keyring":
            from ..store.keyring_store import KeyringStore

            if state_dir is None:
                raise StoreUnusable(
                    "it keeps the locks of the keyring in the state folder, and there is none",
                    store="keyring",
                    fix="give the host a state_dir",
                )
            return KeyringStore(folder)
        if settings.kind == "redis":
            from ..store.redis_store import RedisStore

            return RedisStore(settings.store)
        from ..store.postgres_store import PostgresStore

        return PostgresStore(settings.store)

    return opened


def _after_fork() -> None:
    global _gate
    _gate = threading.Lock()
    _services.clear()


def _finish_all() -> None:
    """The end of the interpreter would cut off a refresh whose answer is on its way, and the login with it."""
    until = time.monotonic() + FINISH_WITHIN
    for service in list(_services.values()):
        service.broker.finish(until - time.monotonic())


atexit.register(_finish_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
