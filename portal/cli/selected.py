"""Commands that act on one job, or with `--selector` on all live jobs whose labels match.

A command with a selector first lists the jobs that it will change, and asks. It changes at most `MOST_JOBS` jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import Context, JobReference
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.paths import part

OneJob = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB]", help="Name of the job: cell/tenant/job, tenant/job or job.", autocompletion=completions.jobs
    ),
]
Selector = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        help="Instead of JOB: all live jobs of the profile's cell and tenant whose labels match, for example "
        "'app=shop,track!=canary' or 'tier in (web,api)'.",
    ),
]
MOST_JOBS = 200


def act_on(
    session: Context,
    job: str | None,
    selector: str | None,
    verb: str,
    act: Callable[[JobReference], tuple[Any, str]],
    *,
    sure: bool,
    ignored: Sequence[str] = (),
    again: str = "",
) -> None:
    """Call `act` for the job, or for each job that the selector matches, and print what it returns: the API's answer
    and a sentence. `verb`: for the question before several jobs are changed; `sure`: do not ask it, as in a dry run.
    `ignored`: codes of errors which say that a job of several needs no change. `again`: what to do about jobs that
    could not be changed.

    If some of several jobs cannot be changed, the others are. Raises `CommandFailed` that names these jobs.
    """
    if (job is None) == (selector is None):
        raise bad_usage("give either a JOB or --selector", job="one of JOB and --selector is needed")
    if selector is not None and not selector.strip():
        raise bad_usage("the selector is empty, which would match all jobs; give a condition", selector="is empty")
    if job is not None:
        return session.say(*act(session.job(job)))
    jobs = _matching(session, str(selector))
    if not sure:
        names = ", ".join(one.name for one in jobs)
        output.sure(f"{verb} {output.number(len(jobs), 'job')} ({names})?")
    answers, problems = [], {}
    for one in jobs:
        try:
            answer, text = act(one)
        except CommandFailed as failed:
            if failed.code in ignored:
                continue
            problems[str(one)] = failed.detail
            continue
        answers.append(answer)
        if not session.json:
            output.say(text)
    if problems:
        detail = f"{output.number(len(problems), 'job')} of {len(jobs)} could not be changed{again and f'; {again}'}"
        document = {"code": "not-all-changed", "detail": detail, "fields": problems, "changed": answers}
        raise CommandFailed("not-all-changed", detail, fields=problems, document=document)
    if session.json:
        return output.as_json(answers)
    return None if answers else output.say("Nothing to change.")


def _matching(session: Context, selector: str) -> list[JobReference]:
    cell, tenant = session.cell(), session.tenant()
    path = f"/api/v1/cells/{part(cell)}/jobs/"
    rows = session.client.pages(path, at_most=MOST_JOBS + 1, tenant=tenant, state="live", selector=selector)
    # An alloc set can be killed only after the jobs inside it.
    jobs = [JobReference(cell, tenant, row["name"]) for row in sorted(rows, key=lambda row: row["kind"] == "alloc-set")]
    if not jobs:
        detail = f"no live job of tenant {tenant} in cell {cell} matches {selector!r}; see `borgctl status`"
        raise CommandFailed("no-match", detail, fields={"selector": "matches no live job"})
    if len(jobs) > MOST_JOBS:
        detail = (
            f"more than {MOST_JOBS} live jobs match {selector!r}, and one command changes at most so many; add a"
            f" condition, and see the jobs with `borgctl status -l {selector!r}`"
        )
        raise CommandFailed("too-many-jobs", detail, fields={"selector": f"matches more than {MOST_JOBS} jobs"})
    return jobs
