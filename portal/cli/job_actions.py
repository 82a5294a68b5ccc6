"""Commands that change a job without a job file: scale, restart, retry, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, IfRevision, JobReference, Yes, split_index
from portal.cli.failure import bad_usage
from portal.cli.jobs import show_change
from portal.cli.selected import OneJob, Selector, act_on

app = Commands()


@app.command()
def scale(
    session: Context,
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] N", help="Name of the job, cell/tenant/job, tenant/job or job; new number of tasks."
        ),
    ],
    selector: Selector = None,
    if_revision: IfRevision = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Change the number of a job's tasks to N. A smaller number ends the tasks with the highest indexes. With
    --selector instead of JOB, each matching job gets N tasks.
    """
    *names, number = target
    if len(names) > 1 or not (number.isascii() and number.isdecimal() and len(number) < 10 and int(number)):
        raise bad_usage(
            "give a job and its new number of tasks, such as `borgctl scale web 3`", N="not a number of tasks"
        )
    if selector is not None and if_revision is not None:
        raise bad_usage("--if-revision belongs to one job; give JOB instead of --selector", if_revision="not with -l")

    def send(named: JobReference) -> Any:
        body = {"tasks": int(number)}
        return session.client.post(f"{named.path}scale/", body, if_revision=if_revision, dry_run=dry_run)

    if selector is None and names:
        return show_change(session, send(session.job(names[0])))

    def act(named: JobReference) -> tuple[Any, str]:
        answer = send(named)
        return answer, f"{named}: {answer['sentence']}"

    job = names[0] if names else None
    return act_on(session, job, selector, f"Change to {number} tasks:", act, sure=yes or dry_run)


@app.command()
def restart(
    session: Context,
    job: OneJob = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="INDEXES", help="Restart only these tasks, for example 3,5-9.")
    ] = None,
    selector: Selector = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Restart the running tasks of a job, a few at a time, with the limits that its job file sets for updates."""
    body = {} if tasks is None else {"tasks": tasks}

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}restart/", body, dry_run=dry_run)
        what = f"{output.number(answer['restarted'], 'task')} {'would be' if dry_run else 'will be'} restarted"
        return answer, f"{named}: {what}, at most {answer['max_down']} down at once."

    act_on(session, job, selector, "Restart", act, sure=yes or dry_run)


@app.command()
def retry(
    session: Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[JOB[/N]]", help="Name of the job, or of one of its tasks.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="INDEXES", help="Run only these dead tasks again, for example 3,5-9.")
    ] = None,
    selector: Selector = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run the failed tasks of a job again. Named tasks run again even if they finished or were killed. A job that has
    ended is submitted again under its name, and only these tasks run. With --selector, only live jobs are retried.
    """
    job, index = (None, None) if name is None else split_index(name)
    if index is not None and tasks is not None:
        raise bad_usage(f"{name!r} names a task, and --tasks names others; give only one of them")
    chosen = tasks if index is None else str(index)
    body = {} if chosen is None else {"tasks": chosen}

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}retry/", body, dry_run=dry_run)
        retried = output.number(answer["retried"], "task")
        return answer, f"{named}: {retried} {'would run' if dry_run else 'will run'} again."

    act_on(session, job, selector, "Retry failed tasks of", act, sure=yes or dry_run, ignored=["nothing-to-retry"])


@app.command()
def pause(
    session: Context, job: OneJob = None, selector: Selector = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Pause the update or the restart of a job: no further task changes until `borgctl resume JOB`."""

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}pause/", dry_run=dry_run)
        return answer, f"{named}: {_what(answer)} {output.would_be(dry_run)} paused."

    act_on(session, job, selector, "Pause the updates of", act, sure=yes or dry_run, ignored=["no-open-update"])


@app.command()
def resume(
    session: Context, job: OneJob = None, selector: Selector = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Continue the paused update or restart of a job. If it waits for the promotion of canary tasks, this promotes
    them.
    """

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}resume/", dry_run=dry_run)
        text = f"{named}: {_what(answer)} {output.would_be(dry_run)} resumed."
        if answer.get("canary") and answer.get("by_hand"):
            text += " Its canary tasks are not up yet, so resume it again when they are."
        return answer, text

    act_on(session, job, selector, "Resume the updates of", act, sure=yes or dry_run, ignored=["no-open-update"])


def _what(update: dict[str, Any]) -> str:
    """Return a name for an update, such as `the update to version 3`. `update`: the API's answer."""
    return "the restart" if update["tasks_to_replace"] else f"the update to version {update['to_version']}"
