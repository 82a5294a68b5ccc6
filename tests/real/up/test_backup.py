"""Tests of backup files of a home, without a database: their permissions, lists of contents, and damage.

An acceptance test makes and restores a whole backup.
"""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from portal.up import engines
from portal.up.backup import BackupError, restore, save
from portal.up.home import Home
from portal.up.options import Options

PACKAGES = ("packages/cc/ab/abcd", "packages/.drafts/borg-package-x")


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    home = Home(folder / "home")
    home.prepare()
    home.secrets_read()
    for name in ("authority/ca.pem", "borglet/identity.json", "borglet/tasks/0/log", *PACKAGES):
        path = home.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    engines.prepare_postgres(home.path).sockets.rmdir()
    save(home, folder / "backup.tar")
    with pytest.raises(BackupError, match="already exists"):
        save(home, folder / "backup.tar")
    return folder / "backup.tar"


def test_a_backup_is_private_and_lists_what_it_holds(backup: Path) -> None:
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in backup.parent.iterdir() if "partial" in path.name] == []
    with tarfile.open(backup) as tar:
        names = tar.getnames()
    assert names[0] == "manifest.json"
    assert set(names[1:]) == {
        "database.dump",
        "secrets.json",
        "layout",
        "authority/ca.pem",
        "borglet/identity.json",
        PACKAGES[0],
    }


def test_a_home_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"contains no data to save; set BORG_HOME"):
        save(Home(tmp_path / "nowhere"), tmp_path / "x.tar")


def test_a_home_in_use_is_not_restored_over(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(BackupError, match=r"exists and is not empty.*move the folder away"):
        restore(Options.read({"BORG_HOME": str(tmp_path)}), backup)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


Members = list[tuple[tarfile.TarInfo, bytes]]


def _flip(members: Members) -> None:
    info, content = members[1]
    members[1] = (info, bytes([content[0] ^ 1]) + content[1:])


def _sneak(members: Members) -> None:
    info = tarfile.TarInfo("../escaped")
    members.append((info, b""))


def _sneak_listed(members: Members) -> None:
    manifest = json.loads(members[0][1])
    manifest["files"]["../escaped"] = {"bytes": 0, "sha256": "e3b0c442"}
    members[0] = (members[0][0], json.dumps(manifest).encode())
    _sneak(members)


def _newer(members: Members) -> None:
    manifest = json.loads(members[0][1]) | {"format": 99, "version": "9.9"}
    members[0] = (members[0][0], json.dumps(manifest).encode())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_flip, "the checksum of .* is wrong"),
        (lambda members: members.pop(), "is missing"),
        (lambda members: members.pop(0), "does not begin with a manifest"),
        (_sneak, r"contains '\.\./escaped', which is not in its manifest"),
        (_sneak_listed, r"contains '\.\./escaped'"),
        (_newer, r"made by version 9\.9, which is newer"),
        (lambda members: members.__setitem__(0, (members[0][0], b"{}")), "is damaged"),
    ],
)
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    backup: Path, tmp_path: Path, change: Callable[[Members], object], sentence: str
) -> None:
    with tarfile.open(backup) as tar:
        members = [(info, opened.read()) for info in tar if (opened := tar.extractfile(info))]
    change(members)
    damaged = tmp_path / "damaged.tar"
    with tarfile.open(damaged, "w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with pytest.raises(BackupError, match=sentence):
        restore(Options.read({"BORG_HOME": str(tmp_path / "new")}), damaged)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.tar"]


def test_a_truncated_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.tar"
    cut.write_bytes(backup.read_bytes()[:3000])
    with pytest.raises(BackupError, match="is damaged"):
        restore(Options.read({"BORG_HOME": str(tmp_path / "new")}), cut)
