"""A process that imports the code of masters once, and forks a master for each request, as `make up` does.

A fork starts in 0.1 s of CPU instead of two seconds, because it need not import Django and Numba.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from portal.up.supervision import forks

READY_S = 60.0
_SERVER = """
import gc, signal, sys
from pathlib import Path
from portal.up.supervision import children
children.end_with_parent(int(sys.argv[2]), signal.SIGKILL)
gc.disable()
import django
django.setup()
import scheduling.master.process
from portal.up import preload
from scheduling.core.warm import compile_kernels
compile_kernels()
gc.collect()
gc.freeze()
preload.run(Path(sys.argv[1]))
"""
_COMMAND_BYTES = 400  # forks overwrite this part of the command line with their own command


class Fork(forks.ForkedProcess):
    """A forked child process, with the methods of `Popen` that tests call."""

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout: float | None = None) -> int:
        try:
            return super().wait(timeout)
        except TimeoutError as error:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from error


# The socket of the process that forks, by the URL of its database.
_sockets: dict[str, Path] = {}


def fork(argv: Sequence[str], *, env: Mapping[str, str], output: int) -> Fork:
    """Start `python -m MODULE …` as a fork. Its settings are those of `env` at the first call for this database."""
    url = env["BORG_DATABASE_URL"]
    if url not in _sockets:
        _sockets[url] = _start(env)
    made = forks.fork(_sockets[url], argv, name="test", env=env, output=output, death_signal=signal.SIGKILL)
    return Fork(made.pid)


def _start(env: Mapping[str, str]) -> Path:
    """Start the process that forks, wait until it is ready, and return its socket. It ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="borg-forks-"))
    path = folder / "socket"
    log = (folder / "log").open("ab")
    command = [sys.executable, "-c", _SERVER, str(path), str(os.getpid()), "." * _COMMAND_BYTES]
    process = subprocess.Popen(command, env=dict(env), stdout=log, stderr=log)

    def stop() -> None:
        process.kill()
        process.wait()
        log.close()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    atexit.register(stop)
    deadline = time.monotonic() + READY_S
    while forks.accepts(path) is not None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the process that forks masters is not ready:\n{(folder / 'log').read_text()[-4000:]}")
        time.sleep(0.05)
    return path
