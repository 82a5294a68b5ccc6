"""Redis with Sentinel: a master and its replicas, and a sentinel on each control host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import redis

from portal.up import engines
from portal.up.supervision.account import engine_account
from tests.ha.network import Host
from tests.ha.services import Service, Services, wait_until

NAME = "borg"
_PORT, _SENTINEL = 6379, 26379
_DOWN_AFTER_MS, _FAILOVER_MS = 1_500, 10_000
_READY_S = 60.0
# A master that ended starts again after the failover. If it started before, clients would connect to it, and it would
# reject their writes until a sentinel makes it a replica, ten seconds later.
_RESTART_S = 5.0
# After a loss of power, the file can end with zeros. Redis then does not start until its end is cut off.
_START = """
checker="$1" file="$2"; shift 2
[ ! -s "$file" ] || echo y | "$checker" --fix "$file"
exec "$@"
"""


class Caches:
    """Redis on the control hosts. `url`: the value of BORG_REDIS_URL."""

    def __init__(self, hosts: Sequence[Host], services: Services, folder: Path) -> None:
        self.hosts = {host.address: host for host in hosts}
        self._services, self._folder = services, folder
        sentinels = ",".join(f"{host.address}:{_SENTINEL}" for host in hosts)
        self.url = f"redis+sentinel://{sentinels}/{NAME}"

    def start(self) -> None:
        """Start the servers and the sentinels. Return when all sentinels have found each other and the replicas."""
        first = next(iter(self.hosts))
        for address, host in self.hosts.items():
            self._services.start(self._redis(host, "" if address == first else first))
        for host in self.hosts.values():
            self._services.start(self._sentinel(host, first))
        wait_until(self.complete, _READY_S, "Redis has a master, replicas and sentinels")

    def leader(self) -> Host | None:
        """Return the host of the master that most sentinels name."""
        named = [found[0] for host in self.hosts.values() if (found := self._master_at(host)) is not None]
        names = [name for name in named if named.count(name) * 2 > len(self.hosts)]
        return self.hosts.get(names[0]) if names else None

    def complete(self) -> bool:
        """Return whether all sentinels name one master that has all other servers as replicas."""
        found = {self._master_at(host) for host in self.hosts.values()}
        others = len(self.hosts) - 1
        return len(found) == 1 and all(one is not None and one[1:] == (others, others) for one in found)

    def _master_at(self, host: Host) -> tuple[str, int, int] | None:
        """Return (address of the master, connected replicas, other sentinels) as one sentinel reports it."""
        sentinel = redis.Redis(host.address, _SENTINEL, socket_timeout=1.0, socket_connect_timeout=1.0)
        try:
            state = sentinel.sentinel_master(NAME)
            replicas = sentinel.sentinel_slaves(NAME)
        except (redis.RedisError, KeyError):
            return None
        finally:
            sentinel.close()
        connected = sum(one["master-link-status"] == "ok" and not one["is_sdown"] for one in replicas)
        return str(state["ip"]), connected, int(state["num-other-sentinels"])

    def _redis(self, host: Host, master: str) -> Service:
        lines = [
            *(f"bind {host.address}", f"port {_PORT}", "protected-mode no", "daemonize no"),
            *('save ""', "appendonly yes", "appendfsync everysec", "maxmemory-policy noeviction"),
            # A master without a replica rejects writes, so that clients on its side of a cut do not use it.
            *("min-replicas-to-write 1", "min-replicas-max-lag 5", "repl-timeout 5", "repl-ping-replica-period 1"),
            *([f"replicaof {master} {_PORT}"] if master else []),
        ]
        return self._service(host, "redis", lines)

    def _sentinel(self, host: Host, master: str) -> Service:
        quorum = len(self.hosts) // 2 + 1
        lines = [
            *(f"bind {host.address}", f"port {_SENTINEL}", "protected-mode no", "daemonize no"),
            f"sentinel monitor {NAME} {master} {_PORT} {quorum}",
            f"sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {_FAILOVER_MS}",
        ]
        return self._service(host, "sentinel", lines)

    def _service(self, host: Host, name: str, lines: Sequence[str]) -> Service:
        """Return a service of `redis-server`. Redis writes later changes of its role into its configuration file."""
        folder = self._folder / host.name / name
        account = engine_account(folder.parent, engines.redis_server())
        engines._own_folder(folder, account)
        config = folder / f"{name}.conf"
        data = self._folder / host.name / "disk" / name
        owner = ("-o", str(account.uid), "-g", str(account.gid)) if account else ()
        host.inside.run("install", "-d", *owner, str(data))
        config.write_text("\n".join([*lines, f"dir {data}", ""]))
        if account:
            os.chown(config, account.uid, account.gid)
        mode = ["--sentinel"] if name == "sentinel" else []
        checker = folder / "redis-check-aof"  # with this name, the server is the program that repairs its file
        checker.symlink_to(engines.redis_server())
        file = data / "appendonly.aof"
        argv = ["sh", "-c", _START, "start", str(checker), str(file), str(engines.redis_server()), str(config), *mode]
        log = self._folder / host.name / f"{name}.log"
        return Service(host, name, argv, log, account=account, cwd=folder, restart_s=_RESTART_S)
