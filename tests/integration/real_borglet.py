"""A real Borglet in a process of its own, which runs real processes. By default it uses no containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.link_world import Link


class Borglet:
    """A Borglet with a home folder of its own. `close` kills it and stops the tasks that still run."""

    def __init__(
        self,
        home: Path,
        link: Link,
        *,
        log: Path | None = None,
        runtime: str = "process",
        hostname: str = "m1",
        address: str = "127.0.0.1",
        platform: str = "",
    ) -> None:
        self.home, self._link, self._runtime = home, link, runtime
        self._hostname, self._address, self._platform = hostname, address, platform
        self.log = log or home.parent / "borglet.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._log = self.log.open("ab")

    def start(self, token: str = "") -> None:
        self.process = self._run(
            "run",
            "--link",
            f"https://127.0.0.1:{self._link.port}",
            "--hostname",
            self._hostname,
            "--address",
            self._address,
            "--runtime",
            self._runtime,
            *(["--platform", self._platform] if self._platform else []),
            *(["--join-token", token] if token else []),
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        assert self._run("stop-all").wait(30) == 0
        self._log.close()

    def _run(self, verb: str, *options: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "borglet", verb, "--home", str(self.home), *options]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8"}
        return subprocess.Popen(argv, env=env, stdout=self._log, stderr=self._log)
