"""Runs of the command `borgctl` in a fork of the tests' process.

A fork saves 0.4 s of CPU per run, because no Python starts and nothing is imported. Tests of the start itself, and of
signals, run the program `BORGCTL` instead.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from portal.cli.main import main

BORGCTL = str(Path(sys.executable).with_name("borgctl"))
# A command imports these while it runs. A fork finds them imported.
for _module in ("portal.cli.client", "httpcore", "h11", "typer._adapters"):
    import_module(_module)


def run(
    words: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, given: str = "", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run `borgctl WORDS` to its end, with `given` as its standard input. Raise `TimeoutError` after `timeout_s`."""
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        stdin.write(given)
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            _become(words, (stdin, out, err), env, cwd)
        status = _status(child, timeout_s)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([BORGCTL, *words], status, out.read(), err.read())


def _status(child: int, timeout_s: float) -> int:
    """Wait for a process and return its exit status. After `timeout_s`, kill it and raise `TimeoutError`."""
    descriptor = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
    if not ended:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        raise TimeoutError(f"borgctl did not end within {timeout_s} s")
    return status


def _become(words: Sequence[str], files: Sequence[IO[str]], env: Mapping[str, str], cwd: str | Path) -> NoReturn:
    """Run `borgctl WORDS` in this process, and exit with its status. `files`: standard input, output and error."""
    status: object = 1
    try:
        for standard, file in enumerate(files):
            os.dup2(file.fileno(), standard)
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        os.chdir(cwd)
        sys.argv = [BORGCTL, *words]
        main()
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001 - nothing of the tests may run in this process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0)
