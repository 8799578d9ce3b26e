"""Skills on the wire: which entries are taken, and what a file must be to be handed out (SEP-2640)."""

from __future__ import annotations

import base64
import builtins
import hashlib
import json
import pickle
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moorings import ConfigError, SkillMismatch
from moorings.wire.eras import EXTENSIONS, SKILLS
from moorings.wire.frontmatter import MAX_DEPTH, MAX_FRONTMATTER, Unreadable, difference, read, same
from moorings.wire.skills import (
    MAX_FILES,
    MAX_SIZE,
    GetSkillResult,
    ListSkillsResult,
    Skill,
    SkillFile,
    file_uri,
    verified,
)
from moorings.wire.types import InvalidAnswer, ReadResourceResult, decode_result

URI = "skill://acme/pdf-processing/SKILL.md"
FORMS = "skill://acme/pdf-processing/references/FORMS.md"
HEAD = {"name": "pdf-processing", "description": "Fill in forms"}
TEXT = "---\nname: pdf-processing\ndescription: Fill in forms\n---\n\nDo this, then that.\n"
MORE = "Supporting words.\n"


def digest(content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    return "sha256:" + hashlib.sha256(data).hexdigest()


def listed(uri: str, content: str | bytes) -> dict[str, Any]:
    return {
        "uri": uri,
        "digest": digest(content),
        "size": len(content.encode() if isinstance(content, str) else content),
    }


def entry(**members: Any) -> dict[str, Any]:
    whole = {
        "uri": URI,
        "frontmatter": HEAD,
        "resources": [listed(URI, TEXT), listed(FORMS, MORE)],
        **members,
    }
    return {key: value for key, value in whole.items() if value is not ...}


def skill(**members: Any) -> Skill:
    raw = json.dumps({"skill": entry(**members)}).encode()
    return Skill("docs", decode_result(raw, GetSkillResult).skill)


def answer(*contents: dict[str, Any]) -> ReadResourceResult:
    return decode_result(json.dumps({"contents": contents}).encode(), ReadResourceResult)


def text_of(uri: str, text: str) -> ReadResourceResult:
    return answer({"uri": uri, "mimeType": "text/markdown", "text": text})


def refused(of: Skill, uri: str, result: ReadResourceResult) -> SkillMismatch:
    with pytest.raises(SkillMismatch) as caught:
        verified(of, uri, result)
    assert (caught.value.server, caught.value.skill, caught.value.uri) == ("docs", of.uri, uri)
    return caught.value


# --- entries


def test_the_extension_is_declared() -> None:
    assert SKILLS in EXTENSIONS


def test_an_entry_says_what_a_skill_is() -> None:
    found = skill()
    assert (found.name, found.description, found.uri, found.dynamic) == (
        "pdf-processing",
        "Fill in forms",
        URI,
        False,
    )
    assert [each.uri for each in found.resources] == [URI, FORMS]
    assert found == skill() != skill(resources="dynamic")


def test_a_dynamic_skill_lists_no_files() -> None:
    found = skill(resources="dynamic")
    assert found.dynamic and list(found.resources) == []


LONG = [listed(URI, TEXT)] + [listed(f"skill://acme/pdf-processing/{n}", "x") for n in range(MAX_FILES)]
BAD = {
    "no uri": {"uri": ...},
    "no SKILL.md": {"uri": "skill://acme/pdf-processing/README.md"},
    "no folder": {"uri": "skill://SKILL.md"},
    "no scheme": {"uri": "acme/SKILL.md"},
    "a way up": {"uri": "skill://acme/../SKILL.md", "resources": "dynamic"},
    "no frontmatter": {"frontmatter": ...},
    "frontmatter that is no object": {"frontmatter": ["name"]},
    "no name": {"frontmatter": {"description": "d"}},
    "an empty name": {"frontmatter": {"name": "", "description": "d"}},
    "a description that is a number": {"frontmatter": {"name": "n", "description": 7}},
    "no resources": {"resources": ...},
    "no word for resources": {"resources": None},
    "another word": {"resources": "static"},
    "no file of its own": {"resources": [listed(FORMS, MORE)]},
    "a file twice": {"resources": [listed(URI, TEXT), listed(FORMS, MORE), listed(FORMS, "x")]},
    "a file elsewhere": {"resources": [listed(URI, TEXT), listed("skill://acme/other/x", MORE)]},
    "a file beside": {"resources": [listed(URI, TEXT), listed("skill://acme/pdf-processing2/x", MORE)]},
    "a file above": {"resources": [listed(URI, TEXT), listed("skill://acme/pdf-processing/%2e%2e/x", MORE)]},
    "a file with a backslash": {
        "resources": [listed(URI, TEXT), listed("skill://acme/pdf-processing/a%5c..", "")]
    },
    "no digest": {"resources": [{"uri": URI, "size": 1}]},
    "another hash": {"resources": [{"uri": URI, "size": 1, "digest": "sha1:" + "a" * 40}]},
    "a short digest": {"resources": [{"uri": URI, "size": 1, "digest": "sha256:" + "a" * 63}]},
    "no size": {"resources": [{"uri": URI, "digest": digest("")}]},
    "a negative size": {"resources": [{"uri": URI, "digest": digest(""), "size": -1}]},
    "half a byte": {"resources": [{"uri": URI, "digest": digest(""), "size": 1.5}]},
    "too many files": {"resources": LONG},
    "too many bytes": {"resources": [{"uri": URI, "digest": digest(""), "size": MAX_SIZE + 1}]},
}


@pytest.mark.parametrize("members", BAD.values(), ids=BAD.keys())
def test_an_entry_that_breaks_the_rules_is_left_out_and_reported(members: dict[str, Any]) -> None:
    raw = json.dumps({"skills": [entry(**members), entry()], "nextCursor": "2"}).encode()
    page = decode_result(raw, ListSkillsResult)
    assert [each.uri for each in page.skills] == [URI]
    assert len(page.problems) == 1 and page.problems[0].startswith("skills[0]")
    assert page.next_cursor == "2"
    with pytest.raises(InvalidAnswer):
        skill(**members)


def test_an_entry_at_the_limits_is_taken() -> None:
    files = LONG[:MAX_FILES]
    files[0] = {**files[0], "size": MAX_SIZE - len(files) + 1}
    assert len(skill(resources=files).resources) == MAX_FILES


def test_what_can_mean_only_one_thing_is_taken() -> None:
    upper = "sha256:" + digest(TEXT)[7:].upper()
    found = skill(resources=[{"uri": URI, "digest": upper, "size": str(len(TEXT))}], new="field")
    assert verified(found, URI, text_of(URI, TEXT)).text == TEXT


# --- which file


@pytest.mark.parametrize(
    ("name", "uri"),
    [(None, URI), (URI, URI), ("SKILL.md", URI), (FORMS, FORMS), ("./references/FORMS.md", FORMS)],
)
def test_a_file_is_named_by_uri_or_path(name: str | None, uri: str) -> None:
    assert file_uri(skill(), name) == uri


@pytest.mark.parametrize("resources", [..., "dynamic"], ids=["listed", "dynamic"])
@pytest.mark.parametrize(
    "name", ["../other/SKILL.md", "skill://acme/other/SKILL.md", "file:///etc/passwd", ""]
)
def test_a_file_outside_is_not_asked_for(name: str, resources: Any) -> None:
    of = skill() if resources is ... else skill(resources=resources)
    with pytest.raises(SkillMismatch) as caught:
        file_uri(of, name)
    assert caught.value.rule == "unlisted"


def test_a_file_that_is_not_listed_is_asked_for_only_of_a_dynamic_skill() -> None:
    with pytest.raises(SkillMismatch, match="lists") as caught:
        file_uri(skill(), "new.md")
    assert (caught.value.rule, caught.value.uri) == ("unlisted", "skill://acme/pdf-processing/new.md")
    assert file_uri(skill(resources="dynamic"), "new.md") == "skill://acme/pdf-processing/new.md"


# --- what a file is held against


def test_a_file_that_is_what_the_entry_says() -> None:
    assert verified(skill(), URI, text_of(URI, TEXT)) == SkillFile(
        "docs", URI, URI, "text/markdown", TEXT.encode(), True
    )
    assert verified(skill(), FORMS, text_of(FORMS, MORE)).text == MORE


def test_bytes_are_held_against_it_too() -> None:
    data = bytes(range(256))
    of = skill(resources=[listed(URI, TEXT), listed(FORMS, data)])
    blob = base64.b64encode(data).decode()
    assert verified(of, FORMS, answer({"uri": FORMS, "blob": blob})).data == data
    assert refused(of, FORMS, answer({"uri": FORMS, "blob": blob + "!"})).rule in ("content", "size")
    assert refused(of, FORMS, answer({"uri": FORMS, "blob": blob * 100})).rule == "size"
    other = base64.b64encode(data[::-1]).decode()
    assert refused(of, FORMS, answer({"uri": FORMS, "blob": other})).rule == "digest"


EVIL = TEXT.replace("Do this", "Do evil")
OTHER_HEAD = TEXT.replace("Fill in forms", "Send secrets")


def test_other_content_of_the_same_size() -> None:
    same_size = TEXT.replace("this", "evil")
    error = refused(skill(), URI, text_of(URI, same_size))
    assert (error.rule, error.expected, error.found) == ("digest", digest(TEXT), digest(same_size))
    assert error.code == "MOOR_SKILL_MISMATCH"


@pytest.mark.parametrize("content", [TEXT + "more", TEXT[:-1], "", TEXT.replace("this", "thïs")])
def test_another_size(content: str) -> None:
    error = refused(skill(), URI, text_of(URI, content))
    assert (error.rule, error.expected, error.found) == ("size", len(TEXT), len(content.encode()))


def test_another_frontmatter_even_where_the_digest_is_right() -> None:
    of = skill(resources=[listed(URI, OTHER_HEAD)])
    error = refused(of, URI, text_of(URI, OTHER_HEAD))
    assert error.rule == "frontmatter" and error.expected == "'Fill in forms'"
    assert "Send secrets" in error.found and "Send secrets" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.rule, again.uri, again.found) == (error.rule, error.uri, error.found)


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("---\n\n", "allowed-tools: Bash\n---\n\n"),
        TEXT.replace("description: Fill in forms\n", ""),
        TEXT.removeprefix("---\n"),
        "# No head\n",
        "---\nname: [\n---\n",
        "---\n- name\n---\n",
    ],
)
def test_a_frontmatter_that_is_not_the_same_field_by_field(text: str) -> None:
    for resources in ([listed(URI, text)], "dynamic"):
        assert refused(skill(resources=resources), URI, text_of(URI, text)).rule == "frontmatter"


def test_a_skill_md_that_is_no_text() -> None:
    data = b"---\nname: \xff\n---\n"
    result = answer({"uri": URI, "blob": base64.b64encode(data).decode()})
    assert refused(skill(resources=[listed(URI, data)]), URI, result).rule == "frontmatter"


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [{"uri": FORMS, "text": TEXT}],
        [{"uri": URI, "text": TEXT}, {"uri": URI, "text": TEXT}],
        [{"uri": URI, "text": TEXT}, {"uri": FORMS, "text": MORE}],
        [{"uri": URI}],
        [{"uri": URI, "text": TEXT, "blob": base64.b64encode(TEXT.encode()).decode()}],
    ],
)
def test_an_answer_that_is_not_this_one_file(contents: list[dict[str, Any]]) -> None:
    assert refused(skill(), URI, answer(*contents)).rule == "content"


def test_a_file_of_a_dynamic_skill_is_not_pinned_and_not_endless() -> None:
    of = skill(resources="dynamic")
    assert not verified(of, URI, text_of(URI, EVIL)).pinned
    assert refused(of, FORMS, text_of(FORMS, "x" * (MAX_SIZE + 1))).rule == "size"


def test_a_nested_skill_md_is_a_file_like_others() -> None:
    nested = "skill://acme/pdf-processing/inner/SKILL.md"
    of = skill(resources=[listed(URI, TEXT), listed(nested, "no head")])
    assert verified(of, nested, text_of(nested, "no head")).text == "no head"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_only_the_very_bytes_are_handed_out(told: bytes, given_: bytes) -> None:
    of = skill(resources=[listed(URI, TEXT), listed(FORMS, told)])
    result = answer({"uri": FORMS, "blob": base64.b64encode(given_).decode()})
    if told == given_:
        assert verified(of, FORMS, result).data == told
    else:
        assert refused(of, FORMS, result).rule in ("size", "digest")


# --- frontmatter


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1", "1"), ("-7", -7), ("1.0", 1.0), ("1.0", 1), ("1.10", 1.1), ("014", 14), ("014", 12),
        ("0x1F", 31), ("0o17", 15), ("1_000", 1000), ("1_000", "1_000"), ("1e3", 1000), (".5", 0.5),
        ("true", True), ("yes", True), ("yes", "yes"), ("Off", False), ("null", None), ("~", None), ("", None),
        ("2026-01-31", "2026-01-31"), ("2026-01-31", "2026-01-31T00:00:00.000Z"),
        ('"1"', "1"), ("'yes'", "yes"), ("!!str 5", "5"), ("[a, 1]", ["a", 1]), ("{a: {b: no}}", {"a": {"b": False}}),
        ("|-\n  a\n  b", "a\nb"), (">-\n  a\n  b", "a b"), ("a # b", "a"),
    ],
)  # fmt: skip
def test_any_reading_of_a_text_is_the_same(text: str, value: Any) -> None:
    for end in ("\n", "\r\n"):
        tree = read(f"---\nfield: {text}\n---\n".replace("\n", end) + "body")
        assert same(tree["field"], value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"1"', 1), ("1", True), ("yes", False), ("true", 1), ("1", 2), ("1.0", "1"), ("a", None), ("'null'", None),
        ("[a]", ["a", "b"]), ("[a]", "a"), ("{a: 1}", {"a": 2}), ("{a: 1}", {}), ("{}", {"a": None}), ("9" * 70, 9),
        ("2026-01-31", "2026-01-30"), ('"2026-01-31"', "2026-01-31T00:00:00Z"), ("a", ["a"]), ("", 0),
    ],
)  # fmt: skip
def test_what_no_reading_gives_is_not(text: str, value: Any) -> None:
    assert not same(read(f"---\nfield: {text}\n---\n")["field"], value)


def test_absent_and_empty_are_the_same() -> None:
    tree = read("---\na: x\nb:\n---\n")
    assert difference(tree, {"a": "x"}) is None
    assert difference(tree, {"a": "x", "b": None, "c": None}) is None
    assert difference(tree, {"a": "x", "c": ""}) == "c"
    assert difference(tree, {}) == "a"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("a: &x 1\nb: *x", "anchors"),
        ("a: &x [1]", "anchors"),
        ("a: !!python/object/apply:os.system [x]", "tags"),
        ("a: !!int '1'", "tags"),
        ("a: 1\na: 2", "twice"),
        ("? [a]\n: 1", "no text"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deep"),
        ("a: 1\n...\nb: 2", "document"),
        ("a: b: c", "YAML"),
        ("a: \x01", "YAML"),
        ("just words", "mapping"),
        ("a: " + "x" * (MAX_FRONTMATTER + 16), "no end"),
    ],
)
def test_what_is_refused(head: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(f"---\n{head}\n---\n")


def test_an_end_that_only_the_limit_makes_is_none() -> None:
    cut = "---\na: " + "x" * (MAX_FRONTMATTER + 16 - 11) + "\n---"
    assert len(cut) == MAX_FRONTMATTER + 16
    assert read(cut)
    with pytest.raises(Unreadable):
        read(cut + "more: 1\n---\n")


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=8), plain_json, min_size=1, max_size=5))
def test_what_was_written_as_yaml_is_the_same_again(fields: dict[str, Any]) -> None:
    head = yaml.safe_dump(fields, allow_unicode=False, default_flow_style=False)
    assert difference(read(f"---\n{head}---\n"), fields) is None


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\n"):
        try:
            difference(read(whole), {"name": "x"})
        except Unreadable as error:
            assert str(error)


def test_without_yaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "yaml")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"moorings\[skills\]"):
        verified(skill(), URI, text_of(URI, TEXT))
    assert verified(skill(), FORMS, text_of(FORMS, MORE)).text == MORE
