"""Where files of Moorings live on this machine, by the rules of the platform.

Linux, macOS and other Unix: the XDG base directories (macOS as well, as command-line programs do). Windows:
``%APPDATA%`` for configuration and ``%LOCALAPPDATA%`` for state. Nothing is created here.
"""

from __future__ import annotations

import ntpath
import os
import posixpath
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError
from .expand import home_of

__all__ = ["config_file", "state_dir"]

FOLDER = "moorings"
FILE = "moorings.toml"


def config_file(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The file that is read when none is named.

    Raises:
        ConfigError: the home folder is not known.
    """
    environ = os.environ if environ is None else environ
    return _base(environ, platform, "XDG_CONFIG_HOME", ".config", "APPDATA", "Roaming") / FOLDER / FILE


def state_dir(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The folder of what outlives the process.

    Raises:
        ConfigError: the home folder is not known.
    """
    environ = os.environ if environ is None else environ
    return _base(environ, platform, "XDG_STATE_HOME", ".local/state", "LOCALAPPDATA", "Local") / FOLDER


def _base(
    environ: Mapping[str, str], platform: str, xdg: str, below_home: str, windows: str, below_appdata: str
) -> Path:
    on_windows = platform == "win32"
    named = environ.get(windows if on_windows else xdg, "")
    is_absolute = ntpath.isabs if on_windows else posixpath.isabs
    if named and is_absolute(named):  # the XDG rules: a relative path is to be ignored
        return Path(named)
    home = home_of(environ)
    if home is None:
        variable = "USERPROFILE" if on_windows else "HOME"
        raise ConfigError(
            f"the home folder is not known: {variable} is not set",
            fix=f"set {variable}, or name the file with --config",
        )
    return Path(home, "AppData", below_appdata) if on_windows else Path(home, below_home)
