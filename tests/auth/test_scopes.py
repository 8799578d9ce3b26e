"""Which scopes are asked for: the first time, after a 403, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.auth.faults import StepUpRefused
from moorings.auth.scopes import StepUps, first_scopes, parse_scope, step_up, union

FORTY = [f"s{n}" for n in range(40)]


@pytest.mark.parametrize(
    ("configured", "challenged", "resource", "server", "asked"),
    [
        (("c1", "c2"), ("a",), ("r1", "r2", "r3"), FORTY, ("c1", "c2")),
        ((), ("a",), ("r1", "r2", "r3"), FORTY, ("a",)),
        ((), None, ("r1", "r2", "r3"), FORTY, ("r1", "r2", "r3")),
        ((), None, (), FORTY, ()),
        ((), None, None, FORTY, ()),
        ((), ("a",), None, ["a", "offline_access"], ("a", "offline_access")),
        ((), None, (), ["offline_access"], ()),
        ((), ("offline_access", "a"), None, ["offline_access"], ("offline_access", "a")),
        (("c",), None, None, ["offline_access"], ("c", "offline_access")),
        ((), ("a", "a"), None, None, ("a",)),
    ],
)
def test_f11_8_the_first_authorization_asks_for(
    configured: Any, challenged: Any, resource: Any, server: Any, asked: Any
) -> None:
    assert first_scopes(configured, challenged, resource, server) == asked


def test_f11_8_a_ceiling_is_not_passed_for_a_refresh_token() -> None:
    assert first_scopes(("c",), None, None, ["offline_access"], ceiling=True) == ("c",)


def test_f11_9_a_step_up_is_the_union_of_requested_and_challenged() -> None:
    asked = step_up(("A",), ("B",))
    assert asked == ("A", "B")
    assert step_up(asked, ("C",)) == ("A", "B", "C")
    assert step_up(asked, ("B", "A")) == ("A", "B")


def test_f11_9_a_step_up_stays_under_the_ceiling() -> None:
    assert step_up(("A",), ("B",), ceiling=("A", "B", "C")) == ("A", "B")
    with pytest.raises(StepUpRefused, match="B, and auth"):
        step_up(("A",), ("A", "B"), ceiling=("A",))
    with pytest.raises(StepUpRefused, match="does not say which"):
        step_up(("A",), ())


def test_f11_9_two_tries_for_an_operation_and_then_a_typed_error() -> None:
    tries = StepUps()
    assert [tries.begin("r", "tools/call x", more=True) for _ in range(2)] == [1, 2]
    with pytest.raises(StepUpRefused, match="after 2 new authorizations"):
        tries.begin("r", "tools/call x", more=True)
    assert tries.begin("r", "tools/call y", more=True) == 1
    assert tries.begin("other", "tools/call x", more=True) == 1
    tries.succeeded("r", "tools/call x")
    assert tries.begin("r", "tools/call x", more=True) == 1
    tries.begin("r", "tools/call x", more=True)
    tries.forget("r")
    assert tries.begin("r", "tools/call x", more=True) == 1


def test_what_is_remembered_is_bounded() -> None:
    tries = StepUps(most_tries=1, most_operations=10)
    for n in range(50):
        tries.begin("r", str(n), more=True)
        tries.begin(f"r{n}", "x", more=False)
    assert len(tries._tries) == len(tries._vain) == 10
    with pytest.raises(StepUpRefused):
        tries.begin("r49", "x", more=True)


def test_a_step_up_that_asks_for_nothing_more_counts_for_all_operations() -> None:
    tries = StepUps()
    tries.begin("r", "a", more=True)
    tries.begin("r", "a", more=False)
    tries.begin("r", "b", more=False)
    with pytest.raises(StepUpRefused, match="c was refused for its scopes after 2"):
        tries.begin("r", "c", more=False)
    assert tries.begin("r", "c", more=True) == 1
    assert tries.begin("other", "c", more=False) == 1
    tries.succeeded("r", "c")
    assert tries.begin("r", "d", more=False) == 1


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("a b", ("a", "b")),
        (" a   b a ", ("a", "b")),
        ("", ()),
        (["a", 7, "b"], ("a", "b")),
        ('a "b" c\\d e', ("a", "e")),
        ("é a", ("a",)),
        (None, None),
        (7, None),
    ],
)
def test_a_scope_text_is_read_generously(text: object, scopes: object) -> None:
    assert parse_scope(text) == scopes


words = st.lists(st.text("abc:/.", min_size=1, max_size=3))


@given(words, words)
def test_a_step_up_loses_nothing_and_repeats_nothing(requested: list[str], challenged: list[str]) -> None:
    if not challenged:
        return
    asked = step_up(requested, challenged)
    assert set(asked) == {*requested, *challenged} and len(asked) == len(set(asked))
    assert asked == union(requested, challenged)
