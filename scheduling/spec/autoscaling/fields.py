"""The fields under `autoscale` in a job file: their types and defaults. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

OFF, RECOMMEND, AUTO = "off", "recommend", "auto"
MODES = (OFF, RECOMMEND, AUTO)
SUM, MEAN, MOST = "sum", "mean", "max"


class Vertical(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for the limits of a job's tasks.

    `min`, `max`: bounds by name of the resource, `cpu` and `ram`. `half_life_s`: after this many seconds, a measurement
    counts half. `margin`: the share that is added to the measured use; None: chosen by the priority of the job.
    `every_s`: the shortest time between two changes. `history_s`: how much usage is needed for a recommendation.
    """

    mode: str = RECOMMEND
    min: dict[str, Any] = {}
    max: dict[str, Any] = {}
    half_life_s: float = 86_400.0
    margin: float | None = None
    every_s: float = 3_600.0
    history_s: float = 86_400.0


class TaskMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric that tasks serve in the text format of Prometheus, such as the length of a queue.

    `name`: its name, with or without labels. `target`: the amount per task. `port`: the name of the port. `over`: how
    the values of the tasks are combined: `sum`; `mean`; or `max`, if each task reports the same queue.
    """

    name: str
    target: float
    port: str
    path: str = "/metrics"
    over: str = SUM


class ScheduledTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From the times of the cron line `at`, the job has at least `tasks` tasks, until the next time of any line."""

    at: str
    tasks: int
    time_zone: str = "UTC"


class Horizontal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for the number of a job's tasks, from `min` to `max`. At least one of `cpu`, `metric` and `schedule` is
    given. If several are given, the one that asks for most tasks decides.

    `cpu`: the CPU that a task should use, as a share of its limit. `tolerance`: a difference of this share causes no
    change. `window_s`: over how many seconds the use is averaged. `up_s`: the shortest time between a change and more
    tasks. `down_s`: for how long fewer tasks must have been enough before tasks are removed.
    """

    max: int
    min: int = 1
    mode: str = AUTO
    cpu: float | None = None
    metric: TaskMetric | None = None
    schedule: tuple[ScheduledTasks, ...] = ()
    tolerance: float = 0.1
    window_s: float = 60.0
    up_s: float = 60.0
    down_s: float = 300.0


class Autoscale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for changes of a job by the autoscaler: `vertical`, of the limits; `horizontal`, of the number."""

    vertical: Vertical | None = None
    horizontal: Horizontal | None = None
