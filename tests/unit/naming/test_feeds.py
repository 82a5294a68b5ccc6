"""Tests of target lists for Prometheus and load balancers: weights, unhealthy jobs, and the formats."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from naming.api import feeds
from naming.api.feeds import FeedService
from naming.table.endpoints import TaskEndpoint, shares
from naming.table.names import JobName, ServiceName

JOB = JobName("cc", "ubar", "web")


def task(index: int, *, weight: int = 1, serving: bool = True, load: float | None = None) -> TaskEndpoint:
    name = JOB.task(index)
    return TaskEndpoint(
        name.path,
        name.dns("borg.internal"),
        index,
        "running",
        "up",
        "healthy" if serving else "unhealthy",
        serving,
        weight,
        load,
        5,
        "m1",
        "10.0.0.1",
        {"http": 20_000 + index},
        7,
        1,
    )


def a_service(*tasks: TaskEndpoint, labels: dict[str, str] | None = None) -> FeedService:
    return FeedService(JOB, labels or {}, tasks)


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([(0, 1, True), (1, 9, True)], [(0, 1), (1, 9)]),
        ([(0, 1, True), (1, 9, False)], [(0, 1)]),
        ([(0, 0, True), (1, 2, True)], [(1, 2)]),
        ([(0, 0, True), (1, 2, False)], [(0, 1)]),
        ([(0, 3, False), (1, 2, False)], [(0, 3), (1, 2)]),
        ([(0, 0, False), (1, 0, False)], [(0, 1), (1, 1)]),
        ([(0, 0, False), (1, 2, False)], [(1, 2)]),
        ([], []),
    ],
)
def test_clients_go_to_serving_tasks_by_weight(tasks: list[tuple[int, int, bool]], expected: list[Any]) -> None:
    found = shares([task(index, weight=weight, serving=serving) for index, weight, serving in tasks])
    assert [(one.index, weight) for one, weight in found] == expected


def targets(service: FeedService) -> Any:
    """Return the decoded targets of a job, as Prometheus gets them."""
    return json.loads(feeds.target_list(feeds.job_targets(service).texts))


def test_prometheus_hears_of_weight_service_and_failing_open() -> None:
    service = a_service(task(0, weight=3, load=0.5), task(1), labels={"service": "front"})
    first, second = targets(service)
    labels = first["labels"]
    assert first["targets"] == ["10.0.0.1:20000"]
    assert (labels["__meta_borg_weight"], second["labels"]["__meta_borg_weight"]) == ("3", "1")
    assert (labels["__meta_borg_service"], labels["__meta_borg_fail_open"]) == ("front", "false")
    assert "__meta_borg_load" not in labels
    (failing,) = targets(a_service(task(0, serving=False)))
    assert failing["labels"]["__meta_borg_fail_open"] == "true"
    assert feeds.target_list([]) == b"[]"
    assert targets(a_service()) == []


def test_the_load_of_a_task_follows_the_text_of_its_targets() -> None:
    found = feeds.job_targets(a_service(task(0), task(1)))
    assert list(found.tasks) == [0, 1]
    first, second = json.loads(feeds.target_list([found.texts[0] + feeds.load_label(0.5), found.texts[1]]))
    assert first["labels"]["__meta_borg_load"] == "0.50"
    assert "__meta_borg_load" not in second["labels"]


def test_prometheus_targets_are_json_for_any_label() -> None:
    (one,) = targets(a_service(task(0), labels={'a"b': 'say "\\"', "empty": ""}))
    labels = one["labels"]
    assert (labels["__meta_borg_label_a_b"], labels["__meta_borg_label_empty"]) == ('say "\\"', "")
    assert (labels["__meta_borg_task"], labels["__meta_borg_port"]) == ("0", "http")


def test_prometheus_targets_are_json_for_any_address() -> None:
    odd = msgspec.structs.replace(task(0), address='ho"st')
    (one,) = targets(a_service(odd))
    assert one["targets"] == ['ho"st:20000']


def test_only_the_named_port_is_a_target() -> None:
    both = msgspec.structs.replace(task(0), ports={"http": 1, "admin": 2})
    (one,) = json.loads(feeds.target_list(feeds.job_targets(a_service(both), port="admin").texts))
    assert one["targets"] == ["10.0.0.1:2"]


def test_traefik_gets_weights_that_are_not_one_and_services_by_their_dots() -> None:
    tasks = [task(0), task(1, weight=4), task(2, weight=0), task(3, serving=False)]
    found = feeds.traefik([a_service(*tasks), FeedService(ServiceName("cc", "ubar", "front"), {}, tasks[:1])])
    assert found["http"]["services"] == {
        "web-ubar-cc": {
            "loadBalancer": {
                "servers": [{"url": "http://10.0.0.1:20000"}, {"url": "http://10.0.0.1:20001", "weight": 4}]
            }
        },
        "front.service.ubar.cc": {"loadBalancer": {"servers": [{"url": "http://10.0.0.1:20000"}]}},
    }


def assignment(*tasks: TaskEndpoint) -> dict[str, Any]:
    return feeds.envoy({"x": (a_service(*tasks), "")}, version="1")["resources"][0]


def test_envoy_weighs_and_asks_who_has_no_weight_only_when_all_others_are_down() -> None:
    told = assignment(task(0, weight=0), task(1, weight=5), task(2, serving=False))
    first, last = told["endpoints"]
    assert [one["load_balancing_weight"] for one in first["lb_endpoints"]] == [5, 1]
    assert [one["health_status"] for one in first["lb_endpoints"]] == ["HEALTHY", "UNHEALTHY"]
    assert (first.get("priority", 0), last["priority"]) == (0, 1)
    assert [one["load_balancing_weight"] for one in last["lb_endpoints"]] == [1]
    assert told["policy"] == {"overprovisioning_factor": feeds.ONLY_WHEN_DOWN}


def test_envoy_has_no_second_priority_where_all_weigh_the_same_nothing() -> None:
    told = assignment(task(0, weight=0), task(1, weight=0))
    assert ["priority" in group for group in told["endpoints"]] == [False]
    assert "policy" not in told


def test_envoy_sees_that_a_job_fails_open() -> None:
    (group,) = assignment(task(0, serving=False))["endpoints"]
    (one,) = group["lb_endpoints"]
    assert one["health_status"] == "HEALTHY"
    assert one["metadata"]["filter_metadata"]["borg"] == {
        "name": "/bns/cc/ubar/web/0",
        "health": "unhealthy",
        "fail_open": True,
    }
