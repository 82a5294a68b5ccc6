"""The config files that a machine gets for tasks which it should run now, together with the values of their secrets.

Borglet ─► link: keys of incarnations ─► this machine has them? ─► secrets ─► contents ─► Borglet's memory
                                                                                 └─► ConfigDelivery: task, version

A file whose new version restarts the task (`on_change: restart`) keeps its version as long as the incarnation lives. So
a task that its machine starts again does not get the new version before the rolling restart reaches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from borglet.messages import CONFIG, SecretValue, SecretValues, TaskKey
from quota import clock
from scheduling.config_files import known_files
from scheduling.config_files.known_files import FileName, KnownFile
from scheduling.journal.sql import execute, query
from scheduling.models import ConfigVersion
from scheduling.secrets import delivery
from scheduling.secrets.delivery import TaskOfMachine
from scheduling.spec.schema import ConfigUse


class _Place(NamedTuple):
    """The place of a config file: a task of a job, and the name of the file for the task."""

    file_id: int
    job_id: int
    task_index: int
    path: str


def values_for(machine_id: int, keys: Sequence[TaskKey]) -> list[SecretValues]:
    """Return the values of the secrets and the config files of incarnations, one answer per key. Makes at most eight
    queries for any number of keys, and records which version each task gets.

    A file that does not exist has a problem instead of a content. So has an incarnation that the machine should not
    run.
    """
    tasks = delivery.tasks_of(machine_id, keys)
    answers = delivery.values_for(machine_id, keys, tasks)
    known = known_files.read_known({(task.tenant, use.name) for task in tasks.values() for use in task.configs})
    if not any(task.configs for task in tasks.values()):
        return answers
    before = _before(tasks, known)
    versions: dict[tuple[TaskKey, ConfigUse], int] = {}
    for key, task in tasks.items():
        for use in task.configs:
            file = known.get((task.tenant, use.name))
            versions[key, use] = _version(key, task, use, file, before) if file is not None else 0
    contents = _contents(known, tasks, versions)
    left = delivery.MOST_BYTES
    sent: dict[_Place, tuple[int, int]] = {}
    for number, key in enumerate(keys):
        # A task that cannot start because of a secret would discard its files, and request them again and again.
        if key not in tasks or (answers[number].problems and tasks[key].waiting):
            continue
        if left <= 0:
            answers[number] = SecretValues([], [delivery.AGAIN])
            continue
        values, problems = list(answers[number].values), list(answers[number].problems)
        task, made = tasks[key], dict[_Place, tuple[int, int]]()
        for use in task.configs:
            file, version = known.get((task.tenant, use.name)), versions[key, use]
            content = contents.get((file.file_id, version)) if file is not None else None
            if file is None or content is None:
                problem = known_files.problem_of(use, file, tenant=task.tenant)
                changed = f"config file {use.name} changed in this moment; the machine asks again"
                problems.append(problem[1] if problem is not None else changed)
                continue
            values.append(SecretValue(use.name, version, use.path, "", content, CONFIG, use.on_change))
            made[_Place(file.file_id, task.job_id, key.index, use.path)] = key.incarnation, version
            left -= len(content)
        if not (problems and task.waiting):
            sent |= made
        answers[number] = SecretValues(values, problems)
    _record({place: version for place, version in sent.items() if before.get(place) != version})
    return answers


def _version(
    key: TaskKey, task: TaskOfMachine, use: ConfigUse, file: KnownFile, before: Mapping[_Place, tuple[int, int]]
) -> int:
    """Return the version that an incarnation gets, or 0 if there is none. `before`: what tasks have got."""
    incarnation, version = before.get(_Place(file.file_id, task.job_id, key.index, use.path), (0, 0))
    if use.restarts and incarnation == key.incarnation and version in file.versions:
        return version
    return file.version_for(use)


def _before(
    tasks: Mapping[TaskKey, TaskOfMachine], known: Mapping[FileName, KnownFile]
) -> dict[_Place, tuple[int, int]]:
    """Return the incarnation and the version of each file that these tasks have got."""
    rows = query(
        "SELECT file_id, job_id, index, path, incarnation, version FROM scheduling_configdelivery"
        " WHERE file_id = ANY(%s) AND (job_id, index) IN (SELECT * FROM unnest(%s::bigint[], %s::integer[]))",
        [
            sorted(file.file_id for file in known.values()),
            [task.job_id for task in tasks.values()],
            [key.index for key in tasks],
        ],
    )
    return {_Place(*place): (incarnation, version) for *place, incarnation, version in rows}


def _contents(
    known: Mapping[FileName, KnownFile],
    tasks: Mapping[TaskKey, TaskOfMachine],
    versions: Mapping[tuple[TaskKey, ConfigUse], int],
) -> dict[tuple[int, int], bytes]:
    """Return the contents of versions, by the id of the file and the version."""
    wanted = {
        (known[tasks[key].tenant, use.name].file_id, version) for (key, use), version in versions.items() if version
    }
    rows = ConfigVersion.objects.filter(
        file_id__in={file_id for file_id, _ in wanted}, version__in={version for _, version in wanted}
    ).values_list("file_id", "version", "content")
    return {(file_id, version): text.encode() for file_id, version, text in rows if (file_id, version) in wanted}


def _record(sent: Mapping[_Place, tuple[int, int]]) -> None:
    """Record which versions tasks get. A request of an older incarnation changes nothing."""
    if not sent:
        return
    rows = [(*place, *made) for place, made in sorted(sent.items())]
    execute(
        "INSERT INTO scheduling_configdelivery AS d (file_id, job_id, index, path, incarnation, version, sent_at)"
        " SELECT *, %s::timestamptz"
        " FROM unnest(%s::bigint[], %s::bigint[], %s::integer[], %s::text[], %s::integer[], %s::integer[])"
        " ON CONFLICT (file_id, job_id, index, path) DO UPDATE SET incarnation = excluded.incarnation,"
        " version = excluded.version, sent_at = excluded.sent_at WHERE d.incarnation <= excluded.incarnation",
        [clock.now(), *map(list, zip(*rows, strict=True))],
    )
