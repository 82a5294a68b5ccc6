"""Tests of the replacement of a machine's secret: after a crash at any step, a stored secret still opens the link."""

from __future__ import annotations

import hashlib
import logging
import stat
from pathlib import Path

import pytest

from borglet.fleet import FleetKeeper, FleetSecrets, load_secrets
from borglet.identity.credentials import BadAuthority, Credentials, pinned_context
from borglet.identity.saved_state import DiskStore, Identity
from borglet.messages import authority_digest
from tests.doubles import MemoryKeeper
from tests.real.borglet.cell import Authority


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


class Cell:
    """The cell's record of one machine's secret, with the rules of `scheduling.machines.credentials`.

    `known`: digest of the valid secret. `next`: digest of an offered secret that was not used yet.
    """

    def __init__(self, secret: str) -> None:
        self.known, self.next = digest(secret), ""

    def dials(self, credentials: Credentials) -> bool:
        """Try to connect with each secret of the machine in turn, and return whether the cell admitted one."""
        while True:
            secret = credentials.authorization().partition(":")[2]
            if digest(secret) in (self.known, self.next):
                if digest(secret) == self.next:
                    self.known, self.next = self.next, ""
                credentials.admitted()
                return True
            if not credentials.refused():
                return False


class FullDisk(MemoryKeeper):
    """A store of credentials whose saves fail while `full` is true."""

    full = False

    def keep_identity(self, identity: Identity) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().keep_identity(identity)


@pytest.fixture
def home(tmp_path: Path, authority: Authority) -> DiskStore:
    store = DiskStore(tmp_path / "home")
    store.save_identity(Identity("m1", "aa", "first"), authority=authority.pem)
    return store


def started(store: DiskStore) -> Credentials:
    """Return the credentials as a Borglet reads them from the disk when it starts."""
    identity = store.identity()
    assert identity is not None
    return Credentials(identity, store.authority(), store)


def test_a_secret_is_replaced(home: DiskStore) -> None:
    cell, credentials = Cell("first"), started(home)
    assert cell.dials(credentials)
    cell.next = credentials.offer()
    assert credentials.accepted(cell.next)
    assert cell.dials(credentials)
    kept = home.identity()
    assert kept is not None
    assert (digest(kept.secret), kept.next, cell.next) == (cell.known, "", "")
    assert not Cell("other").dials(started(home))
    assert cell.known != digest("first")  # the old secret is void, also for a thief


@pytest.mark.parametrize("crashed_after", range(6))
def test_a_crash_at_any_step_leaves_a_secret_that_opens_the_link(home: DiskStore, crashed_after: int) -> None:
    cell, credentials = Cell("first"), started(home)
    steps = 0

    def crash() -> None:
        nonlocal steps, credentials
        steps += 1
        if steps == crashed_after:
            credentials = started(home)

    assert cell.dials(credentials)
    crash()
    offer = credentials.offer()
    crash()  # the secret is on the disk, but was never sent to the cell
    assert cell.dials(credentials)
    cell.next = offer
    crash()  # the cell knows both secrets, but its answer was lost
    if credentials.offer() == cell.next:  # the cell asks again, and confirms the offer
        credentials.accepted(cell.next)
    crash()
    admitted_by_crash = Credentials(home.identity() or Identity("", "", ""), home.authority(), MemoryKeeper())
    if crashed_after == 5:  # the cell admits the machine, which dies before it stores that
        assert cell.dials(admitted_by_crash)
        credentials = started(home)
    assert cell.dials(credentials)
    assert cell.dials(started(home))
    assert (cell.known, cell.next) == (offer, "")


def test_an_offer_is_on_the_disk_before_it_is_made(home: DiskStore, tmp_path: Path) -> None:
    credentials = started(home)
    offer = credentials.offer()
    kept = home.identity()
    assert kept is not None
    assert (kept.secret, digest(kept.next)) == ("first", offer)
    assert credentials.offer() == started(home).offer() == offer
    assert stat.S_IMODE((tmp_path / "home" / "identity.json").stat().st_mode) == 0o600
    assert kept.next not in repr(kept)


def test_a_full_disk_makes_no_offer_and_loses_no_secret(authority: Authority) -> None:
    keeper = FullDisk()
    cell, credentials = Cell("first"), Credentials(Identity("m1", "aa", "first"), authority.pem, keeper)
    keeper.full = True
    assert credentials.offer() == ""
    assert cell.dials(credentials)
    keeper.full = False
    cell.next = credentials.offer()
    credentials.accepted(cell.next)
    keeper.full = True
    assert cell.dials(credentials)
    assert cell.dials(credentials)  # though the disk still holds both
    assert keeper.identity is not None
    assert cell.dials(Credentials(keeper.identity, authority.pem, keeper))


def test_a_secret_that_was_never_offered_is_not_dialled_with(home: DiskStore, caplog: pytest.LogCaptureFixture) -> None:
    credentials = started(home)
    assert not credentials.accepted(digest("a stranger's"))
    assert credentials.authorization() == "Bearer m1:first"
    assert "did not offer" in caplog.text


def test_a_machine_whose_secrets_are_all_void_tries_each_in_turn(home: DiskStore) -> None:
    cell, credentials = Cell("none of them"), started(home)
    credentials.offer()
    tried = set()
    for _ in range(4):
        tried.add(credentials.authorization())
        if not credentials.refused():
            assert not cell.dials(credentials)
    assert len(tried) == 2


def test_new_authorities_are_kept_and_trusted(
    home: DiskStore, authority: Authority, other_authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = started(home)
    before = credentials.context
    both = authority.pem + other_authority.pem
    credentials.apply_welcome(authority=authority.pem, api_url="")
    assert credentials.context is before
    credentials.apply_welcome(authority=both, api_url="https://portal:443")
    assert len(credentials.context.get_ca_certs()) == 2
    again = started(home)
    assert (again.authority, again.api_url) == (authority_digest(both), "https://portal:443")
    with caplog.at_level(logging.ERROR):
        credentials.apply_welcome(authority="-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----", api_url="")
    assert "cannot use the cell's new authorities" in caplog.text
    assert started(home).authority == authority_digest(both)


def test_the_digest_of_authorities_knows_no_order(authority: Authority, other_authority: Authority) -> None:
    one, other = authority.pem, other_authority.pem
    assert authority_digest(one + other) == authority_digest("# two\n" + other + one)
    assert authority_digest(one) != authority_digest(other)
    for text in ("", "nothing", "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----"):
        with pytest.raises(BadAuthority, match="not a certificate in PEM form"):
            pinned_context(text)
        with pytest.raises(ValueError, match="not a certificate in PEM form"):
            authority_digest(text)


def test_the_machines_of_a_fleet_keep_their_secrets_in_one_file(tmp_path: Path, authority: Authority) -> None:
    secrets = FleetSecrets("aa", authority.pem, {"m1": "first", "m2": "second"})
    keeper = FleetKeeper(tmp_path, secrets)
    credentials = Credentials(secrets.identity("m1"), secrets.authority, keeper)
    offer = credentials.offer()
    kept = load_secrets(tmp_path)
    assert (digest(kept.next["m1"]), kept.secrets["m1"], kept.secrets["m2"]) == (offer, "first", "second")
    assert credentials.accepted(offer)
    credentials.authorization()
    credentials.admitted()
    kept = load_secrets(tmp_path)
    assert (digest(kept.secrets["m1"]), kept.next) == (offer, {})


def test_a_fleet_writes_no_secrets_that_it_has_already_stored(tmp_path: Path) -> None:
    secrets = FleetSecrets("cc", "pem", {"m1": "s1", "m2": "s2"}, {"m2": "n2"})
    keeper = FleetKeeper(tmp_path, secrets)
    for hostname in secrets.secrets:
        keeper.keep_identity(secrets.identity(hostname))
    assert not (tmp_path / "fleet.json").exists()
    keeper.keep_identity(Identity("m2", "cc", "n2"))
    assert load_secrets(tmp_path) == FleetSecrets("cc", "pem", {"m1": "s1", "m2": "n2"})
