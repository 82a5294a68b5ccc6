"""Tests of a Borglet that is killed while it installs: the package is then complete or absent."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from borglet.messages import PackageRef
from borglet.packages.archives.disk import digests_of
from borglet.packages.store import PackageStore, StoredPackage
from tests.real.packages.cell import packed

KILLS = 12
# This program installs and removes one package for ever. It prints a line when it begins.
PROGRAM = """
import shutil, sys
from pathlib import Path
from borglet.messages import PackageRef
from borglet.packages.store import PackageStore
home, archive, digest, size = sys.argv[1:]
store = PackageStore(Path(home), boot_id="boot")
found = [found for digest in store.open() if (found := store.check(digest))]
print("ready", flush=True)
while True:
    for each in found:
        store.remove(each.digest)
    package = PackageRef("app@v1", digest, int(size), "tar+gzip")
    incoming = store.begin(package)
    shutil.copyfile(archive, incoming / "archive")
    found = [store.complete(package, incoming)]
"""


def test_killed_at_any_moment_it_is_whole_or_not_there(tmp_path: Path) -> None:
    app, raw = packed(tmp_path, **{f"f{number}": os.urandom(2000) for number in range(60)})
    (tmp_path / "raw").write_bytes(raw)
    home = tmp_path / "home"
    rng = random.Random(7)
    met: set[int] = set()
    for _ in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, home, tmp_path / "raw", app.digest, str(app.size_bytes)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        try:
            child.wait(rng.uniform(0.0, 0.05))
        except subprocess.TimeoutExpired:
            child.kill()
        child.wait()
        child.stdout.close()
        met.add(check(home, app))
    assert met <= {0, 1}


def whole(store: PackageStore) -> list[StoredPackage]:
    return [found for digest in store.open() if (found := store.check(digest)) is not None]


def check(home: Path, app: PackageRef) -> int:
    store = PackageStore(home, boot_id="boot")
    found = whole(store)
    assert [each.digest for each in found] in ([], [app.digest])
    for folder in ("incoming", "trash"):
        assert os.listdir(home / "packages" / folder) == []
    if found:
        again = whole(PackageStore(home, boot_id="another"))
        assert [each.digest for each in again] == [app.digest]
        assert len(os.listdir(store.tree(app.digest))) == 60
        assert digests_of(store.tree(app.digest), contents=True).contents
    return len(found)
