"""Tests of `borgctl faux`, which simulates a cell, with the real process of a session."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from portal.cli.main import main
from scheduling.simulator.traces import openb


class Done(NamedTuple):
    """The result of a finished command."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Terminal:
    """A caller of `borgctl faux` in this process, which is much faster than a new process per command."""

    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(["faux", *arguments])
        return Done(int(ended.value.code or 0), *self.capture.readouterr())

    def answer(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def borgctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Yield a caller of `borgctl faux` whose HOME has a short path, because paths of Unix sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="faux-") as home:
        monkeypatch.setenv("HOME", home)
        yield Terminal(capsys)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / openb.MACHINES).write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,8000,65536,0,\nn2,8000,65536,0,\n")
    head = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    pods = "".join(f"p{number},1000,1024,0,0,,BE,Running,{number * 10},,{number * 10}\n" for number in range(6))
    (tmp_path / openb.PODS).write_text(f"{head}\n{pods}")
    return tmp_path


@pytest.mark.timeout(600)
def test_a_session_is_opened_used_and_closed(borgctl: Terminal, data: Path) -> None:
    missing = borgctl("run")
    assert missing.returncode == 1
    assert "open it with: borgctl faux open" in missing.stderr
    # The session outlives the command that opens it, so this command runs as another process.
    command = [sys.executable, "-c", "from portal.cli.main import main; main()", "faux", "open", "openb", str(data)]
    opened = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=240, check=True)
    try:
        assert ["source", "openb"] in json.loads(opened.stdout)["rows"]
        again = borgctl("open", "openb", str(data))
        assert again.returncode == 1
        assert "is open already" in again.stderr
        assert borgctl.answer("until", "running >= 3", "--hours", "1")["held"]
        assert "fit into the free capacity" in borgctl("ask", "fit", "--cpu", "1").stdout
        borgctl.answer("branch", "e_pvm", "--set", "scorer=e-pvm")
        assert "placements" in str(borgctl.answer("diff", "main", "e_pvm"))
        wrong = borgctl("until", "sleep > 3")
        assert wrong.returncode == 1
        assert "the names are pending" in wrong.stderr
    finally:
        borgctl.answer("close")


def test_a_source_that_cannot_be_read_is_explained(borgctl: Terminal, data: Path) -> None:
    failed = borgctl("open", "google2011", str(data))
    assert failed.returncode == 1
    assert "give the folder with the files of Google's trace" in failed.stderr
    assert borgctl("open", "openb", str(data / "nowhere")).returncode == 2
