"""The state folder: where it is, who may look into it, and safe names for what lies in it.

The folder and those below it are made when something is first written, with mode 0700 under any umask. A
folder that is already there keeps the mode its owner gave it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path

__all__ = ["StateFolder", "log_path", "safe_name"]

LOGS = "logs"

_log = logging.getLogger(__name__)

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
"""Names that stand for themselves: lower case, as some file systems do not tell cases apart."""
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")
"""Names that are devices on Windows."""
_UNSAFE = re.compile(r"[^a-z0-9_-]+")


class StateFolder:
    """A folder for what outlives the process. Making the object touches nothing; there is nothing to close."""

    __slots__ = ("path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"StateFolder({str(self.path)!r})"

    def create(self, *below: str) -> Path:
        """The folder, or the one ``below`` it, made if it is not there.

        Raises:
            OSError: it cannot be made, or something else has its name.
        """
        path = self.path
        _make_private(path)
        for name in below:
            path = path / name
            _make_private(path)
        return path


def log_path(folder: StateFolder, server_name: str) -> str:
    """The log file of a server: directly in the ``logs`` folder for any name, and another for each name.

    The folder is made. If that fails, this is told in the program's log, and opening the file will fail.
    """
    logs = os.path.join(folder.path, LOGS)
    try:
        # It is there as a rule, and a host may start hundreds of servers.
        if not os.path.isdir(logs):
            folder.create(LOGS)
    except OSError as fault:
        _log.warning("the folder of server logs cannot be made: %s", fault)
    return os.path.join(logs, f"{safe_name(server_name)}.log")


def safe_name(name: str) -> str:
    """A file name (no ending) for any text: different texts get different names, on any file system.

    A short text of lower-case letters, digits, ``_`` and ``-`` is its own name. Any other is its readable part, a
    ``~``, which no plain name holds, and 128 bits of its SHA-256.
    """
    if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{_UNSAFE.sub('-', name.casefold()).strip('-')[:40]}~{digest}"


def _make_private(path: Path, *, in_vain: bool = False) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        # Some file systems say so of a folder that nobody can make there, as /proc does.
        if path.parent == path or in_vain:
            raise
        _make_private(path.parent)
        _make_private(path, in_vain=True)
    else:
        os.chmod(path, 0o700)  # the umask may have taken away what we need ourselves
