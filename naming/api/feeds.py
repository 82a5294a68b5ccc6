"""The endpoints of tasks in the formats of load balancers and monitoring (§2.6). Pure.

    prometheus    HTTP service discovery: every port of every placed task, with facts as labels `__meta_borg_…`
    traefik       HTTP provider: one service per job, one server per serving task
    envoy         endpoint discovery over REST: one assignment per cluster, named as in DNS, with the health of tasks

If no task serves, load balancers get all placed tasks (fail open), as DNS clients do. Weights are the same as in SRV
records. Clients use a task with weight 0 only if no other task serves (`naming.table.endpoints.shares`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from naming.table.endpoints import TaskEndpoint, fails_open, shares
from naming.table.names import SERVICE, JobName, ServiceName

ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
METADATA = "borg"  # the key of the facts about tasks in Envoy's filters and logs
# Overprovisioning factor in per cent. Envoy uses the second priority only if all tasks of the first priority are down.
# With Envoy's default of 140, Envoy would use the second priority as soon as 29 % of the first are down.
ONLY_WHEN_DOWN = 1_000_000
LOAD = "__meta_borg_load"
_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True)
class FeedService:
    """A job or a service with its placed tasks. `labels`: all labels of the job; for a service, only the label that
    names the service.
    """

    name: JobName | ServiceName
    labels: Mapping[str, str]
    endpoints: Sequence[TaskEndpoint]

    @property
    def fails_open(self) -> bool:
        return fails_open(self.endpoints)


class JobTargets(NamedTuple):
    """The targets of one job for Prometheus. `texts`: for each target, its JSON object without the two closing braces.

    `tasks`: for each target, the position of its task in the list of the job's endpoints.
    """

    texts: Sequence[bytes]
    tasks: Sequence[int]


def job_targets(service: FeedService, *, port: str = "") -> JobTargets:
    """Return the Prometheus targets of a job, without the loads of the tasks. `port`: the name of the port to list for
    each task; empty: all ports.
    """
    texts: list[bytes] = []
    tasks: list[int] = []
    quoted = _Quoted()
    labels = msgspec.json.encode(_labels_of(service)).decode().removesuffix("}")
    for position, one in enumerate(service.endpoints):
        of_task = (
            f'{labels},"__meta_borg_task":"{one.index}","__meta_borg_machine":{quoted[one.machine]},'
            f'"__meta_borg_phase":{quoted[one.phase]},"__meta_borg_health":{quoted[one.health]},'
            f'"__meta_borg_serving":"{"true" if one.serving else "false"}","__meta_borg_weight":"{one.weight}",'
        )
        for name, number in one.ports.items():
            if port in ("", name):
                target = f'{{"targets":[{_as_json(_host(one.address, number))}],"labels":{of_task}'
                texts.append(f'{target}"__meta_borg_port":{quoted[name]}'.encode())
                tasks.append(position)
    return JobTargets(texts, tasks)


def load_label(load: float) -> bytes:
    """Return the label with a task's load as JSON text. The caller appends it to the text of a target (see
    `JobTargets`).
    """
    return f',"{LOAD}":"{load:.2f}"'.encode()


def target_list(targets: Sequence[bytes]) -> bytes:
    """Return the JSON list of targets for Prometheus. Each text lacks the two closing braces of its target."""
    if not targets:
        return b"[]"
    # One join and no further copy, because an answer can have 20 MB.
    first, *others = targets
    if not others:
        return b"[" + first + b"}}]"
    others[-1] += b"}}]"
    return b"}},".join([b"[" + first, *others])


class _Quoted(dict[str, str]):
    """A cache of texts as JSON strings, so that equal texts are converted only once."""

    def __missing__(self, text: str) -> str:
        found = self[text] = _as_json(text)
        return found


def _as_json(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _labels_of(service: FeedService) -> dict[str, str]:
    """Return the Prometheus labels that all targets of a job have."""
    assert isinstance(service.name, JobName)
    labels = {f"__meta_borg_label_{_NO_LABEL.sub('_', key)}": str(text) for key, text in service.labels.items()}
    labels |= {
        "__meta_borg_cell": service.name.cell,
        "__meta_borg_tenant": service.name.tenant,
        "__meta_borg_job": service.name.job,
        "__meta_borg_fail_open": "true" if service.fails_open else "false",
    }
    if SERVICE in service.labels:
        labels["__meta_borg_service"] = str(service.labels[SERVICE])
    return labels


def traefik(services: Iterable[FeedService], *, port: str = "", scheme: str = "http") -> dict[str, Any]:
    """Return the configuration for Traefik, with one Traefik service per job or service in `services`.

    `port`: the name of the port that clients use; empty: the first port of each task. Weights of 1 are omitted, because
    older versions of Traefik do not support weights.
    """
    made = {}
    for service in services:
        servers = [
            {"url": f"{scheme}://{_host(endpoint.address, number)}", **({"weight": weight} if weight != 1 else {})}
            for endpoint, weight in shares(service.endpoints)
            if (number := _port(endpoint, port)) is not None
        ]
        if servers:
            made[_traefik_name(service.name)] = {"loadBalancer": {"servers": servers}}
    return {"http": {"services": made}} if made else {}


def _traefik_name(name: JobName | ServiceName) -> str:
    if isinstance(name, JobName):
        return f"{name.job}-{name.tenant}-{name.cell}"
    return f"{name.service}.{SERVICE}.{name.tenant}.{name.cell}"


def envoy(services: Mapping[str, tuple[FeedService | None, str]], *, version: str) -> dict[str, Any]:
    """Return the discovery response for Envoy. `services`: for the name of each cluster, the job or service and the
    port name.

    If the job or service is None, the cluster has no endpoints.
    """
    return {
        "version_info": version,
        "type_url": ASSIGNMENT,
        "resources": [
            {"@type": ASSIGNMENT, "cluster_name": cluster, **_assignment(service, port)}
            for cluster, (service, port) in services.items()
        ],
    }


def _assignment(service: FeedService | None, port: str) -> dict[str, Any]:
    """Return the endpoints of a service for Envoy. Tasks with weight 0 get a lower priority than other tasks."""
    if service is None:
        return {"endpoints": []}
    fail_open = service.fails_open
    weighed = [one for one in service.endpoints if one.weight]
    others = [one for one in service.endpoints if not one.weight]
    groups = [list(_lb_endpoints(group, port, fail_open)) for group in (weighed, others)]
    assignment: dict[str, Any] = {
        "endpoints": [
            {"lb_endpoints": group, **({"priority": priority} if priority else {})}
            for priority, group in enumerate(filter(None, groups))
        ]
    }
    if all(groups):
        assignment["policy"] = {"overprovisioning_factor": ONLY_WHEN_DOWN}
    return assignment


def _lb_endpoints(endpoints: Iterable[TaskEndpoint], port: str, fail_open: bool) -> Iterable[dict[str, Any]]:
    for endpoint in endpoints:
        number = _port(endpoint, port)
        if number is not None:
            facts = {"name": endpoint.name, "health": endpoint.health, "fail_open": fail_open}
            yield {
                "endpoint": {
                    "address": {"socket_address": {"address": endpoint.address, "port_value": number}},
                    "hostname": endpoint.dns,
                },
                "health_status": "HEALTHY" if endpoint.serving or fail_open else "UNHEALTHY",
                "load_balancing_weight": endpoint.weight or 1,
                "metadata": {"filter_metadata": {METADATA: facts}},
            }


def _port(endpoint: TaskEndpoint, name: str) -> int | None:
    return endpoint.ports.get(name) if name else next(iter(endpoint.ports.values()), None)


def _host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
