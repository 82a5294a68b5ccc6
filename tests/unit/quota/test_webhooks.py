"""Tests of webhooks: signatures, the addresses that may be called, and who gets which notification."""

from __future__ import annotations

import hmac
import ipaddress
import time
from pathlib import Path
from typing import Any

import pytest

from quota.notifications.notice_kinds import wanted
from quota.notifications.webhook_client import may_call, receiver
from quota.notifications.webhooks import secret_make, sign
from quota.vocabulary.errors import Rejected
from tests.webhook_receiver import is_signed

BODY = b'{"id":"notice-1"}'


def test_a_signature_is_hmac_sha256_of_time_and_body() -> None:
    header = sign(["secret"], BODY, at_s=1764028800)
    mark = hmac.new(b"secret", b"1764028800." + BODY, "sha256").hexdigest()
    assert header == f"t=1764028800,v1={mark}"
    assert is_signed("secret", header, BODY, now_s=1764028801)


@pytest.mark.parametrize(
    ("key", "body", "now_s", "header"),
    [
        pytest.param("other", BODY, 0, None, id="another-key"),
        pytest.param("secret", BODY + b" ", 0, None, id="another-body"),
        pytest.param("secret", BODY, 301, None, id="too-old"),
        pytest.param("secret", BODY, -301, None, id="from-the-future"),
        pytest.param("secret", BODY, 0, "", id="nothing"),
        pytest.param("secret", BODY, 0, "t=1000", id="no-mark"),
        pytest.param("secret", BODY, 0, "t=1000,v1=ü", id="no-hex"),
        pytest.param("secret", BODY, 0, "t=²,v1=00", id="no-number"),
        pytest.param("secret", BODY, 0, "t=1000,t=1000,v1=00", id="two-times"),
    ],
)
def test_what_is_not_signed(key: str, body: bytes, now_s: int, header: str | None) -> None:
    given = header if header is not None else sign(["secret"], BODY, at_s=1000)
    assert not is_signed(key, given, body, now_s=1000 + now_s)


def test_the_documentation_shows_how_to_verify() -> None:
    readme = (Path(__file__).resolve().parents[3] / "quota" / "README.md").read_text()
    shown: dict[str, Any] = {}
    exec(readme.partition("```python\n")[2].partition("```")[0], shown)
    header = sign(["new", "old"], BODY, at_s=int(time.time()))
    assert [shown["is_from_borg"](key, header, BODY) for key in ("new", "old", "else")] == [True, True, False]
    assert not shown["is_from_borg"]("new", sign(["new"], BODY, at_s=1000), BODY)


def test_both_secrets_sign_while_one_takes_over() -> None:
    old, new = secret_make(), secret_make()
    header = sign([new, old], BODY, at_s=1000)
    assert [is_signed(key, header, BODY, now_s=1000) for key in (old, new)] == [True, True]


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_the_open_internet_may_be_called(address: str) -> None:
    assert may_call(address, ())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "64:ff9b:1::7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
        "5f00::1",
        "168.63.129.16",
        "192.0.0.192",
        "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110",
    ],
)
def test_what_only_the_portal_can_reach_may_not(address: str) -> None:
    assert not may_call(address, ())


def test_networks_that_the_settings_allow_may_be_called() -> None:
    allowed = (ipaddress.ip_network("10.1.0.0/16"),)
    assert may_call("10.1.2.3", allowed)
    assert may_call("::ffff:10.1.2.3", allowed)
    assert not may_call("10.2.2.3", allowed)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/",
        "file:///etc/passwd",
        "https://",
        "//h/",
        "h",
        "",
        "https://u:p@h/",
        "https://u@h/",
        "https://h/#x",
        "https://h:99999/",
        "https://h:x/",
        "https://h/a b",
        "https://h/\r\nX: y",
        "https://[::1",
        "https://h/ü",
        "https://" + "a" * 70 + ".x/",
        "javascript:alert(1)",
    ],
)
def test_input_that_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(Rejected) as refused:
        receiver(url)
    assert list(refused.value.fields) == ["target"]


def test_an_address_is_taken_apart() -> None:
    assert receiver("https://hooks.example/in?a=b") == (True, "hooks.example", 443, "/in?a=b")
    assert receiver("http://[2001:db8::1]:8080") == (False, "2001:db8::1", 8080, "/")


@pytest.mark.parametrize(
    ("kinds", "level", "answer"),
    [
        ((), "info", True),
        ((), "urgent", False),
        (("order",), "info", True),
        (("order.placed",), "warning", True),
        (("order.pla",), "info", False),
        (("budget", "order"), "info", True),
        (("budget",), "info", False),
    ],
)
def test_a_user_who_wants_a_warning_that_an_order_was_placed(kinds: tuple[str, ...], level: str, answer: bool) -> None:
    assert wanted("order.placed", "warning", kinds=kinds, from_level=level) is answer
