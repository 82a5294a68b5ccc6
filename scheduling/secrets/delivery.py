"""The values that a machine gets for tasks which it should run now.

Borglet ─► link: keys of incarnations ─► this machine has them? granted? ─► values, decrypted ─► Borglet's memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import structlog

from borglet.messages import SecretValue, SecretValues, TaskKey
from quota.vocabulary.errors import Rejected
from scheduling.journal.sql import query
from scheduling.models import SecretVersion
from scheduling.secrets import known_secrets
from scheduling.secrets.key_ring import key_ring
from scheduling.secrets.sealing import CannotOpen, Place
from scheduling.spec import parser
from scheduling.spec.schema import ConfigUse, SecretUse

log = structlog.get_logger(__name__)

MOST_KEYS = 100
# Incarnations after this size get their values with a later request. A task has at most 2 MiB.
MOST_BYTES = 1024 * 1024
AGAIN = "the answer of the link server is full; the machine requests the secrets of this task again"
_MOST_REPORTED = 10_000
_reported: set[tuple[str, str, int, str]] = set()  # values whose missing key is in the log already


class TaskOfMachine(msgspec.Struct, frozen=True):
    """A task that the machine should run, and the secrets and config files that it uses."""

    tenant: str
    job: str
    cell: str
    uses: tuple[SecretUse, ...]
    configs: tuple[ConfigUse, ...] = ()
    job_id: int = 0
    waiting: bool = False  # the machine has not started it yet, or starts it again


def values_for(
    machine_id: int, keys: Sequence[TaskKey], tasks: Mapping[TaskKey, TaskOfMachine] | None = None
) -> list[SecretValues]:
    """Return the values of the secrets of incarnations, one answer per key. `tasks`: the result of `tasks_of`, if the
    caller has it. Makes three queries for any number of keys.

    A secret that does not exist, is not granted to the job or cannot be decrypted has a problem instead of a value. So
    has an incarnation that the machine should not run.
    """
    tasks = tasks_of(machine_id, keys) if tasks is None else tasks
    known = known_secrets.read_known({(task.tenant, use.name) for task in tasks.values() for use in task.uses})
    wanted: set[Place] = set()
    for task in tasks.values():
        for use in task.uses:
            secret = known.get((task.tenant, use.name))
            if secret is not None and (version := secret.version_for(use, task.job, task.cell)):
                wanted.add(Place(task.tenant, use.name, version))
    opened = _opened(wanted)
    answers: list[SecretValues] = []
    left = MOST_BYTES
    for key in keys:
        if key not in tasks:
            answers.append(SecretValues([], [f"this machine does not run task {key}; it asks only for its own tasks"]))
        elif left <= 0:
            answers.append(SecretValues([], [AGAIN]))
        else:
            answers.append(_answer(tasks[key], known, opened))
            left -= sum(len(value.value) for value in answers[-1].values)
    _log_sent(machine_id, keys, tasks, answers)
    return answers


def tasks_of(machine_id: int, keys: Sequence[TaskKey]) -> dict[TaskKey, TaskOfMachine]:
    """Return the tasks that the machine should run in these incarnations and that use secrets or config files. Makes
    one query.
    """
    rows = query(
        "SELECT j.id, j.uid, t.index, t.incarnation, o.name, j.name, c.name, s.spec::text, c.extra_resources,"
        " t.phase IN ('', 'assigned', 'installing')"
        " FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id"
        " JOIN quota_tenant AS o ON o.id = j.tenant_id JOIN scheduling_cell AS c ON c.id = j.cell_id"
        " JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = t.spec_version"
        " WHERE t.machine_id = %s AND t.state = 'running'"
        " AND (s.secrets <> '[]' OR s.configs <> '[]')"
        " AND replace(j.uid::text, '-', '') = ANY(%s)",
        [machine_id, sorted({key.job for key in keys})],
    )
    wanted = set(keys)
    found: dict[TaskKey, TaskOfMachine] = {}
    for job_id, uid, index, incarnation, tenant, job, cell, stored, extra, waiting in rows:
        key = TaskKey(uid.hex, index, incarnation)
        if key not in wanted:
            continue
        try:
            spec = parser.load(msgspec.json.decode(stored), extra=tuple(extra)).task(index)
        except (Rejected, IndexError):  # the desired state has no such task either
            continue
        found[key] = TaskOfMachine(tenant, job, cell, spec.secrets, spec.configs, job_id, waiting)
    return found


def _answer(
    task: TaskOfMachine,
    known: Mapping[known_secrets.SecretName, known_secrets.KnownSecret],
    opened: Mapping[Place, bytes | str],
) -> SecretValues:
    values: list[SecretValue] = []
    problems: list[str] = []
    for use in task.uses:
        secret = known.get((task.tenant, use.name))
        problem = known_secrets.problem_of(use, secret, tenant=task.tenant, job=task.job, cell=task.cell)
        if problem is not None or secret is None:
            problems.append(problem[1] if problem is not None else "")
            continue
        version = secret.version_for(use, task.job, task.cell)
        value = opened.get(Place(task.tenant, use.name, version))
        if isinstance(value, bytes):
            values.append(SecretValue(use.name, version, use.file, use.env, value))
        else:
            problems.append(value or f"secret {use.name} changed in this moment; the machine asks again")
    return SecretValues(values, problems)


def _opened(wanted: set[Place]) -> dict[Place, bytes | str]:
    """Return the values at these places. A text says why a value cannot be decrypted."""
    rows = SecretVersion.objects.filter(
        secret__tenant__name__in={place.tenant for place in wanted},
        secret__name__in={place.name for place in wanted},
        version__in={place.version for place in wanted},
    ).values_list("secret__tenant__name", "secret__name", "version", "key_id", "sealed")
    ring = key_ring()
    found: dict[Place, bytes | str] = {}
    for tenant, name, version, identity, sealed in rows if wanted else ():
        place = Place(tenant, name, version)
        if place not in wanted:
            continue
        try:
            found[place] = ring.open_value(identity, bytes(sealed), place)
        except CannotOpen as error:
            found[place] = str(error)
            _report(place, identity, str(error))
    return found


def _report(place: Place, identity: str, error: str) -> None:
    """Log once per value that it cannot be decrypted."""
    mark = place.tenant, place.name, place.version, identity
    if mark in _reported:
        return
    if len(_reported) >= _MOST_REPORTED:
        _reported.clear()
    _reported.add(mark)
    log.error("cannot decrypt a secret that a task needs", tenant=place.tenant, secret=place.name, error=error)


def _log_sent(
    machine_id: int, keys: Sequence[TaskKey], tasks: Mapping[TaskKey, TaskOfMachine], answers: Sequence[SecretValues]
) -> None:
    for key, answer in zip(keys, answers, strict=True):
        if answer.values:
            task = tasks[key]
            log.info(
                "secrets were sent to a machine",
                machine_id=machine_id,
                task=f"{task.cell}/{task.tenant}/{task.job}/{key.index}",
                secrets=[f"{value.name} v{value.version}" for value in answer.values],
            )
