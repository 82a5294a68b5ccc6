"""Commands for jobs: submit, plan, fit, update, undo, kill and status."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import completions, jobfile, output, periods
from portal.cli.context import CellOption, Commands, Confirm, Context, DryRun, IfRevision, JobReference, Yes
from portal.cli.cron import KIND as CRON
from portal.cli.cron import CronReference, plan_cron, submit_cron
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.output import would_be
from portal.cli.paths import part
from portal.cli.selected import OneJob, Selector, act_on
from portal.cli.workflows import KIND as WORKFLOW
from portal.cli.workflows import plan_workflow, submit_workflow

app = Commands()

File = Annotated[str, typer.Argument(help="Job file (.jsonnet, .yaml or .json), or - for standard input.")]


@app.command()
def submit(session: Context, file: File, if_revision: IfRevision = None, dry_run: DryRun = False) -> None:
    """Submit the job in FILE. A second submission of the same file changes nothing."""
    spec = jobfile.read(file)
    _no_template(spec)
    job = target_of(session, spec)
    if spec.get("kind") == CRON:
        body = body_of(spec, job)
        return submit_cron(session, job, body, if_revision=if_revision, dry_run=dry_run, new=True)
    if spec.get("kind") == WORKFLOW:
        if if_revision is not None:
            raise bad_usage("a workflow has no revision; leave --if-revision out", if_revision="not with a workflow")
        return submit_workflow(session, job, body_of(spec, job), dry_run=dry_run)
    path = f"/api/v1/cells/{part(job.cell)}/jobs/"
    answer = session.client.submit(path, body_of(spec, job), if_revision=if_revision, dry_run=dry_run)
    if answer["outcome"] == "unchanged":
        return session.say(answer, f"{job} already has this spec; nothing changes.")
    tasks = output.number(answer["tasks"]["added"], "task")
    return session.say(answer, f"{job} {would_be(dry_run)} admitted: {tasks}.")


@app.command()
def plan(session: Context, file: File) -> None:
    """Show what a submission or an update with FILE would change. The exit status is 1 if the portal would reject
    the job.
    """
    spec = jobfile.read(file)
    _no_template(spec)
    job = target_of(session, spec)
    if spec.get("kind") == CRON:
        answer = plan_cron(session, CronReference(job.cell, job.tenant, job.name), body_of(spec, job))
        return session.say(answer, f"{answer['sentence']}\n  Revision for --if-revision: {answer['job_revision']}")
    if spec.get("kind") == WORKFLOW:
        answer = plan_workflow(session, job, body_of(spec, job))
        return session.say(answer, answer["sentence"])
    answer = session.client.post(f"{job.path}plan/", body_of(spec, job))
    if problem := answer["problem"]:
        detail = f"{job} would be rejected: {problem['detail']}"
        # `--json` prints the whole plan, which contains the problem.
        raise CommandFailed(problem["code"], detail, fields=problem["fields"], document=answer)
    show_change(session, answer)
    if not session.json and (revision := answer.get("job_revision")):  # portals before 2026-11-28 send none
        output.say(f"  Revision for --if-revision: {revision}")
    return None


def _no_template(spec: dict[str, Any]) -> None:
    """Raise `CommandFailed` if the file is a template or a config file, which other commands create."""
    if spec.get("kind") == "ConfigFile":
        detail = "the file is a config file, not a job; write it with `borgctl apply FOLDER` or `borgctl config put`"
        raise CommandFailed("invalid-spec", detail, fields={"kind": detail})
    if spec.get("kind") == "Template":
        detail = "the file is a template, not a job; create it with `borgctl template create FILE`"
        raise CommandFailed("invalid-spec", detail, fields={"kind": detail})


@app.command()
def fit(session: Context, file: File) -> None:
    """Show how many of the tasks in FILE would fit in each cell now. Nothing is submitted, and quota is not checked."""
    answer = session.client.post("/api/v1/cells:fit", jobfile.read(file))
    if answer["left_out"]:
        output.remark(f"{answer['left_out']} more cells were not compared; use `borgctl plan` for one of them")
    return session.table(
        answer["cells"],
        {
            "CELL": "cell",
            "FIT NOW": lambda row: "–" if row["problem"] else row["room"],
            "WANTED": lambda row: row["tasks"] or "–",
            "MACHINES": lambda row: min((one["shapes"]["now"] for one in row["fits"]), default="–"),
            "DETAIL": "problem",
        },
        empty="You can see no cell.",
    )


@app.command()
def update(session: Context, file: File, if_revision: IfRevision = None, dry_run: DryRun = False) -> None:
    """Update the job to the spec in FILE, a few tasks at a time."""
    spec = jobfile.read(file)
    _no_template(spec)
    job = target_of(session, spec)
    if spec.get("kind") == CRON:
        body = body_of(spec, job)
        return submit_cron(session, job, body, if_revision=if_revision, dry_run=dry_run, new=False)
    if spec.get("kind") == WORKFLOW:
        detail = f"cannot update workflow {job}: a workflow does not change; cancel it, and submit the file again"
        raise CommandFailed("workflow-fixed", detail, fields={"kind": "a workflow cannot be updated"})
    answer = session.client.post(f"{job.path}update/", body_of(spec, job), if_revision=if_revision, dry_run=dry_run)
    return show_change(session, answer)


@app.command()
def undo(
    session: Context, job: OneJob = None, selector: Selector = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Roll the job back to the spec it had before its last update."""
    if job is not None and selector is None:
        return show_change(session, session.client.post(f"{session.job(job).path}undo/", dry_run=dry_run))

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}undo/", dry_run=dry_run)
        return answer, f"{named}: {answer['sentence']}"

    return act_on(
        session,
        job,
        selector,
        "Undo the last update of",
        act,
        sure=yes or dry_run,
        ignored=["nothing-to-undo"],
        again="run `borgctl undo JOB` for each of these, because a second undo of the others would take back the first",
    )


@app.command()
def kill(
    session: Context,
    job: OneJob = None,
    task: Annotated[
        list[int] | None,
        typer.Option("--task", "-t", min=0, help="Kill only this task. Repeat the option for more tasks."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason, shown by `borgctl why`.")] = "",
    confirm: Confirm = None,
    selector: Selector = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Stop a job, or some of its tasks. Before a task is killed, it has the notice period of the job file to end by
    itself.
    """
    if task and selector is not None:
        raise bad_usage("--task belongs to one job; give JOB instead of --selector", task="not with --selector")
    body = {"reason": reason, "confirm": confirm, **({"indexes": task} if task else {})}

    def act(named: JobReference) -> tuple[Any, str]:
        answer = session.client.post(f"{named.path}kill/", body, dry_run=dry_run)
        killed = output.number(answer["killed"], "task")
        return answer, f"{named}: {killed} {'would be killed' if dry_run else 'killed'}."

    act_on(session, job, selector, "Kill", act, sure=yes or dry_run)


@app.command(watch=True)
def status(
    session: Context,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", autocompletion=completions.jobs)] = None,
    state: Annotated[
        str | None, typer.Option(help="List only jobs in this state: pending, running, dead or live. Not with JOB.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="List only this tenant's jobs. Not with JOB.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="List only jobs with this label, written as key=value.")
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", "-l", help="List only jobs whose labels match, for example app=shop,track!=canary,!old."
        ),
    ] = None,
    cell: CellOption = None,
) -> None:
    """List the jobs that you can see, or show all details of one job."""
    if job is not None:
        answer = session.client.get(session.job(job).path)
        return output.as_json(answer) if session.json else _show(answer)
    path = f"{session.cell_path(cell)}jobs/"
    return session.table(
        session.client.pages(path, state=state, tenant=tenant, label=label or None, selector=selector),
        {
            "JOB": lambda row: f"{row['cell']}/{row['tenant']}/{row['name']}",
            "HEALTH": _health,
            "RUNNING": lambda row: f"{row['tasks_up']}/{row['tasks_total']}",
            "PENDING": "tasks_pending",
            "DEAD": "tasks_dead",
            "PRIORITY": "priority",
            "BAND": "band",
            "SUBMITTED": lambda row: output.when(row["created_at"]),
        },
        empty="No jobs. Submit one with `borgctl submit FILE`.",
    )


def in_short(answer: dict[str, Any]) -> str:
    """Return a summary of a job, such as `2 of 3 tasks running, 1 pending`."""
    parts = [f"{answer['tasks_up']} of {output.number(answer['tasks_total'], 'task')} running"]
    for key, word in (("tasks_crashing", "crashing"), ("tasks_pending", "pending"), ("tasks_dead", "dead")):
        if answer.get(key):
            parts.append(f"{answer[key]} {word}")
    return ", ".join(parts)


def _health(answer: dict[str, Any]) -> str:
    """Return the health of a job, or its outcome if the job has ended. Return its state if the portal is too old to
    report the health.
    """
    if answer["outcome"]:
        return str(answer["outcome"])
    return str(answer.get("health", answer["state"]))


def target_of(session: Context, spec: dict[str, Any]) -> JobReference:
    """Return the full name of the job in a job file. Missing parts come from the profile. Raises `CommandFailed` if a
    part is missing or not valid.
    """
    found: dict[str, str] = {}
    for field, otherwise in (("name", ""), ("tenant", session.profile.tenant), ("cell", session.profile.cell)):
        value = spec.get(field) or otherwise
        if not isinstance(value, str) or not value:
            what = "is missing; add it" if not value else f"{value!r} is not a string; put it in quotes"
        elif value in (".", "..") or "/" in value:  # such a value would lead to another path of the API
            what = f"{value!r} is not a DNS label; use lower-case letters, digits and hyphens"
        else:
            found[field] = value
            continue
        raise CommandFailed("invalid-spec", f"{field}: {what}", fields={field: what})
    return JobReference(found["cell"], found["tenant"], found["name"])


def body_of(spec: dict[str, Any], job: JobReference) -> dict[str, Any]:
    """Return the job file with the tenant and the cell of the job."""
    return {**spec, "tenant": job.tenant, "cell": job.cell}


def show_change(session: Context, answer: dict[str, Any]) -> None:
    """Print the effect of a change of a job, or of a dry run or a plan. `answer`: the API's answer."""
    if session.json:
        return output.as_json(answer)
    output.say(f"{'Dry run: ' if answer['dry_run'] else ''}{answer['sentence']}")
    words = {"added": "start", "removed": "stop", "restarted": "restart", "in_place": "change in place", "kept": "stay"}
    if answer["outcome"] != "unchanged":
        for key, word in words.items():
            if answer["tasks"].get(key):
                spans = answer["ranges"].get(key, [])
                indexes = ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans[:10])
                more = ", …" if len(spans) > 10 else ""
                output.say(f"  {word:<16}{output.number(answer['tasks'][key], 'task')}: {indexes}{more}")
        # Older portals send none of these.
        for line in (*answer.get("notes", ()), *answer.get("names", ()), *answer.get("quota", ())):
            output.say(f"  {line}")
    for fit in answer["guidance"]:
        for line in fit["told"]:
            output.say(line)
    return None


def _kind(answer: dict[str, Any]) -> str:
    """Return a text about special properties of a job, for example its alloc set. Return an empty text if it has
    none.
    """
    parts = ["alloc set"] if answer["kind"] == "alloc-set" else []
    if answer["alloc_set"]:
        parts.append(f"inside alloc set {answer['alloc_set']}")
    if answer["gang"]:
        parts.append("gang: all of its tasks are placed together, or none")
    if answer["disruption_budget"]:
        parts.append(f"at most {answer['disruption_budget']} disrupted at once")
    if disruptions := answer.get("max_disruptions"):  # older portals do not send it
        window = periods.format_window(answer["disruption_window_s"])
        parts.append(f"at most {output.number(disruptions, 'disruption')} within {window}")
    if most := answer.get("max_running"):  # older portals do not send it
        parts.append(f"at most {output.number(most, 'task')} at once")
    return "; ".join(parts)


def _update(update: dict[str, Any]) -> str:
    """Return a text about the open update of a job, for example `version 1 to 2, paused`."""
    what = f"version {update['from_version']} to {update['to_version']}"
    if restarted := update.get("tasks_to_replace"):  # portals before 2026-11-28 send neither this nor `paused_at`
        what = f"restart of {output.number(restarted, 'task')}"
    if canary := update.get("canary"):
        what += f", first {output.number(canary, 'canary task')}"
    if not update.get("paused_at"):
        return what
    return f"{what}, paused; `borgctl resume` promotes them" if canary and update.get("by_hand") else f"{what}, paused"


def _after(answer: dict[str, Any]) -> str:
    """Return the jobs that a job waits for, for example `load is succeeded, copy is ended (reached)`."""
    waits = answer.get("after") or ()  # older portals do not send it
    return ", ".join(f"{one['name']} is {one['goal']}{' (reached)' if one['reached_at'] else ''}" for one in waits)


def _show(answer: dict[str, Any]) -> None:
    name = f"{answer['cell']}/{answer['tenant']}/{answer['name']}"
    output.say(f"{name}  {_health(answer)}  ({in_short(answer)})")
    update = answer["update"]
    # Older portals do not send the times of jobs.
    ended, start, deadline = answer["ended_at"], answer.get("start_after"), answer.get("deadline_at")
    rows = [
        ("uid", answer["uid"]),
        ("priority", f"{answer['priority']} ({answer['band']}), {answer['appclass']}"),
        ("kind", _kind(answer)),
        ("requests", output.figures(answer["requested"])),
        ("spec", f"version {answer['spec_version']}"),
        ("labels", ", ".join(f"{key}={value}" for key, value in answer["labels"].items())),
        ("submitted", f"{output.when(answer['created_at'])} by {answer['submitted_by']}"),
        ("start", f"after {output.when(start)}" if start and not ended else ""),
        ("after", _after(answer)),
        ("deadline", output.when(deadline) if deadline and not ended else ""),
        ("ended", f"{output.when(ended)} ({answer['outcome']})" if ended else ""),
        ("update", _update(update) if update else ""),
    ]
    output.details(rows, width=10)
    for sentence in answer["why"]:
        output.say(f"  {sentence}")
