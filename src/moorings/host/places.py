"""Where a host keeps what outlives the process: eras and logs. Made at the start of a host; holds nothing open."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..config import state_dir
from ..errors import ConfigError
from ..store import Eras, EraStore, MemoryEraStore, StateFolder, log_path

__all__ = ["Places"]


class Places(msgspec.Struct, frozen=True):
    """The places of one host."""

    eras: Eras
    log_path: Callable[[str], str | None]
    """Server → its log file; None for none."""
    folder: Path | None = None
    """The state folder; None if nothing is kept."""

    @classmethod
    def at(cls, folder: str | os.PathLike[str] | bool | None) -> Places:
        """The places in ``folder``; None is the usual one of the system, False keeps all in memory.

        Where the home folder is not known, nothing is kept: a missing memory costs a probe, never a connection.

        Raises:
            ConfigError: the folder is relative, and the folder this process stands in was deleted.
        """
        if folder is None or isinstance(folder, bool):
            if folder is False:
                return cls(MemoryEraStore(), lambda name: None)
            try:
                folder = state_dir()
            except ConfigError:
                return cls(MemoryEraStore(), lambda name: None)
        try:
            state = StateFolder(folder)
        except OSError:
            raise ConfigError(
                f"the state folder {os.fspath(folder)!r} is relative, and the current folder is gone",
                fix="name it by its whole path, or go to a folder that is there",
            ) from None
        return cls(EraStore(state), lambda name: log_path(state, name), Path(os.path.abspath(folder)))
