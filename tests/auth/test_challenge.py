"""F11.10 and F16: challenges of ``WWW-Authenticate`` as servers write them, and as nobody should."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.auth.challenge import MOST_CHALLENGES, MOST_PARAMETERS, bearer, parse_challenges

URL = "https://mcp.example/.well-known/oauth-protected-resource"


def read(*headers: str) -> list[tuple[str, dict[str, str], str]]:
    return [(each.scheme, dict(each.params), each.token68) for each in parse_challenges(headers)]


@pytest.mark.parametrize(
    ("headers", "challenges"),
    [
        ([], []),
        ([""], []),
        ([" , ,\t,"], []),
        (["Bearer"], [("bearer", {}, "")]),
        (["bEaReR ReAlm=X"], [("bearer", {"realm": "X"}, "")]),
        ([f'Bearer resource_metadata="{URL}"'], [("bearer", {"resource_metadata": URL}, "")]),
        ([f"Bearer resource_metadata={URL}"], [("bearer", {"resource_metadata": URL}, "")]),
        (
            ['Bearer error="insufficient_scope", scope="a b", error_description="a, \\"b\\" = c"'],
            [
                (
                    "bearer",
                    {
                        "error": "insufficient_scope",
                        "scope": "a b",
                        "error_description": 'a, "b" = c',
                    },
                    "",
                )
            ],
        ),
        (["Bearer a = 1 ,b\t=\t\"2\""], [("bearer", {"a": "1", "b": "2"}, "")]),
        (["Bearer a=1 b=2"], [("bearer", {"a": "1", "b": "2"}, "")]),
        (["Bearer a=1,,b=2,"], [("bearer", {"a": "1", "b": "2"}, "")]),
        (["Bearer a=1, A=2"], [("bearer", {"a": "1"}, "")]),
        (["Bearer c=1, a=, b=2"], [("bearer", {"c": "1", "a": "", "b": "2"}, "")]),
        (['Bearer a="", b=""'], [("bearer", {"a": "", "b": ""}, "")]),
        (["Bearer scope=https://x/y?z=1,error=e"], [("bearer", {"scope": "https://x/y?z=1", "error": "e"}, "")]),
        (
            ['Basic realm="x, Bearer y=z", Bearer scope=a'],
            [("basic", {"realm": "x, Bearer y=z"}, ""), ("bearer", {"scope": "a"}, "")],
        ),
        (
            ['Newauth realm="apps", type=1, title="Login to \\"apps\\"", Basic realm="simple"'],
            [
                ("newauth", {"realm": "apps", "type": "1", "title": 'Login to "apps"'}, ""),
                ("basic", {"realm": "simple"}, ""),
            ],
        ),
        (["Negotiate abc+/==, Bearer a=1"], [("negotiate", {}, "abc+/=="), ("bearer", {"a": "1"}, "")]),
        (["Negotiate, Bearer"], [("negotiate", {}, ""), ("bearer", {}, "")]),
        (['Basic realm="x"', "Bearer a=1"], [("basic", {"realm": "x"}, ""), ("bearer", {"a": "1"}, "")]),
        (["Basic realm=x,Bearer"], [("basic", {"realm": "x"}, ""), ("bearer", {}, "")]),
        (['Bearer a="never ends, b=1'], [("bearer", {"a": "never ends, b=1"}, "")]),
        (["a=1, Bearer b=2"], [("bearer", {"b": "2"}, "")]),
        (['"junk", Bearer b=2'], [("bearer", {"b": "2"}, "")]),
        (["Bearer é=1, b=2"], [("bearer", {"b": "2"}, "")]),
        (['DPoP algs="ES256 PS256"'], [("dpop", {"algs": "ES256 PS256"}, "")]),
    ],
)  # fmt: skip
def test_f11_10_challenges_are_read_as_http_defines_them_and_generously(
    headers: list[str], challenges: list[tuple[str, dict[str, str], str]]
) -> None:
    assert read(*headers) == challenges


def test_the_bearer_that_names_its_metadata_counts() -> None:
    assert bearer(parse_challenges(["Basic a=1"])) is None
    assert bearer(parse_challenges(["Basic a=1", "Bearer scope=x"])) == {"scope": "x"}
    named = parse_challenges(["Bearer scope=x", f'Bearer resource_metadata="{URL}"'])
    assert bearer(named) == {"resource_metadata": URL}


NAME = st.text("abcXYZ-_.~!#", min_size=1, max_size=8)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20)


@st.composite
def challenge(draw: st.DrawFn) -> tuple[str, dict[str, str]]:
    return draw(NAME), draw(st.dictionaries(NAME.map(str.lower), VALUE, max_size=4))


def written(scheme: str, params: dict[str, str]) -> str:
    quoted = (f'{k}="{v.translate({34: chr(92) + chr(34), 92: chr(92) * 2})}"' for k, v in params.items())
    return f"{scheme} {', '.join(quoted)}".strip()


@given(st.lists(challenge(), max_size=5))
def test_what_is_written_by_the_rules_is_read_whole(given_: list[tuple[str, dict[str, str]]]) -> None:
    """In one header or in several, it is the same."""
    expected = [(scheme.lower(), params, "") for scheme, params in given_]
    assert read(*(written(*each) for each in given_)) == expected
    assert read(", ".join(written(*each) for each in given_)) == expected


@given(st.lists(st.text(max_size=200), max_size=5))
def test_any_text_is_read(headers: list[str]) -> None:
    for each in parse_challenges(headers):
        assert each.scheme and each.scheme == each.scheme.lower()


@given(st.text('Bearer a=",\\ \t~é', max_size=300))
def test_any_text_of_its_own_letters_is_read(header: str) -> None:
    parse_challenges([header])


@pytest.mark.parametrize(
    "piece",
    ['"', "\\", 'a="', " ", "a ", "a", "a= ", "=,", '"\\', "a\t ,", "a=", "a,", 'a="b" ', "a=b ", "~" * 7 + "= "],
)  # fmt: skip
def test_it_takes_no_longer_than_the_header_is(piece: str) -> None:
    """A million characters: read up to the bound, in milliseconds."""
    header = "Bearer " + piece * (1_000_000 // len(piece))
    began = time.process_time()
    found = parse_challenges([header] * 4)
    assert time.process_time() - began < 0.5
    assert len(found) <= MOST_CHALLENGES
    assert all(len(each.params) <= MOST_PARAMETERS for each in found)


def test_there_is_a_bound_for_all_of_it() -> None:
    assert len(read(*["A, B"] * 1000)) == MOST_CHALLENGES
    (many,) = parse_challenges(["Bearer " + ", ".join(f"a{at}=1" for at in range(1000))])
    assert len(many.params) == MOST_PARAMETERS
