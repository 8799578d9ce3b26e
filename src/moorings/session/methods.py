"""The methods of MCP, typed, over one session: what both eras share and where they differ.

Stateless on top of the session; the owner of the server makes one per generation. Lists are followed over all pages
with guards for repeats and number; a question inside a modern answer (``input_required``) is answered and the request
repeated under a new id, its state echoed byte for byte, in bounded rounds.
Sources: MCP ``server/{tools,resources,prompts}``, ``server/utilities/{completion,logging,pagination}``,
``basic/patterns/mrtr``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw, UnsetType

from .._checks import LONGEST
from .._log import Told, log
from ..errors import AmbiguousDelivery, CallError, CallTimeout, NotSent, Refused
from ..wire.again import KeptPage
from ..wire.eras import EXTENSIONS, META_LOG_LEVEL, METHOD_NOT_FOUND, Era, result_type_legal
from ..wire.frontmatter import yaml_module
from ..wire.headers import InvalidHeaders, ParamHeaders, param_rules
from ..wire.skills import GetSkillResult, ListSkillsResult, Skill, SkillFile, file_uri, get_params, verified
from ..wire.tasks import CreateTaskResult
from ..wire.types import (
    CallToolResult,
    CompleteResult,
    EmptyResult,
    GetPromptResult,
    InputRequest,
    InputRequiredResult,
    InvalidAnswer,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListResult,
    ListToolsResult,
    ReadResourceResult,
    Result,
    decode_result,
    load_raw,
)
from .cancelled import note_cancel
from .clock import CallClock
from .handlers import NoHandler
from .pending import OnProgress
from .session import QuestionUnanswered, Session
from .tasking import follow

__all__ = ["LIST_KINDS", "ListKind", "Listed", "Methods"]

R = TypeVar("R", bound=Result)

ListKind = Literal["tools", "resources", "resource_templates", "prompts"]

LIST_KINDS: Mapping[str, tuple[str, type[Any], str]] = {
    "tools": ("tools/list", ListToolsResult, "name"),
    "resources": ("resources/list", ListResourcesResult, "uri"),
    "resource_templates": ("resources/templates/list", ListResourceTemplatesResult, "uri_template"),
    "prompts": ("prompts/list", ListPromptsResult, "name"),
}
"""Kind → method, type of a page, and the attribute that names an item."""

_PAGED: Mapping[str, tuple[str, type[Any], str]] = {
    **LIST_KINDS,
    "skills": ("skills/list", ListSkillsResult, "uri"),
}
"""All that come in pages; what is not a ``ListKind`` is asked for anew each time."""

_STATE_ONLY_PAUSE = (0.05, 0.25)
"""First and longest wait, in seconds, before a request is repeated that the server only postponed."""


class Listed(msgspec.Struct, frozen=True):
    """A whole list."""

    by_name: Mapping[str, Any]
    """Its items by what names them, in the server's order. There may be thousands."""
    problems: Sequence[str] = ()
    """What was left out or cut short, and why."""
    ttl: float = 0.0
    """Seconds for which the server says it is fresh (the shortest of its pages); 0 if it does not say."""

    @property
    def items(self) -> Collection[Any]:
        """The items, in the server's order."""
        return self.by_name.values()


def _param_rules(tools: dict[str, Any], problems: list[str]) -> dict[str, ParamHeaders]:
    """Which arguments of which tools are repeated in headers. A tool that breaks the rules of that is left out."""
    rules = {}
    for name, tool in list(tools.items()):
        found = param_rules(tool.input_schema_raw)
        if isinstance(found, InvalidHeaders):
            del tools[name]
            problems.append(f"tools: {name!r} is left out: {found.reason}")
        elif found.rules:
            rules[name] = found
    return rules


class Methods:
    """Typed requests over one session. Made with it; holds nothing but what it told of odd answers."""

    __slots__ = ("_max_pages", "_max_rounds", "_session", "_told", "_tool_pages")

    def __init__(self, session: Session, *, max_pages: int, max_rounds: int) -> None:
        self._session = session
        self._max_pages = max_pages
        self._max_rounds = max_rounds
        self._told = Told()
        self._tool_pages: list[KeptPage] = []
        """What was listed last, page by page: listed anew, it is mostly the same."""

    # Tools, resources, prompts

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None,
        clock: CallClock,
        *,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        answer: Raw | None = None,
    ) -> CallToolResult:
        """Call a tool. A failure of the tool itself is a result with ``is_error``.

        ``answer`` is that to a ``Session.begin_call``, where it was no plain result.

        Raises:
            CallError: every other outcome.
        """
        params: dict[str, Any] = {"name": name, "arguments": arguments if arguments is not None else {}}
        if meta:
            params["_meta"] = dict(meta)
        return await self._ask(
            "tools/call",
            params,
            CallToolResult,
            clock,
            label=name,
            on_progress=on_progress,
            progress=True,
            answer=answer,
        )

    async def read_resource(self, uri: str, clock: CallClock) -> ReadResourceResult:
        """Read a resource. Raises CallError."""
        return await self._ask("resources/read", {"uri": uri}, ReadResourceResult, clock, label=uri)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, str] | None, clock: CallClock
    ) -> GetPromptResult:
        """Get a prompt, filled in. Raises CallError."""
        params: dict[str, Any] = {"name": name}
        if arguments:
            params["arguments"] = dict(arguments)
        return await self._ask("prompts/get", params, GetPromptResult, clock, label=name)

    async def complete(
        self,
        ref: Mapping[str, str],
        argument: str,
        value: str,
        clock: CallClock,
        *,
        context: Mapping[str, str] | None = None,
    ) -> CompleteResult:
        """Ask for proposals for an argument of a prompt or a resource template. Raises CallError."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        return await self._ask("completion/complete", params, CompleteResult, clock)

    async def list_all(self, kind: str, clock: CallClock) -> Listed:
        """Every page of one list, each item once.

        Raises:
            CallError: a page was not answered with a list.
        """
        method, type_, key = _PAGED[kind]
        name_of = attrgetter(key)
        items: dict[str, Any] = {}
        problems: list[str] = []
        cursors: set[str] = set()
        cursor: str | None = None
        ttl = float("inf")
        for number in range(self._max_pages):
            params = {} if cursor is None else {"cursor": cursor}
            try:
                page = await self._ask(method, params, type_, clock, read=self._reader(kind, number))
            except Refused as error:
                # The capability speaks for resources and templates together; many servers know the first only.
                if kind == "resource_templates" and error.rpc_code == METHOD_NOT_FOUND:
                    break
                # Servers that end their lists with an empty cursor mostly refuse it as one.
                if cursor == "":
                    problems.append(f"{method}: the empty cursor was refused; the list was ended there")
                    break
                raise
            problems.extend(page.problems)
            # Bounded before it is divided: a whole number of a server may be too large for a float.
            ttl = min(ttl, min(max(page.ttl_ms or 0, 0), int(LONGEST) * 1000) / 1000)
            listed = getattr(page, kind)
            names = list(map(name_of, listed))
            if not items and len(set(names)) == len(names):
                # As a rule: one page, each name once. It may hold thousands.
                items = dict(zip(names, listed, strict=True))
            else:
                for name, item in zip(names, listed, strict=True):
                    if name not in items:
                        items[name] = item
                    elif not cursors:
                        problems.append(f"{kind}: {name!r} is listed twice; the first one counts")
            cursor = page.next_cursor
            if cursor is None:
                break
            if cursor in cursors:
                if cursor:
                    problems.append(
                        f"{method}: the cursor {cursor[:80]!r} came again; the list was ended there"
                    )
                break
            cursors.add(cursor)
            # Each page is a sign of life; the total still holds.
            clock.progress(asyncio.get_running_loop().time())
        else:
            problems.append(f"{method}: more than {self._max_pages} pages; the list was ended there")
        if kind == "tools" and self._session.repeats_params:
            self._session.param_rules = _param_rules(items, problems)
        return Listed(items, problems, 0.0 if ttl == float("inf") else ttl)

    def _reader(self, kind: str, number: int) -> Callable[[Raw], ListToolsResult] | None:
        """What reads this page of a list by what it was the last time, where that pays."""
        if kind != "tools":
            return None
        if number == len(self._tool_pages):
            self._tool_pages.append(KeptPage())
        return self._tool_pages[number].read

    # Skills: no file of one is read before somebody asks for it

    async def skills(self, clock: CallClock) -> list[Skill]:
        """Every skill that the server lists; it may have others. Raises CallError."""
        listed = await self.list_all("skills", clock)
        for problem in listed.problems:
            log.log(self._told.level(problem), "server %s: %s", self._session.server, problem)
        return [Skill(self._session.server, entry) for entry in listed.items]

    async def skill(self, uri: str, clock: CallClock) -> Skill:
        """One skill by the URI of its ``SKILL.md``, whether it is listed or not. Raises CallError."""
        result = await self._ask("skills/get", get_params(uri), GetSkillResult, clock, label=uri)
        if result.skill.uri != uri:
            raise self._invalid(uri, clock, f"it is the entry of another skill, {result.skill.uri[:80]!r}")
        return Skill(self._session.server, result.skill)

    async def read_skill(self, skill: Skill, name: str | None, clock: CallClock) -> SkillFile:
        """Read one file of a skill and hold it against the entry.

        Raises:
            SkillMismatch: the entry does not list it (then it is not asked for), or it is not what the entry says.
            CallError: it could not be read.
        """
        uri = file_uri(skill, name)
        if uri == skill.uri:
            # Without YAML it could not be verified: then it is not asked for either.
            yaml_module()
        return verified(skill, uri, await self.read_resource(uri, clock))

    # Subscriptions, logging, liveness

    async def subscribe(self, uri: str, clock: CallClock) -> None:
        """Subscribe to one resource (handshake era; a modern one is told by ``subscriptions/listen``)."""
        await self._ask("resources/subscribe", {"uri": uri}, EmptyResult, clock, label=uri)

    async def unsubscribe(self, uri: str, clock: CallClock) -> None:
        """End a subscription (handshake era)."""
        await self._ask("resources/unsubscribe", {"uri": uri}, EmptyResult, clock, label=uri)

    async def set_log_level(self, level: str, clock: CallClock) -> None:
        """Say which log messages are wanted: a request in the handshake era, a key of each request in the modern."""
        if self._session.era is Era.MODERN:
            assert self._session.envelope is not None
            self._session.envelope = {**self._session.envelope, META_LOG_LEVEL: level}
            return
        await self._ask("logging/setLevel", {"level": level}, EmptyResult, clock)

    async def ping(self, clock: CallClock) -> None:
        """Ask for a sign of life. In the modern era, which has no ping, ``server/discover`` serves.

        Any answer is a sign of life, a refusal too. Raises CallError when none comes.
        """
        method = "server/discover" if self._session.era is Era.MODERN else "ping"
        try:
            await self._session.request(method, {}, clock)
        except Refused:
            return

    async def raw(
        self, method: str, params: Mapping[str, Any] | None, clock: CallClock, *, any_era: bool = False
    ) -> Any:
        """Any request, its result decoded as plain JSON: for what Moorings has no name for yet. Raises CallError."""
        raw = await self._session.request(method, dict(params) if params else {}, clock, any_era=any_era)
        try:
            return load_raw(raw)
        except InvalidAnswer as error:
            raise self._invalid(method, clock, str(error)) from None

    # The one way of asking

    async def _ask(
        self,
        method: str,
        params: dict[str, Any],
        type_: type[R],
        clock: CallClock,
        *,
        label: str | None = None,
        on_progress: OnProgress | None = None,
        progress: bool = False,
        answer: Raw | None = None,
        read: Callable[[Raw], Any] | None = None,
    ) -> R:
        session = self._session
        body = params
        pause = _STATE_ONLY_PAUSE[0]
        for rounds in range(self._max_rounds + 1):
            if answer is not None and rounds == 0:
                raw = answer
            else:
                try:
                    raw = await session.request(
                        method, body, clock, label=label, on_progress=on_progress, progress=progress
                    )
                except (NotSent, Refused) as error:
                    # An error of JSON-RPC is the server's own word on the whole call.
                    if (
                        rounds == 0
                        or error.sent
                        or (isinstance(error, Refused) and error.rpc_code is not None)
                    ):
                        raise
                    raise self._broke_off(label or method, clock, error) from error
            try:
                result = decode_result(raw, type_) if read is None else read(raw)
                if session.era is not Era.MODERN or result.result_type == "complete":
                    self._report(label or method, result)
                    return result
                if not result_type_legal(result.result_type, method, EXTENSIONS):
                    raise InvalidAnswer(f"resultType {result.result_type[:80]!r} was not agreed on")
                if result.result_type == "task":
                    return await self._follow(decode_result(raw, CreateTaskResult), clock, label or method)  # type: ignore[return-value]  # tools/call alone may be answered so
                wanted = decode_result(raw, InputRequiredResult)
            except InvalidAnswer as error:
                raise self._invalid(label or method, clock, str(error)) from None
            if rounds == self._max_rounds:
                # Nobody is asked for an answer that would not be sent any more.
                break
            body = {k: v for k, v in params.items() if k not in ("inputResponses", "requestState")}
            try:
                if wanted.input_requests:
                    body["inputResponses"] = await self._responses(
                        wanted.input_requests, clock, label or method
                    )
                    pause = _STATE_ONLY_PAUSE[0]
                else:
                    await self._pause(pause, clock)
                    pause = min(pause * 2, _STATE_ONLY_PAUSE[1])
            except asyncio.CancelledError as cancelled:
                # Between two rounds nothing is in flight, but the first round went out.
                elapsed = clock.elapsed(asyncio.get_running_loop().time())
                note_cancel(
                    cancelled, server=session.server, tool=label or method, sent=True, elapsed=elapsed
                )
                raise
            if wanted.request_state is not None:
                body["requestState"] = wanted.request_state
        raise self._invalid(label or method, clock, f"still input_required after {self._max_rounds} rounds")

    def _report(self, label: str, result: Result) -> None:
        """Say what was lost or replaced in an answer; what a list lacks is said by who keeps it."""
        # Looked up without asking the property, which would make an empty list for each good answer.
        problems = result.__dict__.get("problems")
        if problems and not isinstance(result, ListResult):
            for problem in problems:
                level = self._told.level(f"{label}: {problem}")
                log.log(level, "server %s: %s: %s", self._session.server, label, problem)

    async def _follow(self, created: CreateTaskResult, clock: CallClock, label: str) -> CallToolResult:
        async def respond(requests: dict[str, InputRequest]) -> dict[str, Raw]:
            return await self._responses(requests, clock, label)

        return await follow(self._session, created, clock, label, respond)

    async def _responses(
        self, wanted: Mapping[str, InputRequest], clock: CallClock, label: str
    ) -> dict[str, Raw]:
        """Answer all questions of one round, in the caller's own task: its context variables hold. The clock stands
        still meanwhile; each question has its own limit."""
        session = self._session
        loop = asyncio.get_running_loop()
        responses: dict[str, Raw] = {}
        clock.pause(loop.time())
        try:
            for key, request in wanted.items():
                params = None if isinstance(request.params_raw, UnsetType) else request.params_raw
                try:
                    # The deadline of a run holds while a person is asked, too.
                    async with asyncio.timeout_at(clock.next_look()):
                        responses[key] = await session.put_question(request.method, params)
                except TimeoutError:
                    raise self._timed_out(label, clock) from None
                except NoHandler:
                    raise self._invalid(
                        label, clock, f"it asks for {request.method}, which this client did not declare"
                    ) from None
                except QuestionUnanswered as error:
                    raise self._invalid(label, clock, str(error)) from error.__cause__
        finally:
            clock.resume(loop.time())
        return responses

    async def _pause(self, seconds: float, clock: CallClock) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, min(seconds, clock.expires - loop.time())))

    def _timed_out(self, label: str, clock: CallClock) -> CallError:
        return CallTimeout(
            f"no answer to a question of the server within {clock.limit()}",
            server=self._session.server,
            tool=label,
            sent=True,
            elapsed=clock.elapsed(asyncio.get_running_loop().time()),
            allowed=clock.allowed(),
        )

    def _broke_off(self, label: str, clock: CallClock, error: NotSent | Refused) -> CallError:
        """A later round did not leave, or was turned away: what the earlier ones did nobody knows (law 4)."""
        unsure = AmbiguousDelivery(
            f"an earlier round of it was sent; then {error.message}",
            server=self._session.server,
            tool=label,
            sent=True,
            elapsed=clock.elapsed(asyncio.get_running_loop().time()),
        )
        unsure.http, unsure.fix, unsure.elsewhere = error.http, error.fix, error.elsewhere
        return unsure

    def _invalid(self, label: str, clock: CallClock, why: str) -> CallError:
        return AmbiguousDelivery(
            f"invalid answer: {why}",
            server=self._session.server,
            tool=label,
            sent=True,
            elapsed=clock.elapsed(asyncio.get_running_loop().time()),
        )
