"""Commands for checkpoints: files with the state of a cell at one revision."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context, DryRun
from portal.cli.failure import CommandFailed

checkpoint = Commands(help="Checkpoints, the state of a cell at one revision: save, list, show, download.")

_PAUSE_S = 0.25

Revision = Annotated[int, typer.Argument(min=0, help="Revision of the checkpoint; see `borgctl checkpoint list`.")]


@checkpoint.command("save")
def checkpoint_save(
    session: Context,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the file.")] = 120.0,
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
        f"no checkpoint at revision {asked['revision']} or later within {timeout:g} s; see whether a worker runs, "
        "and its log"
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
    out: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    cell: CellOption = None,
) -> None:
    """Download a checkpoint into a file. It contains data of all tenants, but no values of environment variables."""
    _download(session, f"{_path(session, cell)}{revision}/content/", out)


@checkpoint.command("export")
def checkpoint_export(
    session: Context,
    revision: Revision,
    out: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    cell: CellOption = None,
) -> None:
    """Download a redacted copy of a checkpoint, with which other people can reproduce a scheduler bug. Names are
    replaced by hashes, and commands and environments are left out. Sizes, times and ids stay.
    """
    _download(session, f"{_path(session, cell)}{revision}/redacted/", out)


def _download(session: Context, path: str, out: Path) -> None:
    content = session.client.download(path)
    try:
        out.write_bytes(content)
    except OSError as error:
        raise CommandFailed("output", f"cannot write {out}: {error.strerror}") from error
    size = {"size_bytes": len(content)}
    return session.say({"file": str(out), **size}, f"{out}: {_size(size)}.")


def _path(session: Context, cell: str | None) -> str:
    return f"{session.cell_path(cell)}checkpoints/"


def _size(row: dict[str, Any]) -> str:
    return output.quantity("disk", row["size_bytes"])
