"""`python -m tests.deployment POSTGRES`: start the shipped deployment on three hosts, and check it. It needs root.

POSTGRES is a folder with PostgreSQL 18 that speaks TLS, such as /usr/lib/postgresql/18; no package of this project has
one. etcd, HAProxy and Redis come from Debian. One JSON object per line says what was checked. Names of CHECKS select
some of the checks. The masters compile the kernels, because the source is at another path than on this computer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.deployment import hosts, units
from tests.deployment.hosts import Installed
from tests.ha import network
from tests.ha.network import send
from tests.ha.services import Service, Services, wait_until

CHECKS = ("failover", "restore", "borg")
_READY_S = 900.0
_TLS = "/etc/borg/tls"
_LOCAL = ("psql", "-h", "/run/borg-postgres", "-d", "postgres", "-Atqc")
# Longer than archive_timeout, so that the archive has a part of what is written.
_WRITE_S = 100.0
_BORG = ("web", "link", "worker", "beat")


class Units(Services):
    """Services that can also be stopped for good, as by `systemctl stop`."""

    def stop(self, host: str, name: str) -> None:
        """Kill a service, and do not start it again."""
        with self._lock:
            send(self._all.pop((host, name)).processes(), signal.SIGKILL)


class Deployment:
    """Three control hosts with all engines."""

    def __init__(self, services: Units, installed: list[Installed]) -> None:
        self.services, self.hosts = services, installed
        self.engines = {
            name: units.read(units.ENGINES / f"borg-{name}.service")
            for name in ("etcd", "postgres", "sentinel", "redis", "haproxy")
        }

    def start(self, *names: str) -> None:
        for name in names:
            for one in self.hosts:
                self.services.start(one.service(self.engines[name]))

    def sql(self, at: Installed, query: str, *, timeout: float = 30.0) -> str:
        """Run a query with a certificate, through the hosts in the URL of Borg. Return its result."""
        url = units.environment_file(at.path("/etc/borg/borg.env"))["BORG_DATABASE_URL"]
        return at.run("borg", "psql", url, "-Atqc", query, timeout=timeout)

    def leader(self) -> Installed | None:
        for one in self.hosts:
            try:
                if one.run("postgres", *_LOCAL, "SELECT pg_is_in_recovery()") == "f":
                    return one
            except RuntimeError:
                continue
        return None

    def replicas(self) -> list[str]:
        leader = self.leader()
        if leader is None:
            return []
        query = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming' ORDER BY 1"
        return leader.run("postgres", *_LOCAL, query).split()

    def redis(self, at: Installed, port: int, *command: str) -> str:
        tls = ("--tls", "--cacert", f"{_TLS}/ca.crt", "--cert", f"{_TLS}/borg.crt", "--key", f"{_TLS}/borg.key")
        return at.run("borg", "redis-cli", "-h", at.host.address, "-p", str(port), *tls, "--raw", *command)

    def redis_master(self) -> Installed | None:
        named = []
        for one in self.hosts:
            try:
                named.append(self.redis(one, 26379, "sentinel", "get-master-addr-by-name", "borg").split()[0])
            except (RuntimeError, IndexError):
                continue
        found = [one for one in self.hosts if named.count(one.host.address) >= 2]
        return found[0] if found else None


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def works(call: Callable[[], object]) -> bool:
    """Return whether a command succeeds and prints something."""
    try:
        return bool(call())
    except (RuntimeError, subprocess.TimeoutExpired):
        return False


def start_engines(deployment: Deployment) -> None:
    began = time.monotonic()
    deployment.start("etcd", "postgres", "sentinel", "redis", "haproxy")
    first = deployment.hosts[0]
    wait_until(lambda: len(deployment.replicas()) == 2, _READY_S, "PostgreSQL has a leader and two standbys")
    wait_until(lambda: "sync" in deployment.replicas(), _READY_S, "a standby is synchronous")
    wait_until(lambda: works(lambda: deployment.sql(first, "SELECT 1")), _READY_S, "the role borg reaches PostgreSQL")
    deployment.sql(first, "CREATE TABLE written (at timestamptz)")
    wait_until(lambda: deployment.redis_master() == first, _READY_S, "the sentinels agree")
    wait_until(lambda: works(lambda: deployment.redis(first, 6379, "set", "a", "b") == "OK"), _READY_S, "Redis writes")
    report(check="engines", seconds=round(time.monotonic() - began, 1), replicas=deployment.replicas())


def check_tls(deployment: Deployment) -> None:
    """Check that no engine answers without TLS or with a wrong certificate."""
    one = deployment.hosts[0]
    at = one.host.address
    authority = ("--cacert", f"{_TLS}/ca.crt")
    borg = (*authority, "--cert", f"{_TLS}/borg.crt", "--key", f"{_TLS}/borg.key")
    etcd, patroni = f"https://{at}:2379/health", f"https://{at}:8008/health"
    database = f"host={at} dbname=borg"
    certificate = f"sslcert={_TLS}/borg.crt sslkey={_TLS}/borg.key"
    accepted = (
        ("psql", f"{database} user=borg sslmode=require {certificate}", "-c", "SELECT 1"),
        ("redis-cli", "-e", "-h", at, "--tls", *borg, "ping"),
    )
    rejected: dict[str, tuple[str, ...]] = {
        "PostgreSQL without TLS": ("psql", f"{database} user=borg sslmode=disable", "-c", "SELECT 1"),
        "PostgreSQL without a certificate": ("psql", f"{database} user=borg sslmode=require", "-c", "SELECT 1"),
        "PostgreSQL as postgres, with the certificate of Borg": (
            *("psql", f"{database} user=postgres sslmode=require {certificate}", "-c", "SELECT 1"),
        ),
        "Redis without TLS": ("redis-cli", "-e", "-h", at, "ping"),
        "Redis without a certificate": ("redis-cli", "-e", "-h", at, "--tls", *authority, "ping"),
        "etcd without a certificate": ("curl", "-sf", *authority, etcd),
        "etcd with the certificate of Borg": ("curl", "-sf", *borg, etcd),
        "Patroni without a certificate": ("curl", "-sf", *authority, patroni),
        "Patroni with the certificate of Borg": ("curl", "-sf", *borg, patroni),
    }
    for command in accepted:
        assert one.run("borg", *command), command
    for what, denied in rejected.items():
        assert not works(lambda: one.run("borg", *denied)), what  # noqa: B023
    report(check="tls", rejected=sorted(rejected))


def check_failover(deployment: Deployment) -> None:
    """Kill the leader of PostgreSQL and the master of Redis, and measure how long writes fail."""
    leader = deployment.leader()
    assert leader is not None
    other = next(one for one in deployment.hosts if one != leader)
    deployment.services.on(leader.host.name, "borg-postgres").kill()
    insert = "INSERT INTO written VALUES (clock_timestamp())"
    gap = wait_until(
        lambda: works(lambda: deployment.sql(other, f"{insert} RETURNING 1", timeout=10)), 120, "PostgreSQL writes"
    )
    complete = wait_until(lambda: len(deployment.replicas()) == 2, _READY_S, "two standbys")
    report(check="PostgreSQL's leader killed", gap_s=round(gap, 1), complete_s=round(gap + complete, 1))
    master = deployment.redis_master()
    assert master is not None
    deployment.services.on(master.host.name, "borg-redis").kill()

    def writes() -> bool:
        found = deployment.redis_master()
        return found not in (None, master) and works(lambda: deployment.redis(found, 6379, "set", "a", "b") == "OK")

    gap = wait_until(writes, 60, "Redis writes")
    wait_until(lambda: works(lambda: _is_replica(deployment, master)), 60, "the old master is a replica")
    report(check="Redis' master killed", gap_s=round(gap, 1))


def _is_replica(deployment: Deployment, one: Installed) -> bool:
    return "role:slave" in deployment.redis(one, 6379, "info", "replication")


def link(host: network.Host) -> str:
    """Return the URL of the link shards behind the HAProxy of a control host."""
    return f"https://{host.address}:8443"


def start_borg(deployment: Deployment, machine: network.Host) -> None:
    """Migrate, create the cell, and start all processes of Borg on all hosts and a Borglet. Wait until they work."""
    first = deployment.hosts[0]
    manage = ("/opt/borg/.venv/bin/python", "/opt/borg/manage.py")
    env = ("env", "DJANGO_SETTINGS_MODULE=portal.settings.production", "PYTHONPATH=/opt/borg")
    first.run("borg", *env, *manage, "migrate", "--no-input")
    made = json.loads(first.run("borg", *env, *manage, "bootstrap"))
    report(check="migrated", cell=made["cell"])
    for one in deployment.hosts:
        for name in _BORG:
            deployment.services.start(one.service(units.read(units.BORG / f"borg-{name}.service")))
        deployment.services.start(one.service(units.read(units.BORG / "borg-master@.service"), "dev"))
    began = time.monotonic()
    for one in deployment.hosts:
        ask = ("curl", "-sf", "--cacert", f"{_TLS}/ca.crt", "--resolve", f"borg.test:443:{one.host.address}")
        wait_until(lambda: works(lambda: one.run("borg", *ask, "https://borg.test/readyz")), _READY_S, "web")  # noqa: B023
    leases = "SELECT count(*) FROM scheduling_lease WHERE expires_at > clock_timestamp()"
    wait_until(lambda: deployment.sql(first, leases) == "1", _READY_S, "a master has the lease")
    beats = "SELECT count(*) FROM pg_locks WHERE (classid::bigint << 32) + objid::bigint = x'626f726762656174'::bigint"
    wait_until(lambda: deployment.sql(first, beats) == "1", _READY_S, "a beat holds the lock, which is named borgbeat")
    ping = (*env, "/opt/borg/.venv/bin/celery", "--app", "portal.celery", "inspect", "ping", "--timeout", "10")
    wait_until(lambda: works(lambda: "3 nodes online" in first.run("borg", *ping)), _READY_S, "workers answer by Redis")
    report(check="Borg", seconds=round(time.monotonic() - began, 1))
    # A machine joins through HAProxy.
    options = ("--link", link(first.host), "--hostname", machine.name, "--address", machine.address)
    argv = [sys.executable, "-m", "borglet", "run", "--home", str(first.folder.parent / "borglet"), *options]
    variables = {"PYTHONPATH": str(units.ROOT), "BORGLET_JOIN_TOKEN": made["join_tokens"]["fleet"]}
    log = first.folder / "borglet.log"
    deployment.services.start(Service(machine, "borglet", [*argv, "--runtime", "process"], log, variables))
    up = "SELECT count(*) FROM scheduling_machine WHERE state = 'up'"
    report(
        check="a machine", seconds=round(wait_until(lambda: deployment.sql(first, up) == "1", _READY_S, "it is up"), 1)
    )


def check_restore(deployment: Deployment) -> None:
    """Lose PostgreSQL on all hosts while a client writes, and restore the newest backup. Report how many seconds of
    changes are lost (RPO) and how long it takes until writes go on (RTO).
    """
    leader, first = deployment.leader(), deployment.hosts[0]
    assert leader is not None
    began = time.monotonic()
    leader.run("postgres", "/opt/borg/deploy/ha/bin/base-backup")
    backup_s = time.monotonic() - began
    began = time.monotonic()
    acknowledged = 0.0
    while time.monotonic() - began < _WRITE_S:
        insert = "INSERT INTO written VALUES (clock_timestamp()) RETURNING extract(epoch FROM at)"
        acknowledged = float(deployment.sql(leader, insert))
    for one in deployment.hosts:
        deployment.services.stop(one.host.name, "borg-postgres")
        shutil.rmtree(one.path("/var/lib/borg-postgres/data"))
    began = time.monotonic()
    told = first.run("postgres", "/opt/borg/deploy/ha/bin/restore-database", "latest")
    # It asks for the leader too, until the lease has expired.
    answers = f"borg\\nYes I am aware\\n{leader.host.name}\\n"
    confirmed = f"printf '{answers}' | /opt/borg/deploy/ha/bin/patronictl remove borg"
    first.run("root", "sh", "-c", confirmed)
    restored_s = time.monotonic() - began
    deployment.services.start(first.service(deployment.engines["postgres"]))
    wait_until(lambda: deployment.leader() == first, _READY_S, "the restored host leads")
    for one in deployment.hosts[1:]:
        deployment.services.start(one.service(deployment.engines["postgres"]))
    newest = "SELECT max(extract(epoch FROM at)) FROM written"
    wait_until(lambda: works(lambda: deployment.sql(first, f"{insert}; {newest}")), _READY_S, "writes go on")
    rto_s = time.monotonic() - began
    last = f"{newest} WHERE extract(epoch FROM at) <= {acknowledged}"
    report(
        check="PostgreSQL lost on all hosts, and restored",
        backup_s=round(backup_s, 1),
        restore_s=round(restored_s, 1),
        rto_s=round(rto_s, 1),
        rpo_s=round(acknowledged - float(deployment.sql(first, last)), 1),
        told=told.splitlines(),
    )
    wait_until(lambda: len(deployment.replicas()) == 2, _READY_S, "two standbys")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.deployment", description=__doc__)
    parser.add_argument("postgres", type=Path)
    parser.add_argument("checks", nargs="*", choices=CHECKS, help="default: all")
    options = parser.parse_args()
    checks = options.checks or CHECKS
    services = Units()
    with tempfile.TemporaryDirectory(prefix="borg-deployment-") as made, network.network() as net, services:
        folder = Path(made)
        folder.chmod(0o755)
        shared = folder / "shared"
        (shared / "srv").mkdir(parents=True)
        names = ("c1", "c2", "c3")
        made_hosts = [net.add(name, 11 + number) for number, name in enumerate(names)]
        given = [f"{one.name}={one.address}" for one in made_hosts]
        script = (sys.executable, str(units.ROOT / "deploy" / "ha" / "prepare.py"))
        common = ("--url=https://borg.test", f"--link={link(made_hosts[0])}", f"--out={shared / 'prepared'}")
        subprocess.run([*script, *common, *given], check=True)
        installed = [hosts.install(one, folder / one.name, shared, options.postgres) for one in made_hosts]
        deployment = Deployment(services, installed)
        try:
            start_engines(deployment)
            check_tls(deployment)
            if "failover" in checks:
                check_failover(deployment)
            if "restore" in checks:
                check_restore(deployment)
            if "borg" in checks:
                start_borg(deployment, net.add("m1", 101))
        except BaseException:
            subprocess.run(["cp", "-r", "--no-target-directory", made, "/tmp/borg-deployment-failed"], check=False)
            raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
