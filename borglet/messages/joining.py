"""Messages with which a machine joins a cell, and the digest of the certificate authorities that the machine trusts."""

from __future__ import annotations

import hashlib
import re
import ssl

import msgspec


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the request POST /join, with which a machine joins a cell."""

    token: str
    hostname: str
    address: str  # address at which clients reach the machine's tasks
    capacity: dict[str, int]
    attributes: dict[str, str] = {}
    platform: str = ""
    rack: str = ""
    power_domain: str = ""
    port_low: int = 20000
    port_high: int = 29999


class JoinAnswer(msgspec.Struct, frozen=True):
    cell: str
    hostname: str
    secret: str  # the cell stores only its hash
    authority: str  # PEM of the cell's certificate authority


_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)


def authority_digest(pem: str) -> str:
    """Return the SHA-256 of the sorted fingerprints of all certificates in `pem`: 64 hex digits.

    Raises ValueError for a text without certificates."""
    try:
        found = [ssl.PEM_cert_to_DER_cert(part) for part in _CERTIFICATE.findall(pem)]
    except ValueError as error:
        raise ValueError(
            f"authority: the text is not a certificate in PEM form: {error}; give the whole text of the certificate"
        ) from error
    if not found or not all(found):
        raise ValueError("authority: the text is not a certificate in PEM form; give the whole text of the certificate")
    prints = sorted({hashlib.sha256(certificate).hexdigest() for certificate in found})
    return hashlib.sha256("\n".join(prints).encode()).hexdigest()
