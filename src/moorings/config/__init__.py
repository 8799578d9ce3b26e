"""Server specifications and the files they come from.

What the user wrote, validated whole and turned into frozen values before anything starts. This room reads
files and the environment; it starts nothing.
"""

from .auth_spec import AuthMethod, AuthSettings, Flow, TokenSource
from .credential_spec import CredentialSettings, StoreKind
from .files import Config, Format, HostSettings, load, parse
from .headers import checked_headers, read_headers_output
from .http_spec import Headers, HttpServer, Server, Transport
from .memory import MemoryApp, MemorySpec
from .places import config_file, state_dir
from .problems import ConfigProblems, Problem
from .spec import Bounds, Protocol, ServerSpec, StdioServer
from .units import duration, size

__all__ = [
    "AuthMethod",
    "AuthSettings",
    "Bounds",
    "Config",
    "ConfigProblems",
    "CredentialSettings",
    "Flow",
    "Format",
    "Headers",
    "HostSettings",
    "HttpServer",
    "MemoryApp",
    "MemorySpec",
    "Problem",
    "Protocol",
    "Server",
    "ServerSpec",
    "StdioServer",
    "StoreKind",
    "TokenSource",
    "Transport",
    "checked_headers",
    "config_file",
    "duration",
    "load",
    "parse",
    "read_headers_output",
    "size",
    "state_dir",
]
