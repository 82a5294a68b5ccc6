"""Read processes from /proc: identity, ancestry and usage. This module imports only `os`, because supervisors use it
and must stay small.
"""

from __future__ import annotations

import os

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process:
    """One process. `pid` and `started` (ticks since boot) together identify a process, also after its end."""

    __slots__ = ("cpu_ticks", "pid", "ppid", "reaped_ticks", "rss_bytes", "started", "state", "threads")

    def __init__(self, pid: int, stat: bytes) -> None:
        # The second field, the program's name in brackets, may contain blanks and brackets.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.ppid = int(fields[1])
        self.cpu_ticks = int(fields[11]) + int(fields[12])
        self.reaped_ticks = int(fields[13]) + int(fields[14])
        self.threads = int(fields[17])
        self.started = int(fields[19])
        self.rss_bytes = int(fields[21]) * PAGE_BYTES


def read(pid: int) -> Process | None:
    """Return a process; None if it has ended, or if it belongs to another user and the kernel does not show it."""
    stat = read_file(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def read_file(path: str, at_most: int = 1024) -> bytes:
    """Return the beginning of a file of a process in /proc. Return nothing if the process has ended, or if it belongs
    to another user and the kernel does not show the file.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(at_most)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def send_signal(pid: int, number: int) -> bool:
    """Send a signal to a process. Return False if it has ended, or if this user may not signal it."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def table() -> dict[int, Process]:
    """Return all processes that are visible to this user, by pid."""
    found: dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := read(int(name))) is not None:
            found[process.pid] = process
    return found


def children_of(processes: dict[int, Process]) -> dict[int, list[int]]:
    """Return the pids of children by the pid of their parent."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def descendants(children: dict[int, list[int]], root: int) -> list[int]:
    """Return the pids of all descendants of `root`, parents before children."""
    found = list(children.get(root, ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def threads_of(pid: int) -> list[int]:
    """Return the threads of a process; none if it has ended, or if it belongs to another user and the kernel does not
    show them.
    """
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def ready_threads(pids: list[int], *, at_most: int) -> int:
    """Return how many threads of these processes run or wait for a core, among the first `at_most` threads."""
    ready = looked = 0
    for pid in pids:
        for thread in threads_of(pid):
            if looked == at_most:
                return ready
            looked += 1
            stat = read_file(f"/proc/{pid}/task/{thread}/stat")
            ready += bool(stat) and Process(pid, stat).state == b"R"
    return ready


def still_runs(pid: int, started: int) -> bool:
    """Return whether the process that started at `started` still runs, and is not a zombie."""
    process = read(pid)
    return process is not None and process.started == started and process.state != b"Z"


def with_environment(entry: str) -> list[int]:
    """Return the pids of processes with `NAME=value` in their environment, as far as this user can read it."""
    wanted = entry.encode()
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return [int(pid) for pid in pids if wanted in read_file(f"/proc/{pid}/environ", 1 << 20).split(b"\0")]


def pss_bytes(pid: int) -> int | None:
    """Return the memory of a process, with shared pages divided among processes; None if it is not readable."""
    for line in read_file(f"/proc/{pid}/smaps_rollup", 1 << 16).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
