"""A page of tools that is read again and again: only what differs from the first reading is decoded.

A server that announces changes has its list fetched anew each time, and mostly one item of thousands is another. JSON
is read from the left to the right: where two texts begin alike, both readings stand at the same place, and where they
end alike after whole items, they come to the same end. So the items of what is alike are taken as they are, and the
few between are decoded as a list of their own.

For tools alone: their raw schemas keep the text alive anyway. No I/O. ``KeptPage.read`` gives what ``decode_result``
gives, or it is a fault.
"""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import msgspec
from msgspec import Raw

from .content import Tool
from .lenient import decode_result
from .types import ListToolsResult

__all__ = ["KeptPage"]

STEP = 1 << 14
"""Bytes that are compared at once."""
FEWEST = 64
"""Tools below which a page is decoded whole: that costs next to nothing."""
LONGEST_HEAD = 4096
"""Bytes that a page may have beside its tools."""
LARGEST_PART = 1 / 4
"""Of the whole page; where more differs, it is decoded whole, and is what the next ones are compared with."""

_BLANKS = b" \t\r\n,"


class _Page(msgspec.Struct):
    """A page read as ``ListToolsResult`` is, its tools as one piece."""

    tools: Raw


_page = msgspec.json.Decoder(_Page)
_items = msgspec.json.Decoder(list[Raw])
_tools = msgspec.json.Decoder(list[Tool])


class _Places(NamedTuple):
    """Where the tools of a page stand in its text."""

    begins: array[int]
    ends: array[int]


class KeptPage:
    """The last page that was decoded whole."""

    __slots__ = ("_page", "_places", "_text")

    def __init__(self) -> None:
        self._page: ListToolsResult | None = None
        self._text = Raw()
        self._places: _Places | None = None

    def read(self, raw: Raw) -> ListToolsResult:
        """A page, as ``decode_result`` reads it. Tools that are as they were may be the same objects.

        Raises:
            InvalidAnswer: it is no such page.
        """
        page = self._read_difference(raw)
        if page is None:
            # Nothing of what was is needed now, and both together may be large.
            self._page = self._places = None
            self._text = Raw()
            page = decode_result(raw, ListToolsResult)
            if len(page.tools) >= FEWEST and not page.problems:
                self._page, self._text = page, raw
        return page

    def _read_difference(self, raw: Raw) -> ListToolsResult | None:
        """The page by its difference to the one that is kept; None where it must be read whole."""
        kept = self._page
        if kept is None:
            return None
        old, new = memoryview(self._text), memoryview(raw)
        alike = _alike_from_left(old, new)
        if alike == len(old) == len(new):
            return kept
        alike_at_end = _alike_from_right(old[alike:], new[alike:])
        if len(new) - alike - alike_at_end > len(new) * LARGEST_PART:
            return None
        places = self._places
        if places is None:
            places = self._places = _places(self._text)
        tools = kept.tools
        # Whole tools around what differs, and nothing but tools.
        first = bisect_right(places.begins, alike) - 1
        last = bisect_left(places.ends, len(old) - alike_at_end)
        if first < 0 or last >= len(tools):
            return None
        begin, end = places.begins[first], places.ends[last] + len(new) - len(old)
        if end - begin > len(new) * LARGEST_PART:
            return None
        try:
            changed = _tools.decode(b"[%b]" % bytes(new[begin:end]))
            if not changed and last - first + 1 < len(tools):
                return None  # a comma too many
            Tool.check_all(changed)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        page = copy.copy(kept)
        msgspec.structs.force_setattr(page, "tools", [*tools[:first], *changed, *tools[last + 1 :]])
        return page


def _places(text: Raw) -> _Places:
    """Where the tools stand; nowhere, if that is not clear."""
    whole = memoryview(text)
    listed = _page.decode(text).tools
    inner = memoryview(listed)
    beside = len(whole) - len(inner)
    nowhere = _Places(array("Q"), array("Q"))
    if beside > LONGEST_HEAD:
        return nowhere
    found = [
        at
        for at in range(beside + 1)
        if whole[at] == 0x5B and _alike_from_left(whole[at : at + len(inner)], inner) == len(inner)  # "["
    ]
    if len(found) != 1:
        return nowhere
    begins, ends = array("Q"), array("Q")
    at = found[0] + 1
    for item in _items.decode(listed):
        while whole[at] in _BLANKS:
            at += 1
        begins.append(at)
        at += len(memoryview(item))
        ends.append(at)
    return _Places(begins, ends)


def _alike_from_left(one: memoryview, other: memoryview) -> int:
    """How many bytes both begin with."""
    length = min(len(one), len(other))
    for at in range(0, length, STEP):
        end = min(at + STEP, length)
        a, b = bytes(one[at:end]), bytes(other[at:end])
        if a != b:
            differ = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
            return end - (differ.bit_length() + 7) // 8
    return length


def _alike_from_right(one: memoryview, other: memoryview) -> int:
    """How many bytes both end with."""
    length = min(len(one), len(other))
    for at in range(0, length, STEP):
        size = min(STEP, length - at)
        a, b = (bytes(each[len(each) - at - size : len(each) - at]) for each in (one, other))
        if a != b:
            differ = int.from_bytes(a, "little") ^ int.from_bytes(b, "little")
            return at + size - (differ.bit_length() + 7) // 8
    return length
