"""The rules of the two eras, as data and pure functions.

*Handshake*: revisions 2024-11-05 to 2025-11-25; ``initialize`` opens a conversation. *Modern*: 2026-07-28; every
request carries its version and the client's capabilities in ``_meta``, every result a ``resultType``. What one era
says is never said in the other (F9). Sources: MCP ``basic/versioning``, ``basic/index``, ``basic/patterns/mrtr``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum
from typing import Any

import msgspec

from .jsonrpc import RpcError

__all__ = [
    "HANDSHAKE_REVISIONS",
    "LATEST_HANDSHAKE",
    "LATEST_MODERN",
    "MODERN_REVISIONS",
    "MRTR_METHODS",
    "SKILLS",
    "TASKS",
    "EXTENSIONS",
    "Era",
    "Verdict",
    "VerdictKind",
    "client_capabilities",
    "envelope",
    "judge_probe_error",
    "judge_probe_result",
    "listen_filter",
    "method_exists",
    "result_type_legal",
    "supported_list",
]

HANDSHAKE_REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_REVISIONS = ("2026-07-28",)
LATEST_HANDSHAKE = HANDSHAKE_REVISIONS[-1]
LATEST_MODERN = MODERN_REVISIONS[-1]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND_OLD = -32002
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
MODERN_ERRORS = frozenset((HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION))
"""Codes that only a server of the modern era gives: an answer with one settles the era."""

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT = "io.modelcontextprotocol/clientInfo"
META_LOG_LEVEL = "io.modelcontextprotocol/logLevel"
META_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"

MRTR_METHODS = frozenset(("tools/call", "resources/read", "prompts/get"))
"""Methods whose answer may be ``input_required`` in the modern era."""

TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a call may be answered with a task."""
_TASK_METHODS = frozenset(("tools/call",))
SKILLS = "io.modelcontextprotocol/skills"
"""The extension by which a server lists skills; their files are resources."""
EXTENSIONS = frozenset((TASKS, SKILLS))
"""Those that Moorings speaks, and so declares."""

_HANDSHAKE_ONLY = frozenset(
    (
        "initialize",
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "notifications/initialized",
        "notifications/roots/list_changed",
    )
)
_MODERN_ONLY = frozenset(("server/discover", "subscriptions/listen"))


class Era(Enum):
    """Which way of speaking a server understands."""

    HANDSHAKE = "handshake"
    MODERN = "modern"


class VerdictKind(Enum):
    """What an answer to the probe means."""

    MODERN = "modern"
    """Speak this modern revision."""
    HANDSHAKE = "handshake"
    """Send ``initialize``."""
    ASK_AGAIN = "ask_again"
    """Modern, but at another revision: probe once more with it."""
    INCOMPATIBLE = "incompatible"
    """No revision in common: an error that names both lists, and no ``initialize``."""


class Verdict(msgspec.Struct, frozen=True):
    """The reading of one answer to ``server/discover``."""

    kind: VerdictKind
    revision: str = ""
    supported: tuple[str, ...] = ()
    """What the server said it speaks, where it said so."""


def supported_list(data: Any) -> tuple[str, ...] | None:
    """``data.supported`` of a -32022 error, or None if it holds no list of strings."""
    listed = data.get("supported") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        return None
    return tuple(item for item in listed if isinstance(item, str))


def _judge_versions(supported: Sequence[str], asked: str) -> Verdict:
    modern = [r for r in reversed(MODERN_REVISIONS) if r in supported]
    if modern and modern[0] != asked:
        return Verdict(VerdictKind.ASK_AGAIN, modern[0], tuple(supported))
    if modern:
        return Verdict(VerdictKind.MODERN, modern[0], tuple(supported))
    if any(r in supported for r in HANDSHAKE_REVISIONS):
        return Verdict(VerdictKind.HANDSHAKE, "", tuple(supported))
    return Verdict(VerdictKind.INCOMPATIBLE, "", tuple(supported))


def judge_probe_result(supported: Sequence[str], asked: str) -> Verdict:
    """Read a DiscoverResult: the revision asked for if it is listed, else a mutual one, else none."""
    verdict = _judge_versions(supported, asked)
    if verdict.kind is VerdictKind.INCOMPATIBLE and not supported:
        return Verdict(VerdictKind.HANDSHAKE)
    return verdict


def judge_probe_error(error: RpcError, asked: str) -> Verdict:
    """Read an error: a modern code means modern; every other code, whatever it is, the handshake era."""
    if error.code not in MODERN_ERRORS:
        return Verdict(VerdictKind.HANDSHAKE)
    if error.code != UNSUPPORTED_VERSION:
        return Verdict(VerdictKind.MODERN, asked)
    supported = supported_list(error.data)
    if supported is None:
        return Verdict(VerdictKind.INCOMPATIBLE)
    verdict = _judge_versions(supported, asked)
    if verdict.kind is VerdictKind.MODERN:
        # It refuses the very revision that it lists: nothing more to offer.
        return Verdict(VerdictKind.INCOMPATIBLE, "", supported)
    return verdict


def method_exists(method: str, era: Era) -> bool:
    """Whether a client may send this method in this era."""
    return method not in (_HANDSHAKE_ONLY if era is Era.MODERN else _MODERN_ONLY)


def result_type_legal(result_type: str, method: str, extensions: Container[str] = ()) -> bool:
    """Whether an answer to this method may be of this kind in the modern era, given the extensions that the request
    declared (F9.11)."""
    if result_type == "complete":
        return True
    if result_type == "input_required":
        return method in MRTR_METHODS
    return result_type == "task" and method in _TASK_METHODS and TASKS in extensions


def client_capabilities(
    *,
    roots: bool,
    sampling: bool,
    elicitation_form: bool,
    elicitation_url: bool,
    era: Era,
    extensions: Iterable[str] = (),
) -> dict[str, Any]:
    """Only what is configured: strict servers refuse keys they do not know (F13.11).

    ``extensions``: ids of those that are declared, in the modern era only, which has them.
    """
    capabilities: dict[str, Any] = {}
    if roots:
        capabilities["roots"] = {} if era is Era.MODERN else {"listChanged": True}
    if sampling:
        capabilities["sampling"] = {}
    if elicitation_url:
        capabilities["elicitation"] = {"form": {}, "url": {}} if elicitation_form else {"url": {}}
    elif elicitation_form:
        capabilities["elicitation"] = {}
    if era is Era.MODERN and (listed := sorted(extensions)):
        capabilities["extensions"] = {each: {} for each in listed}
    return capabilities


def envelope(
    revision: str, capabilities: dict[str, Any], client: dict[str, str], log_level: str | None = None
) -> dict[str, Any]:
    """The ``_meta`` that every request of the modern era carries."""
    meta: dict[str, Any] = {META_VERSION: revision, META_CAPABILITIES: capabilities, META_CLIENT: client}
    if log_level is not None:
        meta[META_LOG_LEVEL] = log_level
    return meta


def listen_filter(
    *, tools: bool, prompts: bool, resources: bool, uris: Iterable[str] = (), tasks: Iterable[str] = ()
) -> dict[str, bool | list[str]]:
    """The filter of ``subscriptions/listen``: only what is asked for. ``tasks``: their ids (extension)."""
    wanted: dict[str, bool | list[str]] = {}
    if tools:
        wanted["toolsListChanged"] = True
    if prompts:
        wanted["promptsListChanged"] = True
    if resources:
        wanted["resourcesListChanged"] = True
    if listed := sorted(uris):
        wanted["resourceSubscriptions"] = listed
    if ids := sorted(tasks):
        wanted["taskIds"] = ids
    return wanted
