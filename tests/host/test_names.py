"""The names that models see: one injective, stable function of server and tool (field faults 15)."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorings import exposed_name
from moorings.host.names import MAX_NAME, exposed_names, split_plain

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
HASHED = re.compile(r".*__[a-z2-7]{10}\Z")

# What servers and people write, and what hurts: separators, underscores at the edges, hashes, long names, no ASCII.
PIECES = st.sampled_from(
    ["a", "b", "_", "__", "-", ".", "/", " ", "é", "工具", "\n", "\0", "\ud800", "Get File", "operations"]
)
WORDS = st.lists(PIECES, max_size=6).map("".join)
NAMES = st.one_of(
    WORDS,
    st.text(max_size=70),
    st.text("ab_", max_size=66),
    st.from_regex(r"[a-b]{0,2}_{0,3}[a-z2-7]{10}", fullmatch=True),
)
SERVERS = NAMES.filter(bool)


def test_names_that_are_plain_stay_as_people_expect_them() -> None:
    """Server and tool, and nothing else, for everything that real servers call their tools."""
    assert exposed_name("files", "read_file") == "files__read_file"
    assert exposed_name("my-server", "get-sum") == "my-server__get-sum"
    # Ten letters after an underscore look like a hash, and are a word: these too are plain.
    assert exposed_name("github", "create_repository") == "github__create_repository"
    assert exposed_name("s", "list_containers") == "s__list_containers"


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("s", "a.b", "s__a_b__4e6cqe3rae"),
        ("s", "Get File", "s__Get_File__"),
        ("s", "größe", "s__gr__e__"),
        ("example.com/x/y", "search", "example_com_x_y__search__"),
        ("s", "a__b", "s__a__b__"),
        ("s_", "a", "s___a__"),
        ("s", "", "s____"),
        ("s", "x" * 70, "s__" + "x" * 49 + "__"),
    ],
)
def test_f15_1_what_is_not_plain_carries_a_hash(server: str, tool: str, name: str) -> None:
    """F15.1, F15.2: the readable part stays in front, and the hash says which it is."""
    exposed = exposed_name(server, tool)
    assert exposed.startswith(name)
    assert HASHED.match(exposed) and VALID.match(exposed)
    assert split_plain(exposed) is None


def test_f15_2_names_are_the_same_in_every_process() -> None:
    """F15.2: written down here, because what models and files hold must mean the same after a restart and an
    upgrade."""
    assert exposed_name("s", "a.b") == "s__a_b__4e6cqe3rae"
    long = "create_a_very_long_named_thing_that_goes_on_and_on_and_on_and_on"
    one, other = exposed_name("server", long + "_one"), exposed_name("server", long + "_other")
    assert one == "server__create_a_very_long_named_thing_that_goes_on___ygpclkutyc"
    assert other != one and len(one) == len(other) == MAX_NAME


@given(SERVERS, NAMES)
@example("s", "")
@example("a_", "_b")
def test_every_name_is_valid_and_stable(server: str, tool: str) -> None:
    """At most 64 of the letters that all model APIs take, whatever the raw names hold."""
    name = exposed_name(server, tool)
    assert VALID.match(name), name
    assert exposed_name(server, tool) == name


@given(SERVERS, NAMES, SERVERS, NAMES)
@example("a", "b__c", "a__b", "c")
@example("a_", "b", "a", "_b")
@example("a.b", "c", "a_b", "c")
@example("s", "x" * 64, "s", "x" * 65)
def test_f15_1_two_pairs_never_share_a_name(s1: str, t1: str, s2: str, t2: str) -> None:
    """F15.1: nothing is shadowed: the function is injective."""
    assert (exposed_name(s1, t1) == exposed_name(s2, t2)) == ((s1, t1) == (s2, t2))


@given(SERVERS, NAMES)
def test_the_way_back_of_a_plain_name_is_right_or_none(server: str, tool: str) -> None:
    """``split_plain`` finds the pair exactly where the name is plain, and never another one."""
    name = exposed_name(server, tool)
    assert split_plain(name) == ((server, tool) if name == f"{server}__{tool}" else None)


@given(st.text(max_size=70) | WORDS)
def test_no_text_is_split_into_a_pair_that_has_another_name(text: str) -> None:
    """Whatever a model makes up as a name: if it is split, then into the pair that has that very name."""
    pair = split_plain(text)
    assert pair is None or exposed_name(*pair) == text


@given(SERVERS, NAMES)
@example("s" * 60, "tool")
@example("s" * 52, "tool")
@example("s" * 51, "t" * 20)
@example("é" * 52, "tool")
def test_a_tool_cannot_take_the_name_of_another_by_imitating_its_hash(server: str, tool: str) -> None:
    """A hostile server reads a hashed name and names its own server or tool so that it would come out alike."""
    name = exposed_name(server, tool)
    for cut in range(len(name)):
        if name[cut : cut + 2] != "__":
            continue
        imitated = name[:cut], name[cut + 2 :]
        if all(imitated) and imitated != (server, tool):
            assert exposed_name(*imitated) != name


@given(NAMES, st.lists(NAMES | st.text(alphabet="a_-\n", max_size=5), max_size=6))
@example("", ["a"])
@example("a_", ["b"])
@example("a", ["b", "c\nd"])
@example("a", ["b", "_c"])
@example("a", ["b", ""])
@example("a", ["b", "c" * 61, "d" * 62])
def test_a_list_of_names_is_the_names_of_its_tools(server: str, tools: list[str]) -> None:
    assert exposed_names(server, tools) == [exposed_name(server, tool) for tool in tools]
