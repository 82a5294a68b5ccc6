"""Tests of the start of `python -m portal.up`: which settings and ports it rejects, and with which message."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from portal.up.home import Home
from tests.ports import free_port


def up(home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "BORG_HOME": str(home), **settings}
    return subprocess.run(
        [sys.executable, "-m", "portal.up"], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("PORT", "PORT='http': the value is not a whole number; give a number from 1 to 65535, for example PORT=8000"),
        ("BORG_SMTP_PORT", "BORG_SMTP_PORT='http': the value is not a whole number"),
    ],
)
def test_a_bad_setting_ends_with_status_2_and_makes_no_home(tmp_path: Path, name: str, told: str) -> None:
    done = up(tmp_path / "home", **{name: "http", "BORG_DNS_PORT": "of no process that make up starts"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "home").exists()


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = up(tmp_path / "home", LINK_PORT=str(port), PORT=str(free_port()), DNS_PORT=str(free_port()))
    assert done.returncode == 1
    assert f"LINK_PORT={port} on 127.0.0.1 cannot be used: it is taken by process {os.getpid()} (" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home" / "postgres").exists()


def test_a_second_start_on_the_same_home_names_the_first(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    with home.lock():
        done = up(home.path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{home.path} is in use by process {os.getpid()}.")


def test_a_terminal_that_is_gone_does_not_fail_the_start() -> None:
    code = "from portal.up.__main__ import _print; _print('one'); _print('two'); import sys; sys.exit(7)"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run([sys.executable, "-c", code], stdout=gone, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (7, b"")
