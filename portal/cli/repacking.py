"""Commands that re-pack a cell: they move tasks, so that whole machines become free or a pending task fits."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, Yes
from portal.cli.failure import CommandFailed, bad_usage

repack = Commands(help="Re-packing, which moves tasks to free machines or to make a task fit: plan, start, status.")

Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the re-packing, as `repack plan` prints it.")]
Reason = Annotated[str, typer.Option(help="Reason, shown to other people.")]
_LOOK_EVERY_S = 0.5
_PLANNED_WITHIN_S = 120.0
_SHOWN = 10


@repack.command("plan")
def repack_plan(
    session: Context,
    reason: Reason,
    machines: Annotated[
        int | None,
        typer.Option(min=1, help="Machines that have no task after the moves. Machines that are free now count too."),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="After the moves, this share of all machines has no task, such as 3%."),
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="JOB", help="A pending task of this job fits after the moves.")
    ] = None,
    most_moves: Annotated[
        int | None, typer.Option(min=0, help="Tasks that may move. Default: 2 % of the running tasks.")
    ] = None,
    job_share: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Share of the tasks of each job that may move. Default: 10%.")
    ] = None,
    most_priority: Annotated[
        int | None, typer.Option(min=0, help="Tasks of a higher priority stay. Default: 359, below monitoring.")
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="Tasks that may be moving at the same time. Default: 10.")
    ] = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Ask for a plan, and show it: the machines, and the jobs that lose tasks. Nothing moves before `repack start`.

    A plan is valid for an hour. A newer plan replaces it.
    """
    if sum(one is not None for one in (machines, share, job)) != 1:
        what = "give exactly one of --machines, --share and --job"
        raise bad_usage(what, machines=what)
    given: dict[str, Any] = {"machines": machines, "most_moves": most_moves, "most_priority": most_priority}
    given |= {"at_once": at_once, "share": _share("share", share), "job_share": _share("job_share", job_share)}
    if job is not None:
        wanted = session.job(job)
        cell = cell or wanted.cell
        given["job"] = f"{wanted.tenant}/{wanted.name}"
    body = {"reason": reason, **{name: value for name, value in given.items() if value is not None}}
    answer = session.client.post(f"{session.cell_path(cell)}repackings/", body, dry_run=dry_run)
    if dry_run:
        return session.say(answer, "The request is valid. Without --dry-run, the master makes a plan.")
    until = time.monotonic() + _PLANNED_WITHIN_S
    while answer["state"] == "planning":
        if time.monotonic() > until:
            number = answer["id"]
            what = (
                f"the master has not made the plan within {_PLANNED_WITHIN_S:.0f} s; check that the master runs, and"
                " look for"
            )
            raise CommandFailed("timeout", f"{what} the plan later with `borgctl repack status {number}`")
        time.sleep(_LOOK_EVERY_S)
        answer = session.client.get(_path(session, cell, answer["id"]))
    if answer["state"] != "planned":
        raise CommandFailed("no-plan", answer["detail"], document=answer)
    if session.json:
        return output.as_json(answer)
    _show(session, cell, answer)
    if answer["machines"]:
        output.say(f"To start it: borgctl repack start {answer['id']}")
    return None


@repack.command("start")
def repack_start(
    session: Context,
    number: Number,
    confirm: Confirm = None,
    yes: Yes = False,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Start a planned re-packing. Shows who loses tasks, and asks first.

    The machines of the plan receive no new tasks from now on. Their tasks leave step by step, within the disruption
    budgets of their jobs. Machines that become free stay free until `repack release`.
    """
    if session.json and not (yes or dry_run):
        raise bad_usage("--json prints no question; give --yes or --dry-run", yes="is missing")
    path = _path(session, cell, number)
    if not yes and not dry_run:
        plan = session.client.get(path)
        _show(session, cell, plan)
        spare = sum(job["spare"] for job in plan["jobs"])
        more = f", and up to {spare} more from spare machines" if spare else ""
        output.sure(f"Move {output.number(plan['moves'], 'task')}{more}?")
    body = {} if confirm is None else {"confirm": confirm}
    answer = session.client.post(f"{path.rstrip('/')}:start", body, dry_run=dry_run)
    return session.say(answer, f"Re-packing {number} {output.would_be(dry_run)} {answer['state']}.")


@repack.command("status")
def repack_status(
    session: Context,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="Number of a re-packing. Default: list all.")
    ] = None,
    cell: CellOption = None,
) -> None:
    """List the re-packings of a cell, or show the progress of one: its machines, and why steps were skipped."""
    if number is None:
        return session.table(
            session.client.pages(f"{session.cell_path(cell)}repackings/"),
            {
                "NUMBER": "id",
                "STATE": "state",
                "GOAL": _goal,
                "FREED": lambda row: f"{row['freed']} of {row['machines']}",
                "MOVED": lambda row: f"{row['moved']} of {row['moves']}",
                "SKIPPED": "skipped",
                "BY": lambda row: row["started_by"] or row["asked_by"],
                "REASON": "reason",
            },
            empty="No re-packing.",
        )
    answer = session.client.get(_path(session, cell, number))
    steps = list(session.client.pages(f"{_path(session, cell, number)}steps/"))
    if session.json:
        return output.as_json({**answer, "steps": steps})
    _show(session, cell, answer)
    return output.table(
        ["MACHINE", "STATE", "TASKS", "DETAIL"],
        [(row["machine"], row["state"], row["moves"], row["detail"]) for row in steps],
        empty="The plan has no steps.",
    )


@repack.command("stop")
def repack_stop(
    session: Context, number: Number, reason: Reason = "", cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Stop a re-packing, or discard its plan. Machines that are not free yet receive tasks again."""
    return _act(session, cell, number, "stop", reason, dry_run=dry_run)


@repack.command("release")
def repack_release(
    session: Context, number: Number, reason: Reason = "", cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Return the free machines of a re-packing that has ended: new tasks may start there."""
    return _act(session, cell, number, "release", reason, dry_run=dry_run)


def _act(session: Context, cell: str | None, number: int, verb: str, reason: str, *, dry_run: bool) -> None:
    path = _path(session, cell, number).rstrip("/")
    answer = session.client.post(f"{path}:{verb}", {"reason": reason}, dry_run=dry_run)
    done = {"stop": "stopped", "release": "released"}[verb]
    return session.say(answer, f"Re-packing {number} {output.would_be(dry_run)} {done}.")


def _path(session: Context, cell: str | None, number: int) -> str:
    return f"{session.cell_path(cell)}repackings/{number}/"


def _show(session: Context, cell: str | None, answer: dict[str, Any]) -> None:
    output.say(f"Re-packing {answer['id']} of cell {session.cell(cell)} is {answer['state']}: {answer['detail']}")
    output.details(
        (
            ("goal", _goal(answer)),
            ("machines", f"{answer['machines']}, of which {answer['already_free']} are free already"),
            ("spare machines", f"{answer['spares']}, used if others are skipped" if answer["spares"] else ""),
            ("moves", f"{output.number(answer['moves'], 'task')} (limit {answer['most_moves']})"),
            ("progress", _progress(answer)),
            ("planned in", f"{answer['planning_s']:.1f} s" if answer["planning_s"] is not None else ""),
        )
    )
    for job in answer["jobs"][:_SHOWN]:
        budget = f"{job['may']} may be down at once" + (f", {job['down']} are down" if job["down"] else "")
        spare = f", {job['spare']} more from spare machines" if job["spare"] else ""
        output.say(f"  {job['job']}: {job['moves']} of {output.number(job['tasks'], 'task')} move ({budget}){spare}")
    if len(answer["jobs"]) > _SHOWN:
        output.say(f"  … and {output.number(len(answer['jobs']) - _SHOWN, 'more job')}; --json shows all")


def _progress(answer: dict[str, Any]) -> str:
    if not answer["started_at"]:
        return ""
    parts = (f"{answer['freed']} freed", f"{answer['moving']} moving", f"{answer['skipped']} skipped")
    return f"{', '.join(parts)}; {answer['moved']} of {output.number(answer['moves'], 'task')} moved"


def _goal(row: dict[str, Any]) -> str:
    return (
        f"place a task of {row['job']}" if row["goal"] == "job" else f"{output.number(row['number'], 'free machine')}"
    )


def _share(field: str, text: str | None) -> float | None:
    """Return the share in an option such as `3%` or `0.03`. Raises `CommandFailed` if it is not a share."""
    if text is None:
        return None
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        option = f"--{field.replace('_', '-')}"
        raise bad_usage(f"{option} {text!r} is not a share: write 3% or 0.03", **{field: "is not a share"}) from None
