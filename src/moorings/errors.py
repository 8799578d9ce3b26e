"""Every exception a user of Moorings can meet.

::

    MooringsError                      code, server, what happened, what to do next
    ├── ConfigError                    the configuration must be mended
    ├── MisuseError                    the caller must mend the program
    │   ├── WrongLoopError             from another event loop, or the blocking host on its own loop thread
    │   └── HostClosedError            used before start or after close
    ├── StartError                     a server could not be brought up
    │   ├── CommandNotFound            ... its program is not there
    │   ├── StartTimeout               ... not in time (also a TimeoutError)
    │   └── ServerDied                 ... it exited (also in the middle of a call)
    ├── RequiredServerMissing          ``wait_ready`` or a run wanted it
    ├── UnknownServer, UnknownTool     no such name; also UnknownResource
    ├── RunTimeout                     an agent run passed its deadline (also a TimeoutError)
    ├── LoginFailed                    a login that was asked for came to no end that counts
    ├── StoreFailed                    the store of logins did not answer, or refused
    ├── RefreshFailed                  a login was not renewed now, and is kept
    ├── LoginFileError                 a file of logins cannot be written, read or taken
    ├── SkillMismatch                  a file of a skill is not what its entry says
    └── CallError                      how a call ended, if not with a result (law 4)
        ├── Refused                    the server said no, or it was turned away before it ran
        │   └── NeedsLogin             ... as it wants a login that there is not
        ├── NotSent                    it never left: safe to repeat
        ├── AmbiguousDelivery          sent, no answer: the effect may have happened
        ├── CallTimeout                its limit passed (also a TimeoutError)
        └── CallCancelled              it was cancelled, and the server told so

Split by who must act: the peer, the configuration, the caller. Codes are stable; texts may get better. An error text
says what happened, how long was waited of what was allowed, and the next step; it is never empty.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self, TypeVar

__all__ = [
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
]


def _sentence(text: str) -> str:
    text = text.rstrip()
    return text if text.endswith((".", "!", "?")) else text + "."


def _next_step(fix: str | None) -> str:
    return f" Next step: {_sentence(shortened(fix))}" if fix else ""


MAX_TEXT = 2000
"""Characters of one message in the text of an error: what a server says may be as long as it likes."""


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """A text of bounded length, for errors and logs; the whole of it stays where it came from."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text):,} characters in all)"


def last_words(output: str, lines: int = 3, size: int = 400) -> str:
    """The last lines of what a program wrote, in one: for the texts of errors."""
    kept = [line.strip() for line in output.splitlines() if line.strip()][-lines:]
    return " | ".join(kept)[-size:]


class HttpDetail(NamedTuple):
    """What an HTTP answer said, where that is the cause of an error."""

    status: int
    url: str
    """Without what may be secret: user, password and the values of its query."""
    excerpt: str = ""
    """The first 300 characters of its body; not to be trusted."""
    retry_after: float | None = None
    """Seconds after which the server wants to be asked again."""
    challenges: tuple[str, ...] = ()
    """Its ``WWW-Authenticate`` headers."""


class MooringsError(Exception):
    """Base of all. ``str()`` gives one readable text; the parts are attributes."""

    code: ClassVar[str] = "MOOR_ERROR"

    def __init__(self, message: str, *, server: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.server = server
        """Name of the server concerned, if one is."""
        self.fix = fix
        """The next step, if one is known."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)

    def again(self) -> Self:
        """The same error without its traceback: what is kept for long, or raised for many, must not collect frames."""
        return _restore(type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        where = f"server {self.server!r}: " if self.server else ""
        return f"{where}{_sentence(shortened(self.message))}{_next_step(self.fix)} [{self.code}]"


E = TypeVar("E", bound=MooringsError)


def _restore(kind: type[E], args: tuple[Any, ...], state: dict[str, Any]) -> E:
    """An error from its parts: pickling calls ``kind(*args)``, which keyword-only parts would refuse."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(MooringsError):
    """A configuration that cannot be used. Nothing of it was started."""

    code = "MOOR_CONFIG"

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        line: int | None = None,
        server: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, server=server, fix=fix)
        self.file = file
        self.key = key
        self.line = line

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        parts = [p for p in (place, self.key, self.message) if p]
        return f"{_sentence(': '.join(parts))}{_next_step(self.fix)} [{self.code}]"


class MisuseError(MooringsError):
    """The program uses Moorings in a way that cannot work. Raised at once, never a hang."""

    code = "MOOR_MISUSE"


class WrongLoopError(MisuseError):
    """Called from an event loop or thread from which it would hang."""

    code = "MOOR_WRONG_LOOP"


class HostClosedError(MisuseError):
    """The host is not running: not started yet, or closed."""

    code = "MOOR_HOST_CLOSED"


class StartError(MooringsError):
    """A server could not be brought up."""

    code = "MOOR_START"

    def __init__(
        self,
        message: str,
        *,
        server: str | None = None,
        fix: str | None = None,
        elapsed: float | None = None,
        allowed: float | None = None,
        exit_code: int | None = None,
        stderr_tail: str = "",
    ) -> None:
        super().__init__(message, server=server, fix=fix)
        self.elapsed = elapsed
        """Seconds waited."""
        self.allowed = allowed
        """Seconds allowed."""
        self.exit_code = exit_code
        """Exit code of the process (negative: the signal that ended it), if it is dead and this is known."""
        self.stderr_tail = stderr_tail
        """The last lines of its stderr."""
        self.http: HttpDetail | None = None
        """The HTTP answer that was the cause, if one was."""
        self.rpc_code: int | None = None
        """The code of the JSON-RPC error by which the server refused, if it did."""
        self.needs = ""
        """What a person must do first, as ``NeedsLogin.reason`` says; empty if it is not that."""

    def __str__(self) -> str:
        where = f"server {self.server!r}: " if self.server else ""
        took = ""
        if self.elapsed is not None and self.allowed is not None:
            took = f" It took {self.elapsed:.1f} s of {self.allowed:.4g} s allowed."
        text = f"{where}{_sentence(shortened(self.message))}{took}{_next_step(self.fix)} [{self.code}]"
        if self.stderr_tail.strip():
            lines = self.stderr_tail.strip().splitlines()[-12:]
            text += "\n  last lines of its stderr:\n" + "\n".join("    " + line for line in lines)
        return text


class CommandNotFound(StartError):
    """The program of a server is not there. Nothing is tried again until the configuration changes."""

    code = "MOOR_COMMAND_NOT_FOUND"


class StartTimeout(StartError, TimeoutError):
    """A start took longer than was allowed, or than the caller would wait."""

    code = "MOOR_START_TIMEOUT"


class ServerDied(StartError):
    """The process of a server ended, or closed its stdout."""

    code = "MOOR_SERVER_DIED"


class RequiredServerMissing(MooringsError):
    """One or more servers marked ``required`` are not ready."""

    code = "MOOR_REQUIRED_MISSING"

    def __init__(self, message: str, *, missing: dict[str, str], fix: str | None = None) -> None:
        super().__init__(message, server=None, fix=fix)
        self.missing = missing
        """Server name → why it is not ready."""


class UnknownServer(MooringsError):
    """No server of that name is in this host."""

    code = "MOOR_UNKNOWN_SERVER"


class UnknownTool(MooringsError):
    """No tool (or prompt) of that name is in the catalog."""

    code = "MOOR_UNKNOWN_TOOL"


class UnknownResource(MooringsError):
    """No server is known to hold that resource, or more than one does."""

    code = "MOOR_UNKNOWN_RESOURCE"


class RunTimeout(MooringsError, TimeoutError):
    """An agent run passed its deadline; all it had begun was ended."""

    code = "MOOR_RUN_TIMEOUT"

    def __init__(self, message: str, *, elapsed: float, allowed: float) -> None:
        super().__init__(message, fix="give the run more time (timeout=…), or do less in it")
        self.elapsed = elapsed
        self.allowed = allowed


class StoreFailed(MooringsError):
    """The store of logins did not answer, or refused; what it holds is not known, and another time may do better."""

    code = "MOOR_STORE_FAILED"


class LoginFailed(MooringsError):
    """A login came to no end that counts. What was in use before still is, unless it says that tokens were stored."""

    code = "MOOR_LOGIN_FAILED"

    def __init__(
        self, message: str, *, reason: str, server: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(message, server=server, fix=fix)
        self.reason = reason
        """``denied`` (the server or the person said no), ``timeout`` (nobody came back in time), ``not_wanted`` (the
        server answers without a login), ``not_taken`` (it refuses the tokens that came), ``unproven`` (whether it takes
        them is not known: they are stored where there was no login that works), ``unsaved`` (they could not be stored),
        ``port`` (that of the listener is taken), ``unreachable`` (a server did not answer), ``client``, ``server`` or
        ``package`` (as ``NeedsLogin.reason``), ``failed`` (anything else)."""


class RefreshFailed(MooringsError):
    """A login was not renewed: its server did not answer, or not now. It is kept, and another time may do better."""

    code = "MOOR_REFRESH_FAILED"


class LoginFileError(MooringsError):
    """A file of exported logins cannot be written, read or taken. Nothing was changed here."""

    code = "MOOR_LOGIN_FILE"

    def __init__(self, message: str, *, reason: str, file: str, fix: str | None = None) -> None:
        super().__init__(f"{file}: {message}", fix=fix)
        self.reason = reason
        """``file`` (it cannot be read or written, or is there already), ``damaged`` (cut off, changed, none of ours),
        ``version`` (of a later Moorings), ``passphrase`` (not the right one, or none that will do), ``principal`` (its
        logins are somebody else's), ``exists`` (there is a login in that place), ``older`` (and a newer one)."""
        self.file = file


class SkillMismatch(MooringsError):
    """A file of a skill is not what the entry of the skill says; nothing of it was handed out, nor is it to be."""

    code = "MOOR_SKILL_MISMATCH"

    def __init__(
        self,
        message: str,
        *,
        skill: str,
        uri: str,
        rule: str,
        expected: Any = None,
        found: Any = None,
        server: str | None = None,
    ) -> None:
        fix = "ask for the skill anew: it may have changed since it was listed, and then wants a new approval"
        super().__init__(message, server=server, fix=fix)
        self.skill = skill
        """URI of the skill."""
        self.uri = uri
        """URI of the file."""
        self.rule = rule
        """Which rule it breaks: ``unlisted``, ``content``, ``size``, ``digest`` or ``frontmatter``."""
        self.expected = expected
        """What the entry says, where that can be told."""
        self.found = found
        """What was found, cut short: the words of a file that was refused, and in no text of this error."""


class CallError(MooringsError):
    """How a call ended, if not with a result. ``sent`` says whether the effect may have happened."""

    code = "MOOR_CALL"

    def __init__(
        self,
        message: str,
        *,
        server: str | None = None,
        tool: str | None = None,
        sent: bool,
        elapsed: float = 0.0,
        allowed: float | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, server=server, fix=fix)
        self.sent = sent
        """True if any byte of it left: its effect may have happened."""
        self.fix = fix or self._usual_fix()
        self.tool = tool
        """Raw name of the tool, or the method of another request."""
        self.elapsed = elapsed
        """Seconds since the call began."""
        self.allowed = allowed
        """Seconds it was allowed, if that is what ended it."""
        self.http: HttpDetail | None = None
        """The HTTP answer that was the cause, if one was."""

    elsewhere = False
    """True if what broke was this one exchange: a repeat would go another way, over the same connection."""

    def __str__(self) -> str:
        where = f"server {self.server!r}" if self.server else "call"
        if self.tool:
            where += f", {shortened(self.tool, 200)!r}"
        # An error that is about no call took no time.
        took = (
            f", after {self.elapsed:.2f} s" if self.tool or self.elapsed or self.allowed is not None else ""
        )
        if self.allowed is not None:
            took += f" of {self.allowed:.4g} s allowed"
        return f"{where}{took}: {_sentence(shortened(self.message))}{_next_step(self.fix)} [{self.code}]"

    def _usual_fix(self) -> str | None:
        """What to do where nobody said anything better."""
        return None


class Refused(CallError):
    """The server answered with a JSON-RPC error, or turned the call away before it ran."""

    code = "MOOR_REFUSED"

    def __init__(
        self,
        message: str,
        *,
        rpc_code: int | None = None,
        data: Any = None,
        server: str | None = None,
        tool: str | None = None,
        sent: bool = True,
        elapsed: float = 0.0,
        allowed: float | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(
            message, server=server, tool=tool, sent=sent, elapsed=elapsed, allowed=allowed, fix=fix
        )
        self.rpc_code = rpc_code
        """The peer's JSON-RPC error code; None if the refusal is not an error of the peer's."""
        self.data = data
        """The peer's error data, decoded."""


class NeedsLogin(Refused):
    """The server wants a login, and there is none that it takes. It did not run; nothing is tried again by itself."""

    code = "MOOR_NEEDS_LOGIN"

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        server: str | None = None,
        tool: str | None = None,
        elapsed: float = 0.0,
        fix: str | None = None,
    ) -> None:
        super().__init__(message, server=server, tool=tool, sent=False, elapsed=elapsed, fix=fix)
        self.reason = reason
        """``login`` (nobody has logged in), ``expired``, ``revoked`` or ``lost`` (the login is over), ``client_gone``
        (so is the client that we registered; a login makes another), ``scope`` (it is good, and not for this),
        ``denied``, ``client`` (who we are must be configured), ``server`` (where to log in must be), ``package``
        (something must be installed)."""


class NotSent(CallError):
    """No byte of it left: nothing happened, and it is safe to repeat."""

    code = "MOOR_NOT_SENT"


class AmbiguousDelivery(CallError):
    """Sent, and no answer came: the effect may have happened, so it is not repeated by itself."""

    code = "MOOR_AMBIGUOUS"

    def _usual_fix(self) -> str:
        return (
            "see whether it took effect before it is repeated; repeat=True where a second time does no harm"
        )


class CallTimeout(CallError, TimeoutError):
    """The limit of the call passed; the server was told."""

    code = "MOOR_CALL_TIMEOUT"

    def _usual_fix(self) -> str:
        if self.sent:
            return "see whether it took effect before it is repeated, or give it more time (timeout=…)"
        return "repeat it, or give it more time (timeout=…)"


class CallCancelled(CallError):
    """The call was cancelled by its caller, by the end of its run or by the close of the host; the server was told."""

    code = "MOOR_CALL_CANCELLED"
