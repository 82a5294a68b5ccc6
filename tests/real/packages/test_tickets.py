"""Tests of package tickets, the signed permissions with which one machine fetches a package from another."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from borglet.identity.signatures import authority_keys
from borglet.messages import PackageTicket
from borglet.packages.tickets import TicketRefused, check, issue
from tests.real.borglet.cell import make_authority

DIGEST = "sha256:" + "a" * 64
KEY = ec.generate_private_key(ec.SECP256R1())
KEYS = [ec.generate_private_key(ec.SECP256R1()).public_key(), KEY.public_key()]
TICKET = PackageTicket(DIGEST, "m1", 1000.0)


def test_a_ticket_opens_its_package_until_it_expires() -> None:
    text = issue(KEY, TICKET)
    assert check(text, KEYS, digest=DIGEST, now=999.0) == TICKET
    with pytest.raises(TicketRefused, match="expired 1 s ago"):
        check(text, KEYS, digest=DIGEST, now=1001.0)
    with pytest.raises(TicketRefused, match="is for sha256:a"):
        check(text, KEYS, digest="sha256:" + "b" * 64, now=1.0)


def test_a_ticket_of_another_authority_or_with_other_claims_is_refused() -> None:
    text = issue(KEY, TICKET)
    other = ec.generate_private_key(ec.SECP256R1())
    claims = base64.urlsafe_b64encode(b'{"digest":"x","machine":"m","expires_at":9e9}').rstrip(b"=").decode()
    forged = [issue(other, TICKET), f"{claims}.{text.partition('.')[2]}", f"{text[:-2]}AA"]
    for each in (*forged, "", ".", "a.b", "ä.ö", text.replace(".", ""), "x" * 5000 + "."):
        with pytest.raises(TicketRefused):
            check(each, KEYS, digest=DIGEST, now=1.0)


def test_the_keys_come_from_the_authorities_certificates(tmp_path: Path) -> None:
    pem = "".join(make_authority(tmp_path / name).pem for name in ("old", "new"))
    assert [key.curve.name for key in authority_keys(pem)] == ["secp256r1"] * 2
    with pytest.raises(ValueError):
        authority_keys("no certificate")
