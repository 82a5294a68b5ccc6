"""Identity tokens of tasks: short-lived signed JWTs (RFC 7519, ES256). Pure.

    shard ── issue(key, task, now) ──► token ──► Borglet ──► $BORG_IDENTITY_FILE ──► the task
    REST API, any other service ◄── Authorization: Bearer token ─────────────────────┘
                 └── read(token, public keys) ──► TaskClaims

Public keys are published as a JWK Set (RFC 7517), so that other services can verify identities too.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from borglet.messages import RunTask, TaskKey
from quota.vocabulary.permissions import Role, Scope

ALGORITHM = "ES256"
TTL_S = 3600
# A task gets a new token after half of the lifetime of the old one.
RENEW_S = TTL_S / 2

# Values of `api` in a job file, lowest first: the scopes, and the role in the job's own tenant.
LEVELS: dict[str, tuple[frozenset[Scope], Role | None]] = {
    "none": (frozenset(), None),
    "read": (frozenset({Scope.READ}), Role.VIEWER),
    "submit": (frozenset({Scope.READ, Scope.WRITE}), Role.OPERATOR),
}


class BadIdentity(Exception):
    """Raised for a token that does not prove the identity of a task. The message says what to do."""


class TaskClaims(msgspec.Struct, frozen=True):
    """The content of the field `borg` in an identity token. It identifies a task."""

    cell: str
    tenant: str
    job: str
    index: int
    uid: str  # of the job
    incarnation: int

    @property
    def name(self) -> str:
        """Return the name of the task: cell, tenant, job and index."""
        return f"{self.cell}/{self.tenant}/{self.job}/{self.index}"

    @property
    def key(self) -> TaskKey:
        """Return the key by which Borglets identify the incarnation."""
        return TaskKey(self.uid, self.index, self.incarnation)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key that signs identity tokens. `kid`: the id by which programs find the public key."""

    kid: str
    private: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r})"


def issue(key: SigningKey, task: RunTask, *, issuer: str, now: float) -> str:
    """Return a token for one incarnation, valid for `TTL_S` seconds from `now`. `issuer`: URL of the portal."""
    cell, tenant, job, _ = task.name.split("/")
    claims = TaskClaims(cell, tenant, job, task.key.index, task.key.job, task.key.incarnation)
    payload = {
        "iss": issuer,
        "aud": issuer,
        "sub": f"/bns/{task.name}",
        "iat": int(now),
        "exp": int(now) + TTL_S,
        "borg": msgspec.to_builtins(claims),
    }
    return jwt.encode(payload, key.private, algorithm=ALGORITHM, headers={"kid": key.kid})


def looks_like_one(secret: str) -> bool:
    """Return whether `secret` looks like the identity token of a task. The token may still be invalid."""
    return secret.count(".") == 2 and secret.startswith("eyJ")


def read(
    token: str, public_key: Callable[[str], ec.EllipticCurvePublicKey | None], *, issuer: str
) -> tuple[TaskClaims, dt.datetime]:
    """Return the task that an identity token belongs to, and the time when the token expires.

    `public_key` returns the public key with a given id, or None if tokens of that key are not accepted. The caller must
    check that the incarnation still runs. Raises `BadIdentity` if the token is not valid or has expired.
    """
    try:
        kid = jwt.get_unverified_header(token).get("kid")
        key = public_key(kid) if isinstance(kid, str) else None
        if key is None:
            raise BadIdentity(
                "no current key of this portal signed this task identity; read $BORG_IDENTITY_FILE again for each call"
            )
        payload = jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            audience=issuer,
            issuer=issuer,
            options={"require": ["exp", "iat", "sub", "aud", "iss"]},
        )
        claims = msgspec.convert(payload.get("borg"), TaskClaims)
    except jwt.ExpiredSignatureError as error:
        raise BadIdentity("this task identity has expired; read $BORG_IDENTITY_FILE again for each call") from error
    except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
        raise BadIdentity(f"this is not a task identity: {error}; send the content of $BORG_IDENTITY_FILE") from error
    return claims, dt.datetime.fromtimestamp(payload["exp"], dt.UTC)


def jwk(kid: str, public: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """Return a public key as a JSON Web Key (RFC 7517)."""
    return {**ECAlgorithm.to_jwk(public, as_dict=True), "kid": kid, "alg": ALGORITHM, "use": "sig"}


def key_id(public: ec.EllipticCurvePublicKey) -> str:
    """Return the id of a public key: its thumbprint (RFC 7638)."""
    canonical = json.dumps(ECAlgorithm.to_jwk(public, as_dict=True), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
