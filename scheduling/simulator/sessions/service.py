"""A process that holds one session, and answers requests on a socket of the file system.

    borgctl faux … ─► FOLDER/session.sock ─► one JSON object per line ─► Session ─► one JSON object per line

Each request is an object with the field `do`. The answer has `text`, `columns` and `rows`, or `error` with a sentence.
Only the user that owns the folder can connect. The process ends after `close`, or after a time without requests.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from quota.vocabulary.resources import CPU, DISK, RAM, SIZE, parse_quantity
from scheduling.core.vocabulary import events
from scheduling.simulator.questions.alternatives import what_if
from scheduling.simulator.questions.capacity import JobShape, evict, fit
from scheduling.simulator.questions.machines import drain, give_back, machines_of
from scheduling.simulator.sessions import answers
from scheduling.simulator.sessions.answers import Answer, answer
from scheduling.simulator.sessions.conditions import parse
from scheduling.simulator.sessions.session import MAIN, Branch, Session

SOCKET = "session.sock"
IDLE_S = 4 * 3600.0
"""The process ends after this many seconds without a request."""

_LONGEST_REQUEST = 1 << 20
_Request = Mapping[str, Any]
_RECENT = 20
_MOST_HOURS = 24 * 31


class SessionService:
    """Answers requests about one session."""

    def __init__(self, session: Session, source: str) -> None:
        self.session = session
        self.source = source
        self.closed = False
        self._handlers: dict[str, Callable[[_Request], Answer]] = {
            "show": self._show,
            "step": self._step,
            "run": self._run,
            "until": self._until,
            "branch": self._branch,
            "diff": self._diff,
            "ask": self._ask,
            "close": self._close,
        }

    def respond(self, request: _Request) -> Answer:
        """Return the answer to one request. A request that is wrong gets an answer with `error`."""
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            return {"error": f"request {request.get('do')!r} is unknown; the requests are {', '.join(self._handlers)}"}
        try:
            return handler(request)
        except (LookupError, ValueError, msgspec.ValidationError) as error:
            return {"error": str(error.args[0] if error.args else error)}

    def _own(self, request: _Request) -> Branch:
        return self.session.branch(str(request.get("branch") or MAIN))

    def _show(self, request: _Request) -> Answer:
        branch = self._own(request)
        figures = branch.simulation.cell.keeper.figures.as_rows()
        rows = [("source", self.source), ("branches", ", ".join(self.session.branches)), *self._position(branch)]
        return answer([], ("FIGURE", "VALUE"), [*rows, *figures.items()])

    def _position(self, branch: Branch) -> list[tuple[str, Any]]:
        simulation = branch.simulation
        return [
            ("hours", round(simulation.now / 3600, 4)),
            ("revision", simulation.state.revision),
            ("events so far", simulation.cell.journal.count),
            ("tasks running", simulation.cell.running),
            ("tasks pending", simulation.cell.pending),
            ("digest", simulation.cell.journal.digest()),
        ]

    def _step(self, request: _Request) -> Answer:
        branch = self._own(request)
        number = int(request.get("number", 1))
        unit = str(request.get("by", "event"))
        if number < 1 or unit not in ("event", "pass", "second"):
            raise ValueError("`number` must be 1 or more, and `by` must be event, pass or second")
        wanted = {"event": "events", "pass": "passes", "second": "seconds"}[unit]
        count = branch.simulation.cell.journal.count
        move: Callable[..., None] = branch.backwards if request.get("back") else branch.forwards
        move(**{wanted: number})
        return self._arrived(branch, since=count)

    def _run(self, request: _Request) -> Answer:
        branch = self._own(request)
        hours = _hours(request, "1")
        count = branch.simulation.cell.journal.count
        branch.forwards(seconds=3600 * hours)
        return self._arrived(branch, since=count)

    def _until(self, request: _Request) -> Answer:
        branch = self._own(request)
        condition = parse(str(request.get("condition", "")))
        hours = _hours(request, "24")
        count = branch.simulation.cell.journal.count
        held = branch.until(condition, at_most_s=3600 * hours)
        found = self._arrived(branch, since=count)
        first = "The condition holds." if held else f"The condition did not hold within {hours:g} hours."
        return {**found, "text": [first, *found["text"]], "held": held}

    def _arrived(self, branch: Branch, *, since: int) -> Answer:
        """Return an answer with the virtual time of a branch, the numbers of its tasks, and its newest events. `since`:
        the number of events that the user has already seen.
        """
        simulation = branch.simulation
        journal = simulation.cell.journal
        fresh = min(max(0, journal.count - since), _RECENT)
        rows = [
            (record.revision, round(record.time, 3), *_event_columns(record.event))
            for record in list(journal.recent)[len(journal.recent) - fresh :]
        ]
        text = [
            f"Hour {simulation.now / 3600:.4f}: {simulation.cell.running} tasks run,"
            f" {simulation.cell.pending} are pending; {journal.count} events so far."
        ]
        return answer(text, ("REVISION", "SECOND", "EVENT", "DETAIL") if rows else (), rows)

    def _branch(self, request: _Request) -> Answer:
        name = str(request.get("name", ""))
        if not name.isidentifier():
            raise ValueError(
                f"{name!r} cannot be the name of a branch; use letters, digits and _, and begin with a letter"
            )
        changes = {str(key): str(value) for key, value in dict(request.get("set") or {}).items()}
        self.session.fork(name, source=str(request.get("branch") or MAIN), changes=changes)
        return answer([f"Branch {name} exists. The figures of both branches are counted from zero now."])

    def _diff(self, request: _Request) -> Answer:
        first, second = str(request.get("first") or MAIN), str(request.get("second", ""))
        rows = answers.differences(self.session.diff(first, second))
        left, right = (self.session.branch(name).simulation.now / 3600 for name in (first, second))
        text = [] if left == right else [f"{first} is at hour {left:.4f}, and {second} at hour {right:.4f}."]
        return answer(text, ("FIGURE", first.upper(), second.upper(), "DIFFERENCE"), rows)

    def _ask(self, request: _Request) -> Answer:
        simulation = self._own(request).simulation
        question = str(request.get("question", ""))
        if question == "fit":
            return answers.format_fit(fit(simulation, _shape(request)))
        if question == "evict":
            return answers.format_victims(evict(simulation, _shape(request)))
        if question == "drain":
            racks, machines = list(request.get("racks") or ()), list(request.get("machines") or ())
            if not racks and not machines:
                raise ValueError("the question drain needs racks or machines; name at least one of them")
            return answers.format_drained(drain(simulation, machines_of(simulation, racks=racks, hostnames=machines)))
        if question == "give-back":
            return answers.format_given_back(give_back(simulation))
        if question == "what-if":
            changes = {str(key): str(value) for key, value in dict(request.get("set") or {}).items()}
            if not changes:
                raise ValueError(
                    "the question what-if needs at least one change; give one, such as reclamation=aggressive"
                )
            hours = float(request.get("hours", 24.0))
            return answers.format_alternative(what_if(simulation, changes, hours=hours))
        raise ValueError(f"question {question!r} is unknown; the questions are fit, evict, drain, give-back, what-if")

    def _close(self, request: _Request) -> Answer:
        self.closed = True
        return answer(["The session is closed."])


def _hours(request: _Request, usual: str) -> float:
    """Return the field `hours` of a request, or `usual` if the request does not have it. Raises `ValueError` if the
    number is not in the allowed range.
    """
    hours = float(request.get("hours", usual))
    if not 0 < hours <= _MOST_HOURS:
        raise ValueError(f"hours is {hours:g}; give a number above 0, up to {_MOST_HOURS}")
    return hours


def _shape(request: _Request) -> JobShape:
    limit = [0] * SIZE
    for resource, name, usual in ((CPU, "cpu", "1"), (RAM, "ram", "1Gi"), (DISK, "disk", "0")):
        limit[resource] = parse_quantity(name, str(request.get(name) or usual))
    priority = int(request.get("priority", 200))
    return JobShape(
        limit=tuple(limit),
        tasks=max(1, int(request.get("tasks", 1))),
        priority=priority,
        latency_sensitive=priority >= 120,
        max_per_machine=int(request.get("max_per_machine", 0)),
    )


def _event_columns(event: events.Event) -> tuple[str, str]:
    data = json.loads(events.encode(event))
    kind = data.pop("kind")
    known = ("name", "job_id", "index", "machine_id", "cause", "how", "state", "incarnation")
    return kind, " ".join(f"{key}={data[key]}" for key in known if key in data)


def serve(service: SessionService, folder: Path, *, idle_s: float = IDLE_S) -> None:
    """Answer requests on the socket in `folder` until the session is closed. Raises `OSError` if the socket exists."""
    path = folder / SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        try:
            path.chmod(0o600)
            server.listen()
            server.settimeout(idle_s)
            while not service.closed:
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    return
                with connection, contextlib.suppress(OSError):
                    _answer_one(service, connection)
        finally:
            path.unlink(missing_ok=True)


def _answer_one(service: SessionService, connection: socket.socket) -> None:
    connection.settimeout(10.0)
    with connection.makefile("rb") as reader:
        line = reader.readline(_LONGEST_REQUEST)
    try:
        request = json.loads(line)
    except ValueError:
        request = {}
    found = service.respond(request if isinstance(request, dict) else {})
    connection.settimeout(60.0)
    connection.sendall(json.dumps(found).encode() + b"\n")
