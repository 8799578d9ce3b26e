"""The rules of the two eras: what each answer to the probe means, and what one era never says in the other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings.wire import eras
from moorings.wire.eras import (
    HANDSHAKE_REVISIONS,
    LATEST_HANDSHAKE,
    LATEST_MODERN,
    META_CAPABILITIES,
    META_CLIENT,
    META_LOG_LEVEL,
    META_VERSION,
    MODERN_REVISIONS,
    MRTR_METHODS,
    Era,
    Verdict,
    VerdictKind,
    client_capabilities,
    envelope,
    judge_probe_error,
    judge_probe_result,
    listen_filter,
    method_exists,
    supported_list,
)
from moorings.wire.jsonrpc import RpcError, decode_error

UNKNOWN = "2099-01-01"


def refused(code: int, data: Any = None) -> RpcError:
    return RpcError(code, "refused", data)


def test_the_revisions_are_those_of_the_specification() -> None:
    assert HANDSHAKE_REVISIONS == ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
    assert (LATEST_HANDSHAKE, LATEST_MODERN) == ("2025-11-25", "2026-07-28")
    assert not set(HANDSHAKE_REVISIONS) & set(MODERN_REVISIONS)


# --- the probe is refused


@pytest.mark.parametrize(
    "code",
    [
        *(-32601, -32602, -32600, -32700, -32603, -32000, -32001, -32002, -32019, -32023, -32042, -32099),
        *(0, 1, -1, 400, 404, 500, 32022, -32022 * 10, 2**63),
    ],
)
def test_f9_3_any_error_but_a_modern_one_means_the_handshake_era(code: int) -> None:
    """F9.3: never keyed on one code, whatever its data says."""
    for data in (None, {}, {"supported": [LATEST_MODERN]}, "text", [LATEST_MODERN]):
        assert judge_probe_error(refused(code, data), LATEST_MODERN) == Verdict(VerdictKind.HANDSHAKE)


@given(st.integers(), st.none() | st.text() | st.dictionaries(st.text(), st.lists(st.text())))
def test_f9_3_every_code_has_a_verdict(code: int, data: Any) -> None:
    """F9.3: no answer of a peer is beyond judging."""
    verdict = judge_probe_error(refused(code, data), LATEST_MODERN)
    assert (verdict.kind is VerdictKind.HANDSHAKE) or code in (-32020, -32021, -32022)


@pytest.mark.parametrize(
    "raw", [b'"no"', b"null", b"{}", b'{"code":"bad"}', b'{"message":"Method not found"}', b"\xff"]
)
def test_f9_3_an_error_of_no_known_shape_means_the_handshake_era(raw: bytes) -> None:
    """F9.3: an old server may answer the probe in any way at all."""
    assert judge_probe_error(decode_error(raw), LATEST_MODERN).kind is VerdictKind.HANDSHAKE


@pytest.mark.parametrize("code", [-32020, -32021])
@pytest.mark.parametrize("data", [None, {"requiredCapabilities": {"sampling": {}}}, {"supported": ["x"]}])
def test_a_modern_error_about_something_else_settles_the_era(code: int, data: Any) -> None:
    """Recognised modern errors mean modern at the revision asked for, and no ``initialize``."""
    assert judge_probe_error(refused(code, data), LATEST_MODERN) == Verdict(VerdictKind.MODERN, LATEST_MODERN)


@pytest.mark.parametrize(
    ("listed", "kind", "revision"),
    [
        (["2025-11-25"], VerdictKind.HANDSHAKE, ""),
        (["2024-11-05", UNKNOWN], VerdictKind.HANDSHAKE, ""),
        ([UNKNOWN], VerdictKind.INCOMPATIBLE, ""),
        (["DRAFT-2026-v1"], VerdictKind.INCOMPATIBLE, ""),
        ([], VerdictKind.INCOMPATIBLE, ""),
        ([LATEST_MODERN], VerdictKind.INCOMPATIBLE, ""),
        ([LATEST_MODERN, "2025-11-25"], VerdictKind.INCOMPATIBLE, ""),
    ],
)
def test_f9_4_an_unsupported_version_with_a_list(listed: list[str], kind: VerdictKind, revision: str) -> None:
    """F9.4: a mutual version is used, or there is an error that can name both lists; a server that refuses the very
    revision it lists has nothing more to offer."""
    verdict = judge_probe_error(refused(-32022, {"supported": listed, "requested": "x"}), LATEST_MODERN)
    assert verdict == Verdict(kind, revision, tuple(listed))


def test_f9_4_a_probe_at_a_revision_the_server_lacks_is_asked_again_at_one_it_has() -> None:
    """F9.4: -32022 to a version we only tried, with one in the list that we both speak."""
    verdict = judge_probe_error(refused(-32022, {"supported": [UNKNOWN, LATEST_MODERN]}), UNKNOWN)
    assert verdict == Verdict(VerdictKind.ASK_AGAIN, LATEST_MODERN, (UNKNOWN, LATEST_MODERN))


@pytest.mark.parametrize(
    "data",
    [None, {}, [], "2025-11-25", 5, {"supported": None}, {"supported": "2025-11-25"}, {"supported": {}}],
)
def test_f9_4_an_unsupported_version_without_a_list_is_modern_and_incompatible(data: Any) -> None:
    """F9.4: the code is a modern one, so there is no ``initialize``; and no version is known to try."""
    assert supported_list(data) is None
    assert judge_probe_error(refused(-32022, data), LATEST_MODERN) == Verdict(VerdictKind.INCOMPATIBLE)


@pytest.mark.parametrize(
    ("data", "listed"),
    [
        ({"supported": []}, ()),
        ({"supported": ["a", 5, None, ["b"], "c"]}, ("a", "c")),
        ({"supported": ["a"], "requested": "b"}, ("a",)),
    ],
)
def test_only_strings_of_a_list_of_versions_count(data: Any, listed: tuple[str, ...]) -> None:
    assert supported_list(data) == listed


# --- the probe is answered, and every combination of lists


EVERYTHING = (*HANDSHAKE_REVISIONS, *MODERN_REVISIONS, UNKNOWN, "DRAFT-2026-v1")
COMBINATIONS = [
    tuple(version for version, there in zip(EVERYTHING, chosen, strict=True) if there)
    for chosen in product((False, True), repeat=len(EVERYTHING))
]


@pytest.mark.parametrize("backwards", [False, True])
def test_every_combination_of_supported_versions_in_a_discovery(backwards: bool) -> None:
    """The revision asked for if it is listed; else one of the handshake era; else none, and both lists are known. The
    order of the list means nothing. A discovery that lists nothing tells nothing, so it is taken as old."""
    for combination in COMBINATIONS:
        listed = combination[::-1] if backwards else combination
        verdict = judge_probe_result(listed, LATEST_MODERN)
        if LATEST_MODERN in listed:
            assert verdict == Verdict(VerdictKind.MODERN, LATEST_MODERN, listed)
        elif set(listed) & set(HANDSHAKE_REVISIONS) or not listed:
            assert verdict == Verdict(VerdictKind.HANDSHAKE, "", listed)
        else:
            assert verdict == Verdict(VerdictKind.INCOMPATIBLE, "", listed)


def test_every_combination_of_supported_versions_in_a_refusal() -> None:
    for listed in COMBINATIONS:
        verdict = judge_probe_error(refused(-32022, {"supported": list(listed)}), LATEST_MODERN)
        old_only = LATEST_MODERN not in listed and set(listed) & set(HANDSHAKE_REVISIONS)
        kind = VerdictKind.HANDSHAKE if old_only else VerdictKind.INCOMPATIBLE
        assert verdict == Verdict(kind, "", listed)


def test_the_newest_mutual_revision_is_taken_when_we_speak_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the day on which there are two modern revisions; asked is the newest of ours, as the probe does."""
    monkeypatch.setattr(eras, "MODERN_REVISIONS", ("2026-07-28", "2027-01-01", "2027-06-01"))
    asked = "2027-06-01"

    def judge(*listed: str) -> tuple[VerdictKind, str]:
        verdict = judge_probe_result(listed, asked)
        return verdict.kind, verdict.revision

    assert judge("2026-07-28", "2027-06-01") == (VerdictKind.MODERN, "2027-06-01")
    assert judge("2026-07-28", "2027-01-01") == (VerdictKind.ASK_AGAIN, "2027-01-01")
    assert judge("2027-01-01", "2026-07-28", "2025-11-25") == (VerdictKind.ASK_AGAIN, "2027-01-01")
    assert judge("2026-07-28") == (VerdictKind.ASK_AGAIN, "2026-07-28")
    assert judge("2025-11-25") == (VerdictKind.HANDSHAKE, "")


@given(st.lists(st.text()), st.text())
def test_a_verdict_never_names_a_revision_that_is_not_mutual(listed: list[str], asked: str) -> None:
    for verdict in (
        judge_probe_result(listed, asked),
        judge_probe_error(refused(-32022, {"supported": listed}), asked),
    ):
        if verdict.revision:
            assert verdict.revision in listed and verdict.revision in MODERN_REVISIONS


# --- what is said in which era


@pytest.mark.parametrize(
    ("method", "handshake", "modern"),
    [
        ("initialize", True, False),
        ("ping", True, False),
        ("logging/setLevel", True, False),
        ("resources/subscribe", True, False),
        ("resources/unsubscribe", True, False),
        ("notifications/initialized", True, False),
        ("notifications/roots/list_changed", True, False),
        ("server/discover", False, True),
        ("subscriptions/listen", False, True),
        ("tools/list", True, True),
        ("tools/call", True, True),
        ("resources/list", True, True),
        ("resources/templates/list", True, True),
        ("resources/read", True, True),
        ("prompts/list", True, True),
        ("prompts/get", True, True),
        ("completion/complete", True, True),
        ("notifications/cancelled", True, True),
        ("vendor/own", True, True),
    ],
)
def test_f9_7_a_method_is_said_only_where_it_exists(method: str, handshake: bool, modern: bool) -> None:
    """F9.7: no ping and no logging/setLevel at a modern server; no discovery at an old one."""
    assert method_exists(method, Era.HANDSHAKE) is handshake
    assert method_exists(method, Era.MODERN) is modern


def test_questions_within_an_answer_are_for_three_methods() -> None:
    assert sorted(MRTR_METHODS) == ["prompts/get", "resources/read", "tools/call"]
    assert all(method_exists(method, Era.MODERN) for method in MRTR_METHODS)


@pytest.mark.parametrize("era", list(Era))
def test_f13_11_only_what_is_configured_is_declared(era: Era) -> None:
    """F13.11: strict servers refuse keys they do not know, so there is none that nobody asked for."""
    for roots, sampling, form, url in product((False, True), repeat=4):
        declared = client_capabilities(
            roots=roots, sampling=sampling, elicitation_form=form, elicitation_url=url, era=era
        )
        assert set(declared) == {
            *(["roots"] if roots else []),
            *(["sampling"] if sampling else []),
            *(["elicitation"] if form or url else []),
        }
        if roots:
            # The notice of changed roots is gone in the modern era.
            assert declared["roots"] == ({} if era is Era.MODERN else {"listChanged": True})
        if form or url:
            # An empty object means form alone: what 2025-06-18 knows.
            modes = {"form": {}} if form else {}
            assert declared["elicitation"] == ({**modes, "url": {}} if url else {})


def test_the_envelope_of_a_modern_request() -> None:
    client = {"name": "moorings", "version": "1"}
    assert envelope(LATEST_MODERN, {"sampling": {}}, client) == {
        META_VERSION: LATEST_MODERN,
        META_CAPABILITIES: {"sampling": {}},
        META_CLIENT: client,
    }
    assert envelope(LATEST_MODERN, {}, client, "debug")[META_LOG_LEVEL] == "debug"
    assert META_VERSION == "io.modelcontextprotocol/protocolVersion"
    assert META_CAPABILITIES == "io.modelcontextprotocol/clientCapabilities"
    assert META_CLIENT == "io.modelcontextprotocol/clientInfo"
    assert META_LOG_LEVEL == "io.modelcontextprotocol/logLevel"


def test_the_filter_of_a_subscription_asks_for_nothing_unasked() -> None:
    for tools, prompts, resources, uris in product(
        (False, True), (False, True), (False, True), ((), ("b", "a"))
    ):
        wanted = listen_filter(tools=tools, prompts=prompts, resources=resources, uris=uris)
        expected: dict[str, Any] = {}
        if tools:
            expected["toolsListChanged"] = True
        if prompts:
            expected["promptsListChanged"] = True
        if resources:
            expected["resourcesListChanged"] = True
        if uris:
            expected["resourceSubscriptions"] = ["a", "b"]
        assert wanted == expected
