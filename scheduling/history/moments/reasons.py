"""Explains why tasks were pending at a past moment. Pure.

The journal does not contain the reasons. So they are computed by a scheduling pass over the past state, with the
function that production calls. The pass changes nothing. Its results can differ from those of the real passes: it uses
the present settings and bands, and cannot estimate when tasks would start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Why

# A pass over more pending tasks would take too long for a page.
MOST_PENDING = 50_000
# The most classes of equal tasks that are explained, those first in the queue.
MOST_CLASSES = 40


@dataclass(frozen=True, slots=True)
class Reasons:
    """The result of a pass over a past state, by job id. `placeable`: how many pending tasks it would place. `whys`:
    why the other tasks stay pending.
    """

    placeable: dict[int, int]
    whys: dict[int, list[Why]]


def reasons_of(state: CellState, policy: Policy, *, now: float) -> Reasons | None:
    """Return why the pending tasks of a state are pending at the time `now` (seconds since the epoch), or None if they
    are too many.
    """
    if state.pending > MOST_PENDING:
        return None
    explainer = Explainer(ExplainBudget(classes=MOST_CLASSES))
    plan = schedule_pass(state, policy, now=now, rng=np.random.default_rng(state.revision), explainer=explainer)
    whys: dict[int, list[Why]] = {}
    for why in plan.unplaced:
        if why.code:
            for job_id, _ in why.tasks:
                whys.setdefault(job_id, []).append(of_job(why, job_id))
    return Reasons(dict(Counter(one.job_id for one in plan.assignments)), whys)
