"""Tests of `python -m portal.web` with several processes on one port: one that ends is replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from tests.integration import portal_server
from tests.ports import free_port

pytestmark = pytest.mark.django_db(transaction=True)


def _workers(parent: psutil.Process, number: int) -> list[psutil.Process]:
    until = time.monotonic() + 20
    while len(found := parent.children()) != number:
        assert time.monotonic() < until, f"{len(found)} workers instead of {number}"
        time.sleep(0.05)
    return found


def _wait_until_listening(worker: psutil.Process) -> None:
    until = time.monotonic() + 60
    while not any(one.status == psutil.CONN_LISTEN for one in worker.net_connections()):
        assert time.monotonic() < until, "the worker does not listen"
        time.sleep(0.05)


def _is_portal(process: psutil.Process, port: str) -> bool:
    """Return whether a process is the portal at this port, and has not ended."""
    return process.status() != psutil.STATUS_ZOMBIE and port in process.cmdline()


def test_a_worker_that_is_killed_is_replaced_while_the_others_answer(tmp_path: Path) -> None:
    with portal_server.running(tmp_path / "log", processes=2) as url:
        port = url.rpartition(":")[2]  # other tests of this process may have a portal of their own
        parent = next(one for one in psutil.Process().children() if _is_portal(one, port))
        first, second = _workers(parent, 2)
        _wait_until_listening(second)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        now = _workers(parent, 2)
        assert second in now
        assert first not in now
        for _ in range(20):
            with urlopen(f"{url}/readyz", timeout=10) as answer:
                assert answer.status == 200


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "portal.web", "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"--port={port} on 127.0.0.1 cannot be used: it is taken by process {os.getpid()} (" in done.stderr


def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "BORG_WEB_CERTIFICATE": str(tmp_path / "missing.crt"), "BORG_WEB_PORT": str(free_port())}
    command = [sys.executable, "-m", "portal.web"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"BORG_WEB_CERTIFICATE='{tmp_path}/missing.crt' cannot be used: " in done.stderr
