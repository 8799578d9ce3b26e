"""The types of MCP for a client: results and params here, their parts in ``content``; this is the door.

The eras differ little enough for one set of types: the handshake revisions (2024-11-05 to 2025-11-25) lack
``resultType``, ``ttlMs`` and ``cacheScope``, which then have their defaults; what 2026-07-28 lacks is
optional. Plain data, owned by whoever decoded it; frozen, except that ``problems`` may be appended to.

One answer may be a result or a question (2026-07-28, basic/patterns/mrtr): the results of ``tools/call``,
``prompts/get`` and ``resources/read`` have empty content then, so look at ``result_type`` first, and decode
the same bytes as ``InputRequiredResult`` if it says ``input_required``.

As in ``content``: ``x_raw`` is JSON as it came, a view into the message, and ``x`` decodes it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, field

from moorings.wire.content import (
    Annotations,
    AudioContent,
    Capability,
    ContentBlock,
    EmbeddedResource,
    Icon,
    ImageContent,
    Implementation,
    InvalidAnswer,
    MaybeRaw,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceContents,
    ResourceLink,
    ResourceTemplate,
    Role,
    Root,
    SamplingContent,
    ServerCapabilities,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolResultContent,
    ToolUseContent,
    UnknownContent,
    _Part,
    encode,
    load_meta,
    load_object,
    load_raw,
    repair_utf8,
)
from moorings.wire.lenient import decode_params, decode_result

__all__ = [
    "Annotations",
    "AudioContent",
    "CallToolResult",
    "CancelledParams",
    "Capability",
    "CompleteResult",
    "Completion",
    "ContentBlock",
    "CreateMessageParams",
    "CreateMessageResult",
    "DiscoverResult",
    "ElicitParams",
    "ElicitResult",
    "ElicitationCompleteParams",
    "EmbeddedResource",
    "EmptyResult",
    "GetPromptResult",
    "Icon",
    "ImageContent",
    "Implementation",
    "InitializeResult",
    "InputRequest",
    "InputRequiredResult",
    "InvalidAnswer",
    "ListPromptsResult",
    "ListResourceTemplatesResult",
    "ListResourcesResult",
    "ListResult",
    "ListRootsResult",
    "ListToolsResult",
    "LogParams",
    "MaybeRaw",
    "ModelHint",
    "ModelPreferences",
    "NotificationParams",
    "ProgressParams",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "ReadResourceResult",
    "RequestId",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceTemplate",
    "ResourceUpdatedParams",
    "Result",
    "Role",
    "Root",
    "SamplingContent",
    "SamplingMessage",
    "ServerCapabilities",
    "SubscriptionAcknowledgedParams",
    "SubscriptionFilter",
    "SubscriptionsListenResult",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolChoice",
    "ToolResultContent",
    "ToolUseContent",
    "UnknownContent",
    "decode_params",
    "decode_result",
    "encode",
    "load_meta",
    "load_raw",
    "plain_result",
    "repair_utf8",
]

RequestId: TypeAlias = str | int
"""An id of a request, a progress token, or a subscription."""

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"


# --- results


class Result(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, dict=True):
    """Base of what servers answer. Spec: basic/index, results."""

    result_type: str = "complete"
    """``complete``, ``input_required``, or an extension's word; absent (handshake era) means complete."""
    meta: MaybeRaw = field(default=UNSET, name="_meta")
    """``_meta`` as it came."""

    @cached_property
    def problems(self) -> list[str]:
        """What was replaced, dropped or left out to read this answer; mostly empty. Not on the wire."""
        return []


class EmptyResult(Result, frozen=True, kw_only=True):
    """An answer that says only: done."""


class _Cacheable(Result, frozen=True, kw_only=True):
    ttl_ms: int | None = None
    """How long it is fresh, in milliseconds; None or negative: not at all. Spec: server/utilities/caching."""
    cache_scope: str | None = None
    """``public`` may be shared between authorizations; anything else may not."""


class ListResult(_Cacheable, frozen=True, kw_only=True):
    """Base of the four lists. An item that cannot be read is left out and reported in ``problems``."""

    CATALOGUE: ClassVar[str] = ""  # for the lenient decoder: the field with the items

    next_cursor: str | None = None
    """Where the next page begins; only None ends the list, an empty string does not."""


class ListToolsResult(ListResult, frozen=True, kw_only=True):
    """Answer to ``tools/list``. Spec: server/tools."""

    CATALOGUE: ClassVar[str] = "tools"

    tools: list[Tool]
    """One page of tools, in the server's order."""

    def __post_init__(self) -> None:
        Tool.check_all(self.tools)


class ListResourcesResult(ListResult, frozen=True, kw_only=True):
    """Answer to ``resources/list``. Spec: server/resources."""

    CATALOGUE: ClassVar[str] = "resources"

    resources: list[Resource]
    """One page of resources."""


class ListResourceTemplatesResult(ListResult, frozen=True, kw_only=True):
    """Answer to ``resources/templates/list``. Spec: server/resources."""

    CATALOGUE: ClassVar[str] = "resource_templates"

    resource_templates: list[ResourceTemplate]
    """One page of templates."""


class ListPromptsResult(ListResult, frozen=True, kw_only=True):
    """Answer to ``prompts/list``. Spec: server/prompts."""

    CATALOGUE: ClassVar[str] = "prompts"

    prompts: list[Prompt]
    """One page of prompts."""


# Not `list`: a factory of another kind keeps an empty list on the wire, where the spec wants the key.
def _none_yet() -> list[Any]:
    return []


class CallToolResult(Result, frozen=True, kw_only=True):
    """Answer to ``tools/call``. Spec: server/tools; look at ``result_type`` first."""

    content: list[ContentBlock] = field(default_factory=_none_yet)
    """What the tool said."""
    structured_content_raw: MaybeRaw = field(default=UNSET, name="structuredContent")
    """The structured answer as it came."""
    is_error: bool = False
    """The tool ran and failed."""

    @cached_property
    def structured_content(self) -> Any:
        """The structured answer, decoded at first use; None where there is none. Raises ``InvalidAnswer``."""
        return load_raw(self.structured_content_raw)

    @property
    def text(self) -> str:
        """The text blocks, joined by line ends."""
        if len(self.content) == 1 and isinstance(only := self.content[0], TextContent):
            return only.text
        return "\n".join(block.text for block in self.content if isinstance(block, TextContent))


_call_tool_result = msgspec.json.Decoder(CallToolResult)


def plain_result(raw: Raw) -> CallToolResult | None:
    """The result of a tool in an answer that is in order as it stands. None for whatever needs a closer look: a
    question, another word for its kind, something to be repaired; ``decode_result`` takes that."""
    try:
        result = _call_tool_result.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return result if result.result_type == "complete" else None


class ReadResourceResult(_Cacheable, frozen=True, kw_only=True):
    """Answer to ``resources/read``. Spec: server/resources; look at ``result_type`` first."""

    contents: list[ResourceContents] = field(default_factory=_none_yet)
    """The resource, or its parts."""


class GetPromptResult(Result, frozen=True, kw_only=True):
    """Answer to ``prompts/get``. Spec: server/prompts; look at ``result_type`` first."""

    description: str | None = None
    """What the prompt is."""
    messages: list[PromptMessage] = field(default_factory=_none_yet)
    """Its messages, filled in."""


class Completion(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Proposals for an argument. Spec: server/utilities/completion."""

    values: list[str]
    """The proposals, best first."""
    total: int | None = None
    """How many there are."""
    has_more: bool | None = None
    """Whether there are more than these."""


class CompleteResult(Result, frozen=True, kw_only=True):
    """Answer to ``completion/complete``."""

    completion: Completion
    """The proposals."""


class InitializeResult(Result, frozen=True, kw_only=True):
    """Answer to ``initialize``. Spec: basic/lifecycle, up to 2025-11-25."""

    protocol_version: str
    """The revision the server chose."""
    capabilities: ServerCapabilities = field(default_factory=ServerCapabilities)
    """What it can do."""
    server_info: Implementation | None = None
    """Who it says it is; None where it does not say (a fault, but a harmless one)."""
    instructions: str | None = None
    """How it wants to be used, in its words (not to be trusted)."""


class DiscoverResult(_Cacheable, frozen=True, kw_only=True):
    """Answer to ``server/discover``. Spec: server/discover, 2026-07-28."""

    supported_versions: list[str]
    """The revisions it speaks."""
    capabilities: ServerCapabilities
    """What it can do."""
    instructions: str | None = None
    """How it wants to be used, in its words (not to be trusted)."""

    @property
    def server_info(self) -> Implementation | None:
        """Who it says it is, from ``_meta``; None where it does not say or not readably."""
        try:
            return decode_result(encode(load_meta(self.meta).get(SERVER_INFO)), Implementation)
        except InvalidAnswer:
            return None


class InputRequest(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One thing a server wants to know before it goes on: elicitation, sampling, or roots."""

    method: str
    """What it asks, as the name of the request of old."""
    params_raw: MaybeRaw = field(default=UNSET, name="params")
    """Its params as they came; ``decode_params`` reads them."""


class InputRequiredResult(Result, frozen=True, kw_only=True):
    """A question in place of an answer. Spec: basic/patterns/mrtr, 2026-07-28."""

    result_type: str = "input_required"
    """``input_required``."""
    input_requests: dict[str, InputRequest] = field(default_factory=dict)
    """What to find out, by the server's keys; empty means: ask again at once."""
    request_state: str | None = None
    """To be sent back unread and unchanged; None means: send none."""


class SubscriptionsListenResult(Result, frozen=True, kw_only=True):
    """The graceful end of a subscription. Spec: subscriptions/listen, 2026-07-28."""

    @property
    def subscription_id(self) -> RequestId | None:
        """Which subscription ended."""
        return _subscription(self.meta)


# --- params from the server


def _subscription(meta: MaybeRaw) -> RequestId | None:
    value = load_meta(meta).get(SUBSCRIPTION_ID)
    return value if isinstance(value, str) or type(value) is int else None


class NotificationParams(_Part, frozen=True, kw_only=True, gc=False):
    """Params of a notification that says nothing more, as ``.../list_changed``. Spec: basic/index."""

    @property
    def subscription_id(self) -> RequestId | None:
        """For which subscription it is (2026-07-28); None if for none."""
        return _subscription(self.meta)


class ProgressParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """How far a request is. Spec: basic/utilities/progress."""

    progress_token: RequestId
    """Which request, by the token it carried."""
    progress: float
    """How far; should grow, need not."""
    total: float | None = None
    """Of how much."""
    message: str | None = None
    """What it does just now."""


class LogParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """A log message. Spec: server/utilities/logging (deprecated in 2026-07-28)."""

    level: str
    """A syslog word; open, as servers invent others."""
    data_raw: Raw = field(name="data")
    """What is logged, any JSON, as it came."""
    logger: str | None = None
    """Which part of the server logs."""

    @property
    def data(self) -> Any:
        """What is logged, decoded at each access."""
        return load_raw(self.data_raw)


class CancelledParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """The server gives up a request, or a subscription of ours. Spec: basic/utilities/cancellation."""

    request_id: RequestId | None = None
    """Which; None for a task of 2025-11-25."""
    reason: str | None = None
    """Why."""


class ResourceUpdatedParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """A resource has changed. Spec: server/resources, subscriptions."""

    uri: str
    """Which, or one inside it."""


class ElicitationCompleteParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """A visit to a URL is over. Spec: client/elicitation, 2025-11-25 only."""

    elicitation_id: str
    """Which."""


class SubscriptionFilter(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What a subscription is about, asked for or granted. Spec: subscriptions/listen, 2026-07-28."""

    tools_list_changed: bool = False
    """Changes of the tool list."""
    prompts_list_changed: bool = False
    """Changes of the prompt list."""
    resources_list_changed: bool = False
    """Changes of the resource list."""
    resource_subscriptions: list[str] | None = None
    """Changes of these resources, by URI."""
    task_ids: list[str] | None = None
    """The state of these tasks (extension ``io.modelcontextprotocol/tasks``)."""


class SubscriptionAcknowledgedParams(NotificationParams, frozen=True, kw_only=True, gc=False):
    """The first message of a subscription. Spec: subscriptions/listen, 2026-07-28."""

    notifications: SubscriptionFilter
    """What the server granted; may be less than was asked."""


class ElicitParams(_Part, frozen=True, kw_only=True, gc=False):
    """A question to the person. Spec: client/elicitation."""

    mode: Literal["form", "url"] = "form"
    """A form to fill in, or a page to visit; absent means form."""
    message: str
    """What to tell the person (not to be trusted)."""
    requested_schema_raw: MaybeRaw = field(default=UNSET, name="requestedSchema")
    """The fields of the form: a flat JSON Schema, as it came."""
    url: str | None = None
    """The page, unchecked; set in url mode."""
    elicitation_id: str | None = None
    """Names the visit (2025-11-25 only)."""

    def __post_init__(self) -> None:
        schema = self.requested_schema_raw
        if self.mode == "url":
            if not self.url:
                raise ValueError("has no url, in url mode")
        elif isinstance(schema, Raw) and bytes(memoryview(schema)[:1]) != b"{":
            raise ValueError("requestedSchema is not an object")

    @property
    def requested_schema(self) -> dict[str, Any]:
        """The fields of the form, decoded at each access; empty in url mode."""
        return load_object(self.requested_schema_raw) or {}


class ModelHint(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Part of a model's name. Spec: client/sampling."""

    name: str | None = None
    """The part."""


class ModelPreferences(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Which model a server would like; need not be followed. Spec: client/sampling."""

    hints: list[ModelHint] | None = None
    """Names, best first."""
    cost_priority: float | None = None
    """How much a low price matters, 0 to 1."""
    speed_priority: float | None = None
    """How much speed matters, 0 to 1."""
    intelligence_priority: float | None = None
    """How much ability matters, 0 to 1."""


class ToolChoice(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Whether the model may or must use tools. Spec: client/sampling (2025-11-25)."""

    mode: Literal["auto", "required", "none"] | None = None
    """None means auto."""


class SamplingMessage(_Part, frozen=True, gc=True):
    """One message for a model. Spec: client/sampling."""

    role: Role
    """Who speaks."""
    content: list[SamplingContent] | SamplingContent
    """What is said, one block or a list, as it came."""

    @property
    def blocks(self) -> list[SamplingContent]:
        """What is said, always as a list."""
        return self.content if isinstance(self.content, list) else [self.content]


class CreateMessageParams(_Part, frozen=True, kw_only=True, gc=True):
    """A server wants a model's answer. Spec: client/sampling (deprecated in 2026-07-28)."""

    messages: list[SamplingMessage]
    """What the model is to read."""
    max_tokens: int
    """How long the answer may be."""
    model_preferences: ModelPreferences | None = None
    """Which model the server would like."""
    system_prompt: str | None = None
    """A system prompt (not to be trusted)."""
    include_context: str | None = None
    """``none``, ``thisServer`` or ``allServers``; None means none."""
    temperature: float | None = None
    """How freely to sample."""
    stop_sequences: list[str] | None = None
    """Where to stop."""
    metadata: dict[str, Any] | None = None
    """For the provider of the model."""
    tools: list[Tool] | None = None
    """Tools the model may use."""
    tool_choice: ToolChoice | None = None
    """Whether it may or must use them."""


# --- results we send


class ElicitResult(_Part, frozen=True, gc=True):
    """The person's answer. Spec: client/elicitation."""

    action: Literal["accept", "decline", "cancel"]
    """What the person did: agreed, refused, or went away."""
    content: dict[str, Any] | None = None
    """The filled form, with ``accept`` in form mode only."""


class CreateMessageResult(_Part, frozen=True, kw_only=True, gc=True):
    """The model's answer. Spec: client/sampling."""

    role: Role = field(default_factory=lambda: "assistant")
    """Who speaks; the model."""
    content: list[SamplingContent] | SamplingContent
    """What it said; a single block for servers before 2025-11-25."""
    model: str
    """Which model it was."""
    stop_reason: str | None = None
    """Why it stopped: ``endTurn``, ``maxTokens``, ``stopSequence``, ``toolUse``, or a provider's word."""


class ListRootsResult(_Part, frozen=True, gc=True):
    """The roots we give a server. Spec: client/roots."""

    roots: list[Root]
    """All of them; there are no pages."""
