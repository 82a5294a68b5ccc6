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

from borglet.runtimes.cgroups import cgroups
from portal.up.home import Home
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
    "worker": (*_WORKER, "--queues", "borg"),
    "resolver": ("naming.server",),
}
_READY_S = 300.0


class Cell:
    """The hosts of a cell and what runs on them. `alive`: the folder where tasks leave signs of life. `plant`: the
    protection that this cell lacks (`tests.ha.plants`), "" for none.
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
    ) -> None:
        self.control, self.machines, self.front = control, machines, front
        self.services, self.folder, self.plant = services, folder, plant
        for host in (*control, *machines, front):
            (folder / host.name).mkdir(mode=0o711)
        self.disks = Disks(control, folder)
        self.databases = Databases(control, [front], services, folder, durable=plant != FSYNC_OFF)
        self.caches = Caches(control, services, folder)
        self.url = f"http://{front.address}:{WEB_PORT}"
        self.alive = folder / "alive"
        self.token = ""
        self.alive.mkdir()
        self.alive.chmod(0o1777)
        shared = folder / "shared"
        shared.mkdir(mode=0o711)
        self._shared = {
            "PYTHONPATH": str(ROOT),
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
        made = self._schema()
        self.token = made["demo"]["token"]
        for host in self.control:
            for name, arguments in SERVERS.items():
                address = [host.address] if name == "web" else []
                self._start(host, name, [*arguments, *address])
        self._start(
            self.control[0], "beat", [*_CELERY, "beat", "--schedule", str(self._home(self.control[0]) / "beat")]
        )
        self.services.start(haproxy(self.front, self.control, self.folder / self.front.name))
        wait_until(self._web_answers, _READY_S, "all web processes answer")
        for host in self.machines:
            self.services.start(self._borglet(host, made["join_tokens"]["fleet"]))
        wait_until(self.complete, _READY_S, "all machines are up")

    def complete(self) -> bool:
        """Return whether the engines are redundant again, all web processes answer, a master has the lease and all
        machines are up.
        """
        if not (self.caches.complete() and self.databases.complete() and self._web_answers()):
            return False
        try:
            rows = self.query("SELECT count(*) FROM scheduling_machine WHERE state = 'up'")
        except psycopg.Error:
            return False
        return rows == [(len(self.machines),)] and self.lease_holder() is not None

    def lease_holder(self) -> Host | None:
        """Return the host whose master places tasks."""
        rows = self.query(
            "SELECT split_part(holder, ':', 1) FROM scheduling_lease"
            " WHERE scheduler = 'default' AND expires_at > clock_timestamp()"
        )
        return next((host for host in self.control if rows and host.name == rows[0][0]), None)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.databases.url, autocommit=True) as connection:
            return connection.execute(sql).fetchall()

    def env(self, host: Host) -> dict[str, str]:
        """Return the environment of the server processes of a control host."""
        return {
            **self._shared,
            "BORG_HOME": str(self._home(host)),
            "BORG_LINK_HOST": host.address,
            "BORG_DNS_HOST": host.address,
        }

    def _web_answers(self) -> bool:
        for host in (self.front, *self.control):
            try:
                with urllib.request.urlopen(f"http://{host.address}:{WEB_PORT}/readyz", timeout=2.0) as answer:
                    if answer.status != 200:
                        return False
            except OSError:
                return False
        return True

    def _schema(self) -> dict[str, Any]:
        """Migrate the database, and create the cell, a tenant and users. Return their tokens."""
        host = self.control[0]
        for each in self.control:
            Home(self._home(each)).prepare()
        result = self.folder / host.name / "bootstrap.json"
        argv = host.inside.command(sys.executable, "-m", "portal.up.schema", str(result))
        with (self.folder / host.name / "schema.log").open("wb") as log:
            subprocess.run(argv, env=self._whole(host), stdout=log, stderr=log, check=True, timeout=_READY_S, cwd=ROOT)
        made: dict[str, Any] = json.loads(result.read_text())
        return made

    def _start(self, host: Host, name: str, arguments: Sequence[str]) -> None:
        log = self.folder / host.name / f"{name}.log"
        argv = [sys.executable, *command(self.plant, name, *arguments)]
        after = [sys.executable, "-m", *arguments, "--release"] if name == "master" else []
        self.services.start(Service(host, name, argv, log, self._whole(host), cwd=ROOT, after=after))

    def _borglet(self, host: Host, token: str) -> Service:
        argv = [
            *(sys.executable, *command(self.plant, "borglet", "borglet", "run")),
            *("--home", str(self._borglet_home(host))),
            *("--link", self._shared["BORG_LINK_URL"], "--hostname", host.name, "--address", host.address),
            *("--runtime", "process", "--capacity", "cpu=4,ram=8Gi,disk=20Gi", "--peer-port", "-1"),
        ]
        env = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "BORGLET_JOIN_TOKEN": token}
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
