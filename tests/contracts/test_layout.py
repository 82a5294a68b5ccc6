"""Tests of the layout: each folder of a package has at most 15 Python files, or its README explains why it has more."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("borglet", "naming", "portal", "quota", "scheduling", "serving")
MOST = 15
# These folders have a file per noun of the interface. The README of the package explains it.
BY_NOUN = {"portal/cli", "quota/api", "scheduling/api"}


def folders() -> Counter[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = (PurePosixPath(name) for name in listed.stdout.split())
    return Counter(str(name.parent) for name in names if name.parts[0] in PACKAGES and "migrations" not in name.parts)


def test_no_folder_is_a_drawer() -> None:
    found = folders()
    assert len(found) > 50
    assert {folder for folder, number in found.items() if number > MOST} == BY_NOUN


def test_each_folder_with_more_files_is_explained() -> None:
    for folder in BY_NOUN:
        package, name = folder.split("/")
        assert f"`{name}/` has a file per noun" in (ROOT / package / "README.md").read_text(), folder
