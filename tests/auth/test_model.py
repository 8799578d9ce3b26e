"""The plain data: secrets stay in their wrappers, documents are read by their meaning, records survive a store."""

from __future__ import annotations

import copy
import pickle
import traceback
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from moorings._secret import Secret, decode_hook, show_hook
from moorings.auth.model import (
    LOCAL,
    BadRecord,
    Credential,
    CredentialKey,
    Registration,
    ServerMetadata,
    decode_credential,
    decode_registration,
    encode_credential,
    encode_registration,
    read_header,
    read_resource_metadata,
    read_server_metadata,
    registration_key,
)

HIDDEN = "s3cr3t-v4lue"


def shown(value: object) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(value)
        console.print_json(data=None)
    try:
        raise ValueError(value)
    except ValueError as error:
        trace = "".join(traceback.format_exception(error))
    return f"{value!r} {value!s} {value} {[value]} {trace} {captured.get()} {pickle.dumps(value)!r}"


def credential(**fields: Any) -> Credential:
    values: dict[str, Any] = {
        "key": CredentialKey(LOCAL, "https://as.example", "me", "https://mcp.example/mcp"),
        "registration": Registration(
            issuer="https://as.example",
            client_id="me",
            client_secret=Secret(HIDDEN + "1"),
            registration_access_token=Secret(HIDDEN + "2"),
            signing_key=Secret(HIDDEN + "3"),
            extra={"client_name": "ü"},
        ),
        "metadata": ServerMetadata(issuer="https://as.example", scopes_supported=("a",)),
        "access_token": Secret(HIDDEN + "4"),
        "refresh_token": Secret(HIDDEN + "5"),
        "dpop_jwk": Secret(HIDDEN + "6"),
        "obtained_at": 12.5,
        "scopes": ("a",),
    }
    return Credential(**{**values, **fields})


def test_f16_5_a_secret_shows_itself_nowhere() -> None:
    assert HIDDEN not in shown(Secret(HIDDEN))
    assert f"{Secret(HIDDEN):>20}" == "…"
    assert HIDDEN not in shown(credential().registration)
    assert HIDDEN not in repr(credential())
    assert HIDDEN not in str(vars(type(Secret(HIDDEN))))
    assert Secret(HIDDEN).reveal() == HIDDEN


def test_f16_5_json_for_people_has_dots_where_secrets_are() -> None:
    text = msgspec.json.encode(credential(), enc_hook=show_hook).decode()
    assert HIDDEN not in text and text.count('"…"') == 6
    with pytest.raises(TypeError):
        msgspec.json.encode(credential())  # without a hook nothing is written at all


def test_a_pickled_secret_leaves_its_text_behind() -> None:
    back = pickle.loads(pickle.dumps(Secret(HIDDEN)))
    assert repr(back) == "Secret(…)"
    assert back != Secret(HIDDEN)
    with pytest.raises(ValueError, match="stayed behind"):
        back.reveal()


def test_a_secret_does_not_change_and_compares_by_its_text() -> None:
    secret = Secret("a")
    with pytest.raises(AttributeError):
        secret._text = "b"
    with pytest.raises(AttributeError):
        del secret._text
    assert secret == Secret("a") != Secret("b")
    assert secret != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert copy.deepcopy(secret) is secret
    assert not Secret("")
    with pytest.raises(TypeError):
        Secret(None)  # type: ignore[arg-type]


def test_an_optional_secret_decodes() -> None:
    record = msgspec.convert(
        {"issuer": "i", "client_id": "c", "client_secret": "x"}, Registration, dec_hook=decode_hook
    )
    assert record.client_secret == Secret("x")
    assert msgspec.convert({"issuer": "i", "client_id": "c"}, Registration).client_secret is None


def test_a_credential_survives_a_store() -> None:
    before = credential(expires_at=99.0, reason="because", state="refused", version=7)
    assert decode_credential(encode_credential(before)) == before
    assert decode_registration(encode_registration(before.registration)) == before.registration


def test_the_header_of_a_record_holds_no_secret() -> None:
    for data in (encode_credential(credential()), encode_registration(credential().registration)):
        header = read_header(data)
        assert header["issuer"] == "https://as.example" and header["client_id"] == "me"
        assert HIDDEN not in str(header)


def test_f10_14_a_record_cut_off_anywhere_is_refused_and_quotes_nothing() -> None:
    whole = encode_credential(credential())
    for end in range(len(whole) - 2):
        with pytest.raises(BadRecord) as caught:
            decode_credential(whole[:end])
        assert HIDDEN not in "".join(traceback.format_exception(caught.value))
    for damaged in (b"", b"{}", b"null\n{}", whole + b"}", whole.replace(b'"state":"good"', b'"state":7')):
        with pytest.raises(BadRecord):
            decode_credential(damaged)
    with pytest.raises(BadRecord):
        decode_registration(whole)


@given(st.lists(st.text(), min_size=4, max_size=4), st.lists(st.text(), min_size=4, max_size=4))
def test_the_digest_tells_keys_apart(one: list[str], two: list[str]) -> None:
    assert (CredentialKey(*one).digest() == CredentialKey(*two).digest()) == (one == two)


def test_f11_14_a_registration_is_of_an_issuer_and_a_redirect_uri() -> None:
    names = {registration_key(i, r) for i in ("https://a", "https://a/") for r in ("", "http://127.0.0.1:1/")}
    assert len(names) == 4


@pytest.mark.parametrize(
    ("document", "issuer", "problems"),
    [
        ({"issuer": "https://a", "token_endpoint": "https://a/t"}, "https://a", 0),
        ({"issuer": "https://a/", "scopes_supported": None}, "https://a/", 0),
        ({"issuer": "https://a", "scopes_supported": "a  b"}, "https://a", 0),
        ({"issuer": "https://a", "scopes_supported": {"a": 1}, "token_endpoint": []}, "https://a", 2),
        ({"issuer": "https://a", "client_id_metadata_document_supported": "maybe"}, "https://a", 1),
        ({"issuer": ""}, None, 0),
        ({"issuer": 7}, None, 0),
        ({}, None, 0),
        ([], None, 0),
        ("https://a", None, 0),
        (None, None, 0),
    ],
)
def test_server_metadata_is_read_by_its_meaning(document: object, issuer: str | None, problems: int) -> None:
    read = read_server_metadata(document)
    assert (read.issuer if read else None) == issuer
    assert len(read.problems if read else ()) == problems


def test_lists_keep_what_can_be_read() -> None:
    read = read_resource_metadata({"resource": "r", "authorization_servers": ["https://a", 7, None, ""]})
    assert read is not None and read.authorization_servers == ("https://a",)
    assert read.scopes_supported is None
    empty = read_resource_metadata({"resource": "r", "scopes_supported": []})
    assert empty is not None and empty.scopes_supported == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.sampled_from(ServerMetadata.__struct_fields__), json_values))
def test_no_document_breaks_the_reader(document: dict[str, Any]) -> None:
    read = read_server_metadata(document)
    if read is not None:
        data = msgspec.json.encode(read)
        assert msgspec.json.decode(data, type=ServerMetadata) == read
