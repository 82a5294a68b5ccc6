"""Feeds for load balancers and monitoring: what they hold, who sees what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from quota.models import Tenant
from quota.permissions import Role, Scope
from scheduling.models import Cell, Job
from tests.integration.naming_rows import place, report
from tests.integration.rows import a_cell, a_job, a_machine, a_tenant
from tests.integration.world import a_user, bearer

pytestmark = pytest.mark.django_db(transaction=True)
PROMETHEUS, TRAEFIK, ENVOY = "/api/v1/feeds/prometheus/", "/api/v1/feeds/traefik/", "/v3/discovery:endpoints"
CLUSTER = "jfoo.ubar.cc.borg.internal"


@pytest.fixture
def job() -> Job:
    cell = a_cell()
    machine, job = a_machine(cell), a_job(cell, a_tenant())
    place(cell, job, machine, 0, 1)
    report(cell, job, 0)
    report(cell, job, 1, health="unhealthy")
    return job


@pytest.fixture
def ann(job: Job) -> Client:
    return bearer(a_user("ann", tenant=job.tenant, role=Role.VIEWER), scopes=[Scope.READ])


def ask(caller: Client, path: str, status: int = 200, **query: Any) -> Any:
    response = caller.get(path, query)
    assert response.status_code == status, response.content
    return response.json()


def discover(caller: Client, *clusters: str, status: int = 200, **more: Any) -> Any:
    response = caller.post(ENVOY, {"resource_names": list(clusters), **more}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json() if response.content else None


def test_prometheus_finds_each_port_of_each_task(ann: Client) -> None:
    first, second = ask(ann, PROMETHEUS)
    assert first == {
        "targets": ["127.0.0.1:20000"],
        "labels": {
            "__meta_borg_cell": "cc", "__meta_borg_tenant": "ubar", "__meta_borg_job": "jfoo", "__meta_borg_task": "0",
            "__meta_borg_port": "http", "__meta_borg_machine": "m1", "__meta_borg_phase": "up",
            "__meta_borg_health": "healthy", "__meta_borg_serving": "true",
        },
    }  # fmt: skip
    assert second["labels"]["__meta_borg_serving"] == "false"
    assert ask(ann, PROMETHEUS, port="rpc") == []


def test_filters_narrow_by_label_cell_and_job(ann: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(labels={"tier": "web", "odd name": "x"})
    assert ask(ann, PROMETHEUS, label="tier:web")[0]["labels"]["__meta_borg_label_odd_name"] == "x"
    assert ask(ann, PROMETHEUS, label="tier:db") == []
    assert ask(ann, PROMETHEUS, cell="dd") == ask(ann, PROMETHEUS, job="other") == []
    assert len(ask(ann, PROMETHEUS, cell="cc", tenant="ubar", job="jfoo")) == 2


def test_traefik_gets_who_serves_and_everybody_when_nobody_does(ann: Client, job: Job) -> None:
    (service,) = ask(ann, TRAEFIK)["http"]["services"].items()
    assert service == ("jfoo-ubar-cc", {"loadBalancer": {"servers": [{"url": "http://127.0.0.1:20000"}]}})
    report(job.cell, job, 0, health="unhealthy")
    servers = ask(ann, TRAEFIK, scheme="https")["http"]["services"]["jfoo-ubar-cc"]["loadBalancer"]["servers"]
    assert [server["url"] for server in servers] == ["https://127.0.0.1:20000", "https://127.0.0.1:20001"]
    assert ask(ann, TRAEFIK, job="other") == {}


def test_envoy_gets_health_and_hears_nothing_twice(ann: Client, job: Job) -> None:
    said = discover(ann, CLUSTER, f"_http._tcp.{CLUSTER}", "gone.ubar.cc.borg.internal")
    plain, by_port, gone = said["resources"]
    assert plain["cluster_name"] == CLUSTER
    assert by_port["endpoints"] == plain["endpoints"]
    assert gone["endpoints"] == []
    told = plain["endpoints"][0]["lb_endpoints"]
    assert [one["health_status"] for one in told] == ["HEALTHY", "UNHEALTHY"]
    assert told[0]["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 20_000}
    clusters = (CLUSTER, f"_http._tcp.{CLUSTER}", "gone.ubar.cc.borg.internal")
    discover(ann, *clusters, version_info=said["version_info"], status=304)
    report(job.cell, job, 1)
    assert discover(ann, *clusters, version_info=said["version_info"])["version_info"] != said["version_info"]


def test_others_see_nothing(job: Job) -> None:
    Tenant.objects.create(name="other")
    stranger = bearer(a_user("eve", tenant=Tenant.objects.get(name="other")), scopes=[Scope.READ])
    assert ask(stranger, PROMETHEUS) == []
    assert ask(stranger, TRAEFIK) == {}
    assert discover(stranger, CLUSTER)["resources"][0]["endpoints"] == []
    assert Client().get(PROMETHEUS).status_code == 401
    assert Client().post(ENVOY, {}, content_type="application/json").status_code == 401


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        (PROMETHEUS, {"jobs": "x"}, "jobs"),
        (PROMETHEUS, {"label": "tier"}, "label"),
        (PROMETHEUS, {"cell": "a\x00"}, "cell"),
        (TRAEFIK, {"scheme": "gopher"}, "scheme"),
    ],
)
def test_filters_that_are_none_are_named(ann: Client, path: str, query: dict[str, str], field: str) -> None:
    assert field in ask(ann, path, 422, **query)["fields"]


@pytest.mark.parametrize(
    "cluster", ["x", "0.jfoo.ubar.cc.borg.internal", "jfoo.ubar.cc.example.com", "_http._tcp."]
)
def test_clusters_that_are_no_jobs_are_refused(ann: Client, cluster: str) -> None:
    assert "resource_names" in discover(ann, cluster, status=422)["fields"]


def test_the_number_of_queries_is_not_the_number_of_jobs(
    ann: Client, job: Job, django_assert_max_num_queries: Any
) -> None:
    cell = Cell.objects.get()
    machine = a_machine(cell, "m2")
    for number in range(6):
        other = a_job(cell, a_tenant(), f"more{number}")
        place(cell, other, machine, 0)
    ask(ann, PROMETHEUS)
    with django_assert_max_num_queries(8):
        assert len(ask(ann, PROMETHEUS)) == 8
