"""Where the credentials of a store lie, and a quick look whether there are any. Imports no backend."""

from __future__ import annotations

import os
from pathlib import Path

from ..config.credential_spec import CredentialSettings

__all__ = ["folder_of", "holds", "in_memory"]

FOLDER = "credentials"
"""Of the file store, in the state folder."""


def in_memory(settings: CredentialSettings, state_dir: Path | None) -> bool:
    """Whether nothing outlives the process: so it is said, or there is no state folder for the usual store."""
    return settings.kind == "memory" or (
        settings.kind == "file" and settings.folder is None and state_dir is None
    )


def folder_of(settings: CredentialSettings, state_dir: Path | None) -> Path | None:
    """The folder of a file store; None if it is another one."""
    if settings.kind != "file" or in_memory(settings, state_dir):
        return None
    return Path(settings.folder) if settings.folder is not None else (state_dir or Path()) / FOLDER


def holds(folder: Path) -> bool:
    """Whether anything is in a folder, or that is not known."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True  # opening it says what is wrong
