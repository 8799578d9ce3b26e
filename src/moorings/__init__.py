"""Moorings holds an agent's MCP servers.

The public door. Importing it is cheap: what it names is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._version import __version__

if TYPE_CHECKING:
    from ._secret import Secret
    from .auth.document import client_document
    from .auth.logout import LoggedOut, LogoutReport, logout
    from .auth.prompt import LoginPrompt, OnLoginUrl
    from .auth.report import Login, Logins, ServerLogin, read_logins
    from .auth.transfer import ExportReport, ImportReport, export_logins, import_logins
    from .config import AuthSettings, Bounds, CredentialSettings, HttpServer, StdioServer
    from .config.files import load as load_config
    from .errors import (
        AmbiguousDelivery,
        CallCancelled,
        CallError,
        CallTimeout,
        CommandNotFound,
        ConfigError,
        HostClosedError,
        HttpDetail,
        LoginFailed,
        LoginFileError,
        MisuseError,
        MooringsError,
        NeedsLogin,
        NotSent,
        RefreshFailed,
        Refused,
        RequiredServerMissing,
        RunTimeout,
        ServerDied,
        SkillMismatch,
        StartError,
        StartTimeout,
        StoreFailed,
        UnknownResource,
        UnknownServer,
        UnknownTool,
        WrongLoopError,
    )
    from .host.async_host import AsyncHost
    from .host.blocking import Host
    from .host.catalog import CatalogPrompt, CatalogResource, CatalogTemplate, CatalogTool
    from .host.login import LoginResult, login
    from .host.names import exposed_name
    from .host.refresh import refresh_login
    from .host.report import CloseReport, Readiness
    from .observe import CatalogChanged, StateChanged
    from .server.server import ServerStatus
    from .server.states import State
    from .session.handlers import Handlers
    from .wire.skills import Skill, SkillFile
    from .wire.types import (
        CallToolResult,
        CreateMessageResult,
        ElicitResult,
        GetPromptResult,
        Prompt,
        ReadResourceResult,
        Resource,
        Root,
        TextContent,
        Tool,
    )

_HOMES = {
    "_secret": ("Secret",),
    "auth.document": ("client_document",),
    "auth.logout": ("LoggedOut", "LogoutReport", "logout"),
    "auth.prompt": ("LoginPrompt", "OnLoginUrl"),
    "auth.report": ("Login", "Logins", "ServerLogin", "read_logins"),
    "auth.transfer": ("ExportReport", "ImportReport", "export_logins", "import_logins"),
    "config": ("AuthSettings", "Bounds", "CredentialSettings", "HttpServer", "StdioServer"),
    "errors": (
        "AmbiguousDelivery",
        "CallCancelled",
        "CallError",
        "CallTimeout",
        "CommandNotFound",
        "ConfigError",
        "HostClosedError",
        "HttpDetail",
        "LoginFailed",
        "LoginFileError",
        "MisuseError",
        "MooringsError",
        "NeedsLogin",
        "NotSent",
        "RefreshFailed",
        "Refused",
        "RequiredServerMissing",
        "RunTimeout",
        "ServerDied",
        "SkillMismatch",
        "StartError",
        "StartTimeout",
        "StoreFailed",
        "UnknownResource",
        "UnknownServer",
        "UnknownTool",
        "WrongLoopError",
    ),
    "host.async_host": ("AsyncHost",),
    "host.blocking": ("Host",),
    "host.catalog": ("CatalogPrompt", "CatalogResource", "CatalogTemplate", "CatalogTool"),
    "host.login": ("LoginResult", "login"),
    "host.names": ("exposed_name",),
    "host.refresh": ("refresh_login",),
    "host.report": ("CloseReport", "Readiness"),
    "observe": ("CatalogChanged", "StateChanged"),
    "server.server": ("ServerStatus",),
    "server.states": ("State",),
    "session.handlers": ("Handlers",),
    "wire.skills": ("Skill", "SkillFile"),
    "wire.types": (
        "CallToolResult",
        "CreateMessageResult",
        "ElicitResult",
        "GetPromptResult",
        "Prompt",
        "ReadResourceResult",
        "Resource",
        "Root",
        "TextContent",
        "Tool",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AmbiguousDelivery",
    "AsyncHost",
    "AuthSettings",
    "Bounds",
    "CallCancelled",
    "CallError",
    "CallTimeout",
    "CallToolResult",
    "CatalogChanged",
    "CatalogPrompt",
    "CatalogResource",
    "CatalogTemplate",
    "CatalogTool",
    "CloseReport",
    "CommandNotFound",
    "ConfigError",
    "CreateMessageResult",
    "CredentialSettings",
    "ElicitResult",
    "ExportReport",
    "GetPromptResult",
    "Handlers",
    "Host",
    "HostClosedError",
    "HttpDetail",
    "HttpServer",
    "ImportReport",
    "LoggedOut",
    "Login",
    "LoginFailed",
    "LoginFileError",
    "LoginPrompt",
    "LoginResult",
    "Logins",
    "LogoutReport",
    "MisuseError",
    "MooringsError",
    "NeedsLogin",
    "NotSent",
    "OnLoginUrl",
    "Prompt",
    "ReadResourceResult",
    "Readiness",
    "RefreshFailed",
    "Refused",
    "RequiredServerMissing",
    "Resource",
    "Root",
    "RunTimeout",
    "Secret",
    "ServerDied",
    "ServerLogin",
    "ServerStatus",
    "Skill",
    "SkillFile",
    "SkillMismatch",
    "StartError",
    "StartTimeout",
    "State",
    "StateChanged",
    "StdioServer",
    "StoreFailed",
    "TextContent",
    "Tool",
    "UnknownResource",
    "UnknownServer",
    "UnknownTool",
    "WrongLoopError",
    "__version__",
    "client_document",
    "export_logins",
    "exposed_name",
    "import_logins",
    "load_config",
    "login",
    "logout",
    "read_logins",
    "refresh_login",
]


def __getattr__(name: str) -> object:
    if name == "load_config":
        from .config.files import load

        globals()[name] = load
        return load
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
