"""Runs the archiver in a process of its own, so that the worker does not keep the memory of the Parquet library."""

from __future__ import annotations

import os
import subprocess
import sys

import structlog
from prometheus_client import Counter

log = structlog.get_logger(__name__)

# A run that takes longer is killed. The next one continues with the first day that is not archived.
LONGEST_S = 6 * 3600.0
_MOST_TEXT = 2_000

failures = Counter("borg_archive_failures_total", "Runs of the archiver that failed")


def run(*, longest_s: float = LONGEST_S) -> bool:
    """Archive what is due. Return whether it succeeded. A failure is logged and counted, and changes nothing."""
    argv = [sys.executable, "-m", "django", "archive"]
    try:
        # No process reads the metrics of the child.
        done = subprocess.run(
            argv,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": ""},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        failures.inc()
        told = getattr(error, "stderr", None) or ""
        log.error("the archiver failed", error=str(error), output=str(told)[-_MOST_TEXT:])
        return False
    log.info("the archiver has run", output=done.stdout.strip()[-_MOST_TEXT:])
    return True
