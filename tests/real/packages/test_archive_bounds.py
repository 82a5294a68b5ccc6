"""Tests of limits on the work and memory that one archive can cause before it is rejected."""

from __future__ import annotations

import io
import time
import tracemalloc
from pathlib import Path

import pytest

from borglet.packages.archives.build import CannotPack, pack
from borglet.packages.archives.limits import ArchiveLimits, ArchiveRefused
from borglet.packages.archives.oci import is_layout
from borglet.packages.archives.unpacking import OCI, TAR, TAR_GZIP, inspect, unpack
from tests.real.packages.archives import (
    Layout,
    archive,
    extended,
    file,
    folder,
    image_of,
    link,
    made_by_tarfile,
    pax,
    zipped,
)

TEN = ArchiveLimits(entries=10)


def test_many_entries_are_refused_with_the_limit_and_what_to_do() -> None:
    many = archive(*[folder(f"d{number}") for number in range(11)])
    with pytest.raises(ArchiveRefused) as caught:
        inspect(many, TAR, limits=TEN)
    assert str(caught.value) == (
        "'d10': the archive has more than 10 files, directories and links, which is the limit; leave out files"
        " that tasks do not need, or split it into several packages"
    )


def test_directories_that_only_paths_name_count_as_entries(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match="more than 10 files, directories and links"):
        inspect(archive(file("a/b/c/d/e/f/g/h/i/j/k")), TAR, limits=TEN)
    with pytest.raises(ArchiveRefused, match="layer 1 of 1: 'l/x': the archive has more than 10 files"):
        inspect(image_of((link("l", "a/b/c/d/e/f/g/h/i/j"), file("l/x"))), OCI, limits=TEN)
    found = unpack(archive(folder("a"), file("a/b/c"), file("a/b/d")), TAR, tmp_path, limits=TEN)
    assert found.entries == 4


def test_a_small_archive_of_deep_paths_is_refused_in_time_and_memory() -> None:
    deep = zipped(*[file(f"d{number}" + "/a" * 40, b"") for number in range(20_000)])
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefused, match="more than 100000 files, directories and links"):
            inspect(deep, TAR_GZIP)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_extended_headers_are_not_entries() -> None:
    """Read an archive with an extended header per entry, as POSIX archives have for times. They must not count."""
    honest = [extended(pax(mtime="1.5")) + file(f"f{number}") for number in range(10)]
    assert inspect(archive(*honest), TAR, limits=TEN).entries == 10


@pytest.mark.parametrize(
    "parts",
    [
        [file("n" * 90 + str(number)) for number in range(12)],
        [link(f"l{number}", "t" * 90) for number in range(12)],
        [extended(pax(comment="c" * 90)) + file(f"f{number}") for number in range(12)],
    ],
    ids=["names", "targets", "extended headers"],
)
def test_names_targets_and_headers_are_bounded_together(parts: list[bytes]) -> None:
    assert inspect(archive(*parts[:9]), TAR, limits=ArchiveLimits(metadata_bytes=1000)).entries == 9
    with pytest.raises(ArchiveRefused, match="more than 1000 bytes of names, targets of links and extended"):
        inspect(archive(*parts), TAR, limits=ArchiveLimits(metadata_bytes=1000))


def test_whiteouts_that_look_through_a_large_directory_again_and_again_are_refused() -> None:
    files = [file(f"a/{number}", b"") for number in range(3000)]
    whiteouts = [file("a/.wh..wh..opq", b"")] * 3000
    began = time.monotonic()
    with pytest.raises(ArchiveRefused, match="applying the whiteouts of this archive takes too long"):
        inspect(image_of((*files, *whiteouts)), OCI)
    assert time.monotonic() - began < 60


def test_an_entry_costs_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    entries = 5_000
    for place in ("lib/", "d/" * 40):
        packed = archive(*[file(f"{place}module-{number}.py") for number in range(entries)])
        target = tmp_path / place[0]
        target.mkdir()
        tracemalloc.start()
        try:
            unpack(packed, TAR, target)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak / entries < 512


def test_a_package_of_sixty_thousand_files_is_accepted() -> None:
    parts = [file(f"node_modules/package-{number // 12}/lib/file-{number}.js") for number in range(60_000)]
    assert inspect(archive(*parts), TAR).entries == 60_000 + 1 + 2 * 5_000


def test_a_directory_of_too_many_files_is_not_packed(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"f{number}").touch()
    out = io.BytesIO()
    with pytest.raises(CannotPack, match="has more than 10 files, directories and links"):
        pack(tmp_path, out, limits=TEN)
    assert out.tell() < 4096


def test_a_directory_of_a_hundred_levels_is_not_packed(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(100):
        path /= "d"
    path.mkdir(parents=True)
    with pytest.raises(CannotPack, match="its path has more than 64 components"):
        pack(tmp_path, io.BytesIO())


def test_an_image_layout_is_distinguished_from_a_tar_without_reading_contents(tmp_path: Path) -> None:
    assert is_layout(image_of((file("a"),)))
    (tmp_path / "blob").write_bytes(b"x")
    assert not is_layout(made_by_tarfile(tmp_path, 1))
    assert not is_layout(io.BytesIO(b"no archive"))

    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(size)
            self.read_bytes += len(found)
            return found

    layout = Layout()
    layout.blobs["sha256:" + "0" * 64] = bytes(2**24)
    large = Counting(layout.tar().read())
    assert is_layout(large)
    unlucky = Counting(archive(file("blob", bytes(2**24)), file("oci-layout")).read())
    assert is_layout(unlucky)
    assert large.read_bytes + unlucky.read_bytes < 2**16
