"""How a command ends, in one table: what ``--help`` prints and what the verbs return."""

from __future__ import annotations

from enum import IntEnum

from moorings import (
    AmbiguousDelivery,
    CallCancelled,
    CallTimeout,
    ConfigError,
    LoginFailed,
    LoginFileError,
    MisuseError,
    MooringsError,
    NotSent,
    RefreshFailed,
    Refused,
    RequiredServerMissing,
    RunTimeout,
    StartError,
    StoreFailed,
    UnknownResource,
    UnknownServer,
    UnknownTool,
)

__all__ = ["ExitCode", "exit_code_of", "table"]


class ExitCode(IntEnum):
    """The exit codes of ``moor``. Ended by signal n: 128+n, also on Ctrl-C (130) and a closed pipe (141)."""

    OK = 0
    TOOL_ERROR = 1
    USAGE = 2
    START = 3
    REFUSED = 4
    TIMEOUT = 5
    AMBIGUOUS = 6
    UNKNOWN = 7
    INTERNAL = 70
    INTERRUPTED = 130
    PIPE = 141


_MEANING = {
    ExitCode.OK: "done",
    ExitCode.TOOL_ERROR: "the tool ran and answered with an error",
    ExitCode.USAGE: "the command line or the configuration is wrong; nothing was started",
    ExitCode.START: "a server (or the store of logins) could not be started or reached; the call was not sent",
    ExitCode.REFUSED: "the server refused the call, or wants a login; no login came of it",
    ExitCode.TIMEOUT: "a limit passed",
    ExitCode.AMBIGUOUS: "the call was sent and no answer came: its effect may have happened",
    ExitCode.UNKNOWN: "no tool or server of that name",
    ExitCode.INTERNAL: "a fault of moor itself",
    ExitCode.INTERRUPTED: "interrupted (128+n: ended by signal n)",
}

_BY_ERROR: tuple[tuple[type[MooringsError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (MisuseError, ExitCode.USAGE),
    (LoginFileError, ExitCode.USAGE),
    (StartError, ExitCode.START),
    (RequiredServerMissing, ExitCode.START),
    (NotSent, ExitCode.START),
    (StoreFailed, ExitCode.START),
    (LoginFailed, ExitCode.REFUSED),
    (RefreshFailed, ExitCode.START),
    (Refused, ExitCode.REFUSED),
    (CallTimeout, ExitCode.TIMEOUT),
    (RunTimeout, ExitCode.TIMEOUT),
    (AmbiguousDelivery, ExitCode.AMBIGUOUS),
    (CallCancelled, ExitCode.INTERRUPTED),
    (UnknownServer, ExitCode.UNKNOWN),
    (UnknownTool, ExitCode.UNKNOWN),
    (UnknownResource, ExitCode.UNKNOWN),
)


_LOGIN = {
    "timeout": ExitCode.TIMEOUT,
    "unreachable": ExitCode.START,
    "unsaved": ExitCode.START,
    "port": ExitCode.START,
    "package": ExitCode.USAGE,
}
"""Why a login failed, where that was not the server's word."""


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code that an error stands for."""
    if isinstance(error, LoginFailed) and error.reason in _LOGIN:
        return _LOGIN[error.reason]
    if isinstance(error, StartError) and error.needs:
        return ExitCode.REFUSED
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return ExitCode.INTERNAL


def table() -> str:
    """The exit codes for ``--help``."""
    return "\n".join(f"{code.value:>5}  {meaning}" for code, meaning in _MEANING.items())
