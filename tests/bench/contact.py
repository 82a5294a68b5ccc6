"""`contact`: how soon the tasks of a machine that dies are placed on other machines (§3.3, §4).

A complete installation runs with simulated machines. The Borglet of one machine is a separate process. The bench kills
it, so that its connection closes, or freezes it with SIGSTOP, so that it no longer answers. The master polls machines
every five seconds, as in a cell of 10,000 machines.

Cases `machine-killed` and `machine-frozen`: seconds from the signal until the last task of the machine is placed on
another one. `value` is the slowest run, `median` the median. `up_s`: seconds until all tasks run again.

    BENCH_RUNS=3            number of runs of each case
    BENCH_CASES=machine-k   run only cases whose name begins with this
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from portal.cli.client import Client
from tests.bench.installation import Installation, installation
from tests.bench.wanted import wanted

NOTICED_S = 15.0
TASKS = 40
SURVIVORS = 8
VICTIM = "victim"
_COLUMNS = "hostname,platform,cpu_milli,ram_bytes,disk_bytes,rack,power_domain,attributes\n"
_SETTINGS = (
    "from scheduling.models import Cell; from scheduling.cells.cells import cell_set;"
    " from quota.vocabulary.permissions import system;"
    " [cell_set(principal=system('bench'), cell=c, settings={**c.settings, 'poll_interval_s': 5.0})"
    " for c in Cell.objects.all()]"
)
_BLOWS = {"machine-killed": signal.SIGKILL, "machine-frozen": signal.SIGSTOP}


def measure() -> Iterator[dict[str, Any]]:
    cases = wanted(list(_BLOWS))
    runs = int(os.environ.get("BENCH_RUNS", "5"))
    if not cases:
        return
    with tempfile.TemporaryDirectory(prefix="borg-bench-contact-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        listed = folder / "survivors.csv"
        listed.write_text(_COLUMNS + "".join(_machine(f"survivor{number}") for number in range(SURVIVORS)))
        with installation(machines=f"simulated:{listed}") as where:
            where.manage("shell", "-c", _SETTINGS)
            victim = _Victim(folder, where)
            try:
                yield from (_case(victim, case, runs) for case in cases)
            finally:
                victim.end()


def _case(victim: _Victim, case: str, runs: int) -> dict[str, Any]:
    found = [victim.strike(_BLOWS[case]) for _ in range(runs)]
    placed = sorted(seconds for seconds, _ in found)
    return {
        "case": case,
        "value": round(placed[-1], 2),
        "unit": "s",
        "better": "lower",
        "min": round(placed[0], 2),
        "median": round(statistics.median(placed), 2),
        "up_s": round(max(up for _, up in found), 2),
        "runs": runs,
        **({"failed": f"longer than {NOTICED_S:g} s"} if placed[-1] > NOTICED_S else {}),
    }


class _Victim:
    """A simulated machine whose process the bench starts, kills and freezes."""

    def __init__(self, folder: Path, where: Installation) -> None:
        self._where, self._folder = where, folder
        self._admin, self._tenant = where.client("admin"), where.client()
        self._cell = f"/api/v1/cells/{self._tenant.profile.cell}"
        self._random = random.Random(7)
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "victim.csv").write_text(_COLUMNS + _machine(VICTIM))
        self._token = self._admin.post(f"{self._cell}/join-tokens/", {"uses": 1})["token"]

    def strike(self, blow: signal.Signals) -> tuple[float, float]:
        """Start the machine and a job, and send the signal to the machine's process.

        Return the seconds until its tasks were placed on other machines, and the seconds until all tasks ran again.
        """
        self._start()
        path, hit = self._load()
        while not hit:  # the scheduler considers a random sample of machines
            self._unload(path)
            path, hit = self._load()
        time.sleep(self._random.uniform(0.0, 5.0))  # a random moment between two polls
        assert self._process is not None
        began = time.monotonic()
        self._process.send_signal(blow)
        _until(lambda: all(self._elsewhere(task) for task in self._tasks(path) if task["index"] in hit), "placed")
        placed_s = time.monotonic() - began
        _until(lambda: self._tenant.get(path)["tasks_up"] == TASKS, "all run again")
        up_s = time.monotonic() - began
        self.end()
        self._unload(path)
        return placed_s, up_s

    def _load(self) -> tuple[str, set[int]]:
        """Submit a job and wait until it runs. Return its path and the indexes of its tasks on the machine."""
        self._number += 1
        job = f"load{self._number}"
        self._tenant.post(f"{self._cell}/jobs/", _job(job, self._tenant))
        path = f"{self._cell}/jobs/{self._tenant.profile.tenant}/{job}/"
        _until(lambda: self._tenant.get(path)["tasks_up"] == TASKS, "the job runs")
        return path, {task["index"] for task in self._tasks(path) if task["machine"] == VICTIM}

    def _unload(self, path: str) -> None:
        self._tenant.post(f"{path}kill/")
        _until(lambda: self._tenant.get(path)["state"] == "dead", "the job is over")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def _start(self) -> None:
        link = next(one for one in self._where.processes() if "scheduling.link" in " ".join(one.cmdline()))
        port = link.environ()["BORG_LINK_PORT"]
        argv = [
            *(sys.executable, "-m", "borglet", "fleet", "--file", str(self._folder / "victim.csv")),
            *("--home", str(self._folder / "home"), "--link", f"https://127.0.0.1:{port}"),
            *("--join-token", self._token),
        ]
        with (self._folder / "victim.log").open("ab") as output:
            self._process = subprocess.Popen(argv, stdout=output, stderr=output)
        machines = f"{self._cell}/machines/"
        _until(
            lambda: any(row["hostname"] == VICTIM and row["state"] == "up" for row in self._admin.pages(machines)),
            "the machine is there",
        )

    def _tasks(self, path: str) -> list[dict[str, Any]]:
        return list(self._tenant.pages(f"{path}tasks/"))

    @staticmethod
    def _elsewhere(task: dict[str, Any]) -> bool:
        return task["state"] == "running" and task["machine"] != VICTIM


def _job(name: str, client: Client) -> dict[str, Any]:
    return {
        "name": name,
        "tenant": client.profile.tenant,
        "priority": 0,
        "tasks": TASKS,
        "task": {"command": ["sleep", "infinity"], "limit": {"cpu": "100m", "ram": "64Mi", "disk": "64Mi"}},
    }


def _machine(hostname: str) -> str:
    return f"{hostname},simulated,8000,{2**34},{2**37},r-{hostname},p-{hostname},\n"


def _until(condition: Callable[[], Any], what: str, *, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)
