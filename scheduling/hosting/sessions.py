"""Sessions of the simulator that the console opens on this host. Each session is a process with limits.

    session_open ─► checkpoint of the cell, made by a child ─► process `scheduling.simulator` ─► FOLDER/session.sock
    session_ask  ─► one JSON object to this socket, one back

A session belongs to one person. Its folder `faux/OWNER/NAME` in BORG_HOME contains the socket, the checkpoint, the log,
and `about.json`. The process has the limits `MEMORY_MIB` and `CPU_S`, ends after `IDLE_S` without a request, and has no
credentials. So any web process of the host can use the session, and nothing is left to clean up but files. The process
deletes the checkpoint when it has read it, because a checkpoint contains the jobs of all tenants.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from quota import clock
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.checkpoints.requests import checkpoint_of_moment
from scheduling.models import Cell

MOST_PER_PERSON, MOST = 2, 4
MEMORY_MIB, CPU_S, IDLE_S = 3_000, 3_600, 1_800
ANSWER_S = 40.0  # below the deadline of a request
# A session without a process after this time is counted as ended: the web process that opened it was stopped.
_OPENS_WITHIN_S = 90.0
_SOCKET, _ABOUT, _LOG, _DATA = "session.sock", "about.json", "session.log", "cell.checkpoint"
_LOCK = "opening.lock"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")
_LONGEST_PATH = 100  # the longest path of a Unix socket, in bytes
_IMPORTS = Path(__file__).resolve().parents[2]
# The sessions that this process has started. An ended process stays in the system's table until it is polled.
_children: list[subprocess.Popen[bytes]] = []
DRAWN = "drawn"


@dataclass(frozen=True, slots=True)
class HostedSession:
    """A session of the simulator that a person has opened. `about`: the source of the simulated cell. `opened_at`: the
    time in ISO 8601. `pid`: the process of the session; 0 if it was not started yet. `state`: opening, ready or ended.
    `problem`: why the process ended.
    """

    name: str
    about: str
    opened_at: str
    pid: int
    state: str = "opening"
    problem: str = ""


def sessions_of(principal: Principal) -> list[HostedSession]:
    """Return the sessions of the caller, in the order of their names. Raises `Forbidden` unless the caller is an
    SRE.
    """
    require(principal, Action.CELL_ADMIN)
    return _read_all(_home(principal).glob(f"*/{_ABOUT}"))


def session_open(
    *,
    principal: Principal,
    name: str,
    cell: Cell | None,
    revision: int | None = None,
    time: dt.datetime | None = None,
    hours: float = 0.0,
) -> None:
    """Start a session with a cell at a revision, at a time or at present, or with a random cell
    (`scheduling.simulator.traces.drawn`) if `cell` is None. `hours`: the number of hours after that moment whose
    recorded jobs and failures are repeated. The session is ready some seconds later.

    Raises `Rejected` for a wrong name or moment, and `Conflict` if the name is in use or too many sessions are open.
    """
    require(principal, Action.CELL_ADMIN)
    if not _NAME.fullmatch(name):
        raise invalid("name", f"{name[:40]!r} is not a valid name; use up to 20 lower-case letters, digits and '-'")
    folder = _home(principal) / name
    if len(str(folder / _SOCKET)) > _LONGEST_PATH:
        raise invalid("name", f"the path {folder} is too long for a Unix socket; set BORG_HOME to a shorter path")
    with _lock():
        _check_free(principal, name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        about = _about(cell, revision, time, hours)
        session = HostedSession(name, about, clock.now().isoformat(timespec="seconds"), pid=0)
        _store(folder, session)  # from now on, the limits count it
    try:
        pid = _start(principal, folder, about, cell, revision=revision, time=time, hours=hours)
        _store(folder, replace(session, pid=pid))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_free(principal: Principal, name: str) -> None:
    """Raise `Conflict` if the name is in use, or if too many sessions are open."""
    own = {one.name: one for one in sessions_of(principal)}
    if name in own and own[name].state != "ended":
        raise Conflict("session-exists", f"session {name} is open already; choose another name, or close this session")
    running = [one for one in own.values() if one.state != "ended"]
    everybody = sum(one.state != "ended" for one in _read_all(_root().glob(f"*/*/{_ABOUT}")))
    if len(running) >= MOST_PER_PERSON or everybody >= MOST:
        detail = (
            f"you have {len(running)} open sessions and this host has {everybody}; the limits are {MOST_PER_PERSON} and"
            f" {MOST}; close a session first"
        )
        raise Conflict("too-many-sessions", detail)


def session_ask(
    *, principal: Principal, name: str, request: dict[str, Any], wait_s: float = ANSWER_S
) -> dict[str, Any]:
    """Send a request to a session, and return its answer (see `scheduling.simulator.sessions.service`). `wait_s`: the
    longest time to wait for it, in seconds.

    Raises `NotFound` if the caller has no such session, and `Rejected` with the error message of the session if the
    request is wrong or the session is busy.
    """
    folder = _folder(principal, name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(wait_s)
        try:
            client.connect(str(folder / _SOCKET))
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as reader:
                line = reader.readline()
        except TimeoutError:
            detail = f"session {name} is still computing after {wait_s:g} s; look again later, or ask for fewer hours"
            raise Rejected("session-busy", detail, status=503) from None
        except OSError:
            line = b""
    if not line:
        now = _read(folder)
        why = "it is still opening" if now.state == "opening" else now.problem or "it closed the connection"
        detail = f"session {name} did not answer ({why}); try again in a few seconds, or open a new session"
        raise Conflict("session-ended", detail)
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise Rejected("session", str(answer["error"]))
    return answer


def session_close(*, principal: Principal, name: str) -> None:
    """End a session, and delete its files. Its simulated cell is lost. Raises `NotFound` for an unknown session, and
    `Conflict` if its process was not started yet.
    """
    folder = _folder(principal, name)
    session = _read(folder)
    if session.state != "ended":
        if not session.pid:
            raise Conflict("session-opening", f"session {name} is still opening; try again in a few seconds")
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(session.pid, signal.SIGKILL)
        for child in _children:
            if child.pid == session.pid:
                child.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _start(
    principal: Principal,
    folder: Path,
    about: str,
    cell: Cell | None,
    *,
    revision: int | None,
    time: dt.datetime | None,
    hours: float,
) -> int:
    """Start the process of a session, and return its id."""
    source, data = DRAWN, []
    if cell is not None:
        source = "checkpoint"
        with (
            checkpoint_of_moment(principal=principal, cell=cell, revision=revision, time=time, hours=hours) as content,
            (folder / _DATA).open("wb") as out,
        ):
            shutil.copyfileobj(content, out)
        data = ["--data", str(folder / _DATA), "--delete-data"]
    command = [sys.executable, "-m", "scheduling.simulator", source, str(folder), "--about", about, *data]
    command += ["--memory-mib", str(MEMORY_MIB), "--cpu-s", str(CPU_S), "--idle-s", str(IDLE_S)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_IMPORTS), "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}
    if cache := os.environ.get("NUMBA_CACHE_DIR"):
        environment["NUMBA_CACHE_DIR"] = cache
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    _children[:] = [child for child in _children if child.poll() is None] + [process]
    return process.pid


def _about(cell: Cell | None, revision: int | None, time: dt.datetime | None, hours: float) -> str:
    if cell is None:
        return DRAWN
    moment = revision if revision is not None else time.isoformat() if time else "now"
    return f"cell {cell.name} at {moment}" + (f", replaying {hours:g} h" if hours else "")


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Allow only one process of this host at a time to check the limits and store a new session."""
    _root().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (_root() / _LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _store(folder: Path, session: HostedSession) -> None:
    """Store a session. Other processes read the old file or the new one, but never a part of it."""
    new = folder / f"{_ABOUT}.new"
    new.write_text(json.dumps(asdict(session)))
    os.replace(new, folder / _ABOUT)


def _read_all(paths: Iterable[Path]) -> list[HostedSession]:
    """Return the sessions with these files, in their order. Sessions that are closed meanwhile are left out."""
    found = []
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError):
            found.append(_read(path.parent))
    return found


def _read(folder: Path) -> HostedSession:
    """Return the session in a folder, with its present state."""
    stored = json.loads((folder / _ABOUT).read_text())
    state, problem = "opening", ""
    if not stored["pid"]:
        if (clock.now() - dt.datetime.fromisoformat(stored["opened_at"])).total_seconds() > _OPENS_WITHIN_S:
            state, problem = "ended", "it was interrupted while it opened; open it again"
    elif not _runs(stored["pid"], folder):
        lines = (folder / _LOG).read_text(errors="replace").strip().splitlines()
        state, problem = "ended", lines[-1] if lines else "its process has ended; open it again"
    elif (folder / _SOCKET).exists():
        state = "ready"
    return HostedSession(**stored | {"state": state, "problem": problem})


def _runs(pid: int, folder: Path) -> bool:
    """Return whether the process `pid` is that of the session in `folder`. After the session has ended, another process
    may have the same id.
    """
    process = Path("/proc", str(pid))
    try:
        if arguments := (process / "cmdline").read_bytes():
            return str(folder).encode() in arguments.split(b"\0")
        # A process has no arguments for a moment while it starts, and after it has ended ("Z").
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _root() -> Path:
    return Path(settings.BORG_HOME) / "faux"


def _home(principal: Principal) -> Path:
    return _root() / hashlib.sha256(principal.name.encode()).hexdigest()[:16]


def _folder(principal: Principal, name: str) -> Path:
    require(principal, Action.CELL_ADMIN)
    folder = _home(principal) / name
    if not _NAME.fullmatch(name) or not (folder / _ABOUT).exists():
        raise NotFound("session", name, known=[one.name for one in sessions_of(principal)])
    return folder
