"""Commands for cron jobs: list, show, run, suspend, resume and delete. `borgctl submit` and `apply` create them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, JobReference
from portal.cli.failure import CommandFailed
from portal.cli.output import would_be
from portal.cli.paths import part

cron = Commands(help="Cron jobs, which submit a job again and again: list, show, run, suspend, resume, delete.")
KIND = "CronJob"

Name = Annotated[
    str,
    typer.Argument(
        metavar="CRON",
        help="Name of the cron job: cell/tenant/name, tenant/name or name.",
        autocompletion=completions.cron_jobs,
    ),
]


@dataclass(frozen=True)
class CronReference(JobReference):
    """The full name of a cron job."""

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/cron-jobs/{part(self.tenant)}/{part(self.name)}/"


def named(session: Context, name: str) -> CronReference:
    job = session.job(name)
    return CronReference(job.cell, job.tenant, job.name)


def submit_cron(
    session: Context, job: JobReference, body: dict[str, Any], *, if_revision: str | None, dry_run: bool, new: bool
) -> None:
    """Create or change the cron job of a job file, and print the answer. `new`: reject a change of an existing one;
    otherwise, reject a new one.
    """
    cron_job = CronReference(job.cell, job.tenant, job.name)
    if if_revision is None:
        plan = plan_cron(session, cron_job, body)
        if new and plan["outcome"] == "updated":
            detail = f"there is already a cron job {cron_job}; change it with `borgctl update FILE`"
            raise CommandFailed("cron-job-exists", detail, fields={"name": "taken by a cron job"})
        if not new and plan["outcome"] == "submitted":
            detail = f"cannot update cron job {cron_job}: it does not exist; create it with `borgctl submit FILE`"
            raise CommandFailed("not-found", detail, fields={"name": "no such cron job"})
        if_revision = plan["job_revision"] if plan["outcome"] != "unchanged" else None
    answer = session.client.put(cron_job.path, body, if_revision=if_revision, dry_run=dry_run)
    session.say(answer, f"{'Dry run: ' if dry_run else ''}{answer['sentence']}")


def plan_cron(session: Context, job: JobReference, body: dict[str, Any]) -> dict[str, Any]:
    """Return what applying the file of a cron job would change. Raises `CommandFailed` if it would be rejected."""
    answer: dict[str, Any] = session.client.post(f"{job.path}plan/", body)
    if problem := answer["problem"]:
        detail = f"{job} would be rejected: {problem['detail']}"
        raise CommandFailed(problem["code"], detail, fields=problem["fields"], document=answer)
    return answer


@cron.command("list", watch=True)
def list_(
    session: Context,
    cell: CellOption = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's cron jobs.")] = None,
    selector: Annotated[
        str | None, typer.Option("--selector", "-l", help="List only cron jobs whose labels match, such as app=shop.")
    ] = None,
) -> None:
    """List the cron jobs that you can see."""
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}cron-jobs/", tenant=tenant, selector=selector),
        {
            "CRON JOB": lambda row: f"{row['cell']}/{row['tenant']}/{row['name']}",
            "SCHEDULE": "schedule",
            "TIME ZONE": "time_zone",
            "NEXT": lambda row: "suspended" if row["suspended"] else output.when(row["next_at"]),
            "LAST": lambda row: row["last_outcome"] or "–",
            "OWNER": "owner",
        },
        empty="No cron jobs. Submit one with `borgctl submit FILE`, with `kind: CronJob` in the file.",
    )


@cron.command(watch=True)
def show(session: Context, name: Name) -> None:
    """Show a cron job, its next times and its newest runs."""
    answer = session.client.get(named(session, name).path)
    if session.json:
        return output.as_json(answer)
    output.say(f"{answer['cell']}/{answer['tenant']}/{answer['name']}  {answer['schedule']}  {answer['time_zone']}")
    state = "suspended" if answer["suspended"] else "runs next at " + ", ".join(answer["next_times"][:3])
    output.say(f"  {state}; overlap {answer['overlap']}, catch-up window {answer['catch_up_s']:g} s")
    output.say(f"  owner {answer['owner']}")
    return output.table(
        ["DUE", "OUTCOME", "JOB", "DETAIL"],
        [(output.when(run["due_at"]), run["outcome"], run["job_name"] or "–", run["detail"]) for run in answer["runs"]],
        empty="No runs yet.",
    )


@cron.command()
def run(session: Context, name: Name, confirm: Confirm = None, dry_run: DryRun = False) -> None:
    """Submit a run now, also if the cron job is suspended. The next due time stays."""
    answer = session.client.post(f"{named(session, name).path}run/", {"confirm": confirm}, dry_run=dry_run)
    return session.say(answer, f"Job {answer['job']} {would_be(dry_run)} submitted.")


@cron.command()
def suspend(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Suspend a cron job: no further run starts. Runs that are live go on."""
    cron_job = named(session, name)
    answer = session.client.post(f"{cron_job.path}suspend/", dry_run=dry_run)
    return session.say(answer, f"Cron job {cron_job} {would_be(dry_run)} suspended.")


@cron.command()
def resume(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Resume a suspended cron job. Times during the suspension are not caught up."""
    cron_job = named(session, name)
    answer = session.client.post(f"{cron_job.path}resume/", dry_run=dry_run)
    return session.say(answer, f"Cron job {cron_job} {would_be(dry_run)} resumed.")


@cron.command()
def delete(session: Context, name: Name, dry_run: DryRun = False) -> None:
    """Delete a cron job with its history. Runs that are live go on."""
    cron_job = named(session, name)
    session.delete(cron_job.path, f"Cron job {cron_job}", "deleted", dry_run=dry_run)
