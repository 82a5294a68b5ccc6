"""Tests of which web pages may open the portal's WebSockets."""

from __future__ import annotations

import pytest

from portal.live.origins import same_origin


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("https://portal.example", "portal.example", True),
        ("https://portal.example", "portal.example:443", True),
        ("http://portal.example:80", "portal.example", True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://Portal.Example", "portal.example", True),
        ("http://127.0.0.1:20001", "127.0.0.1:8000", False),
        ("http://portal.example", "portal.example:8000", False),
        ("https://evil.example", "portal.example", False),
        ("https://portal.example.evil.example", "portal.example", False),
        ("null", "portal.example", False),
        ("", "", False),
        ("file://", "", False),
        ("http://portal.example:many", "portal.example", False),
    ],
)
def test_an_origin_is_a_host_and_a_port(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same
