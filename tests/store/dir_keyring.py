"""A keyring for tests: a file for each entry, shared by processes, with the faults that real ones have."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError, PasswordSetError


class DirKeyring(KeyringBackend):
    """Entries in a folder. ``limit`` is how many characters an entry may have, as on Windows."""

    priority = 5.0  # type: ignore[assignment]

    def __init__(self, folder: Path, *, limit: int = 1280) -> None:
        super().__init__()
        self.folder = folder
        self.limit = limit
        self.calls = 0
        self.writes = 0
        self.locked = False
        self.hang: threading.Event | None = None
        self.kill_at_write = 0

    def _path(self, service: str, username: str) -> Path:
        return self.folder / hashlib.sha256(f"{service}/{username}".encode()).hexdigest()

    def _called(self, write: bool = False) -> None:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait()
        if self.locked:
            raise KeyringLocked("the collection is locked")
        if write:
            self.writes += 1
            if self.writes == self.kill_at_write:
                os.kill(os.getpid(), signal.SIGKILL)

    def get_password(self, service: str, username: str) -> str | None:
        self._called()
        try:
            return self._path(service, username).read_text()
        except FileNotFoundError:
            return None

    def set_password(self, service: str, username: str, password: str) -> None:
        self._called(write=True)
        if len(password) > self.limit:
            raise PasswordSetError(f"too long: {password}")
        path = self._path(service, username)
        beside = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        beside.write_text(password)
        os.replace(beside, path)

    def delete_password(self, service: str, username: str) -> None:
        self._called(write=True)
        try:
            os.unlink(self._path(service, username))
        except FileNotFoundError:
            raise PasswordDeleteError("not there") from None
