"""Commands for workflows: submit, list, show, pause, resume, cancel and retry. `borgctl submit` submits them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, JobReference
from portal.cli.failure import CommandFailed
from portal.cli.output import would_be
from portal.cli.paths import part

workflow = Commands(help="Workflows, which are graphs of jobs: list, show, pause, resume, cancel, retry.")
KIND = "Workflow"
_MOST_SHOWN = 100  # nodes that `show` prints; `--json` prints all of them

Name = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW",
        help="Name of the workflow: cell/tenant/name, tenant/name or name.",
        autocompletion=completions.workflows,
    ),
]


@dataclass(frozen=True)
class WorkflowReference(JobReference):
    """The full name of a workflow."""

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/workflows/{part(self.tenant)}/{part(self.name)}/"


def named(session: Context, name: str) -> WorkflowReference:
    job = session.job(name)
    return WorkflowReference(job.cell, job.tenant, job.name)


def submit_workflow(session: Context, job: JobReference, body: dict[str, Any], *, dry_run: bool) -> None:
    """Submit the workflow of a job file, and print the answer."""
    workflow_name = WorkflowReference(job.cell, job.tenant, job.name)
    answer = session.client.put_once(workflow_name.path, body, dry_run=dry_run)
    session.say(answer, f"{'Dry run: ' if dry_run else ''}{answer['sentence']}")


def plan_workflow(session: Context, job: JobReference, body: dict[str, Any]) -> dict[str, Any]:
    """Return what submitting the file of a workflow would do. Raises `CommandFailed` if it would be rejected."""
    path = WorkflowReference(job.cell, job.tenant, job.name).path
    answer: dict[str, Any] = session.client.post(f"{path}plan/", body)
    if problem := answer["problem"]:
        detail = f"{job} would be rejected: {problem['detail']}"
        raise CommandFailed(problem["code"], detail, fields=problem["fields"], document=answer)
    return answer


@workflow.command("list", watch=True)
def list_(
    session: Context,
    cell: CellOption = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's workflows.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="List only workflows in this state, such as running or failed, or all that are live."),
    ] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", "-l", help="List only workflows whose labels match, such as app=shop.")
    ] = None,
) -> None:
    """List the workflows that you can see, with those that have ended."""
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}workflows/", tenant=tenant, state=state, selector=selector),
        {
            "WORKFLOW": lambda row: f"{row['cell']}/{row['tenant']}/{row['name']}",
            "STATE": "state",
            "NODES LEFT": lambda row: f"{row['nodes_left']}/{row['nodes']}",
            "FAILED": "nodes_failed",
            "LIVE JOBS": "live",
            "SUBMITTED": lambda row: output.when(row["created_at"]),
            "OWNER": "owner",
        },
        empty="No workflows. Submit one with `borgctl submit FILE`, with `kind: Workflow` in the file.",
    )


@workflow.command(watch=True)
def show(session: Context, name: Name) -> None:
    """Show a workflow and its nodes, those that failed first."""
    reference = named(session, name)
    answer = session.client.get(reference.path)
    nodes = list(session.client.pages(f"{reference.path}nodes/"))
    if session.json:
        return output.as_json({**answer, "node_rows": nodes})
    counts = ", ".join(f"{number} {state}" for state, number in answer["node_states"].items() if number)
    output.say(f"{reference}  {answer['state']}  ({counts})")
    if answer["detail"]:
        output.say(f"  {answer['detail']}")
    output.say(f"  owner {answer['owner']}, submitted {output.when(answer['created_at'])}")
    nodes.sort(key=lambda row: (row["state"] != "failed", row["layer"], row["name"], row["branch"] or -1))
    output.table(
        ["NODE", "STATE", "ATTEMPT", "JOB", "DETAIL"],
        [
            (
                row["name"] if row["branch"] is None else f"{row['name']}/{row['branch']}",
                row["state"],
                row["attempt"] or "–",
                row["job_name"] or "–",
                row["detail"],
            )
            for row in nodes[:_MOST_SHOWN]
        ],
        empty="No nodes.",
    )
    if len(nodes) > _MOST_SHOWN:
        output.remark(f"{len(nodes) - _MOST_SHOWN:,} more nodes are not shown; use --json for all")
    return None


@workflow.command()
def pause(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Pause a workflow: no further job is submitted. Live jobs go on."""
    return _act(session, name, "pause", "paused", dry_run=dry_run)


@workflow.command()
def resume(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Resume a paused workflow."""
    return _act(session, name, "resume", "resumed", dry_run=dry_run)


@workflow.command()
def cancel(session: Context, name: Name, confirm: Confirm = None, dry_run: DryRun = False) -> None:
    """Cancel a workflow: no further job is submitted, and live jobs are killed."""
    return _act(session, name, "cancel", "cancelled", body={"confirm": confirm}, dry_run=dry_run)


@workflow.command()
def retry(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Run a failed or cancelled workflow again from its failed nodes. Nodes that succeeded are not run again."""
    return _act(session, name, "retry", "retried", dry_run=dry_run)


def _act(
    session: Context, name: str, verb: str, done: str, *, body: dict[str, Any] | None = None, dry_run: bool
) -> None:
    reference = named(session, name)
    answer = session.client.post(f"{reference.path}{verb}/", body, dry_run=dry_run)
    return session.say(answer, f"Workflow {reference} {would_be(dry_run)} {done}.")
