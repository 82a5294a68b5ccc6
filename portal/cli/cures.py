"""Commands that apply cures of pending jobs, patch and copy, and the list of cures that `borgctl why` prints."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, IfRevision, JobArgument, JobReference
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.jobs import body_of, show_change
from portal.cli.origin_labels import without_origin
from portal.cli.paths import part
from scheduling.spec.merge_patch import merged

app = Commands()


@app.command()
def patch(
    session: Context,
    job: JobArgument,
    patch: Annotated[
        str, typer.Argument(metavar="PATCH", help="JSON merge patch of the job file: null removes a field (RFC 7396).")
    ],
    if_revision: IfRevision = None,
    dry_run: DryRun = False,
) -> None:
    """Change some fields of a job without its job file. `borgctl why` prints such commands for pending jobs.

    Example: borgctl patch web '{"task":{"limit":{"cpu":"500m"}}}'
    """
    named = session.job(job)
    try:
        wanted = json.loads(patch)
    except ValueError as error:
        raise bad_usage(f"the patch is not JSON: {error}", patch="not JSON") from error
    if not isinstance(wanted, dict):
        raise bad_usage("the patch is not a JSON object; write the fields in braces", patch="not an object")
    answer = session.client.get(named.path)
    _live(named, answer)
    # The patch is for the spec that was read. Another update meanwhile must not be lost.
    revision = if_revision or answer.get("job_revision")
    file = merged(answer["spec"], wanted)
    show_change(session, session.client.post(f"{named.path}update/", file, if_revision=revision, dry_run=dry_run))


@app.command()
def copy(
    session: Context,
    job: JobArgument,
    to: Annotated[str, typer.Option("--to", metavar="CELL", help="The cell in which the job is submitted.")],
    dry_run: DryRun = False,
) -> None:
    """Submit a job in another cell, with the same spec. The job in its cell does not change. The new job has no label
    of the file, template, cron job or workflow that made the old one.
    """
    named = session.job(job)
    answer = session.client.get(named.path)
    there = JobReference(to, named.tenant, named.name)
    body = body_of(without_origin(answer["spec"]), there)
    done = session.client.submit(f"/api/v1/cells/{part(to)}/jobs/", body, dry_run=dry_run)
    if done["outcome"] == "unchanged":
        return session.say(done, f"{there} already has this spec; nothing changes.")
    tasks = output.number(done["tasks"]["added"], "task")
    return session.say(done, f"{there} {output.would_be(dry_run)} admitted: {tasks}.")


def show_cures(answer: dict[str, Any]) -> None:
    """Print the cures of a pending job, the cheapest first. `answer`: the API's answer."""
    if answer["cures"]:
        output.say("\nWhat would help, cheapest first (prices: quota for 30 days):")
    for number, cure in enumerate(answer["cures"], 1):
        price = cure["price_difference_text"]
        cost = "" if price is None else "no extra cost" if cure["price_difference"] == 0 else f"{price} credits"
        tried = f"tried by the scheduler at revision {cure['revision']}" if cure["verified"] else "not verified"
        output.say(f"{number:>3}. {cure['change']}" + (f" {cure['effect']}" if cure["effect"] else ""))
        output.say(f"     {', '.join(one for one in (cost, tried) if one)}. Start: {cure['start']}")
        if order := cure["order"]:
            approval = f", needs approval ({cure['approver']})" if cure["approver"] else ""
            output.say(f"     Needs quota for {order['price_text']} credits until {order['until']}{approval}.")
        for command in cure["commands"]:
            output.say(f"     $ {command}")
    for note in answer["notes"]:
        output.say(f"  {note}")


def _live(job: JobReference, answer: dict[str, Any]) -> None:
    if answer["outcome"]:
        detail = f"cannot patch {job}: it has ended ({answer['outcome']}); submit it again"
        raise CommandFailed("job-ended", detail)
