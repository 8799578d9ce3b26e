"""What users import to test their agents: servers in this process, and faults that strike when they are told to.

A ``MemoryServer`` goes where a ``StdioServer`` would go. Sessions, bounds and outcomes are those of real servers, and
nothing is started but the host. ``import moorings`` does not load this room.
"""

from ..wire.types import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)
from .context import ClientRefused, Context
from .faults import Die, Fault, Hold, Malformed, NoAnswer, Refuse
from .server import Call, MemoryServer

__all__ = [
    "AudioContent",
    "Call",
    "ClientRefused",
    "Context",
    "Die",
    "EmbeddedResource",
    "Fault",
    "Hold",
    "ImageContent",
    "Malformed",
    "MemoryServer",
    "NoAnswer",
    "PromptMessage",
    "Refuse",
    "ResourceContents",
    "ResourceLink",
    "TextContent",
    "ToolAnnotations",
]
