"""One way to write a file: whole or not at all, private from its first byte.

A temporary file in the same folder, created 0600 whatever the umask, written, flushed to the disk where that is
wanted, then put in the place of the old file in one step. A reader sees the old content or the new, never a
part; two writers do not mix; a writer that fails takes its temporary file away, and one that is killed leaves
it to ``remove_stale``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

__all__ = ["STALE_AFTER", "remove_stale", "sync_folder", "write_atomic"]

STALE_AFTER = 3600.0
"""Seconds after which a temporary file belongs to a writer that was killed."""

_SUFFIX = ".tmp"


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make ``path`` a file of mode 0600 that holds ``data``.

    Not ``durable``, it is not waited for until the disk has it, which takes milliseconds: after a power cut the file
    may be the old one, none, or empty.

    Raises:
        OSError: it could not be written; the old file is as it was, and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(8)}{_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:  # boundary: undone, and raised again
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(path.parent)


def remove_stale(folder: Path) -> None:
    """Remove temporary files whose writers were killed long ago. Never raises for what cannot be removed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(_SUFFIX):
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_AFTER:
                        os.unlink(entry.path)


def sync_folder(folder: Path) -> None:
    """Make the new name outlive a power cut, where the system can do that."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
