"""What a task may request through the socket of its Borglet, and the answers.

    GET    /v1/locks?prefix=PREFIX[&after=NAME]          list
    GET    /v1/locks/NAME[?after=SEQUENCE&wait_s=S]      read, or watch
    PUT    /v1/locks/NAME   {content[, if_sequence][, token]}
    DELETE /v1/locks/NAME[?if_sequence=N]
    POST   /v1/acquire      {name[, wait_s][, content]}
    POST   /v1/release      {name[, token]}

The Borglet answers `GET /v1/session` itself. A request says nothing about the task: the Borglet knows it from the
socket, and PostgreSQL knows whether the machine runs it.
"""

from __future__ import annotations

import re
import uuid
from collections import OrderedDict
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from borglet.messages import TaskRun
from quota.vocabulary.errors import Forbidden, NotFound, Rejected, invalid
from scheduling.journal.sql import query
from scheduling.locks import locks, selectors
from scheduling.locks.lock_rules import MOST_WAIT_S, check_content, check_name, covers
from scheduling.locks.locks import Lock
from scheduling.locks.notices import LockKey
from scheduling.locks.sessions import Connected, Seeker, Space
from scheduling.models import JobSpec
from scheduling.spec import parser

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?", re.ASCII)
_JOB = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MOST_KNOWN = 10_000
# The locks in job files, by job and version: for ranges of task indexes. A version never changes.
_known: OrderedDict[tuple[int, int], tuple[tuple[int, int, tuple[str, ...]], ...]] = OrderedDict()


class _Acquire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    wait_s: float = 0.0
    content: str | None = None


class _Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    token: int | None = None


class _Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str
    if_sequence: int | None = None
    token: int | None = None


class Request(msgspec.Struct, frozen=True):
    """A request of a task, read. `verb`: list, read, write, delete, acquire or release. `name`: of the lock, or the
    prefix of a list. `after`: a sequence number for a watch, or a name for a list.
    """

    verb: str
    name: str
    wait_s: float = 0.0
    after: int | None = None
    after_name: str = ""
    content: str | None = None
    if_sequence: int | None = None
    token: int | None = None


def read_request(method: str, target: str, body: str) -> Request:
    """Return a request. Raises `Rejected` with the name of the wrong field. Pure."""
    parts = urlsplit(target)
    path, given = unquote(parts.path), parse_qs(parts.query, keep_blank_values=True)
    name = path.removeprefix("/v1/locks/") if path.startswith("/v1/locks/") else ""
    match method, path:
        case "POST", "/v1/acquire":
            _parameters(given)
            acquire = _body(body, _Acquire)
            _check_wait(acquire.wait_s)
            request = Request("acquire", acquire.name, acquire.wait_s, content=acquire.content)
        case "POST", "/v1/release":
            _parameters(given)
            done = _body(body, _Release)
            request = Request("release", done.name, token=done.token)
        case "GET", "/v1/locks" | "/v1/locks/":
            values = _parameters(given, "prefix", "after")
            return Request("list", values.get("prefix", "")[:250], after_name=values.get("after", "")[:250])
        case "GET", _ if name:
            values = _parameters(given, "after", "wait_s")
            wait_s = values.get("wait_s", "0")
            if not _SECONDS.fullmatch(wait_s):
                raise invalid("wait_s", f"{wait_s[:20]!r} is not a time in seconds; give 0 to {MOST_WAIT_S:g}")
            _check_wait(float(wait_s))
            request = Request("read", name, float(wait_s), _number(values, "after"))
        case "PUT", _ if name:
            _parameters(given)
            put = _body(body, _Write)
            request = Request("write", name, content=put.content, if_sequence=put.if_sequence, token=put.token)
        case "DELETE", _ if name:
            values = _parameters(given, "if_sequence")
            request = Request("delete", name, if_sequence=_number(values, "if_sequence"))
        case _:
            detail = f"there is no {method[:10]} {path[:80]}; the guide to locks lists all requests"
            raise Rejected("not-found", detail, status=404)
    check_name(request.name)
    if request.content is not None:
        check_content(request.content)
    return request


class Caller(msgspec.Struct, frozen=True):
    """The task that has sent a request. `names`: the locks in its job file. `runs`: the master wants it to run here."""

    space: Space
    seeker: Seeker
    names: tuple[str, ...]
    runs: bool

    def key(self, name: str) -> LockKey:
        return LockKey(self.space.cell_id, self.space.tenant_id, name)


def well_formed(run: TaskRun) -> bool:
    """Return whether these can be the numbers of a run. A machine could send others."""
    numbers = (run.key.index, run.key.incarnation, run.run)
    return _JOB.fullmatch(run.key.job) is not None and all(0 <= number < 2**31 for number in numbers)


def caller_of(machine: Connected, run: TaskRun) -> Caller:
    """Return the task of a run on this machine. Raises `Forbidden` if the machine should neither run nor stop it, or
    has a newer connection.
    """
    key = run.key
    if not well_formed(run):
        raise Forbidden("lock.use", "this is not a run of a task; use the socket of the task")
    rows = query(
        "SELECT j.id, j.name, j.cell_id, j.tenant_id, t.spec_version,"
        " t.incarnation = %s AND t.machine_id = %s AND t.state = 'running', EXISTS (SELECT 1"
        " FROM scheduling_departure AS d WHERE d.task_id = t.id AND d.incarnation = %s AND d.machine_id = %s)"
        " FROM scheduling_job AS j JOIN scheduling_task AS t ON t.job_id = j.id AND t.index = %s"
        " JOIN scheduling_machine AS m ON m.id = %s AND m.session = %s WHERE j.uid = %s",
        [*(key.incarnation, machine.machine_id) * 2, key.index, *machine, uuid.UUID(hex=key.job)],
    )
    if not rows or not (rows[0][5] or rows[0][6]):
        detail = f"this machine does not run task {key}; another incarnation of it may run elsewhere"
        raise Forbidden("lock.use", detail)
    job_id, job, cell_id, tenant_id, version, runs, _ = rows[0]
    seeker = Seeker(owner=f"{job}/{key.index}", machine=machine.machine_id, run=run)
    return Caller(Space(cell_id, tenant_id), seeker, _names(job_id, version, key.index), bool(runs))


def check_use(caller: Caller, request: Request) -> None:
    """Raise `Forbidden` if the job file of the task does not allow the request."""
    if request.verb != "list" and not covers(caller.names, request.name):
        allowed = ", ".join(caller.names) or "no lock"
        detail = f"the task may use {allowed}, and not lock {request.name}; add the lock to task.locks of its job file"
        raise Forbidden("lock.use", detail)
    if request.verb == "acquire" and not caller.runs:
        detail = "the task is being stopped, so it acquires no lock; release the locks that it holds"
        raise Forbidden("lock.use", detail)


class Done(msgspec.Struct, frozen=True):
    """What a request has done. `holds`: whether the task's session holds locks; None if the request does not change
    this. `session`: its id.
    """

    body: dict[str, Any]
    holds: bool | None = None
    session: str = ""


def perform(caller: Caller, request: Request) -> Done:
    """Do what a request asks, without waiting. Raises `Rejected`."""
    space, seeker, name = caller.space, caller.seeker, request.name
    match request.verb:
        case "acquire":
            lock, again = locks.acquire(space, name, seeker, content=request.content)
            assert lock.session is not None
            return Done(shown(lock) | {"again": again}, True, lock.session.hex)
        case "release":
            left = locks.release(space, name, seeker, token=request.token)
            return Done({"name": name, "released": True}, left is not None, left.uid.hex if left is not None else "")
        case "write":
            assert request.content is not None
            limits = {"if_sequence": request.if_sequence, "token": request.token}
            return Done(shown(locks.write(space, name, request.content, actor=seeker.owner, **limits)))
        case "delete":
            locks.delete(space, name, if_sequence=request.if_sequence)
            return Done({"name": name, "deleted": True})
        case "list":
            found, more = selectors.page(space, prefix=name, after=request.after_name, within=caller.names)
            return Done({"results": [shown(lock, content=False) for lock in found], "more": more})
        case _:
            return Done(shown(locks.lock_named(space, name)))


def shown(lock: Lock | None, *, name: str = "", content: bool = True) -> dict[str, Any]:
    """Return a lock for JSON. Raises `NotFound` if it is None."""
    if lock is None:
        raise NotFound("lock", name)
    return {
        "name": lock.name,
        **({"content": lock.content} if content else {}),
        "sequence": lock.sequence,
        "token": lock.token,
        "held": lock.holder is not None,
        "holder": lock.holder or "",
        "acquired_at": lock.acquired_at.isoformat() if lock.acquired_at is not None else None,
        "changed_at": lock.changed_at.isoformat(),
        "changed_by": lock.changed_by,
    }


def _names(job_id: int, version: int, index: int) -> tuple[str, ...]:
    place = job_id, version
    segments = _known.get(place)
    if segments is None:
        row = JobSpec.objects.select_related("job__cell").get(job_id=job_id, version=version)
        try:
            spec = parser.load(row.spec, extra=tuple(row.job.cell.extra_resources))
            segments = tuple((first, last, task.locks) for first, last, task in spec.segments())
        except Rejected:  # the Borglet does not start such a task either
            segments = ()
        _known[place] = segments
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    _known.move_to_end(place)
    return next((names for first, last, names in segments if first <= index <= last), ())


def _body(body: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        raise invalid(where.strip("`.") or "body", f"{what}; correct it") from None
    except (msgspec.MsgspecError, UnicodeError):
        raise invalid("body", "it is not JSON; send a JSON object") from None


def _parameters(given: dict[str, list[str]], *known: str) -> dict[str, str]:
    for name, values in given.items():
        if name not in known:
            cure = f"give {' or '.join(known)}" if known else "give it in the body"
            raise invalid(name[:40], f"this parameter is unknown; {cure}")
        if len(values) > 1:
            raise invalid(name, "it is given more than once; give it once")
    return {name: values[0] for name, values in given.items()}


def _number(values: dict[str, str], name: str) -> int | None:
    if name not in values:
        return None
    if not _NUMBER.fullmatch(values[name]):
        raise invalid(name, f"{values[name][:20]!r} is not a number; give the number from an earlier answer")
    return int(values[name])


def _check_wait(wait_s: float) -> None:
    if not 0 <= wait_s <= MOST_WAIT_S:
        raise invalid("wait_s", f"{wait_s:g} is not accepted; give 0 to {MOST_WAIT_S:g} seconds")
