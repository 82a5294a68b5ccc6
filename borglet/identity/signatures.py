"""Check signatures of the cell's authority. The authority signs package tickets and permissions to open a shell."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

ALGORITHM = ec.ECDSA(hashes.SHA256())


def authority_keys(authorities: str) -> list[ec.EllipticCurvePublicKey]:
    """Return the public keys of the cell's authorities, from their certificates. The Borglet checks signatures with
    these keys.

    `authorities`: one PEM text with all certificates. While a new authority replaces the old one, the text has both.
    Raises ValueError if the text is not valid PEM.
    """
    certificates = x509.load_pem_x509_certificates(authorities.encode("ascii"))
    keys = [certificate.public_key() for certificate in certificates]
    return [key for key in keys if isinstance(key, ec.EllipticCurvePublicKey)]


def is_signed(keys: Sequence[ec.EllipticCurvePublicKey], content: bytes, signature: bytes) -> bool:
    """Return whether one of `keys` signed `content`."""
    for key in keys:
        with contextlib.suppress(InvalidSignature):
            key.verify(signature, content, ALGORITHM)
            return True
    return False
