"""HAProxy: in front of web and link on a host of its own, and on each host between its processes and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.ha.network import Host
from tests.ha.services import Service

WEB_PORT, LINK_PORT, DATABASE_PORT = 8000, 8443, 5000
POSTGRES_PORT, PATRONI_PORT = 5432, 8008
# A server that does not answer for two seconds gets no new connections, and its open ones are closed. A link shard that
# accepts connections but hangs has the fewest, so `balance leastconn` would send all machines that dial again to it.
_FRONT = """
global
    maxconn 4000
defaults
    timeout connect 2s
    timeout client 75s
    timeout server 75s
    timeout check 1s
    option redispatch
    retries 2
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
frontend web
    bind {address}:{web}
    mode http
    option forwardfor
    default_backend web
backend web
    mode http
    balance roundrobin
    option httpchk GET /healthz
{webs}
frontend link
    bind {address}:{link}
    default_backend link
backend link
    balance roundrobin
{links}
"""

# Patroni answers `/primary` with 200 on the leader alone. Open connections to a server that does not answer for two
# seconds, or that is no longer the leader, are closed, so no process waits for a leader that hangs.
_DATABASE = """
global
    maxconn 1000
defaults
    timeout connect 2s
    timeout client 24h
    timeout server 24h
    timeout check 1s
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
listen postgres
    bind 127.0.0.1:{database}
    option httpchk GET /primary
{servers}
"""


def haproxy(host: Host, behind: Sequence[Host], folder: Path) -> Service:
    """Return HAProxy as a service of `host`. `behind`: the hosts with web processes and link shards."""

    def servers(port: int) -> str:
        return "\n".join(f"    server {one.name} {one.address}:{port} check" for one in behind)

    config = folder / "haproxy.cfg"
    config.write_text(
        _FRONT.format(
            address=host.address, web=WEB_PORT, link=LINK_PORT, webs=servers(WEB_PORT), links=servers(LINK_PORT)
        )
    )
    return _service(host, "haproxy", config)


def database_proxy(host: Host, databases: Sequence[Host], folder: Path) -> Service:
    """Return the service of `host` that passes connections to 127.0.0.1 on to the leader of PostgreSQL."""
    servers = "\n".join(
        f"    server {one.name} {one.address}:{POSTGRES_PORT} check port {PATRONI_PORT}" for one in databases
    )
    config = folder / "database-proxy.cfg"
    config.write_text(_DATABASE.format(database=DATABASE_PORT, servers=servers))
    return _service(host, "database-proxy", config)


def _service(host: Host, name: str, config: Path) -> Service:
    return Service(host, name, ["haproxy", "-db", "-f", str(config)], config.with_suffix(".log"))
