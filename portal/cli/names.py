"""Names: where a job's tasks are to be found (§2.6)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import Context
from portal.cli.failure import Failed

app = typer.Typer(no_args_is_help=True)


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
    output.table(
        ("NAME", "ADDRESS", "PORTS", "HEALTH", "MACHINE"),
        [
            (
                row.get("name", name), row.get("address") or "", _ports(row.get("ports") or {}),
                row.get("health") or row.get("state"), row.get("machine") or "",
            )
            for row in rows
        ],
        empty="No task has an address now. `borgctl why` says why.",
    )  # fmt: skip
    return None


def revision_of_zone(ours: Context, cell: str) -> int:
    """The revision of the cell that its names have followed to, as the resolver publishes it."""
    answer = ours.client.get(f"/bns/{part(cell)}/")
    return int(answer["revision"])


def _path(ours: Context, name: str) -> str:
    segments = name.removeprefix("/bns").strip("/").split("/")
    index = segments.pop() if len(segments) > 1 and segments[-1].isdigit() else None
    if not 1 <= len(segments) <= 3 or not all(segments):
        raise Failed("bad-name", f"{name!r} is no name: write /bns/cell/tenant/job/0, or just job", status=2)
    job = ours.job("/".join(segments))
    path = f"/bns/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}"
    return f"{path}/{index}" if index is not None else f"{path}/"


def _ports(ports: dict[str, Any]) -> str:
    return ", ".join(f"{name}={port}" for name, port in ports.items())
