"""Tests of deleting folders that hostile tasks leave: completely, and nothing outside the trash folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from borglet.runtimes.home import trash

DEPTH = 1500  # beyond Python's recursion, the longest path, and the descriptors of most processes


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    made = tmp_path / "trash"
    made.mkdir(mode=0o700)
    return made


def deep_tree(top: Path) -> None:
    top.mkdir()
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(DEPTH):
        os.mkdir("d" * 10, dir_fd=here)
        below = os.open("d" * 10, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)


def test_a_tree_deeper_than_any_path_or_stack_is_deleted(tmp_path: Path, bin_: Path) -> None:
    deep_tree(tmp_path / "work")
    trash.throw_away(tmp_path / "work", bin_)
    assert not (tmp_path / "work").exists()

    trash.empty(bin_)

    assert os.listdir(bin_) == []


def test_links_are_deleted_and_never_followed(tmp_path: Path, bin_: Path) -> None:
    host = tmp_path / "host"
    host.mkdir(mode=0o755)
    (host / "secret").write_text("stays")
    (bin_ / "task").mkdir()
    (bin_ / "task" / "folder").symlink_to(host)
    (bin_ / "task" / "file").symlink_to(host / "secret")
    (bin_ / "link").symlink_to(host)

    trash.empty(bin_)

    assert os.listdir(bin_) == []
    assert (host / "secret").read_text() == "stays"
    assert host.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts, and only root meets mounts of others")
def test_a_mount_is_left_alone_and_stops_nobody(tmp_path: Path, bin_: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "precious").write_text("stays")
    mounted = bin_ / "task" / "work" / "mounted"
    mounted.mkdir(parents=True)
    (bin_ / "other").mkdir()
    (bin_ / "task" / "file").write_text("goes")
    subprocess.run(["mount", "--bind", str(host), str(mounted)], check=True)
    try:
        trash.empty(bin_)

        assert (host / "precious").read_text() == "stays"
        assert not (bin_ / "other").exists()
        assert not list(bin_.glob("**/file"))
    finally:
        left = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for place in left:
            if place.startswith(str(bin_)):
                subprocess.run(["umount", place], check=True)
    trash.empty(bin_)
    assert os.listdir(bin_) == []
    assert (host / "precious").read_text() == "stays"


def test_folders_closed_to_their_owner_are_opened(bin_: Path) -> None:
    """Delete folders without permissions as a user without privileges, to whom permissions apply."""
    code = """
import os
if os.geteuid() == 0:
    os.chown(".", 65533, 65533)
    os.setgid(65533)
    os.setuid(65533)
from pathlib import Path
inner = Path("task", "closed", "inner")
inner.mkdir(parents=True)
(inner / "file").write_text("x")
for folder, mode in ((inner, 0), (inner.parent, 0o500), (inner.parent.parent, 0)):
    folder.chmod(mode)
trash.empty(Path("."))
assert os.listdir(".") == [], os.listdir(".")
"""
    code = f"import sys; sys.path.insert(0, {os.getcwd()!r}); from borglet.runtimes.home import trash{code}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=bin_)


def test_tasks_that_end_meanwhile_leave_the_rest_for_the_next(bin_: Path) -> None:
    for name in ("a", "b", "c"):
        (bin_ / name).mkdir()
    left = iter([True, False])
    trash.empty(bin_, goes_on=lambda: next(left))
    assert len(os.listdir(bin_)) == 2
    trash.empty(bin_)
    assert os.listdir(bin_) == []
