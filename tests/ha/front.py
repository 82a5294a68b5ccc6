"""HAProxy in front of the web processes and the link shards, on a host of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.ha.network import Host
from tests.ha.services import Service

WEB_PORT, LINK_PORT = 8000, 8443
# A server that does not answer for two seconds gets no new connections, and its open ones are closed. A link shard that
# accepts connections but hangs has the fewest, so `balance leastconn` would send all machines that dial again to it.
_CONFIG = """
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


def haproxy(host: Host, behind: Sequence[Host], folder: Path) -> Service:
    """Return HAProxy as a service of `host`. `behind`: the hosts with web processes and link shards."""

    def servers(port: int) -> str:
        return "\n".join(f"    server {one.name} {one.address}:{port} check" for one in behind)

    config = folder / "haproxy.cfg"
    config.write_text(
        _CONFIG.format(
            address=host.address, web=WEB_PORT, link=LINK_PORT, webs=servers(WEB_PORT), links=servers(LINK_PORT)
        )
    )
    return Service(host, "haproxy", ["haproxy", "-db", "-f", str(config)], folder / "haproxy.log")
