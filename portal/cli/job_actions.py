"""Commands that change a job without a job file: scale, restart, retry, pause and resume."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, IfRevision, JobArgument, JobReference, Yes, split_index
from portal.cli.failure import bad_usage
from portal.cli.jobs import show_change
from portal.cli.selected import OneJob, Selector, act_on

app = Commands()


@app.command()
def scale(
    session: Context,
    job: JobArgument,
    tasks: Annotated[int, typer.Argument(metavar="N", min=1, help="New number of tasks.")],
    if_revision: IfRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Change the number of a job's tasks to N. A smaller number ends the tasks with the highest indexes."""
    path = f"{session.job(job).path}scale/"
    show_change(session, session.client.post(path, {"tasks": tasks}, if_revision=if_revision, dry_run=dry_run))


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
    name: Annotated[str, typer.Argument(metavar="JOB[/N]", help="Name of the job, or of one of its tasks.")],
    tasks: Annotated[
        str | None, typer.Option(metavar="INDEXES", help="Run only these dead tasks again, for example 3,5-9.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Run the failed tasks of a job again. Named tasks run again even if they finished or were killed. A job that has
    ended is submitted again under its name, and only these tasks run.
    """
    job, index = split_index(name)
    if index is not None and tasks is not None:
        raise bad_usage(f"{name!r} names a task, and --tasks names others; give only one of them")
    named = session.job(job)
    chosen = tasks if index is None else str(index)
    body = {} if chosen is None else {"tasks": chosen}
    answer = session.client.post(f"{named.path}retry/", body, dry_run=dry_run)
    retried = output.number(answer["retried"], "task")
    return session.say(answer, f"{named}: {retried} {'would run' if dry_run else 'will run'} again.")


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
