"""Tests of feeds for load balancers and monitoring: what they contain, who sees what, and what is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from naming.api import prometheus_targets
from naming.api.selectors import MOST_ENDPOINTS, MOST_TARGETS, visible_jobs
from quota.models import Capability, Tenant
from quota.vocabulary.permissions import Role, Scope
from scheduling.journal import journal
from scheduling.journal.row_events import machine_set_event
from scheduling.models import Cell, Job, Machine
from tests.integration.naming_rows import evict, place, report, use
from tests.integration.rows import ME, a_cell, a_job, a_machine, a_tenant
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
            "__meta_borg_cell": "cc",
            "__meta_borg_tenant": "ubar",
            "__meta_borg_job": "jfoo",
            "__meta_borg_task": "0",
            "__meta_borg_port": "http",
            "__meta_borg_machine": "m1",
            "__meta_borg_phase": "up",
            "__meta_borg_health": "healthy",
            "__meta_borg_serving": "true",
            "__meta_borg_fail_open": "false",
            "__meta_borg_weight": "1",
        },
    }
    assert second["labels"]["__meta_borg_serving"] == "false"
    assert ask(ann, PROMETHEUS, port="rpc") == []


def test_filters_narrow_by_label_cell_and_job(ann: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(labels={"tier": "web", "odd name": "x"})
    assert ask(ann, PROMETHEUS, label="tier:web")[0]["labels"]["__meta_borg_label_odd_name"] == "x"
    assert ask(ann, PROMETHEUS, label="tier:db") == []
    assert ask(ann, PROMETHEUS, job="other") == ask(ann, PROMETHEUS, port="rpc") == []
    assert len(ask(ann, PROMETHEUS, cell="cc", tenant="ubar", job="jfoo")) == 2


@pytest.mark.parametrize("path", [PROMETHEUS, TRAEFIK])
def test_a_cell_or_tenant_that_is_not_there_is_reported_as_one_that_may_not_be_seen(
    ann: Client, job: Job, path: str
) -> None:
    """A cell or tenant that does not exist is answered with 404, as is one that the caller may not see.

    With 404, a load balancer keeps its last list. An empty list would leave its clients without servers.
    """
    told = ask(ann, path, 404, cell="dd")
    assert told["fields"] == {"cell": "no such cell"}
    assert "give one of cc" in told["detail"]
    a_job(job.cell, a_tenant("hidden"))
    hidden, absent = ask(ann, path, 404, tenant="hidden"), ask(ann, path, 404, tenant="absent")
    assert absent["detail"] == "there is no tenant 'absent'; give one of ubar"
    assert absent["detail"] == hidden["detail"].replace("hidden", "absent")
    assert absent["fields"] == hidden["fields"] == {"tenant": "no such tenant"}
    kim = a_user("kim", tenant=a_tenant("helpers"))
    helper = bearer(kim, scopes=[Scope.READ])
    ask(helper, path, 404, tenant="ubar")
    Capability.objects.create(user=kim, kind="any-job", cell="cc", reason="on call")
    assert ask(helper, path, tenant="ubar") == ask(ann, path, tenant="ubar")


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


def test_weights_loads_and_services_reach_the_feeds(ann: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(labels={"service": "front"}, published={"ttl_s": 9, "weights": [[0, 0, 7]]})
    use(job, 0, cpu_milli=25)
    first, second = ask(ann, PROMETHEUS, service="front")
    assert (first["labels"]["__meta_borg_weight"], first["labels"]["__meta_borg_load"]) == ("7", "0.25")
    assert second["labels"]["__meta_borg_weight"] == "1"
    assert "__meta_borg_load" not in second["labels"]
    assert ask(ann, PROMETHEUS, service="none") == []
    report(job.cell, job, 1)
    names = ask(ann, TRAEFIK, service="front")["http"]["services"]
    assert sorted(names) == ["front.service.ubar.cc", "jfoo-ubar-cc"]
    servers = names["front.service.ubar.cc"]["loadBalancer"]["servers"]
    assert [server.get("weight", 1) for server in servers] == [7, 1]
    (said,) = discover(ann, "_http._tcp.front.service.ubar.cc.borg.internal")["resources"]
    weights = [one["load_balancing_weight"] for one in said["endpoints"][0]["lb_endpoints"]]
    assert weights == [7, 1]


def test_a_service_is_never_told_in_part(ann: Client, job: Job) -> None:
    """A filter that excludes one of the jobs of a service excludes the whole service."""
    Job.objects.filter(pk=job.pk).update(labels={"service": "front", "tier": "web"})
    assert list(ask(ann, TRAEFIK, job="jfoo")["http"]["services"]) == ["jfoo-ubar-cc"]
    assert list(ask(ann, TRAEFIK, label="tier:web")["http"]["services"]) == ["jfoo-ubar-cc"]


@pytest.mark.parametrize("path", [PROMETHEUS, TRAEFIK])
def test_a_client_with_the_tag_of_the_last_answer_gets_only_news(ann: Client, job: Job, path: str) -> None:
    first = ann.get(path)
    tag = first["ETag"]
    again = ann.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", tag)
    with CaptureQueriesContext(connection) as cheap:
        assert ann.get(path, headers={"If-None-Match": f'"other", {tag}'}).status_code == 304
    assert not [one for one in cheap if "scheduling_task" in one["sql"]], "rows were read for what is known"
    use(job, 0, cpu_milli=50)
    assert ann.get(path, headers={"If-None-Match": tag}).status_code == 304  # a load alone is not a change
    place(job.cell, a_job(job.cell, a_tenant("other")), Machine.objects.get(), 0, ports=21_000)
    assert ann.get(path, headers={"If-None-Match": tag}).status_code == 304  # nor are names of other jobs
    report(job.cell, job, 0, phase="starting", health="unknown")
    news = ann.get(path, headers={"If-None-Match": tag})
    assert news.status_code == 200
    assert news["ETag"] != tag


def test_a_tag_is_worth_nothing_for_another_question_or_caller(ann: Client, job: Job) -> None:
    tag = ann.get(PROMETHEUS)["ETag"]
    assert ann.get(PROMETHEUS, {"job": "none"}, headers={"If-None-Match": tag}).status_code == 200
    eve = bearer(a_user("eve", tenant=a_tenant("other")), scopes=[Scope.READ])
    answer = eve.get(PROMETHEUS, headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()) == (200, [])


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
        (PROMETHEUS, {"label": ["tier:web", "tier:db"]}, "label"),
        (PROMETHEUS, {"cell": "a\x00"}, "cell"),
        (PROMETHEUS, {"cell": ""}, "cell"),
        (PROMETHEUS, {"cell": ["cc", "dd"]}, "cell"),
        (PROMETHEUS, {"tenant": "u_bar"}, "tenant"),
        (PROMETHEUS, {"job": "Jfoo"}, "job"),
        (PROMETHEUS, {"port": "_http"}, "port"),
        (TRAEFIK, {"service": "1st"}, "service"),
        (TRAEFIK, {"scheme": "gopher"}, "scheme"),
    ],
)
def test_filters_that_are_none_are_named(ann: Client, path: str, query: dict[str, Any], field: str) -> None:
    assert field in ask(ann, path, 422, **query)["fields"]


@pytest.mark.parametrize(
    "cluster",
    ["x", "m1.machine.cc.borg.internal", "0.jfoo.ubar.cc.borg.internal", "jfoo.ubar.cc.example.com", "_http._tcp."],
)
def test_clusters_that_are_not_jobs_are_refused(ann: Client, cluster: str) -> None:
    assert "resource_names" in discover(ann, cluster, status=422)["fields"]


@pytest.mark.parametrize("path", [PROMETHEUS, TRAEFIK, ENVOY])
def test_a_feed_of_too_many_tasks_is_rejected_before_a_job_or_task_is_read(ann: Client, job: Job, path: str) -> None:
    """A feed is rejected if its jobs together have too many tasks. No job or task is read to find this out."""
    most = MOST_TARGETS if path == PROMETHEUS else MOST_ENDPOINTS
    whole = a_job(job.cell, job.tenant, "whole", tasks=1)
    Job.objects.filter(pk=whole.pk).update(tasks_running=most - 1)
    clusters = (CLUSTER, "whole.ubar.cc.borg.internal")
    with CaptureQueriesContext(connection) as asked:
        told = discover(ann, *clusters, status=422) if path == ENVOY else ask(ann, path, 422, cell="cc")
    assert (told["code"], told["figures"]) == ("too-many-endpoints", {"tasks": most + 1, "most": most})
    read = [one["sql"] for one in asked if "scheduling_task" in one["sql"] or "published" in one["sql"]]
    assert not read, "jobs or tasks were read for an answer that is rejected"
    Job.objects.filter(pk=whole.pk).update(tasks_running=most - 2)
    assert discover(ann, *clusters) if path == ENVOY else ask(ann, path, cell="cc")


def test_tasks_that_the_caller_does_not_ask_for_or_may_not_see_do_not_count(ann: Client, job: Job) -> None:
    theirs = a_job(job.cell, a_tenant("other"), "jfoo", tasks=1)
    Job.objects.filter(pk=theirs.pk).update(tasks_running=MOST_TARGETS + 1)
    assert len(ask(ann, PROMETHEUS, cell="cc")) == 2
    sre = bearer(a_user("sre", sre=True), scopes=[Scope.READ])
    assert len(discover(sre, CLUSTER)["resources"][0]["endpoints"][0]["lb_endpoints"]) == 2
    ask(sre, PROMETHEUS, 422, cell="cc")


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


def _targets(**more: Any) -> Any:
    """Return the targets of all live jobs as a process with an empty cache computes them."""
    return json.loads(prometheus_targets.TargetCache().answer(visible_jobs(ME), **more).body)


def test_kept_targets_are_as_fresh_as_targets_that_are_read_again(ann: Client, job: Job) -> None:
    """After each kind of event that can change a target, cached targets equal targets computed from rows."""
    cell, machine = job.cell, Machine.objects.get()
    other = a_job(cell, job.tenant, "other", tasks=2)
    changes = [
        lambda: place(cell, other, machine, 0, 1, ports=22_000),
        lambda: report(cell, other, 1, phase="starting", health="unknown"),
        lambda: report(cell, job, 1),
        lambda: evict(cell, other, 0),
        lambda: _move(machine, "10.9.9.9"),
        lambda: report(cell, job, 0, address="10.20.30.4"),
    ]
    before = ask(ann, PROMETHEUS)
    for number, change in enumerate(changes):
        change()
        assert ask(ann, PROMETHEUS) == _targets() != before, f"change {number} is not in the answer"
        before = ask(ann, PROMETHEUS)
        assert ask(ann, PROMETHEUS, port="http") == _targets(port="http")


def test_tasks_of_jobs_without_changes_are_not_read_again(ann: Client, job: Job) -> None:
    ask(ann, PROMETHEUS)
    place(job.cell, a_job(job.cell, job.tenant, "other"), Machine.objects.get(), 0, ports=21_000)
    with CaptureQueriesContext(connection) as asked:
        assert len(ask(ann, PROMETHEUS)) == 3
    (read,) = [one["sql"] for one in asked if "FROM scheduling_task" in one["sql"]]
    assert f"{job.id}" not in read.split("ANY(")[1].split(")")[0].split(",")


def test_kept_targets_get_their_present_loads(ann: Client, job: Job) -> None:
    ask(ann, PROMETHEUS)
    use(job, 1, cpu_milli=50)
    first, second = ask(ann, PROMETHEUS)
    assert "__meta_borg_load" not in first["labels"]
    assert second["labels"]["__meta_borg_load"] == "0.50"


def test_targets_read_before_a_change_are_not_kept_after_it(ann: Client, job: Job) -> None:
    """A job changes while a slow request holds its old targets. The cache does not keep the old targets."""
    cache = prometheus_targets.TargetCache()
    early = visible_jobs(ME)

    def meanwhile(*arguments: Any) -> Any:
        found = read(*arguments)
        if not seen:
            seen.append(True)
            report(job.cell, job, 1)
            cache.answer(visible_jobs(ME), port="other")
        return found

    read, seen = prometheus_targets._read_targets, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prometheus_targets, "_read_targets", meanwhile)
        cache.answer(early)
    assert json.loads(cache.answer(visible_jobs(ME)).body) == _targets()


def test_a_full_cache_begins_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_targets, "MOST_BYTES", 500)
    cache = prometheus_targets.TargetCache()
    for _ in range(2):
        assert json.loads(cache.answer(visible_jobs(ME)).body) == _targets()
    assert cache._cells == {}


def test_requests_for_ports_that_no_task_has_do_not_fill_the_memory(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_targets, "MOST_BYTES", 5_000)
    cache = prometheus_targets.TargetCache()
    for number in range(30):
        cache.answer(visible_jobs(ME), port=f"port{number}")
        assert sum(len(ports) for kept in cache._cells.values() for ports in kept.jobs.values()) <= 10


def _move(machine: Machine, address: str) -> None:
    with journal.write(machine.cell_id, ME) as entry:
        machine.address = address
        machine.save(update_fields=["address"])
        entry.append(machine_set_event(machine))
