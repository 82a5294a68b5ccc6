"""Tests of packing a directory into a package archive."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from borglet.packages.archives.build import CannotPack, pack
from borglet.packages.archives.manifest import Manifest
from borglet.packages.archives.unpacking import TAR, TAR_GZIP, inspect
from tests.real.packages.archives import contents, unpacked


def filled(root: Path, names: list[str], mtime: int) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
        os.utime(root / name, (mtime, mtime))
    (root / names[0]).chmod(0o700 + mtime % 8)
    (root / "link").symlink_to(names[0])
    return root


@pytest.mark.parametrize("format_", [TAR, TAR_GZIP])
def test_the_same_files_give_the_same_bytes(tmp_path: Path, format_: str) -> None:
    names = ["b/two", "a/one", "ü" * 80, "c"]
    first = filled(tmp_path / "first", names, 1000)
    second = filled(tmp_path / "second", names[:1] + names[:0:-1], 2001)
    outs = [io.BytesIO(), io.BytesIO()]
    packed = [pack(root, out, format_=format_) for root, out in zip((first, second), outs, strict=True)]
    assert packed[0] == packed[1]
    raw = outs[0].getvalue()
    assert raw == outs[1].getvalue()
    assert packed[0].digest == f"sha256:{hashlib.sha256(raw).hexdigest()}"
    assert (packed[0].size_bytes, packed[0].entries) == (len(raw), inspect(outs[0], format_).entries)
    unpacked(outs[0], tmp_path / "tree", format_)
    assert contents(tmp_path / "tree") == contents(first)


def test_a_manifest_given_takes_the_place_of_the_directorys_own(tmp_path: Path) -> None:
    (tmp_path / "borg-package.json").write_text('{"name": "old"}')
    out = io.BytesIO()
    pack(tmp_path, out, format_=TAR)
    assert inspect(out, TAR).manifest == Manifest("old")
    out = io.BytesIO()
    pack(tmp_path, out, format_=TAR, manifest=Manifest("new", "2"))
    assert inspect(out, TAR).manifest == Manifest("new", "2")


def test_what_machines_would_refuse_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(CannotPack, match="not a directory"):
        pack(tmp_path / "missing", io.BytesIO())
    with pytest.raises(CannotPack, match=r"format: unknown format 'zip'; use tar or tar\+gzip"):
        pack(tmp_path, io.BytesIO(), format_="zip")
    link = tmp_path / "out"
    link.symlink_to("/etc/passwd")
    with pytest.raises(
        CannotPack, match="machines would reject the package: 'out': a link to '/etc/passwd' points outside"
    ):
        pack(tmp_path, io.BytesIO())
    link.unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CannotPack, match="'pipe': a package can hold only files, directories and links"):
        pack(tmp_path, io.BytesIO())
