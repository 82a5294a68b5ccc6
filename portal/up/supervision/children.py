"""Child processes. They end when their parent ends, a record on disk identifies each of them, and they stop within a
time limit.

A pid alone is not enough, because the kernel reuses pids. A record contains the pid, the start time of the process
(clock ticks since boot, field 22 of `/proc/PID/stat`) and the boot id, which together identify one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from portal.up.supervision.account import SystemUser

PR_SET_NAME = 15
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None, use_errno=True)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    output: int | None = None,
    account: SystemUser | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a new session, so that Ctrl-C at the terminal reaches only the supervisor.

    The kernel sends `death_signal` to the process when the *thread* that called this function ends, so call it from the
    main thread. `output`: the file descriptor for stdout and stderr; None: the process uses those of this process.
    """
    parent = os.getpid()

    command = account.command(argv, death_signal=death_signal) if account else list(argv)
    return subprocess.Popen(
        command,
        env=None if env is None else dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=lambda: end_with_parent(parent, death_signal),
    )


def end_with_parent(parent: int, death_signal: signal.Signals) -> None:
    """Make the kernel send `death_signal` to this process when its parent ends. Exit if `parent` has already ended."""
    LIBC.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call above
        os._exit(1)


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """During the `with` block, make this process the new parent of each descendant whose parent ends."""
    LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start_time_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot. Return None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name may contain spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def record_write(path: Path, pid: int) -> None:
    """Write a file that identifies a running process, so that `record_find` finds it again. The write is atomic."""
    record = {"pid": pid, "start_time_ticks": start_time_ticks(pid), "boot_id": _BOOT_ID.read_text().strip()}
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(record))
    fresh.replace(path)


def record_find(path: Path) -> int | None:
    """Return the pid in the record `path` if the recorded process still runs, or else None."""
    try:
        record = json.loads(path.read_text())
        pid, ticks, boot_id = int(record["pid"]), record["start_time_ticks"], record["boot_id"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # a crash of the host can damage a record
        return None
    if boot_id != _BOOT_ID.read_text().strip() or ticks is None:
        return None
    return pid if start_time_ticks(pid) == ticks else None


def wait_until(condition: Callable[[], bool], timeout_s: float, *, every_s: float = 0.02) -> bool:
    """Wait until `condition()` is true, and return True. Return False after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def end_process(pid: int, first: signal.Signals, timeout_s: float) -> bool:
    """Stop a process with the signal `first`. If it has not ended after `timeout_s` seconds, send SIGKILL. The process
    need not be a child.

    Return whether it ended without SIGKILL. Raises `TimeoutError` if it still exists 10 s after SIGKILL.
    """
    ticks = start_time_ticks(pid)

    def gone() -> bool:
        return ticks is None or start_time_ticks(pid) != ticks

    for number, patience_s in ((first, timeout_s), (signal.SIGKILL, 10.0)):
        if gone():
            return True
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return True
        if wait_until(gone, patience_s):
            return number is first
    raise TimeoutError(f"Cannot stop process {pid}: it still exists 10 s after SIGKILL. Check whether its disk hangs.")
