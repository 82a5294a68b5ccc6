"""Jobs: submit, plan, update, undo, kill, status, tasks, why, events, logs, wait."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from portal.cli import context, jobfile, output
from portal.cli.client import part
from portal.cli.context import Context, Job
from portal.cli.failure import Failed

app = typer.Typer(no_args_is_help=True)

File = Annotated[str, typer.Argument(help="Job file: .jsonnet, .yaml or .json; - for standard input.")]
JobName = Annotated[
    str, typer.Argument(metavar="JOB", help="cell/tenant/job, or what the profile leaves open.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, change nothing.")]


def _target(ctx: Context, spec: dict[str, Any]) -> Job:
    name, tenant = spec.get("name"), spec.get("tenant") or ctx.profile.tenant
    if not isinstance(name, str) or not name:
        raise Failed("invalid-spec", "name: the job file gives no name", fields={"name": "missing"})
    if not tenant:
        raise Failed(
            "invalid-spec", "tenant: neither the job file nor the profile names one", fields={"tenant": ""}
        )
    return Job(spec.get("cell") or ctx.cell(), tenant, name)


@app.command()
def submit(ctx: typer.Context, file: File, dry_run: DryRun = False) -> None:
    """Submit a job. Submitting the same file again changes nothing."""
    ours = context.of(ctx)
    spec = jobfile.read(file)
    job = _target(ours, spec)
    body = {**spec, "tenant": job.tenant, "cell": job.cell}
    query = {"dry_run": "1"} if dry_run else {}
    answer = ours.client.post(f"/api/v1/cells/{part(job.cell)}/jobs/", body, **query)
    if ours.json:
        return output.as_json(answer)
    tasks = spec.get("tasks", 1)
    output.say(f"{job} {'would be' if dry_run else 'is'} admitted: {tasks} task{'s' if tasks != 1 else ''}.")


@app.command()
def plan(ctx: typer.Context, file: File) -> None:
    """Show what submitting or updating with FILE would do, and change nothing."""
    ours = context.of(ctx)
    spec = jobfile.read(file)
    job = _target(ours, spec)
    answer = ours.client.post(f"{job.path}plan/", {**spec, "tenant": job.tenant, "cell": job.cell})
    if ours.json:
        return output.as_json(answer)
    for line in _plan_lines(answer):
        output.say(line)


@app.command()
def update(ctx: typer.Context, file: File, dry_run: DryRun = False) -> None:
    """Roll the job over to the spec in FILE, a few tasks at a time."""
    ours = context.of(ctx)
    spec = jobfile.read(file)
    job = _target(ours, spec)
    query = {"dry_run": "1"} if dry_run else {}
    answer = ours.client.post(f"{job.path}update/", {**spec, "tenant": job.tenant, "cell": job.cell}, **query)
    if ours.json:
        return output.as_json(answer)
    for line in _plan_lines(answer):
        output.say(line)


@app.command()
def undo(ctx: typer.Context, job: JobName, dry_run: DryRun = False) -> None:
    """Roll the job back to the spec it had before its last update."""
    ours = context.of(ctx)
    query = {"dry_run": "1"} if dry_run else {}
    answer = ours.client.post(f"{ours.job(job).path}undo/", **query)
    if ours.json:
        return output.as_json(answer)
    for line in _plan_lines(answer):
        output.say(line)


@app.command()
def kill(
    ctx: typer.Context,
    job: JobName,
    task: Annotated[
        list[int] | None, typer.Option("--task", "-t", help="Only this task; repeat for more.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Stop a job, or some of its tasks, with the notice it asked for."""
    ours = context.of(ctx)
    query = {"dry_run": "1"} if dry_run else {}
    body = {"indexes": task} if task else {}
    named = ours.job(job)
    answer = ours.client.post(f"{named.path}kill/", body, **query)
    if ours.json:
        return output.as_json(answer)
    output.say(f"{named}: {answer.get('killed', 0)} tasks {'would be killed' if dry_run else 'killed'}.")


@app.command()
def status(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None,
    state: Annotated[str | None, typer.Option(help="pending, running or dead; with no JOB.")] = None,
) -> None:
    """All jobs one may see, or one of them in full."""
    ours = context.of(ctx)
    if job is not None:
        answer = ours.client.get(ours.job(job).path)
        return output.as_json(answer) if ours.json else _show_job(answer)
    rows = list(ours.client.pages(f"/api/v1/cells/{part(ours.cell())}/jobs/", state=state))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("JOB", "STATE", "RUNNING", "PENDING", "DEAD", "PRIORITY", "BAND", "SUBMITTED"),
        [
            (
                f"{row['cell']}/{row['tenant']}/{row['name']}", row["state"],
                f"{row['tasks_up']}/{row['tasks_total']}", row["tasks_pending"], row["tasks_dead"],
                row["priority"], row["band"], output.when(row["created_at"]),
            )
            for row in rows
        ],
        empty="No jobs. Submit one with `borgctl submit FILE`.",
    )  # fmt: skip
    return None


@app.command()
def tasks(ctx: typer.Context, job: JobName) -> None:
    """The tasks of a job: where they run, and how they are."""
    ours = context.of(ctx)
    rows = list(ours.client.pages(f"{ours.job(job).path}tasks/"))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("TASK", "STATE", "PHASE", "HEALTH", "MACHINE", "ADDRESS", "RESTARTS", "VERSION", "DETAIL"),
        [
            (
                row["index"], row["state"], row["phase"], row["health"], row["machine"] or "",
                ", ".join(f"{name}={row['address']}:{port}" for name, port in (row["ports"] or {}).items())
                or (row["address"] or ""),
                row["restarts"], row["spec_version"], row["detail"] or _exit(row.get("exit")),
            )
            for row in rows
        ],
        empty="No tasks.",
    )  # fmt: skip
    return None


@app.command()
def why(ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="JOB[/N]")]) -> None:
    """Why a job, or one of its tasks, is where it is."""
    ours = context.of(ctx)
    index = None
    tail = name.rsplit("/", 1)[-1]
    if tail.isdigit() and "/" in name:
        job, index = ours.task(name)
    else:
        job = ours.job(name)
    answer = ours.client.get(f"{job.path}why/", index=index)
    if ours.json:
        return output.as_json(answer)
    for sentence in answer.get("sentences") or [answer.get("sentence", "There is nothing to explain.")]:
        output.say(sentence)
    return None


@app.command()
def events(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]")] = None,
    limit: Annotated[int, typer.Option(help="At most this many, newest first.")] = 50,
) -> None:
    """What happened to a job, or in the cell, newest first."""
    ours = context.of(ctx)
    path = f"{ours.job(job).path}events/" if job else f"/api/v1/cells/{part(ours.cell())}/events/"
    rows = list(ours.client.pages(path, at_most=limit))
    if ours.json:
        return output.as_json(rows)
    output.table(
        ("REVISION", "TIME", "WHAT", "TASK", "DETAIL", "BY"),
        [
            (
                f"{row['revision']}.{row['seq']}", output.when(row["time"]), row["kind"], row.get("task_index"),
                _event_detail(row["data"]), row["actor"],
            )
            for row in rows
        ],
        empty="Nothing happened yet.",
    )  # fmt: skip
    return None


@app.command()
def logs(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="JOB/N")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
    stderr: Annotated[
        bool, typer.Option("--stderr", help="Standard error instead of standard output.")
    ] = False,
) -> None:
    """What a task printed."""
    ours = context.of(ctx)
    job, index = ours.task(task)
    path, stream, offset = f"{job.path}tasks/{index}/logs/", "stderr" if stderr else "stdout", -65536
    while True:
        chunk = ours.client.get(path, stream=stream, offset=offset)
        if ours.json:
            output.as_json(chunk)
        else:
            typer.echo(chunk["text"], nl=False)
        if not follow:
            return
        offset = chunk["end"]
        if not chunk["text"]:
            time.sleep(0.5)


@app.command()
def wait(
    ctx: typer.Context,
    job: JobName,
    wanted: Annotated[str, typer.Option("--for", help="running, visible or done.")] = "running",
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 300.0,
) -> None:
    """Wait until all tasks run (and are healthy), names have followed, or the job is over."""
    ours = context.of(ctx)
    if wanted not in ("running", "visible", "done"):
        raise Failed("bad-usage", f"--for {wanted}: one of running, visible, done", status=2)
    named = ours.job(job)
    until, pause = time.monotonic() + timeout, 0.05
    while True:
        answer = ours.client.get(named.path)
        if _reached(ours, named, answer, wanted):
            return output.as_json(answer) if ours.json else output.say(f"{named}: {_in_short(answer)}.")
        if answer["state"] == "dead" and wanted != "done":
            raise Failed("job-ended", f"{named} is over ({answer['outcome']}): it will not be {wanted}")
        if time.monotonic() >= until:
            raise Failed("timeout", f"{named} is not {wanted} after {timeout:g} s: {_in_short(answer)}")
        time.sleep(pause)
        pause = min(1.0, pause * 1.2)


def _reached(ours: Context, job: Job, answer: dict[str, Any], wanted: str) -> bool:
    if wanted == "done":
        return bool(answer["state"] == "dead")
    whole = answer["tasks_up"] == answer["tasks_total"] - answer["tasks_dead"] > 0 and not answer.get(
        "update"
    )
    if wanted == "running" or not whole:
        return bool(whole)
    from portal.cli import names

    return names.revision_of_zone(ours, job.cell) >= answer["revision"]


def _in_short(answer: dict[str, Any]) -> str:
    parts = [f"{answer['tasks_up']} of {answer['tasks_total']} tasks running"]
    for key, word in (("tasks_pending", "pending"), ("tasks_dead", "dead")):
        if answer[key]:
            parts.append(f"{answer[key]} {word}")
    return ", ".join(parts)


def _show_job(answer: dict[str, Any]) -> None:
    output.say(
        f"{answer['cell']}/{answer['tenant']}/{answer['name']}  {answer['state']}  ({_in_short(answer)})"
    )
    update = answer.get("update")
    rows = [
        ("uid", answer["uid"]),
        ("priority", f"{answer['priority']} ({answer['band']})"),
        ("spec", f"version {answer['spec_version']}"),
        ("labels", ", ".join(f"{k}={v}" for k, v in answer["labels"].items())),
        ("submitted", f"{output.when(answer['created_at'])} by {answer['submitted_by']}"),
        (
            "ended",
            f"{output.when(answer['ended_at'])} ({answer['outcome']})" if answer.get("ended_at") else "",
        ),
        ("update", f"version {update['from_version']} to {update['to_version']}" if update else ""),
    ]
    for name, value in rows:
        if value:
            output.say(f"  {name:<10}{value}")
    for sentence in answer.get("why") or []:
        output.say(f"  {sentence}")


def _plan_lines(answer: dict[str, Any]) -> list[str]:
    tasks = answer.get("tasks", {})
    words = {
        "added": "start", "removed": "stop", "restarted": "restart", "in_place": "change in place", "kept": "stay",
    }  # fmt: skip
    lines = [f"{tasks[key]:>6} tasks {word}" for key, word in words.items() if tasks.get(key)]
    return [answer.get("sentence", ""), *lines] if answer.get("sentence") else lines or ["Nothing changes."]


def _exit(ended: dict[str, Any] | None) -> str:
    if not ended:
        return ""
    how = f"signal {ended['signal']}" if ended.get("signal") else f"status {ended.get('status')}"
    return f"last ended: {ended['cause']} ({how})" + (f", {ended['detail']}" if ended.get("detail") else "")


def _event_detail(data: dict[str, Any]) -> str:
    for key in ("detail", "reason", "cause", "how", "phase", "state"):
        if data.get(key):
            return str(data[key])
    return f"machine {data['machine_id']}" if data.get("machine_id") else ""
