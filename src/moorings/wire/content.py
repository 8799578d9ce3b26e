"""What servers have and what is said: tools, resources, prompts and content blocks, as light structs.

Owned by nobody: plain data, made by the decoder or the caller, no I/O. Here are also the small things the
other modules of messages stand on: ``InvalidAnswer``, the repair of broken text, reading raw parts,
``encode``. Spec: server/tools, server/resources, server/prompts, client/sampling, all revisions from
2024-11-05 on.

A field whose name ends in ``_raw`` holds JSON as it came (``msgspec.Raw``, a view into the message, no
copy); the property without the suffix decodes it. ``meta`` is the wire's ``_meta``, raw too; ``load_meta``
reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

__all__ = [
    "Annotations",
    "AudioContent",
    "Capability",
    "ContentBlock",
    "EmbeddedResource",
    "Icon",
    "ImageContent",
    "Implementation",
    "InvalidAnswer",
    "MaybeRaw",
    "Prompt",
    "PromptArgument",
    "PromptMessage",
    "Resource",
    "ResourceContents",
    "ResourceLink",
    "ResourceTemplate",
    "Role",
    "Root",
    "SamplingContent",
    "ServerCapabilities",
    "TextContent",
    "Tool",
    "ToolAnnotations",
    "ToolResultContent",
    "ToolUseContent",
    "UnknownContent",
    "encode",
    "load_meta",
    "load_raw",
    "repair_utf8",
]

HEAD_BYTES = 200
"""How many bytes of a refused message its error keeps."""

MaybeRaw: TypeAlias = Raw | UnsetType
"""JSON as it came, or UNSET where the key was absent."""

Role: TypeAlias = Literal["user", "assistant"]
"""Who speaks in a message."""


class InvalidAnswer(ValueError):
    """A peer's message cannot be read, not even leniently. It names no method: the caller knows that."""

    def __init__(self, reason: str, data: bytes | Raw = b"") -> None:
        self.reason = reason
        """What is wrong, in one sentence part."""
        self.head = bytes(memoryview(data)[:HEAD_BYTES])
        """The first bytes of the message."""
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.reason}; it begins {self.head!r}" if self.head else self.reason


# --- broken text

# Escapes of UTF-16 halves, after whole `\\` only: a second half on its own, or a first with or without its second.
_HALVES = re.compile(
    rb"(?<!\\)(?P<before>(?:\\\\)*)"
    rb"\\u[dD](?:[c-fC-F][0-9a-fA-F]{2}|[89abAB][0-9a-fA-F]{2}(?P<second>\\u[dD][c-fC-F][0-9a-fA-F]{2})?)"
)


def _mend_halves(match: re.Match[bytes]) -> bytes:
    return match[0] if match["second"] else match["before"] + rb"\ufffd"


def repair_utf8(data: bytes) -> bytes:
    r"""``data`` with everything that is no Unicode text replaced by U+FFFD; ``data`` itself where nothing is.

    Two faults of the field: bytes of a legacy code page, and ``\ud83d`` without its second half, which is how
    a program with 16-bit strings cuts an emoji. Both make a JSON decoder refuse a whole message.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    if rb"\ud" in data or rb"\uD" in data:
        data = _HALVES.sub(_mend_halves, data)
    return data


# --- raw parts

_any = msgspec.json.Decoder()


def load_raw(raw: MaybeRaw) -> Any:
    """Decode a raw part; None for an absent one. Raises ``InvalidAnswer``."""
    if isinstance(raw, UnsetType):
        return None
    try:
        return _any.decode(raw)
    except RecursionError:
        raise InvalidAnswer("nested too deeply", raw) from None
    except msgspec.DecodeError as error:
        mended = repair_utf8(bytes(raw))
        try:
            return _any.decode(mended)
        except (msgspec.DecodeError, RecursionError):
            raise InvalidAnswer(f"not valid JSON ({error})", raw) from None


def load_object(raw: MaybeRaw) -> dict[str, Any] | None:
    """Decode a raw part that should be an object; None for an absent one, a null, or anything else."""
    value = load_raw(raw)
    return value if isinstance(value, dict) else None


def load_meta(meta: MaybeRaw) -> dict[str, Any]:
    """The ``_meta`` of a struct as a dict, empty where it is absent or no object. Spec: basic/index."""
    return load_object(meta) or {}


class _Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """Base of what has a ``_meta``."""

    meta: MaybeRaw = field(default=UNSET, name="_meta")
    """``_meta`` as it came."""


class Icon(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A picture for a server or an item. Nothing here fetches it. Spec: basic/index, icons (2025-11-25)."""

    src: str
    """Where the picture is: an https or data URL, unchecked."""
    mime_type: str | None = None
    """Its media type, if the server says."""
    sizes: list[str] | None = None
    """Sizes as ``48x48`` or ``any``."""
    theme: str | None = None
    """``light`` or ``dark``."""


_icon = msgspec.json.Decoder(Icon)
_parts = msgspec.json.Decoder(list[Raw])


def load_icons(raw: MaybeRaw) -> list[Icon]:
    """The icons of a raw part; what is no icon is passed over."""
    icons: list[Icon] = []
    if isinstance(raw, UnsetType):
        return icons
    try:
        parts = _parts.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return icons
    for part in parts:
        try:
            icons.append(_icon.decode(part))
        except msgspec.DecodeError:
            continue
    return icons


# --- blocks


class Annotations(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Hints about content or a resource, for display and choice. Spec: server/resources, annotations."""

    audience: list[str] | None = None
    """For whom: ``user``, ``assistant``."""
    priority: float | None = None
    """From 0 (may be left out) to 1 (needed)."""
    last_modified: str | None = None
    """An ISO 8601 time, as the server wrote it."""


class _Block(_Part, frozen=True, gc=False, tag_field="type"):
    """Base of the blocks; ``type`` on the wire tells them apart."""


class _Hinted(_Block, frozen=True, kw_only=True, gc=False):
    annotations: Annotations | None = None
    """Hints."""


class TextContent(_Hinted, frozen=True, gc=False, tag="text"):
    """Plain text. Spec: server/tools, text content."""

    text: str
    """The text."""


class ImageContent(_Hinted, frozen=True, gc=False, tag="image"):
    """A picture in base64. Spec: server/tools, image content."""

    data: str
    """Base64, not decoded or checked."""
    mime_type: str
    """Its media type."""


class AudioContent(_Hinted, frozen=True, gc=False, tag="audio"):
    """Sound in base64. Spec: server/tools, audio content (2025-03-26)."""

    data: str
    """Base64, not decoded or checked."""
    mime_type: str
    """Its media type."""


class ResourceLink(_Hinted, frozen=True, gc=False, tag="resource_link"):
    """A pointer to a resource, listed or not. Spec: server/tools, resource links (2025-06-18)."""

    uri: str
    """What ``resources/read`` takes."""
    name: str
    """Its name for programs."""
    title: str | None = None
    """Its name for people."""
    description: str | None = None
    """What it is."""
    mime_type: str | None = None
    """Its media type."""
    size: int | None = None
    """Its size in bytes."""
    icons_raw: MaybeRaw = field(default=UNSET, name="icons")
    """Icons as they came."""

    @property
    def icons(self) -> list[Icon]:
        """The icons, decoded at each access."""
        return load_icons(self.icons_raw)


class ResourceContents(_Part, frozen=True, gc=False):
    """Text or bytes of a resource: ``text`` or ``blob`` is set. Spec: server/resources, resource contents."""

    uri: str
    """Of which resource, or which part of it."""
    mime_type: str | None = None
    """Its media type."""
    text: str | None = None
    """The text, if it is text."""
    blob: str | None = None
    """Base64, if it is not; not decoded or checked."""


class EmbeddedResource(_Hinted, frozen=True, gc=False, tag="resource"):
    """A resource put into the answer whole. Spec: server/tools, embedded resources."""

    resource: ResourceContents
    """Its contents."""


@final
class UnknownContent:
    """A block of a kind we do not know, or one that breaks its own kind; kept, and encoded, as it came."""

    __slots__ = ("raw", "type")

    def __init__(self, type: str, raw: Raw) -> None:
        self.type = type
        """What the block calls itself; empty where it does not say."""
        self.raw = raw
        """The whole block."""

    @property
    def data(self) -> Any:
        """The whole block decoded, at each access."""
        return load_raw(self.raw)

    def __repr__(self) -> str:
        return f"UnknownContent(type={self.type!r}, {memoryview(self.raw).nbytes} bytes)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnknownContent):
            return NotImplemented
        return self.type == other.type and bytes(self.raw) == bytes(other.raw)

    def __hash__(self) -> int:
        return hash((self.type, bytes(self.raw)))


# The decoder works from the unions of structs, in C. UnknownContent comes from the lenient path alone.
if TYPE_CHECKING:
    ContentBlock: TypeAlias = (
        TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent
    )
else:
    ContentBlock = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource


class ToolUseContent(_Block, frozen=True, tag="tool_use", gc=True):
    """A model asks for a tool, in sampling. Spec: client/sampling, tool use (2025-11-25)."""

    id: str
    """Which use; the result names it."""
    name: str
    """Which tool."""
    input: dict[str, Any]
    """Its arguments."""


class ToolResultContent(_Block, frozen=True, tag="tool_result", gc=True):
    """What a tool answered, in sampling. Spec: client/sampling, tool results (2025-11-25)."""

    tool_use_id: str
    """Which use it answers."""
    content: list[ContentBlock]
    """What the tool said."""
    structured_content_raw: MaybeRaw = field(default=UNSET, name="structuredContent")
    """Its structured answer as it came."""
    is_error: bool = False
    """Whether the tool failed."""

    @property
    def structured_content(self) -> Any:
        """The structured answer, decoded at each access; None where there is none."""
        return load_raw(self.structured_content_raw)


if TYPE_CHECKING:
    SamplingContent: TypeAlias = (
        TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent | UnknownContent
    )
else:
    SamplingContent = TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent


# --- what servers have


class _Described(_Part, frozen=True, kw_only=True, gc=False):
    name: str
    """Its name for programs; compared letter by letter, unchecked otherwise."""
    title: str | None = None
    """Its name for people."""
    description: str | None = None
    """What it is, in the server's words (not to be trusted)."""
    icons_raw: MaybeRaw = field(default=UNSET, name="icons")
    """Icons as they came."""

    @property
    def icons(self) -> list[Icon]:
        """The icons, decoded at each access."""
        return load_icons(self.icons_raw)


class ToolAnnotations(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What a tool says of itself, not to be trusted; None where it is silent. Spec: server/tools."""

    title: str | None = None
    """Its name for people."""
    read_only_hint: bool | None = None
    """It changes nothing."""
    destructive_hint: bool | None = None
    """It may destroy; to be assumed where it is silent."""
    idempotent_hint: bool | None = None
    """Twice is the same as once."""
    open_world_hint: bool | None = None
    """It deals with things outside; to be assumed where it is silent."""


class Tool(_Described, frozen=True, kw_only=True, gc=False):
    """A tool. Spec: server/tools.

    The raw parts are views that keep the whole message alive; who keeps one tool takes ``raw.copy()``.
    """

    input_schema_raw: Raw = field(name="inputSchema")
    """The JSON Schema of its arguments, untouched; surely an object by its first byte."""
    output_schema_raw: MaybeRaw = field(default=UNSET, name="outputSchema")
    """The JSON Schema of ``structuredContent``, untouched."""
    annotations: ToolAnnotations | None = None
    """Hints about its effects."""
    execution_raw: MaybeRaw = field(default=UNSET, name="execution")
    """How it may be run (tasks of 2025-11-25), as it came."""

    @classmethod
    def check_all(cls, tools: Sequence[Tool]) -> None:
        """What its types do not say, for a whole list at once; there may be thousands. Raises ValueError."""
        for tool in tools:
            if not tool.name:
                raise ValueError("has no name")
            if memoryview(tool.input_schema_raw)[0] != 0x7B:  # "{": raw parts have no blanks around them
                raise ValueError("inputSchema is not an object")

    @property
    def input_schema(self) -> dict[str, Any]:
        """The arguments' schema, decoded at each access. Raises ``InvalidAnswer`` if it breaks off inside."""
        return load_object(self.input_schema_raw) or {}

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The schema of the structured answer, decoded at each access; None where there is none."""
        return load_object(self.output_schema_raw)


class Resource(_Described, frozen=True, kw_only=True, gc=False):
    """Something that can be read. Spec: server/resources."""

    uri: str
    """What ``resources/read`` takes."""
    mime_type: str | None = None
    """Its media type."""
    size: int | None = None
    """Its size in bytes."""
    annotations: Annotations | None = None
    """Hints."""


class ResourceTemplate(_Described, frozen=True, kw_only=True, gc=False):
    """A family of resources. Spec: server/resources, resource templates."""

    uri_template: str
    """An RFC 6570 template."""
    mime_type: str | None = None
    """The media type of all of them."""
    annotations: Annotations | None = None
    """Hints."""


class PromptArgument(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """An argument of a prompt. Spec: server/prompts."""

    name: str
    """Its name."""
    title: str | None = None
    """Its name for people."""
    description: str | None = None
    """What it is."""
    required: bool = False
    """Whether the prompt needs it."""


class Prompt(_Described, frozen=True, kw_only=True, gc=True):
    """A prompt. Spec: server/prompts."""

    arguments: list[PromptArgument] | None = None
    """What it takes."""


class PromptMessage(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """One message of a prompt. Spec: server/prompts."""

    role: Role
    """Who speaks."""
    content: ContentBlock
    """What is said."""


class Implementation(_Described, frozen=True, kw_only=True, gc=False):
    """Who a client or server says it is; for display only. Spec: basic/lifecycle, ``_meta`` in 2026-07-28."""

    version: str = ""
    """Its version; empty where a server does not say."""
    website_url: str | None = None
    """Its page."""


class Capability(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """That a server has tools, resources or prompts, and what it tells of them. Spec: basic/lifecycle."""

    SWITCH: ClassVar[bool] = True  # for the lenient decoder: a bare true or false is understood

    list_changed: bool = False
    """It says when the list changes."""
    subscribe: bool = False
    """It says when one resource changes."""


class ServerCapabilities(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """What a server can do. Spec: basic/lifecycle; server/discover in 2026-07-28."""

    tools: Capability | None = None
    """Tools; None if it has none."""
    resources: Capability | None = None
    """Resources; None if it has none."""
    prompts: Capability | None = None
    """Prompts; None if it has none."""
    logging_raw: MaybeRaw = field(default=UNSET, name="logging")
    """Log messages, as declared."""
    completions_raw: MaybeRaw = field(default=UNSET, name="completions")
    """Argument completion, as declared."""
    experimental_raw: MaybeRaw = field(default=UNSET, name="experimental")
    """Private features, as declared."""
    extensions_raw: MaybeRaw = field(default=UNSET, name="extensions")
    """Extensions and their settings, as declared (2026-07-28)."""
    tasks_raw: MaybeRaw = field(default=UNSET, name="tasks")
    """Tasks of 2025-11-25, as declared."""

    @property
    def logging(self) -> bool:
        """Whether it sends log messages."""
        return _declared(self.logging_raw)

    @property
    def completions(self) -> bool:
        """Whether it completes arguments."""
        return _declared(self.completions_raw)

    @property
    def experimental(self) -> dict[str, Any]:
        """Private features by name, decoded at each access."""
        return load_object(self.experimental_raw) or {}

    @property
    def extensions(self) -> dict[str, Any]:
        """Settings by extension id, decoded at each access."""
        return load_object(self.extensions_raw) or {}


def _declared(raw: MaybeRaw) -> bool:
    return not isinstance(raw, UnsetType) and bytes(memoryview(raw)[:5]) not in (b"null", b"false")


class Root(_Part, frozen=True, gc=False):
    """A folder or file a server may look at. Spec: client/roots (deprecated in 2026-07-28)."""

    uri: str
    """A ``file://`` URI."""
    name: str | None = None
    """Its name for people."""


# --- and out again


def _encode_other(value: Any) -> Any:
    if isinstance(value, UnknownContent):
        return value.raw
    raise TypeError(f"{type(value).__name__} has no place in a message")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)


def encode(value: Any) -> bytes:
    """``value`` as JSON. Defaults are left out, raw parts and unknown blocks go out as they came in."""
    return _encoder.encode(value)
