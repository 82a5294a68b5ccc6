"""Commands for the safety brakes of a cell, and for tasks in quarantine.

A brake pauses automatic actions that would stop or move too many tasks of a cell at once. A quarantined task runs on a
machine, but the cell has no record of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.cells import machine_path
from portal.cli.context import CellOption, Commands, Context, DryRun, OptionGroup
from portal.cli.output import would_be
from portal.cli.paths import part

brake = Commands(help="Safety brakes, which stop risky actions until an SRE decides: list, release, keep.")
quarantine = Commands(help="Tasks that run on machines but are unknown to the cell: list, stop, keep.")

Kind = Annotated[
    str,
    typer.Argument(
        metavar="BRAKE", help="Brake: lost (moving tasks of lost machines) or stops (automatic stops of tasks)."
    ),
]
Reason = Annotated[str, typer.Option(help="Reason for the decision, shown to other people.")]


@dataclass(kw_only=True)
class QuarantinedTasks(OptionGroup):
    """The options of a command for quarantined tasks, which run on a machine but are unknown to the cell."""

    hostname: Annotated[
        str, typer.Argument(metavar="MACHINE", help="Host name of the machine.", autocompletion=completions.machines)
    ]
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]...",
            help="Keys of the tasks, as in `quarantine list`. Default: all tasks without a decision.",
        ),
    ] = None
    reason: Annotated[str, typer.Option(help="Reason for the action, recorded in the journal.")] = ""
    cell: CellOption = None
    dry_run: DryRun = False

    def release(self, session: Context, action: str) -> None:
        body = {"action": action, "reason": self.reason, **({"keys": self.keys} if self.keys else {})}
        path = machine_path(session, self.cell, self.hostname, "quarantine")
        answer = session.client.post(path, body, dry_run=self.dry_run)
        number = sum(task["release"] == action for task in answer["quarantined"])
        would = would_be(self.dry_run) if self.dry_run or number == 1 else "are"
        return session.say(answer, f"{output.number(number, 'task')} on {self.hostname} {would} set to {action}.")


@brake.command("list", watch=True)
def brake_list(session: Context, cell: CellOption = None) -> None:
    """List the two safety brakes of a cell and their state.

    While the brake `lost` is on, the cell does not place the tasks of lost machines elsewhere. While `stops` is on, the
    cell does not stop tasks automatically.
    """
    return session.table(
        session.client.get(f"{session.cell_path(cell)}brakes/"),
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
    session: Context,
    kind: Kind,
    reason: Reason,
    seconds: Annotated[
        float, typer.Option(min=1, help="With the brake `stops`: seconds until the brake works again.")
    ] = 600.0,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Release a safety brake. The cell then continues with the actions that the brake has stopped."""
    _decide(session, cell, kind, "release", {"reason": reason, "seconds": seconds}, dry_run=dry_run)


@brake.command("keep")
def brake_keep(session: Context, kind: Kind, reason: Reason, cell: CellOption = None, dry_run: DryRun = False) -> None:
    """Keep a safety brake on. The cell continues with the actions that the brake has stopped only after the cause has
    ended.
    """
    _decide(session, cell, kind, "keep", {"reason": reason}, dry_run=dry_run)


@quarantine.command("list")
def quarantine_list(session: Context, cell: CellOption = None) -> None:
    """List the tasks that run on machines but are unknown to the cell."""
    rows = list(session.client.pages(f"{session.cell_path(cell)}quarantine/"))
    if session.json:
        return output.as_json(rows)
    return output.table(
        ("MACHINE", "TASK", "KEY", "SINCE", "DECIDED"),
        [
            (row["machine"], task["name"], task["key"], output.when(task["since"]), task["release"] or "not yet")
            for row in rows
            for task in row["tasks"]
        ],
        empty="No task is in quarantine.",
    )


@quarantine.command("stop")
def quarantine_stop(session: Context, tasks: QuarantinedTasks) -> None:
    """Stop quarantined tasks, which run on a machine but are unknown to the cell. Each task gets SIGTERM, and SIGKILL
    if it still runs after its notice period.
    """
    tasks.release(session, "stop")


@quarantine.command("keep")
def quarantine_keep(session: Context, tasks: QuarantinedTasks) -> None:
    """Let quarantined tasks, which are unknown to the cell, continue to run. The cell does not manage them."""
    tasks.release(session, "keep")


def _decide(session: Context, cell: str | None, kind: str, verb: str, body: dict[str, Any], *, dry_run: bool) -> None:
    answer = session.client.post(f"{session.cell_path(cell)}brakes/{part(kind)}:{verb}", body, dry_run=dry_run)
    return session.say(answer, f"Brake {kind} {would_be(dry_run)} {answer['state']}.")
