"""Commands for checkpoints, files with the state of a cell at one revision, and for study cells made from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context, DryRun, iso_time
from portal.cli.failure import CommandFailed, bad_usage
from portal.cli.paths import part

checkpoint = Commands(
    help="Checkpoints, and study cells (copies of cells): save, list, show, download, export, restore, import, discard."
)

_PAUSE_S = 0.25

_MOST_DIGITS = 18

Into = Annotated[str, typer.Option(help="Name of the new study cell, a copy that nobody can change.")]
Revision = Annotated[int, typer.Argument(min=0, help="Revision of the checkpoint; see `borgctl checkpoint list`.")]


@checkpoint.command("save")
def checkpoint_save(
    session: Context,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait until the checkpoint is saved.")] = 120.0,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Save a checkpoint of the cell's present state. The cell does not wait for it."""
    path = _path(session, cell)
    asked = session.client.post(path, dry_run=dry_run)
    if dry_run:
        return session.say(asked, f"A checkpoint would be saved at revision {asked['revision']} or later.")
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        saved = [one for one in session.client.get(path) if one["revision"] >= asked["revision"]]
        if saved:
            done = saved[-1]
            return session.say(done, f"Checkpoint at revision {done['revision']} is saved: {_size(done)}.")
        time.sleep(_PAUSE_S)
    problem = (
        f"no checkpoint at revision {asked['revision']} or later was saved within {timeout:g} s; check that a "
        "Celery worker runs, and read its log"
    )
    raise CommandFailed("not-saved", problem)


@checkpoint.command("list")
def checkpoint_list(session: Context, cell: CellOption = None) -> None:
    """List the checkpoints of a cell, newest first."""
    return session.table(
        session.client.get(_path(session, cell)),
        {"REVISION": "revision", "TIME": lambda row: output.when(row["taken_at"]), "SIZE": _size, "HISTORY": "history"},
        empty="No checkpoints. Save one with `borgctl checkpoint save`.",
    )


@checkpoint.command("show")
def checkpoint_show(session: Context, revision: Revision, cell: CellOption = None) -> None:
    """Show what a checkpoint contains: its sections with their rows, sizes and checksums. All checksums are verified
    first.
    """
    answer = session.client.get(f"{_path(session, cell)}{revision}/")
    if session.json:
        return output.as_json(answer)
    facts = {
        "cell": answer["cell"],
        "revision": answer["revision"],
        "time": output.when(answer["taken_at"]),
        "size": _size(answer),
        "history": answer["history"],
        "resources": ", ".join(answer["extra_resources"]),
    }
    output.details(facts.items(), width=12, indent="")
    return output.table(
        ("SECTION", "ROWS", "BYTES", "UNCOMPRESSED", "SHA-256"),
        [(one["name"], one["rows"], one["bytes"], one["raw_bytes"], one["sha256"]) for one in answer["sections"]],
        empty="",
    )


@checkpoint.command("download")
def checkpoint_download(
    session: Context,
    revision: Revision,
    out: Annotated[Path, typer.Option("--output", "-o", help="File to which the checkpoint is written.")],
    cell: CellOption = None,
) -> None:
    """Download a checkpoint into a file. It contains data of all tenants, but no values of environment variables."""
    _download(session, f"{_path(session, cell)}{revision}/content/", out)


@checkpoint.command("export")
def checkpoint_export(
    session: Context,
    revision: Revision,
    out: Annotated[Path, typer.Option("--output", "-o", help="File to which the checkpoint is written.")],
    cell: CellOption = None,
) -> None:
    """Download a redacted copy of a checkpoint, with which other people can reproduce a scheduler bug. Names are
    replaced by hashes, and commands and environments are left out. Sizes, times and ids stay.
    """
    _download(session, f"{_path(session, cell)}{revision}/redacted/", out)


@checkpoint.command("restore")
def checkpoint_restore(
    session: Context,
    at: Annotated[
        str,
        typer.Option(help="Moment to restore: a revision, 2h (two hours ago), or a time such as 2026-11-21T20:15Z."),
    ],
    into: Annotated[str | None, typer.Option(help="Name of the new study cell, a copy that nobody can change.")] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Set the cell itself back, instead of creating a copy (a study cell).")
    ] = False,
    if_revision: Annotated[
        int | None,
        typer.Option(min=0, help="With --in-place: confirm the losses that were shown for this revision of the cell."),
    ] = None,
    cell: CellOption = None,
    dry_run: DryRun = False,
) -> None:
    """Create a study cell with the state that a cell had at a revision or time, or set the cell itself back.

    With --into, the cell itself does not change. Nobody can change a study cell. No scheduler, machine, DNS name or
    invoice belongs to it, and only SREs see it.

    With --in-place, the cell requests the jobs and tasks of that time again. Without --if-revision, the command only
    shows what would be lost, and prints the command that does it, which is rejected if jobs change in between.
    """
    moment = {"revision": int(at)} if at.isdecimal() and len(at) < _MOST_DIGITS else {"time": _time(at)}
    path = f"{session.cell_path(cell)}checkpoints:restore"
    if in_place == (into is not None):
        what = "give --into NEW for a study cell, or --in-place to set the cell back"
        raise bad_usage(f"checkpoint restore needs exactly one target: {what}", into=what)
    if not in_place:
        if if_revision is not None:
            raise bad_usage(
                "--if-revision needs --in-place: give both, or neither", if_revision="give both, or neither"
            )
        answer = session.client.post(path, {"into": into, **moment}, slow=True, dry_run=dry_run)
        return session.say(answer, _created(answer, dry_run))
    shown = if_revision is None or dry_run
    confirmed = {} if if_revision is None else {"if_revision": if_revision}
    answer = session.client.post(f"{path}-in-place", {**moment, **confirmed}, slow=True, dry_run=shown)
    if session.json:
        return output.as_json(answer)
    for line in _restored(answer, shown=shown):
        output.say(line)


@checkpoint.command("import")
def checkpoint_import(
    session: Context,
    file: Annotated[Path, typer.Argument(help="File with a checkpoint, or with a redacted copy of a checkpoint.")],
    into: Into,
    dry_run: DryRun = False,
) -> None:
    """Create a study cell from the file of a checkpoint, for example a redacted copy from another installation."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CommandFailed(
            "input", f"cannot read {file}: {error.strerror}; check the path of the checkpoint"
        ) from error
    answer = session.client.upload(_study(into), iter([content]), len(content), dry_run=dry_run)
    return session.say(answer, _created(answer, dry_run))


@checkpoint.command("discard")
def checkpoint_discard(
    session: Context,
    study: Annotated[str, typer.Argument(help="Name of the study cell (a copy of a cell) to delete.")],
    dry_run: DryRun = False,
) -> None:
    """Delete a study cell with its journal and checkpoints. Other cells cannot be deleted."""
    return session.delete(_study(study), f"Study cell {study}", "deleted", dry_run=dry_run)


def _time(given: str) -> str:
    try:
        return iso_time(given)
    except (ValueError, OverflowError):
        what = "write a revision such as 4711, or 10m, 2h, 3d, or a time like 2026-11-21T20:15Z"
        raise bad_usage(f"--at {given!r} is neither a revision nor a time: {what}", at=what) from None


def _study(name: str) -> str:
    return f"/api/v1/studies/{part(name)}/"


def _created(answer: dict[str, Any], dry_run: bool) -> str:
    numbers = ", ".join(f"{answer[what]} {what}" for what in ("machines", "jobs", "tasks"))
    made = (
        f" {answer['made_specs']} job files are unknown, and were made from the tasks." if answer["made_specs"] else ""
    )
    copied = f"revision {answer['revision']} of cell {answer['of']}"
    return f"Study cell {answer['cell']} {output.would_be(dry_run)} created from {copied}: {numbers}.{made}"


def _restored(answer: dict[str, Any], *, shown: bool) -> list[str]:
    """Return lines about what a restore in place has changed, or would change if `shown`."""
    cell, to, before = answer["cell"], answer["to_revision"], answer["revision"]
    lines = [f"Cell {cell} {'would be' if shown else 'was'} set back from revision {before} to revision {to}."]
    for what, title in (
        ("stopped", "submitted since, so killed"),
        ("submitted", "ended since, so submitted again"),
        ("changed", "changed since, so updated to the earlier spec"),
    ):
        tasks = output.number(answer[what]["tasks"], "task")
        lines += _names(answer[what], f"{output.number(answer[what]['number'], 'job')} with {tasks}, {title}")
    for what, title in (
        ("tasks_revived", f"of live jobs pending again: killed or failed after revision {to}"),
        ("tasks_ended", f"of live jobs ended: dead at revision {to}"),
        ("tasks_finished", f"not repeated: finished after revision {to}"),
        ("tasks_elsewhere", f"kept on another machine than at revision {to}"),
    ):
        lines += [f"  {output.number(answer[what], 'task')} {title}"] if answer[what] else []
    for what, title in (
        ("joined", "joined since, and kept"),
        ("removed", "removed since, not brought back"),
        ("machines_changed", "with changed properties or state, kept as now"),
    ):
        lines += _names(answer[what], f"{output.number(answer[what]['number'], 'machine')} {title}")
    lines += [f"  Not set back: {one['job']}: {one['reason']}" for one in answer["problems"]]
    if more := answer["problems_number"] - len(answer["problems"]):
        lines.append(f"  Not set back: {output.number(more, 'other job')}")
    kinds = ", ".join(f"{number} {kind}" for kind, number in answer["events"].items())
    lines.append(f"  Events since, which stay in the journal: {kinds or 'none'}")
    lines.append("  Never set back: settings of the cell, packages, secrets, quota, orders, money, usage, logs, shells")
    again = f"borgctl checkpoint restore --cell {cell} --in-place"
    if shown:
        lines.append(f"To do it: {again} --at {to} --if-revision {before}")
    else:
        lines.append(
            f"The cell now has the new history {answer['history']}. To undo this restore: {again} --at {before}"
        )
    return lines


def _names(found: dict[str, Any], title: str) -> list[str]:
    """Return a line with a title and names, or no line if there are none."""
    more = ", …" if found["number"] > len(found["names"]) else ""
    return [f"  {title}: {', '.join(found['names'])}{more}"] if found["number"] else []


def _download(session: Context, path: str, out: Path) -> None:
    content = session.client.download(path)
    try:
        out.write_bytes(content)
    except OSError as error:
        raise CommandFailed(
            "output", f"cannot write {out}: {error.strerror}; choose another file with --output"
        ) from error
    size = {"size_bytes": len(content)}
    return session.say({"file": str(out), **size}, f"{out}: {_size(size)}.")


def _path(session: Context, cell: str | None) -> str:
    return f"{session.cell_path(cell)}checkpoints/"


def _size(row: dict[str, Any]) -> str:
    return output.quantity("disk", row["size_bytes"])
