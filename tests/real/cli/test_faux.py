"""`borgctl faux` with the real process of a session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduling.simulator.traces import openb


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path, because sockets have short paths."""
    folder = Path(tempfile.mkdtemp(prefix="faux-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / openb.MACHINES).write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,8000,65536,0,\nn2,8000,65536,0,\n")
    head = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    pods = "".join(f"p{number},1000,1024,0,0,,BE,Running,{number * 10},,{number * 10}\n" for number in range(6))
    (tmp_path / openb.PODS).write_text(f"{head}\n{pods}")
    return tmp_path


def borgctl(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from portal.cli.main import main; main()", "faux", *arguments]
    return subprocess.run(
        command, env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, timeout=240, check=False
    )


def answer(home: Path, *arguments: str) -> Any:
    done = borgctl(home, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(600)
def test_a_session_is_opened_used_and_closed(home: Path, data: Path) -> None:
    missing = borgctl(home, "run")
    assert missing.returncode == 1
    assert "open it with: borgctl faux open" in missing.stderr
    opened = answer(home, "open", "openb", str(data))
    try:
        assert ["source", "openb"] in opened["rows"]
        again = borgctl(home, "open", "openb", str(data))
        assert again.returncode == 1
        assert "is open already" in again.stderr
        assert answer(home, "until", "running >= 3", "--hours", "1")["held"]
        assert "fit into the free capacity" in borgctl(home, "ask", "fit", "--cpu", "1").stdout
        answer(home, "branch", "e_pvm", "--set", "scorer=e-pvm")
        assert "placements" in str(answer(home, "diff", "main", "e_pvm"))
        wrong = borgctl(home, "until", "sleep > 3")
        assert wrong.returncode == 1
        assert "the names are pending" in wrong.stderr
    finally:
        answer(home, "close")


def test_a_source_that_cannot_be_read_is_explained(home: Path, data: Path) -> None:
    failed = borgctl(home, "open", "google2011", str(data))
    assert failed.returncode == 1
    assert "give the folder with the files of Google's trace" in failed.stderr
    assert borgctl(home, "open", "openb", str(data / "nowhere")).returncode == 2
