"""Commands that drain machines, racks or power domains, and a command that shows the progress of drains."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Any

import typer

from portal.cli import completions, output, periods
from portal.cli.cells import machine, machine_path, selected_machines
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, Yes
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import would_be

app = Commands()

_LOOK_EVERY_S = 1.0
MOST_MACHINES = 200
MachineSelector = Annotated[
    str | None,
    typer.Option(
        "--selector",
        "-l",
        help="All machines whose attributes match, for example 'rack in (r1,r2),flash=true'. See `borgctl machines`.",
    ),
]


@machine.command("drain")
def machine_drain(
    session: Context,
    reason: Annotated[str, typer.Option(help="Reason for the drain, shown to other people.")],
    hostnames: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MACHINE]...", help="Host names of the machines.", autocompletion=completions.machines),
    ] = None,
    rack: Annotated[str | None, typer.Option(help="Drain all machines of this rack.")] = None,
    power_domain: Annotated[str | None, typer.Option(help="Drain all machines of this power domain.")] = None,
    selector: MachineSelector = None,
    deadline: Annotated[
        str | None, typer.Option(help="Time after which the machines must be empty, such as 90s, 30m or 2h.")
    ] = None,
    break_budgets: Annotated[
        bool, typer.Option("--break-budgets", help="At the deadline, evict tasks despite disruption budgets.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the machines are empty. Print progress.")] = False,
    confirm: Confirm = None,
    cell: CellOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move all tasks of one or more machines elsewhere, within the disruption budgets of the tasks' jobs. The cell
    places no new tasks on the machines.

    With --wait, the exit status is 1 if disruption budgets still keep tasks on a machine at the deadline, or if a
    machine goes down before it reports that all its tasks have stopped.
    """
    names = hostnames or []
    if sum((bool(names), bool(rack), bool(power_domain), selector is not None)) != 1:
        raise bad_usage(
            "the machines are missing or chosen twice: give names, --rack, --power-domain or --selector",
            machine="give names, --rack, --power-domain or --selector",
        )
    if selector is not None:
        # The machines that the user has confirmed, and no others, are drained.
        names = machines_matching(session, cell, selector, "Drain", sure=yes or dry_run)
    body = {
        "reason": reason,
        "deadline_s": _seconds(deadline) if deadline is not None else None,
        "break_budgets": break_budgets,
        "confirm": confirm,
    }
    if len(names) == 1:
        answer = session.client.post(machine_path(session, cell, names[0], "drain"), body, dry_run=dry_run)
        states = [(names[0], answer["state"])]
    else:
        chosen = {"machines": names} if names else {"rack": rack} if rack else {"power_domain": power_domain}
        path = f"{session.cell_path(cell)}machines:drain"
        answer = session.client.post(path, {**body, **chosen}, dry_run=dry_run)
        states = [(row["machine"], row["state"]) for row in answer]
    if wait and not dry_run:
        return _wait(session, cell, {name for name, _ in states})
    if session.json:
        return output.as_json(answer)
    for name, state in states:
        output.say(f"{name} {would_be(dry_run)} {state}.")
    return None


@machine.command("undrain")
def machine_undrain(
    session: Context,
    hostname: Annotated[
        str | None,
        typer.Argument(metavar="[MACHINE]", help="Host name of the machine.", autocompletion=completions.machines),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason for the action, recorded in the journal.")] = "",
    selector: MachineSelector = None,
    cell: CellOption = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Allow new tasks on a drained machine again."""
    if (hostname is None) == (selector is None):
        raise bad_usage("give either a MACHINE or --selector", machine="one of MACHINE and --selector is needed")
    if hostname is not None:
        answer = session.client.post(
            machine_path(session, cell, hostname, "undrain"), {"reason": reason}, dry_run=dry_run
        )
        return session.say(answer, f"{hostname} {would_be(dry_run)} {answer['state']}.")
    answers, problems = [], {}
    # A machine that is down may have a drain, too.
    draining = {row["machine"] for row in _progress(session, cell)}
    for name in machines_matching(session, cell, str(selector), "Undrain", sure=yes or dry_run, among=draining):
        try:
            path = machine_path(session, cell, name, "undrain")
            answers.append(session.client.post(path, {"reason": reason}, dry_run=dry_run))
        except CommandFailed as failed:
            problems[name] = failed.detail
            continue
        if not session.json:
            output.say(f"{name} {would_be(dry_run)} {answers[-1]['state']}.")
    if problems:
        detail = f"{output.number(len(problems), 'machine')} could not be changed; repeat the command for them"
        document = {"code": "not-all-changed", "detail": detail, "fields": problems, "changed": answers}
        raise CommandFailed("not-all-changed", detail, fields=problems, document=document)
    return output.as_json(answers) if session.json else None


def machines_matching(
    session: Context, cell: str | None, selector: str, verb: str, *, sure: bool, among: Collection[str] | None = None
) -> list[str]:
    """Return the host names of the machines whose attributes match a selector, after the user has confirmed them.
    `verb`: for the question. `sure`: do not ask it. `among`: leave other machines out.

    Raises `CommandFailed` if the selector is empty, or if it matches no machine or more than `MOST_MACHINES`.
    """
    if not selector.strip():
        raise bad_usage("the selector is empty, which would match all machines; give a condition", selector="is empty")
    rows = [row for row in selected_machines(session, cell, selector) if among is None or row["hostname"] in among]
    if not 1 <= len(rows) <= MOST_MACHINES:
        number = f"more than {MOST_MACHINES}" if rows else "no"
        detail = (
            f"{number} machines match {selector!r}; see `borgctl machines -l {selector!r}`, and change the selector"
        )
        raise CommandFailed("no-match" if not rows else "too-many-machines", detail, fields={"selector": detail})
    names = [row["hostname"] for row in rows]
    if not sure:
        output.sure(f"{verb} {output.number(len(names), 'machine')} ({', '.join(names)})?")
    return names


@app.command(watch=True)
def drains(session: Context, cell: CellOption = None) -> None:
    """List the draining machines and their remaining tasks. The list also names the jobs whose disruption budgets delay
    the eviction of tasks.
    """
    return session.table(
        _progress(session, cell),
        {
            "MACHINE": "machine",
            "STATE": "state",
            "LEFT": "tasks_left",
            "OF": "tasks_at_beginning",
            "MOVING": "tasks_leaving",
            "STAYING": "tasks_staying",
            "STOPPING": "tasks_stopping",
            "WAITING FOR": waiting,
            "DEADLINE": _deadline,
            "BY": "asked_by",
            "REASON": "reason",
        },
        empty="No machine is draining.",
    )


def _progress(session: Context, cell: str | None) -> list[dict[str, Any]]:
    return list(session.client.pages(f"{session.cell_path(cell)}drains/"))


def _wait(session: Context, cell: str | None, wanted: set[str]) -> None:
    """Wait until no task is left on the machines `wanted`. Print the progress each time it changes.

    Raises `CommandFailed` if waiting longer does not help: for each machine with tasks, the machine is down, or the
    deadline has passed and only disruption budgets prevent the eviction.
    """
    last = ""
    while True:
        rows = [row for row in _progress(session, cell) if row["machine"] in wanted]
        left = [row for row in rows if not row["done"]]
        summary = _format_progress(rows, left)
        if not left:
            return session.say(rows, summary)
        if all(_stuck(row) for row in left):
            raise CommandFailed(
                "deadline",
                f"the deadline has passed: {summary}; drain again with --break-budgets or a later --deadline",
                document={"drains": rows},
            )
        if all(_stuck(row) or _unreachable(row) for row in left):
            down = format_machines([row for row in left if _unreachable(row)])
            why = (
                f"cannot finish the drain: {down} is down and cannot report that its tasks have stopped: {summary}; "
                "start its Borglet again, and repeat the command"
            )
            raise CommandFailed("machine-down", why, document={"drains": rows})
        if summary != last and not session.json:
            output.say(summary)
        last = summary
        time.sleep(_LOOK_EVERY_S)


def _format_progress(rows: list[dict[str, Any]], left: list[dict[str, Any]]) -> str:
    if not left:
        return f"{format_machines(rows)}: no task is left."
    tasks = output.number(sum(row["tasks_left"] for row in left), "task")
    stopping = sum(row["tasks_stopping"] for row in left)
    waits = sorted({waiting(row) for row in left} - {""})
    return "; ".join(
        (
            f"{tasks} left on {format_machines(left)}",
            *([f"waiting for {'; '.join(waits)}"] if waits else []),
            *([f"{stopping} more stopping"] if stopping else []),
        )
    )


def _stuck(row: dict[str, Any]) -> bool:
    """Return whether the deadline of a draining machine has passed, and only disruption budgets prevent the eviction of
    its tasks.
    """
    held = row["tasks_left"] and not row["tasks_leaving"]
    return bool(row["overdue"] and not row["break_budgets"] and held)


def _unreachable(row: dict[str, Any]) -> bool:
    """Return whether the machine is down, and has not reported that the last tasks evicted from it have stopped."""
    return bool(row["state"] == "down" and not row["tasks_left"] and row["tasks_stopping"])


def format_machines(rows: list[dict[str, Any]]) -> str:
    names = [row["machine"] for row in rows]
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} machines"


def waiting(row: dict[str, Any]) -> str:
    return ", ".join(f"{one['job']} ({_used(one)}, {one['tasks']} here)" for one in row["waiting"])


def _used(one: dict[str, Any]) -> str:
    """Return what of the disruption budget of a job is used up."""
    rate = one.get("rate")  # older portals do not send it
    if rate is None and one["down"] < one["may"]:
        return "its disruption budget is used up"
    if rate is None or rate["left"] >= one["needs"]:
        return f"{one['down']} of {one['may']} down"
    counted = f"{rate['counted']} of {rate['most']} disruptions within {periods.format_window(rate['window_s'])}"
    if rate["next_at"] is None:
        return f"{counted}, {one['needs']} tasks leave together"
    return f"{counted}, next {output.when(rate['next_at'])}"


def _deadline(row: dict[str, Any]) -> str:
    if not row["deadline"]:
        return ""
    what = ", then tasks are evicted regardless of disruption budgets" if row["break_budgets"] else ""
    return output.when(row["deadline"]) + (" (passed)" if row["overdue"] else what)


def _seconds(text: str) -> int:
    """Return the number of seconds in a duration such as `30m`. A number without a unit means seconds. Raises
    `CommandFailed` if `text` is not a duration.
    """
    seconds = periods.duration_s(text if text[-1:].isalpha() else f"{text}s")
    if seconds is None:
        raise bad_usage(f"--deadline {text!r} is not a duration: write 90s, 30m, 2h or 1d", deadline="not a duration")
    return seconds
