"""The types of skills, and how a file of one is verified. Extension ``io.modelcontextprotocol/skills`` (SEP-2640).

An entry says what a skill is and, unless it is ``dynamic``, which files it has, each with size and digest; the files
are resources. An entry that breaks the rules is left out of its list and reported. Of a file nothing is handed out
before it was held against its entry. A digest shows that a server is at one with itself, not that it means well.

Plain data and pure functions; ``verified`` reads YAML for the ``SKILL.md`` alone.
"""

from __future__ import annotations

import binascii
import hashlib
import posixpath
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from msgspec import Struct

from ..errors import SkillMismatch
from . import frontmatter as yaml_head
from .types import ListResult, ReadResourceResult, _Cacheable

__all__ = [
    "MAX_FILES",
    "MAX_SIZE",
    "GetSkillResult",
    "ListSkillsResult",
    "Skill",
    "SkillEntry",
    "SkillFile",
    "SkillResource",
    "file_uri",
    "get_params",
    "verified",
]

MAX_FILES = 512
"""Files of a skill, its ``SKILL.md`` included: the limit of the extension."""

MAX_SIZE = 16 * 1024 * 1024
"""Bytes of all files of a skill together, and of one file of a dynamic skill: the limit of the extension."""

MAX_SHOWN = 200
"""Characters of a value that an error keeps."""

SKILL_MD = "SKILL.md"
_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_STRANGE = re.compile(r"[\x00-\x1f\x7f\\]")
_BASE64_SLACK = 8


class SkillResource(Struct, frozen=True, gc=False):
    """One file of a skill."""

    uri: str
    """By which ``resources/read`` gives it."""
    digest: str
    """``sha256:`` and 64 hexadecimal digits, over its bytes."""
    size: int
    """Its bytes."""


class SkillEntry(Struct, frozen=True, kw_only=True):
    """What a server says of one skill; nothing of it is to be trusted."""

    uri: str
    """Of its ``SKILL.md``; what names it, on its server."""
    frontmatter: dict[str, Any]
    """The head of its ``SKILL.md`` as JSON; ``name`` and ``description`` are there."""
    resources: list[SkillResource] | Literal["dynamic"]
    """All its files; ``dynamic`` if they have no lasting content, and so cannot be verified."""

    def __post_init__(self) -> None:
        root = _root(self.uri)
        if root is None:
            raise ValueError(f"has a uri that is not that of a {SKILL_MD} in a folder")
        for key in ("name", "description"):
            value = self.frontmatter.get(key)
            if not isinstance(value, str) or not value:
                raise ValueError(f"has no {key} in its frontmatter")
        if isinstance(self.resources, str):
            return
        if len(self.resources) > MAX_FILES:
            raise ValueError(f"has {len(self.resources):,} files; {MAX_FILES} is the most")
        seen = set()
        whole = 0
        for file in self.resources:
            if file.uri in seen:
                raise ValueError("lists a file twice")
            seen.add(file.uri)
            if file.uri != self.uri and not _is_inside(root, file.uri):
                raise ValueError("lists a file outside of its folder")
            if not _DIGEST.fullmatch(file.digest):
                raise ValueError("lists a file with a digest that is not sha256 and 64 digits")
            if file.size < 0:
                raise ValueError("lists a file with a size below 0")
            whole += file.size
        if self.uri not in seen:
            raise ValueError(f"does not list its own {SKILL_MD}")
        if whole > MAX_SIZE:
            raise ValueError(f"has {whole:,} bytes of files; {MAX_SIZE:,} is the most")


class ListSkillsResult(ListResult, frozen=True, kw_only=True):
    """Answer to ``skills/list``."""

    CATALOGUE: ClassVar[str] = "skills"

    skills: list[SkillEntry]
    """One page of skills."""


class GetSkillResult(_Cacheable, frozen=True, kw_only=True):
    """Answer to ``skills/get``."""

    skill: SkillEntry
    """The entry of the skill that was asked for."""


class Skill(Struct, frozen=True):
    """A skill of one server. Two of them are equal if nothing of their entry differs: an approval that is bound to one
    does not hold for another. Server and ``uri`` together name it; its name does not."""

    server: str
    """The server's name in this host."""
    entry: SkillEntry
    """What the server says of it."""

    @property
    def uri(self) -> str:
        """Of its ``SKILL.md``."""
        return self.entry.uri

    @property
    def name(self) -> str:
        """A label in the server's words: other skills may bear it, too."""
        return str(self.entry.frontmatter["name"])

    @property
    def description(self) -> str:
        """What it is for, in the server's words (not to be trusted)."""
        return str(self.entry.frontmatter["description"])

    @property
    def frontmatter(self) -> dict[str, Any]:
        """All that its head says. What asks for rights in it (``allowed-tools``) is a wish and grants nothing."""
        return self.entry.frontmatter

    @property
    def dynamic(self) -> bool:
        """True if its files have neither size nor digest to be verified by."""
        return isinstance(self.entry.resources, str)

    @property
    def resources(self) -> Sequence[SkillResource]:
        """All its files; none if it is dynamic, as nobody knows them."""
        return () if isinstance(self.entry.resources, str) else self.entry.resources


class SkillFile(Struct, frozen=True):
    """One file of a skill, verified."""

    server: str
    """The server it came from."""
    skill: str
    """URI of the skill."""
    uri: str
    """Its own."""
    mime_type: str | None
    """What the server calls it."""
    data: bytes
    """Its bytes."""
    pinned: bool
    """True if its size and digest are those of the entry; False for a file of a dynamic skill."""

    @property
    def text(self) -> str:
        """The bytes as UTF-8. Raises UnicodeDecodeError where they are none."""
        return self.data.decode()


def get_params(uri: str) -> dict[str, Any]:
    """Params of ``skills/get``."""
    return {"uri": uri}


def file_uri(skill: Skill, name: str | None = None) -> str:
    """The URI of a file of a skill, by itself or as a path from the folder of the skill; None for its ``SKILL.md``.

    Raises:
        SkillMismatch: the entry does not list it, or it lies outside of the folder.
    """
    if name is None or name == skill.uri:
        return skill.uri
    root = _root(skill.uri)
    assert root is not None  # the entry was checked when it was made
    uri = name if "://" in name else f"{root}/{posixpath.normpath(name)}"
    if skill.dynamic:
        if not _is_inside(root, uri):
            raise _mismatch(skill, uri, "unlisted", "is outside of the folder of the skill", root, uri)
    elif all(file.uri != uri for file in skill.resources):
        raise _mismatch(skill, uri, "unlisted", "is no file that the entry of the skill lists", None, uri)
    return uri


def verified(skill: Skill, uri: str, result: ReadResourceResult) -> SkillFile:
    """What ``resources/read`` gave for a file of a skill, once it was held against the entry of the skill.

    Args:
        uri: as of ``file_uri``.

    Raises:
        SkillMismatch: it is not what the entry says.
        ConfigError: it is the ``SKILL.md``, and PyYAML is not installed.
    """
    listed = next((file for file in skill.resources if file.uri == uri), None)
    data, mime_type = _content(
        skill, uri, result, MAX_SIZE if listed is None else listed.size, listed is not None
    )
    if listed is not None:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        if digest != listed.digest.lower():
            raise _mismatch(
                skill, uri, "digest", "has another digest than its entry says", listed.digest, digest
            )
    if uri == skill.uri:
        _check_head(skill, data)
    return SkillFile(skill.server, skill.uri, uri, mime_type, data, listed is not None)


def _content(
    skill: Skill, uri: str, result: ReadResourceResult, size: int, exact: bool
) -> tuple[bytes, str | None]:
    """The bytes, of the right size. Looked at before they are copied: what is too long already is not."""

    def wrong_size(found: int) -> SkillMismatch:
        text = "has another size than its entry says" if exact else "is larger than a skill may be"
        return _mismatch(skill, uri, "size", text, size, found)

    found = [each for each in result.contents if each.uri == uri]
    if len(found) != 1 or len(result.contents) != 1:
        raise _mismatch(
            skill, uri, "content", "was answered with something else than this one file", 1, len(found)
        )
    content = found[0]
    if content.text is not None and content.blob is None:
        if len(content.text) > size:
            raise wrong_size(len(content.text.encode("utf-8", "surrogatepass")))
        data = content.text.encode("utf-8", "surrogatepass")
    elif content.blob is not None and content.text is None:
        if len(content.blob) // 4 * 3 > size + _BASE64_SLACK:
            raise wrong_size(len(content.blob) // 4 * 3)
        try:
            data = binascii.a2b_base64(content.blob, strict_mode=True)
        except ValueError:
            raise _mismatch(skill, uri, "content", "is no base64", None, None) from None
    else:
        raise _mismatch(skill, uri, "content", "is not either text or bytes", None, None)
    if len(data) != size if exact else len(data) > size:
        raise wrong_size(len(data))
    return data, content.mime_type


def _check_head(skill: Skill, data: bytes) -> None:
    try:
        tree = yaml_head.read(data.decode())
    except UnicodeDecodeError:
        raise _mismatch(skill, skill.uri, "frontmatter", "is no text", None, None) from None
    except yaml_head.Unreadable as error:
        raise _mismatch(skill, skill.uri, "frontmatter", str(error).removeprefix("it "), None, None) from None
    field = yaml_head.difference(tree, skill.frontmatter)
    if field is None:
        return
    told, found = skill.frontmatter.get(field), tree.get(field)
    # A field that only the file has is of the file, and its name is not told either.
    where = (
        f"says something else of {field[:80]!r} than its entry"
        if field in skill.frontmatter
        else ("has a field in its frontmatter that its entry has not")
    )
    raise _mismatch(
        skill, skill.uri, "frontmatter", where, _shown(told), f"{field}: {_shown(found)}"[:MAX_SHOWN]
    )


def _shown(value: Any) -> str:
    return repr(value.text if isinstance(value, yaml_head.Scalar) else value)[:MAX_SHOWN]


def _mismatch(skill: Skill, uri: str, rule: str, what: str, expected: Any, found: Any) -> SkillMismatch:
    return SkillMismatch(
        f"the file {uri[:MAX_SHOWN]!r} of the skill {skill.uri[:MAX_SHOWN]!r} {what}",
        server=skill.server,
        skill=skill.uri,
        uri=uri,
        rule=rule,
        expected=expected,
        found=found,
    )


def _root(uri: str) -> str | None:
    """The folder of a ``SKILL.md``, without a slash at its end; None if it is not in one."""
    scheme, mark, path = uri.partition("://")
    folder = path.removesuffix(f"/{SKILL_MD}")
    if not scheme or not mark or folder == path or not _is_plain(folder):
        return None
    return f"{scheme}://{folder}"


def _is_inside(root: str, uri: str) -> bool:
    return uri.startswith(f"{root}/") and _is_plain(uri[len(root) + 1 :])


def _is_plain(path: str) -> bool:
    """Whether a path leads only downward, also for whoever decodes it and makes a file of it."""
    path = unquote(path)
    return not _STRANGE.search(path) and all(part not in ("", ".", "..") for part in path.split("/"))
