"""The key ring of this installation, from the setting `BORG_SECRET_KEYS`."""

from __future__ import annotations

from django.conf import settings

from quota.vocabulary.errors import Rejected
from scheduling.secrets.sealing import SETTING, KeyRing
from scheduling.storage.sealed import read_keys


def key_ring() -> KeyRing:
    """Return the keys of secrets. The ring is empty if the setting is empty."""
    return KeyRing(read_keys(settings.BORG_SECRET_KEYS))


def key_ring_for_writes() -> KeyRing:
    """Return the keys of secrets. Raises `Rejected` if there is none, so that no value is stored in plain text."""
    ring = key_ring()
    if not len(ring):
        detail = f"this installation has no key for secrets, so it stores none; ask an SRE to set {SETTING}"
        raise Rejected("no-secret-key", detail, status=503)
    return ring
