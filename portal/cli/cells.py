"""Commands for cells and their machines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import CellOption, Context, DryRun
from portal.cli.failure import bad_usage
from portal.cli.output import quantity
from portal.cli.quota import Accelerators, Cpu, Disk, DiskBandwidth, Ram, sizes_given

app = typer.Typer()
machine = typer.Typer(help="One machine: show, drain, undrain, grow, rotate, revoke, join-token.")

Hostname = Annotated[str, typer.Argument(metavar="MACHINE", help="Host name of the machine.")]


@app.command()
def cells(ctx: typer.Context) -> None:
    """List all cells."""
    session = context.of(ctx)
    rows = list(session.client.pages("/api/v1/cells/"))
    return session.table(
        rows, {"CELL": "name", "CLUSTER": "cluster", "SITE": "site", "REVISION": "revision"}, empty="No cells."
    )


@app.command()
def machines(
    ctx: typer.Context,
    state: Annotated[
        str | None, typer.Option(help="List only machines in this state: up, draining, down or removed.")
    ] = None,
    cell: CellOption = None,
) -> None:
    """List the machines of a cell."""
    session = context.of(ctx)
    rows = list(session.client.pages(f"/api/v1/cells/{part(session.cell(cell))}/machines/", state=state))
    return session.table(
        rows,
        {
            "MACHINE": "hostname",
            "STATE": "state",
            "TASKS": "tasks_running",
            "ADDRESS": "address",
            "RACK": "rack",
            "PLATFORM": "platform",
            "CPU": lambda row: quantity("cpu", row["capacity"]["cpu"]),
            "RAM": lambda row: quantity("ram", row["capacity"]["ram"]),
            "REASON": "reason",
        },
        empty="No machines." if state else "No machines. Add one with `borgctl machine join-token`.",
    )


@machine.command("show")
def machine_show(ctx: typer.Context, hostname: Hostname, cell: CellOption = None) -> None:
    """Show all details of a machine."""
    session = context.of(ctx)
    answer = session.client.get(machine_path(session, cell, hostname))
    if session.json:
        return output.as_json(answer)
    shown = {
        **answer,
        "capacity": output.figures(answer["capacity"]),
        "attributes": ", ".join(f"{name}={value}" for name, value in answer["attributes"].items()),
        "quarantined": ", ".join(" ".join(map(str, task.values())) for task in answer["quarantined"]),
        "joined_at": output.when(answer["joined_at"]),
    }
    for name, value in shown.items():
        if value not in ("", None):
            output.say(f"{name:<14}{value}")
    return None


@machine.command("undrain")
def machine_undrain(
    ctx: typer.Context,
    hostname: Hostname,
    reason: Annotated[str, typer.Option(help="Reason.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Allow new tasks on a drained machine again."""
    _do(ctx, cell, hostname, "undrain", reason, "{host} {would} {state}.", dry_run=dry_run)


@machine.command("grow")
def machine_grow(
    ctx: typer.Context,
    hostname: Hostname,
    cpu: Cpu = None,
    ram: Ram = None,
    disk: Disk = None,
    disk_bandwidth: DiskBandwidth = None,
    accelerators: Accelerators = None,
    cell: CellOption = None,
) -> None:
    """Raise the capacity that the cell uses of a machine. Its attribute capacity.claimed holds what it reports."""
    session = context.of(ctx)
    capacity = sizes_given(cpu, ram, disk, disk_bandwidth, accelerators)
    if not capacity:
        raise bad_usage("no capacity is given: use --cpu, --ram, --disk …", capacity="not given")
    path = machine_path(session, cell, hostname).removesuffix("/")
    answer = session.client.post(f"{path}:grow", {"capacity": capacity})
    shown = output.figures(answer["capacity"])
    return session.say(answer, f"{hostname} now has the capacity {shown}.")


@machine.command("rotate")
def machine_rotate(
    ctx: typer.Context,
    hostname: Hostname,
    reason: Annotated[str, typer.Option(help="Reason.")] = "",
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Give a machine a new secret at its next poll. The old one ends once the machine has used the new one."""
    _do(ctx, cell, hostname, "rotate", reason, "{host} {would} given a new secret.", dry_run=dry_run)


@machine.command("revoke")
def machine_revoke(
    ctx: typer.Context,
    hostname: Hostname,
    reason: Annotated[str, typer.Option(help="Reason, shown to other people.")],
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Disconnect a machine at once: its secret ends, and its tasks are placed elsewhere."""
    message = "{host} {would} disconnected; it can join again with a new token."
    _do(ctx, cell, hostname, "revoke", reason, message, dry_run=dry_run)


@machine.command("join-token")
def machine_join_token(
    ctx: typer.Context,
    uses: Annotated[int, typer.Option(min=1, help="Number of machines that can join with it.")] = 1,
    ttl: Annotated[int, typer.Option(min=1, help="Seconds until it expires.")] = 3600,
    cell: CellOption = None,
) -> None:
    """Issue a token with which machines join the cell. It is shown only once."""
    session = context.of(ctx)
    path = f"/api/v1/cells/{part(session.cell(cell))}/join-tokens/"
    answer = session.client.post(path, {"uses": uses, "ttl_s": ttl})
    return session.say(answer, answer["token"])


def machine_path(session: Context, cell: str | None, hostname: str) -> str:
    """Return the path of a machine in the API. Raises `CommandFailed` if the host name is not possible."""
    if hostname in ("", ".", "..") or "/" in hostname:  # would lead to another path of the API
        raise bad_usage(
            f"{hostname!r} is not a host name; `borgctl machines` lists the machines", machine="not a host name"
        )
    return f"/api/v1/cells/{part(session.cell(cell))}/machines/{part(hostname)}/"


def _do(
    ctx: typer.Context, cell: str | None, hostname: str, verb: str, reason: str, message: str, *, dry_run: bool
) -> None:
    """Post an action and print `message`, with {host}, {would} and {state} filled in."""
    session = context.of(ctx)
    path = machine_path(session, cell, hostname).removesuffix("/")
    answer: dict[str, Any] = session.client.post(
        f"{path}:{verb}", {"reason": reason}, **({"dry_run": "1"} if dry_run else {})
    )
    would = "would be" if dry_run else "is"
    text = message.format(host=hostname, would=would, state=answer["state"])
    return session.say(answer, text)
