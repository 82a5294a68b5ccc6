"""Checks the fields under `autoscale` in a job file. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from zoneinfo import available_timezones

import msgspec

from quota.vocabulary.resources import CPU, RAM, QuantityError, parse_quantity
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.spec.autoscaling.fields import AUTO, MEAN, MODES, MOST, SUM, Autoscale, Horizontal, TaskMetric, Vertical
from scheduling.spec.field_errors import Problems
from scheduling.spec.schedules import cron_lines
from scheduling.spec.schema import JobFile
from scheduling.spec.task_spec import TaskSpec, quantity_json

RESOURCES = {"cpu": CPU, "ram": RAM}
MAX_SCHEDULE = 20
LEAST_SCHEDULE_MIN = 15  # between two times of a line
LEAST_WINDOW_S, MOST_WINDOW_S = 5, 86_400
# Each change is a version of the job, so these bound how many there are.
LEAST_UP_S, LEAST_DOWN_S = 10, 20
_LEAST_HALF_LIFE_S, _MOST_HALF_LIFE_S = 60, 30 * 86_400
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}(\{[^{}\n]{0,300}\})?")
_PATH = re.compile(r"/[A-Za-z0-9._~/?&=%+-]{0,199}")


def read_autoscale(file: JobFile, problems: Problems, *, stored: bool) -> Autoscale | None:
    """Check `autoscale`, without what it says about the task. Return it with amounts in their shortest form, so that
    equal settings are equal. `stored`: whether the job file is a stored spec.
    """
    given = file.autoscale
    if given is None or given == Autoscale():
        return None
    if file.kind == "AllocSet":
        problems.add("autoscale", "an alloc set is not scaled; remove this field")
    vertical = given.vertical
    if vertical is not None:
        vertical = _read_vertical(file, vertical, problems)
    if given.horizontal is not None:
        _check_horizontal(file, given.horizontal, problems, stored=stored)
        cpu = given.horizontal.cpu
        if cpu is not None and given.horizontal.mode == AUTO and vertical is not None and vertical.mode == AUTO:
            detail = (
                "the use of CPU cannot decide both the number of tasks and their limit of CPU; remove this field, or"
                " set autoscale.vertical.mode to recommend"
            )
            problems.add("autoscale.horizontal.cpu", detail)
    return Autoscale(vertical, given.horizontal)


def check_of_task(autoscale: Autoscale, task: TaskSpec, problems: Problems) -> None:
    """Add a problem for each setting that does not match the task of the job."""
    horizontal = autoscale.horizontal
    if horizontal is None:
        return
    if horizontal.cpu is not None and not task.limit[CPU]:
        problems.add("autoscale.horizontal.cpu", "the tasks have no limit of CPU; set task.limit.cpu, or remove this")
    metric = horizontal.metric
    if metric is not None and metric.port not in task.ports:
        known = ", ".join(task.ports) or "none"
        detail = f"{metric.port[:64]!r} is not a port of the task, which has: {known}; add it to task.ports"
        problems.add("autoscale.horizontal.metric.port", detail)


def bound_of(vertical: Vertical, which: str, resource: str) -> int | None:
    """Return the bound `which` (`min` or `max`) of a resource in its unit, or None if there is none."""
    given = getattr(vertical, which).get(resource)
    return None if given is None else parse_quantity(resource, given)


def _read_vertical(file: JobFile, vertical: Vertical, problems: Problems) -> Vertical:
    path = "autoscale.vertical"
    problems.choice(f"{path}.mode", vertical.mode, MODES)
    problems.number(f"{path}.half_life_s", vertical.half_life_s, _LEAST_HALF_LIFE_S, _MOST_HALF_LIFE_S)
    problems.number(f"{path}.every_s", vertical.every_s, 60, _MOST_HALF_LIFE_S)
    problems.number(f"{path}.history_s", vertical.history_s, 0, _MOST_HALF_LIFE_S)
    if vertical.margin is not None:
        problems.number(f"{path}.margin", vertical.margin, 0, 10)
    if file.alloc_set:
        problems.add(path, "the tasks use the limits of their alloc; remove this field")
    for key, patch in file.overrides.items():
        if isinstance(patch, dict) and "limit" in patch:
            detail = "these tasks have limits of their own; remove them, or autoscale.vertical"
            problems.add(f"overrides.{key}.limit", detail)
    amounts = {which: _read_amounts(vertical, which, problems) for which in ("min", "max")}
    for name in amounts["min"].keys() & amounts["max"].keys():
        if amounts["min"][name] > amounts["max"][name]:
            problems.add(f"{path}.min.{name}", f"is above {path}.max.{name}; give at most that")
    shown = {
        which: {name: quantity_json(name, value) for name, value in sorted(of.items())} for which, of in amounts.items()
    }
    return msgspec.structs.replace(vertical, **shown)


def _read_amounts(vertical: Vertical, which: str, problems: Problems) -> dict[str, int]:
    found = {}
    for name, given in getattr(vertical, which).items():
        path = f"autoscale.vertical.{which}.{name}"
        if name not in RESOURCES:
            problems.add(path, f"only {' and '.join(RESOURCES)} are scaled; remove this field")
            continue
        try:
            found[name] = parse_quantity(name, given)
        except QuantityError as error:
            problems.add(path, str(error))
    return found


def _check_horizontal(file: JobFile, horizontal: Horizontal, problems: Problems, *, stored: bool) -> None:
    path = "autoscale.horizontal"
    problems.choice(f"{path}.mode", horizontal.mode, MODES)
    problems.number(f"{path}.min", horizontal.min, 1, MAX_TASKS)
    problems.number(f"{path}.max", horizontal.max, 1, MAX_TASKS)
    problems.number(f"{path}.tolerance", horizontal.tolerance, 0, 1)
    problems.number(f"{path}.window_s", horizontal.window_s, LEAST_WINDOW_S, MOST_WINDOW_S)
    problems.number(f"{path}.up_s", horizontal.up_s, LEAST_UP_S, MOST_WINDOW_S)
    problems.number(f"{path}.down_s", horizontal.down_s, LEAST_DOWN_S, MOST_WINDOW_S)
    if horizontal.min > horizontal.max:
        problems.add(f"{path}.min", f"{horizontal.min} is above max, {horizontal.max}; give at most that")
    elif horizontal.mode == AUTO and not stored and not horizontal.min <= file.tasks <= horizontal.max:
        detail = (
            f"{file.tasks} is outside of {horizontal.min} to {horizontal.max}, the bounds in {path}; give a number"
            " inside, or change the bounds"
        )
        problems.add("tasks", detail)
    if horizontal.cpu is None and horizontal.metric is None and not horizontal.schedule:
        problems.add(path, "nothing decides the number of tasks; give cpu, metric or schedule")
    if horizontal.cpu is not None:
        problems.number(f"{path}.cpu", horizontal.cpu, 0.01, 10)
    if horizontal.metric is not None:
        _check_metric(horizontal.metric, problems)
    _check_schedule(horizontal, problems)
    if file.gang:
        problems.add(path, "all tasks of a gang are placed together; remove this field, or gang")
    if file.max_running:
        problems.add(path, "max_running bounds the tasks of this job already; remove this field, or max_running")
    for key in file.overrides:
        last = key.rpartition("-")[2]
        if last.isdigit() and int(last) >= horizontal.min:
            detail = f"the autoscaler may remove task {last}; remove this override, or raise {path}.min above {last}"
            problems.add(f"overrides.{key}", detail)


def _check_metric(metric: TaskMetric, problems: Problems) -> None:
    path = "autoscale.horizontal.metric"
    if not _METRIC.fullmatch(metric.name):
        problems.add(f"{path}.name", f"{metric.name[:64]!r} is not a metric; write a name such as queue_length")
    if not _PATH.fullmatch(metric.path):
        problems.add(f"{path}.path", f"{metric.path[:64]!r} is not a path; write one such as /metrics")
    problems.number(f"{path}.target", metric.target, 1e-6, 1e12)
    problems.choice(f"{path}.over", metric.over, (SUM, MEAN, MOST))


def _check_schedule(horizontal: Horizontal, problems: Problems) -> None:
    path = "autoscale.horizontal.schedule"
    problems.count(path, horizontal.schedule, MAX_SCHEDULE, "lines")
    for place, line in enumerate(horizontal.schedule[:MAX_SCHEDULE]):
        try:
            cron = cron_lines.parse(line.at)
            if cron.least_minutes_between() < LEAST_SCHEDULE_MIN:
                detail = f"is due more often than every {LEAST_SCHEDULE_MIN} minutes; choose a longer period"
                problems.add(f"{path}[{place}].at", detail)
        except cron_lines.CronLineError as error:
            problems.add(f"{path}[{place}].at", str(error))
        if line.time_zone not in _zones():
            detail = f"{line.time_zone[:64]!r} is unknown; give a name such as Europe/Berlin, or UTC"
            problems.add(f"{path}[{place}].time_zone", detail)
        problems.number(f"{path}[{place}].tasks", line.tasks, horizontal.min, horizontal.max)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())
