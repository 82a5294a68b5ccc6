"""The cure that changes nothing: waiting, with the expected start."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from scheduling.core.explaining.wording import format_expected_start
from scheduling.core.vocabulary.reasons import Basis, Why
from scheduling.cures.cure_list import Cure, CureKind
from scheduling.jobs.why import held_sentences, waits_until
from scheduling.models import Job, PendingVerdict


def waiting_cure(job: Job, verdict: PendingVerdict | None, whys: Sequence[Why], tasks: int) -> Cure:
    """Return the cure that changes nothing, with the expected start of the class of pending tasks that starts last."""
    why = max(whys, key=_latest, default=None)
    expected = why.expected if why is not None else None
    at: dt.datetime | None = None
    start = format_expected_start(why) if why is not None else ""
    if expected is not None and expected.at is not None:
        at = dt.datetime.fromtimestamp(expected.at, dt.UTC)
    elif expected is not None and expected.high_s is not None and verdict is not None:
        at = verdict.at + dt.timedelta(seconds=expected.high_s)
    booked = expected is not None and expected.basis is Basis.BOOKED
    return Cure(
        key="wait",
        kind=CureKind.WAIT,
        cell=job.cell.name,
        change="Change nothing, and wait.",
        tasks=tasks,
        verified=booked,
        revision=verdict.revision if booked and verdict is not None else None,
        price_difference=0,
        starts_at=at,
        start=start or "The expected start is not known.",
    )


def _latest(why: Why) -> tuple[bool, bool, float]:
    """Return a key by which the class of tasks that starts last is the largest."""
    expected = why.expected
    known = expected is not None and (expected.at is not None or expected.high_s is not None)
    return why.never, not known, (expected.at or expected.high_s or 0.0) if expected is not None else 0.0


def held_cure(job: Job, tasks: int) -> Cure:
    """Return the only cure of a job that holds its tasks back itself."""
    until = waits_until(job)
    return Cure(
        key="wait",
        kind=CureKind.WAIT,
        cell=job.cell.name,
        change="Change nothing, and wait.",
        tasks=tasks,
        price_difference=0,
        starts_at=until if until is not None and not job.waits_for_jobs else None,
        start=" ".join(held_sentences(job)),
    )
