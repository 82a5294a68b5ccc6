"""A cell on several hosts: the processes that the units in `deploy/systemd` start, and real Borglets on machines."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis

from borglet.runtimes.cgroups import cgroups
from portal.up.home import Home
from serving import redis_clients
from tests.ha.caches import Caches
from tests.ha.databases import Databases
from tests.ha.disks import Disks
from tests.ha.lookups import PORT, ZONE
from tests.ha.network import Host
from tests.ha.plants import FSYNC_OFF, command
from tests.ha.proxies import LINK_PORT, WEB_PORT, haproxy
from tests.ha.services import Service, Services, wait_until

CELL, TENANT = "dev", "demo"
ROOT = Path(__file__).parents[2]
_CELERY = ("celery", "-A", "portal.celery")
_WORKER = (*_CELERY, "worker", "--without-gossip", "--without-mingle", "--pool", "threads", "--concurrency", "2")
SERVERS: Mapping[str, Sequence[str]] = {
    "web": ("portal.web", "--port", str(WEB_PORT), "--processes", "1", "--host"),  # and its address
    "link": ("scheduling.link",),
    "master": ("scheduling.master", CELL),
    "master-batch": ("scheduling.master", f"{CELL}.batch"),
    "worker": (*_WORKER, "--queues", "borg"),
    "resolver": ("naming.server",),
}
MASTERS = ("master", "master-batch")
_BEATS = 2  # hosts with a beat: one works, and the other stands by
_READY_S = 300.0
# A second scheduler makes plans at the same time, so commits have to check them again.
_SETTINGS = {"schedulers": "by-workload"}
_SCHEDULERS = ("service", "batch")


class Cell:
    """The hosts of a cell and what runs on them. `alive`: the folder where tasks leave signs of life. `plant`: the
    protection that this cell lacks (`tests.ha.plants`), "" for none. `tree`: the folder with the source of the programs
    that start.
    """

    def __init__(
        self,
        control: Sequence[Host],
        machines: Sequence[Host],
        front: Host,
        services: Services,
        folder: Path,
        *,
        plant: str = "",
        tree: Path = ROOT,
    ) -> None:
        self.control, self.machines, self.front = control, machines, front
        self.services, self.folder, self.plant, self.tree = services, folder, plant, tree
        for host in (*control, *machines, front):
            (folder / host.name).mkdir(mode=0o711)
        self.disks = Disks(control, folder)
        self.databases = Databases(control, [front], services, folder, fsync=plant != FSYNC_OFF)
        self.caches = Caches(control, services, folder)
        self.url = f"http://{front.address}:{WEB_PORT}"
        self.alive = folder / "alive"
        self.token = ""
        self.alive.mkdir()
        self.alive.chmod(0o1777)
        shared = folder / "shared"
        shared.mkdir(mode=0o711)
        self._shared = {
            "PYTHONUNBUFFERED": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "DJANGO_SETTINGS_MODULE": "portal.settings.production",
            "BORG_DATABASE_URL": self.databases.url,
            "BORG_REDIS_URL": self.caches.url,
            "BORG_SECRET_KEY": secrets.token_urlsafe(64),
            "BORG_PORTAL_URL": self.url,
            "BORG_ALLOWED_HOSTS": ",".join(host.address for host in (front, *control)),
            "BORG_LINK_URL": f"https://{front.address}:{LINK_PORT}",
            "BORG_LINK_PORT": str(LINK_PORT),
            "BORG_CELLS": CELL,
            "BORG_ZONE": ZONE,
            "BORG_DNS_PORT": str(PORT),
            "FORWARDED_ALLOW_IPS": front.address,
            # Folders that all control hosts share.
            "BORG_AUTHORITY": str(shared / "authority"),
            "BORG_PACKAGE_STORE": (shared / "packages").as_uri(),
            "BORG_ARCHIVE": (shared / "archive").as_uri(),
        }

    def start(self) -> None:
        """Start everything, and return when all machines have joined."""
        self.caches.start()
        self.databases.start()
        made = self.migrate()
        self.token = made["demo"]["token"]
        for host in self.control:
            for name, arguments in SERVERS.items():
                address = [host.address] if name == "web" else []
                self._start(host, name, [*arguments, *address])
        for host in self.control[:_BEATS]:
            self._start(host, "beat", [*_CELERY, "beat", "--schedule", str(self._home(host) / "beat")])
        self.services.start(haproxy(self.front, self.control, self.folder / self.front.name))
        wait_until(self._web_answers, _READY_S, "all web processes answer", every_s=0.5)
        self._set(_SETTINGS, made["sre"]["token"])
        for host in self.machines:
            self.services.start(self._borglet(host, made["join_tokens"]["fleet"]))
        wait_until(lambda: self.complete(self.machines), _READY_S, "all machines are up", every_s=0.5)

    def complete(self, machines: Sequence[Host]) -> bool:
        """Return whether the engines are redundant again, all web processes answer, masters have all leases and these
        machines are up.
        """
        if not (self.caches.complete() and self.databases.complete() and self._web_answers()):
            return False
        try:
            rows = self.query("SELECT scheduler FROM scheduling_lease WHERE expires_at > clock_timestamp()")
        except psycopg.Error:
            return False
        return {name for (name,) in rows} >= set(_SCHEDULERS) and self.are_up(machines)

    def are_up(self, machines: Sequence[Host]) -> bool:
        """Return whether the cell counts all these machines as up."""
        try:
            rows = self.query("SELECT hostname FROM scheduling_machine WHERE state = 'up'")
        except psycopg.Error:
            return False
        return {name for (name,) in rows} >= {host.name for host in machines}

    def lease_holder(self) -> Host | None:
        """Return the host whose master places services and does the maintenance of the cell."""
        rows = self.query(
            "SELECT split_part(holder, ':', 1) FROM scheduling_lease"
            f" WHERE scheduler = '{_SCHEDULERS[0]}' AND expires_at > clock_timestamp()"
        )
        return next((host for host in self.control if rows and host.name == rows[0][0]), None)

    def connected_to(self, host: Host) -> list[Host]:
        """Return the machines that are connected to the link shard of a control host."""
        ids = self._machine_ids()
        with self._redis() as client:
            shards = client.hgetall(f"borg:holder:{self._id()}")
        return [one for one in self.machines if str(shards.get(ids.get(one.name))).startswith(f"{host.name}-")]

    def have_reported(self, machines: Sequence[Host], since: float) -> bool:
        """Return whether the cell counts all these machines as up, and has a report of each since a time in Unix
        seconds.
        """
        try:
            if not self.are_up(machines):
                return False
            ids = self._machine_ids()
            with self._redis() as client:
                last = dict(client.zrange(f"borg:contact:{self._id()}", 0, -1, withscores=True))
        except (psycopg.Error, redis.RedisError):
            return False
        return all(last.get(ids[machine.name], 0.0) > since for machine in machines)

    def switch_off(self, hosts: Sequence[Host]) -> None:
        """Take the power of some hosts at once. Control hosts lose what their disks have not synchronised."""
        self.services.switch_off(hosts)
        for host in hosts:
            if host in self.control:
                self.disks.lose_power(host)

    def switch_on(self, hosts: Sequence[Host]) -> None:
        self.services.switch_on(hosts)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.databases.url, autocommit=True) as connection:
            return connection.execute(sql).fetchall()

    def env(self, host: Host) -> dict[str, str]:
        """Return the environment of the server processes of a control host."""
        return {
            **self._shared,
            "PYTHONPATH": str(self.tree),
            "BORG_HOME": str(self._home(host)),
            "BORG_LINK_HOST": host.address,
            "BORG_DNS_HOST": host.address,
        }

    def _machine_ids(self) -> dict[str, str]:
        """Return the ids of the machines by name, as Redis has them."""
        return dict(self.query("SELECT hostname, id::text FROM scheduling_machine"))

    def _id(self) -> int:
        return int(self.query("SELECT id FROM scheduling_cell")[0][0])

    def _redis(self) -> redis.Redis:
        return redis_clients.client(self.caches.url, socket_timeout=1.0, decode_responses=True)

    def _web_answers(self) -> bool:
        for host in (self.front, *self.control):
            try:
                with urllib.request.urlopen(f"http://{host.address}:{WEB_PORT}/readyz", timeout=2.0) as answer:
                    if answer.status != 200:
                        return False
            except OSError:
                return False
        return True

    def _set(self, settings: Mapping[str, str], token: str) -> None:
        """Change settings of the cell."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/cells/{CELL}/settings/",
            json.dumps({"settings": settings}).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method="PATCH",
        )
        urllib.request.urlopen(request, timeout=30.0).close()

    def migrate(self) -> dict[str, Any]:
        """Migrate the database, and create the cell, a tenant and users if they are missing. Return the tokens of those
        that were created.
        """
        host = self.control[0]
        for each in self.control:
            Home(self._home(each)).prepare()
        result = self.folder / host.name / "bootstrap.json"
        argv = host.inside.command(sys.executable, "-m", "portal.up.schema", str(result))
        with (self.folder / host.name / "schema.log").open("wb") as log:
            subprocess.run(
                argv, env=self._whole(host), stdout=log, stderr=log, check=True, timeout=_READY_S, cwd=self.tree
            )
        made: dict[str, Any] = json.loads(result.read_text())
        return made

    def _start(self, host: Host, name: str, arguments: Sequence[str]) -> None:
        log = self.folder / host.name / f"{name}.log"
        argv = [sys.executable, *command(self.plant, name, *arguments)]
        after = [sys.executable, "-m", *arguments, "--release"] if name in MASTERS else []
        self.services.start(Service(host, name, argv, log, self._whole(host), cwd=self.tree, after=after))

    def _borglet(self, host: Host, token: str) -> Service:
        argv = [
            *(sys.executable, *command(self.plant, "borglet", "borglet", "run")),
            *("--home", str(self._borglet_home(host))),
            *("--link", self._shared["BORG_LINK_URL"], "--hostname", host.name, "--address", host.address),
            *("--runtime", "process", "--capacity", "cpu=4,ram=8Gi,disk=20Gi", "--peer-port", "-1"),
        ]
        env = {"PYTHONPATH": str(self.tree), "PYTHONUNBUFFERED": "1", "BORGLET_JOIN_TOKEN": token}
        return Service(host, "borglet", argv, self.folder / host.name / "borglet.log", env)

    def _whole(self, host: Host) -> dict[str, str]:
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **self.env(host)}

    def _home(self, host: Host) -> Path:
        return self.folder / host.name / "borg"

    def _borglet_home(self, host: Host) -> Path:
        return self.folder / host.name / "borglet"


def remove_control_groups(folder: Path) -> None:
    """Remove the control groups of the Borglets below `folder`, after their processes have ended."""
    for home in folder.glob("*/borglet"):
        groups = cgroups.detect(home)
        groups.sweep(set())
        groups.remove()
