"""Draining machines: one, several, a rack, a power domain; and how far it has come."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.cells import machine, machine_path
from portal.cli.client import part
from portal.cli.context import CellOption, Confirm, Context, DryRun
from portal.cli.failure import CommandFailed, bad_usage

app = typer.Typer()

_LOOK_EVERY_S = 1.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)", re.ASCII)


@machine.command("drain")
def machine_drain(
    ctx: typer.Context,
    reason: Annotated[str, typer.Option(help="Why; others will ask.")],
    hostnames: Annotated[list[str] | None, typer.Argument(metavar="[MACHINE]...", help="Host names.")] = None,
    rack: Annotated[str | None, typer.Option(help="Instead of names: all of a rack.")] = None,
    power_domain: Annotated[str | None, typer.Option(help="Instead of names: all of a power domain.")] = None,
    deadline: Annotated[str | None, typer.Option(help="By when it should be empty: 90s, 30m, 2h.")] = None,
    break_budgets: Annotated[
        bool, typer.Option("--break-budgets", help="At the deadline, whatever jobs' budgets say.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until nothing is left, telling what is.")] = False,
    confirm: Confirm = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Send the tasks of machines elsewhere, within their jobs' budgets, and give them no new ones.

    With --wait, exit status 1 when the deadline has passed and tasks are left that budgets hold, and when a machine is
    down before it could tell that all is gone.
    """
    ours = context.of(ctx)
    names = hostnames or []
    if sum(map(bool, (names, rack, power_domain))) != 1:
        raise bad_usage(
            "which machines? Give names, --rack or --power-domain", machine="none or several ways"
        )
    body = {
        "reason": reason,
        "deadline_s": _seconds(deadline) if deadline is not None else None,
        "break_budgets": break_budgets,
        "confirm": confirm,
    }
    query = {"dry_run": "1"} if dry_run else {}
    if len(names) == 1:
        path = machine_path(ours, cell, names[0]).removesuffix("/")
        answer = ours.client.post(f"{path}:drain", body, **query)
        told = [(names[0], answer["state"])]
    else:
        chosen = {"machines": names} if names else {"rack": rack} if rack else {"power_domain": power_domain}
        path = f"/api/v1/cells/{part(ours.cell(cell))}/machines:drain"
        answer = ours.client.post(path, {**body, **chosen}, **query)
        told = [(row["machine"], row["state"]) for row in answer]
    if wait and not dry_run:
        return _wait(ours, cell, {name for name, _ in told})
    if ours.json:
        return output.as_json(answer)
    for name, state in told:
        output.say(f"{name} {'would be' if dry_run else 'is'} {state}.")
    return None


@app.command()
def drains(ctx: typer.Context, cell: CellOption = None) -> None:
    """Machines that drain, how many tasks are left there, and whose budget they wait for."""
    ours = context.of(ctx)
    rows = _progress(ours, cell)
    if ours.json:
        return output.as_json(rows)
    return output.table(
        ("MACHINE", "STATE", "LEFT", "OF", "LEAVING", "STOPPING", "WAITING FOR", "DEADLINE", "BY", "REASON"),
        [
            (
                row["machine"], row["state"], row["tasks_left"], row["tasks_at_beginning"], row["tasks_leaving"],
                row["tasks_stopping"], waiting(row), _deadline(row), row["asked_by"], row["reason"],
            )
            for row in rows
        ],
        empty="No machine drains.",
    )  # fmt: skip


def _progress(ours: Context, cell: str | None) -> list[dict[str, Any]]:
    return list(ours.client.pages(f"/api/v1/cells/{part(ours.cell(cell))}/drains/"))


def _wait(ours: Context, cell: str | None, wanted: set[str]) -> None:
    """Tell what changes until nothing is left on any of them. Raises `CommandFailed` once only budgets hold what is
    left, past the last deadline, or machines that are down."""
    last = ""
    while True:
        rows = [row for row in _progress(ours, cell) if row["machine"] in wanted]
        left = [row for row in rows if not row["done"]]
        told = _told(rows, left)
        if not left:
            return output.as_json(rows) if ours.json else output.say(told)
        if all(_stuck(row) for row in left):
            raise CommandFailed("deadline", f"the deadline has passed: {told}", document={"drains": rows})
        if all(_stuck(row) or _unheard(row) for row in left):
            down = wanted_text([row for row in left if _unheard(row)])
            why = f"{down}: down, so what still stops there shows when it is back: {told}"
            raise CommandFailed("machine-down", why, document={"drains": rows})
        if told != last and not ours.json:
            output.say(told)
        last = told
        time.sleep(_LOOK_EVERY_S)


def _told(rows: list[dict[str, Any]], left: list[dict[str, Any]]) -> str:
    if not left:
        gone = wanted_text(rows)
        return f"{gone}: no task is left."
    tasks = output.number(sum(row["tasks_left"] for row in left), "task")
    stopping = sum(row["tasks_stopping"] for row in left)
    waits = sorted({waiting(row) for row in left} - {""})
    return "; ".join(
        (
            f"{tasks} left on {wanted_text(left)}",
            *([f"waiting for {'; '.join(waits)}"] if waits else []),
            *([f"{stopping} more stopping"] if stopping else []),
        )
    )


def _stuck(row: dict[str, Any]) -> bool:
    """Only budgets hold it, beyond its deadline."""
    held = row["tasks_left"] and not row["tasks_leaving"]
    return bool(row["overdue"] and not row["break_budgets"] and held)


def _unheard(row: dict[str, Any]) -> bool:
    """Its tasks have places elsewhere, and nobody can say that they are gone there."""
    return bool(row["state"] == "down" and not row["tasks_left"] and row["tasks_stopping"])


def wanted_text(rows: list[dict[str, Any]]) -> str:
    names = [row["machine"] for row in rows]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} machines"


def waiting(row: dict[str, Any]) -> str:
    return ", ".join(
        f"{one['job']} ({one['down']} of {one['may']} down, {one['tasks']} here)" for one in row["waiting"]
    )


def _deadline(row: dict[str, Any]) -> str:
    if not row["deadline"]:
        return ""
    what = ", then budgets are broken" if row["break_budgets"] else ""
    return output.when(row["deadline"]) + (" (passed)" if row["overdue"] else what)


def _seconds(text: str) -> int:
    """`30m` in seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise bad_usage(f"--deadline {text!r}: write it like 90s, 30m, 2h or 1d", deadline="no duration")
    return int(match[1]) * _UNITS_S[match[2] or "s"]
