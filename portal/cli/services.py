"""Commands for services: list, show, plan, stop, start, restart, forget, weights and switch. A service is all jobs of a
tenant in a cell with the same label `service`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import completions, jobfile, output, service_weights
from portal.cli.apply import job_files
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, JobReference, Yes
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.jobs import body_of, target_of
from portal.cli.paths import part

service = Commands(
    help="Services, each with several jobs: list, show, plan, stop, start, restart, forget, weights, switch."
)
LABEL = "service"
Name = Annotated[
    str,
    typer.Argument(
        metavar="SERVICE",
        help="Name of the service: cell/tenant/service, tenant/service or service.",
        autocompletion=completions.services,
    ),
]
OfJobs = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="JOB", help="Only this job of the service. Repeat the option for more jobs."),
]
_DONE = {"stopped": "stopped", "started": "started", "restarted": "being restarted"}


@dataclass(frozen=True)
class ServiceReference(JobReference):
    """The full name of a service."""

    @property
    def path(self) -> str:
        return f"/api/v1/cells/{part(self.cell)}/services/{part(self.tenant)}/{part(self.name)}/"


def named(session: Context, name: str) -> ServiceReference:
    job = session.job(name)
    return ServiceReference(job.cell, job.tenant, job.name)


@service.command("list", watch=True)
def list_(
    session: Context,
    cell: CellOption = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's services.")] = None,
) -> None:
    """List the services that you can see."""
    found = session.cell(cell)
    return session.table(
        session.client.pages(f"{session.cell_path(cell)}services/", tenant=tenant),
        {
            "SERVICE": lambda row: f"{found}/{row['tenant']}/{row['name']}",
            "STATE": "state",
            "JOBS": "jobs",
            "STOPPED": "stopped",
            "RUNNING": lambda row: f"{row['tasks_up']}/{row['tasks_wanted']}",
        },
        empty=f"No services. Give jobs the label `{LABEL}: NAME`.",
    )


@service.command(watch=True)
def show(session: Context, name: Name) -> None:
    """Show a service and its jobs, problems first."""
    answer = session.client.get(named(session, name).path)
    if session.json:
        return output.as_json(answer)
    running = f"{answer['tasks_up']} of {output.number(answer['tasks_wanted'], 'task')} running"
    output.say(f"{answer['cell']}/{answer['tenant']}/{answer['name']}  {answer['state']}  ({running})")
    for band, amounts in answer["requested"].items():
        output.say(f"  uses {output.figures(amounts)} of band {band}")
    rows: list[tuple[Any, ...]] = [
        (
            job["name"],
            job["health"],
            f"{job['tasks_up']}/{job['tasks_wanted']}",
            _version(job),
            ", ".join(f"{key}={value}" for key, value in job["labels"].items() if key != LABEL),
        )
        for job in answer["jobs"]
    ]
    rows += [
        (
            one["name"],
            "stopped",
            f"0/{one['tasks']}",
            one["version"],
            f"{output.when(one['stopped_at'])} by {one['stopped_by']}",
        )
        for one in answer["stopped"]
    ]
    output.table(["JOB", "HEALTH", "RUNNING", "VERSION", "LABELS"], rows, empty="No jobs.")
    if answer["traffic"]["weights"] or answer["traffic"]["switch"]:
        service_weights.show_traffic(answer["traffic"])
    return None


@service.command()
def plan(
    session: Context,
    name: Name,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Job files, or folders with job files. Files of other services are left out."
        ),
    ],
) -> None:
    """Show what job files would change in all jobs of a service together, and the quota before and after. The exit
    status is 1 if the portal would reject one of them.
    """
    reference = named(session, name)
    bodies = [body for path in files for body in _of_service(session, reference, path)]
    if not bodies:
        detail = f"no file has the label `{LABEL}: {reference.name}`; add it to the jobs of the service"
        raise CommandFailed("no-files", detail, fields={"FILE": detail})
    answer = session.client.post(f"{reference.path}plan/", {"files": bodies})
    if answer["refused"]:
        refused = {one["name"]: one["problem"]["detail"] for one in answer["plans"] if one["problem"]}
        detail = f"{output.number(len(refused), 'job')} of service {reference} would be rejected"
        raise CommandFailed("rejected", detail, fields=refused, document=answer)
    if session.json:
        return output.as_json(answer)
    for one in answer["plans"]:
        output.say(one["sentence"])
        for line in (*one["notes"], *one["names"]):
            output.say(f"  {line}")
    for job in answer["unnamed"]:
        output.say(f"Job {job} has no file, and stays as it is.")
    for line in answer["quota"]:
        output.say(line)
    return output.say("`borgctl apply FOLDER` makes these changes.")


@service.command()
def stop(
    session: Context,
    name: Name,
    job: OfJobs = None,
    reason: Annotated[str, typer.Option(help="Reason, shown by `borgctl why`.")] = "",
    confirm: Confirm = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Stop all jobs of a service. Their specs are kept, and `start` brings the same versions back."""
    body = {"jobs": job or [], "reason": reason, "confirm": confirm}
    _act(session, named(session, name), "stop", body, yes=yes, dry_run=dry_run)


@service.command()
def start(session: Context, name: Name, job: OfJobs = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Start the stopped jobs of a service again, with the versions that they had."""
    _act(session, named(session, name), "start", {"jobs": job or []}, yes=yes, dry_run=dry_run)


@service.command()
def restart(session: Context, name: Name, job: OfJobs = None, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Restart the running tasks of all jobs of a service, a few tasks of each job at a time."""
    _act(session, named(session, name), "restart", {"jobs": job or []}, yes=yes, dry_run=dry_run)


@service.command()
def forget(session: Context, name: Name, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Forget the stopped jobs of a service, so that `start` no longer brings them back. Live jobs stay."""
    reference = named(session, name)
    if not (yes or dry_run):
        stopped = [one["name"] for one in session.client.get(reference.path)["stopped"]]
        output.sure(f"Forget {output.number(len(stopped), 'stopped job')} ({', '.join(stopped)}) of {reference}?")
    answer = session.client.post(f"{reference.path}forget/", dry_run=dry_run)
    number = output.number(answer["forgotten"], "stopped job")
    was = "would be" if dry_run else "was" if answer["forgotten"] == 1 else "were"
    return session.say(answer, f"{reference}: {number} {was} forgotten.")


@service.command()
def weights(
    session: Context,
    name: Name,
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="TRACK=WEIGHT…", help="Weights of tracks or jobs. All other tracks get 0."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the weights, so that all tracks get clients.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Show or set how the clients of a service are divided among its tracks. A track is the jobs with the same label
    `track`, or a job without this label. Setting weights takes effect at once, and ends a switch in progress.
    """
    path = f"{named(session, name).path}weights/"
    wanted = service_weights.parsed(given or [])
    if wanted and clear:
        raise bad_usage("weights and --clear were given: use one of them", clear="cannot be used with weights")
    if wanted or clear:
        answer = session.client.put(path, {"weights": wanted}, dry_run=dry_run)
    else:
        answer = session.client.get(path)
    return output.as_json(answer) if session.json else service_weights.show_traffic(answer, dry_run=dry_run)


@service.command()
def switch(
    session: Context,
    name: Name,
    to: Annotated[str, typer.Option("--to", metavar="TRACK", help="The track, or a job of it, that gets all clients.")],
    step: Annotated[int, typer.Option(help="Per cent of the clients that move at each step.")] = 100,
    every: Annotated[str, typer.Option(help="Time between two steps, and from the last one to the end.")] = "60s",
    gate: Annotated[str, typer.Option(help="health: steps wait for healthy tasks; none: they do not.")] = "health",
    enough: Annotated[int, typer.Option(help="Per cent of the tasks of the track that must be up.")] = 100,
    within: Annotated[
        str,
        typer.Option(
            help="How long a step waits for these tasks. Then the switch fails, and the earlier weights are set again."
        ),
    ] = "10m",
    stop_old: Annotated[
        bool,
        typer.Option(
            "--stop-old", help="At the end of the switch, stop the jobs of the other tracks that have clients now."
        ),
    ] = False,
    confirm: Confirm = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the switch has ended.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Switch the clients of a service to another track, step by step. If tasks of the new track fail, the weights
    return by themselves. The other tracks keep running, so that a switch back takes effect at once.
    """
    reference = named(session, name)
    body = {
        "to": to,
        "step": step,
        "every_s": service_weights.seconds("every", every),
        "gate": gate,
        "enough": enough,
        "within_s": service_weights.seconds("within", within),
        "stop_old": stop_old,
        "confirm": confirm,
    }
    answer = session.client.post(f"{reference.path}switch/", body, dry_run=dry_run)
    if wait and not dry_run:
        answer = service_weights.ended(session, f"{reference.path}weights/", answer)
    if session.json:
        return output.as_json(answer)
    return service_weights.show_traffic(answer, dry_run=dry_run)


def _act(
    session: Context, reference: ServiceReference, verb: str, body: Mapping[str, Any], *, yes: bool, dry_run: bool
) -> None:
    """Call a verb of a service, after the user has seen what it changes and has confirmed it. Raises `CommandFailed` if
    some jobs could not be changed. A confirmed stop or restart names the jobs that were shown, so that it changes no
    job that was submitted meanwhile.
    """
    path = f"{reference.path}{verb}/"
    if dry_run or not yes:
        seen = session.client.post(path, {**body}, dry_run=True)
        if dry_run and session.json:
            return output.as_json(seen)
        if not session.json:
            _show(seen)
        if dry_run:
            return None
        if not seen["changed"] and not seen["refused"]:
            return session.say(seen, f"{reference}: nothing to {verb}.")
        output.sure(f"{verb.capitalize()} {output.number(seen['changed'], 'job')} of service {reference}?")
        if verb != "start":
            body = {**body, "jobs": [one["job"] for one in seen["jobs"] if one["change"] != "unchanged"]}
    answer = session.client.post(path, {**body})
    if answer["refused"]:
        refused = {one["job"]: one["detail"] for one in answer["jobs"] if one["change"] == "refused"}
        detail = (
            f"{output.number(answer['refused'], 'job')} of service {reference} could not be changed, and"
            f" {answer['changed']} were; repeat the command for the rest"
        )
        raise CommandFailed("not-all-changed", detail, fields=refused, document=answer)
    if session.json:
        return output.as_json(answer)
    if yes:
        _show(answer)
    tasks = output.number(answer["tasks"], "task")
    return output.say(f"{reference}: {output.number(answer['changed'], 'job')} with {tasks} changed.")


def _show(answer: dict[str, Any]) -> None:
    dry = answer["dry_run"]
    rows = [
        (
            one["job"],
            f"would be {_DONE[one['change']].removeprefix('being ')}"
            if dry and one["change"] in _DONE
            else one["change"],
            one["tasks"] or "",
            one["detail"],
        )
        for one in answer["jobs"]
    ]
    output.table(["JOB", "CHANGE", "TASKS", "DETAIL"], rows, empty="The service has no jobs.")
    for line in answer["quota"]:
        output.say(line)


def _version(job: dict[str, Any]) -> str:
    update = job["update"]
    if update is None:
        return str(job["spec_version"])
    if update["tasks_to_replace"]:
        return f"{job['spec_version']}, restart in progress"
    return f"{update['from_version']} to {update['to_version']}, in progress"


def _of_service(session: Context, reference: ServiceReference, path: Path) -> list[dict[str, Any]]:
    """Return the job files of a service at `path`, which is a file or a folder."""
    bodies = []
    for file in job_files(path) if path.is_dir() else [path]:
        spec = jobfile.read(str(file))
        labels = spec.get("labels")
        if isinstance(labels, dict) and labels.get(LABEL) == reference.name:
            target = target_of(session, spec)
            if (target.cell, target.tenant) == (reference.cell, reference.tenant):
                bodies.append(body_of(spec, target))
    return bodies
