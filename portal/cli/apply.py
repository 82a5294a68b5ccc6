"""`borgctl apply FOLDER`: bring the jobs and cron jobs in a folder to the state that their files describe, as from a
Git repository.

    files ─► plan of each job ─► what changes, with all problems ─► confirmation ─► alloc sets, jobs, then kills

Each job gets the label `applied-by`, by which `--prune` finds jobs whose file is gone. A change is made only if the job
still has the revision of its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import jobfile, output
from portal.cli.context import Commands, Context, DryRun, JobReference, Yes, label
from portal.cli.cron import KIND as CRON
from portal.cli.cron import CronReference
from portal.cli.failure import BAD_USAGE, CommandFailed, bad_usage
from portal.cli.jobs import body_of, target_of
from portal.cli.workflows import KIND as WORKFLOW

app = Commands()
LABEL = "applied-by"
SUFFIXES = (".jsonnet", ".yaml", ".yml", ".json")
MOST_FILES = 10_000
_ALLOC_SET, _TEMPLATE = "AllocSet", "Template"
# Codes of rejections because of a job in `after`.
_OF_DEPENDENCIES = ("no-such-dependency", "dependency-missed")
# Codes of errors that no change of a file mends.
_NOT_OF_THE_FILE = ("not-authenticated", "authentication-failed", "unreachable", "bad-token")


@dataclass(frozen=True)
class Wanted:
    """A job file. `plan`: the API's answer about what would change."""

    file: Path
    job: JobReference
    body: dict[str, Any]
    plan: dict[str, Any]

    @property
    def changes(self) -> bool:
        return bool(self.plan["outcome"] != "unchanged")

    @property
    def is_alloc_set(self) -> bool:
        return self.body.get("kind") == _ALLOC_SET


@app.command()
def apply(
    session: Context,
    folder: Annotated[Path, typer.Argument(help="Folder with job files, also in folders below it.")],
    owner: Annotated[
        str, typer.Option(help="Value of the label `applied-by` of these jobs. Default: the name of the folder.")
    ] = "",
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Also kill live jobs, and delete cron jobs, with this label that have no file any more."
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Submit and update all jobs and cron jobs whose files are in FOLDER. Shows what would change, and asks before
    anything changes.

    If a file is wrong or its job would be rejected by itself, nothing changes.
    """
    if prune and not owner:
        raise bad_usage("--prune kills jobs with the label of an owner; give --owner NAME", owner="is missing")
    if session.json and not (yes or dry_run):
        raise bad_usage("--json prints no question; give --yes or --dry-run", yes="is missing")
    owner = label(owner or folder.resolve().name, "owner")
    wanted = _planned(session, folder, owner)
    spare = _spare(session, owner, wanted)
    rows = [*map(_row, wanted), *({"job": str(job), "change": _end(job), "file": ""} for job in spare if prune)]
    if not dry_run and any(row["change"] != "unchanged" for row in rows):
        if not session.json:
            _show(rows)
        if not yes:
            output.sure("Make these changes?")
        _change(session, wanted, spare if prune else [])
        if not session.json:
            output.say(f"Done: {output.number(sum(row['change'] != 'unchanged' for row in rows), 'job')} changed.")
    elif not session.json:
        _show(rows)
    if spare and not prune:
        names = ", ".join(map(str, spare[:10])) + (", …" if len(spare) > 10 else "")
        output.remark(f"jobs without a file, which stay: {names}; `--owner {owner} --prune` kills them")
    if session.json:
        output.as_json({"owner": owner, "dry_run": dry_run, "jobs": rows})


def _planned(session: Context, folder: Path, owner: str) -> list[Wanted]:
    """Return all job files with their plans, alloc sets first. Raises `CommandFailed` with all problems if a file is
    wrong or the portal would reject its job.
    """
    found: dict[JobReference, tuple[Path, dict[str, Any]]] = {}
    problems: dict[str, str] = {}
    for file in job_files(folder):
        try:
            if jobfile.read(str(file)).get("kind") == _TEMPLATE:
                output.remark(f"{file} is a template, which stays as it is; use `borgctl template create {file}`")
                continue
            job, body = _read(session, file, owner)
        except CommandFailed as failed:
            problems[str(file)] = failed.detail
            continue
        if job in found:
            problems[str(file)] = f"{job} is also in {found[job][0]}; keep one of them"
        found[job] = (file, body)
    wanted: list[Wanted] = []
    for job in _in_order(found):
        file, body = found[job]
        try:
            plan = _plan(session, job, body, wanted)
        except CommandFailed as failed:
            if failed.passing or failed.code in _NOT_OF_THE_FILE:
                raise
            problems[str(file)] = f"{job}: {failed.detail}"
            continue
        if problem := plan["problem"]:
            problems[str(file)] = f"{job}: {problem['detail']}"
        wanted.append(Wanted(file, job, body, plan))
    if problems:
        detail = f"nothing is changed, because {output.number(len(problems), 'file')} would be rejected"
        raise CommandFailed("rejected", detail, fields=problems)
    return wanted


def _read(session: Context, file: Path, owner: str) -> tuple[JobReference, dict[str, Any]]:
    """Return the job of a file, and the job file with the label of the owner."""
    spec = jobfile.read(str(file))
    job = target_of(session, spec)
    labels = spec.get("labels") or {}
    marked = {**labels, LABEL: owner} if isinstance(labels, dict) else labels  # the portal rejects anything else
    if spec.get("kind") == WORKFLOW:
        detail = f"{job} is a workflow, which runs once; move the file to another folder, and use `borgctl submit`"
        raise CommandFailed("workflow", detail)
    if spec.get("kind") == CRON:
        job = CronReference(job.cell, job.tenant, job.name)
    return job, body_of({**spec, "labels": marked}, job)


def _plan(session: Context, job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]) -> dict[str, Any]:
    plan: dict[str, Any] = session.client.post(f"{job.path}plan/", body)
    of_new = (_is_for_new_alloc_set, _is_for_new_job)
    if plan["problem"] and any(check(plan["problem"], job, body, wanted) for check in of_new):
        plan |= {"problem": None, "outcome": "submitted", "tasks": {"added": body.get("tasks", 1)}}
    return plan


def _in_order(found: Mapping[JobReference, tuple[Path, dict[str, Any]]]) -> Iterator[JobReference]:
    """Yield the jobs of the files: alloc sets first, and each job behind the jobs that it waits for (`after`)."""
    first = sorted(found, key=lambda job: found[job][1].get("kind") != _ALLOC_SET)
    before = {job: [other for other in _waits_for(job, found[job][1]) if other in found] for job in first}
    done: set[JobReference] = set()
    for job in first:
        stack = [job]
        while stack:
            open_ = [one for one in before.pop(stack[-1], ()) if one not in done]
            stack += open_
            if not open_ and (one := stack.pop()) not in done:
                done.add(one)
                yield one


def _waits_for(job: JobReference, body: dict[str, Any]) -> list[JobReference]:
    after = body.get("after")
    return [JobReference(job.cell, job.tenant, str(name)) for name in after] if isinstance(after, dict) else []


def _is_for_new_job(problem: dict[str, Any], job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]) -> bool:
    """Return whether a job is rejected only because a job of its `after` is still missing or has ended, which an
    earlier file submits.
    """
    new = {one.job for one in wanted if one.plan["outcome"] == "submitted"}
    named = {f"after.{other.name}" for other in _waits_for(job, body) if other in new}
    return problem["code"] in _OF_DEPENDENCIES and bool(problem["fields"]) and named.issuperset(problem["fields"])


def _is_for_new_alloc_set(
    problem: dict[str, Any], job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]
) -> bool:
    """Return whether a job is rejected only because its alloc set is still missing, which an earlier file submits."""
    new = {one.job for one in wanted if one.is_alloc_set and one.plan["outcome"] == "submitted"}
    inside = JobReference(job.cell, job.tenant, str(body.get("alloc_set")))
    return inside in new and bool(problem["code"] == "no-such-alloc-set")


def job_files(folder: Path) -> Iterator[Path]:
    """Yield the job files in a folder and in those below it. Raises `CommandFailed` if there are none or too many."""
    if not folder.is_dir():
        detail = f"{folder} is not a folder; give a folder with job files"
        raise CommandFailed("no-folder", detail, fields={"FOLDER": detail}, status=BAD_USAGE)
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not 0 < len(files) <= MOST_FILES:
        detail = f"{folder} has {len(files)} job files ({', '.join(SUFFIXES)}); give a folder with 1 to {MOST_FILES}"
        raise CommandFailed("no-files", detail, fields={"FOLDER": detail}, status=BAD_USAGE)
    yield from files


def _spare(session: Context, owner: str, wanted: Sequence[Wanted]) -> list[JobReference]:
    """Return the cron jobs and the live jobs with the label of the owner that have no file: cron jobs first, alloc sets
    last. Only the tenants of the files and of the profile are searched.
    """
    kept = {one.job for one in wanted}
    tenants = sorted({job.tenant for job in kept} | ({session.profile.tenant} if session.profile.tenant else set()))
    cells = [cell["name"] for cell in session.client.pages("/api/v1/cells/") if not cell.get("study_of")]
    places = [(f"/api/v1/cells/{cell}", tenant) for cell in cells for tenant in tenants]
    own, pages = f"{LABEL}={owner}", session.client.pages
    rows = [row for path, tenant in places for row in pages(f"{path}/jobs/", tenant=tenant, state="live", selector=own)]
    rows.sort(key=lambda row: row["kind"] == "alloc-set")
    timed = _cron_jobs(session, places, own)
    found: list[JobReference] = [CronReference(row["cell"], row["tenant"], row["name"]) for row in timed]
    found += [JobReference(row["cell"], row["tenant"], row["name"]) for row in rows]
    return [job for job in found if job not in kept]


def _cron_jobs(session: Context, places: Sequence[tuple[str, str]], selector: str) -> list[dict[str, Any]]:
    """Return the cron jobs whose labels match. Portals before 2026-11-28 have no cron jobs, and answer "not found"."""
    pages = session.client.pages
    try:
        return [row for path, tenant in places for row in pages(f"{path}/cron-jobs/", tenant=tenant, selector=selector)]
    except CommandFailed as failed:
        if failed.code != "not-found":
            raise
        return []


def _change(session: Context, wanted: Sequence[Wanted], spare: Sequence[JobReference]) -> None:
    """Make all changes. If one is rejected, the others are still tried, but no job is killed. Raises `CommandFailed`
    that names all rejected jobs.
    """
    problems: dict[str, str] = {}
    rejected: set[JobReference] = set()
    for one in (one for one in wanted if one.changes):
        # A new job must not start on the result of an older job.
        lacks = [other for other in _waits_for(one.job, one.body) if other in rejected]
        if lacks and one.plan["outcome"] == "submitted":
            rejected.add(one.job)
            problems[str(one.file)] = f"{one.job} waits for {lacks[0]}, which was rejected, so it was not submitted"
            continue
        try:
            session.client.put(one.job.path, one.body, if_revision=one.plan.get("job_revision") or None)
        except CommandFailed as failed:
            # The client repeats a request whose answer was lost. Then the job may already have this spec.
            if failed.code == "revision-changed":
                now = _plan(session, one.job, one.body, wanted)
                if now["outcome"] == "unchanged":
                    continue
            rejected.add(one.job)
            problems[str(one.file)] = f"{one.job}: {failed.detail}"
    for job in spare if not problems else ():
        try:
            if isinstance(job, CronReference):
                session.client.delete(job.path)
                continue
            session.client.post(
                f"{job.path}kill/", {"reason": "its file is gone (borgctl apply --prune)", "confirm": None}
            )
        except CommandFailed as failed:
            large = failed.code == "confirm"
            problems[str(job)] = f"{failed.detail}; use `borgctl kill {job} --confirm N`" if large else failed.detail
    if problems:
        detail = f"{output.number(len(problems), 'change')} failed; run the command again to repeat them"
        raise CommandFailed("not-all-applied", detail, fields=problems)


def _end(job: JobReference) -> str:
    return "delete" if isinstance(job, CronReference) else "kill"


def _row(one: Wanted) -> dict[str, Any]:
    change = {"submitted": "submit", "updated": "update"}.get(one.plan["outcome"], one.plan["outcome"])
    return {"job": str(one.job), "change": change, "tasks": one.plan.get("tasks", {}), "file": str(one.file)}


def _show(rows: Sequence[dict[str, Any]]) -> None:
    words = {"added": "start", "removed": "stop", "restarted": "restart", "in_place": "change in place"}
    output.table(
        ["JOB", "CHANGE", "TASKS", "FILE"],
        [
            (
                row["job"],
                row["change"],
                ", ".join(
                    f"{row['tasks'][key]} {word}" for key, word in words.items() if row.get("tasks", {}).get(key)
                ),
                row["file"],
            )
            for row in rows
        ],
        empty="No jobs.",
    )
