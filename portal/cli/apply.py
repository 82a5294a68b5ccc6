"""`borgctl apply FOLDER`: bring jobs, cron jobs, workflows, templates and config files to the state that the files of a
folder describe, as from a Git repository.

    files ─► plan of each file ─► what changes, with all problems ─► confirmation ─► changes, then pruning

Each object gets the label `applied-by`, by which `--prune` finds objects whose file is gone. A change is made only if
the object is still as it was in the plan. `apply_kinds` has the kinds of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import jobfile, output
from portal.cli.apply_kinds import ALLOC_SET, CONFIG, JOB, KINDS, PLACES, Kind, read
from portal.cli.context import Commands, Context, DryRun, JobReference, Yes, label
from portal.cli.failure import BAD_USAGE, CommandFailed, bad_usage

app = Commands()
SUFFIXES = (".jsonnet", ".yaml", ".yml", ".json")
MOST_FILES = 10_000
_MOST_LINES = 40  # of the changes of one file that are printed; `--json` prints all of them
# Codes of rejections because of a job in `after`.
_OF_DEPENDENCIES = ("no-such-dependency", "dependency-missed")
# The fields of a file that name a config file.
_OF_CONFIGS = re.compile(r"(.*\.)?configs\[\d+\]\.name")
# Codes of errors that no change of a file mends.
_NOT_OF_THE_FILE = ("not-authenticated", "authentication-failed", "unreachable", "bad-token")


@dataclass(frozen=True)
class Wanted:
    """A file. `plan`: the API's answer about what would change."""

    file: Path
    kind: Kind
    job: JobReference
    body: dict[str, Any]
    plan: dict[str, Any]

    @property
    def changes(self) -> bool:
        return bool(self.plan["outcome"] != "unchanged")

    @property
    def is_new(self) -> bool:
        return bool(self.plan["outcome"] == "submitted")


@app.command()
def apply(
    session: Context,
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder with files of jobs, alloc sets, cron jobs, workflows, templates and config files, also in"
            " folders below it."
        ),
    ],
    owner: Annotated[
        str, typer.Option(help="Value of the label `applied-by` of these objects. Default: the name of the folder.")
    ] = "",
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Also end what has this label and no file any more: kill live jobs, cancel live workflows, and delete"
            " cron jobs, templates and config files.",
        ),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Submit and update everything whose file is in FOLDER. Shows what would change, and asks before anything changes.

    If a file is wrong or would be rejected by itself, nothing changes.
    """
    if prune and not owner:
        raise bad_usage("--prune ends jobs with the label of an owner; give --owner NAME", owner="is missing")
    if session.json and not (yes or dry_run):
        raise bad_usage("--json prints no question; give --yes or --dry-run", yes="is missing")
    owner = label(owner or folder.resolve().name, "owner")
    wanted = _planned(session, folder, owner)
    spare = _spare(session, owner, wanted)
    rows = [*map(_row, wanted), *(_spare_row(kind, job) for kind, job in spare if prune)]
    number = sum(row["change"] != "unchanged" for row in rows)
    if not dry_run and number:
        if not session.json:
            _show(rows)
        if not yes:
            output.sure("Make these changes?")
        _change(session, wanted, spare if prune else [])
        if not session.json:
            what = "job" if all(row["kind"] in (JOB, ALLOC_SET) for row in rows) else "object"
            output.say(f"Done: {output.number(number, what)} changed.")
    elif not session.json:
        _show(rows)
    if spare and not prune:
        names = ", ".join(str(job) for _, job in spare[:10]) + (", …" if len(spare) > 10 else "")
        verb = "kills them" if all(kind.end == "kill" for kind, _ in spare) else "ends or deletes them"
        output.remark(f"kept, although they have no file any more: {names}; `--owner {owner} --prune` {verb}")
    if session.json:
        output.as_json({"owner": owner, "dry_run": dry_run, "jobs": rows})


_Found = dict[tuple[str, JobReference], tuple[Path, Kind, dict[str, Any]]]


def _planned(session: Context, folder: Path, owner: str) -> list[Wanted]:
    """Return all files with their plans, in the order of their changes. Raises `CommandFailed` with all problems if a
    file is wrong or the portal would reject it.
    """
    found: _Found = {}
    problems: dict[str, str] = {}
    for file in job_files(folder):
        try:
            kind, job, body = read(session, jobfile.read(str(file)), owner)
        except CommandFailed as failed:
            problems[str(file)] = failed.detail
            continue
        place = ("" if kind.name in (JOB, ALLOC_SET) else kind.name, job)  # a job and an alloc set share their names
        if place in found:
            problems[str(file)] = f"{job} is also in {found[place][0]}; keep one of them"
        found[place] = (file, kind, body)
    wanted: list[Wanted] = []
    for kind, job, file, body in _in_order(found):
        try:
            plan = _plan(session, kind, job, body, wanted)
        except CommandFailed as failed:
            if failed.passing or failed.code in _NOT_OF_THE_FILE:
                raise
            problems[str(file)] = f"{job}: {failed.detail}"
            continue
        if problem := plan["problem"]:
            problems[str(file)] = f"{job}: {problem['detail']}"
        wanted.append(Wanted(file, kind, job, body, plan))
    if problems:
        detail = f"nothing is changed, because {output.number(len(problems), 'file')} would be rejected"
        raise CommandFailed("rejected", detail, fields=problems)
    return wanted


def _plan(
    session: Context, kind: Kind, job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]
) -> dict[str, Any]:
    plan = kind.plan(session, job, body)
    of_new = (_is_for_new_alloc_set, _is_for_new_job, _is_for_new_config)
    if plan["problem"] and any(check(plan["problem"], job, body, wanted) for check in of_new):
        is_new = plan.get("job_revision") in (None, "", "new")
        outcome = (
            {"outcome": "submitted", "tasks": {"added": body.get("tasks", 1)}} if is_new else {"outcome": "updated"}
        )
        plan |= {"problem": None, **outcome}
    return plan


def _in_order(found: _Found) -> Iterator[tuple[Kind, JobReference, Path, dict[str, Any]]]:
    """Yield the files in the order of their kinds, and each job behind the jobs that it waits for (`after`)."""
    jobs = {job: entry for (kind, job), entry in found.items() if not kind and entry[1].name == JOB}
    first = sorted(found, key=lambda place: PLACES.index(found[place][1].name))
    before = {job: [one for one in _waits_for(job, body) if one in jobs] for job, (_, _, body) in jobs.items()}
    done: set[JobReference] = set()
    for place in first:
        if place[1] not in jobs or place[0]:
            file, kind, body = found[place]
            yield kind, place[1], file, body
            continue
        stack = [place[1]]
        while stack:
            open_ = [one for one in before.pop(stack[-1], ()) if one not in done]
            stack += open_
            if not open_ and (one := stack.pop()) not in done:
                done.add(one)
                file, kind, body = jobs[one]
                yield kind, one, file, body


def _waits_for(job: JobReference, body: dict[str, Any]) -> list[JobReference]:
    after = body.get("after")
    return [JobReference(job.cell, job.tenant, str(name)) for name in after] if isinstance(after, dict) else []


def _is_for_new_job(problem: dict[str, Any], job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]) -> bool:
    """Return whether a job is rejected only because a job of its `after` is still missing or has ended, which an
    earlier file submits.
    """
    new = {one.job for one in wanted if one.is_new}
    named = {f"after.{other.name}" for other in _waits_for(job, body) if other in new}
    return problem["code"] in _OF_DEPENDENCIES and bool(problem["fields"]) and named.issuperset(problem["fields"])


def _is_for_new_alloc_set(
    problem: dict[str, Any], job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]
) -> bool:
    """Return whether a job is rejected only because its alloc set is still missing, which an earlier file submits."""
    new = {one.job for one in wanted if one.kind.name == ALLOC_SET and one.is_new}
    inside = JobReference(job.cell, job.tenant, str(body.get("alloc_set")))
    return inside in new and bool(problem["code"] == "no-such-alloc-set")


def _is_for_new_config(
    problem: dict[str, Any], job: JobReference, body: dict[str, Any], wanted: Sequence[Wanted]
) -> bool:
    """Return whether a file is rejected only because config files are still missing, which earlier files write."""
    new = {one.job.name for one in wanted if one.kind.name == CONFIG and one.is_new and one.job.tenant == job.tenant}
    fields = problem["fields"] or {"": ""}
    return all(_OF_CONFIGS.fullmatch(path) and _value_at(body, path) in new for path in fields)


def _value_at(body: Any, path: str) -> Any:
    """Return the value at a path such as `task.configs[0].name`, or None."""
    for step in re.findall(r"[^.\[\]]+", path):
        try:
            body = body[int(step)] if isinstance(body, list) else body[step]
        except (LookupError, TypeError, ValueError):
            return None
    return body


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


def _spare(session: Context, owner: str, wanted: Sequence[Wanted]) -> list[tuple[Kind, JobReference]]:
    """Return what has the label of the owner and no file, in the order of pruning. Only the tenants of the files and of
    the profile are searched.
    """
    kept = {(one.kind.name, one.job) for one in wanted}
    own = {session.profile.tenant} if session.profile.tenant else set()
    tenants = sorted({one.job.tenant for one in wanted} | own)
    cells = [cell["name"] for cell in session.client.pages("/api/v1/cells/") if not cell.get("study_of")]
    kinds = list(reversed(KINDS.values()))
    found = [(kind, job) for kind in kinds for job in kind.owned(session, cells, tenants, owner)]
    return [(kind, job) for kind, job in found if (kind.name, job) not in kept]


def _change(session: Context, wanted: Sequence[Wanted], spare: Sequence[tuple[Kind, JobReference]]) -> None:
    """Make all changes. If one is rejected, the others are still tried, but nothing is pruned. Raises `CommandFailed`
    that names all rejected files.
    """
    problems: dict[str, str] = {}
    rejected: set[JobReference] = set()
    for one in (one for one in wanted if one.changes):
        # A new job must not start on the result of an older job.
        lacks = [other for other in _waits_for(one.job, one.body) if other in rejected]
        if lacks and one.is_new:
            rejected.add(one.job)
            problems[str(one.file)] = f"{one.job} waits for {lacks[0]}, which was rejected, so it was not submitted"
            continue
        try:
            one.kind.write(session, one.job, one.body, one.plan)
        except CommandFailed as failed:
            # The client repeats a request whose answer was lost. Then the object may already have this content.
            if failed.code in ("revision-changed", "version-changed"):
                now = _plan(session, one.kind, one.job, one.body, wanted)
                if now["outcome"] == "unchanged":
                    continue
            rejected.add(one.job)
            problems[str(one.file)] = f"{one.job}: {failed.detail}"
    for kind, job in spare if not problems else ():
        try:
            kind.prune(session, job)
        except CommandFailed as failed:
            large = failed.code == "confirm"
            verb = "kill" if kind.end == "kill" else "workflow cancel"
            problems[str(job)] = f"{failed.detail}; use `borgctl {verb} {job} --confirm N`" if large else failed.detail
    if problems:
        detail = f"{output.number(len(problems), 'change')} failed; run the command again to repeat them"
        raise CommandFailed("not-all-applied", detail, fields=problems)


def _row(one: Wanted) -> dict[str, Any]:
    change = {"submitted": "submit", "updated": "update"}.get(one.plan["outcome"], one.plan["outcome"])
    return {
        "kind": one.kind.name,
        "job": str(one.job),
        "change": change,
        "tasks": one.plan.get("tasks", {}),
        "changes": [*one.plan.get("changes", ()), *(f"restarts {job}" for job in one.plan.get("restarted", ()))],
        "file": str(one.file),
    }


def _spare_row(kind: Kind, job: JobReference) -> dict[str, Any]:
    return {"kind": kind.name, "job": str(job), "change": kind.end, "tasks": {}, "changes": [], "file": ""}


def _show(rows: Sequence[dict[str, Any]]) -> None:
    words = {"added": "start", "removed": "stop", "restarted": "restart", "in_place": "change in place"}
    output.table(
        ["KIND", "NAME", "CHANGE", "TASKS", "FILE"],
        [
            (
                row["kind"],
                row["job"],
                row["change"],
                ", ".join(f"{row['tasks'][key]} {word}" for key, word in words.items() if row["tasks"].get(key)),
                row["file"],
            )
            for row in rows
        ],
        empty="No files.",
    )
    for row in (row for row in rows if row["changes"]):
        output.say(f"{row['kind']} {row['job']}:")
        for line in row["changes"][:_MOST_LINES]:
            output.say(f"  {line}")
        if (more := len(row["changes"]) - _MOST_LINES) > 0:
            output.say(f"  and {output.number(more, 'more line')}; --json shows all of them")
