"""Commands for Fauxmaster (§3.1): a simulated cell that the scheduler of production runs in virtual time.

A session is a process on this machine (`python -m scheduling.simulator`). The server package must be installed. A
running portal is needed only for a session that begins with a cell of the portal. These commands send requests to the
session through a Unix socket.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import Commands, Context, DryRun, OptionGroup, label
from portal.cli.failure import CommandFailed, bad_usage

faux = Commands(
    help="Simulate a cell with the scheduler of production: open, show, step, run, until, branch, diff, ask, close,"
    " record."
)

_SOCKET = "session.sock"
_LOG = "session.log"
_LONGEST_PATH = 100  # the longest path of a Unix socket, in bytes
_LOADING_S = 900.0
_NEEDED = ("numpy", "numba")
_CELL, _CHECKPOINT = "cell", "checkpoint"
_PAUSE_S = 1.0

SessionName = Annotated[str, typer.Option("--session", help="Name of the session (a running simulation).")]
BranchName = Annotated[str, typer.Option("--branch", help="Branch (copy of the simulated cell) to use.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="What to change: a setting, BAND.prod (true or false), or add_machines=N:CORES:GIB.",
    ),
]
Hours = Annotated[float, typer.Option(min=0.0001, help="Virtual hours to simulate.")]


@dataclass(kw_only=True)
class Place(OptionGroup):
    """The options that choose a session (a running simulation) and a branch (a copy of the simulated cell)."""

    opened: SessionName = "default"
    branch: BranchName = "main"

    def request(self, do: str, **fields: Any) -> dict[str, Any]:
        return _request(self.opened, {"do": do, "branch": self.branch, **fields})


@faux.command("open")
def faux_open(
    session: Context,
    source: Annotated[
        str,
        typer.Argument(
            help="Cell to simulate: checkpoint:FILE, cell:CELL, cell:CELL@REVISION, cell:CELL@TIME, drawn, google2011,"
            " google2011-cell, google2011-fifth, google2011-week or openb."
        ),
    ],
    data: Annotated[Path | None, typer.Argument(help="Folder with the files of the trace that SOURCE names.")] = None,
    name: SessionName = "default",
    replay: Annotated[
        float,
        typer.Option(
            min=0, help="With cell:CELL@TIME: repeat the jobs and failures of this number of hours after TIME."
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 2011,
    pass_every: Annotated[
        float, typer.Option(min=0.01, help="Virtual seconds from one scheduling pass to the next.")
    ] = 1.0,
) -> None:
    """Open a session: start a process that simulates a cell.

    `checkpoint:FILE`: a file of `borgctl checkpoint download` or `export`. `cell:CELL`: a cell of the portal as it is,
    or as it was at a revision or time (ISO 8601); with `--replay HOURS`, the jobs and failures of the hours afterwards
    arrive again. `drawn`: a cell with random machines and jobs, which needs no files. Other names are public traces.

    The session ends with `borgctl faux close`, or after four hours without a command.
    """
    missing = [module for module in _NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        detail = (
            f"a session needs the server package on this machine, and {', '.join(missing)} is missing; install"
            " borg-portal[server,cli], or run the command on a host of the server"
        )
        raise CommandFailed("not-installed", detail)
    kind, _, place = source.partition(":")
    if replay and kind != _CELL:
        raise bad_usage("--replay needs a live cell: write cell:CELL@TIME", replay="write cell:CELL@TIME")
    if kind == _CHECKPOINT and not Path(place).is_file():
        raise bad_usage(
            f"the file {place or 'after checkpoint:'} does not exist; write checkpoint:FILE with the path of a file"
        )
    if data is not None and not data.is_dir():
        raise bad_usage(f"the folder {data} does not exist; give the folder with the files of the trace")
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if _answers(folder):
        raise CommandFailed("session-open", f"session {name} is open already; close it with: borgctl faux close")
    if kind == _CELL:
        kind, data = _CHECKPOINT, _downloaded(session, place, replay, folder)
    elif kind == _CHECKPOINT:
        data = Path(place)
    (folder / _SOCKET).unlink(missing_ok=True)
    command = [sys.executable, "-m", "scheduling.simulator", kind, str(folder), "--about", source]
    command += ["--data", str(data.resolve())] if data is not None else []
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            [*command, "--seed", str(seed), "--pass-every", str(pass_every)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + _LOADING_S
    while not _answers(folder):
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            said = (folder / _LOG).read_text(errors="replace").strip().splitlines()
            reason = said[-1] if said else "its process gave no reason"
            problem = f"session {name} could not be opened: {reason}; its log is {folder / _LOG}"
            raise CommandFailed("session-failed", problem)
        time.sleep(0.05)
    return _show(session, _request(name, {"do": "show"}))


@faux.command("record")
def faux_record(
    session: Context,
    cell: Annotated[str, typer.Option(help="Name of the new study cell, which nobody can change.")],
    machines: Annotated[int, typer.Option(min=1, help="Number of machines, at most 2500.")] = 500,
    days: Annotated[float, typer.Option(help="Length of the simulated history in days, at most 28.")] = 7.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 2011,
    timeout: Annotated[
        float, typer.Option(min=1, help="Longest time to wait until the cell is complete, in seconds.")
    ] = 600.0,
    dry_run: DryRun = False,
) -> None:
    """Record a simulated week as the history of a new study cell, which nobody can change. You can then try pages, SQL,
    statistics and the views of past moments.

    The portal chooses machines and jobs at random, and runs its scheduler in virtual time. Nothing runs on machines,
    nothing is charged, and only SREs see the cell. `manage.py record` on a host of the portal can use a public trace
    instead.
    """
    name = label(cell, "cell")
    body = {"name": name, "machines": machines, "days": days, "seed": seed}
    asked = session.client.post("/api/v1/cells:record", body, dry_run=dry_run)
    if dry_run:
        return session.say(asked, f"Cell {name} would be recorded.")
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        found = [one for one in session.client.pages("/api/v1/cells/") if one["name"] == name]
        if found:
            return session.say(found[0], f"Cell {name} is recorded; its revision is {found[0]['revision']}.")
        time.sleep(_PAUSE_S)
    problem = f"cell {name} was not complete after {timeout:g} s; check that a Celery worker runs, and read its log"
    raise CommandFailed("not-recorded", problem)


@faux.command("show")
def faux_show(session: Context, place: Place) -> None:
    """Show the virtual time of a branch, and counts such as its running and pending tasks, placements and evictions."""
    return _show(session, place.request("show"))


@faux.command("step")
def faux_step(
    session: Context,
    place: Place,
    number: Annotated[int, typer.Argument(min=1, help="Number of steps.")] = 1,
    by: Annotated[str, typer.Option(help="Unit of a step: event, pass (of the scheduler) or second.")] = "event",
    back: Annotated[bool, typer.Option("--back", help="Go backwards in time.")] = False,
) -> None:
    """Go some steps forwards or backwards, and show the events that happened."""
    return _show(session, place.request("step", number=number, by=by, back=back))


@faux.command("run")
def faux_run(session: Context, place: Place, hours: Hours = 1.0) -> None:
    """Run for some virtual hours."""
    return _show(session, place.request("run", hours=hours))


@faux.command("until")
def faux_until(
    session: Context,
    place: Place,
    condition: Annotated[
        str, typer.Argument(help='Condition at which to stop, such as "pending > 100 and hours >= 24".')
    ],
    hours: Hours = 24.0,
) -> Any:
    """Run until a condition holds. The exit status is 1 if it does not hold within the given hours."""
    answer = place.request("until", condition=condition, hours=hours)
    _show(session, answer)
    return 0 if answer.get("held") else 1


@faux.command("branch")
def faux_branch(
    session: Context,
    place: Place,
    name: Annotated[str, typer.Argument(help="Name of the new branch.")],
    changes: Changes = None,
) -> None:
    """Copy a branch of the simulated cell as it is now, with changed settings. The figures of both branches, such as
    the number of evictions, are counted from zero again.
    """
    return _show(session, place.request("branch", name=name, set=_pairs(changes)))


@faux.command("diff")
def faux_diff(
    session: Context,
    first: Annotated[str, typer.Argument(help="First branch to compare.")],
    second: Annotated[str, typer.Argument(help="Second branch to compare.")],
    name: SessionName = "default",
) -> None:
    """Compare the figures of two branches, such as the numbers of placements and evictions, in one table."""
    return _show(session, _request(name, {"do": "diff", "first": first, "second": second}))


@faux.command("ask")
def faux_ask(
    session: Context,
    place: Place,
    question: Annotated[
        str, typer.Argument(help="Question to the simulator: fit, evict, drain, give-back or what-if.")
    ],
    cpu: Annotated[str, typer.Option(help="With fit or evict: CPU of each task, such as 500m.")] = "1",
    ram: Annotated[str, typer.Option(help="With fit or evict: RAM of each task, such as 2Gi.")] = "1Gi",
    tasks: Annotated[int, typer.Option(min=1, help="With evict: number of tasks in the new job.")] = 1,
    priority: Annotated[int, typer.Option(min=0, help="With fit or evict: priority of the new job.")] = 200,
    rack: Annotated[list[str] | None, typer.Option(help="With drain: rack to drain.")] = None,
    machine: Annotated[list[str] | None, typer.Option(help="With drain: host name of a machine to drain.")] = None,
    changes: Changes = None,
    hours: Hours = 24.0,
) -> None:
    """Ask a question. The simulated cell stays as it is.

    `fit`: how many more tasks of a job would fit. `evict`: which tasks a submission would evict. `drain`: what a drain
    of racks or machines would do. `give-back`: which machines the cell could give up, with almost no task left pending.
    `what-if`: what other settings or machines would change in the next hours.
    """
    wanted = {"cpu": cpu, "ram": ram, "tasks": tasks, "priority": priority, "hours": hours, "set": _pairs(changes)}
    return _show(session, place.request("ask", question=question, racks=rack, machines=machine, **wanted))


@faux.command("close")
def faux_close(session: Context, name: SessionName = "default") -> None:
    """Close a session, which is a running simulation. Its simulated cell is lost."""
    return _show(session, _request(name, {"do": "close"}))


def _downloaded(session: Context, place: str, replay: float, folder: Path) -> Path:
    """Download a checkpoint of a cell into a folder, and return the path of the file. `place`: CELL, CELL@REVISION or
    CELL@TIME. `replay`: the number of hours after that moment whose recorded jobs and failures the file also contains.
    """
    cell, _, moment = place.partition("@")
    which = {"revision" if moment.isdecimal() else "time": moment} if moment else {}
    content = session.client.download(f"{session.cell_path(cell)}checkpoints:moment", **which, hours=replay or None)
    path = folder / "cell.checkpoint"
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def _folder(name: str) -> Path:
    if not name.isidentifier():
        raise bad_usage(f"{name!r} cannot be the name of a session; use letters, digits and _")
    folder = Path.home() / ".cache" / "borgctl" / "faux" / name
    if len(str(folder / _SOCKET)) > _LONGEST_PATH:
        raise bad_usage(f"the path {folder} is too long for a socket; give the session a shorter name")
    return folder


def _answers(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(str(folder / _SOCKET)) == 0


def _request(name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a session (the process of a simulation), and return its answer. Raises `CommandFailed` if the
    session does not answer, or if it rejects the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(_folder(name) / _SOCKET))
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as reader:
                line = reader.readline()
        except OSError as error:
            detail = f"session {name} is not open ({error.strerror}); open it with: borgctl faux open SOURCE DATA"
            raise CommandFailed("no-session", detail) from error
    if not line:
        raise CommandFailed("session-failed", f"session {name} ended without an answer; open it again")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise CommandFailed("rejected", str(answer["error"]))
    return answer


def _show(session: Context, answer: dict[str, Any]) -> None:
    if session.json:
        return output.as_json(answer)
    for sentence in answer["text"]:
        output.say(sentence)
    if answer["columns"]:
        output.table(answer["columns"], answer["rows"], empty="Nothing.")
    return None


def _pairs(changes: list[str] | None) -> dict[str, str]:
    pairs = {}
    for change in changes or ():
        name, sign, value = change.partition("=")
        if not sign:
            raise bad_usage(f"{change!r} is not a change; write NAME=VALUE, such as reclamation=aggressive")
        pairs[name.strip()] = value.strip()
    return pairs
