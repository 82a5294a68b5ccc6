"""`peers`: Borg beside PowerDNS, Knot and Slurm, which do the same work in the same run.

    dns        queries per second on one core, compared with PowerDNS and Knot. See `tests.bench.dns`
    accepted   accepted jobs per second, compared with Slurm: jobs of one task, one request per job, 16 clients.
               `server_cpu_ms`: CPU of the servers per job, which are the web process and PostgreSQL here, and slurmctld
               there. Each client of Slurm starts `sbatch` for each job. Slurm answers before the job is saved on disk,
               and Borg afterwards. All jobs stay pending: Slurm holds them, and in Borg no machine is large enough
    hello      seconds from the submission of a job of three HTTP servers until all of them answer (in Borg: until
               `tasks_up` is 3). Slurm starts them with `srun`, as one job, on one slurmd on this machine

Cases are `WORK-borg` and `WORK-PROGRAM`. `borg_to_this` is Borg's value divided by the program's. If a program is not
installed, its result has no value, `missing` says what to install, and the exit status is still 0. Debian has no
package of Nomad, so there is no comparison with it yet.

    BENCH_CASES=dns,hello-slurm     run only cases whose name begins with one of these, and those of Borg beside them
    BENCH_ROUNDS=1                  number of rounds of the DNS servers instead of three
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from portal.cli import jobfile
from portal.cli.client import Client
from tests.bench import dns, http_load
from tests.bench.installation import Installation, installation
from tests.bench.wanted import wanted
from tests.ports import free_port

SUBMISSIONS, CLIENTS, HELLOS = 1_000, 16, 5
READY_S, WITHIN_S = 30.0, 60.0
# For each case: the commands that it needs, and the packages with them.
NEEDS = {
    "dns-powerdns": (("dnsperf", "pdns_server"), "Debian's packages dnsperf, pdns-server and pdns-backend-bind"),
    "dns-knot": (("dnsperf", "knotd"), "Debian's packages dnsperf and knot"),
    "accepted-slurm": (("slurmctld", "sbatch", "munged"), "Debian's packages slurmctld, slurm-client and munge"),
    "hello-slurm": (
        ("slurmctld", "slurmd", "srun", "munged"),
        "Debian's packages slurmctld, slurmd, slurm-client and munge",
    ),
    "hello-nomad": (("nomad",), "HashiCorp Nomad"),
}
CASES = list(NEEDS)


def measure() -> Iterator[dict[str, Any]]:
    present = []
    for case in wanted(CASES):
        commands, source = NEEDS[case]
        if all(shutil.which(command) for command in commands):
            present.append(case)
        else:
            yield {"case": case, "value": None, "unit": "", "better": "lower", "missing": source}
    if servers := [case for case in present if case.startswith("dns-")]:
        yield from _dns(servers)
    if "accepted-slurm" in present or "hello-slurm" in present:
        yield from _slurm(present)
    if "hello-nomad" in present:
        missing = "a comparison with Nomad, which nobody has written yet"
        yield {"case": "hello-nomad", "value": None, "unit": "s", "better": "lower", "missing": missing}


# -- DNS


def _dns(servers: list[str]) -> Iterator[dict[str, Any]]:
    cases = ["borg-qps", *(f"{case.removeprefix('dns-')}-qps" for case in servers)]
    with tempfile.TemporaryDirectory(prefix="borg-bench-dns-") as folder:
        home = Path(folder)
        home.chmod(0o755)
        for result in dns.speeds(
            home, dns.write_questions(home), cases, rounds=int(os.environ.get("BENCH_ROUNDS", "3"))
        ):
            # The bench `dns` checks the rates. Here only the comparison counts.
            result.pop("failed", None)
            yield {**result, "case": "dns-" + result["case"].removesuffix("-qps")}


# -- Slurm


def _slurm(cases: list[str]) -> Iterator[dict[str, Any]]:
    with installation() as where:
        ours = {
            "hello": _hello(_HelloBorg(where).run) if "hello-slurm" in cases else {},
            "accepted": _accepted_by_borg(where) if "accepted-slurm" in cases else {},
        }
    with _slurm_cluster() as cluster:
        theirs = {
            "hello": _hello(cluster.hello) if "hello-slurm" in cases else {},
            "accepted": cluster.accepted() if "accepted-slurm" in cases else {},
        }
    for work, own in ours.items():
        if own:
            yield {"case": f"{work}-borg", **own}
            ratio = round(own["value"] / theirs[work]["value"], 3)
            yield {"case": f"{work}-slurm", **theirs[work], "borg_to_this": ratio}


def _accepted(seconds: float, cpu_s: float) -> dict[str, Any]:
    return {
        "value": round(SUBMISSIONS / seconds, 1),
        "unit": "1/s",
        "better": "higher",
        "server_cpu_ms": round(1000 * cpu_s / SUBMISSIONS, 2),
        "jobs": SUBMISSIONS,
        "clients": CLIENTS,
        "load": round(os.getloadavg()[0], 1),
    }


def _hello(run: Callable[[int], float]) -> dict[str, Any]:
    taken = [run(number) for number in range(HELLOS + 1)][1:]
    return {
        "value": round(statistics.median(taken), 3),
        "unit": "s",
        "better": "lower",
        "runs": [round(one, 3) for one in taken],
        "load": round(os.getloadavg()[0], 1),
    }


def _accepted_by_borg(where: Installation) -> dict[str, Any]:
    profile = where.client().profile
    numbers = count()
    path, headers = f"/api/v1/cells/{profile.cell}/jobs/", (f"Authorization: Bearer {profile.token}",)

    def draw() -> http_load.Request:
        # Priority 0 needs no quota. No machine is large enough, so the job waits as the held jobs of Slurm do.
        body = {
            "name": f"one{next(numbers)}",
            "tenant": profile.tenant,
            "priority": 0,
            "task": {"command": ["sleep", "1"], "limit": {"cpu": "1000", "ram": "16Mi", "disk": "1Mi"}},
        }
        return http_load.Request("submit", path, headers, json.dumps(body).encode(), "POST")

    def submit(number: int) -> float:
        answers, seconds = http_load.run(
            lambda c: http_load.by_clients(c, CLIENTS, number, draw), "127.0.0.1", where.port
        )
        if wrong := [answer.status for answer in answers if answer.status != 201]:
            raise RuntimeError(f"{len(wrong)} submissions failed, the first with status {wrong[0]}")
        return seconds

    def cpu_s() -> float:
        return sum(
            sum(one.cpu_times()[:2])
            for one in where.processes()
            if "portal.web" in one.cmdline() or (one.name() == "postgres" and "[local]" in " ".join(one.cmdline()))
        )

    submit(CLIENTS)
    before = cpu_s()
    seconds = submit(SUBMISSIONS)
    return _accepted(seconds, cpu_s() - before)


class _HelloBorg:
    def __init__(self, where: Installation) -> None:
        self.client: Client = where.client()
        self.spec = jobfile.read("examples/hello.jsonnet")

    def run(self, number: int) -> float:
        """Submit the job, wait until three healthy servers are up, and return the seconds. Then kill the job."""
        client, tenant, name = self.client, self.client.profile.tenant, f"hello{number}"
        path = f"/api/v1/cells/{client.profile.cell}/jobs/"
        began = time.monotonic()
        client.post(path, {**self.spec, "name": name, "names": {"leave_s": 0}, "tenant": tenant})
        _until(lambda: client.get(f"{path}{tenant}/{name}/")["tasks_up"] == 3)
        took = time.monotonic() - began
        client.post(f"{path}{tenant}/{name}/kill/")
        _until(lambda: client.get(f"{path}{tenant}/{name}/")["state"] == "dead")
        return took


class _Slurm:
    """A small Slurm cluster on this machine: a slurmctld and a slurmd, which run as this user."""

    def __init__(self, home: Path, controller: psutil.Process) -> None:
        self.home, self.controller = home, controller
        self.env = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}

    def command(self, *arguments: str) -> str:
        done = subprocess.run(arguments, env=self.env, capture_output=True, text=True, timeout=WITHIN_S)
        if done.returncode:
            raise RuntimeError(f"{arguments[0]}: {done.stderr}")
        return done.stdout

    def hello(self, number: int) -> float:
        """Submit the job, wait until three servers answer, and return the seconds. Then cancel the job."""
        ports = [free_port() for _ in range(3)]
        server = f"set -- {' '.join(map(str, ports))}; shift $SLURM_PROCID; exec python3 -m http.server $1"
        (self.home / "server.sh").write_text(server + "\n")
        began = time.monotonic()
        job = self.command(
            *("sbatch", "--parsable", "--ntasks=3", "--output=/dev/null", f"--chdir={self.home}"),
            f"--wrap=srun sh {self.home}/server.sh",
        ).strip()
        _until(lambda: all(_answers(port) for port in ports))
        took = time.monotonic() - began
        self.command("scancel", job)
        _until(lambda: not self.command("squeue", "--noheader").strip())
        return took

    def accepted(self) -> dict[str, Any]:
        # Held jobs do not start, so that only their acceptance is measured.
        submit = ("sbatch", "--hold", "--output=/dev/null", "--wrap=sleep 1")
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda _: self.command(*submit), range(CLIENTS)))
            used, began = sum(self.controller.cpu_times()[:2]), time.monotonic()
            list(clients.map(lambda _: self.command(*submit), range(SUBMISSIONS)))
            seconds = time.monotonic() - began
        return _accepted(seconds, sum(self.controller.cpu_times()[:2]) - used)


@contextmanager
def _slurm_cluster() -> Iterator[_Slurm]:
    with tempfile.TemporaryDirectory(prefix="borg-bench-slurm-") as folder, ExitStack() as stack:
        home = Path(folder)
        (home / "munge.key").write_bytes(os.urandom(1024))
        (home / "munge.key").chmod(0o600)
        (home / "slurm.conf").write_text(_slurm_configuration(home))
        names = ("key-file=munge.key", "socket=munge.sock", "pid-file=munge.pid", "log-file=munge.log")
        paths = [f"--{name.replace('=', f'={home}/')}" for name in (*names, "seed-file=munge.seed")]
        _start(stack, home, "munged", "--foreground", "--force", *paths)
        _until((home / "munge.sock").exists, READY_S)
        file = str(home / "slurm.conf")
        controller = _start(stack, home, "slurmctld", "-D", "-i", "-f", file)
        _start(stack, home, "slurmd", "-D", "-f", file)
        cluster = _Slurm(home, psutil.Process(controller.pid))
        _until(lambda: _idle(cluster), READY_S)
        yield cluster


def _start(stack: ExitStack, home: Path, *command: str) -> subprocess.Popen[bytes]:
    log = stack.enter_context((home / f"{command[0]}.out").open("wb"))
    env = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    stack.callback(stop)
    return process


def _slurm_configuration(home: Path) -> str:
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    return "\n".join(
        [
            "ClusterName=bench",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={free_port()}",
            f"SlurmdPort={free_port()}",
            f"SlurmUser={user}",
            f"SlurmdUser={user}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={home}/munge.sock",
            f"StateSaveLocation={home}",
            f"SlurmdSpoolDir={home}",
            f"SlurmctldPidFile={home}/slurmctld.pid",
            f"SlurmdPidFile={home}/slurmd.pid",
            f"SlurmctldLogFile={home}/slurmctld.log",
            f"SlurmdLogFile={home}/slurmd.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",
            "MaxJobCount=100000",
            f"NodeName={host} NodeAddr=127.0.0.1 CPUs=64",
            "PartitionName=all Nodes=ALL Default=YES",
            "",
        ]
    )


def _idle(cluster: _Slurm) -> bool:
    try:
        return "idle" in cluster.command("sinfo", "--noheader", "--format=%T")
    except RuntimeError:
        return False


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _until(reached: Callable[[], Any], seconds: float = WITHIN_S) -> None:
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"not reached within {seconds} s")
        time.sleep(0.02)
