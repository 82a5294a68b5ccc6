"""Write the settings, secrets and certificates of three control hosts into a folder, for `install-control-host`.

    .venv/bin/python deploy/ha/prepare.py --url https://borg.example.org --out /root/borg-ha \
        c1=10.0.0.11 c2=10.0.0.12 c3=10.0.0.13

The folder is for all three hosts, and is secret. If it exists, its secrets stay, and only certificates and files of
addresses are made again: to renew certificates, run the same command again before CERTIFICATE_DAYS have passed.

    borg.env                      settings of the Borg processes: change them here
    host.c1.env …                 name and addresses of a host, for the engines
    tls/host.crt, host.key        certificate of the engines of each control host, from the authority tls/ca.crt
    tls/borg.crt, borg.key        certificate of the Borg processes, for web and as clients of PostgreSQL and Redis,
                                  from an authority of its own: etcd and Patroni do not trust it
    tls/both.crt                  both authorities
    tls/portal.crt, portal.key    certificate that browsers see: replace it by one of a known authority
    authority/                    the authority of the machines (BORG_AUTHORITY)
    keys/                         keys of the authorities in tls/; no host needs them, so store them elsewhere
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scheduling.identity.authority import SKEW, key_pem, load_pair, make_authority, write_pair, write_whole  # noqa: E402

CERTIFICATE_DAYS = 730
_ANY = "0.0.0.0"  # noqa: S104
_TLS = "/etc/borg/tls"
_SHARED = "/srv/borg"  # a folder that all control hosts share
_LEADER = "127.0.0.1:5433"  # HAProxy of the same host passes connections on to the leader of PostgreSQL
# A client notices within five seconds that a server has vanished: while it connects, writes or waits.
_CLIENT = (
    "target_session_attrs=read-write&connect_timeout=2&tcp_user_timeout=5000"
    "&keepalives_idle=2&keepalives_interval=1&keepalives_count=3"
    f"&sslmode=verify-full&sslrootcert={_TLS}/ca.crt&sslcert={_TLS}/borg.crt&sslkey={_TLS}/borg.key"
)
Hosts = Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the folder. Return the exit status."""
    parser = argparse.ArgumentParser(prog="prepare.py", description="Prepare the installation of three control hosts.")
    parser.add_argument("hosts", nargs=3, metavar="NAME=ADDRESS", help="name of a control host, and its address")
    parser.add_argument("--url", required=True, help="URL of the portal, such as https://borg.example.org")
    parser.add_argument("--link", default="", help="URL for machines; default: the host of --url with port 8443")
    parser.add_argument("--listen", default="", help="address that all hosts listen on; default: their own addresses")
    parser.add_argument(
        "--without-haproxy",
        action="store_true",
        help="processes connect to PostgreSQL directly, without HAProxy on their host, as on Kubernetes",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write; keep it secret")
    options = parser.parse_args(arguments)
    hosts = dict(one.partition("=")[::2] for one in options.hosts)
    url = urlsplit(options.url)
    if len(set(hosts.values())) != 3 or not all(hosts.values()):
        parser.error("the hosts need three names and three addresses: c1=10.0.0.11 c2=10.0.0.12 c3=10.0.0.13")
    if url.scheme != "https" or not url.hostname or url.path:
        parser.error(f"--url {options.url} is not of the form https://HOST; give the address that browsers use")
    link = options.link or f"https://{url.hostname}:8443"
    options.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, name in enumerate(hosts):
        _write(options.out / f"host.{name}.env", host_env(hosts, number, options.listen), 0o644)
    if not (options.out / "borg.env").exists():
        databases = _LEADER if not options.without_haproxy else ",".join(f"{one}:5432" for one in hosts.values())
        _write(options.out / "borg.env", settings(hosts, options.url, link, databases), 0o640)
    if not (options.out / "authority" / "ca.pem").exists():
        (options.out / "authority").mkdir(mode=0o700, exist_ok=True)
        write_pair(options.out / "authority", "ca", *make_authority())
    write_certificates(options.out, hosts, url.hostname)
    print(f"wrote {options.out}: run deploy/ha/install-control-host on {', '.join(hosts)}")
    return 0


def host_env(hosts: Hosts, number: int, listen: str) -> str:
    """Return the file with the names and addresses that the engines of one host need."""
    name, address = list(hosts.items())[number]
    listen = listen or address
    values = {
        "BORG_HA_NAME": name,
        "BORG_HA_ADDRESS": address,
        "BORG_HA_LISTEN": listen,
        **{f"BORG_HA_HOST_{place + 1}": each for place, each in enumerate(hosts.values())},
        "BORG_HA_BACKUPS": f"{_SHARED}/backups",
        "BORG_HA_BACKUPS_KEEP": "7",
        "ETCD_NAME": name,
        "ETCD_INITIAL_CLUSTER": ",".join(f"{one}=https://{each}:2380" for one, each in hosts.items()),
        "ETCD_LISTEN_PEER_URLS": f"https://{listen}:2380",
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"https://{address}:2380",
        "ETCD_LISTEN_CLIENT_URLS": f"https://{listen}:2379",
        "ETCD_ADVERTISE_CLIENT_URLS": f"https://{address}:2379",
        "PATRONI_NAME": name,
        "PATRONI_ETCD3_HOSTS": ",".join(f"{each}:2379" for each in hosts.values()),
        "PATRONI_RESTAPI_LISTEN": f"{listen}:8008",
        "PATRONI_RESTAPI_CONNECT_ADDRESS": f"{address}:8008",
        "PATRONI_POSTGRESQL_LISTEN": f"{listen}:5432",
        "PATRONI_POSTGRESQL_CONNECT_ADDRESS": f"{address}:5432",
    }
    head = f"# Control host {name}, written by deploy/ha/prepare.py.\n"
    return head + "".join(f"{key}={value}\n" for key, value in values.items())


def settings(hosts: Hosts, url: str, link: str, databases: str) -> str:
    """Return deploy/borg.env with the values of this installation, and new secrets. `databases`: where processes find
    the leader of PostgreSQL.
    """
    addresses = list(hosts.values())
    portal = urlsplit(url).hostname
    values = {
        "BORG_DATABASE_URL": f"postgresql://borg@{databases}/borg?{_CLIENT}",
        "BORG_REDIS_URL": f"rediss+sentinel://{','.join(f'{one}:26379' for one in addresses)}/borg"
        f"?ssl_ca_certs={_TLS}/ca.crt&ssl_certfile={_TLS}/borg.crt&ssl_keyfile={_TLS}/borg.key",
        "BORG_SECRET_KEY": secrets.token_urlsafe(64),
        "BORG_ARCHIVE_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "BORG_SECRET_KEYS": base64.b64encode(secrets.token_bytes(32)).decode(),
        "BORG_PORTAL_URL": url,
        "BORG_ALLOWED_HOSTS": ",".join((str(portal), *addresses, "127.0.0.1", "localhost")),
        "BORG_WEB_HOST": _ANY,
        "BORG_WEB_CERTIFICATE": f"{_TLS}/borg.crt",
        "BORG_WEB_KEY": f"{_TLS}/borg.key",
        "BORG_LINK_HOST": _ANY,
        "BORG_LINK_PORT": "18443",
        "BORG_LINK_URL": link,
        "BORG_DNS_HOST": _ANY,
        "BORG_DNS_METRICS_PORT": "9153",  # on 127.0.0.1
        "BORG_DNS_RESOLVERS": ",".join(f"{one}@5353" for one in addresses if _is_address(one)),
        "BORG_PACKAGE_STORE": f"file://{_SHARED}/packages",
        "BORG_ARCHIVE": f"file://{_SHARED}/archive",
    }
    text = (ROOT / "deploy" / "borg.env").read_text()
    for key, value in values.items():
        text, found = re.subn(rf"^{key}=.*$", lambda _, line=f"{key}={value}": line, text, flags=re.MULTILINE)
        assert found == 1, key
    proxies = f"FORWARDED_ALLOW_IPS={','.join(('127.0.0.1', *addresses))}"
    return f"{text}\n# Addresses of the proxies whose X-Forwarded-For the web processes believe.\n{proxies}\n"


def write_certificates(out: Path, hosts: Hosts, portal: str) -> None:
    """Write the authorities of the engines and of the Borg processes if they are missing, and new certificates of them.
    Keep a certificate of the portal that another authority has issued.
    """
    tls, keys = out / "tls", out / "keys"
    for folder in (tls, keys):
        folder.mkdir(mode=0o700, exist_ok=True)
    authorities = {}
    for name in ("ca", "borg-ca"):
        if not (keys / f"{name}.key").exists():
            write_pair(keys, name, *make_authority())
        authorities[name] = load_pair(keys, name)
    engines, borg = (pair[0].public_bytes(Encoding.PEM) for pair in authorities.values())
    write_whole(tls / "ca.crt", engines, 0o644)
    write_whole(tls / "both.crt", engines + borg, 0o644)
    names = [*hosts, *hosts.values(), "localhost", "127.0.0.1"]
    for name, issuer, alternatives in (
        ("host", "ca", ["borg-host", *names]),
        ("borg", "borg-ca", ["borg", *names]),
        ("portal", "ca", [portal]),
    ):
        authority, key = authorities[issuer]
        path = tls / f"{name}.crt"
        if name == "portal" and path.exists() and not _issued_by(authority, path):
            continue
        certificate, own = _certificate(authority, key, alternatives)
        write_whole(tls / f"{name}.key", key_pem(own), 0o600)
        write_whole(path, certificate.public_bytes(Encoding.PEM), 0o644)


def _certificate(
    authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, names: Sequence[str]
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return a new certificate for servers and clients, and its key. `names`: its names, the common name first."""
    own = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    alternatives = [x509.IPAddress(ip_address(one)) if _is_address(one) else x509.DNSName(one) for one in names]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + dt.timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, own


def _issued_by(authority: x509.Certificate, path: Path) -> bool:
    try:
        x509.load_pem_x509_certificate(path.read_bytes()).verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        return False
    return True


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _write(path: Path, text: str, mode: int) -> None:
    write_whole(path, text.encode(), mode)


if __name__ == "__main__":
    sys.exit(main())
