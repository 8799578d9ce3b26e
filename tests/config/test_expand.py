"""References in configuration text: pure, not recursive, and never travelling unset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.config.expand import expand

ENVIRON = {"A": "1", "EMPTY": "", "RAW": "${A} $$ ~/", "HOME": "/home/ada", "PF(x86)": "p"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A}", "1"),
        ("${env:A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${A:-d}", "1"),
        ("${NO:-d}", "d"),
        ("${env:NO:-d}", "d"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NO:-}", ""),
        ("${NO:-a b:c$d}", "a b:c$d"),
        ("${RAW}", "${A} $$ ~/"),
        ("$A $ $$ a$", "$A $ $$ a$"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("${PF(x86)}", "p"),
        ("~/x", "~/x"),
    ],
)
def test_expansion(text: str, result: str) -> None:
    assert expand(text, ENVIRON) == (result, ())


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("~/x", "/home/ada/x"),
        ("~", "~"),
        ("~ada/x", "~ada/x"),
        ("a~/x", "a~/x"),
        ("~/${A}", "/home/ada/1"),
        ("", ""),
    ],
)
def test_the_home_folder(text: str, result: str) -> None:
    assert expand(text, ENVIRON, tilde=True) == (result, ())


def test_what_a_variable_holds_is_not_taken_for_the_home_folder() -> None:
    assert expand("${T}", {"T": "~/x", "HOME": "/h"}, tilde=True) == ("~/x", ())
    assert expand("~/${A}", {"HOME": "/${A}", "A": "1"}, tilde=True) == ("/${A}/1", ())


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("${NO}", ["NO"]),
        ("${env:NO}", ["NO"]),
        ("${NO} ${A} ${NO2}", ["NO", "NO2"]),
        ("${}", [None]),
        ("${A", [None]),
        ("${A-d}", [None]),
        ("${A%x}", [None]),
        ("${input:key}", [None]),
        ("${1}", [None]),
        ("${NO:-${A}}", ["NO"]),
        ("${ A }", [None]),
    ],
)
def test_faults(text: str, variables: list[str | None]) -> None:
    _, faults = expand(text, ENVIRON)
    assert [fault.variable for fault in faults] == variables
    assert all(fault.message and fault.fix for fault in faults)


def test_a_home_folder_that_is_not_known_is_a_fault() -> None:
    assert [fault.variable for fault in expand("~/x", {}, tilde=True)[1]] == ["HOME"]


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_references_is_unchanged(text: str) -> None:
    assert expand(text, ENVIRON) == (text, ())


@given(st.text(alphabet="ab ${}:-A~/\n", max_size=30))
def test_it_ends_in_a_text_or_in_faults_and_twice_is_once_without_references(text: str) -> None:
    result, faults = expand(text, ENVIRON)
    if not faults and "${" not in result:
        assert expand(result, ENVIRON) == (result, ())


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="$")), st.text())
def test_a_value_is_put_in_whole_and_read_once(value: str, before: str, after: str) -> None:
    after = after.replace("${", "")
    assert expand(before + "${V}" + after, {"V": value}) == (before + value + after, ())
