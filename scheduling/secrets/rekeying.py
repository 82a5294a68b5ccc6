"""Encryption of all values with the newest key, and the use of each key.

rows of other keys ─► batches: open with the old key, seal with the newest one ─► rows
                          └─► a row that cannot be decrypted stays, and is reported
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Min

from quota import records
from quota.vocabulary.permissions import Principal
from scheduling.models import SecretVersion
from scheduling.secrets.key_ring import key_ring, key_ring_for_writes
from scheduling.secrets.sealing import CannotOpen, Place

BATCH = 200


@dataclass(frozen=True, slots=True)
class KeyUse:
    """The use of a key. `held`: this installation has the key. `newest`: it encrypts new values."""

    key_id: str
    rows: int
    held: bool
    newest: bool


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The result of `rekey`. `unreadable`: why each row that was left could not be decrypted."""

    changed: int
    unreadable: list[str]


def key_uses() -> list[KeyUse]:
    """Return how many rows each key encrypts. The newest key is listed even if it encrypts none."""
    ring = key_ring()
    rows = SecretVersion.objects.order_by("key_id").values_list("key_id").annotate(rows=Count("id"))
    found = dict(rows)
    if len(ring):
        found.setdefault(ring.newest, 0)
    return [KeyUse(identity, count, identity in ring, identity == ring.newest) for identity, count in found.items()]


def unreadable_secrets(most: int = 100) -> list[str]:
    """Return `tenant/name` of secrets with a version that no key of this installation decrypts, at most `most`."""
    held = [use.key_id for use in key_uses() if use.held]
    rows = SecretVersion.objects.exclude(key_id__in=held).order_by("secret__tenant__name", "secret__name")
    names = rows.values("secret__tenant__name", "secret__name").annotate(first=Min("version"))[:most]
    return [f"{row['secret__tenant__name']}/{row['secret__name']}" for row in names]


def rekey(*, principal: Principal) -> Rekeyed:
    """Encrypt each row that another key encrypts with the newest key, in transactions of `BATCH` rows. It can be
    interrupted and repeated. Raises `Rejected` if there is no key.
    """
    ring = key_ring_for_writes()
    changed, after = 0, 0
    unreadable: list[str] = []
    while True:
        with records.write(principal) as entry:
            rows = list(
                SecretVersion.objects.select_for_update(of=("self",))
                .select_related("secret__tenant")
                .exclude(key_id=ring.newest)
                .filter(pk__gt=after)
                .order_by("pk")[:BATCH]
            )
            done = []
            for row in rows:
                place = Place(row.secret.tenant.name, row.secret.name, row.version)
                try:
                    value = ring.open_value(row.key_id, bytes(row.sealed), place)
                except CannotOpen as error:
                    unreadable.append(str(error))
                    continue
                sealed = ring.seal(value, place)
                row.key_id, row.sealed, row.fingerprint = sealed.key_id, sealed.sealed, sealed.fingerprint
                done.append(row)
            SecretVersion.objects.bulk_update(done, ["key_id", "sealed", "fingerprint"])
            changed += len(done)
            if done:
                entry.append("secret.rekeyed", rows=len(done), key_id=ring.newest)
        if not rows:
            break
        after = rows[-1].pk
    return Rekeyed(changed, unreadable)
