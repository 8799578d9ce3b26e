"""The types of tasks: a call that is answered later. Extension ``io.modelcontextprotocol/tasks`` (SEP-2663).

A task is legal only where the request declared the extension (``eras.result_type_legal``): the answer to
``tools/call`` is then a ``CreateTaskResult``. Its state comes from ``tasks/get``, or in ``notifications/tasks``, with
the end inlined. Not the tasks of 2025-11-25, which have other methods and fields.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType, field

from .content import InvalidAnswer, MaybeRaw
from .jsonrpc import RpcError, decode_error
from .lenient import decode_result
from .types import CallToolResult, InputRequest, RequestId, Result, _subscription

__all__ = ["CreateTaskResult", "DetailedTask", "TaskStatus", "cancel_params", "get_params", "update_params"]

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
"""Where a task stands; the last three are ends."""

_ENDS = ("completed", "failed", "cancelled")


class _Task(Result, frozen=True, kw_only=True):
    """What is always said of a task."""

    task_id: str
    """Names it in all that is asked of it; kept letter by letter."""
    status: TaskStatus
    """Where it stands."""
    status_message: str | None = None
    """What is said of that, for people (not to be trusted)."""
    created_at: str | None = None
    """ISO 8601, by the server's clock."""
    last_updated_at: str | None = None
    """ISO 8601, by the server's clock."""
    ttl_ms: int | None = None
    """Milliseconds from its creation for which the server keeps it; None for ever. May change."""
    poll_interval_ms: int | None = None
    """Milliseconds to wait between two ``tasks/get``. May change."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise ValueError("has no taskId")

    @property
    def ended(self) -> bool:
        """True once it will not change any more."""
        return self.status in _ENDS


class CreateTaskResult(_Task, frozen=True, kw_only=True):
    """A task in place of an answer. Only where the extension was declared."""

    result_type: str = "task"
    """``task``."""


class DetailedTask(_Task, frozen=True, kw_only=True):
    """The state of a task: the answer to ``tasks/get``, or the params of ``notifications/tasks``."""

    input_requests: dict[str, InputRequest] = field(default_factory=dict)
    """With ``input_required``: all that is not answered yet, by keys that never come again for another question."""
    result_raw: MaybeRaw = field(default=UNSET, name="result")
    """With ``completed``: what the call would have been answered with, as it came."""
    error_raw: MaybeRaw = field(default=UNSET, name="error")
    """With ``failed``: the JSON-RPC error, as it came."""

    def tool_result(self) -> CallToolResult:
        """The result of a completed ``tools/call``; a failure of the tool itself is one, with ``is_error``.

        Raises:
            InvalidAnswer: there is none, or it cannot be read.
        """
        if isinstance(self.result_raw, UnsetType):
            raise InvalidAnswer("a completed task has no result")
        result = decode_result(self.result_raw, CallToolResult)
        if result.result_type != "complete":
            raise InvalidAnswer(f"the result of a task is of the kind {result.result_type[:80]!r}")
        return result

    @property
    def error(self) -> RpcError:
        """Why it failed, decoded at each access; where nothing is said, an error with the status message."""
        if isinstance(self.error_raw, UnsetType):
            return RpcError(0, self.status_message or "")
        return decode_error(self.error_raw)

    @property
    def subscription_id(self) -> RequestId | None:
        """For which subscription it came, if it came as a notification."""
        return _subscription(self.meta)


def get_params(task_id: str) -> dict[str, Any]:
    """Params of ``tasks/get``."""
    return {"taskId": task_id}


def update_params(task_id: str, responses: dict[str, Any]) -> dict[str, Any]:
    """Params of ``tasks/update``: answers by the keys of their questions; some of them, or all."""
    return {"taskId": task_id, "inputResponses": responses}


def cancel_params(task_id: str) -> dict[str, Any]:
    """Params of ``tasks/cancel``, which asks and does not promise. ``notifications/cancelled`` is not for tasks."""
    return {"taskId": task_id}
