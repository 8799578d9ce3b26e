"""A call that is answered later: its task is followed until it ends, inside the limits of the call.

Run in the caller's own task. Whoever gives up has the server asked to cancel the task, which it may or may not do. The
interval is the server's, within bounds of ours. Extension ``io.modelcontextprotocol/tasks`` (SEP-2663); the modern era
only, where it is declared with each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from ..errors import AmbiguousDelivery, CallError, CallTimeout, Refused
from ..wire.lenient import decode_result
from ..wire.tasks import CreateTaskResult, DetailedTask, cancel_params, get_params, update_params
from ..wire.types import CallToolResult, InputRequest, InvalidAnswer
from .cancelled import note_cancel
from .clock import CallClock
from .session import Session

__all__ = ["Respond", "follow"]

Respond = Callable[[dict[str, InputRequest]], Awaitable[dict[str, Raw]]]
"""Answers questions of the server, by their keys."""

FIRST_INTERVAL = 1.0
"""Seconds between two looks where the server does not say."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 60.0
CANCEL_WITHIN = 10.0
"""Seconds in which the wish to cancel a task must be answered."""
MOST_BREAKS = 3
"""Looks in a row that may come to nothing because their exchange broke: looking again does no harm."""


async def follow(
    session: Session, created: CreateTaskResult, clock: CallClock, label: str, respond: Respond
) -> CallToolResult:
    """The result of a task.

    Args:
        label: the tool, for errors.

    Raises:
        CallError: every other outcome. ``InvalidAnswer`` for a task that breaks the rules.
        asyncio.CancelledError: the caller was cancelled; the server was asked to cancel the task.
    """
    task_id = created.task_id
    loop = asyncio.get_running_loop()
    try:
        return await _until_ended(session, created, clock, label, respond)
    except asyncio.CancelledError as cancelled:
        _ask_to_cancel(session, task_id)
        elapsed = clock.elapsed(loop.time())
        note_cancel(cancelled, server=session.server, tool=label, sent=True, elapsed=elapsed)
        raise
    except CallTimeout as error:
        _ask_to_cancel(session, task_id)
        # Whatever it struck, a look that was never sent too: the call itself had been taken.
        raise CallTimeout(
            f"its task did not end within {clock.limit()}",
            server=session.server,
            tool=label,
            sent=True,
            elapsed=clock.elapsed(loop.time()),
            allowed=error.allowed,
        ) from None
    except CallError as error:
        # The call itself was taken long ago: what breaks now leaves its end unknown.
        if isinstance(error, Refused) and error.tool == label:
            raise
        raise AmbiguousDelivery(
            f"its task {task_id[:80]!r} could not be followed: {error.message}",
            server=session.server,
            tool=label,
            sent=True,
            elapsed=clock.elapsed(loop.time()),
        ) from error


async def _until_ended(
    session: Session, created: CreateTaskResult, clock: CallClock, label: str, respond: Respond
) -> CallToolResult:
    loop = asyncio.get_running_loop()
    answered: set[str] = set()
    interval = _interval(created.poll_interval_ms)
    said: Any = None
    breaks = 0
    while True:
        # Its limits hold while it waits: what is left of them is the longest wait.
        await asyncio.sleep(max(0.0, min(interval, clock.next_look() - loop.time())))
        try:
            raw = await session.request(
                "tasks/get", get_params(created.task_id), clock, label=created.task_id
            )
        except CallError as error:
            breaks += 1
            if not error.elsewhere or breaks > MOST_BREAKS:
                raise
            continue
        breaks = 0
        task = decode_result(raw, DetailedTask)
        if task.task_id != created.task_id:
            raise InvalidAnswer(f"it is the state of another task, {task.task_id[:80]!r}")
        interval = _interval(
            task.poll_interval_ms if task.poll_interval_ms is not None else created.poll_interval_ms
        )
        if task.status == "completed":
            return task.tool_result()
        if task.status == "failed":
            refused = task.error
            raise Refused(
                f"refused by the server: {refused.message or 'no reason given'} (code {refused.code})",
                rpc_code=refused.code,
                data=refused.data,
                server=session.server,
                tool=label,
                elapsed=clock.elapsed(loop.time()),
            )
        if task.status == "cancelled":
            raise Refused(
                f"the server cancelled its task: {task.status_message or 'no reason given'}",
                server=session.server,
                tool=label,
                elapsed=clock.elapsed(loop.time()),
            )
        if (says := (task.last_updated_at, task.status_message)) != said:
            # Only what changes is a sign of progress; that the server answers is none.
            said = says
            clock.progress(loop.time())
        # Keys never come again for another question: what was answered once is not asked again.
        new = {key: request for key, request in task.input_requests.items() if key not in answered}
        if new:
            responses = await respond(new)
            answered.update(new)
            params = update_params(created.task_id, responses)
            await session.request("tasks/update", params, clock, label=created.task_id)
            interval = SHORTEST_INTERVAL


def _interval(milliseconds: int | None) -> float:
    if milliseconds is None:
        return FIRST_INTERVAL
    return max(SHORTEST_INTERVAL, min(milliseconds, int(LONGEST_INTERVAL) * 1000) / 1000)


def _ask_to_cancel(session: Session, task_id: str) -> None:
    """Ask, and wait for nothing: the session holds the answer, or ends the request when it is over."""
    clock = CallClock.of(session.loop.time(), CANCEL_WITHIN, CANCEL_WITHIN)
    try:
        session.begin("tasks/cancel", cancel_params(task_id), clock, label=task_id)
    except CallError:
        pass  # The connection is over: there is nobody to ask.
