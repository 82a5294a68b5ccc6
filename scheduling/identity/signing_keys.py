"""Keys that sign the identity tokens of tasks. Each host that runs link shards has its own keys and publishes their
public keys.

    BORG_AUTHORITY/identity-<kid>.key   private key, mode 0600; it stays on its host

                       PUBLISH_S             SIGN_S                  lifetime of the last token
    created, published ────────► it signs ─────────► the next key signs ─────────► no longer accepted, deleted

A key is published before it signs tokens, because programs that verify tokens may have cached an older list of keys.
"""

from __future__ import annotations

import datetime as dt
import socket
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from django.conf import settings
from django.utils import timezone

from scheduling.identity.authority import key_pem, load_key, locked, write_whole
from scheduling.identity.task_tokens import TTL_S, SigningKey, key_id
from scheduling.models import IdentityKey

PUBLISH_S = 3600.0
SIGN_S = 7 * 86400.0
# Added to the lifetime of the last token, because clocks differ.
_MARGIN_S = 600.0


def signing_key(*, now: dt.datetime | None = None) -> SigningKey:
    """Return the key that signs tokens now. This call creates a new key if there is none or if the newest key is old.
    It also deletes expired keys.

    Raises `OSError` if the folder cannot be written.
    """
    now = now or timezone.now()
    folder = Path(settings.BORG_AUTHORITY)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder):
        own = _own(folder, now)
        if not own or (now - own[-1].made_at).total_seconds() >= SIGN_S - PUBLISH_S:
            own.append(_make(folder, now))
        published = [row for row in own if (now - row.made_at).total_seconds() >= PUBLISH_S]
        row = published[-1] if published else own[0]
        return SigningKey(row.kid, load_key(_path(folder, row.kid)))


def public_key(kid: str) -> ec.EllipticCurvePublicKey | None:
    """Return the public key with the id `kid`, or None if there is none or it has expired. Makes one query."""
    row = IdentityKey.objects.filter(kid=kid[:64], accepted_until__gt=timezone.now()).first()
    return _public(row) if row is not None else None


def public_keys() -> dict[str, ec.EllipticCurvePublicKey]:
    """Return all public keys that have not expired, by id, newest first. Makes one query."""
    return {row.kid: _public(row) for row in IdentityKey.objects.filter(accepted_until__gt=timezone.now())}


def _own(folder: Path, now: dt.datetime) -> list[IdentityKey]:
    """Return the keys of this host, oldest first, and delete expired keys."""
    here = {path.name.removeprefix("identity-").removesuffix(".key") for path in folder.glob("identity-*.key")}
    rows = list(IdentityKey.objects.filter(kid__in=here).order_by("made_at"))
    kept = [row for row in rows if (now - row.made_at).total_seconds() < SIGN_S]
    for kid in here - {row.kid for row in kept}:
        _path(folder, kid).unlink(missing_ok=True)
    IdentityKey.objects.filter(accepted_until__lte=now).delete()
    return kept


def _make(folder: Path, now: dt.datetime) -> IdentityKey:
    private = ec.generate_private_key(ec.SECP256R1())
    kid = key_id(private.public_key())
    write_whole(_path(folder, kid), key_pem(private), 0o600)
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return IdentityKey.objects.create(
        kid=kid,
        public=public.decode("ascii"),
        host=socket.gethostname(),
        made_at=now,
        accepted_until=now + dt.timedelta(seconds=SIGN_S + TTL_S + _MARGIN_S),
    )


def _path(folder: Path, kid: str) -> Path:
    return folder / f"identity-{kid}.key"


def _public(row: IdentityKey) -> ec.EllipticCurvePublicKey:
    key = load_pem_public_key(row.public.encode("ascii"))
    assert isinstance(key, ec.EllipticCurvePublicKey), row.kid
    return key
