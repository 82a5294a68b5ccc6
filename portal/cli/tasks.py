"""Commands for tasks: their machines, reasons, events, logs, usage and shells."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import typer

from portal.cli import completions, output
from portal.cli.context import CellOption, Column, Commands, Context, JobReference, iso_time, split_index
from portal.cli.cures import show_cures
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.selected import OneJob

app = Commands()

_TAIL_BYTES = 65536
_PAUSE_S = 0.5
_PATIENCE_S = 60.0  # a portal, a link or a machine recovers from a failure within this time
# The columns of the usage whose values are bytes: head and field.
_USED_BYTES = (
    ("RAM", "average_usage_memory"),
    ("MAX", "maximum_usage_memory"),
    ("LIMIT", "assigned_memory"),
    ("CACHE", "page_cache_memory"),
    ("DISK", "disk_bytes"),
    ("READ/S", "read_bytes_s"),
    ("WRITTEN/S", "written_bytes_s"),
)
# Errors of a task that has no machine yet, or that its machine has not started yet.
_NO_LOG_YET = ("no-log", "log-unavailable")


@app.command(watch=True)
def tasks(
    session: Context,
    job: OneJob = None,
    state: Annotated[str | None, typer.Option(help="List only tasks in this state: pending, running or dead.")] = None,
    selector: Annotated[
        str | None,
        typer.Option(
            "--selector", "-l", help="Instead of JOB: the tasks of all live jobs of the cell whose labels match."
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="With --selector: only this tenant's tasks.")] = None,
    cell: CellOption = None,
) -> None:
    """List the tasks of a job. The list shows the state, health and machine of each task."""
    if (job is None) == (selector is None):
        raise bad_usage("give either a JOB or --selector", job="one of JOB and --selector is needed")
    if job is not None and (tenant or cell):
        raise bad_usage("--tenant and --cell belong to --selector; write them in the name: cell/tenant/job")
    if job is not None:
        rows = list(session.client.pages(f"{session.job(job).path}tasks/", state=state))
        named: dict[str, Column] = {"TASK": "index"}
    else:
        path = f"{session.cell_path(cell)}tasks/"
        rows = list(session.client.pages(path, state=state, tenant=tenant, selector=selector))
        named = {"TASK": lambda row: f"{row['tenant']}/{row['job']}/{row['index']}"}
    # The table has columns for allocs and accelerators only if a task uses them.
    placed = [name for name in ("alloc", "devices") if any(row.get(name) for row in rows)]
    return session.table(
        rows,
        {
            **named,
            "STATE": "state",
            "PHASE": lambda row: _phase(row)[0],
            "HEALTH": lambda row: _phase(row)[1],
            "MACHINE": lambda row: _phase(row)[2],
            **{name.upper(): partial(_listed, name) for name in placed},
            "ADDRESS": _addresses,
            "RESTARTS": "restarts",
            "VERSION": "spec_version",
            "DETAIL": lambda row: row["detail"] or _exit(row["exit"]),
        },
        empty="No tasks.",
    )


def _phase(row: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the phase, health and machine to show for a task. `row`: the task as the API returns it. If the task is
    pending but the processes of its last placement still stop, the result describes that placement.
    """
    if row["machine"] is None and (stopping := row.get("stopping")):
        return "stopping", "", stopping[-1]["machine"]
    return row["phase"], row["health"], row["machine"]


@app.command(watch=True)
def why(
    session: Context, name: Annotated[str, typer.Argument(metavar="JOB[/N]", autocompletion=completions.jobs)]
) -> None:
    """Explain why a job or task is pending, and what would help, or why a task runs on its machine."""
    named, index = split_index(name)
    path = session.job(named).path
    answer = session.client.get(f"{path}why/", index=index)
    waits = answer["state"] == "pending" or answer["verdicts"]
    if session.json:
        return output.as_json({**answer, "cures": _cures(session, path, index)} if waits else answer)
    for sentence in answer["sentences"]:
        output.say(sentence)
    placement = answer["placement"]
    if placement and placement["score"]:
        scores = sorted(placement["score"].items(), key=lambda part: -abs(part[1]))
        output.table(
            ("SCORE COMPONENT", placement["machine"]),
            [*((part, f"{value:.3f}") for part, value in scores), ("total", f"{placement['total']:.3f}")],
            empty="",
        )
    if placement and placement["runners_up"]:
        output.table(
            ("RUNNER-UP", "TOTAL SCORE"),
            [(other["machine"], f"{other['score']:.3f}") for other in placement["runners_up"]],
            empty="",
        )
    if waits and (cures := _cures(session, path, index)) is not None:
        show_cures(cures)
    return None


def _cures(session: Context, path: str, index: int | None) -> dict[str, Any] | None:
    """Return what would let the pending tasks start. Return None if the portal cannot say it, or is too old."""
    try:
        answer: dict[str, Any] = session.client.get(f"{path}cures/", index=index)
    except CommandFailed as failure:
        if failure.code != "not-found":
            output.remark(f"the changes that would help could not be found: {failure.detail}")
        return None
    return answer


@app.command(watch=True)
def events(
    session: Context,
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", autocompletion=completions.jobs)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of events to list.")] = 50,
    cell: CellOption = None,
) -> None:
    """List the events of a job, or of the whole cell, newest first."""
    path = f"{session.job(job).path}events/" if job else f"{session.cell_path(cell)}events/"
    return session.table(
        session.client.pages(path, at_most=limit),
        {
            "REVISION": lambda row: f"{row['revision']}.{row['seq']}",
            "TIME": lambda row: output.when(row["time"]),
            "EVENT": "kind",
            "SUBJECT": _about,
            "MACHINE": "machine",
            "DETAIL": lambda row: _event_detail(row["data"]),
            "BY": "actor",
        },
        empty="No events.",
    )


@app.command()
def event(
    session: Context, place: Annotated[str, typer.Argument(metavar="REVISION.SEQ")], cell: CellOption = None
) -> None:
    """Show the causes and the effects of an event. `borgctl events` lists the events with their revisions."""
    answer = session.client.get(f"{session.cell_path(cell)}events/{place}/")
    if session.json:
        return output.as_json(answer)
    own = {"link": "", "kind": answer["event"]["kind"], "time": answer["event"]["time"], "event": answer["event"]}
    rows = [
        *(("cause", one) for one in reversed(answer["causes"])),
        ("event", own),
        *(("effect", one) for one in answer["effects"]),
    ]
    output.table(("", "HOW", "REVISION", "TIME", "EVENT", "SUBJECT", "MACHINE", "BY"), map(_linked, rows), empty="")
    return None


def _linked(row: tuple[str, dict[str, Any]]) -> tuple[str | None, ...]:
    """Return the table row of an event, or of one of its causes or effects. `row`: the word `event`, `cause` or
    `effect`, and that event as the API returns it.
    """
    what, one = row
    shown = one["event"]
    place = f"{shown['revision']}.{shown['seq']}" if shown else None
    subject = (
        _about(shown) if shown else f"priority {one['priority']} ({one['band']})" if one["band"] else "not visible"
    )
    machine, actor = (shown["machine"], shown["actor"]) if shown else (None, None)
    return what, one["link"].replace("-", " "), place, output.when(one["time"]), one["kind"], subject, machine, actor


@app.command()
def logs(
    session: Context,
    task: Annotated[str, typer.Argument(metavar="JOB/N", autocompletion=completions.tasks)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new output until the task ends or you press Ctrl-C.")
    ] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show standard error instead of standard output.")] = False,
    grep: Annotated[
        str, typer.Option(metavar="TEXT", help="Show only lines that contain this text, with their times.")
    ] = "",
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", "-i", help="With --grep: treat capital and small letters as equal.")
    ] = False,
    since: Annotated[
        str, typer.Option(help="Show only output since 10m, 2h or 3d ago, or since a time like 2026-11-21T20:15Z.")
    ] = "",
    incarnation: Annotated[
        int | None, typer.Option(min=1, help="Show the output of this incarnation (run) of the task.")
    ] = None,
) -> None:
    """Show the last 64 KiB of a task's output. With -f, print also new output as it appears. With --grep, search the
    whole log.
    """
    job, index = session.task(task)
    stream = "stderr" if stderr else "stdout"
    if follow and (grep or since or incarnation):
        raise bad_usage("-f cannot be combined with --grep, --since or --incarnation; use one of these options")
    if follow:
        return _follow(session, job, index, stream)
    asked = {"since": _since(since), "incarnation": incarnation}
    if grep:
        return _search(session, job, index, stream, asked | {"search": grep, "ignore_case": ignore_case})
    chunk = _chunk(session, job, index, stream, 0 if since else -_TAIL_BYTES, **asked)
    if session.json:
        return output.as_json(chunk)
    output.write(chunk["text"])
    while since and chunk["text"]:  # with --since, print the whole output and not only its end
        chunk = _chunk(session, job, index, stream, chunk["end"], **asked)
        output.write(chunk["text"])
    return None


def _search(session: Context, job: JobReference, index: int, stream: str, asked: dict[str, Any]) -> None:
    """Print all lines of a log that match the search in `asked`. Several requests are needed, because each request
    searches only a part of the log. `asked`: the parameters of the search for the API.
    """
    offset, complete = 0, False
    while not complete:
        chunk = _chunk(session, job, index, stream, offset, **asked)
        for line in chunk["lines"]:
            if session.json:
                output.as_json_line(line)
            else:
                output.write(f"{output.when(line['at']) if line['at'] else '-'}  {line['text']}\n")
        complete = chunk["complete"] or chunk["end"] == offset
        offset = chunk["end"]


def _since(given: str) -> str | None:
    """Convert the value of `--since` to an ISO time. Return None if the value is empty. Raises `CommandFailed` if the
    value is not valid.
    """
    if not given:
        return None
    try:
        return iso_time(given)
    except (ValueError, OverflowError):
        what = "write 10m, 2h, 3d, or a time like 2026-11-21T20:15Z"
        raise bad_usage(f"--since {given!r} is not a time: {what}", since=what) from None


@app.command(watch=True)
def usage(
    session: Context,
    task: Annotated[str, typer.Argument(metavar="JOB/N", autocompletion=completions.tasks)],
    hours: Annotated[int, typer.Option(min=1, max=168, help="Number of hours to show.")] = 3,
) -> None:
    """Show the resource usage of a task, one line for each period of five minutes."""
    job, index = session.task(task)
    return session.table(
        session.client.get(f"{job.path}tasks/{index}/usage/", hours=hours),
        [
            ("FROM", lambda row: output.when(row["start_time"])),
            ("CPU", lambda row: f"{row['average_usage_cpus']:.2f}"),
            ("P90", lambda row: f"{row['cpu_usage_distribution'][9]:.2f}"),
            ("MAX", lambda row: f"{row['maximum_usage_cpus']:.2f}"),
            ("LIMIT", lambda row: f"{row['assigned_cpus']:.2f}"),
            *((head, partial(_bytes, name)) for head, name in _USED_BYTES),
            ("THREADS", "threads"),
        ],
        empty="No usage yet. A window ends every five minutes and appears here a few minutes later.",
    )


@app.command(context_settings={"ignore_unknown_options": True})
def ssh(
    session: Context,
    task: Annotated[str, typer.Argument(metavar="JOB/N", autocompletion=completions.tasks)],
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]")] = None,
) -> int:
    """Open a shell in a running task. If COMMAND is given, run it in the task instead, and exit with its exit
    status.
    """
    from portal.cli.ssh import run  # takes 50 ms, so other commands do not import it

    job, index = session.task(task)
    return run(session, job, index, command or [])


def _follow(session: Context, job: JobReference, index: int, stream: str) -> None:
    """Print new output of a task until the task ends. Continue to print if the task restarts or moves, and after short
    outages.
    """
    task: dict[str, Any] = session.client.get(f"{job.path}tasks/{index}/")
    offset, patient_until = -_TAIL_BYTES, time.monotonic() + _PATIENCE_S
    while True:
        # The last output may appear between two requests: stop only if the task was dead before the last one.
        over, text = task["state"] == "dead", ""
        try:
            chunk = _chunk(session, job, index, stream, offset)
            now = session.client.get(f"{job.path}tasks/{index}/")
            if now["incarnation"] == task["incarnation"]:
                offset, text = chunk["end"], chunk["text"]
            else:
                offset = 0  # each incarnation has its own log, and this chunk may belong to either incarnation
            task, patient_until = now, time.monotonic() + _PATIENCE_S
        except CommandFailed as trouble:
            waits = trouble.code in _NO_LOG_YET and not over
            if not (waits or trouble.passing) or time.monotonic() >= patient_until:
                raise
            if waits:
                task = session.client.get(f"{job.path}tasks/{index}/")
                patient_until = time.monotonic() + _PATIENCE_S
        if text and session.json:
            output.as_json_line(chunk)
        elif text:
            output.write(text, flush=True)
        elif over:
            return
        else:
            time.sleep(_PAUSE_S)


def _chunk(session: Context, job: JobReference, index: int, stream: str, offset: int, **asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = session.client.get(
        f"{job.path}tasks/{index}/logs/", stream=stream, offset=offset, limit=_TAIL_BYTES, **asked
    )
    return answer


def _listed(name: str, row: dict[str, Any]) -> str:
    value = row.get(name)
    return ", ".join(map(str, value)) if isinstance(value, list) else value or ""


def _bytes(name: str, row: dict[str, Any]) -> str:
    return output.quantity("ram", row[name])


def _addresses(row: dict[str, Any]) -> str:
    address = row["address"] or ""
    host = f"[{address}]" if ":" in address else address
    return ", ".join(f"{name}={host}:{port}" for name, port in row["ports"].items()) or address


def _exit(ended: dict[str, Any] | None) -> str:
    if not ended:
        return ""
    how = f" (status {ended['status']})" if ended.get("status") is not None else ""
    if ended.get("signal"):
        how = f" (signal {ended['signal']})"
    return f"last ended: {ended['cause']}{how}" + (f", {ended['detail']}" if ended.get("detail") else "")


def _about(row: dict[str, Any]) -> str:
    index = "" if row["task_index"] is None else f"/{row['task_index']}"
    return f"{row['job'] or ''}{index}"


def _event_detail(data: dict[str, Any]) -> str:
    for key in ("detail", "reason", "cause", "how", "phase", "state"):
        if data.get(key):
            return str(data[key])
    return ""
