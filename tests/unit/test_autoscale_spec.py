"""Tests of `autoscale` in job files: what is accepted, and what each problem says."""

from __future__ import annotations

from typing import Any

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.jobs.rollouts.restart_rule import SpecChange, change
from scheduling.spec import parser
from scheduling.spec.autoscaling.checks import bound_of
from scheduling.spec.autoscaling.fields import AUTO, RECOMMEND


def a_file(autoscale: Any, **changes: Any) -> dict[str, Any]:
    task = {"command": ["serve"], "ports": ["http"]}
    return {"name": "web", "tasks": 3, "task": task, "autoscale": autoscale} | changes


def problems(autoscale: Any, **changes: Any) -> dict[str, str]:
    with pytest.raises(Rejected) as error:
        parser.parse(a_file(autoscale, **changes))
    return dict(error.value.fields)


def test_a_complete_file_is_read_and_written_again() -> None:
    given = {
        "vertical": {"mode": "auto", "min": {"cpu": "0.1", "ram": 2**26}, "max": {"ram": "4096Mi"}, "margin": 0.2},
        "horizontal": {
            "min": 2,
            "max": 10,
            "metric": {"name": 'jobs{queue="mail"}', "target": 10, "port": "http", "over": "max"},
            "schedule": [{"at": "0 8 * * 1-5", "tasks": 5, "time_zone": "Europe/Berlin"}],
        },
    }
    spec = parser.parse(a_file(given))
    assert spec.autoscale is not None
    assert spec.autoscale.vertical is not None
    assert spec.autoscale.vertical.min == {"cpu": "100m", "ram": "64Mi"}
    assert bound_of(spec.autoscale.vertical, "max", "ram") == 2**32
    assert bound_of(spec.autoscale.vertical, "max", "cpu") is None
    assert parser.load(spec.to_json()) == spec
    assert parser.load(spec.to_json()).digest() == spec.digest()


def test_defaults_only_recommend_limits_and_set_numbers_of_tasks() -> None:
    rules = parser.parse(a_file({"vertical": {}, "horizontal": {"max": 5, "cpu": 0.6}})).autoscale
    assert rules is not None
    assert (rules.vertical and rules.vertical.mode, rules.horizontal and rules.horizontal.mode) == (RECOMMEND, AUTO)


@pytest.mark.parametrize("empty", [None, {}])
def test_a_file_without_settings_has_the_digest_of_older_specs(empty: Any) -> None:
    plain = a_file(None)
    del plain["autoscale"]
    assert parser.parse(a_file(empty)).digest() == parser.parse(plain).digest()
    assert "autoscale" not in parser.parse(a_file(empty)).to_json()


def test_a_change_of_the_settings_restarts_no_task() -> None:
    old, new = parser.parse(a_file(None)), parser.parse(a_file({"vertical": {"mode": "auto"}}))
    assert change(old, new, 0) is SpecChange.IN_PLACE


H = {"max": 10, "cpu": 0.5}


@pytest.mark.parametrize(
    ("autoscale", "changes", "path", "text"),
    [
        ({"vertical": {"mode": "on"}}, {}, "autoscale.vertical.mode", "give one of off, recommend, auto"),
        ({"vertical": {"min": {"disk": "1Gi"}}}, {}, "autoscale.vertical.min.disk", "only cpu and ram"),
        ({"vertical": {"max": {"cpu": "much"}}}, {}, "autoscale.vertical.max.cpu", "is not a quantity"),
        (
            {"vertical": {"min": {"cpu": 2}, "max": {"cpu": 1}}},
            {},
            "autoscale.vertical.min.cpu",
            "is above autoscale.vertical.max.cpu",
        ),
        ({"vertical": {"half_life_s": 1}}, {}, "autoscale.vertical.half_life_s", "from 60 to 2592000"),
        ({"vertical": {}}, {"alloc_set": "a"}, "autoscale.vertical", "the limits of their alloc"),
        ({"vertical": {}}, {"overrides": {"0": {"limit": {"cpu": 1}}}}, "overrides.0.limit", "limits of their own"),
        ({"horizontal": {"cpu": 0.5}}, {}, "autoscale.horizontal.max", "is missing"),
        ({"horizontal": {"max": 10}}, {}, "autoscale.horizontal", "give cpu, metric or schedule"),
        ({"horizontal": H | {"min": 11}}, {}, "autoscale.horizontal.min", "11 is above max, 10"),
        ({"horizontal": H}, {"tasks": 11}, "tasks", "11 is outside of 1 to 10"),
        ({"horizontal": H | {"cpu": 0}}, {}, "autoscale.horizontal.cpu", "from 0.01 to 10"),
        ({"horizontal": H}, {"gang": True}, "autoscale.horizontal", "tasks of a gang"),
        ({"horizontal": H}, {"max_running": 2}, "autoscale.horizontal", "max_running"),
        ({"horizontal": H}, {"overrides": {"2": {"env": {"A": "b"}}}}, "overrides.2", "may remove task 2"),
        ({"horizontal": H, "vertical": {"mode": "auto"}}, {}, "autoscale.horizontal.cpu", "cannot decide both"),
        (
            {"horizontal": {"max": 10, "metric": {"name": "q", "target": 1, "port": "x"}}},
            {},
            "autoscale.horizontal.metric.port",
            "is not a port of the task, which has: http",
        ),
        (
            {"horizontal": {"max": 10, "metric": {"name": "a b", "target": 1, "port": "http"}}},
            {},
            "autoscale.horizontal.metric.name",
            "is not a metric",
        ),
        (
            {"horizontal": {"max": 10, "metric": {"name": "q", "target": 1, "port": "http", "path": "http://x/"}}},
            {},
            "autoscale.horizontal.metric.path",
            "is not a path",
        ),
        (
            {"horizontal": {"max": 10, "schedule": [{"at": "61 * * * *", "tasks": 2}]}},
            {},
            "autoscale.horizontal.schedule[0].at",
            "minute: 61 is out of range",
        ),
        (
            {"horizontal": {"max": 10, "schedule": [{"at": "* * * * *", "tasks": 2}]}},
            {},
            "autoscale.horizontal.schedule[0].at",
            "every 15 minutes",
        ),
        ({"horizontal": H | {"up_s": 0}}, {}, "autoscale.horizontal.up_s", "from 10 to 86400"),
        ({"horizontal": H | {"down_s": 0}}, {}, "autoscale.horizontal.down_s", "from 20 to 86400"),
        (
            {"horizontal": {"max": 10, "schedule": [{"at": "@daily", "tasks": 20}]}},
            {},
            "autoscale.horizontal.schedule[0].tasks",
            "from 1 to 10",
        ),
        (
            {"horizontal": {"max": 10, "schedule": [{"at": "@daily", "tasks": 2, "time_zone": "Mars"}]}},
            {},
            "autoscale.horizontal.schedule[0].time_zone",
            "'Mars' is unknown",
        ),
        ({"vertical": {}}, {"kind": "AllocSet"}, "autoscale", "an alloc set is not scaled"),
        ({"diagonal": {}}, {}, "autoscale.diagonal", "unknown field"),
    ],
)
def test_each_problem_names_its_field_and_what_to_do(
    autoscale: Any, changes: dict[str, Any], path: str, text: str
) -> None:
    found = problems(autoscale, **changes)
    assert text in found[path], found
