"""Who may fetch a package from a peer."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from borglet.messages import PackageTicket
from borglet.packages.tickets import TicketRefused, authority_key, check, issue
from tests.unit.borglet.cell import make_authority

DIGEST = "sha256:" + "a" * 64
KEY = ec.generate_private_key(ec.SECP256R1())
TICKET = PackageTicket(DIGEST, "m1", 1000.0)


def test_a_ticket_opens_its_package_until_it_expires() -> None:
    text = issue(KEY, TICKET)
    assert check(text, KEY.public_key(), digest=DIGEST, now=999.0) == TICKET
    with pytest.raises(TicketRefused, match="expired 1 s ago"):
        check(text, KEY.public_key(), digest=DIGEST, now=1001.0)
    with pytest.raises(TicketRefused, match="is for sha256:a"):
        check(text, KEY.public_key(), digest="sha256:" + "b" * 64, now=1.0)


def test_a_ticket_of_another_authority_or_with_other_claims_is_refused() -> None:
    text = issue(KEY, TICKET)
    other = ec.generate_private_key(ec.SECP256R1())
    claims = base64.urlsafe_b64encode(b'{"digest":"x","machine":"m","expires_at":9e9}').rstrip(b"=").decode()
    forged = [issue(other, TICKET), f"{claims}.{text.partition('.')[2]}", f"{text[:-2]}AA"]
    for each in (*forged, "", ".", "a.b", "ä.ö", text.replace(".", ""), "x" * 5000 + "."):
        with pytest.raises(TicketRefused):
            check(each, KEY.public_key(), digest=DIGEST, now=1.0)


def test_the_key_comes_from_the_authoritys_certificate(tmp_path: Path) -> None:
    assert authority_key(make_authority(tmp_path).pem).curve.name == "secp256r1"
    with pytest.raises(ValueError):
        authority_key("no certificate")
