"""Answers questions to a master (`core/vocabulary/trials`) within a time limit.

    base ─► variants, in order ─► lowerings: the largest limit by bisection ─► answer

Each number in an answer comes from a trial with exactly this job, so a suggestion that was not tried cannot appear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary.trials import (
    LEAST_PARTS,
    PARTS,
    Lowering,
    TrialAnswer,
    TrialJob,
    TrialQuestion,
    TrialResult,
    lowered,
)


def answer(
    trial: Trial,
    question: TrialQuestion,
    *,
    now: float,
    closed: Collection[int] = (),
    has_time: Callable[[], bool] = lambda: True,
) -> TrialAnswer:
    """Return the answer to a question about the present state. `now`: seconds since the epoch. `closed`: as in
    `Trial.placed`. `has_time`: returns whether another trial may begin. The job as it is is tried in any case.
    """

    def tried(job: TrialJob) -> TrialResult:
        return trial.placed(job, now=now, closed=closed)

    base = tried(question.base)
    if base.placed >= question.base.tasks:
        return TrialAnswer(trial.state.revision, now, base)  # nothing has to change
    results: list[TrialResult] = []
    untried: list[str] = []
    for variant in question.variants:
        if not has_time():
            untried.append(variant.key)
        elif (result := tried(variant.job)).placed:
            results.append(msgspec.structs.replace(result, key=variant.key))
    for lowering in question.lowerings:
        if not has_time():
            untried.append(lowering.key)
        elif (found := _largest(question.base, base.placed, lowering, tried, has_time)) is not None:
            results.append(found)
    return TrialAnswer(trial.state.revision, now, base, tuple(results), tuple(untried))


def _largest(
    base: TrialJob,
    placed: int,
    lowering: Lowering,
    tried: Callable[[TrialJob], TrialResult],
    has_time: Callable[[], bool],
) -> TrialResult | None:
    """Return the result for the largest limits with which as many tasks as possible are placed. Return None if no
    lowering places more tasks than `placed`, the number without it. If the time ends before the largest limits are
    found, smaller limits are returned with which the tasks are placed.

    As many tasks as possible: those that are placed with the smallest limits of the search.
    """
    low, high = LEAST_PARTS, PARTS  # `low` was tried and is enough, `high` is not
    result = tried(lowered(base, lowering.resources, low))
    goal = result.placed
    if goal <= placed:
        return None
    best = result
    while high - low > 1 and has_time():
        middle = (low + high) // 2
        result = tried(lowered(base, lowering.resources, middle))
        if result.placed >= goal:
            low, best = middle, result
        else:
            high = middle
    return TrialResult(lowering.key, best.placed, best.preempted, low)
