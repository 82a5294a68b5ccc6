"""Helpers that run the real `borgctl` against a real web process over the test database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quota.models import Tenant
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, system
from tests import borgctl
from tests.borgctl import BORGCTL
from tests.integration import world


class Cli:
    """The command `borgctl` of one user, who has a folder and environment variables of their own."""

    def __init__(self, folder: Path, url: str, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TZ": "UTC",
            "BORG_CLIENT": str(folder / "client.toml"),
            "BORG_URL": url,
            "BORG_CELL": "cc",
            "BORG_TENANT": "ubar",
            **environment,
        }
        if "PYTHONPATH" in os.environ:  # set if a checkout shares the virtual environment of another one
            self.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]

    def run(self, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        done = borgctl.run(words, env=self.environment, cwd=self.folder, given=given or "")
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def out(self, *words: str, given: str | None = None) -> str:
        """Run a command, check that it succeeds, and return what it prints."""
        done = self.run(*words, given=given)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.out(*words, "--json"))

    def failing(self, *words: str, status: int = 1, given: str | None = None) -> tuple[str, dict[str, Any]]:
        """Run a command that must fail, without and with `--json`. Return the error message and the JSON document."""
        told = self.run(*words, given=given)
        assert (told.returncode, told.stdout) == (status, ""), told
        assert told.stderr.startswith("borgctl: ")
        with_json = self.run(*words, "--json", given=given)
        assert with_json.returncode == status, with_json
        return told.stderr, json.loads(with_json.stdout)

    def file(self, file: dict[str, Any] | str, name: str = "job.json") -> str:
        (self.folder / name).write_text(file if isinstance(file, str) else json.dumps(file))
        return name


def of(folder: Path, url: str, user: str, *, tenant: Tenant | None = None, sre: bool = False) -> Cli:
    """Create a user with a token of all scopes, and return the `borgctl` of this user."""
    _, secret = token_issue(
        principal=system("test"),
        user=world.a_user(user, tenant=tenant, sre=sre),
        name="cli",
        scopes=[scope.value for scope in GENERAL_SCOPES],
    )
    return Cli(folder, url, BORG_TOKEN=secret)


@contextmanager
def started(cli: Cli, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command and yield its process. It is killed at the end of the block, or after 30 s.

    Ctrl-C (SIGINT) ends the process even if a shell has started the tests in the background.
    """
    process = subprocess.Popen(
        [BORGCTL, *words],
        env=cli.environment,
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    killer = threading.Timer(30.0, process.kill)
    killer.start()
    try:
        yield process
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
