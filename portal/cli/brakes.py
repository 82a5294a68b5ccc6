"""Commands for the safety brakes of a cell, and for tasks in quarantine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.cells import machine_path
from portal.cli.client import part
from portal.cli.context import CellOption, Context, DryRun

brake = typer.Typer(help="Safety brakes, which hold back risky actions until an SRE decides: list, release, keep.")
quarantine = typer.Typer(help="Tasks that run on machines but are unknown to the cell: list, stop, keep.")

Kind = Annotated[str, typer.Argument(metavar="BRAKE", help="lost or stops.")]
Reason = Annotated[str, typer.Option(help="Reason, shown to other people.")]
Hostname = Annotated[str, typer.Argument(metavar="MACHINE", help="Host name of the machine.")]
Keys = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY]...", help="Keys of the tasks. Default: all undecided tasks.")
]


@brake.command("list")
def brake_list(ctx: typer.Context, cell: CellOption = None) -> None:
    """List both brakes.

    `lost` holds back placing the tasks of lost machines elsewhere. `stops` holds back automatic stops of tasks.
    """
    session = context.of(ctx)
    rows = session.client.get(_path(session, cell))
    return session.table(
        rows,
        {
            "BRAKE": "brake",
            "STATE": "state",
            "TASKS HELD": "tasks_held",
            "SINCE": lambda row: output.when(row["since"]),
            "BY": "decided_by",
            "DETAIL": "detail",
        },
        empty="No brakes.",
    )


@brake.command("release")
def brake_release(
    ctx: typer.Context,
    kind: Kind,
    reason: Reason,
    seconds: Annotated[float, typer.Option(min=1, help="With `stops`: seconds until the brake works again.")] = 600.0,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Release a brake: the cell continues with the actions that it holds back."""
    _decide(ctx, cell, kind, "release", {"reason": reason, "seconds": seconds}, dry_run=dry_run)


@brake.command("keep")
def brake_keep(
    ctx: typer.Context, kind: Kind, reason: Reason, cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Keep a brake on until its cause has ended."""
    _decide(ctx, cell, kind, "keep", {"reason": reason}, dry_run=dry_run)


@quarantine.command("list")
def quarantine_list(ctx: typer.Context, cell: CellOption = None) -> None:
    """List tasks that run on machines but are unknown to the cell's history."""
    session = context.of(ctx)
    rows = list(session.client.pages(f"/api/v1/cells/{part(session.cell(cell))}/quarantine/"))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("MACHINE", "TASK", "KEY", "SINCE", "DECIDED"),
        [
            (row["machine"], task["name"], task["key"], output.when(task["since"]), task["release"] or "not yet")
            for row in rows
            for task in row["tasks"]
        ],
        empty="Nothing is in quarantine.",
    )


@quarantine.command("stop")
def quarantine_stop(
    ctx: typer.Context,
    hostname: Hostname,
    keys: Keys = None,
    reason: Annotated[str, typer.Option(help="Reason.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Stop the tasks, after their notice."""
    _release(ctx, cell, hostname, keys, "stop", reason, dry_run=dry_run)


@quarantine.command("keep")
def quarantine_keep(
    ctx: typer.Context,
    hostname: Hostname,
    keys: Keys = None,
    reason: Annotated[str, typer.Option(help="Reason.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Leave the tasks running, unmanaged."""
    _release(ctx, cell, hostname, keys, "keep", reason, dry_run=dry_run)


def _path(session: Context, cell: str | None) -> str:
    return f"/api/v1/cells/{part(session.cell(cell))}/brakes/"


def _decide(ctx: typer.Context, cell: str | None, kind: str, verb: str, body: dict[str, Any], *, dry_run: bool) -> None:
    session = context.of(ctx)
    path = f"{_path(session, cell)}{part(kind)}:{verb}"
    answer = session.client.post(path, body, **({"dry_run": "1"} if dry_run else {}))
    would = "would be" if dry_run else "is"
    return session.say(answer, f"Brake {kind} {would} {answer['state']}.")


def _release(
    ctx: typer.Context,
    cell: str | None,
    hostname: str,
    keys: list[str] | None,
    action: str,
    reason: str,
    *,
    dry_run: bool,
) -> None:
    session = context.of(ctx)
    body = {"action": action, "reason": reason, **({"keys": keys} if keys else {})}
    path = machine_path(session, cell, hostname).removesuffix("/")
    answer = session.client.post(f"{path}:quarantine", body, **({"dry_run": "1"} if dry_run else {}))
    if session.json:
        return output.as_json(answer)
    number = sum(task["release"] == action for task in answer["quarantined"])
    would = "would be" if dry_run else "is" if number == 1 else "are"
    return output.say(f"{output.number(number, 'task')} on {hostname} {would} set to {action}.")
