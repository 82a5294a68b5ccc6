"""Tests of the Borglet's files on the disk, and of what a crash during a write leaves."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from borglet.files import replace_file
from borglet.identity.saved_state import DiskStore, HomeInUse, Identity, MemoryStore
from borglet.state.instructions import GivenUp, Remembered
from tests.doubles import FailingStore
from tests.unit.borglet.builders import check, desired, exited, key, run_task, stop_task

REMEMBERED = Remembered(
    desired(7, [run_task(health=check())], [stop_task(3)]), [GivenUp(key(5), 6, exited(1))], [key(9)]
)


@pytest.mark.parametrize("kind", [lambda home: DiskStore(home), lambda home: MemoryStore()])
def test_what_was_saved_is_loaded(tmp_path: Path, kind: type[DiskStore]) -> None:
    store = kind(tmp_path / "home")
    assert store.load() == Remembered()
    store.save(REMEMBERED)
    assert store.load() == REMEMBERED


def test_a_half_written_file_beside_the_old_one_does_no_harm(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.save(REMEMBERED)
    (tmp_path / "desired.json.new").write_bytes(b'{"desired": {"hist')
    assert DiskStore(tmp_path).load() == REMEMBERED
    store.save(Remembered())
    assert not (tmp_path / "desired.json.new").exists()


def test_an_unreadable_file_is_set_aside_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "desired.json").write_bytes(b"\0" * 100)
    assert DiskStore(tmp_path).load() == Remembered()
    assert f"cannot read {tmp_path}/desired.json (" in caplog.text
    (aside,) = tmp_path.glob("desired.json.unreadable.*")
    assert aside.read_bytes() == b"\0" * 100


def test_a_home_that_can_not_be_written_keeps_the_old_state(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    store.save(REMEMBERED)
    (tmp_path / "desired.json.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        store.save(Remembered())
    assert store.load() == REMEMBERED


def test_a_secret_file_is_private_even_over_a_loose_leftover(tmp_path: Path) -> None:
    (tmp_path / "secret.new").write_bytes(b"old")
    (tmp_path / "secret.new").chmod(0o666)
    replace_file(tmp_path / "secret", b"new", mode=0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_a_damaged_identity_says_what_to_do(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    assert store.identity() is None
    store.save_identity(Identity("m1", "aa", "secret"), authority="PEM")
    (tmp_path / "identity.json").write_text('{"hostname": "m1"}')
    with pytest.raises(ValueError, match=r"cannot read .*identity.json: .*`cell`.*join again with a new token"):
        store.identity()


def test_a_home_has_one_owner(tmp_path: Path) -> None:
    refused = pytest.raises(HomeInUse, match=rf"process id {os.getpid()} uses .*; stop it first")
    with DiskStore(tmp_path).lock(), refused, DiskStore(tmp_path).lock():
        pass
    with DiskStore(tmp_path).lock():
        pass


def test_the_failing_store_fails_and_keeps_what_it_had() -> None:
    store = FailingStore(REMEMBERED)
    store.error = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        store.save(Remembered())
    assert store.load() == REMEMBERED
