"""Encryption of the values of secrets with AES-256-GCM. Pure.

    value ─► seal: newest key, random nonce ─► SealedValue: key id, bytes ─► row
    row ─► open_value: the key with this id ─► value

A value is bound to its tenant, name and version, so a row that was copied to another place cannot be decrypted. The
fingerprint is a keyed hash, so nobody without the key can test whether a value is a certain word.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SETTING = "BORG_SECRET_KEYS"
_NONCE_BYTES = 12
_FINGERPRINT_DIGITS = 8


class CannotOpen(Exception):
    """The error if a value cannot be decrypted. The message says why, and what to do. It contains no part of a value or
    of a key.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a value: its tenant, the name of its secret and its version."""

    tenant: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"version {self.version} of secret {self.name} of tenant {self.tenant}"

    def bound(self) -> bytes:
        """Return the data that is authenticated with the value. Names contain no NUL characters."""
        return f"borg secret\0{self.tenant}\0{self.name}\0{self.version}".encode()


@dataclass(frozen=True, slots=True)
class SealedValue:
    """An encrypted value. `key_id`: 16 hexadecimal digits. `fingerprint`: 8 hexadecimal digits of a keyed hash."""

    key_id: str
    sealed: bytes
    fingerprint: str


def key_id(key: bytes) -> str:
    """Return the id of a key, 16 hexadecimal digits. It does not reveal the key."""
    return hashlib.sha256(b"borg secret key" + key).hexdigest()[:16]


class KeyRing:
    """The keys of an installation, each of 32 bytes. The first one encrypts, and all decrypt."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}
        self.newest = key_id(keys[0]) if keys else ""

    def __contains__(self, identity: str) -> bool:
        return identity in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def seal(self, value: bytes, place: Place) -> SealedValue:
        """Encrypt a value with the newest key. Raises `LookupError` if there is no key."""
        key = self._keys[self.newest]
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + AESGCM(key).encrypt(nonce, value, place.bound())
        return SealedValue(self.newest, sealed, _fingerprint(key, value, place))

    def open_value(self, identity: str, sealed: bytes, place: Place) -> bytes:
        """Decrypt a value. `identity`: the id of its key. Raises `CannotOpen` if the key is missing or the row is
        damaged.
        """
        key = self._keys.get(identity)
        if key is None:
            raise CannotOpen(
                f"{place} is encrypted with the key {identity}, which {SETTING} does not contain; add the key, or set"
                " the secret again"
            )
        try:
            return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.bound())
        except (InvalidTag, ValueError) as error:
            raise CannotOpen(f"{place} is damaged, or belongs to another secret; set the secret again") from error


def _fingerprint(key: bytes, value: bytes, place: Place) -> str:
    """Return a short keyed hash of a value. Equal values of one secret have equal fingerprints under one key."""
    own = hmac.digest(key, f"borg secret fingerprint\0{place.tenant}\0{place.name}".encode(), "sha256")
    return hmac.digest(own, value, "sha256").hex()[:_FINGERPRINT_DIGITS]
