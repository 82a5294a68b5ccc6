"""The real web process over the test database: `python -m portal.web` on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from django.conf import settings

from tests.ports import free_port

READY_S = 40.0


@contextmanager
def running(log: Path, *, port: int = 0, processes: int = 1, **environment: str) -> Iterator[str]:
    """Start the web process over the test database, yield its URL, and stop it at the end of the block."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings.production",
        "BORG_DATABASE_URL": database_url(),
        "BORG_SECRET_KEY": "of-the-tests-" + "x" * 50,
        "BORG_PORTAL_URL": url,
        "BORG_ALLOWED_HOSTS": "127.0.0.1",
        **environment,
    }
    command = [sys.executable, "-m", "portal.web", "--port", str(port), "--processes", str(processes)]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        try:
            _wait(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def database_url() -> str:
    row = settings.DATABASES["default"]
    given = {"host": row["HOST"], "user": row["USER"], "port": row["PORT"], "password": row["PASSWORD"]}
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in given.items() if value)
    return f"postgresql:///{row['NAME']}?{query}"


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the portal ended at its start:\n{log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=1):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise RuntimeError(f"the portal was not up within {READY_S:g} s:\n{log.read_text()[-4000:]}")
