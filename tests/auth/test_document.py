"""The client document of servers: one for all that use it, and none that would not be true."""

from __future__ import annotations

from typing import Any

import pytest

from moorings import AuthSettings, ConfigError, HttpServer, client_document

URL = "https://me.example/client.json"


def server(**auth: Any) -> HttpServer:
    return HttpServer(
        url="https://mcp.example/mcp", auth=AuthSettings(**{"client_metadata_url": URL, **auth})
    )


def test_a_document_of_a_server() -> None:
    assert client_document([server(client_name="Mine")]) == {
        "client_id": URL,
        "client_name": "Mine",
        "redirect_uris": ["http://127.0.0.1:33418/callback"],
        "grant_types": [
            "authorization_code",
            "refresh_token",
            "urn:ietf:params:oauth:grant-type:device_code",
        ],
        "response_types": ["code"],
        "application_type": "native",
        "token_endpoint_auth_method": "none",
    }


def test_a_document_of_several_servers_has_all_their_redirect_uris() -> None:
    servers = [server(), server(redirect_port=4711), server(), server(redirect_uri="https://me.example/back")]
    assert client_document(servers)["redirect_uris"] == [
        "http://127.0.0.1:33418/callback",
        "http://127.0.0.1:4711/callback",
        "https://me.example/back",
    ]


def test_what_is_given_takes_the_place_of_what_servers_say() -> None:
    document = client_document(
        [AuthSettings(client_metadata_url=URL)],
        redirect_uris=["https://me.example/back"],
        jwks_uri="https://me.example/keys",
    )
    assert document["redirect_uris"] == ["https://me.example/back"]
    assert document["application_type"] == "web"
    assert (document["token_endpoint_auth_method"], document["jwks_uri"]) == (
        "private_key_jwt",
        "https://me.example/keys",
    )


KEYED = {"auth_method": "private_key_jwt", "private_key_file": "key.pem"}


@pytest.mark.parametrize(
    ("servers", "more", "said"),
    [
        ([], {}, "no settings"),
        ([AuthSettings()], {}, "no URL for the document"),
        ([server(), server(client_metadata_url="https://me.example/2.json")], {}, "several client_metadata_url"),
        ([server(), server(client_name="B")], {}, "several client_name"),
        ([server(**KEYED)], {}, "where the public keys lie"),
        ([server()], {"jwks_uri": "https://me.example/keys"}, "here it is not"),
        ([server(**KEYED), server()], {"jwks_uri": "https://me.example/keys"}, "here it is not"),
        ([server()], {"redirect_uris": ["http://me.example/back"]}, "redirect URI"),
        ([server(**KEYED)], {"jwks_uri": "http://127.0.0.1/keys"}, "no https URL"),
    ],
)  # fmt: skip
def test_what_would_not_be_true_is_no_document(servers: list[Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        client_document(servers, **more)
