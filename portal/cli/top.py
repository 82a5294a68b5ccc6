"""`borgctl top`: the jobs that use most, live."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from portal.cli import output, screen
from portal.cli.context import CellOption, Commands, Context
from portal.cli.output import quantity

app = Commands()


class Sort(StrEnum):
    CPU = "cpu"
    RAM = "ram"
    DISK = "disk"


@app.command()
def top(
    session: Context,
    sort: Annotated[Sort, typer.Option(help="Show the jobs first that use most of this resource.")] = Sort.CPU,
    tenant: Annotated[str | None, typer.Option(help="Show only this tenant's jobs.")] = None,
    number: Annotated[int, typer.Option("--number", "-n", min=1, max=1000, help="Number of jobs to show.")] = 50,
    once: Annotated[bool, typer.Option("--once", help="Print the jobs once, and end.")] = False,
    cell: CellOption = None,
) -> None:
    """Show the jobs that use most CPU, RAM or disk, with their reservations and limits, until you press Ctrl-C.

    If standard output is not a terminal, print them once. The master measures every 5 s.
    """
    path = f"{session.cell_path(cell)}jobs:usage"

    def ask() -> dict[str, Any]:
        answer: dict[str, Any] = session.client.get(path, sort=sort.value, tenant=tenant, limit=number)
        return answer

    if session.json:
        return output.as_json(ask())
    if once or not sys.stdout.isatty():
        return _show(ask())
    return screen.watch(lambda: _show(ask()), json_wanted=False)


def _show(answer: dict[str, Any]) -> None:
    total = answer["total"]
    if answer["at"] is None:
        return output.say("No master has measured this cell in the last minute. `borgctl status` lists the jobs.")
    jobs, tasks = output.number(answer["jobs"], "job"), output.number(total["running"], "running task")
    output.say(f"{jobs}, {tasks}, {total['measured']} measured, {output.when(answer['at'])}")
    for name in ("cpu", "ram"):
        used, reserved, limit = (quantity(name, total[key][name]) for key in ("usage", "reservation", "limit"))
        output.say(f"  {name:<5}{used} used, {reserved} reserved, limits {limit}")
    return output.table(
        ("JOB", "BAND", "UP", "CPU USED", "RESERVED", "LIMIT", "RAM USED", "RESERVED", "LIMIT", "DISK USED"),
        [
            (
                f"{row['tenant']}/{row['name']}",
                row["band"],
                f"{row['tasks_up']}/{row['tasks_total']}",
                *(
                    quantity(name, row[key][name]) if key != "usage" or row["measured"] else "-"
                    for name, keys in _COLUMNS
                    for key in keys
                ),
            )
            for row in answer["results"]
        ],
        empty="No job that you can see runs in this cell.",
    )


_ALL = ("usage", "reservation", "limit")
_COLUMNS = (("cpu", _ALL), ("ram", _ALL), ("disk", ("usage",)))
