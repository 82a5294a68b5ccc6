"""Tests of the cache of compiled kernels, for services that cannot write where it was installed."""

import os
from pathlib import Path

import pytest

from scheduling.core.kernels.compiled import _writable


def test_a_cache_that_cannot_be_written_is_copied_to_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "installed" / "kernels-1"
    installed.mkdir(parents=True)
    (installed / "kernel.nbi").write_text("compiled")
    assert _writable(installed) == installed
    assert _writable(tmp_path / "new" / "kernels-1") == tmp_path / "new" / "kernels-1"
    # As on a file system that is mounted read-only, which also stops root.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for _ in range(2):
        copy = _writable(installed)
        assert copy == tmp_path / "home" / ".cache" / "borg" / "kernels-1"
        assert (copy / "kernel.nbi").read_text() == "compiled"
    assert [path.name for path in copy.parent.iterdir()] == ["kernels-1"]
