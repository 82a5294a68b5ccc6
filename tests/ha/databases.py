"""PostgreSQL under Patroni, with etcd: a leader and two standbys, of which one is synchronous.

Patroni and etcd run on each control host. A leader that ends is replaced at once. A leader whose host is cut off is
replaced when Patroni's lease has expired, and the shortest lease that Patroni allows is 20 s.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import psycopg.sql

from portal.up import engines
from portal.up.supervision.account import engine_account
from tests.ha.network import SUBNET, Host
from tests.ha.proxies import DATABASE_PORT, PATRONI_PORT, POSTGRES_PORT, database_proxy
from tests.ha.services import Service, Services, wait_until

PATRONI = Path(__file__).parents[2] / "build" / "patroni" / "bin" / "patroni"
_TTL_S, _LOOP_S, _RETRY_S = 20, 2, 4
_READY_S = 600.0
_MEGABYTE = 1_000_000
_PARAMETERS = {
    "max_connections": 200,
    "shared_buffers": "64MB",
    "jit": "off",
    "wal_keep_size": "256MB",
    # As in deploy/ha. A leader whose disk is full ends at the end of a segment. A standby that has this segment already
    # follows the new leader only from the next one.
    "archive_mode": "on",
    "archive_command": "true",
    "archive_timeout": 60,
    "max_wal_size": "512MB",
    "timezone": "UTC",
    # A standby that is cut off is noticed, and a session of a client that has vanished ends.
    "wal_sender_timeout": "5s",
    "wal_receiver_timeout": "5s",
    "tcp_user_timeout": "5000",
    "tcp_keepalives_idle": 2,
    "tcp_keepalives_interval": 1,
    "tcp_keepalives_count": 3,
}


class Databases:
    """PostgreSQL on the control hosts. `clients`: further hosts that use it. `url`: the value of BORG_DATABASE_URL,
    which leads to a proxy on the same host. `fsync`: False if PostgreSQL does not wait until its disk has a commit.
    """

    def __init__(
        self, hosts: Sequence[Host], clients: Sequence[Host], services: Services, folder: Path, *, fsync: bool = True
    ) -> None:
        self.hosts = {host.name: host for host in hosts}
        self._clients, self._fsync = clients, fsync
        self._services, self._folder = services, folder
        self.url = f"postgresql://postgres@127.0.0.1:{DATABASE_PORT}/{engines.DATABASE}?connect_timeout=5"
        self._admin = self.url.replace(f"/{engines.DATABASE}?", "/postgres?")

    def start(self) -> None:
        """Start etcd and Patroni, and create the database. Return when both standbys stream."""
        for host in self.hosts.values():
            self._services.start(self._etcd(host))
        for host in self.hosts.values():
            self._services.start(self._patroni(host))
        for host in (*self.hosts.values(), *self._clients):
            self._services.start(database_proxy(host, list(self.hosts.values()), self._of(host)))
        wait_until(self.complete, _READY_S, "PostgreSQL has a leader and its standbys stream", every_s=0.5)
        with psycopg.connect(self._admin, autocommit=True) as connection:
            name = psycopg.sql.Identifier(engines.DATABASE)
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(name))

    def leader(self) -> Host | None:
        """Return the host whose PostgreSQL accepts writes."""
        for host in self.hosts.values():
            try:
                with psycopg.connect(host=host.address, user="postgres", dbname="postgres", connect_timeout=1) as one:
                    row = one.execute("SELECT pg_is_in_recovery()").fetchone()
            except psycopg.Error:
                continue
            if row == (False,):
                return host
        return None

    def etcd_leader(self) -> Host | None:
        """Return the host whose etcd leads."""
        for host in self.hosts.values():
            found = get_json(f"http://{host.address}:2379/v3/maintenance/status", body={})
            if found and found["leader"] == found["header"]["member_id"]:
                return host
        return None

    def complete(self) -> bool:
        """Return whether there is a leader, all standbys stream from it, and one of them is synchronous."""
        try:
            with psycopg.connect(self._admin, autocommit=True) as connection:
                rows = connection.execute("SELECT state, sync_state FROM pg_stat_replication").fetchall()
        except psycopg.Error:
            return False
        states = [(state, sync) for state, sync in rows if state == "streaming"]
        return len(states) == len(self.hosts) - 1 and ("streaming", "sync") in states

    def write_log(self, leader: Host) -> None:
        """Fill the write-ahead log until PostgreSQL rejects it, but with at most 800 MB. PostgreSQL keeps some segments
        of its log in advance, so it notices a full disk only after these.
        """
        write = f"SELECT pg_logical_emit_message(false, 'ha', repeat('x', {_MEGABYTE}))"
        try:
            with psycopg.connect(
                host=leader.address, user="postgres", dbname="postgres", autocommit=True
            ) as connection:
                for _ in range(800):
                    connection.execute(write)
        except psycopg.Error:
            return  # it ended, as it should when it cannot write its log

    def _etcd(self, host: Host) -> Service:
        peers = ",".join(f"{one.name}=http://{one.address}:2380" for one in self.hosts.values())
        argv = [
            *("etcd", "--name", host.name, "--data-dir", str(self._of(host) / "disk" / "etcd")),
            *("--listen-peer-urls", f"http://{host.address}:2380"),
            *("--initial-advertise-peer-urls", f"http://{host.address}:2380"),
            *("--listen-client-urls", f"http://{host.address}:2379"),
            *("--advertise-client-urls", f"http://{host.address}:2379"),
            *("--initial-cluster", peers, "--initial-cluster-state", "new"),
            # The whole test shares one disk and two cores, so etcd is more patient than with its default of 1 s.
            *("--heartbeat-interval", "200", "--election-timeout", "2000", "--log-level", "warn"),
        ]
        return Service(host, "etcd", argv, self._of(host) / "etcd.log")

    def _patroni(self, host: Host) -> Service:
        folder = self._of(host)
        # Patroni starts its Python again, which may be in a folder that its user may not enter.
        account = engine_account(folder, engines.postgres_binaries(), (PATRONI.parent / "python").resolve())
        home = folder / "postgres"
        engines._own_folder(home, account)
        config = folder / "patroni.json"
        config.write_text(json.dumps(self._config(host, home), indent=1))
        return Service(
            host,
            "postgres",
            [str(PATRONI), str(config)],
            folder / "postgres.log",
            env={"HOME": str(home), "LC_ALL": "C"},
            account=account,
            cwd=home,
            also="postgres",
        )

    def _config(self, host: Host, home: Path) -> Mapping[str, Any]:
        """Return the configuration of Patroni, as JSON, which is YAML too."""
        trusted = [f"host all all {SUBNET}.0/24 trust", f"host replication all {SUBNET}.0/24 trust"]
        return {
            "scope": "borg",
            "name": host.name,
            "restapi": {
                "listen": f"{host.address}:{PATRONI_PORT}",
                "connect_address": f"{host.address}:{PATRONI_PORT}",
            },
            "etcd3": {"hosts": [f"{one.address}:2379" for one in self.hosts.values()]},
            "bootstrap": {
                "dcs": {
                    "ttl": _TTL_S,
                    "loop_wait": _LOOP_S,
                    "retry_timeout": _RETRY_S,
                    "maximum_lag_on_failover": 1048576,
                    "primary_start_timeout": 0,  # a leader that ended is replaced instead of started again
                    "synchronous_mode": True,
                    # A leader that is cut off could wait for its standbys for ever: a session with temporary tables
                    # that ends commits their removal, and nothing interrupts that wait.
                    "primary_stop_timeout": 5,
                    "failsafe_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {**_PARAMETERS, "fsync": self._fsync}},
                },
                "initdb": [
                    {"encoding": "UTF8"},
                    {"locale": "C"},
                    {"locale-provider": "builtin"},
                    {"builtin-locale": "C.UTF-8"},
                    "data-checksums",
                ],
            },
            "postgresql": {
                "listen": f"{host.address}:{POSTGRES_PORT}",
                "connect_address": f"{host.address}:{POSTGRES_PORT}",
                "data_dir": str(self._of(host) / "disk" / "postgres"),
                "bin_dir": str(engines.postgres_binaries()),
                "pgpass": str(home / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres"},
                    "replication": {"username": "replicator"},
                    "rewind": {"username": "postgres"},
                },
                # A standby that was interrupted while it was rewound is copied again.
                "remove_data_directory_on_rewind_failure": True,
                "remove_data_directory_on_diverged_timelines": True,
                "pg_hba": ["local all all trust", *trusted],
                "parameters": {"unix_socket_directories": str(home)},
            },
        }

    def _of(self, host: Host) -> Path:
        return self._folder / host.name


def get_json(url: str, *, body: Any = None) -> dict[str, Any] | None:
    """Return the JSON document at a URL, or None if there is no answer within a second. `body`: sent with POST."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=1.0) as answer:
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return None
    return found


def check_patroni() -> None:
    """Raise `RuntimeError` if Patroni is not installed."""
    if not PATRONI.exists():
        raise RuntimeError(f"{PATRONI} is missing; `make ha-test` installs it (Python {sys.version.split()[0]})")
