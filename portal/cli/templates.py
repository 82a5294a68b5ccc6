"""Commands for templates, which are jobs with parameters: create, list, show, delete, dispatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from portal.cli import completions, jobfile, output
from portal.cli.context import CellOption, Commands, Context, DryRun, IfRevision, JobReference
from portal.cli.failure import bad_usage
from portal.cli.jobs import File, body_of, target_of
from portal.cli.output import would_be
from portal.cli.paths import part

template = Commands(help="Templates, which are jobs with parameters: create, list, show, delete, dispatch.")

KIND = "Template"

Name = Annotated[
    str,
    typer.Argument(
        metavar="TEMPLATE",
        help="Name of the template: cell/tenant/name, tenant/name or name.",
        autocompletion=completions.templates,
    ),
]


@dataclass(frozen=True)
class TemplateReference(JobReference):
    """The full name of a template."""

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/templates/{part(self.tenant)}/{part(self.name)}/"


def named(session: Context, name: str) -> TemplateReference:
    job = session.job(name)
    return TemplateReference(job.cell, job.tenant, job.name)


@template.command()
def create(session: Context, file: File, dry_run: DryRun = False) -> None:
    """Create the template in FILE (`kind: Template`), or change it. Each change is a new version."""
    spec = jobfile.read(file)
    job = target_of(session, spec)
    one = TemplateReference(job.cell, job.tenant, job.name)
    answer = session.client.put(one.path, body_of(spec, one), dry_run=dry_run)
    words = {"submitted": "created", "updated": "changed", "unchanged": "unchanged"}
    text = f"Template {one}, version {answer['version']}: {words[answer['outcome']]}."
    return session.say(answer, f"{'Dry run: ' if dry_run else ''}{text}")


@template.command("list")
def list_(
    session: Context,
    cell: CellOption = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's templates.")] = None,
) -> None:
    """List the templates that you can see."""
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}templates/", tenant=tenant),
        {
            "TEMPLATE": lambda row: f"{row['cell']}/{row['tenant']}/{row['name']}",
            "VERSION": "version",
            "CHANGED": lambda row: output.when(row["changed_at"]),
            "BY": "changed_by",
            "DESCRIPTION": "description",
        },
        empty="No templates. Create one with `borgctl template create FILE`, with `kind: Template` in the file.",
    )


@template.command()
def show(
    session: Context,
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="An earlier version. Default: the newest one.")] = None,
) -> None:
    """Show a template and its parameters."""
    answer = session.client.get(named(session, name).path, version=version)
    if session.json:
        return output.as_json(answer)
    output.say(f"{answer['cell']}/{answer['tenant']}/{answer['name']}  version {answer['version']}")
    if answer["description"]:
        output.say(f"  {answer['description']}")
    required = answer["parameters"].get("required", [])
    rows = [
        (key, one["type"], _default(one, key in required), one.get("description") or one.get("title") or "")
        for key, one in answer["parameters"]["properties"].items()
    ]
    return output.table(["PARAMETER", "TYPE", "DEFAULT", "DESCRIPTION"], rows, empty="It has no parameters.")


@template.command()
def delete(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Delete a template. The jobs that were submitted from it stay."""
    one = named(session, name)
    session.delete(one.path, f"Template {one}", "deleted", dry_run=dry_run)


@template.command()
def dispatch(
    session: Context,
    name: Name,
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="An argument, as NAME=VALUE. Repeat for more.")
    ] = None,
    suffix: Annotated[str, typer.Option(help="End of the job's name. Default: the next number.")] = "",
    if_revision: IfRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Submit a job from a template with arguments."""
    given: dict[str, str] = {}
    for one in parameter or ():
        key, equals, value = one.partition("=")
        if not equals:
            raise bad_usage(f"-p {one}: write NAME=VALUE", parameter="has no =")
        if key in given:
            raise bad_usage(f"-p {one}: {key} is given twice; give it once", parameter="is given twice")
        given[key] = value
    reference = named(session, name)
    body = {"parameters": given, "suffix": suffix}
    answer = session.client.submit(f"{reference.path}dispatch/", body, if_revision=if_revision, dry_run=dry_run)
    text = f"Job {answer['job']} {would_be(dry_run)} submitted."
    if answer["outcome"] == "unchanged":
        text = f"Job {answer['job']} is already live with these arguments, so nothing is submitted."
    return session.say(answer, text)


@template.command()
def dispatched(
    session: Context,
    name: Name,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, such as resize-3.")],
) -> None:
    """Show the state of a job that was dispatched from a template. A token that may only dispatch can read the jobs
    that it has dispatched itself.
    """
    answer = session.client.get(f"{named(session, name).path}dispatched/{part(job)}/")
    counts = f"{answer['tasks_up']} of {output.number(answer['tasks_total'], 'task')} running"
    return session.say(answer, f"{answer['name']}  {answer['outcome'] or answer['health']}  ({counts})")


def _default(parameter: dict[str, Any], required: bool) -> str:
    default = parameter.get("default")
    if required or default is None:
        return "required"
    return str(default).lower() if isinstance(default, bool) else str(default)
