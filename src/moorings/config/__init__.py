"""Server specifications and the files they come from.

What the user wrote, validated whole and turned into frozen values before anything starts. This room reads
files and the environment; it starts nothing.
"""

from .files import Config, Format, HostSettings, load, parse
from .kinds import ServerSpec
from .memory import MemoryApp, MemorySpec
from .places import config_file, state_dir
from .problems import ConfigProblems, Problem
from .spec import Bounds, Protocol, StdioServer
from .units import duration, size

__all__ = [
    "Bounds",
    "Config",
    "ConfigProblems",
    "Format",
    "HostSettings",
    "MemoryApp",
    "MemorySpec",
    "Problem",
    "Protocol",
    "ServerSpec",
    "StdioServer",
    "config_file",
    "duration",
    "load",
    "parse",
    "size",
    "state_dir",
]
