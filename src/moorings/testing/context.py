"""What a tool may ask and tell the client while it runs.

Made by the connection for each request whose function takes a ``Context``; of no use after the request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from ..wire.types import (
    CreateMessageResult,
    ElicitResult,
    ListRootsResult,
    Root,
    SamplingMessage,
    decode_result,
    encode,
)

__all__ = ["ClientRefused", "Context", "Conversation"]


T = TypeVar("T")


class ClientRefused(Exception):
    """The client did not answer a question: it never declared that it would, or it sent an error."""

    def __init__(self, message: str, *, code: int = 0, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        """Of the JSON-RPC error; 0 if there was none."""
        self.data = data


class Conversation(Protocol):
    """What a context needs of the request it belongs to."""

    meta: dict[str, Any]

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """Put a question to the client. Raises ClientRefused."""

    def progress(self, params: dict[str, Any]) -> None:
        """Tell of progress, if it was asked for."""

    def log(self, params: dict[str, Any]) -> None:
        """Send a log message, if one is wanted."""

    async def turn(self) -> None:
        """Let the client hear what was said."""


class Context:
    """The first argument of an ``async`` tool, resource or prompt that is annotated with it."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    @property
    def meta(self) -> dict[str, Any]:
        """``_meta`` of the request."""
        return self._conversation.meta

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far it is. Nothing is sent where the client did not ask for it."""
        params = {"progress": progress, "total": total, "message": message}
        self._conversation.progress({name: value for name, value in params.items() if value is not None})
        await self._conversation.turn()

    async def log(self, data: Any, level: str = "info", logger: str | None = None) -> None:
        """Send a log message. Nothing is sent where the client does not want this level."""
        params = {"level": level, "data": data}
        self._conversation.log(params if logger is None else {**params, "logger": logger})
        await self._conversation.turn()

    async def elicit(self, message: str, schema: Mapping[str, Any] | type | None = None) -> ElicitResult:
        """Ask the person, in a form.

        Args:
            schema: JSON Schema of the form, or a type it is made from (a dataclass, a ``msgspec.Struct``).

        Raises:
            ClientRefused: the client does not answer such questions.
        """
        from .functions import schema_of

        if isinstance(schema, type):
            form: Any = schema_of(schema)
        else:
            form = dict(schema) if schema is not None else {"type": "object", "properties": {}}
        answer = await self._conversation.ask(
            "elicitation/create", {"message": message, "requestedSchema": form}
        )
        return _read(answer, ElicitResult)

    async def elicit_url(self, message: str, url: str, elicitation_id: str = "visit") -> ElicitResult:
        """Ask the person to visit a page. Raises ClientRefused."""
        params = {"mode": "url", "message": message, "url": url, "elicitationId": elicitation_id}
        return _read(await self._conversation.ask("elicitation/create", params), ElicitResult)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int = 1000,
        system_prompt: str | None = None,
        **params: Any,
    ) -> CreateMessageResult:
        """Ask the client's model.

        Args:
            messages: a text stands for one message of the user.
            params: others of ``sampling/createMessage``, as they stand on the wire (``temperature=0.2``).

        Raises:
            ClientRefused: the client has no model for servers.
        """
        body: dict[str, Any] = {"maxTokens": max_tokens, **params}
        if isinstance(messages, str):
            body["messages"] = [{"role": "user", "content": {"type": "text", "text": messages}}]
        else:
            body["messages"] = msgspec.json.decode(encode(list(messages)))
        if system_prompt is not None:
            body["systemPrompt"] = system_prompt
        return _read(await self._conversation.ask("sampling/createMessage", body), CreateMessageResult)

    async def roots(self) -> list[Root]:
        """Ask for the folders that the client lets servers see. Raises ClientRefused."""
        return _read(await self._conversation.ask("roots/list", {}), ListRootsResult).roots


def _read(answer: Any, type_: type[T]) -> T:
    return decode_result(encode(answer), type_)
