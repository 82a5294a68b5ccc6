"""Tests of measuring the disk usage of a folder with many files, deep folders, or links."""

from __future__ import annotations

import os
from pathlib import Path

from borglet.runtimes.home.trash import empty, throw_away
from borglet.runtimes.measuring.disk_usage import DiskWalk, disk_bytes


def test_disk_counts_each_file_once_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * 10**6)
    empty = disk_bytes((tmp_path / "work",))
    (tmp_path / "work" / "deep" / "file").write_bytes(b"x" * 100_000)
    (tmp_path / "work" / "again").hardlink_to(tmp_path / "work" / "deep" / "file")
    (tmp_path / "work" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "work" / "dir").symlink_to(tmp_path)
    assert 100_000 <= disk_bytes((tmp_path / "work", tmp_path / "gone")) - empty < 130_000


def test_a_walk_of_many_files_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_bytes(b"x" * 50_000)
    walk = DiskWalk((tmp_path,))
    found = [walk.step(at_most=8)]
    while not walk.done:
        found.append(walk.step(at_most=8))
    whole = disk_bytes((tmp_path,))
    assert len(found) > 4
    assert found == sorted(found)
    assert found[-1] == whole >= 10**6
    (tmp_path / "7" / "file").unlink()
    assert walk.step(at_most=8) == whole  # the previous result, until the next walk has ended
    while not walk.done:
        walk.step(at_most=8)
    assert walk.bytes <= whole - 50_000


def test_folders_deeper_than_a_path_may_be_hide_nothing(tmp_path: Path) -> None:
    work, trash = tmp_path / "work", tmp_path / "trash"
    work.mkdir()
    trash.mkdir()
    folder = os.open(work, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("n" * 60, dir_fd=folder)
        below = os.open("n" * 60, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(file, b"x" * 2**20)
    os.close(file)
    os.close(folder)
    assert disk_bytes((work,)) >= 2**20
    throw_away(work, trash)
    empty(trash)
