"""Tests of identity tokens of tasks: signed tokens are accepted, and all others are rejected."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from borglet.messages import RunTask, TaskKey
from scheduling.identity.task_tokens import (
    LEVELS,
    TTL_S,
    BadIdentity,
    SigningKey,
    issue,
    jwk,
    key_id,
    looks_like_one,
    read,
)
from scheduling.spec.job_spec import API_LEVELS

PORTAL = "https://portal.example"
UID = "0f" * 16
TASK = RunTask(
    key=TaskKey(UID, 7, 3),
    name="cc/ubar/jfoo/7",
    command=["x"],
    env={},
    limit={},
    ports={},
    priority=0,
    latency_sensitive=False,
    prod=False,
    spec_version=1,
)


def a_key() -> SigningKey:
    private = ec.generate_private_key(ec.SECP256R1())
    return SigningKey(key_id(private.public_key()), private)


KEY = a_key()


def known(kid: str) -> ec.EllipticCurvePublicKey | None:
    return KEY.private.public_key() if kid == KEY.kid else None


def test_an_identity_says_whose_it_is() -> None:
    now = time.time()
    token = issue(KEY, TASK, issuer=PORTAL, now=now)
    claims, until = read(token, known, issuer=PORTAL)
    assert (claims.name, claims.key) == (TASK.name, TASK.key)
    assert until.timestamp() == int(now) + TTL_S
    assert looks_like_one(token)
    assert not looks_like_one("borg_0011_a.b.c")
    payload = jwt.decode(token, options={"verify_signature": False})
    assert (payload["sub"], payload["iss"]) == ("/bns/cc/ubar/jfoo/7", PORTAL)


def test_an_identity_ends_within_the_hour() -> None:
    assert TTL_S <= 3600
    token = issue(KEY, TASK, issuer=PORTAL, now=time.time() - TTL_S - 1)
    with pytest.raises(BadIdentity, match=r"has expired; read .BORG_IDENTITY_FILE again"):
        read(token, known, issuer=PORTAL)


def forged(header: dict[str, str], payload: dict[str, object]) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, payload)]
    return ".".join([*parts, ""])


def payload_of(**changed: object) -> dict[str, object]:
    token = issue(KEY, TASK, issuer=PORTAL, now=time.time())
    return jwt.decode(token, options={"verify_signature": False}) | changed


def public_pem() -> bytes:
    return KEY.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signed_like_a_secret() -> str:
    """Return a forged token whose HMAC key is the public key, a known attack on token libraries."""
    head = forged({"alg": "HS256", "kid": KEY.kid}, payload_of()).rstrip(".")
    mac = hmac.new(public_pem(), head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def signed(payload: dict[str, object], **header: str) -> str:
    return jwt.encode(payload, KEY.private, "ES256", header)


def issued(key: SigningKey, issuer: str = PORTAL) -> str:
    return issue(key, TASK, issuer=issuer, now=time.time())


FORGED = {
    "other-key": lambda: issued(SigningKey(KEY.kid, a_key().private)),
    "unknown-key": lambda: issued(a_key()),
    "other-portal": lambda: issued(KEY, "https://elsewhere"),
    "unsigned": lambda: forged({"alg": "none", "kid": KEY.kid}, payload_of()),
    "hmac-with-the-public-key": lambda: signed_like_a_secret(),
    "no-task": lambda: signed(payload_of(borg={"cell": "cc"}), kid=KEY.kid),
    "endless": lambda: signed({k: v for k, v in payload_of().items() if k != "exp"}, kid=KEY.kid),
    "cut-short": lambda: issued(KEY)[:-8],
    "nonsense": lambda: "eyJ.eyJ.eyJ",
    "no-key-named": lambda: signed(payload_of()),
}


@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED)
def test_a_token_that_this_portal_did_not_sign_is_not_an_identity(token) -> None:
    with pytest.raises(BadIdentity):
        read(token(), known, issuer=PORTAL)


def test_others_can_verify_with_the_published_key() -> None:
    published = jwk(KEY.kid, KEY.private.public_key())
    assert "d" not in published
    token = issue(KEY, TASK, issuer=PORTAL, now=time.time())
    key = jwt.PyJWK(published)
    assert jwt.decode(token, key, algorithms=["ES256"], audience=PORTAL)["sub"] == "/bns/cc/ubar/jfoo/7"


def test_levels_are_those_of_job_files_and_the_least_comes_first() -> None:
    assert tuple(LEVELS) == API_LEVELS
    assert [len(scopes) for scopes, _ in LEVELS.values()] == [0, 1, 2]
    assert repr(KEY) == f"SigningKey(kid={KEY.kid!r})"
