"""Tests of job files: which are accepted, what they mean, and the error for each invalid one."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from borglet.messages import HealthCheck
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import ACCELERATORS, CPU, DISK, PORTS, RAM
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.restart_rule import SpecChange
from scheduling.spec import field_errors, parser
from scheduling.spec.job_spec import REPORT_S
from scheduling.spec.parser import CellLimits, parse
from scheduling.spec.task_spec import LIMITS_TIME


def hello(**changes: Any) -> dict[str, Any]:
    """Return the smallest job file of a server. `changes`: fields to set."""
    return {"name": "hello", "tasks": 3, "task": {"command": ["serve"], "ports": ["http"]}, **changes}


def with_task(**changes: Any) -> dict[str, Any]:
    return hello(task={"command": ["serve"], "ports": ["http"], **changes})


def refused(data: Any, **limits: Any) -> dict[str, str]:
    with pytest.raises(Rejected) as caught:
        parse(data, limits=CellLimits(**limits))
    assert caught.value.code == "invalid-spec"
    assert all(path in caught.value.detail for path in list(caught.value.fields)[:3])
    return caught.value.fields


def test_a_newcomer_needs_a_name_a_command_and_nothing_else() -> None:
    job = parse({"name": "hello", "task": {"command": ["true"]}})
    assert (job.tasks, job.priority, job.latency_sensitive, job.kind) == (1, 0, False, "job")
    assert (job.base.limit[CPU], job.base.limit[RAM], job.base.limit[DISK]) == (100, 2**27, 100 * 2**20)


@pytest.mark.parametrize(
    "priority, number, urgent",
    [
        ("production", 120, True),
        ("monitoring", 360, True),
        ("batch", 100, False),
        ("best-effort", 0, False),
        (200, 200, True),
    ],
)
def test_a_band_gives_the_priority_and_the_class(priority: str | int, number: int, urgent: bool) -> None:
    job = parse(hello(priority=priority))
    assert (job.priority, job.latency_sensitive) == (number, urgent)


def test_the_class_may_be_given_against_the_band() -> None:
    assert not parse(hello(priority="production", appclass="batch")).latency_sensitive
    assert parse(hello(appclass="latency-sensitive")).latency_sensitive


def test_quantities_become_integers_of_the_axis() -> None:
    job = parse(
        with_task(limit={"cpu": "1.5", "ram": "64Mi", "disk": "1G", "tpu": 2}), limits=CellLimits(extra=("tpu",))
    )
    assert job.base.limit == (1500, 2**26, 10**9, 0, 0, 1, 2)
    assert job.base.limit[PORTS] == 1


def test_a_health_check_takes_the_only_port() -> None:
    job = parse(with_task(health={"http": "/ready", "interval_s": 1}))
    assert job.base.health == HealthCheck(kind="http", port="http", path="/ready", interval_s=1.0)
    assert parse(with_task(health={"tcp": True})).base.health == HealthCheck(kind="tcp", port="http")


PRESENT = {"attribute": "ssd", "relation": "present"}
BAD: list[tuple[dict[str, Any], str, str]] = [
    (hello(priorty=3), "priorty", "did you mean 'priority'"),
    (with_task(comand=["x"]), "task.comand", "did you mean 'command'"),
    (with_task(health={"http": "/", "prt": "http"}), "task.health.prt", "did you mean 'port'"),
    (with_task(restart={"on": "failure", "tries": 1}), "task.restart.tries", "unknown field"),
    (hello(spread={"machine": 1}), "spread.machine", "did you mean 'max_per_machine'"),
    ({"name": "a"}, "task", "is missing"),
    ({"task": {"command": ["a"]}}, "name", "is missing"),
    (hello(name="Hello"), "name", "not a DNS label"),
    (hello(name="hello\n"), "name", "not a DNS label"),
    (hello(name="a" * 64), "name", "not a DNS label"),
    (hello(tenant="7up"), "tenant", "not a DNS label"),
    (hello(cell="c_c"), "cell", "not a DNS label"),
    (hello(alloc_set="-"), "alloc_set", "not a DNS label"),
    (with_task(ports=["HTTP"]), "task.ports[0]", "not the name of a port"),
    (with_task(ports=["a" * 16]), "task.ports[0]", "at most 15"),
    (with_task(ports=["http", "http"]), "task.ports[1]", "named twice"),
    (hello(apiVersion="borg/v9"), "apiVersion", "borg/v1"),
    (hello(kind="Pod"), "kind", "Job, AllocSet"),
    (hello(priority=451), "priority", "monitoring 360-450"),
    (hello(priority=-1), "priority", "in no band"),
    (hello(priority="urgent"), "priority", "production"),
    (hello(appclass="fast"), "appclass", "latency-sensitive, batch"),
    (hello(tasks=0), "tasks", "1 to"),
    (hello(tasks=-3), "tasks", "1 to"),
    (hello(tasks="3"), "tasks", "expected `int`, got `str`; give a whole number, without quotes"),
    (hello(labels={"": "x"}), "labels.", "not a label name"),
    (hello(labels={"team": 3}), "labels.team", "quotes"),
    (hello(labels={"team": "x" * 256}), "labels.team", "at most 255"),
    (hello(labels={f"l{n}": "" for n in range(65)}), "labels", "at most 64"),
    (hello(task={}), "task.command", "is missing"),
    (with_task(command=[""]), "task.command", "is missing"),
    (with_task(command="serve"), "task.command", "expected `array`, got `str`"),
    (with_task(command=["serve", 8080]), "task.command[1]", "expected `str`"),
    (with_task(command=["a\x00b"]), "task.command[0]", "NUL"),
    (with_task(command=["a" * 70_000]), "task.command", "longer than"),
    (with_task(env={"A-B": "x"}), "task.env.A-B", "not the name of a variable"),
    (with_task(env={"A": 1}), "task.env.A", "quotes"),
    (with_task(env={"A": "x" * 40_000, "B": "x" * 40_000}), "task.env", "at most"),
    (with_task(limit={"cpu": "-1"}), "task.limit.cpu", "not a quantity"),
    (with_task(limit={"cpu": -0.5}), "task.limit.cpu", "not a quantity"),
    (with_task(limit={"ram": "9999999Ti"}), "task.limit.ram", "too large"),
    (with_task(limit={"ram": "10MB"}), "task.limit.ram", "unknown suffix"),
    (with_task(limit={"ram": 0}), "task.limit.ram", "0 is not possible"),
    (with_task(limit={"cpu": True}), "task.limit.cpu", "not a quantity"),
    (with_task(limit={"gpu": 1}), "task.limit.gpu", "this cell has no such resource"),
    (with_task(limit={"ports": 3}), "task.limit.ports", "instead of a number"),
    (with_task(health={"http": "/", "port": "grpc"}), "task.health.port", "the declared ports are http"),
    (with_task(ports=[], health={"http": "/"}), "task.health.port", "no port is declared"),
    (with_task(health={"http": "ready"}), "task.health.http", "not the path of a URL"),
    (with_task(health={}), "task.health", "either http"),
    (with_task(health={"http": "/", "tcp": True}), "task.health", "either http"),
    (with_task(health={"http": "/", "interval_s": 0}), "task.health.interval_s", "out of range"),
    (with_task(constraints=[{"attribute": "a", "relation": "~"}]), "task.constraints[0].relation", "present, absent"),
    (with_task(constraints=[{"attribute": "a", "relation": "="}] * 33), "task.constraints", "at most 32"),
    (with_task(constraints=[PRESENT | {"value": "x"}]), "task.constraints[0].value", "remove the value"),
    (with_task(notice_s=-1), "task.notice_s", "from 0 to 3600"),
    (hello(deadline_s=0), "deadline_s", "0 is out of range; give 1 to 31622400 seconds (366 days), or leave it out"),
    (hello(deadline_s=-3), "deadline_s", "for a job without a deadline"),
    (hello(deadline_s="tomorrow"), "deadline_s", "give a number, without quotes"),
    (hello(kind="AllocSet", deadline_s=60), "deadline_s", "in the jobs inside the alloc set"),
    (hello(start_after="tomorrow"), "start_after", "'tomorrow' is not a time; write it like 2026-12-24T02:00:00+01:00"),
    (hello(start_after="2026-13-01T00:00:00Z"), "start_after", "is not a time"),
    (hello(start_after="2026-12-01T00:00:00"), "start_after", "has no time zone; add one, such as Z for UTC or +01:00"),
    (hello(start_after="0001-01-01T00:00:00+14:00"), "start_after", "is not a time"),
    (hello(start_after=1795868488), "start_after", "give text"),
    (hello(kind="AllocSet", start_after="2026-12-01T00:00:00Z"), "start_after", "in the jobs inside the alloc set"),
    (hello(max_running=-1), "max_running", "-1 is out of range; give a number from 0"),
    (hello(max_running=2, gang=True), "max_running", "remove this field, or gang"),
    (hello(max_running=2, update={"rollback": True}), "max_running", "or remove update.canary and update.rollback"),
    (hello(max_running=2, update={"canary": 1}), "max_running", "or remove update.canary and update.rollback"),
    (hello(kind="AllocSet", max_running=2), "max_running", "set this field in the jobs inside"),
    (hello(after={"load": "done"}), "after.load", "'done' is unknown; give one of succeeded, ended, running"),
    (hello(after={"Load": "ended"}), "after.Load", "is not a DNS label"),
    (hello(after={"hello": "ended"}), "after.hello", "a job cannot wait for itself; name another job"),
    (hello(after={f"j{number}": "ended" for number in range(65)}), "after", "has 65 jobs; give at most 64"),
    (hello(after=["load"]), "after", "give fields with values"),
    (hello(kind="AllocSet", after={"load": "ended"}), "after", "in the jobs inside the alloc set"),
    (hello(ttl_after_end_s=60), "ttl_after_end_s", "60 is out of range; give 172800 to 31622400 seconds"),
    (with_task(max_run_s=0), "task.max_run_s", "0 is out of range; give 1 to 31622400 seconds (366 days), or leave it"),
    (with_task(max_run_s=-5), "task.max_run_s", "or leave it out for tasks without a time limit"),
    (with_task(max_run_s=1e300), "task.max_run_s", "this number is out of range"),
    (with_task(max_run_s="1h"), "task.max_run_s", "give a number, without quotes"),
    (hello(overrides={"1": {"max_run_s": 0.5}}), "overrides.1.max_run_s", "0.5 is out of range"),
    (hello(kind="AllocSet", task={"max_run_s": 60}), "task.max_run_s", "in the jobs inside the alloc set"),
    (with_task(restart={"on": "often"}), "task.restart.on", "one of failure, always, never"),
    (with_task(max_processes=0), "task.max_processes", "out of range"),
    (with_task(flags={"--port": 1}), "task.flags.--port", "do not write the leading dashes"),
    (with_task(flags={"port": [1]}), "task.flags.port", "give text"),
    (with_task(flags={"name": "a\x00b"}), "task.flags.name", "NUL"),
    (with_task(root="/"), "task.root", "one of host, packages"),
    (with_task(root="packages"), "task.root", "task.packages"),
    (with_task(network="bridge"), "task.network", "one of host, own"),
    (with_task(slack={"disk": True}), "task.slack.disk", "the known fields are cpu, ram"),
    (with_task(whole_cores=True, limit={"cpu": "1500m"}), "task.whole_cores", "whole cores"),
    (
        hello(appclass="batch", task={"command": ["x"], "limit": {"cpu": 2}, "whole_cores": True}),
        "task.whole_cores",
        "set appclass: latency-sensitive",
    ),
    (with_task(user="root;"), "task.user", "not a user name"),
    (with_task(packages=["a b"]), "task.packages[0]", "write NAME, NAME@TAG or NAME@sha256:"),
    (with_task(working_dir="../.."), "task.working_dir", "leaves the task's folder"),
    (hello(overrides={"3": {"notice_s": 1}}), "overrides.3", "tasks 0 to 2"),
    (hello(overrides={"2-1": {"notice_s": 1}}), "overrides.2-1", "out of range"),
    (hello(overrides={"x": {}}), "overrides.x", "not an index"),
    (hello(overrides={"1": 5}), "overrides.1", "the fields that differ"),
    (hello(overrides={"1": {"limit": {"cpu": "-1"}}}), "overrides.1.limit.cpu", "not a quantity"),
    (hello(overrides={"1": {"ports": ["x"]}}), "overrides.1.ports", "the same ports"),
    (hello(overrides={"0-1": {"notice_s": 1}, "1": {"notice_s": 2}}), "overrides.1", "overlaps with 0-1"),
    (hello(kind="AllocSet"), "task.command", "runs no command"),
    (hello(kind="AllocSet", task={"ports": ["http"]}), "task.ports", "name ports in the jobs inside"),
    (hello(alloc_set="shelf", spread={"max_per_rack": 1}), "spread.max_per_rack", "in the alloc set shelf"),
    (
        hello(alloc_set="shelf", task={"command": ["x"], "constraints": [PRESENT]}),
        "task.constraints",
        "run on the machine of the alloc",
    ),
    (hello(disruption_budget=-1), "disruption_budget", "out of range"),
    (hello(gang=True, tasks=2501), "gang", "split it into jobs of at most 2500"),
    (hello(gang=1), "gang", "expected `bool`, got `int`; give true or false"),
    (with_task(limit={"accelerators": "1500m"}), "task.limit.accelerators", "ask for 1 or 2, or for a share"),
    (hello(overrides={"1": {"limit": {"accelerators": 2.5}}}), "overrides.1.limit.accelerators", "2500m is more"),
    (hello(tasks=100_000, task={"command": ["x"], "limit": {"ram": 2**53}}), "task.limit", "together"),
]


@pytest.mark.parametrize("data, path, cure", BAD, ids=[f"{n}-{path}" for n, (_, path, _) in enumerate(BAD)])
def test_bad_input_is_named_by_its_path(data: dict[str, Any], path: str, cure: str) -> None:
    fields = refused(json.dumps(data).encode())
    assert path in fields
    assert cure in fields[path]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"nonsense", b"\xff", b'{"name": "\\ud800"}', b"[" * 100_000])
def test_input_that_is_not_a_json_object_is_rejected_with_the_reason(data: bytes) -> None:
    assert "file" in refused(data)


@pytest.mark.parametrize("digits", [400, 5000])
@pytest.mark.parametrize("field", ['"tasks":%s', '"priority":%s', '"update":{"max_down":%s}', '"overrides":{"%s":{}}'])
def test_absurd_numbers_are_refused_too(field: str, digits: int) -> None:
    refused(('{"name":"a","task":{"command":["a"]},' + field % ("1" * digits) + "}").encode())


def test_all_problems_are_reported_at_once() -> None:
    fields = refused(hello(name="X", tasks=0, task={"command": [], "limit": {"cpu": "lots"}}))
    assert set(fields) == {"name", "tasks", "task.command", "task.limit.cpu"}


def test_a_cell_sets_its_own_bounds() -> None:
    assert "tasks" in refused(hello(tasks=11), max_tasks=10)


def test_an_override_is_merged_into_its_tasks_alone() -> None:
    job = parse(
        hello(tasks=10, overrides={"3-4": {"limit": {"cpu": 2}, "env": {"A": "x"}}, "7": {"command": ["other"]}})
    )
    assert [job.task(index).limit[CPU] for index in (2, 3, 4, 5)] == [100, 2000, 2000, 100]
    assert job.task(4).limit[RAM] == job.base.limit[RAM]
    assert job.task(7).command == ("other",)
    assert [(first, last) for first, last, _ in job.segments()] == [(0, 2), (3, 4), (5, 6), (7, 7), (8, 9)]
    with pytest.raises(IndexError, match="give 0 to 9"):
        job.task(10)


def test_groups_join_equal_requirements() -> None:
    job = parse(
        hello(
            tasks=10, overrides={"3-4": {"limit": {"cpu": 2}}, "7": {"command": ["other"]}, "8": {"limit": {"cpu": 2}}}
        )
    )
    small, large = job.groups()
    assert (small.ranges, large.ranges) == (((0, 2), (5, 7), (9, 9)), ((3, 4), (8, 8)))
    assert job.total[CPU] == 7 * 100 + 3 * 2000
    assert [group.ranges for group in job.groups(4, 5)] == [((4, 4),), ((5, 5),)]


FULL = hello(
    tenant="ubar",
    cell="cc",
    labels={"b": "1", "a": "2"},
    priority="production",
    tasks=20,
    task={
        "command": ["serve"],
        "env": {"B": "1", "A": "2"},
        "ports": ["http", "rpc"],
        "limit": {"cpu": "250m", "ram": "1Gi"},
        "health": {"http": "/", "port": "http"},
        "notice_s": 30,
        "constraints": [PRESENT, {"attribute": "arch", "relation": "=", "value": "x86_64"}],
    },
    overrides={
        "5-9": {"health": None, "limit": {"accelerators": 1}},
        "11": {"env": {"B": None}},
        "12": {"limit": {"cpu": "250m"}},
    },
    spread={"max_per_rack": 2},
    update={"max_down": 3},
)


def test_a_spec_written_out_reads_back_equal() -> None:
    job = parse(FULL)
    again = parser.load(json.loads(json.dumps(job.to_json(), sort_keys=True)))
    assert again == job
    assert again.digest() == job.digest()
    assert [override.key for override in job.overrides] == ["5-9", "11"]


def test_the_digest_sees_content_and_not_spelling() -> None:
    job = parse(FULL)
    spelled = json.loads(json.dumps(FULL))
    spelled["priority"] = 120
    spelled["task"]["limit"] = {"ram": str(2**30), "cpu": 0.25}
    spelled["labels"] = {"a": "2", "b": "1"}
    assert parse(spelled).digest() == job.digest()
    assert parse({**FULL, "tasks": 21}).digest() != job.digest()


@pytest.mark.parametrize(
    "field, value, expected",
    [
        ("limit", {"cpu": 2}, SpecChange.IN_PLACE),
        ("health", {"tcp": True}, SpecChange.IN_PLACE),
        ("notice_s", 1, SpecChange.IN_PLACE),
        ("max_run_s", 60, SpecChange.IN_PLACE),
        ("restart", {"on": "always"}, SpecChange.IN_PLACE),
        ("command", ["other"], SpecChange.RESTART),
        ("env", {"A": "1"}, SpecChange.RESTART),
        ("ports", ["http", "rpc"], SpecChange.RESTART),
        ("packages", ["web"], SpecChange.RESTART),
        ("user", "nobody", SpecChange.RESTART),
        ("constraints", [PRESENT], SpecChange.RESTART),
        ("limit", {"accelerators": 1}, SpecChange.RESTART),
        ("command", ["serve"], SpecChange.NONE),
    ],
)
def test_only_some_changes_restart_a_task(field: str, value: Any, expected: SpecChange) -> None:
    assert restart_rule.change(parse(hello()), parse(with_task(**{field: value})), 0) is expected


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"priority": 5}, SpecChange.IN_PLACE),
        ({"labels": {"a": "b"}}, SpecChange.IN_PLACE),
        ({"deadline_s": 60}, SpecChange.IN_PLACE),
        ({"ttl_after_end_s": 200_000}, SpecChange.IN_PLACE),
        ({"start_after": "2026-12-01T00:00:00Z"}, SpecChange.IN_PLACE),
        ({"after": {"load": "ended"}}, SpecChange.IN_PLACE),
        ({"max_running": 2}, SpecChange.IN_PLACE),
        ({"tasks": 5}, SpecChange.NONE),
        ({"update": {"max_down": 2}}, SpecChange.NONE),
        ({"spread": {"max_per_rack": 1}}, SpecChange.RESTART),
        ({"appclass": "latency-sensitive"}, SpecChange.RESTART),
    ],
)
def test_changes_of_the_job_reach_its_tasks(changes: dict[str, Any], expected: SpecChange) -> None:
    assert restart_rule.change(parse(hello()), parse(hello(**changes)), 2) is expected


def test_changes_are_reported_by_ranges() -> None:
    old = parse(hello(tasks=8, overrides={"2-3": {"env": {"A": "1"}}}))
    new = parse(hello(tasks=6, overrides={"3-4": {"env": {"A": "1"}}}))
    assert restart_rule.changes(old, new) == [
        (0, 1, SpecChange.NONE),
        (2, 2, SpecChange.RESTART),
        (3, 3, SpecChange.NONE),
        (4, 4, SpecChange.RESTART),
        (5, 5, SpecChange.NONE),
    ]


def test_twenty_thousand_tasks_are_grouped_at_once() -> None:
    job = parse(hello(tasks=20_000, overrides={"7": {"limit": {"cpu": 3}}}))
    took = []
    for _ in range(3):
        started = time.perf_counter()
        assert sum(group.size for group in job.groups()) == 20_000
        took.append(time.perf_counter() - started)
    assert min(took) < 0.05


@pytest.mark.parametrize("asked, milli", [("250m", 250), (1, 1000), (2, 2000), (0, 0)])
def test_accelerators_are_a_share_of_one_or_several_whole_ones(asked: Any, milli: int) -> None:
    assert parse(with_task(limit={"accelerators": asked})).base.limit[ACCELERATORS] == milli


def test_specs_stored_before_devices_were_whole_are_still_read() -> None:
    stored = parse(with_task(limit={"accelerators": 1})).to_json()
    stored["task"]["limit"]["accelerators"] = "1500m"
    assert parser.load(stored).base.limit[ACCELERATORS] == 1500


def test_a_digest_counts_later_fields_only_when_they_say_something() -> None:
    """Compare digests of specs with and without fields that were added later. Default values must not count.

    So specs that were stored before these fields existed equal the files they came from.
    """
    plain = parse(hello())
    assert plain.digest() == parse(hello(gang=False, disruption_budget=0)).digest()
    assert len({plain.digest(), parse(hello(gang=True)).digest(), parse(hello(disruption_budget=1)).digest()}) == 3
    assert "gang" not in plain.to_json()


def test_equal_times_in_two_zones_are_one_start() -> None:
    one, other = (parse(hello(start_after=text)) for text in ("2026-12-24T02:00:00+01:00", "2026-12-24T01:00:00Z"))
    assert one.digest() == other.digest()
    assert one.to_json()["start_after"] == "2026-12-24T01:00:00Z"
    assert parser.load(one.to_json()) == one


def test_a_spec_keeps_the_jobs_that_it_waits_for() -> None:
    one, other = (
        parse(hello(after=dict(pairs)))
        for pairs in ([("a", "ended"), ("b", "running")], [("b", "running"), ("a", "ended")])
    )
    assert one.digest() == other.digest()
    assert parser.load(one.to_json()) == one
    assert "after" not in parse(hello()).to_json()


def test_a_task_with_a_time_limit_is_placed_only_where_the_borglet_enforces_it() -> None:
    job = parse(hello(tasks=2, task={"command": ["x"], "max_run_s": 60}, overrides={"1": {"max_run_s": None}}))
    assert [job.task(index).max_run_s for index in (0, 1)] == [60.0, None]
    assert [job.requirement(index).constraints for index in (0, 1)] == [(LIMITS_TIME,), ()]
    assert parser.load(job.to_json()) == job
    assert "max_run_s" not in parse(hello()).to_json()["task"]


def test_the_end_of_a_run_is_known_only_if_nothing_starts_the_task_again() -> None:
    def within_s(**changes: object) -> float | None:
        task = {"command": ["x"], "max_run_s": 60, "notice_s": 20, "restart": {"on": "never"}, **changes}
        return parse(hello(tasks=2, task=task)).ends_within_s(ttl_s=5)

    assert within_s() == 60.0 + 20.0 + REPORT_S
    assert within_s(ports=["http"]) == 60.0 + 20.0 + 6.0 + REPORT_S
    for unknown in (
        {"max_run_s": None},
        {"restart": {"on": "failure"}},
        {"restart": {"on": "always"}},
        {"ports": ["http"], "health": {"tcp": True}},
    ):
        assert within_s(**unknown) is None
    never = {"command": ["x"], "max_run_s": 60, "restart": {"on": "never"}}
    longer = parse(hello(tasks=2, task=never, overrides={"1": {"max_run_s": 90}}))
    assert longer.ends_within_s(ttl_s=5) == 90.0 + 10.0 + REPORT_S
    assert parse(hello(tasks=2, task=never, overrides={"1": {"max_run_s": None}})).ends_within_s(ttl_s=5) is None


def test_isolation_changes_in_place() -> None:
    task = {"command": ["x"], "limit": {"cpu": 2}}
    old = parse(hello(appclass="latency-sensitive", task=task))
    for changed in ({"whole_cores": True}, {"slack": {"cpu": False}}, {"limit": {"disk_bandwidth": "5M"}}):
        new = parse(hello(appclass="latency-sensitive", task=task | changed))
        assert restart_rule.change(old, new, 0) is SpecChange.IN_PLACE
        assert parse(new.to_json()) == new


def test_gang_and_budget_change_in_place() -> None:
    old = parse(hello())
    for changed in (hello(gang=True), hello(disruption_budget=2)):
        assert restart_rule.change(old, parse(changed), 0) is SpecChange.IN_PLACE
        assert parse(parse(changed).to_json()) == parse(changed)


def test_what_may_be_down_is_the_budget_or_else_what_an_update_may_have_down() -> None:
    assert parse(hello(tasks=30)).may_be_down() == 3
    assert parse(hello(tasks=30, disruption_budget=5)).may_be_down() == 5


def test_a_job_inside_an_alloc_set_is_charged_nothing() -> None:
    assert parse(hello()).charged() == parse(hello()).total
    assert not any(parse(hello(alloc_set="shelf")).charged())


def test_single_tasks_may_have_other_flags() -> None:
    """Override the command-line flags of one task (§2.3). Only the command of this task may change."""
    file = with_task(command=["serve"], flags={"level": 3, "debug": False, "name": "$(index)"})
    job = parser.parse({**file, "tasks": 2, "overrides": {"0": {"flags": {"leader": True, "level": 4}}}})
    assert job.task(1).argv == ["serve", "--level=3", "--name=$(index)"]
    assert job.task(0).argv == ["serve", "--leader", "--level=4", "--name=$(index)"]
    assert parser.load(job.to_json()) == job
    assert restart_rule.change(job, parser.parse({**file, "tasks": 2}), 0) is SpecChange.RESTART


def test_what_a_task_needs_of_a_runtime_is_a_demand_on_machines() -> None:
    file = with_task(root="packages", packages=["web@v1"], network="own", whole_cores=True, limit={"cpu": 2})
    job = parser.parse({**file, "appclass": "latency-sensitive"})
    assert [(c.attribute, c.relation, c.value, c.hard) for c in job.requirement(0).constraints] == [
        ("borglet.protocol", ">=", "2", True),
        ("isolation.cores", "!=", "none", True),
        ("isolation.network", "=", "own", True),
        ("runtime", "=", "oci", True),
    ]
    assert parser.parse(hello()).requirement(0).constraints == ()
    inside = parser.parse({**file, "appclass": "latency-sensitive", "alloc_set": "shelf"})
    assert inside.requirement(0).constraints == ()


@pytest.mark.parametrize(
    "task, place, name",
    [
        ({"command": ["serve", "--port", "$(port.htp)"]}, "command[2]", "port.htp"),
        ({"command": ["sh", "-c", "echo $(echo $(date))"]}, "command[2]", "date"),
        ({"command": ["$(packages)/tool/serve"]}, "command[0]", "packages"),
        ({"command": ["serve", "$()"]}, "command[1]", ""),
        ({"env": {"URL": "http://$(host):$(port.http)"}}, "env.URL", "host"),
        ({"flags": {"name": "$(task)", "fast": True}}, "flags.name", "task"),
    ],
)
def test_an_undefined_variable_is_named_with_its_place_and_those_that_exist(
    task: dict[str, Any], place: str, name: str
) -> None:
    (told,) = refused(with_task(**task)).items()
    assert told[0] == f"task.{place}"
    assert told[1].startswith(f"$({name}) is not a variable of this task")
    assert told[1].endswith("cell, index, job, name, port.http")
    assert f"$$({name})" in told[1]


def test_an_undefined_variable_of_an_override_is_found_there() -> None:
    file = with_task() | {"overrides": {"1": {"command": ["serve", "$(port.x)"]}}}
    assert list(refused(file)) == ["overrides.1.command[1]"]


def test_defined_and_escaped_variables_are_accepted() -> None:
    task = {
        "command": ["$(packages)/serve", "$(cell)/$(job)/$(index)", "$(name)", "$(port.http)"],
        "env": {"A": "$$(date) $HOME $((1+2)) $$ $x"},
        "packages": ["serve"],
    }
    assert parse(with_task(**task)).base.command[0] == "$(packages)/serve"


def test_a_stored_spec_with_an_undefined_variable_is_still_read() -> None:
    job = parse(with_task(command=["serve"]))
    stored = job.to_json()
    stored["task"]["command"] = ["serve", "$(nope)"]
    assert parser.load(stored).base.command == ("serve", "$(nope)")


def test_every_wrong_shape_and_value_of_a_file_is_named_at_once() -> None:
    given = {
        "name": "Hello!",
        "tasks": "three",
        "nonsense": 1,
        "priority": 9999,
        "task": {"command": "sleep 1", "limit": {"cpu": "lots"}, "constraints": [{"attribute": 3}]},
    }
    with pytest.raises(Rejected) as caught:
        parser.parse(given)
    wrong = {"name", "tasks", "nonsense", "priority", "task.command", "task.limit.cpu", "task.constraints[0].attribute"}
    assert wrong <= caught.value.fields.keys()
    assert all(path in caught.value.detail for path in wrong)


def test_wrong_shapes_that_are_named_have_a_bound() -> None:
    with pytest.raises(Rejected) as caught:
        parser.parse({"name": "web", "task": {"command": ["x"]}, **{f"field{n}": 1 for n in range(500)}})
    assert len(caught.value.fields) == field_errors.MOST_SHAPES
