"""Tests of a parent process that starts and restarts workers. A small script forks them, without threads of pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BOUND_S = 20.0
# Each worker creates a file named for its number and pid, and waits. With `fail` it ends at once.
SCRIPT = """
import pathlib, signal, sys, time
from serving.processes import Parent

folder, count, fail = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["fail"]

def work(worker):
    import os
    if fail and not worker.first:
        return 3
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    (folder / f"{worker.number}-{os.getpid()}-{worker.of}-{int(worker.again)}").touch()
    while not ended:
        time.sleep(0.01)
    (folder / f"stopped-{worker.number}").touch()
    return 0

ended = lambda number: (folder / f"ended-{number}").touch()
sys.exit(Parent(count, work, on_end=ended, most_ends=3).run())
"""


@contextmanager
def parent(folder: Path, count: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), str(count), *more], stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(BOUND_S)
        for pid in pids(folder).values():  # workers may still run if a check failed
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids(folder: Path) -> dict[int, int]:
    """Return the newest process id by number of the worker."""
    made = sorted(folder.glob("[0-9]*-*"), key=lambda path: path.stat().st_mtime_ns)
    return {int(number): int(pid) for number, pid, *_ in (path.name.split("-") for path in made)}


def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_workers_stop_with_the_parent_and_one_that_dies_is_restarted(tmp_path: Path) -> None:
    with parent(tmp_path, 3) as process:
        until(lambda: len(pids(tmp_path)) == 3, "three workers")
        first = pids(tmp_path)
        assert all((tmp_path / f"{number}-{pid}-3-0").exists() for number, pid in first.items())
        os.kill(first[1], signal.SIGKILL)
        until(lambda: pids(tmp_path)[1] != first[1], "a new worker 1")
        assert (tmp_path / "ended-1").exists()
        assert (tmp_path / f"1-{pids(tmp_path)[1]}-3-1").exists()
        assert {number: pids(tmp_path)[number] for number in (0, 2)} == {n: first[n] for n in (0, 2)}
        process.terminate()
        assert process.wait(BOUND_S) == 0
        assert len(list(tmp_path.glob("stopped-*"))) == 3
        assert not any(alive(pid) for pid in pids(tmp_path).values())


def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    with parent(tmp_path, 2) as process:
        until(lambda: len(pids(tmp_path)) == 2, "two workers")
        process.kill()
        process.wait(BOUND_S)
        until(lambda: not any(alive(pid) for pid in pids(tmp_path).values()), "workers gone")


def test_a_worker_that_ends_again_and_again_ends_the_parent(tmp_path: Path) -> None:
    with parent(tmp_path, 2, "fail") as process:
        assert process.wait(BOUND_S) == 1
        began, gave_up = ((tmp_path / name).stat().st_mtime for name in ("ended-1", "stopped-0"))
        assert gave_up - began > 0.3  # the third delay, 0.4 s
        assert (tmp_path / "stopped-0").exists()
