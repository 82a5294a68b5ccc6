"""Read the processes of the machine from /proc: identity, parent and usage of each. This module imports only `os`,
because supervisors use it and must stay small.
"""

from __future__ import annotations

import os

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process:
    """One process. `started`: its start time in ticks since boot. Another process with the same `pid` has another start
    time.
    """

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
    """Return a process. Return None if the process has ended, or if the kernel hides it because it belongs to another
    user.
    """
    stat = read_file(f"/proc/{pid}/stat")
    return Process(pid, stat) if stat else None


def read_file(path: str, at_most: int = 1024) -> bytes:
    """Return the first `at_most` bytes of a file in /proc. Return no bytes if its process has ended, or if the kernel
    hides the file because the process belongs to another user.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(at_most)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def send_signal(pid: int, number: int) -> bool:
    """Send the signal `number` to a process. Return False if the process has ended, or if this user may not send it
    signals.
    """
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
    """Return, for the pid of each parent, the pids of its children."""
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
    """Return the thread ids of a process. The list is empty if the process has ended, or if the kernel hides its
    threads because the process belongs to another user.
    """
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def ready_threads(pids: list[int], *, at_most: int) -> int:
    """Return how many threads of these processes run or wait for a CPU core. Only the first `at_most` threads are
    read.
    """
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
    """Return whether the process `pid` that started at `started` (ticks since boot) still runs, and is not a zombie."""
    process = read(pid)
    return process is not None and process.started == started and process.state != b"Z"


def with_environment(entry: str) -> list[int]:
    """Return the pids of the processes that have `entry` (`NAME=value`) in their environment. Processes whose
    environment this user cannot read are omitted.
    """
    wanted = entry.encode()
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    return [int(pid) for pid in pids if wanted in read_file(f"/proc/{pid}/environ", 1 << 20).split(b"\0")]


def pss_bytes(pid: int) -> int | None:
    """Return the memory of a process in bytes. A page that several processes share counts in part for each. Return None
    if this user cannot read the memory usage of the process.
    """
    for line in read_file(f"/proc/{pid}/smaps_rollup", 1 << 16).splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
