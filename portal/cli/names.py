"""Names: where tasks, jobs, services and machines are to be found (§2.6)."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from portal.cli import context, output
from portal.cli.client import part
from portal.cli.context import Context
from portal.cli.failure import CommandFailed, bad_usage

app = typer.Typer()

_HOST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@app.command()
def resolve(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="job, tenant/job, cell/tenant/job, each with /N; tenant/service/NAME; machine/HOST; or /bns/…"
        ),
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on: a line for each change, until Ctrl-C.")
    ] = False,
) -> int | None:
    """Addresses, ports, health, weight and load behind a name."""
    ours = context.of(ctx)
    path = _path(ours, name)
    if watch:
        from portal.cli import watching  # 50 ms that other commands need not wait for

        if path.split("/")[3] == "machine":
            raise bad_usage(
                f"{name!r} is a machine; jobs, tasks and services can be watched", watch="a machine"
            )
        return watching.run(ours, path)
    answer = ours.client.get(path)
    if ours.json:
        output.as_json(answer)
    elif "endpoints" not in answer and "index" not in answer:
        _machine(answer)
    else:
        _tasks(answer)
    return None


def _tasks(answer: dict[str, Any]) -> None:
    if answer.get("fail_open"):
        output.say("No task serves now; these are all that have an address.")
    output.table(
        ("NAME", "DNS", "ADDRESS", "PORTS", "SERVING", "HEALTH", "WEIGHT", "LOAD", "TTL", "STATE", "MACHINE"),
        [
            (
                row["name"], row["dns"], row["address"], _ports(row["ports"]), "yes" if row["serving"] else "no",
                row["health"], str(row["weight"]), output.share(row["load"]), f"{row['ttl_s']}s",
                row["phase"] or row["state"], row["machine"],
            )
            for row in answer.get("endpoints", [answer])
        ],
        empty="No task has an address now. `borgctl why` says why.",
    )  # fmt: skip


def _machine(answer: dict[str, Any]) -> None:
    output.table(
        ("NAME", "DNS", "ADDRESS", "TTL", "STATE"),
        [(answer["name"], answer["dns"], answer["address"], f"{answer['ttl_s']}s", answer["state"])],
        empty="",
    )


def _path(ours: Context, name: str) -> str:
    """Below the portal. Raises `CommandFailed`.

    `/bns/…` is whole. Of others the profile fills in the rest, and `service` or `machine` before the last segment says
    what it is.
    """
    whole = name.startswith("/bns/")
    segments = name.removeprefix("/bns/").strip("/").split("/")
    kind = segments[-2] if len(segments) > 1 else ""
    if kind == "machine" and len(segments) <= 3 and (len(segments) == 3 or not whole):
        cell = ours.cell(segments[0] if len(segments) == 3 else None)
        if not _HOST.fullmatch(segments[-1]):
            raise bad_usage(
                f"{segments[-1]!r} is no host name; `borgctl machines` lists them", machine="no host name"
            )
        return f"/bns/{part(cell)}/machine/{part(segments[-1])}/"
    if kind == "service" and (len(segments) == 4 or (len(segments) <= 3 and not whole)):
        return _service(ours, segments)
    job_name, index = context.split_index("/".join(segments))
    if whole and job_name.count("/") < 2:
        raise bad_usage(
            f"{name!r} is not whole: write /bns/cell/tenant/job, or leave /bns/ out", job="not whole"
        )
    job = ours.job(job_name)
    path = f"/bns/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}/"
    return f"{path}{index}/" if index is not None else path


def _service(ours: Context, segments: list[str]) -> str:
    cell = ours.cell(segments[0] if len(segments) == 4 else None)
    tenant = segments[-3] if len(segments) >= 3 else ours.profile.tenant
    if not tenant:
        raise CommandFailed(
            "no-tenant", f"whose service is {segments[-1]!r}? Write tenant/service/NAME.", status=2
        )
    names = [context.label(tenant, "tenant"), "service", context.label(segments[-1], "service")]
    return f"/bns/{part(cell)}/{'/'.join(map(part, names))}/"


def _ports(ports: dict[str, Any]) -> str:
    return ", ".join(f"{name}={port}" for name, port in ports.items())
