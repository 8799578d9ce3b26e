"""A page of tools read by its difference to the last one is what it is when read whole, whatever differs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from moorings.wire import again
from moorings.wire.again import KeptPage
from moorings.wire.types import InvalidAnswer, ListToolsResult, decode_result

pytestmark = pytest.mark.smoke

MANY = again.FEWEST * 4


def tool(name: str, text: str = "what it does") -> dict[str, Any]:
    return {"name": name, "description": text, "inputSchema": {"type": "object", "properties": {"a": {}}}}


def tools(count: int = MANY) -> list[dict[str, Any]]:
    return [tool(f"tool_{number}") for number in range(count)]


def page(items: list[Any], **others: Any) -> bytes:
    return msgspec.json.encode({"_meta": {"a": 1}, "tools": items, **others})


def whole(text: bytes) -> tuple[ListToolsResult, list[str]] | str:
    """The page as it is read without another one, with its problems; or why it is none."""
    try:
        read = decode_result(Raw(text), ListToolsResult)
    except InvalidAnswer as error:
        return str(error)
    return read, read.problems


def by_difference(kept: KeptPage, text: bytes) -> tuple[ListToolsResult, list[str]] | str:
    try:
        read = kept.read(Raw(text))
    except InvalidAnswer as error:
        return str(error)
    return read, read.problems


def read_twice(first: bytes, second: bytes) -> tuple[ListToolsResult, ListToolsResult]:
    """Both pages; the second one by its difference."""
    kept = KeptPage()
    one, two = kept.read(Raw(first)), kept.read(Raw(second))
    assert (two, two.problems) == whole(second)
    return one, two


def the_same(one: ListToolsResult, two: ListToolsResult) -> int:
    """How many tools of the second page are objects of the first."""
    return len({id(each) for each in one.tools} & {id(each) for each in two.tools})


CHANGES = {
    "first": lambda items: items.__setitem__(0, tool("tool_0", "new")),
    "last": lambda items: items.__setitem__(-1, tool("last", "new")),
    "between": lambda items: items.__setitem__(100, tool("tool_100", "new")),
    "two neighbours": lambda items: items.__setitem__(slice(100, 102), [tool("x"), tool("y")]),
    "put in front": lambda items: items.insert(0, tool("new")),
    "put between": lambda items: items.insert(100, tool("new")),
    "put at the end": lambda items: items.append(tool("new")),
    "the same again": lambda items: items.insert(100, items[100]),
    "the same again at the end": lambda items: items.append(items[-1]),
    "first gone": lambda items: items.pop(0),
    "one gone": lambda items: items.pop(100),
    "last gone": lambda items: items.pop(),
    "ten gone": lambda items: items.__delitem__(slice(100, 110)),
    "longer": lambda items: items.__setitem__(100, tool("tool_100", "x" * 300)),
    "no ASCII": lambda items: items.__setitem__(100, tool("tool_100", "ü€😀")),
}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "with blanks"])
@pytest.mark.parametrize("change", CHANGES)
def test_only_what_differs_is_decoded(change: str, separators: tuple[str, str]) -> None:
    def text(items: list[Any]) -> bytes:
        return json.dumps({"tools": items, "nextCursor": "c"}, separators=separators).encode()

    items = tools()
    before = text(items)
    CHANGES[change](items)
    one, two = read_twice(before, text(items))
    assert the_same(one, two) >= MANY - 12
    assert two.next_cursor == "c"


def test_the_same_page_is_the_same_object() -> None:
    one, two = read_twice(page(tools()), page(tools()))
    assert one is two


def test_each_page_is_compared_with_the_last_whole_one() -> None:
    kept = KeptPage()
    items = tools()
    first = kept.read(Raw(page(items)))
    for number in range(10):
        items[100 + number] = tool(f"other_{number}")
        text = page(items)
        read = kept.read(Raw(text))
        assert (read, read.problems) == whole(text)
        assert the_same(first, read) == MANY - 1 - number
    # Both ends differ: it is read whole, and what comes next is compared with it.
    items[0], items[-1] = tool("x"), tool("y")
    far = kept.read(Raw(page(items)))
    assert the_same(first, far) == 0
    items[5] = tool("z")
    assert the_same(far, kept.read(Raw(page(items)))) == MANY - 1


@pytest.mark.parametrize(
    "second",
    [
        page(tools(), nextCursor="c"),
        page(tools(), ttlMs=5),
        page(tools(MANY * 2)),
        page(tools(3)),
        page([]),
        page([]).replace(b"[]", b"null"),
        page(tools()).replace(b'"a":1', b'"a":2'),
        page(tools()).replace(b'"tools"', b'"tolls"'),
        page(tools())[:-1],
        page(tools()) + b"}",
        b"",
        b"{}",
        b"[]",
    ],
    ids=range(13),
)
def test_what_differs_beside_the_tools_is_read_whole(second: bytes) -> None:
    kept = KeptPage()
    kept.read(Raw(page(tools())))
    assert by_difference(kept, second) == whole(second)
    assert by_difference(kept, page(tools())) == whole(page(tools()))


@pytest.mark.parametrize(
    "put",
    [
        b'],"tools":[',
        b'],"x":[',
        b"",
        b",",
        b"null",
        b"1",
        b'{"name":"","inputSchema":{}}',
        b'{"name":"x","inputSchema":[]}',
        b'{"name":"x"}',
        b'{"name":"\xff","inputSchema":{}}',
        b'{"name":"x","inputSchema":{}',
        b'{"name":"x","inputSchema":{}}}',
        b'{"name":"x","inputSchema":' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}",
        b'{"name":7,"inputSchema":{}}',
        b'"',
        b"[",
        b"]",
        b"]}",
    ],
    ids=range(18),
)
@pytest.mark.parametrize("where", [0, 100, MANY - 1])
def test_what_is_no_tool_is_what_it_is_in_a_page_read_whole(where: int, put: bytes) -> None:
    items = tools()
    items[where] = "HERE"
    kept = KeptPage()
    kept.read(Raw(page(tools())))
    text = page(items).replace(b'"HERE"', put)
    assert by_difference(kept, text) == whole(text)


def test_a_second_list_of_tools_in_the_text_misleads_nobody() -> None:
    other = page(tools()).replace(b"tool_100", b"tool_xxx")
    inner = page(tools())
    for shape in (
        b'{"tools":%b,"tools":%b}',
        b'{"_meta":{"tools":%b},"tools":%b}',
        b'{"tools":%b,"_meta":%b}',
    ):
        listed = [each[each.index(b"[") : -1] for each in (inner, other)]
        texts = [shape % (a, b) for a in listed for b in listed]
        for first in texts:
            for second in texts:
                kept = KeptPage()
                kept.read(Raw(first))
                assert by_difference(kept, second) == whole(second)


def test_a_page_that_was_mended_is_not_kept() -> None:
    items: list[Any] = tools()
    items[3] = {"name": "bad"}
    kept = KeptPage()
    assert kept.read(Raw(page(items))).problems
    items[100] = tool("new")
    assert by_difference(kept, page(items)) == whole(page(items))


names = st.text(min_size=0, max_size=3)
made = st.builds(tool, st.sampled_from("abcde") | names, names)
pages = st.lists(made, max_size=12)


@st.composite
def edited(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A page, and one that differs by some bytes, some tools, or altogether."""
    items = draw(pages)
    before = page(items)
    how = draw(st.sampled_from(["bytes", "tools", "all"]))
    if how == "all":
        return before, page(draw(pages))
    if how == "tools":
        items = items.copy()
        at = draw(st.integers(0, len(items)))
        items[at : draw(st.integers(at, len(items)))] = draw(st.lists(made, max_size=2))
        return before, page(items)
    at = draw(st.integers(0, len(before)))
    end = draw(st.integers(at, min(at + 40, len(before))))
    put = draw(
        st.binary(max_size=3) | st.sampled_from([b"{", b"}", b"[", b"]", b",", b'"', b" ", b"],[", b"},{"])
    )
    return before, before[:at] + put + before[end:]


@given(st.lists(edited(), min_size=1, max_size=3))
def test_any_page_after_any_other(steps: list[tuple[bytes, bytes]]) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(again, "FEWEST", 1)
        small.setattr(again, "LARGEST_PART", 1.0)
        small.setattr(again, "STEP", 7)
        kept = KeptPage()
        for before, after in steps:
            for text in (before, after):
                assert by_difference(kept, text) == whole(text)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_how_far_two_texts_are_alike(one: bytes, other: bytes) -> None:
    with pytest.MonkeyPatch.context() as small:
        small.setattr(again, "STEP", 5)
        length = min(len(one), len(other))
        left = next((n for n in range(length, -1, -1) if one[:n] == other[:n]), 0)
        right = next((n for n in range(length, 0, -1) if one[-n:] == other[-n:]), 0)
        assert again._alike_from_left(memoryview(one), memoryview(other)) == left
        assert again._alike_from_right(memoryview(one), memoryview(other)) == right
