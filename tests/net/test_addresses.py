"""Origins and the choice of a proxy, as tables (F14.8)."""

from __future__ import annotations

import pytest

from moorings.errors import MisuseError
from moorings.net import NetSettings, is_loopback, origin
from moorings.net.addresses import bypasses, is_odd_address, no_proxy_list, proxy_for


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://A.Example/mcp", "https://a.example"),
        ("HTTPS://a.example:443/", "https://a.example"),
        ("http://a.example:443/", "http://a.example:443"),
        ("http://[::1]:8080/x", "http://[::1]:8080"),
        ("https://u:p@a.example/", "https://a.example"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


@pytest.mark.parametrize(
    "url",
    ["", "/mcp", "ftp://a", "https://", "http://a\\@b/", "http://a\r\nb/", "http://a b/", "http://a:x/"],
)
def test_what_parsers_may_read_differently_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError):
        origin(url)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("app.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("notlocalhost", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("host", "odd"),
    [
        ("127.0.0.1", False),
        ("a.example", False),
        ("::1", False),
        ("1.example", False),
        ("127.1", True),
        ("2130706433", True),
        ("0x7f000001", True),
        ("0177.0.0.1", True),
        ("127.0.0.1.", False),
        ("a.1", True),
        ("a.0x", True),
    ],
)
def test_f16_1_odd_forms_of_addresses_are_seen(host: str, odd: bool) -> None:
    assert is_odd_address(host) is odd


@pytest.mark.parametrize(
    ("host", "port", "entries", "expected"),
    [
        ("a.example.com", 443, "*", True),
        ("a.example.com", 443, "", False),
        ("a.example.com", 443, "a.example.com", True),
        ("A.Example.COM.", 443, "a.example.com", True),
        ("a.example.com", 443, "example.com", True),
        ("a.example.com", 443, ".example.com", True),
        ("a.example.com", 443, "*.example.com", True),
        ("example.com", 443, ".example.com", True),
        ("badexample.com", 443, "example.com", False),
        ("example.com.evil", 443, "example.com", False),
        ("a.example.com", 443, "a.example.com:443", True),
        ("a.example.com", 8443, "a.example.com:443", False),
        ("a.example.com", 8443, "x, .example.com:8443 y", True),
        ("10.1.2.3", 80, "10.0.0.0/8", True),
        ("11.1.2.3", 80, "10.0.0.0/8", False),
        ("10.1.2.3", 80, "10.1.2.3", True),
        ("10.1.2.3", 80, "10.1.2.3:81", False),
        ("10.1.2.30", 80, "10.1.2.3", False),
        ("::ffff:10.1.2.3", 80, "10.0.0.0/8", True),
        ("fd00::1", 80, "fd00::/8", True),
        ("fd00::1", 80, "10.0.0.0/8", False),
        ("fd00::1", 80, "fd00::1", True),
        ("fd00::1", 8080, "[fd00::1]:8080", True),
        ("fd00::1", 80, "[fd00::1]:8080", False),
        ("example.com", 80, "10.0.0.0/8,bad/cidr,:80,.", False),
        ("name", 80, "name/8", False),
    ],
)
def test_f14_8_no_proxy_by_name_suffix_port_and_network(
    host: str, port: int, entries: str, expected: bool
) -> None:
    assert bypasses(host, port, no_proxy_list(entries)) is expected


P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("scheme", "host", "proxy", "environ", "expected"),
    [
        ("https", "a.com", None, {}, None),
        ("https", "a.com", None, {"HTTPS_PROXY": P}, P),
        ("https", "a.com", None, {"https_proxy": P, "HTTPS_PROXY": "http://other"}, P),
        ("https", "a.com", None, {"HTTP_PROXY": P}, None),
        ("http", "a.com", None, {"HTTP_PROXY": P}, P),
        ("http", "a.com", None, {"http_proxy": P}, P),
        ("http", "a.com", None, {"HTTP_PROXY": P, "REQUEST_METHOD": "GET"}, None),
        ("http", "a.com", None, {"http_proxy": P, "REQUEST_METHOD": "GET"}, P),
        ("https", "a.com", None, {"ALL_PROXY": P}, P),
        ("https", "a.com", None, {"all_proxy": "socks5h://s", "ALL_PROXY": P}, "socks5h://s"),
        ("https", "a.com", None, {"HTTPS_PROXY": "", "ALL_PROXY": P}, P),
        ("https", "a.com", None, {"HTTPS_PROXY": "proxy:3128"}, P),
        ("https", "a.com", None, {"HTTPS_PROXY": P, "NO_PROXY": "a.com"}, None),
        ("https", "a.com", None, {"HTTPS_PROXY": P, "no_proxy": "a.com", "NO_PROXY": "b.com"}, None),
        ("https", "a.com", "", {"HTTPS_PROXY": P}, None),
        ("https", "a.com", P, {"NO_PROXY": "a.com"}, P),
        ("https", "b.com", P, {}, None),
        ("http", "localhost", P, {}, None),
        ("http", "127.0.0.1", None, {"HTTP_PROXY": P}, None),
        ("http", "::1", None, {"ALL_PROXY": P}, None),
    ],
)
def test_f14_8_which_proxy(
    scheme: str, host: str, proxy: str | None, environ: dict[str, str], expected: str | None
) -> None:
    found = proxy_for(scheme, host, 443, proxy=proxy, no_proxy=("b.com",), environ=environ)
    assert found == expected


def test_settings_are_equal_by_value_and_hide_their_secrets() -> None:
    one = NetSettings(proxy="http://u:s3cret@proxy:1", client_cert="c", client_key_password="s3cret")
    assert one == NetSettings(proxy="http://u:s3cret@proxy:1", client_cert="c", client_key_password="s3cret")
    assert len({one, NetSettings(), NetSettings()}) == 2
    assert "s3cret" not in repr(one) + str(one.__rich_repr__())


@pytest.mark.parametrize(
    "bad",
    [
        {"client_key": "k"},
        {"dial": -1},
        {"keep_alive": float("nan")},
        {"max_connections": 0},
        {"proxy": "ftp://u:s3cret@p"},
        {"proxy": "http://"},
        {"proxy": "proxy:3128"},
        {"proxy": "http://p:99999"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(MisuseError) as refused:
        NetSettings(**bad)  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)
