"""Runs the archiver in a process of its own, so that the worker does not keep the memory of the Parquet library.

A thread of the worker waits for the process. The Celery task that starts it does not wait, so that hours of archiving
do not occupy one of the worker's four places.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import structlog
from prometheus_client import Counter

log = structlog.get_logger(__name__)

# A run that takes longer is killed. The next one continues with the first day that is not archived.
LONGEST_S = 6 * 3600.0
_MOST_TEXT = 2_000
_ARCHIVE = (sys.executable, "-m", "django", "archive")

failures = Counter("borg_archive_failures_total", "Runs of the archiver that failed")
_alone = threading.Lock()  # held while a thread waits for the archiver


def start(argv: Sequence[str] = _ARCHIVE, *, longest_s: float = LONGEST_S) -> threading.Thread | None:
    """Start the archiver in a process of its own, which is killed after `longest_s` seconds. Return the thread that
    waits for it, or None if the last archiver still runs.

    `argv`: the command of the process. A failure is logged and counted. The archiver is killed when this process ends.
    """
    if not _alone.acquire(blocking=False):
        return None
    thread = threading.Thread(target=_run, args=(argv, longest_s), name="archiver", daemon=True)
    thread.start()
    return thread


def _run(argv: Sequence[str], longest_s: float) -> None:
    try:
        # No process reads the metrics of the child.
        process = subprocess.Popen(
            argv,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(process.kill)
        try:
            output, errors = process.communicate(timeout=longest_s)
            if process.returncode:
                _failed(f"it ended with status {process.returncode}", errors)
            else:
                log.info("the archiver has run", output=output.strip()[-_MOST_TEXT:])
        except subprocess.TimeoutExpired:
            process.kill()
            _, errors = process.communicate()
            _failed(f"it ran for more than {longest_s:g} s and was killed", errors)
        finally:
            atexit.unregister(process.kill)
    except OSError as error:
        _failed(str(error), "")
    finally:
        _alone.release()


def _failed(reason: str, output: str) -> None:
    failures.inc()
    log.error("the archiver failed", error=reason, output=output[-_MOST_TEXT:])
