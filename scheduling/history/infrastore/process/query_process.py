"""Runs a query in a process of its own, and returns its result.

The child process gets no environment, no credentials and no open file of the portal. It limits itself, and this module
kills it if it still takes too long.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.history.infrastore.process.protocol import AnswerHead, ChildRequest

# Queries that one web process runs at the same time. Each may use the memory and the threads of its limits.
MOST_AT_ONCE = 2
_GRACE_S = 10.0  # to start, to load the rows and to write the result
_RETRY_AFTER_S = 5
_running = threading.BoundedSemaphore(MOST_AT_ONCE)
_IMPORTS = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a query: its description, and its rows in the requested format."""

    head: AnswerHead
    body: bytes


def run(request: ChildRequest) -> Answer:
    """Run a checked query. Raises `Rejected` if the query fails or exceeds a limit, or if too many queries run."""
    if not _running.acquire(blocking=False):
        raise Rejected(
            "sql-busy",
            f"this portal already runs {MOST_AT_ONCE} queries; try again in {_RETRY_AFTER_S} seconds",
            figures={"retry_after_s": _RETRY_AFTER_S},
            status=503,
        )
    try:
        output = _output_of(request)
    finally:
        _running.release()
    line, _, body = output.partition(b"\n")
    head = msgspec.json.decode(line, type=AnswerHead)
    if head.code:
        raise Rejected(head.code, head.detail)
    return Answer(head, body)


def _output_of(request: ChildRequest) -> bytes:
    limits = request.limits
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_IMPORTS), "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}
    with tempfile.TemporaryDirectory(prefix="borg-sql-") as empty:
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduling.history.infrastore.process.query_execution"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=empty,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(msgspec.json.encode(request), limits.seconds + _GRACE_S)
        except subprocess.TimeoutExpired:
            raise Rejected("query-too-slow", _too_slow(limits.seconds)) from None
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
    if process.returncode == 0 and output:
        return output
    if process.returncode == -signal.SIGXCPU:
        raise Rejected("query-too-slow", _too_slow(limits.seconds))
    raise Rejected("query-too-large", _died(process.returncode, errors, limits.memory_mib))


def _too_slow(seconds: float) -> str:
    return f"the query took longer than {seconds:g} s; read a shorter time with :since, or fewer tables"


def _died(status: int, errors: bytes, memory_mib: int) -> str:
    last = errors.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:200]
    return (
        f"the process that ran the query ended with status {status} ({last or 'no message'}), probably because it"
        f" needed more than {memory_mib} MiB of memory; read a shorter time, or fewer columns"
    )
