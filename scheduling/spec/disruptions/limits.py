"""The field `disruption_budget` of a job file: its type, its checks, and the number of tasks that it allows. Pure.

2, "10%", {max_down: "10%"} ─────────► tasks that may be down at once
{max_disruptions: 20, window_s: 3600} ─► tasks that may be evicted within a window of time
"""

from __future__ import annotations

import math
import re

import msgspec

from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.spec.field_errors import Problems

LEAST_WINDOW_S, MAX_WINDOW_S, WINDOW_S = 60, 7 * 86_400, 3_600.0
# Drains must be able to move all tasks of a job within this time. Otherwise the repair of machines would never end.
MOVED_WITHIN_S = 14 * 86_400
PATH = "disruption_budget"
_SHARE = re.compile(r"([1-9][0-9]?|100)%")


class DisruptionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A disruption budget with its parts (§3.2, §4). `max_down`: how many tasks may be down at once, as a number or a
    share such as `10%`; 0: no limit of its own. `max_disruptions`: how many tasks may be evicted within `window_s`
    seconds; 0: no limit.
    """

    max_down: int | str = 0
    max_disruptions: int = 0
    window_s: float = WINDOW_S


# A number or a share stands for a budget with only this `max_down`.
DisruptionBudget = int | str | DisruptionLimits


def limits_of(budget: DisruptionBudget) -> DisruptionLimits:
    """Return the parts of a budget, however the job file spells it."""
    return budget if isinstance(budget, DisruptionLimits) else DisruptionLimits(budget)


def normalised(budget: DisruptionBudget) -> DisruptionBudget:
    """Return the shortest spelling of a budget, so that equal budgets are equal values."""
    limits = limits_of(budget)
    return limits if limits.max_disruptions else limits.max_down


def tasks_down(max_down: int | str, tasks: int) -> int:
    """Return how many of `tasks` tasks may be down at once; 0: no limit. A share is rounded up, so that it allows at
    least one task, as in a PodDisruptionBudget of Kubernetes.
    """
    if isinstance(max_down, int):
        return max_down
    percent = int(max_down.removesuffix("%"))
    return max(1, -(-tasks * percent // 100))


def check_budget(budget: DisruptionBudget, problems: Problems, *, at_once: int) -> None:
    """Add a problem for each part of a budget that is not valid. `at_once`: how many tasks of the job run at once; 0
    for a stored spec, whose rate was checked before.
    """
    limits = limits_of(budget)
    path = f"{PATH}.max_down" if isinstance(budget, DisruptionLimits) else PATH
    if isinstance(limits.max_down, int):
        problems.number(path, limits.max_down, 0, MAX_TASKS)
    elif not _SHARE.fullmatch(limits.max_down):
        detail = "is not a share of the tasks; give a number without quotes such as 2, or a share from '1%' to '100%'"
        problems.add(path, f"{limits.max_down[:64]!r} {detail}")
    problems.number(f"{PATH}.max_disruptions", limits.max_disruptions, 0, MAX_TASKS)
    problems.number(f"{PATH}.window_s", limits.window_s, LEAST_WINDOW_S, MAX_WINDOW_S)
    if limits.max_disruptions > 0 and at_once * limits.window_s > MOVED_WITHIN_S * limits.max_disruptions:
        least = math.ceil(at_once * limits.window_s / MOVED_WITHIN_S)
        days = MOVED_WITHIN_S // 86_400
        detail = (
            f"{limits.max_disruptions} within {limits.window_s:g} s is too few: drains could not move all {at_once}"
            f" tasks within {days} days; give at least {least}, or a shorter window"
        )
        problems.add(f"{PATH}.max_disruptions", detail)
    if not limits.max_disruptions and limits.window_s != WINDOW_S:
        detail = "a window needs a number of disruptions; set disruption_budget.max_disruptions, or remove this field"
        problems.add(f"{PATH}.window_s", detail)
