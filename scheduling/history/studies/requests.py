"""Requests of SREs about study cells, for web processes. A process of its own does the work, so that its memory is free
again afterwards. Light: imports no heavy library.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from typing import Any, BinaryIO

import msgspec

from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.cells.cells import check_new
from scheduling.history.checkpoints.file import CheckpointError, verify
from scheduling.models import Cell

_WITHIN_S = 600.0  # below the deadline of a long request (`portal.http.request_deadlines`)
# Each child needs much memory, and holds one of the few threads for long requests.
_child = threading.Semaphore(1)


def study_restore_requested(
    *,
    principal: Principal,
    cell: Cell,
    into: str,
    revision: int | None = None,
    time: dt.datetime | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Create a study cell with the state that a cell had at a revision or time. Exactly one of them is given. Return
    the study cell as a document. Raises the errors of `study_restore`, and `Rejected` if it takes too long.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    check_new(Cell(name=into))
    if (revision is None) == (time is None):
        raise invalid("revision", "exactly one of revision and time is needed; give only a revision or only a time")
    if revision is not None and revision > cell.revision:
        raise invalid("revision", f"{revision} is not a revision of cell {cell.name}; give 0 to {cell.revision}")
    at = ["--revision", str(revision)] if time is None else ["--time", time.isoformat()]
    return run_command(principal, ["study", "restore", cell.name, "--into", into, *at], dry_run=dry_run)


def study_import_requested(
    *, principal: Principal, source: BinaryIO, into: str, dry_run: bool = False
) -> dict[str, Any]:
    """Create a study cell from the file of a checkpoint. Return the study cell as a document. Raises the errors of
    `study_import`, and `Rejected` if it takes too long.
    """
    require(principal, Action.CELL_ADMIN)
    check_new(Cell(name=into))
    with tempfile.NamedTemporaryFile(prefix="borg-import-") as file:
        shutil.copyfileobj(source, file)
        file.seek(0)
        try:
            verify(file)  # type: ignore[arg-type]  # the wrapper has the methods of a file
        except CheckpointError as error:
            raise Rejected("checkpoint-damaged", str(error), fields={"section": error.section}) from error
        return run_command(principal, ["study", "import", file.name, "--into", into], dry_run=dry_run)


def run_command(principal: Principal, arguments: list[str], *, dry_run: bool) -> dict[str, Any]:
    """Run a command of `manage.py` that copies or restores a cell, and return the document that it prints. Raises the
    rejection that it prints, and `Rejected` if this process already runs one, or if it takes too long.
    """
    if not _child.acquire(blocking=False):
        detail = "this process copies or restores another cell now; try again in a minute"
        raise Rejected("study-busy", detail, status=503)
    try:
        return _run_child(principal, arguments, dry_run=dry_run)
    finally:
        _child.release()


def _run_child(principal: Principal, arguments: list[str], *, dry_run: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "django", *arguments, "--json"]
    command += [f"--actor={principal.name}", f"--request={principal.request_id}", *(["--dry-run"] if dry_run else [])]
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": ""}
    try:
        done = subprocess.run(command, env=env, capture_output=True, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        detail = f"the command takes longer than {_WITHIN_S:g} s; run `manage.py {arguments[0]}` on the server instead"
        raise Rejected("too-slow", detail, status=503) from error
    if done.returncode:
        printed = done.stderr.decode(errors="replace").strip()[-1000:]
        raise RuntimeError(f"`manage.py {arguments[0]}` failed; it printed: {printed}")
    answer: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])  # log lines come before it
    if "code" in answer:
        raise Rejected(**answer)
    return answer
