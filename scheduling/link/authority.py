"""The cell's own certificate authority: made at the first start, and what a Borglet pins its trust on.

    BORG_AUTHORITY/ca.pem       the authority's certificate; its fingerprint is part of every join token
    BORG_AUTHORITY/ca.key       its key, mode 0600
    BORG_AUTHORITY/server.pem   key and certificate of the link, renewed in time

An authority of one's own takes their place: put `ca.pem` and `ca.key` there before the first start.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import functools
import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.conf import settings

from borglet.messages import SHELL_CONTEXT

AUTHORITY_DAYS = 3650
SERVER_DAYS = 90
# A server certificate with less than this left is replaced.
RENEW_DAYS = 30
# Machines with a clock a little behind must not refuse a certificate just made.
_SKEW = dt.timedelta(hours=1)


class AuthorityBroken(Exception):
    """The folder of the authority holds something that can't be used; the text says what and the cure."""


def folder() -> Path:
    return Path(settings.BORG_AUTHORITY)


def ensure_authority() -> Path:
    """Make the authority where there is none. Returns the path of its certificate. Raises `AuthorityBroken`."""
    home = folder()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = home / "ca.pem", home / "ca.key"
    with _locked(home):
        if certificate.exists() != key.exists():
            there, missing = (certificate, key) if certificate.exists() else (key, certificate)
            raise AuthorityBroken(
                f"{there} is there, {missing} is not: put it back from a backup. Machines trust this authority"
                " alone, a new one would shut them all out"
            )
        if not certificate.exists():
            made, private = _make_authority()
            _write(key, _key_pem(private), 0o600)
            _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate


def authority_pem() -> str:
    return ensure_authority().read_text("ascii")


def fingerprint() -> str:
    """SHA-256 over the authority's certificate (DER), 64 hex digits: what join tokens carry."""
    ensure_authority()
    return _authority()[0].fingerprint(hashes.SHA256()).hex()


def signing_key() -> ec.EllipticCurvePrivateKey:
    """What machines can check with the authority's certificate, such as tickets for packages, is signed with."""
    ensure_authority()
    return _signing_key(folder(), (folder() / "ca.key").stat().st_mtime_ns)


def issue_server_certificate(hosts: Sequence[str], *, now: dt.datetime | None = None) -> Path:
    """A file with key and certificate of a server reached as `hosts` (names and addresses).

    The one there is kept while it names all of `hosts`, was signed by this authority, and does not expire
    within `RENEW_DAYS`. Raises `AuthorityBroken`.
    """
    now = now or dt.datetime.now(dt.UTC)
    ensure_authority()
    path = folder() / "server.pem"
    with _locked(folder()):
        if not _serves(path, hosts, now):
            private = ec.generate_private_key(ec.SECP256R1())
            certificate = _sign(private, hosts, now)
            content = _key_pem(private) + certificate.public_bytes(serialization.Encoding.PEM)
            _write(path, content, 0o600)
    return path


def sign_shell(claims: bytes) -> bytes:
    """The authority's word for a shell (`ShellClaims` as JSON). Raises `AuthorityBroken`."""
    ensure_authority()
    return _authority()[1].sign(SHELL_CONTEXT + claims, ec.ECDSA(hashes.SHA256()))


def _make_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Borg cell authority")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    return certificate, private


def _sign(private: ec.EllipticCurvePrivateKey, hosts: Sequence[str], now: dt.datetime) -> x509.Certificate:
    authority, authority_key = _authority()
    until = min(now + dt.timedelta(days=SERVER_DAYS), authority.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Borg link")]))
        .issuer_name(authority.subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


def _authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path = folder() / "ca.pem"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        private = serialization.load_pem_private_key((folder() / "ca.key").read_bytes(), password=None)
    except ValueError as error:
        raise AuthorityBroken(
            f"{path.parent}: {error}; ca.pem and ca.key must be PEM, without a password"
        ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise AuthorityBroken(f"{path.parent}/ca.key: an elliptic-curve key is needed, such as P-256")
    if private.public_key() != certificate.public_key():
        raise AuthorityBroken(f"{path.parent}: ca.key is not the key of ca.pem")
    return certificate, private


@functools.lru_cache(maxsize=4)
def _signing_key(home: Path, changed_ns: int) -> ec.EllipticCurvePrivateKey:
    return _authority()[1]


def _serves(path: Path, hosts: Sequence[str], now: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(_authority()[0])
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    left = certificate.not_valid_after_utc - now
    return left > dt.timedelta(days=RENEW_DAYS) and {_name(host) for host in hosts} <= set(named)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file whole; a crash leaves the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Several processes may start at once; one of them makes the authority."""
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
