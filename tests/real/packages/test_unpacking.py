"""Tests of unpacking archives: valid ones give their trees, and each kind of hostile one is rejected."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import BinaryIO

import pytest

from borglet.packages.archives.disk import digests_of
from borglet.packages.archives.limits import ArchiveLimits, ArchiveRefused
from borglet.packages.archives.unpacking import FORMATS, OCI, TAR, TAR_GZIP, TAR_ZSTD, inspect, unpack
from tests.real.packages.archives import (
    END,
    archive,
    contents,
    extended,
    file,
    folder,
    hard_link,
    header,
    image_of,
    link,
    made_by_tarfile,
    pax,
    pax_record,
    unpacked,
    zipped,
)


def a_directory(root: Path) -> Path:
    root.mkdir()
    (root / "bin").mkdir()
    (root / "bin" / "serve").write_bytes(b"#!/bin/sh\n" * 1000)
    (root / "bin" / "serve").chmod(0o755)
    (root / "bin" / "start").symlink_to("serve")
    (root / "data").mkdir()
    (root / "data" / "größe.txt").write_text("ä")
    long = "n" * 120
    (root / "data" / long).mkdir()
    (root / "data" / long / ("f" * 200)).write_bytes(b"deep")
    (root / "data" / "to").symlink_to(f"{long}/{'f' * 200}")
    os.link(root / "data" / "größe.txt", root / "data" / "same.txt")
    (root / "empty").mkdir()
    return root


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_others_pack_is_unpacked_as_it_was(tmp_path: Path, format_: int, compressed: bool) -> None:
    source = a_directory(tmp_path / "source")
    packed = made_by_tarfile(source, format_, compressed=compressed)
    found = unpacked(packed, tmp_path / "tree", TAR_GZIP if compressed else TAR)
    assert contents(tmp_path / "tree") == contents(source)
    same = [(tmp_path / "tree" / "data" / name).stat().st_ino for name in ("größe.txt", "same.txt")]
    assert same[0] == same[1]
    assert found.digests == digests_of(tmp_path / "tree", contents=True)
    assert found == inspect(packed, TAR_GZIP if compressed else TAR)


def test_nothing_of_a_tree_may_be_written_and_nothing_of_it_is_privileged(tmp_path: Path) -> None:
    unpacked(archive(file("a/suid", mode=0o6755), file("a/open", mode=0o666)), tmp_path / "tree")
    modes = {name: stat.S_IMODE((tmp_path / "tree" / name).stat().st_mode) for name in (".", "a", "a/suid", "a/open")}
    assert modes == {".": 0o555, "a": 0o555, "a/suid": 0o555, "a/open": 0o444}


def test_a_manifest_is_read_where_there_is_one(tmp_path: Path) -> None:
    content = b'{"name": "web", "version": "1.2", "later": 1}'
    found = unpacked(archive(file("./borg-package.json", content), file("a")), tmp_path / "tree")
    assert (found.manifest.name, found.manifest.version) == ("web", "1.2")
    assert unpacked(archive(file("a")), tmp_path / "other").manifest.name == ""
    with pytest.raises(ArchiveRefused, match=r"borg-package.json: Expected `str`, got `int` - at `\$.name`"):
        inspect(archive(file("borg-package.json", b'{"name": 3}')), TAR)


def test_links_inside_are_kept_also_to_what_comes_later(tmp_path: Path) -> None:
    parts = [link("a/b/l", "../../c/file"), folder("c"), file("c/file", b"found"), link("nowhere", "x/../y")]
    unpacked(archive(*parts), tmp_path / "tree")
    assert (tmp_path / "tree/a/b/l").read_bytes() == b"found"


HOSTILE: dict[str, tuple[BinaryIO, str]] = {
    "absolute path": (archive(file("/etc/passwd")), "'/etc/passwd': '/etc/passwd' is an absolute path"),
    "climbing path": (archive(file("a/../../b")), "'a/../../b': 'a/../../b' contains '..'"),
    "climbing directory": (archive(folder("..")), "'..': '..' contains '..'"),
    "absolute link": (archive(link("l", "/etc")), "'l': a link to '/etc' points outside the package"),
    "climbing link": (archive(link("a/l", "../../etc")), "'a/l': the link to '../../etc' points outside"),
    "link that climbs through another": (
        archive(folder("a/b/c"), link("a/b/c/s", "../../.."), link("a/b/c/l", "s/../z")),
        "'a/b/c/l': the link to 's/../z' points outside",
    ),
    "links in circles": (archive(link("a", "b"), link("b", "a")), "'a': the link to 'b' forms a loop"),
    "link to itself and up": (archive(link("c", "c//b/..")), "'c': the link to 'c//b/..' forms a loop"),
    "link whose way is laid later": (
        archive(link("a/b/l", "s/../../z"), folder("a/b/s"), hard_link("x", "a/b/l")),
        "'x': the hard link to 'a/b/l', which is a symbolic link",
    ),
    "write through a link": (archive(link("a", "b"), file("a/x")), "'a/x': the path goes through the link 'a'"),
    "write through a link out": (archive(link("a", ".."), file("a/x")), "'a/x': the path goes through the link 'a'"),
    "directory over a link": (
        archive(link("a", "."), folder("a")),
        "the archive has 'a' as a symbolic link and as a directory",
    ),
    "file over a link": (archive(link("a", "b"), file("a")), "'a': the archive has this entry twice"),
    "hard link out": (archive(hard_link("h", "../h")), "'h': '../h' contains '..'"),
    "hard link to the host": (archive(hard_link("h", "/etc/shadow")), "'h': '/etc/shadow' is an absolute path"),
    "hard link to nothing": (
        archive(hard_link("h", "etc")),
        "'h': the hard link to 'etc', which is not an earlier entry",
    ),
    "hard link to the root": (archive(hard_link("h", ".")), "'h': the hard link to '.', which is not an earlier entry"),
    "character device": (archive(header("null", b"3")), "'null': it is a character device"),
    "block device": (archive(header("sda", b"4")), "'sda': it is a block device"),
    "fifo": (archive(header("pipe", b"6")), "'pipe': it is a fifo"),
    "sparse file of GNU": (archive(header("s", b"S")), "'s': it is a sparse file"),
    "sparse file of pax": (
        archive(extended(pax_record("GNU.sparse.major", "1")), file("s")),
        "a file is sparse; pack it without",
    ),
    "unknown type": (archive(header("v", b"V")), "'v': its entry type b'V' is unknown"),
    "file twice": (archive(file("a"), file("./a")), "'./a': the archive has this entry twice"),
    "file and directory": (
        archive(file("a"), file("a/b")),
        "'a/b': the archive has 'a' as a file and as a directory; remove one",
    ),
    "directory and file": (
        archive(folder("a"), file("a")),
        "'a': the archive has this entry twice, or a file where a directory is needed",
    ),
    "file as root": (archive(file("./")), "'./': only a directory can be the root"),
    "NUL in a name": (archive(extended(pax(path="a\0b")), file("x")), "contains a control character"),
    "newline in a name": (archive(file("a\nb")), "contains a control character"),
    "newline in a target": (archive(link("a", "b\nc")), "contains a control character"),
    "no UTF-8": (archive(file(b"a\xff")), r"b'a\xff': the name is not valid UTF-8"),
    "no name": (archive(file("")), "'': the path is empty"),
    "no target": (archive(link("a", "")), "'a': the link's target is empty"),
    "long name": (archive(extended(pax(path="d/" * 600)), file("x")), "the limit is 1024"),
    "long component": (archive(extended(pax(path="n" * 256)), file("x")), "more than 255 bytes"),
    "deep": (archive(extended(pax(path="d/" * 70 + "f")), file("x")), "its path has more than 64 components"),
    "long target": (archive(extended(pax(linkpath="../" * 400)), link("a", "b")), "the limit is 1024"),
    "huge extended header": (archive(header("x", b"L", size=2**33)), "an extended header has 8589934592 bytes"),
    "extended headers without end": (
        archive(extended(pax(path="a")), extended(pax(path="b")), file("x")),
        "an entry has two extended headers of the same kind",
    ),
    "extended header alone": (archive(extended(pax(path="a"))), "the archive ends after an extended header"),
    "path given twice": (
        archive(extended(pax_record("path", "a") + pax_record("path", "b")), file("x")),
        "the extended headers of an entry set path twice",
    ),
    "path given by two kinds": (
        archive(extended(b"a\0", b"L"), extended(pax(path="b")), file("x")),
        "the extended headers of an entry set path twice",
    ),
    "path for all": (archive(extended(pax(path="a"), b"g"), file("x")), "sets path, which is not supported"),
    "damaged pax": (archive(extended(b"99 path=a\n"), file("x")), "a pax header is damaged"),
    "pax of length 0": (archive(extended(b"0 path=a\n"), file("x")), "a pax header is damaged"),
    "negative size": (archive(header("a", size=b"\xff" * 12)), "is not an octal number"),
    "negative pax size": (archive(extended(pax(size="-1")), file("x")), "its size '-1' is not a number"),
    "no number": (archive(header("a", size=b"12x")), "size b'12x"),
    "declared bomb": (
        archive(header("a", size=b"\x80" + (2**40).to_bytes(11, "big"))),
        "'a': with the 1099511627776 bytes",
    ),
    "directory with content": (
        archive(header("a", b"5", size=512)),
        "it is a directory and must have no content, but it has 512 bytes",
    ),
    "link with content": (
        archive(header("a", b"2", size=9, target="b")),
        "it is a symbolic link and must have no content, but it has 9 bytes",
    ),
    "no archive": (io.BytesIO(b"root:x:0:0\n" * 200), "the archive: it is not a tar; pack it as tar or tar with gzip"),
    "bad checksum": (
        io.BytesIO(file("a") + b"x" + file("b")[1:] + END),
        "after the entry 'a': a header has the checksum",
    ),
    "cut short in a file": (io.BytesIO(header("a", size=1000) + b"x" * 600), "the archive ends 400 bytes too early"),
    "cut short after a file": (io.BytesIO(file("a")), "after the entry 'a': the archive ends too early"),
    "entries behind the end": (
        io.BytesIO(file("a") + END + file("b") + END),
        "the file has data after the end of the tar",
    ),
    "empty": (io.BytesIO(b""), "at the start of the archive: the archive ends too early"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_by_entry_and_leaves_nothing_outside(tmp_path: Path, name: str) -> None:
    hostile, message = HOSTILE[name]
    with pytest.raises(ArchiveRefused) as caught:
        unpacked(hostile, tmp_path / "tree")
    assert message in str(caught.value)
    assert os.listdir(tmp_path) == ["tree"]
    with pytest.raises(ArchiveRefused):
        inspect(hostile, TAR)


def test_a_bomb_is_noticed_before_it_has_unpacked() -> None:
    small = ArchiveLimits(ratio=10, ratio_free_bytes=2**20)
    bomb = zipped(file("zeros", bytes(2**23)))
    with pytest.raises(ArchiveRefused, match="a decompression bomb"):
        inspect(bomb, TAR_GZIP, limits=small)
    inspect(bomb, TAR_GZIP)


def test_a_maze_of_links_is_refused_in_time() -> None:
    maze = [link(f"l{number}", "./" * 40 + f"l{number + 1}") for number in range(39)]
    parts = [*maze, *[link(f"m{number}", "l0") for number in range(9000)]]
    with pytest.raises(ArchiveRefused, match="following the links of this archive takes too long"):
        inspect(archive(*parts), TAR)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[: len(raw) // 2], "incomplete"),
        (lambda raw: raw[:20] + b"\xff\xff" + raw[22:], "damaged"),
        (lambda raw: raw[:-1], "incomplete"),
        (lambda raw: raw[:-8] + bytes(8), "damaged"),
        (lambda raw: raw + b"x", "damaged|incomplete"),
        (lambda raw: b"no gzip at all", "damaged"),
        (lambda raw: b"", "incomplete"),
    ],
)
def test_damaged_gzip_is_refused(damage: object, message: str) -> None:
    raw = zipped(file("a", os.urandom(2000))).read()
    with pytest.raises(ArchiveRefused, match=message):
        inspect(io.BytesIO(damage(raw)), TAR_GZIP)  # type: ignore[operator]


def test_gzip_of_several_members_with_padding(tmp_path: Path) -> None:
    raw = file("a", b"hello") + END
    members = gzip.compress(raw[:300]) + gzip.compress(b"") + gzip.compress(raw[300:]) + bytes(100)
    unpacked(io.BytesIO(members), tmp_path / "tree", TAR_GZIP)
    assert contents(tmp_path / "tree") == {"a": (b"hello", False)}


def test_unknown_formats_and_zstd_are_refused_with_what_to_do() -> None:
    with pytest.raises(ArchiveRefused, match="pack it as tar\\+gzip"):
        inspect(archive(), TAR_ZSTD)
    with pytest.raises(ArchiveRefused, match="unknown format 'zip'; use one of tar, tar\\+gzip, oci"):
        inspect(archive(), "zip")
    assert FORMATS == (TAR, TAR_GZIP, OCI)


def test_a_link_planted_by_someone_else_is_not_followed(tmp_path: Path) -> None:
    """Replace a directory by a symbolic link while an archive is unpacked. No file may be written through the link."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "tree"
    target.mkdir()
    swapped = False

    def swap() -> None:
        nonlocal swapped
        if not swapped and (target / "a" / "one").exists():
            (target / "a").rename(target / "was")
            (target / "a").symlink_to(outside)
            swapped = True

    parts = [file("a/one"), file("b/x"), file("a/two")]
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        unpack(archive(*parts), TAR, target, checkpoint=swap)
    assert swapped
    assert os.listdir(outside) == []


def test_work_can_be_stopped_from_outside(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        inspect(archive(file("a")), TAR, checkpoint=stop)
    with pytest.raises(Stopped):
        inspect(image_of((file("a"),)), OCI, checkpoint=stop)
