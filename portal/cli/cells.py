"""Cells, their machines, and the tenant's quota."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part

app = typer.Typer(no_args_is_help=True)
machine = typer.Typer(no_args_is_help=True, help="One machine: show, drain, undrain, join-token.")
quota = typer.Typer(no_args_is_help=True, help="What the tenant may ask for.")


@app.command()
def cells(ctx: typer.Context) -> None:
    """All cells."""
    ours = context.of(ctx)
    rows = list(ours.client.pages("/api/v1/cells/"))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("CELL", "CLUSTER", "SITE", "REVISION"),
        [(row["name"], row["cluster"], row["site"], row["revision"]) for row in rows],
        empty="No cells.",
    )
    return None


@app.command()
def machines(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="up, draining, down or removed.")] = None,
    cell: Annotated[str | None, typer.Option(help="Another cell than the profile's.")] = None,
) -> None:
    """The machines of a cell."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(f"/api/v1/cells/{part(ours.cell(cell))}/machines/", state=state))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("MACHINE", "STATE", "ADDRESS", "RACK", "PLATFORM", "CPU", "RAM", "REASON"),
        [
            (
                row["hostname"], row["state"], row["address"], row["rack"], row["platform"],
                quantity("cpu", row["capacity"]["cpu"]), quantity("ram", row["capacity"]["ram"]), row["reason"],
            )
            for row in rows
        ],
        empty="No machines. Let one join with `borgctl machine join-token`.",
    )  # fmt: skip
    return None


@machine.command("show")
def machine_show(ctx: typer.Context, hostname: str) -> None:
    """All that is known of a machine."""
    ours = context.of(ctx)
    answer = ours.client.get(_machine(ours, hostname))
    if ours.json:
        return output.as_json(answer)
    for name, value in answer.items():
        output.say(f"{name:<14}{value}")
    return None


@machine.command("drain")
def machine_drain(
    ctx: typer.Context, hostname: str, reason: Annotated[str, typer.Option(help="Why; others will ask.")]
) -> None:
    """Send the tasks of a machine elsewhere and give it no new ones."""
    _say_state(ctx, hostname, "drain", {"reason": reason})


@machine.command("undrain")
def machine_undrain(ctx: typer.Context, hostname: str) -> None:
    """Let a drained machine have tasks again."""
    _say_state(ctx, hostname, "undrain", {})


@machine.command("join-token")
def machine_join_token(
    ctx: typer.Context,
    uses: Annotated[int, typer.Option(help="How many machines may join with it.")] = 1,
    ttl: Annotated[int, typer.Option(help="Seconds until it expires.")] = 3600,
) -> None:
    """A token with which machines join the cell. Shown this once."""
    ours = context.of(ctx)
    answer = ours.client.post(f"/api/v1/cells/{part(ours.cell())}/join-tokens/", {"uses": uses, "ttl_s": ttl})
    return output.as_json(answer) if ours.json else output.say(answer["token"])


@quota.command("list")
def quota_list(ctx: typer.Context) -> None:
    """Granted and in use, by cell and band."""
    ours = context.of(ctx)
    rows = ours.client.get("/api/v1/quota/")
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("TENANT", "CELL", "BAND", "RESOURCE", "IN USE", "GRANTED"),
        [
            (
                row["tenant"],
                row["cell"],
                row["band"],
                name,
                quantity(name, row["used"][name]),
                quantity(name, most),
            )
            for row in rows
            for name, most in row["granted"].items()
            if most
        ],
        empty="No quota. Priority 0 is free; for more, ask an SRE.",
    )
    return None


def quantity(name: str, value: int) -> str:
    """A quantity of the axis for people."""
    if name in ("cpu", "accelerators"):
        return f"{value / 1000:g}"
    if name in ("ram", "disk", "disk_bandwidth"):
        for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
            if value >= size:
                return f"{value / size:.4g} {unit}"
    return str(value)


def _machine(ours: Any, hostname: str) -> str:
    return f"/api/v1/cells/{part(ours.cell())}/machines/{part(hostname)}/"


def _say_state(ctx: typer.Context, hostname: str, verb: str, body: dict[str, str]) -> None:
    ours = context.of(ctx)
    answer = ours.client.post(f"{_machine(ours, hostname).rstrip('/')}:{verb}", body)
    if ours.json:
        return output.as_json(answer)
    output.say(f"{hostname} is {answer['state']}.")
    return None
