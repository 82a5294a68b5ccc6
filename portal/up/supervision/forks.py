"""Child processes that `portal.up.preload` forks. They share the memory of the code that it has imported."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from portal.up.supervision import children

MESSAGE_BYTES = 128 * 1024
_ANSWER_S = 10.0


class ForkedProcess:
    """A child process that `portal.up.preload` forked. It has those methods of `Popen` that `ProcessKeeper` calls."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status of the process, or None while it still runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status. Raises `TimeoutError` if the process has not
        ended after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"Process {self.pid} has not ended within {timeout} s after a signal. Check whether its disk hangs."
                )
            time.sleep(0.01)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process. Do nothing if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    preload: Path, argv: Sequence[str], *, name: str, env: Mapping[str, str], output: int, death_signal: signal.Signals
) -> ForkedProcess:
    """Start `argv`, which must be `python -m MODULE …`, as a fork of the process that listens on the socket `preload`.

    The new process is a child of the caller and has its own session. Call this function in the main thread. Raises
    `OSError` if the process that listens on `preload` does not answer.
    """
    if list(argv[1:2]) != ["-m"]:
        raise ValueError(f"Cannot fork {argv}: only `python -m MODULE` can be forked. Use `children.spawn`.")
    request = {"argv": list(argv), "name": name, "env": dict(env), "death_signal": int(death_signal)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_S)
        with short_path(preload) as short:
            connection.connect(short)
        # The kernel gives the process to this one only meanwhile. Otherwise this process would get tasks whose Borglet
        # ends, and would have to reap them.
        with children.subreaper():
            socket.send_fds(connection, [json.dumps(request).encode()], [output])
            if not (pid := connection.recv(16)):
                raise ConnectionError(
                    f"the process that listens on {preload} ended during the request; the supervisor tries again"
                )
        connection.send(b"!")
    return ForkedProcess(int(pid))


def accepts(preload: Path) -> str | None:
    """Return None if a process listens on the socket `preload`. Otherwise return why the connection failed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, short_path(preload) as short:
            connection.settimeout(_ANSWER_S)
            connection.connect(short)
    except OSError as error:
        return f"no process listens on {preload}: {error.strerror or error}"
    return None


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a short path to the Unix socket `path`, because a socket's path has at most 107 bytes. The short path is
    valid only in the `with` block.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
