"""The command `borgctl resolve`, which shows the addresses behind the name of a task, job, service or machine
(§2.6).
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, label, split_index
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.paths import part

app = Commands()

_HOST = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@app.command()
def resolve(
    session: Context,
    name: Annotated[
        str,
        typer.Argument(
            help="Name to resolve: [cell/]tenant/job, JOB/N, tenant/service/NAME, machine/HOST or /bns/PATH."
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", help="Print one line per change, until you press Ctrl-C.")] = False,
) -> int | None:
    """Show the address of the machine, or of each task, that a name stands for. For tasks, also show ports, health,
    weight and load.
    """
    path = _path(session, name)
    if watch:
        from portal.cli import resolve_watch  # takes 50 ms, so other commands do not import it

        if path.split("/")[3] == "machine":
            raise bad_usage(
                f"{name!r} is a machine; use --watch only for a job, task or service",
                watch="use --watch only for a job, task or service",
            )
        return resolve_watch.run(session, path)
    answer = session.client.get(path)
    if session.json:
        output.as_json(answer)
    elif "endpoints" not in answer and "index" not in answer:
        shown = [answer["name"], answer["dns"], answer["address"], f"{answer['ttl_s']}s", answer["state"]]
        output.table(("NAME", "DNS", "ADDRESS", "TTL", "STATE"), [shown], empty="")
    else:
        _tasks(answer)
    return None


def _tasks(answer: dict[str, Any]) -> None:
    if answer.get("fail_open"):
        output.say("No task is serving. The list shows all tasks that have an address.")
    output.table(
        ("NAME", "DNS", "ADDRESS", "PORTS", "SERVING", "HEALTH", "WEIGHT", "LOAD", "TTL", "STATE", "MACHINE"),
        [
            (
                row["name"],
                row["dns"],
                row["address"],
                _ports(row["ports"]),
                "yes" if row["serving"] else "no",
                row["health"],
                str(row["weight"]),
                output.share(row["load"]),
                f"{row['ttl_s']}s",
                row["phase"] or row["state"],
                row["machine"],
            )
            for row in answer.get("endpoints", [answer])
        ],
        empty="No task has an address now. `borgctl why` explains why.",
    )


def _path(session: Context, name: str) -> str:
    """Return the URL path of a name. Raises `CommandFailed` if the name is not complete or not valid.

    A name that begins with `/bns/` is complete. For other names, missing parts come from the profile. In `service/NAME`
    and `machine/HOST`, the last part is the name of a service or a machine.
    """
    whole = name.startswith("/bns/")
    segments = name.removeprefix("/bns/").strip("/").split("/")
    kind = segments[-2] if len(segments) > 1 else ""
    if kind == "machine" and len(segments) <= 3 and (len(segments) == 3 or not whole):
        cell = session.cell(segments[0] if len(segments) == 3 else None)
        if not _HOST.fullmatch(segments[-1]):
            raise bad_usage(f"{segments[-1]!r} is not a host name; see `borgctl machines`", machine="not a host name")
        return f"/bns/{part(cell)}/machine/{part(segments[-1])}/"
    if kind == "service" and (len(segments) == 4 or (len(segments) <= 3 and not whole)):
        return _service(session, segments)
    job_name, index = split_index("/".join(segments))
    if whole and job_name.count("/") < 2:
        raise bad_usage(f"{name!r} is not complete: write /bns/cell/tenant/job, or omit /bns/", job="not complete")
    job = session.job(job_name)
    path = f"/bns/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}/"
    return f"{path}{index}/" if index is not None else path


def _service(session: Context, segments: list[str]) -> str:
    cell = session.cell(segments[0] if len(segments) == 4 else None)
    tenant = segments[-3] if len(segments) >= 3 else session.profile.tenant
    if not tenant:
        problem = f"no tenant is given for service {segments[-1]!r}: write tenant/service/NAME."
        raise CommandFailed("no-tenant", problem, status=2)
    names = [label(tenant, "tenant"), "service", label(segments[-1], "service")]
    return f"/bns/{part(cell)}/{'/'.join(map(part, names))}/"


def _ports(ports: dict[str, Any]) -> str:
    return ", ".join(f"{name}={port}" for name, port in ports.items())
