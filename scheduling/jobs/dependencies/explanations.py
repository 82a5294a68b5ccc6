"""Reads for which jobs a job waits, and explains it."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import prefetch_related_objects

from scheduling.core.explaining.wording import ENGLISH, Words
from scheduling.core.vocabulary.states import JobGoal
from scheduling.models import Job, JobDependency

# Open dependencies up to this number are named.
_MOST_NAMED = 5


def dependencies_of(job: Job) -> list[JobDependency]:
    """Return the dependencies of a job, sorted by name. The first call for this object makes one query."""
    prefetch_related_objects([job], "dependencies")
    return sorted(job.dependencies.all(), key=lambda one: one.name)


def open_dependencies(job: Job) -> list[tuple[str, str]]:
    """Return (name, goal) of the jobs that a job still waits for, sorted by name. Queries: as `dependencies_of`."""
    return [(one.name, one.goal) for one in dependencies_of(job) if one.open]


def dependency_sentence(waits: Sequence[tuple[str, str]], words: Words = ENGLISH) -> str:
    """Return the sentence about a job that waits for other jobs. `waits`: (name, goal) of these jobs. `words`:
    translates the texts. A copy of a cell for study does not contain them.
    """
    if not waits:
        return words.gettext("The tasks wait for other jobs (after), which this copy of the cell does not contain.")
    texts = {
        JobGoal.SUCCEEDED: words.gettext("job %(name)s has succeeded"),
        JobGoal.ENDED: words.gettext("job %(name)s has ended"),
        JobGoal.RUNNING: words.gettext("all tasks of job %(name)s are up"),
    }
    parts = [texts[JobGoal(goal)] % {"name": name} for name, goal in waits[:_MOST_NAMED]]
    if more := len(waits) - len(parts):
        text = words.ngettext("%(more)d more job is ready", "%(more)d more jobs are ready", more)
        parts.append(text % {"more": more})
    text = words.gettext("The tasks wait until %(conditions)s (after).")
    return text % {"conditions": words.gettext(", and until ").join(parts)}
