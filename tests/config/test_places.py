"""Where the default file and the state folder are, on each platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from moorings.config import config_file, state_dir
from moorings.errors import ConfigError


@pytest.mark.parametrize("platform", ["linux", "darwin", "freebsd14"])
@pytest.mark.parametrize(
    ("environ", "file", "state"),
    [
        ({"HOME": "/h"}, "/h/.config/moorings/moorings.toml", "/h/.local/state/moorings"),
        (
            {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"},
            "/c/moorings/moorings.toml",
            "/s/moorings",
        ),
        (
            {"HOME": "/h", "XDG_CONFIG_HOME": "relative", "XDG_STATE_HOME": ""},
            "/h/.config/moorings/moorings.toml",
            "/h/.local/state/moorings",
        ),
    ],
)
def test_unix_and_macos(platform: str, environ: dict[str, str], file: str, state: str) -> None:
    assert config_file(environ, platform) == Path(file)
    assert state_dir(environ, platform) == Path(state)


def test_windows() -> None:
    environ = {"USERPROFILE": "C:/Users/ada", "APPDATA": "C:/Users/ada/AppData/Roaming"}
    assert config_file(environ, "win32") == Path("C:/Users/ada/AppData/Roaming/moorings/moorings.toml")
    assert state_dir(environ, "win32") == Path("C:/Users/ada/AppData/Local/moorings")


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_without_a_home_folder(platform: str) -> None:
    with pytest.raises(ConfigError, match="home folder is not known"):
        config_file({}, platform)
