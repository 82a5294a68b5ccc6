"""What a cell holds back until an SRE says so: its brakes, and what is in quarantine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.cells import machine_path
from portal.cli.client import part
from portal.cli.context import CellOption, Context, DryRun

brake = typer.Typer(help="What the cell holds back until an SRE says so: list, release, keep.")
quarantine = typer.Typer(help="What machines run that the cell's history doesn't know: list, stop, keep.")

Kind = Annotated[str, typer.Argument(metavar="BRAKE", help="lost or stops.")]
Reason = Annotated[str, typer.Option(help="Why; others will ask.")]
Hostname = Annotated[str, typer.Argument(metavar="MACHINE", help="Its host name.")]
Keys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these; else all undecided.")]


@brake.command("list")
def brake_list(ctx: typer.Context, cell: CellOption = None) -> None:
    """Both brakes: `lost`, on placing tasks of vanished machines elsewhere; `stops`, on stopping tasks by itself."""
    ours = context.of(ctx)
    rows = ours.client.get(_path(ours, cell))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("BRAKE", "STATE", "TASKS HELD", "SINCE", "BY", "DETAIL"),
        [
            (row["brake"], row["state"], row["tasks_held"], output.when(row["since"]), row["decided_by"], row["detail"])
            for row in rows
        ],
        empty="No brakes.",
    )  # fmt: skip


@brake.command("release")
def brake_release(
    ctx: typer.Context,
    kind: Kind,
    reason: Reason,
    seconds: Annotated[float, typer.Option(min=1, help="Of stops: for how long.")] = 600.0,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Let the cell go on."""
    _decide(ctx, cell, kind, "release", {"reason": reason, "seconds": seconds}, dry_run=dry_run)


@brake.command("keep")
def brake_keep(
    ctx: typer.Context, kind: Kind, reason: Reason, cell: CellOption = None, dry_run: DryRun = False
) -> None:
    """Hold it until what it is about is over."""
    _decide(ctx, cell, kind, "keep", {"reason": reason}, dry_run=dry_run)


@quarantine.command("list")
def quarantine_list(ctx: typer.Context, cell: CellOption = None) -> None:
    """Tasks that machines run and the cell's history doesn't know."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(f"/api/v1/cells/{part(ours.cell(cell))}/quarantine/"))
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("MACHINE", "TASK", "KEY", "SINCE", "DECIDED"),
        [
            (
                row["machine"],
                task["name"],
                task["key"],
                output.when(task["since"]),
                task["release"] or "not yet",
            )
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
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """End them, with their notice."""
    _release(ctx, cell, hostname, keys, "stop", reason, dry_run=dry_run)


@quarantine.command("keep")
def quarantine_keep(
    ctx: typer.Context,
    hostname: Hostname,
    keys: Keys = None,
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Let them run on, unmanaged."""
    _release(ctx, cell, hostname, keys, "keep", reason, dry_run=dry_run)


def _path(ours: Context, cell: str | None) -> str:
    return f"/api/v1/cells/{part(ours.cell(cell))}/brakes/"


def _decide(
    ctx: typer.Context, cell: str | None, kind: str, verb: str, body: dict[str, Any], *, dry_run: bool
) -> None:
    ours = context.of(ctx)
    path = f"{_path(ours, cell)}{part(kind)}:{verb}"
    answer = ours.client.post(path, body, **({"dry_run": "1"} if dry_run else {}))
    would = "would be" if dry_run else "is"
    return output.as_json(answer) if ours.json else output.say(f"Brake {kind} {would} {answer['state']}.")


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
    ours = context.of(ctx)
    body = {"action": action, "reason": reason, **({"keys": keys} if keys else {})}
    path = machine_path(ours, cell, hostname).removesuffix("/")
    answer = ours.client.post(f"{path}:quarantine", body, **({"dry_run": "1"} if dry_run else {}))
    if ours.json:
        return output.as_json(answer)
    number = sum(task["release"] == action for task in answer["quarantined"])
    would = "would be" if dry_run else "are"
    return output.say(f"{output.number(number, 'task')} on {hostname} {would} decided: {action}.")
