"""The YAML at the head of a ``SKILL.md``, read only to be compared with what was said of it before.

Nothing is made of it: ``read`` gives a tree of its texts, ``difference`` holds that against JSON. A text without quotes
may be read in more than one way (``yes``, ``014``, ``1.0``: YAML 1.1 and 1.2 differ), and whoever rendered it as JSON
read it in one of them; any of them is the same. Aliases, anchors, tags, a key that comes twice, and whatever is too
large or too deep are refused: they are what YAML is attacked with, and no skill needs them.

Pure functions. PyYAML (``moorings[skills]``) is imported when the first of it is read.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

__all__ = [
    "MAX_DEPTH",
    "MAX_FRONTMATTER",
    "Node",
    "Scalar",
    "Unreadable",
    "difference",
    "read",
    "same",
    "yaml_module",
]

MAX_FRONTMATTER = 16 * 1024
"""Characters of frontmatter. It is read on the event loop: as much as this takes about 20 ms, ten times that without
libyaml."""

MAX_DEPTH = 32
"""Lists and mappings inside of each other."""

MAX_NUMBER = 64
"""Characters of a number; what is longer is text."""

_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_STRING_TAGS = ("!", "tag:yaml.org,2002:str")

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {
    **{word: True for each in ("true", "yes", "on") for word in (each, each.title(), each.upper())},
    **{word: False for each in ("false", "no", "off") for word in (each, each.title(), each.upper())},
}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_OLD_OCTAL = re.compile(r"[-+]?0[0-7]+")
_BASED = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+|b[01]+)")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MIDNIGHT = ("T00:00:00.000Z", "T00:00:00Z")
"""What some readers make of a date when it is written as JSON."""


class Scalar(NamedTuple):
    """One text of the YAML."""

    text: str
    plain: bool
    """True if it stands without quotes, and so may be a number, a boolean, a date or nothing."""


Node: TypeAlias = Scalar | list["Node"] | dict[str, "Node"]


class Unreadable(ValueError):
    """This is no frontmatter that can be compared."""


def yaml_module() -> ModuleType:
    """PyYAML. Raises ConfigError where it is not installed."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError(
            "the frontmatter of a skill cannot be verified, and so the skill not be read, without PyYAML",
            fix='pip install "moorings[skills]"',
        ) from error
    return yaml


def read(text: str) -> dict[str, Node]:
    """The frontmatter of a ``SKILL.md``, as a tree of its texts.

    Raises:
        Unreadable: there is none, it is no mapping, or it is refused.
        ConfigError: PyYAML is not installed.
    """
    head = text[: MAX_FRONTMATTER + 16]
    found = _HEAD.match(head)
    # An end that is one only because the text was cut there is none.
    if found is None or (found.end() == len(head) < len(text)):
        if not head.removeprefix("\ufeff").startswith("---"):
            raise Unreadable("it does not begin with frontmatter")
        raise Unreadable(f"its frontmatter has no end within {MAX_FRONTMATTER:,} characters")
    yaml = yaml_module()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        with closing(yaml.parse(found[1], Loader=loader)) as events:
            return _Builder(yaml, events).document()
    except yaml.YAMLError as error:
        raise Unreadable(
            f"its frontmatter is no YAML ({getattr(error, 'problem', None) or 'unreadable'})"
        ) from None


class _Builder:
    """One reading: the events of a parser, made into a tree."""

    def __init__(self, yaml: ModuleType, events: Iterator[Any]) -> None:
        self._yaml = yaml
        self._events = events

    def document(self) -> dict[str, Node]:
        event = next(self._events)
        while isinstance(event, self._yaml.StreamStartEvent | self._yaml.DocumentStartEvent):
            event = next(self._events)
        if not isinstance(event, self._yaml.MappingStartEvent):
            raise Unreadable("its frontmatter is no mapping")
        tree = self.node(event, 0)
        assert isinstance(tree, dict)
        for event in self._events:
            if isinstance(event, self._yaml.DocumentStartEvent):
                raise Unreadable("its frontmatter holds more than one document")
        return tree

    def node(self, event: Any, depth: int) -> Node:
        yaml = self._yaml
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise Unreadable("its frontmatter uses anchors or aliases")
        if isinstance(event, yaml.ScalarEvent):
            if event.tag is not None and event.tag not in _STRING_TAGS:
                raise Unreadable("its frontmatter uses tags")
            return Scalar(event.value, event.tag is None and event.implicit[0])
        if event.tag is not None:
            raise Unreadable("its frontmatter uses tags")
        if depth >= MAX_DEPTH:
            raise Unreadable(f"its frontmatter is nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self.node(event, depth + 1))
            return items
        fields: dict[str, Node] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self.node(event, depth + 1)
            if not isinstance(key, Scalar):
                raise Unreadable("its frontmatter has a key that is no text")
            if key.text in fields:
                raise Unreadable("its frontmatter has a key twice")
            fields[key.text] = self.node(next(self._events), depth + 1)
        return fields


def difference(tree: dict[str, Node], told: dict[str, Any]) -> str | None:
    """The first field that is not the same in both; None if all are. One that is absent is the same as an empty one."""
    for field, value in told.items():
        if field not in tree:
            if value is not None:
                return field
        elif not same(tree[field], value):
            return field
    for field, node in tree.items():
        if field not in told and not same(node, None):
            return field
    return None


def same(node: Node, value: Any) -> bool:
    """Whether JSON is a rendering of this part of YAML."""
    if isinstance(node, Scalar):
        return _same_text(node, value)
    if isinstance(node, list):
        return isinstance(value, list) and len(node) == len(value) and all(map(same, node, value))
    if not isinstance(value, dict) or node.keys() != value.keys():
        return False
    return all(same(inner, value[key]) for key, inner in node.items())


def _same_text(node: Scalar, value: Any) -> bool:
    text = node.text
    if value == text:
        return True
    if not node.plain:
        return False
    if value is None:
        return text in _NULLS
    if isinstance(value, bool):
        return _BOOLEANS.get(text) is value
    if isinstance(value, int | float):
        return value in _numbers(text)
    return (
        isinstance(value, str) and bool(_DATE.fullmatch(text)) and value in [text + end for end in _MIDNIGHT]
    )


def _numbers(text: str) -> list[int | float]:
    """What a text may be as a number."""
    if len(text) > MAX_NUMBER:
        return []
    text = text.replace("_", "")
    found: list[int | float] = []
    if _DECIMAL.fullmatch(text):
        found.append(int(text))
    if _OLD_OCTAL.fullmatch(text):
        found.append(int(text, 8))
    if _BASED.fullmatch(text):
        found.append(int(text, 0))
    if _FLOAT.fullmatch(text):
        found.append(float(text))
    return found
