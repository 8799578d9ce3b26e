"""The environment of a child process, and where its command is.

A server gets a safe baseline and what its specification adds, nothing else: the keys of the host are not for the
servers of strangers (F16.5). The command is looked up on the *child's* PATH; when it is missing, the error says where
it was looked for (F14.3). All of it is pure: the platform and the environment are arguments.
"""

from __future__ import annotations

import ntpath
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence

__all__ = ["BASELINE", "BASELINE_WINDOWS", "NotFound", "child_environment", "find_command"]

BASELINE = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM"),
        *("LANG", "LANGUAGE", "TZ", "TZDIR"),
        *("TMPDIR", "TMP", "TEMP"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("XDG_CONFIG_DIRS", "XDG_DATA_DIRS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("PIP_CERT", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "GIT_SSL_CAINFO"),
    )
)
"""Names passed on to every server, besides all that begin with ``LC_``."""

BASELINE_WINDOWS = frozenset(
    (
        *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "PUBLIC", "USERPROFILE", "USERNAME"),
        *("USERDOMAIN", "HOMEDRIVE", "HOMEPATH", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC"),
        *(
            "PROGRAMFILES",
            "PROGRAMFILES(X86)",
            "PROGRAMW6432",
            "COMMONPROGRAMFILES",
            "COMMONPROGRAMFILES(X86)",
        ),
        *("PROCESSOR_ARCHITECTURE", "NUMBER_OF_PROCESSORS", "OS", "COMPUTERNAME"),
    )
)
"""Names passed on as well on Windows, where names have no letter case."""


class NotFound(Exception):
    """The command is not there (or no file that may be run)."""

    def __init__(self, command: str, looked: Sequence[str], why: str) -> None:
        super().__init__(why)
        self.command = command
        self.looked = tuple(looked)
        """Every place that was looked at."""
        self.why = why


def child_environment(
    own: Mapping[str, str],
    host: Mapping[str, str],
    *,
    inherit: bool | Sequence[str] = False,
    windows: bool = os.name == "nt",
) -> dict[str, str]:
    """The environment of a server: the baseline out of ``host``, then the server's ``own`` on top.

    Python programs get UTF-8 mode unless something else is said (F13.10: a legacy code page breaks JSON).
    ``inherit`` is True for all of the host's variables, or the names of further ones.
    """
    if inherit is True:
        chosen = dict(host)
    else:
        extra = frozenset(inherit or ())
        if windows:
            wanted = {name.upper() for name in BASELINE | BASELINE_WINDOWS | extra}
            chosen = {k: v for k, v in host.items() if k.upper() in wanted}
        else:
            chosen = {k: v for k, v in host.items() if k in BASELINE or k in extra or k.startswith("LC_")}
    # A function exported by a shell is code, not a value.
    chosen = {k: v for k, v in chosen.items() if not v.startswith("()")}
    chosen.setdefault("PYTHONUTF8", "1")
    if windows:
        for name in own:
            for other in [k for k in chosen if k.upper() == name.upper()]:
                del chosen[other]
    return {**chosen, **own}


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def find_command(
    command: str,
    environment: Mapping[str, str],
    cwd: str | None,
    *,
    windows: bool = os.name == "nt",
    usable: Callable[[str], bool] = _executable,
    exists: Callable[[str], bool] = os.path.exists,
) -> str:
    """The absolute path of a command: as given if it is a path (relative to ``cwd``), else from the child's PATH.

    On Windows the endings of PATHEXT are tried (``npx`` is ``npx.cmd`` there).

    Raises:
        NotFound: with every place looked at.
    """
    separator = ";" if windows else ":"
    join, isabs = (ntpath.join, ntpath.isabs) if windows else (posixpath.join, posixpath.isabs)

    # A relative folder, of cwd or of PATH, is meant from where the child will be.
    # Asked only where it counts: the folder this process stands in may have been deleted.
    def from_here(*path: str) -> str:
        if isabs(path[0]) and not windows:
            return join(*path)
        try:
            here = os.path.abspath(cwd) if cwd and not isabs(cwd) else cwd or os.getcwd()
        except OSError:
            # As it stands it leads nowhere, which is what will be said.
            return join(*path)
        return join(here, *path)

    endings = [""]
    if windows:
        listed = [e for e in _get(environment, "PATHEXT", windows).split(";") if e] or [
            ".COM",
            ".EXE",
            ".BAT",
            ".CMD",
        ]
        if any(command.lower().endswith(e.lower()) for e in listed):
            endings = [""]
        else:
            endings = [e.lower() for e in listed]
    is_path = "/" in command or (windows and ("\\" in command or ":" in command))
    if is_path:
        base = from_here(command)
        folders_and_names = [base + e for e in endings]
    else:
        folders = [f for f in _get(environment, "PATH", windows).split(separator) if f]
        folders_and_names = [from_here(f, command + e) for f in folders for e in endings]
    for candidate in folders_and_names:
        if usable(candidate):
            return candidate
    present = [c for c in folders_and_names if exists(c)]
    if present:
        why = f"{present[0]} is there but is not a file that may be run"
    elif is_path:
        why = f"there is no {folders_and_names[0]}"
    elif not folders_and_names:
        why = f"{command!r} was not found: the PATH of the server is empty"
    else:
        places = ", ".join(dict.fromkeys(os.path.dirname(c) if not windows else c for c in folders_and_names))
        why = f"{command!r} was not found in the server's PATH; looked in {places}"
    raise NotFound(command, folders_and_names, why)


def _get(environment: Mapping[str, str], name: str, windows: bool) -> str:
    if not windows:
        return environment.get(name, "")
    return next((v for k, v in environment.items() if k.upper() == name), "")
