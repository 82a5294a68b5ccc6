"""Commands of the maintenance calendar: windows in which machines, racks or power domains have to be empty."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from portal.cli import completions, output, periods
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun
from portal.cli.failure import bad_usage

maintenance = Commands(help="Maintenance calendar: write windows of machines, racks or power domains, and follow them.")

Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Number of the window, as `maintenance list` prints it.")]
Begin = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Start: 2027-01-31T08:00+01:00, or 2027-01-31T08:00.")
]
Zone = Annotated[str, typer.Option("--time-zone", help="Time zone of times without an offset, such as Europe/Berlin.")]
Machines = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MACHINE]...", help="Host names of the machines.", autocompletion=completions.machines),
]
Rack = Annotated[str | None, typer.Option(help="All machines of this rack.")]
PowerDomain = Annotated[str | None, typer.Option(help="All machines of this power domain.")]
Lead = Annotated[str | None, typer.Option(help="Drain so long before the start, such as 30m or 2h.")]
BreakBudgets = Annotated[
    bool | None,
    typer.Option("--break-budgets/--keep-budgets", help="At the start, evict tasks despite disruption budgets."),
]
_SHOWN = 10


@maintenance.command("add")
def maintenance_add(
    session: Context,
    reason: Annotated[str, typer.Option(help="Reason, shown to other people.")],
    until: Annotated[str, typer.Option(metavar="TIME", help="End of the window.")],
    hostnames: Machines = None,
    rack: Rack = None,
    power_domain: PowerDomain = None,
    begin: Begin = None,
    zone: Zone = "UTC",
    lead: Lead = None,
    break_budgets: BreakBudgets = None,
    confirm: Confirm = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Write a maintenance window, from now on or from --from on. With --dry-run, show what would have to move.

    The scheduler starts no task on the machines that the window would interrupt, and prefers other machines for tasks
    without a time limit. The machines are drained within disruption budgets, as early as these budgets need, or as
    --lead requires. At the end, they receive tasks again.
    """
    names = hostnames or []
    if sum(map(bool, (names, rack, power_domain))) != 1:
        what = "the machines are missing or chosen twice: give names, --rack or --power-domain"
        raise bad_usage(what, machines="give names, --rack or --power-domain")
    body = {"reason": reason, **_fields(names, rack, power_domain, begin, until, zone, lead, break_budgets, confirm)}
    answer = session.client.post(f"{session.cell_path(cell)}maintenance/", body, dry_run=dry_run)
    if session.json:
        return output.as_json(answer)
    _show(answer)
    if dry_run:
        output.say("This is a preview. Without --dry-run, the window is written.")
    return None


@maintenance.command("list")
def maintenance_list(
    session: Context,
    everything: Annotated[bool, typer.Option("--all", help="Also windows that have ended or were cancelled.")] = False,
    cell: CellOption = None,
) -> None:
    """List the running and coming maintenance windows of a cell."""
    wanted: dict[str, Any] = {} if everything else {"state": "planned,draining"}
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}maintenance/", **wanted),
        {
            "NUMBER": "id",
            "STATE": _state,
            "MACHINES": _scope,
            "FROM": lambda row: output.when(row["starts_at"]),
            "UNTIL": lambda row: output.when(row["ends_at"]),
            "NOT EMPTY": lambda row: f"{row['busy']} of {row['covered']}" if row["covered"] else "",
            "TASKS": "tasks",
            "BY": "asked_by",
            "REASON": "reason",
        },
        empty="No maintenance window.",
    )


@maintenance.command("show")
def maintenance_show(session: Context, number: Number, cell: CellOption = None) -> None:
    """Show a maintenance window: what has to move, which disruption budgets bind, and its progress."""
    answer = session.client.get(_path(session, cell, number))
    if session.json:
        return output.as_json(answer)
    return _show(answer)


@maintenance.command("change")
def maintenance_change(
    session: Context,
    number: Number,
    reason: Annotated[str | None, typer.Option(help="Reason, shown to other people.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End of the window.")] = None,
    hostnames: Machines = None,
    rack: Rack = None,
    power_domain: PowerDomain = None,
    begin: Begin = None,
    zone: Zone = "UTC",
    lead: Lead = None,
    break_budgets: BreakBudgets = None,
    confirm: Confirm = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Change a maintenance window. When its drains have begun, only --until and --reason can be changed."""
    body = _fields(hostnames or [], rack, power_domain, begin, until, zone, lead, break_budgets, confirm)
    body |= {} if reason is None else {"reason": reason}
    if not body:
        raise bad_usage("nothing to change: give an option such as --until", until="give something to change")
    answer = session.client.patch(_path(session, cell, number), body, dry_run=dry_run)
    if session.json:
        return output.as_json(answer)
    _show(answer)
    if dry_run:
        output.say("This is a preview. Without --dry-run, the window is changed.")
    return None


@maintenance.command("cancel")
def maintenance_cancel(
    session: Context,
    number: Number,
    reason: Annotated[str, typer.Option(help="Reason, shown to other people.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Cancel a maintenance window, also while it runs. Its machines receive tasks again."""
    path = _path(session, cell, number).rstrip("/")
    answer = session.client.post(f"{path}:cancel", {"reason": reason}, dry_run=dry_run)
    return session.say(answer, f"Maintenance window {number} {output.would_be(dry_run)} cancelled.")


def _fields(
    names: list[str],
    rack: str | None,
    power_domain: str | None,
    begin: str | None,
    until: str | None,
    zone: str,
    lead: str | None,
    break_budgets: bool | None,
    confirm: int | None,
) -> dict[str, Any]:
    """Return the fields of a request for the options that were given."""
    given: dict[str, Any] = {
        "machines": names or None,
        "rack": rack,
        "power_domain": power_domain,
        "starts_at": _moment("from", begin, zone),
        "ends_at": _moment("until", until, zone),
        "lead_s": _seconds(lead),
        "break_budgets": break_budgets,
        "confirm": confirm,
    }
    return {name: value for name, value in given.items() if value is not None}


def _moment(name: str, text: str | None, zone: str) -> str | None:
    """Return the time in an option, with its offset. Raises `CommandFailed` if it is not a time."""
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        cure = "write a time like 2027-01-31T08:00, with --time-zone, or like 2027-01-31T08:00+01:00"
        raise bad_usage(f"--{name} {text!r} is not a time: {cure}", **{name: "not a time"}) from None
    if moment.tzinfo is not None:
        return moment.isoformat()
    local = moment.replace(tzinfo=periods.zone(zone))
    there = local.astimezone(dt.UTC).astimezone(local.tzinfo).replace(tzinfo=None)
    if there != moment or local.utcoffset() != local.replace(fold=1).utcoffset():
        what = "occurs twice" if there == moment else "does not exist"
        cure = "write the offset, like 2027-10-31T02:30+02:00"
        raise bad_usage(f"--{name} {text!r} {what} in {zone}, because clocks change: {cure}", **{name: what})
    return local.isoformat()


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    seconds = periods.duration_s(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None:
        raise bad_usage(f"--lead {text!r} is not a duration: write 90s, 30m, 2h or 1d", lead="not a duration")
    return seconds


def _path(session: Context, cell: str | None, number: int) -> str:
    return f"{session.cell_path(cell)}maintenance/{number}/"


def _state(row: dict[str, Any]) -> str:
    return f"{row['state']} (not empty)" if row["overdue"] else str(row["state"])


def _scope(row: dict[str, Any]) -> str:
    if row["rack"]:
        return f"rack {row['rack']}"
    if row["power_domain"]:
        return f"power domain {row['power_domain']}"
    names = row["machines"]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} machines"


def _show(row: dict[str, Any]) -> None:
    output.say(f"Maintenance window {row['id']} is {_state(row)}: {row['reason']}")
    preview = row["preview"] or {}
    output.details(
        (
            ("machines", f"{_scope(row)} ({output.number(row['covered'], 'machine')} now, {row['busy']} not empty)"),
            ("from", output.when(row["starts_at"])),
            ("until", output.when(row["ends_at"])),
            ("drains begin", output.when(preview["drains_at"]) if preview else ""),
            ("tasks", f"{preview['tasks']}, of which {preview['leaving']} have to move" if preview else ""),
            ("waiting for", ", ".join(row["waiting"])),
            ("detail", row["detail"]),
        )
    )
    jobs = preview.get("jobs", [])
    for job in jobs[:_SHOWN]:
        down = f", {job['down']} are down" if job["down"] else ""
        text = f"  {job['job']}: {output.number(job['tasks'], 'task')} to move, {job['may']} may be down at once{down}"
        output.say(f"{text}; needs about {job['needs_s']:.0f} s")
    if len(jobs) > _SHOWN:
        output.say(f"  … and {output.number(len(jobs) - _SHOWN, 'more job')}; --json shows all")
