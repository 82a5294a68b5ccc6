"""Endpoints in the forms that load balancers and monitoring read (§2.6). Pure.

    prometheus    HTTP service discovery: every port of every placed task, what is known of it as `__meta_borg_…`
    traefik       HTTP provider: a service a job, a server a task that serves
    envoy         endpoint discovery over REST: an assignment a cluster, named as in DNS, a health status a task

Where no task of a job serves, load balancers are given all of its placed ones (fail open), as DNS does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naming.names import JobName

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A placed task. `ports`: by name, in the order of the job file."""

    index: int
    address: str
    ports: Mapping[str, int]
    serving: bool
    phase: str
    health: str
    machine: str


@dataclass(frozen=True, slots=True)
class Service:
    """A job and its placed tasks."""

    name: JobName
    labels: Mapping[str, str]
    endpoints: Sequence[Endpoint]

    @property
    def fails_open(self) -> bool:
        return bool(self.endpoints) and not any(endpoint.serving for endpoint in self.endpoints)

    @property
    def answering(self) -> Sequence[Endpoint]:
        """Whom a client should be sent to."""
        return self.endpoints if self.fails_open else [one for one in self.endpoints if one.serving]


def prometheus(services: Iterable[Service], *, port: str = "") -> list[dict[str, Any]]:
    """Targets to scrape, one port of each task or, without `port`, all of them."""
    return [
        {
            "targets": [_host(endpoint.address, number)],
            "labels": {
                "__meta_borg_cell": service.name.cell,
                "__meta_borg_tenant": service.name.tenant,
                "__meta_borg_job": service.name.job,
                "__meta_borg_task": str(endpoint.index),
                "__meta_borg_port": name,
                "__meta_borg_machine": endpoint.machine,
                "__meta_borg_phase": endpoint.phase,
                "__meta_borg_health": endpoint.health,
                "__meta_borg_serving": str(endpoint.serving).lower(),
                **{
                    f"__meta_borg_label_{_NO_LABEL.sub('_', key)}": str(value)
                    for key, value in service.labels.items()
                },
            },
        }
        for service in services
        for endpoint in service.endpoints
        for name, number in endpoint.ports.items()
        if port in ("", name)
    ]


def traefik(services: Iterable[Service], *, port: str = "", scheme: str = "http") -> dict[str, Any]:
    """Services `<job>-<tenant>-<cell>`; of each task the port of that name or, without one, its first."""
    made = {}
    for service in services:
        servers = [
            {"url": f"{scheme}://{_host(endpoint.address, number)}"}
            for endpoint in service.answering
            if (number := _port(endpoint, port)) is not None
        ]
        if servers:
            name = f"{service.name.job}-{service.name.tenant}-{service.name.cell}"
            made[name] = {"loadBalancer": {"servers": servers}}
    return {"http": {"services": made}} if made else {}


def envoy(services: Mapping[str, tuple[Service | None, str]], *, version: str) -> dict[str, Any]:
    """A discovery response for clusters, each of a service and a port of it; unknown ones have no endpoints."""
    return {
        "version_info": version,
        "type_url": ASSIGNMENT,
        "resources": [
            {
                "@type": ASSIGNMENT,
                "cluster_name": cluster,
                "endpoints": [{"lb_endpoints": list(_lb_endpoints(service, port))}] if service else [],
            }
            for cluster, (service, port) in services.items()
        ],
    }


def _lb_endpoints(service: Service, port: str) -> Iterable[dict[str, Any]]:
    for endpoint in service.endpoints:
        number = _port(endpoint, port)
        if number is not None:
            healthy = endpoint.serving or service.fails_open
            yield {
                "endpoint": {
                    "address": {"socket_address": {"address": endpoint.address, "port_value": number}},
                    "hostname": f"{endpoint.index}.{service.name.job}.{service.name.tenant}.{service.name.cell}",
                },
                "health_status": "HEALTHY" if healthy else "UNHEALTHY",
            }


def _port(endpoint: Endpoint, name: str) -> int | None:
    return endpoint.ports.get(name) if name else next(iter(endpoint.ports.values()), None)


def _host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
