"""Tests of the link's certificate authority: it is replaced while machines are connected, or is a company's own."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import ssl
from io import StringIO
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from django.core.management import CommandError, call_command

from borglet.messages import Refusal, authority_digest
from quota.models import Record
from quota.vocabulary.errors import Conflict, Forbidden
from quota.vocabulary.permissions import Principal
from scheduling.identity import authority, authority_rotation
from scheduling.identity.authority import AuthorityBroken, bundle_pem
from scheduling.link.transport import certificate
from scheduling.models import Machine
from tests.integration import rows
from tests.integration.link_world import Link, Played, running_link

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    authority.ensure_authority()
    return tmp_path / "authority"


@pytest.fixture
def cell():
    return rows.a_cell()


def trusting(pem: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem)
    return context


def opens(link: Link, pem: str) -> bool:
    """Return whether a machine that trusts only these authorities (PEM) accepts the certificate of the link."""
    link.context = trusting(pem)
    try:
        return link.request("GET", "/healthz")[0] == 200
    except ssl.SSLCertVerificationError:
        return False


def restarted(running: contextlib.ExitStack) -> Link:
    """Start the link again, so that it reads its certificate again, and return it."""
    running.close()
    return running.enter_context(running_link())


def says(played: Played, pem: str) -> str:
    """Send a hello of a machine that trusts `pem`. Return the authorities (PEM) that the answer asks it to trust."""
    answer = played.hello(authority=authority_digest(pem))
    assert not isinstance(answer, Refusal), answer
    return answer.authority


def test_one_authority_takes_the_place_of_another_and_no_machine_is_shut_out(cell, home: Path) -> None:
    first = authority.authority_pem()
    with contextlib.ExitStack() as running:
        link = running.enter_context(running_link())
        with link.machine(cell) as machine:
            secret = machine.secret
        with link.dial("m1", secret) as socket:
            assert says(Played(socket, "m1", secret), first) == ""  # the answer contains nothing new
        staged = authority_rotation.stage(principal=rows.ME)
        with pytest.raises(Conflict, match="1 machines do not trust the staged authority yet: m1; wait"):
            authority_rotation.switch(principal=rows.ME)
        link = restarted(running)
        assert opens(link, first)
        with link.dial("m1", secret) as socket:
            both = says(Played(socket, "m1", secret), first)
        assert both.count("BEGIN CERTIFICATE") == 2
        with link.dial("m1", secret) as socket:
            assert says(Played(socket, "m1", secret), both) == ""
        assert Machine.objects.get().authority == authority_digest(both)
        assert authority_rotation.switch(principal=rows.ME) == staged == authority.fingerprint()
        link = restarted(running)
        assert opens(link, both)
        assert not opens(link, first)
        link.context = trusting(both)
        with link.dial("m1", secret) as socket:
            assert says(Played(socket, "m1", secret), both) == ""
        authority_rotation.retire(principal=rows.ME)
        authority_rotation.retire(principal=rows.ME)
        link = restarted(running)
        link.context = trusting(both)
        with link.dial("m1", secret) as socket:
            second = says(Played(socket, "m1", secret), both)
        assert second == authority.authority_pem()
        assert opens(link, second)
    kinds = Record.objects.filter(kind__startswith="authority.").order_by("revision")
    assert [record.kind for record in kinds] == ["authority.staged", "authority.switched", "authority.retired"]


def test_a_borglet_without_support_for_authorities_gets_none(cell) -> None:
    with running_link() as link, link.machine(cell) as machine:
        assert machine.session == 2
    authority_rotation.stage(principal=rows.ME)
    with running_link() as link, link.dial("m1", machine.secret) as socket:
        answer = Played(socket, "m1", machine.secret).hello()
        assert answer.authority == ""
    assert authority_rotation.standing().behind == ["m1"]
    assert authority_rotation.switch(principal=rows.ME, leave_behind=True)


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_switch_that_broke_off_is_finished_or_never_was(home: Path, written: int) -> None:
    """If replacing the authority stops after any number of files, a valid authority is in force, and it can go on."""
    before = authority.fingerprint()
    staged = authority_rotation.stage(principal=rows.ME)
    both = authority_digest(bundle_pem())
    for source, target in [("ca.pem", "old.pem"), ("next.key", "ca.key"), ("next.pem", "ca.pem")][:written]:
        shutil.copy(home / source, home / target)
    assert authority.fingerprint() == (before if written < 2 else staged)
    assert authority_digest(bundle_pem()) == both  # machines that trust it can connect at any step
    certificate.issue_server_certificate(["localhost"])
    if written < 2:
        assert authority_rotation.switch(principal=rows.ME) == staged
    assert not (home / "next.key").exists()
    assert authority.fingerprint() == staged


def test_only_one_is_staged_and_only_by_those_who_may(home: Path, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="no authority is staged"):
        authority_rotation.switch(principal=rows.ME)
    for step in (authority_rotation.stage, authority_rotation.switch, authority_rotation.retire):
        with pytest.raises(Forbidden):
            step(principal=Principal("eve"))
    (tmp_path / "bad.pem").write_text("nothing")
    with pytest.raises(AuthorityBroken, match="put a certificate in PEM form"):
        authority_rotation.stage(principal=rows.ME, certificate=tmp_path / "bad.pem", key=tmp_path / "bad.pem")
    assert not (home / "next.pem").exists()
    authority_rotation.stage(principal=rows.ME)
    with pytest.raises(Conflict, match="an authority is already staged"):
        authority_rotation.stage(principal=rows.ME)


def test_the_command_shows_how_far_it_is(cell, home: Path) -> None:
    rows.a_machine(cell, "m1")
    out = StringIO()
    call_command("authority", "stage", stdout=out)
    assert "0 of 1 machines trust these certificates\nmachines that do not trust all of them yet: m1" in out.getvalue()
    with pytest.raises(CommandError, match="1 machines do not trust"):
        call_command("authority", "switch", stdout=out)
    call_command("authority", "switch", "--leave-behind", stdout=out)
    out = StringIO()
    call_command("authority", "show", stdout=out)
    assert [line.split()[0] for line in out.getvalue().splitlines()[:2]] == ["ca", "old"]


# -- a certificate issued elsewhere


class Elsewhere:
    """A company's own certificate authority: a root with an RSA key, an issuer below it, and certificates for hosts."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.root_key, self.issuer_key, self.key = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(3)
        )
        self.root = self._issue(f"Root of {folder.name}", self.root_key, None, ca=True)
        self.issuer = self._issue(f"Issuer of {folder.name}", self.issuer_key, (self.root, self.root_key), ca=True)
        self.folder = folder

    def _issue(self, name, key, by, *, ca: bool, hosts: tuple[str, ...] = (), days: int = 30) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(by[0].subject if by else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=60))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(by[1] if by else key, hashes.SHA256())

    def write(self, *hosts: str, days: int = 30, chain: bool = True) -> tuple[Path, Path]:
        leaf = self._issue("link", self.key, (self.issuer, self.issuer_key), ca=False, hosts=hosts, days=days)
        certificates = [leaf, self.issuer] if chain else [leaf]
        pem = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)
        (self.folder / "chain.pem").write_bytes(pem)
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self.folder / "key.pem").write_bytes(key)
        return self.folder / "chain.pem", self.folder / "key.pem"

    def root_pem(self) -> str:
        return self.root.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture
def elsewhere(home: Path, settings, tmp_path: Path) -> Elsewhere:
    made = Elsewhere(tmp_path / "company")
    (home / "ca.key").unlink()
    (home / "ca.pem").write_text(made.root_pem())
    chain, key = made.write("localhost")
    settings.BORG_LINK_CERTIFICATE, settings.BORG_LINK_KEY = str(chain), str(key)
    settings.BORG_LINK_URL = "https://localhost:8443"
    return made


def test_machines_join_a_link_whose_certificate_was_issued_elsewhere(cell, elsewhere: Elsewhere) -> None:
    with running_link() as link:
        link.context = trusting(elsewhere.root_pem())
        link.context.check_hostname = False  # this test connects to an address, but the certificate has a name
        with link.machine(cell) as machine:
            machine.report(machine.poll_with_desired())
        assert link.request("GET", "/authority.pem")[1].decode() == elsewhere.root_pem()


def test_a_certificate_that_machines_would_refuse_is_refused_at_the_start(
    elsewhere: Elsewhere, settings, home: Path, tmp_path: Path
) -> None:
    def refusal() -> str:
        with pytest.raises(AuthorityBroken) as caught:
            certificate.server_certificate(["localhost"])
        return str(caught.value)

    certificate.server_certificate(["localhost"])
    elsewhere.write("other.example")
    assert "machines that trust" in refusal()
    assert "mismatch" in refusal()
    elsewhere.write("localhost", days=-1)
    assert "expired" in refusal()
    elsewhere.write("localhost", chain=False)
    assert "unable to get local issuer" in refusal()
    elsewhere.write("localhost")
    settings.BORG_LINK_KEY = str(tmp_path / "none.pem")
    assert "BORG_LINK_KEY" in refusal()
    (home / "ca.pem").unlink()
    assert "Put the certificate of its issuer there" in refusal()


def test_an_authority_kept_elsewhere_is_replaced_too(elsewhere: Elsewhere, settings, tmp_path: Path) -> None:
    other = Elsewhere(tmp_path / "other")
    (tmp_path / "root.pem").write_text(other.root_pem())
    authority_rotation.stage(principal=rows.ME, certificate=tmp_path / "root.pem")
    chain, key = other.write("localhost")
    settings.BORG_LINK_CERTIFICATE, settings.BORG_LINK_KEY = str(chain), str(key)
    certificate.server_certificate(["localhost"])  # the machines that have reported already trust it
    authority_rotation.switch(principal=rows.ME)
    assert authority.authority_pem() == other.root_pem()


def test_grants_are_signed_by_a_key_of_their_own_where_the_authoritys_is_kept_elsewhere(
    elsewhere: Elsewhere, home: Path
) -> None:
    authority.ensure_authority()
    known = x509.load_pem_x509_certificates(bundle_pem().encode())
    assert authority.signing_key().public_key() in [one.public_key() for one in known]
    with pytest.raises(AuthorityBroken):
        authority.signer()  # the key signs no certificate
    # The owner of this key cannot pose as the link: machines accept it neither as authority nor as server.
    certificate_, key = authority.load_pair(home, "grants")
    assert not certificate_.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    impostor = home / "impostor.pem"
    impostor.write_bytes(authority.key_pem(key) + certificate_.public_bytes(serialization.Encoding.PEM))
    with pytest.raises(AuthorityBroken, match="machines that trust"):
        certificate.check_given(certificate.ServerCertificate(impostor), "localhost", bundle_pem())
