"""The process that rebuilds past states for one web process, and the client of this process.

    web process ─ first request ─► `child.py` ─ keeps a few states ─► ends after IDLE_S without a request

So web processes need no memory for states, and other requests do not wait for a replay.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from typing import IO

import msgspec
import structlog

from quota.vocabulary.errors import Rejected
from scheduling.history.moments.messages import LENGTH, MomentAnswer, MomentRequest, PastMoment

log = structlog.get_logger(__name__)

# A request that takes longer is given up, and its process ended. It is below the deadline of HTTP requests.
LONGEST_S = 40.0
# A request waits this long for the request before it. Then it is rejected, because its thread is needed for others.
LONGEST_WAIT_S = 2.0
# The process ends after this many seconds without a request.
IDLE_S = 600.0
_RETRY_AFTER_S = 5
_CHUNK = 1 << 16


class ProcessEnded(Exception):
    """The error for a process that ended before it answered."""


class TooSlow(Exception):
    """The error for a process that did not answer in time."""


class MomentProcess:
    """A process that answers one request at a time. It is started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def moment(self, request: MomentRequest) -> PastMoment:
        """Return the moment that the request asks for. Raises `Rejected` if it cannot be rebuilt, if the process is
        busy for too long, or if it fails.
        """
        deadline = time.monotonic() + LONGEST_S
        if not self._lock.acquire(timeout=LONGEST_WAIT_S):
            raise _unavailable(f"other past states are being rebuilt; try again in {_RETRY_AFTER_S} seconds")
        try:
            answer = self._answer(msgspec.json.encode(request), deadline)
        finally:
            self._lock.release()
        if answer.moment is None:
            raise Rejected(answer.code, answer.detail, fields=answer.fields, status=answer.status)
        return answer.moment

    def close(self) -> None:
        """End the process, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, request: bytes, deadline: float) -> MomentAnswer:
        try:
            answer = self._exchanged(request, deadline)
        except TooSlow as error:
            self.close()
            detail = f"the past state was not rebuilt within {LONGEST_S:g} s; try again in {_RETRY_AFTER_S} seconds"
            raise _unavailable(detail) from error
        except ProcessEnded as error:
            self.close()
            log.error("the process that rebuilds past states of cells failed", error=str(error))
            detail = f"the process that rebuilds past states has ended; try again in {_RETRY_AFTER_S} seconds"
            raise _unavailable(detail) from error
        return msgspec.json.decode(answer, type=MomentAnswer)

    def _exchanged(self, request: bytes, deadline: float) -> bytes:
        process = self._with_request(request)
        assert process.stdout is not None
        (length,) = LENGTH.unpack(_read(process.stdout, LENGTH.size, deadline))
        return _read(process.stdout, length, deadline)

    def _with_request(self, request: bytes) -> subprocess.Popen[bytes]:
        """Send the request to the process, and return the process. If it has ended because it was idle, start another
        one first.

        A process that ends after it has received the request is not replaced, because the same request would end the
        next one too.
        """
        known = self._process
        if known is not None and known.poll() is None:
            with contextlib.suppress(OSError):
                _write_to(known, request)
                return known
        self.close()
        process = self._process = _started()
        try:
            _write_to(process, request)
        except OSError as error:
            raise ProcessEnded(str(error)) from error
        return process


def _write_to(process: subprocess.Popen[bytes], request: bytes) -> None:
    assert process.stdin is not None
    write_message(process.stdin, request)


def write_message(stream: IO[bytes], message: bytes) -> None:
    """Write a message with its length."""
    stream.write(LENGTH.pack(len(message)) + message)
    stream.flush()


def _read(stream: IO[bytes], size: int, deadline: float) -> bytes:
    """Read `size` bytes. Raises `TooSlow` after the deadline, and `ProcessEnded` at the end of the stream."""
    parts = []
    while size:
        if not select.select([stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TooSlow
        part = os.read(stream.fileno(), min(size, _CHUNK))
        if not part:
            raise ProcessEnded(
                "the process closed its output before its answer was complete; the next request starts a new process"
            )
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _started() -> subprocess.Popen[bytes]:
    # No process reads the metrics of the child.
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": ""}
    command = [sys.executable, "-m", "scheduling.history.moments.child"]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def _unavailable(detail: str) -> Rejected:
    return Rejected("moment-unavailable", detail, figures={"retry_after_s": _RETRY_AFTER_S}, status=503)
