"""Names: where a job's tasks are to be found (§2.6)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import Context

app = typer.Typer()


@app.command()
def resolve(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="job, tenant/job, cell/tenant/job, each with /N, or /bns/…")],
) -> None:
    """Addresses, ports and health behind a name."""
    ours = context.of(ctx)
    answer = ours.client.get(_path(ours, name))
    if ours.json:
        return output.as_json(answer)
    rows = answer.get("endpoints", [answer])
    if answer.get("fail_open"):
        output.say("No task serves now; these are all that have an address.")
    return output.table(
        ("NAME", "DNS", "ADDRESS", "PORTS", "SERVING", "HEALTH", "STATE", "MACHINE"),
        [
            (
                row["name"], row["dns"], row["address"], _ports(row["ports"]), "yes" if row["serving"] else "no",
                row["health"], row["phase"] or row["state"], row["machine"],
            )
            for row in rows
        ],
        empty="No task has an address now. `borgctl why` says why.",
    )  # fmt: skip


def revision_of_zone(ours: Context, cell: str) -> int:
    """The revision of the cell that its names have followed to, as the resolver publishes it."""
    return int(ours.client.get(f"/bns/{part(cell)}/")["revision"])


def _path(ours: Context, name: str) -> str:
    job_name, index = context.split_index(name.removeprefix("/bns/").strip("/"))
    job = ours.job(job_name)
    path = f"/bns/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}"
    return f"{path}/{index}" if index is not None else f"{path}/"


def _ports(ports: dict[str, Any]) -> str:
    return ", ".join(f"{name}={port}" for name, port in ports.items())
