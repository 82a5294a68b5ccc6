"""The cell's certificate authority, which is created at the first start. Borglets trust only this authority.

    BORG_AUTHORITY/ca.pem       certificate of the authority; its fingerprint is part of every join token
    BORG_AUTHORITY/ca.key       key of the authority, mode 0600
    BORG_AUTHORITY/next.…       the authority that will replace the current one (`authority_rotation`)
    BORG_AUTHORITY/old.pem      the previous authority, which machines still trust for a while
    BORG_AUTHORITY/grants.…     signs grants of shells and tickets for packages if ca.key is stored elsewhere
    BORG_AUTHORITY/server.pem   key and certificate of the link (`certificate`)

To use your own authority, put `ca.pem` and `ca.key` into this folder before the first start. If you also provide the
server's certificate (BORG_LINK_CERTIFICATE), `ca.key` is not needed in this folder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from django.conf import settings

from borglet.messages import SHELL_CONTEXT

AUTHORITY_DAYS = 3650
# Machines whose clock is slow must not reject a new certificate.
SKEW = dt.timedelta(hours=1)


class AuthorityBroken(Exception):
    """Raised when a file of the authority cannot be used. The message names the file and what to do."""


def folder() -> Path:
    return Path(settings.BORG_AUTHORITY)


def ensure_authority() -> Path:
    """Create the cell's certificate authority if it does not exist. Return the path of its certificate. Raises
    `AuthorityBroken` if the files of the authority do not match the settings.
    """
    home = folder()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key = home / "ca.pem", home / "ca.key"
    with locked(home):
        finish_switch(home)
        given = bool(settings.BORG_LINK_CERTIFICATE)
        if given and not certificate.exists():
            raise AuthorityBroken(
                f"BORG_LINK_CERTIFICATE is set, but {certificate} is missing. Put the certificate of its issuer there,"
                " so that machines can verify the link shards"
            )
        if certificate.exists() != key.exists() and not given:
            there, missing = (certificate, key) if certificate.exists() else (key, certificate)
            raise AuthorityBroken(
                f"{there} exists, but {missing} is missing. Restore {missing.name} from a backup. Machines trust only"
                " this authority, so no machine could connect with a new one"
            )
        if not certificate.exists():
            write_pair(home, "ca", *make_authority())
        if not key.exists() and not (home / "grants.pem").exists():
            write_pair(home, "grants", *make_authority(grants=True))
    return certificate


def authority_pem() -> str:
    """Return the certificate of the current authority, in PEM form."""
    return ensure_authority().read_text("ascii")


def bundle_pem() -> str:
    """Return, in PEM form, the certificates that machines should trust: those of the current, next and old authority,
    and that of the key that signs grants of shells and tickets for packages.
    """
    ensure_authority()
    files = [folder() / name for name in ("ca.pem", "next.pem", "old.pem", "grants.pem")]
    return "".join(file.read_text("ascii").rstrip("\n") + "\n" for file in files if file.exists())


def fingerprint() -> str:
    """Return the SHA-256 of the current authority's certificate, as 64 hex digits. Join tokens contain this
    fingerprint.
    """
    path = ensure_authority()
    return fingerprint_of(signer()[0] if path.with_suffix(".key").exists() else load_certificate(path))


def fingerprint_of(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate as 64 hex digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def signer() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate and the key of the current authority. Raises `AuthorityBroken` if one of them cannot be
    read or if the key is not stored on this host.
    """
    return load_pair(ensure_authority().parent, "ca")


def signing_key() -> ec.EllipticCurvePrivateKey:
    """Return the key that signs tickets for packages and grants of shells.

    It is the key of the authority. If that key is not stored on this host, it is a separate key. Raises
    `AuthorityBroken` if the file of the key cannot be used.
    """
    home = ensure_authority().parent
    name = "ca" if (home / "ca.key").exists() else "grants"
    return _signing_key(home, name, (home / f"{name}.key").stat().st_mtime_ns)


def sign_shell(claims: bytes) -> bytes:
    """Return a signature of `claims`: the permission to open a shell (`ShellClaims` as JSON). Raises
    `AuthorityBroken` if the key cannot be read.
    """
    return signing_key().sign(SHELL_CONTEXT + claims, ec.ECDSA(hashes.SHA256()))


@functools.lru_cache(maxsize=4)
def _signing_key(home: Path, name: str, changed_ns: int) -> ec.EllipticCurvePrivateKey:
    return load_pair(home, name)[1]


def make_authority(*, grants: bool = False) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a new certificate and its key. `grants`: whether the key will sign grants. Otherwise, it will sign
    certificates.
    """
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Borg grants" if grants else "Borg cell authority")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + dt.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=not grants, path_length=None if grants else 0), critical=True)
        .add_extension(key_usage(certificates=not grants), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    return certificate, private


def write_pair(home: Path, name: str, certificate: x509.Certificate, private: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key to the file `name`.key and its certificate to `name`.pem in the folder `home`."""
    write_whole(home / f"{name}.key", key_pem(private), 0o600)
    write_whole(home / f"{name}.pem", certificate.public_bytes(Encoding.PEM), 0o644)


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate. Raises `AuthorityBroken` if the file is not a certificate."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise AuthorityBroken(f"cannot read {path}: {error}; put a certificate in PEM form there") from error


def load_pair(home: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate in `name`.pem and the private key in `name`.key. Raises `AuthorityBroken` if a file cannot
    be read or the two do not match.
    """
    certificate = load_certificate(home / f"{name}.pem")
    private = load_key(home / f"{name}.key")
    if private.public_key() != certificate.public_key():
        raise AuthorityBroken(
            f"{home}: {name}.key is not the key of {name}.pem; restore two files that belong together"
        )
    return certificate, private


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key. Raises `AuthorityBroken` if the file is not an elliptic-curve key."""
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        detail = f"cannot read {path}: {error}; put a private key in PEM form, without a password, there"
        raise AuthorityBroken(detail) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise AuthorityBroken(f"{path} is not an elliptic-curve key; use such a key, for example of the curve P-256")
    return private


def finish_switch(home: Path) -> None:
    """Finish a switch to a new authority that was interrupted. The caller must hold the lock `locked(home)`."""
    following, key = home / "next.pem", home / "ca.key"
    if not following.exists() or not key.exists():
        return
    if load_key(key).public_key() == load_certificate(following).public_key():
        write_whole(home / "ca.pem", following.read_bytes(), 0o644)
        (home / "next.key").unlink(missing_ok=True)
        following.unlink()


def key_usage(*, certificates: bool) -> x509.KeyUsage:
    """Return the X.509 extension that says for what a key may be used. `certificates`: whether the key may sign
    certificates.
    """
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


def key_pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key in PEM form, without a password."""
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def write_whole(path: Path, content: bytes, mode: int) -> None:
    """Replace the content of a file. If the host crashes meanwhile, the file has either its complete old content or
    its complete new content.
    """
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)  # so that files appear on the disk in the order in which they were written
    finally:
        os.close(directory)


@contextlib.contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the lock of the folder `home` during the `with` block. So two processes cannot create the same missing files
    at once.
    """
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
