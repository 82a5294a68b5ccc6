"""Parts of the bench `link`: rows of a cell, and processes for link shards, a master and fleets of simulated
machines."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from borglet.machine_specs import CSV_COLUMNS, MachineSpec

_SECRET = "of-the-bench-" + "x" * 50
_END_S = 30.0


class Program:
    """A process that the bench started, with its CPU time and memory."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._seen = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    def rss_bytes(self) -> int:
        return int(self._seen.memory_info().rss)

    def pss_bytes(self) -> int:
        return int(self._seen.memory_full_info().pss)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(_END_S)


class FleetProgram(Program):
    """A process that runs `tests.bench.link_machines`. `ask` sends one command and returns its answer."""

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fleet ended when asked {command!r}; see its log")
        return json.loads(line)

    def live(self, path: Path) -> dict[str, tuple[str, int]]:
        """Return (hostname, run) of each incarnation of a task that has processes. `run`: its number of starts.

        Raises `RuntimeError` if an incarnation runs on two machines. The fleet writes the list to the file `path`.
        """
        self.ask(f"live {path}")
        found: dict[str, tuple[str, int]] = {}
        for line in path.read_text().splitlines():
            key, hostname, run = line.split()
            if key in found:
                raise RuntimeError(f"{key} runs on {hostname} and {found[key][0]}")
            found[key] = (hostname, int(run))
        return found


@contextmanager
def program(home: Path, name: str, *arguments: str, kind: type[Program] = Program, **env: str) -> Iterator[Any]:
    """Run `python -m` with the arguments during the `with` block. The log is `home/name.log`."""
    pipe = subprocess.PIPE if kind is FleetProgram else subprocess.DEVNULL
    with (home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=pipe, stdout=pipe, stderr=log, env={**os.environ, **env}
        )
        made = kind(process)
        try:
            yield made
        finally:
            if process.stdin is not None:
                process.stdin.close()
            made.stop()


class Shards:
    """Several link shards on one port, which run during the `with` block. `url`: their address."""

    def __init__(self, home: Path, number: int) -> None:
        self._home, self._number, self._port = home, number, _free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.programs: list[Program] = []
        self._stack = ExitStack()

    def __enter__(self) -> Shards:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all shards, and wait until they listen."""
        self.programs = [self._start(index) for index in range(self._number)]
        until(lambda: all(_listens(self._port, one) for one in self.programs), what="a shard to listen", seconds=60.0)

    def kill_one(self) -> None:
        """Kill the first shard with SIGKILL. Without other shards, start it again at once."""
        self.programs.pop(0).stop(signal.SIGKILL)
        if not self.programs:
            self.programs.append(self._start(0))

    def stop(self) -> None:
        self._stack.close()

    def _start(self, index: int) -> Program:
        env = {
            "DJANGO_SETTINGS_MODULE": "portal.settings.production",
            "BORG_SECRET_KEY": _SECRET,
            "BORG_LINK_PORT": str(self._port),
            "BORG_LINK_SHARED_PORT": "1",
            "BORG_LINK_URL": self.url,
        }
        made: Program = self._stack.enter_context(program(self._home, f"shard{index}", "scheduling.link", **env))
        return made


@contextmanager
def master(home: Path, cell: str) -> Iterator[Program]:
    """Run the master of a cell during the `with` block, as `make up` does."""
    env = {"DJANGO_SETTINGS_MODULE": "portal.settings.production", "BORG_SECRET_KEY": _SECRET}
    with program(home, "master", "scheduling.master", cell, **env) as made:
        yield made


@contextmanager
def fleet(home: Path, name: str, url: str) -> Iterator[FleetProgram]:
    with program(home, name, "tests.bench.link_machines", str(home / name), url, kind=FleetProgram) as made:
        yield made


def write_machines(home: Path, machines: Sequence[MachineSpec]) -> None:
    home.mkdir(mode=0o711)
    with (home / "machines.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, CSV_COLUMNS, restval="")
        table.writeheader()
        for one in machines:
            table.writerow(
                {
                    "hostname": one.hostname,
                    "platform": one.platform,
                    "rack": one.rack,
                    "power_domain": one.power_domain,
                    "cpu_milli": one.capacity["cpu"],
                    "ram_bytes": one.capacity["ram"],
                    "disk_bytes": one.capacity["disk"],
                }
            )


def place(machines: int, *, port_low: int) -> None:
    """Place every pending task, evenly over the machines: change the rows, but write no events."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "WITH m AS (SELECT id, row_number() OVER (ORDER BY hostname) - 1 AS n FROM scheduling_machine),"
            " t AS (SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM scheduling_task),"
            " placed AS (SELECT t.id, m.id AS machine_id, %s + t.n / %s AS port FROM t JOIN m"
            " ON m.n = t.n %% (SELECT count(*) FROM m))"
            " UPDATE scheduling_task AS task SET state = 'running', incarnation = 1, phase = 'assigned',"
            " machine_id = placed.machine_id, ports = ARRAY[placed.port] FROM placed WHERE task.id = placed.id",
            [port_low, machines],
        )
        cursor.execute("UPDATE scheduling_job SET state = 'running', tasks_pending = 0, tasks_running = tasks_total")
        for table in ("task", "jobspec", "machine", "job"):
            cursor.execute(f"VACUUM ANALYZE scheduling_{table}")


def until(reached: Callable[[], Any], *, what: str, seconds: float, every_s: float = 0.2) -> float:
    """Wait until `reached` returns a true value, and return the seconds. Raises `TimeoutError` after `seconds`."""
    began = time.monotonic()
    while not reached():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(every_s)
    return time.monotonic() - began


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _listens(port: int, shard: Program) -> bool:
    if shard.process.poll() is not None:
        raise RuntimeError(f"a shard ended with status {shard.process.returncode}; see its log")
    own = psutil.Process(shard.process.pid).net_connections("tcp")
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in own)
