"""Who may look into and write to the folder of the credentials. The calls block; run in a thread."""

from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path

from .credentials import StoreUnusable
from .folder import StateFolder

__all__ = ["make_private", "refuse_if_open"]

_log = logging.getLogger(__name__)


def make_private(folder: Path, *below: str, store: str) -> None:
    """Make the folder (and those below it), 0700 under any umask, and see to it that nobody else can change it.

    Raises:
        StoreUnusable: somebody else owns it, it is a link, or a folder above it can be changed by everybody.
        OSError: it cannot be made.
    """
    if sys.platform != "win32":
        refuse_if_open(folder.parent, store=store)
    for count in range(len(below) + 1):
        path = StateFolder(folder).create(*below[:count])
        if sys.platform != "win32":
            _close_to_others(path, store)


if sys.platform != "win32":

    def _close_to_others(path: Path, store: str) -> None:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise StoreUnusable(f"{path} is a link, which is not followed for secrets", store=store)
        me = os.geteuid()
        if found.st_uid != me and me != 0:
            raise StoreUnusable(
                f"{path} belongs to another user ({found.st_uid})",
                store=store,
                fix="name a folder of your own",
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            _log.warning("%s could be read by others; its mode is 0700 now", path)
            os.chmod(path, 0o700)


def refuse_if_open(folder: Path, *, store: str) -> None:
    """Refuse folders above, up to the root, in which anybody may put something else in the place of ours.

    Those where only the owner of a thing may move it (``/tmp``) are fine. What is not there yet will be ours.

    Raises:
        StoreUnusable: there is one.
    """
    # Where links lead counts as well as where they stand.
    for path in {*_upward(folder), *_upward(Path(os.path.realpath(folder)))}:
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            continue
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreUnusable(
                f"everybody may write in {path}, and so put other credentials in the place of these",
                store=store,
                fix=f"chmod o-w {path}",
            )


def _upward(folder: Path) -> list[Path]:
    return [folder, *folder.parents]
