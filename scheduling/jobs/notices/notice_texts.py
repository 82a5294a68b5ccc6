"""The texts of the notices about jobs. Pure.

A notice is about one job, or about all jobs of a tenant in a cell to which the same has happened at the same time. Its
text says what has happened, the reason for each of the first jobs, and the next command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduling.core.vocabulary.job_health import Condition
from scheduling.jobs.notices.condition_rules import PATIENCE_S

# Jobs up to this number are named in the text.
MOST_NAMED = 10
_FAILING_MIN = round(PATIENCE_S[Condition.FAILING] / 60)
_CRASH_LOOPING_MIN = round(PATIENCE_S[Condition.CRASH_LOOPING] / 60)


class NoticeText(NamedTuple):
    """The texts of one kind of notice. `one`, `many`: the subjects of a notice about one job and about several jobs.

    `about`: what has happened, for one job or several jobs. `hint`: what the reader can do next. `level`: a level of
    `quota.notifications.notice_kinds`. `state`: the state of the jobs in the list to which a notice about several jobs
    links.
    """

    one: str
    many: str
    about: str = ""
    hint: str = ""
    level: str = "warning"
    state: str = ""


TEXTS: Mapping[str, NoticeText] = {
    "job.failing": NoticeText(
        one="Job %(job)s in cell %(cell)s is failing",
        many="%(number)d jobs in cell %(cell)s are failing",
        about=f"No task has been up for {_FAILING_MIN} minutes, and tasks crash or are unhealthy.",
        hint="Run `borgctl why %(job)s` for the reasons.",
    ),
    "job.crash-looping": NoticeText(
        one="Tasks of job %(job)s in cell %(cell)s keep crashing",
        many="Tasks of %(number)d jobs in cell %(cell)s keep crashing",
        about=f"Some tasks are up, and others have been crashing for {_CRASH_LOOPING_MIN} minutes.",
        hint="Run `borgctl why %(job)s` for the reasons.",
    ),
    "job.recovered": NoticeText(
        one="Job %(job)s in cell %(cell)s is healthy again",
        many="%(number)d jobs in cell %(cell)s are healthy again",
        about="All live tasks are up.",
        level="info",
    ),
    "job.pending": NoticeText(
        one="Tasks of job %(job)s in cell %(cell)s have been pending for too long",
        many="Tasks of %(number)d jobs in cell %(cell)s have been pending for too long",
        hint="Run `borgctl why %(job)s` for all reasons.",
    ),
    "job.deadline-at-risk": NoticeText(
        one="The deadline of job %(job)s in cell %(cell)s is near",
        many="The deadlines of %(number)d jobs in cell %(cell)s are near",
        about="At its deadline, a job fails, and its tasks that have not ended are stopped.",
        hint="To allow more time, raise `deadline_s` in the job file and run `borgctl update FILE`.",
    ),
    "job.recommendation": NoticeText(
        one="The tasks of job %(job)s in cell %(cell)s could have other limits",
        many="The tasks of %(number)d jobs in cell %(cell)s could have other limits",
        about="Their limits differ from their measured use.",
        hint="`borgctl autoscale show %(job)s` shows what this saves. `borgctl autoscale accept %(job)s` sets it.",
        level="info",
    ),
    "job.scaling-limited": NoticeText(
        one="The autoscaler cannot change job %(job)s in cell %(cell)s",
        many="The autoscaler cannot change %(number)d jobs in cell %(cell)s",
        hint="It tries again. Buy more quota, or change the bounds in `autoscale` of the job file.",
    ),
    "job.failed": NoticeText(
        one="Job %(job)s in cell %(cell)s has failed",
        many="%(number)d jobs in cell %(cell)s have failed",
        hint="Run `borgctl why %(job)s` for the reasons. `borgctl retry %(job)s` runs the failed tasks again.",
        state="dead",
    ),
    "job.update-stopped": NoticeText(
        one="The update of job %(job)s in cell %(cell)s has stopped",
        many="Updates of %(number)d jobs in cell %(cell)s have stopped",
        hint="Run `borgctl why %(job)s` for more.",
    ),
    "job.rolled-back": NoticeText(
        one="The update of job %(job)s in cell %(cell)s was rolled back",
        many="Updates of %(number)d jobs in cell %(cell)s were rolled back",
        hint="The tasks return to the last good version. Correct the job file, and run `borgctl update FILE` again.",
    ),
    "job.promise-broken": NoticeText(
        one="Cell %(cell)s broke its promise to job %(job)s",
        many="Cell %(cell)s broke its promise to %(number)d jobs",
        hint="If the job was charged, an invoice pays back a part. `borgctl quota credits --expected` shows how much.",
        level="info",
    ),
    "cron.missed": NoticeText(
        one="A run of cron job %(job)s in cell %(cell)s was not started",
        many="Runs of %(number)d cron jobs in cell %(cell)s were not started",
        hint="Run `borgctl cron show %(job)s` for the history. `borgctl cron run %(job)s` starts a run now.",
    ),
    "workflow.failed": NoticeText(
        one="Workflow %(job)s in cell %(cell)s has failed",
        many="%(number)d workflows in cell %(cell)s have failed",
        hint="Run `borgctl workflow show %(job)s` for its nodes. `borgctl workflow retry %(job)s` goes on from there.",
    ),
}
# Notices about cron jobs and workflows link to pages that begin with this.
_PAGES = {"cron.missed": "/cron/", "workflow.failed": "/workflows/"}


def format_notice(kind: str, *, cell: str, jobs: Sequence[str], reasons: Sequence[str]) -> tuple[str, str]:
    """Return the subject and the text of a notice of this `kind`. `jobs`: the names of all jobs, at least one.
    `reasons`: a sentence for each of the first jobs; empty texts are left out.
    """
    words = TEXTS[kind]
    given = {"job": jobs[0] if len(jobs) == 1 else "JOB", "cell": cell, "number": len(jobs)}
    hint = words.hint % given
    if len(jobs) == 1:
        return words.one % given, " ".join(part for part in (words.about, *reasons, hint) if part)
    named = jobs[:MOST_NAMED]
    if any(reasons):
        lines = [f"- {name}: {reason}" for name, reason in zip(named, reasons, strict=True)]
    else:
        lines = [", ".join(named)]
    if len(jobs) > MOST_NAMED:
        lines.append(f"and {len(jobs) - MOST_NAMED} more")
    return words.many % given, "\n".join(part for part in (words.about, *lines, hint) if part)


def link(kind: str, *, cell: str, tenant: str, jobs: Sequence[str]) -> str:
    """Return the path of the portal to which the notice links: the page of its job, or a list that contains its
    jobs.
    """
    if page := _PAGES.get(kind):
        return f"{page}{cell}/{tenant}/{jobs[0]}/" if len(jobs) == 1 else f"{page}?tenant={tenant}&cell={cell}"
    if len(jobs) == 1:
        return f"/jobs/{cell}/{tenant}/{jobs[0]}/"
    state = f"&state={TEXTS[kind].state}" if TEXTS[kind].state else ""
    return f"/jobs/?tenant={tenant}&cell={cell}{state}"
