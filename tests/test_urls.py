"""What is shown of a URL, wherever one is shown: in errors, logs, reprs and statuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorings._urls import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example/mcp", "https://a.example/mcp"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/"),
        ("https://u:s3cret@a.example:8443/mcp", "https://…@a.example:8443/mcp"),
        ("socks5://u:s3cret@proxy:1080", "socks5://…@proxy:1080"),
        ("http://s3cret@s3cret@host/", "http://…@host/"),
        ("https://a.example/mcp?key=s3cret&b=2", "https://a.example/mcp?key=…&b=…"),
        ("https://a.example/mcp?s3cret", "https://a.example/mcp?…"),
        ("https://a.example/mcp?b=2&s3cret;c=1", "https://a.example/mcp?b=…&…;c=…"),
        ("https://a.example/cb?x=1#token=s3cret", "https://a.example/cb?x=…"),
        ("https://h.example/api/s/3fa85f6457174562b3s3cret963f66afa6/mcp", "https://h.example/api/s/…/mcp"),
        ("http://[bad", "(a URL that cannot be read)"),
        ("http://h:99999/x", "(a URL that cannot be read)"),
        ("user:s3cret@proxy:3128", "(a URL without a host)"),
        ("s3cret", "(a URL without a host)"),
        ("", "(a URL without a host)"),
        ("http://a/\x1b[2J", "http://a/?[2J"),
        ("http://a/" + "x" * 400, "http://a/" + "x" * 291 + "…"),
    ],
)
def test_f16_5_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    """F16.5: user, password, fragment, values of the query, and parts of a path that may be keys."""
    assert shown_url(url) == shown
    assert "s3cret" not in shown_url(url)


@given(st.text(max_size=1000))
def test_what_is_shown_is_one_printable_line(url: str) -> None:
    shown = shown_url(f"http://h/{url}")
    assert len(shown) <= 301
    assert shown.isprintable()
