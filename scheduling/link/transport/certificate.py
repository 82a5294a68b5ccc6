"""The TLS certificate of link shards. The cell's authority issues it, or you provide it (BORG_LINK_CERTIFICATE)."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from django.conf import settings

from scheduling.identity.authority import (
    SKEW,
    AuthorityBroken,
    bundle_pem,
    ensure_authority,
    folder,
    key_pem,
    key_usage,
    locked,
    signer,
    write_whole,
)

SERVER_DAYS = 90
# A server certificate with less than this left is replaced.
RENEW_DAYS = 30


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """The files of a certificate and its key, in PEM form. `key` is None if the file `chain` also contains the key."""

    chain: Path
    key: Path | None = None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the certificate into a TLS context. Raises `OSError` if the files cannot be used."""
        context.load_cert_chain(self.chain, self.key)


def server_certificate(hosts: Sequence[str]) -> ServerCertificate:
    """Return the certificate of a shard. `hosts`: the names and addresses of the shard's host. The first one is the
    one that machines use.

    Raises `AuthorityBroken` if a file cannot be used or machines would reject the certificate.
    """
    chain, key = settings.BORG_LINK_CERTIFICATE, settings.BORG_LINK_KEY
    if not chain:
        return ServerCertificate(issue_server_certificate(hosts))
    given = ServerCertificate(Path(chain), Path(key) if key else None)
    check_given(given, hosts[0], bundle_pem())
    return given


def issue_server_certificate(hosts: Sequence[str], *, now: dt.datetime | None = None) -> Path:
    """Return the path of a file with a key and a certificate for a server with the names and addresses `hosts`.

    An existing certificate is kept if it contains all of `hosts`, the current authority signed it, and it is valid
    for more than `RENEW_DAYS` days. Raises `AuthorityBroken` if the authority's files cannot be used.
    """
    now = now or dt.datetime.now(dt.UTC)
    ensure_authority()
    authority = signer()
    path = folder() / "server.pem"
    with locked(folder()):
        if not _serves(path, hosts, authority[0], now):
            private = ec.generate_private_key(ec.SECP256R1())
            certificate = _sign(private, hosts, authority, now)
            content = key_pem(private) + certificate.public_bytes(serialization.Encoding.PEM)
            write_whole(path, content, 0o600)
    return path


def check_given(given: ServerCertificate, host: str, authority: str) -> None:
    """Check the certificate `given` of the server `host`. Raises `AuthorityBroken` if machines that trust only
    `authority` (in PEM form) would reject it.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    where = f"BORG_LINK_CERTIFICATE={given.chain}"
    try:
        given.load_into(server)
        client.load_verify_locations(cadata=authority)
        _shake_hands(server, client, host)
    except ssl.SSLCertVerificationError as error:
        raise AuthorityBroken(
            f"{where}: machines that trust {folder() / 'ca.pem'} and connect to {host} would reject this certificate:"
            f" {error.verify_message}. Give the whole chain of a certificate that this authority issued for {host}"
        ) from error
    except (OSError, ValueError) as error:
        raise AuthorityBroken(
            f"{where}: {error}; set BORG_LINK_CERTIFICATE to the file of the chain and BORG_LINK_KEY to the file of its"
            " key, both in PEM form and without a password"
        ) from error


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Test a certificate by a TLS handshake in memory, without a network. The arguments are the TLS contexts of a
    shard and a Borglet.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(8):
        if not sides:
            return
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
    raise ValueError("the certificate cannot be used, because a TLS handshake that tests it did not complete")


def _sign(
    private: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    now: dt.datetime,
) -> x509.Certificate:
    issuer, issuer_key = authority
    until = min(now + dt.timedelta(days=SERVER_DAYS), issuer.not_valid_after_utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Borg link")]))
        .issuer_name(issuer.subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _serves(path: Path, hosts: Sequence[str], authority: x509.Certificate, now: dt.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        certificate.verify_directly_issued_by(authority)
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
