"""Tests of permissions to open a shell: signed by the cell's authority, for this machine, in time, and used once."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from borglet.link.shell_grants import MAX_LIFE_S, SKEW_S, GrantRefused, Grants
from borglet.messages import SHELL_CONTEXT, ShellClaims, ShellGrant, TaskKey

NOW = 1_790_000_000.0
CLAIMS = ShellClaims(
    session="a" * 32,
    machine="m1",
    key=TaskKey("f" * 32, 0, 1),
    user="ann",
    issued_at=NOW,
    expires_at=NOW + 60,
    idle_s=60.0,
    longest_s=600.0,
)


class Authority:
    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cell")])
        start = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.pem = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(start)
            .not_valid_after(start + dt.timedelta(days=3650))
            .sign(self.key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )

    def grant(self, claims: ShellClaims = CLAIMS, context: bytes = SHELL_CONTEXT) -> ShellGrant:
        content = msgspec.json.encode(claims)
        return ShellGrant(content, self.key.sign(context + content, ec.ECDSA(hashes.SHA256())))


@pytest.fixture(scope="module")
def cell() -> Authority:
    return Authority()


def grants(authority: Authority) -> Grants:
    return Grants(lambda: authority.pem, "m1")


def changed(**fields: object) -> ShellClaims:
    return msgspec.structs.replace(CLAIMS, **fields)


def test_what_the_authority_signed_is_good_once(cell: Authority) -> None:
    known = grants(cell)
    assert known.take(cell.grant(), now=NOW + 1) == CLAIMS
    with pytest.raises(GrantRefused, match="already used") as refused:
        known.take(cell.grant(), now=NOW + 2)
    assert refused.value.session == CLAIMS.session


def test_a_used_one_is_remembered_for_as_long_as_it_would_be_good(cell: Authority) -> None:
    known = grants(cell)
    known.take(cell.grant(), now=NOW)
    known.take(cell.grant(changed(session="b" * 32)), now=NOW + 60 + SKEW_S - 1)
    with pytest.raises(GrantRefused, match="already used"):
        known.take(cell.grant(), now=NOW + 60 + SKEW_S - 1)


def test_nobody_else_s_word_counts(cell: Authority) -> None:
    for grant in (
        Authority().grant(),
        cell.grant(context=b""),
        ShellGrant(cell.grant().claims.replace(b"ann", b"bob"), cell.grant().signature),
        ShellGrant(b"{}", b""),
    ):
        with pytest.raises(GrantRefused, match="not signed") as refused:
            grants(cell).take(grant, now=NOW)
        assert refused.value.session == ""


def test_after_a_change_of_authority_both_count(cell: Authority) -> None:
    new = Authority()
    known = Grants(lambda: cell.pem + new.pem, "m1")
    known.take(cell.grant(), now=NOW)
    known.take(new.grant(changed(session="b" * 32)), now=NOW)


@pytest.mark.parametrize(
    ("claims", "now", "why"),
    [
        (changed(machine="m2"), NOW, "for machine m2"),
        (CLAIMS, NOW + 60 + SKEW_S + 1, "expired 31 s ago"),
        (CLAIMS, NOW - SKEW_S - 1, "becomes valid in 31 s"),
        (changed(expires_at=NOW + MAX_LIFE_S + 1), NOW, "longer than 60 s"),
        (changed(rows=0), NOW, "rows, cols"),
        (changed(cols=1001), NOW, "rows, cols"),
    ],
)
def test_what_it_is_not_for_it_does_not_open(cell: Authority, claims: ShellClaims, now: float, why: str) -> None:
    with pytest.raises(GrantRefused, match=why):
        grants(cell).take(cell.grant(claims), now=now)
