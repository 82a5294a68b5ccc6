"""The sources of a study cell (a copy of a cell for experiments): the state of a cell at a moment, or a checkpoint
file.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from django.utils import timezone

from quota.models.fields import DNS_LABEL
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import SIZE
from scheduling.cells.cells import MAX_EXTRA_RESOURCES
from scheduling.core.cell.tasks import DEAD, PENDING, RUNNING
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import CheckpointError, Header
from scheduling.history.checkpoints.folder import own_checkpoints
from scheduling.history.checkpoints.specs import without_values
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.checkpoints.tables import Tables, schema, tables_of
from scheduling.history.studies.renumbering import with_full_limits
from scheduling.history.studies.specs import StoredSpec, Version, specs_in, versions_used
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.storage.files import NotThere

if TYPE_CHECKING:
    import pyarrow

_NAMES = (("machines", "hostname"), ("jobs", "name"), ("jobs", "tenant"))
_TEXTS = (("machines", "attributes"), ("jobs", "labels"))
_OF_TASKS = ("id", "state", "requirement", "machine_id", "last", "incarnation", "alloc", "devices", "spec_version")
_SECTIONS = ("machines", "packages", "jobs", "departures", "crashes", "updates")


@dataclass(frozen=True, slots=True)
class Original:
    """The state of a cell at one revision. `header`: the header of its checkpoint. `tables`: the sections of its
    checkpoint. `specs`: the specs that are known, without values of environment variables.
    """

    header: Header
    tables: Tables
    specs: dict[Version, StoredSpec]


def original_at(cell: Cell, *, revision: int | None = None, time: dt.datetime | None = None) -> Original:
    """Return the state of a cell at a revision or time. Raises the errors of `state_at`."""
    state = state_at(cell, revision=revision, time=time)
    tables = with_full_limits(tables_of(state), axis=state.axis)
    header = Header(
        cell=cell.name,
        revision=state.revision,
        taken_at=timezone.now().timestamp(),
        history=str(cell.history_id),
        extra_resources=state.extra_resources,
    )
    return Original(header, tables, _specs_known(cell, versions_used(tables)))


def _specs_known(cell: Cell, wanted: Set[Version]) -> dict[Version, StoredSpec]:
    """Return the specs that the database has, and those of checkpoints for jobs that it no longer has."""
    found = {}
    for job, version, spec, packages in query(
        "SELECT job_id, version, spec::text, packages::text FROM scheduling_jobspec WHERE job_id = ANY(%s)",
        [sorted({job for job, _ in wanted})],
    ):
        if (job, version) in wanted:
            spec, packages = without_values(spec), msgspec.json.decode(packages)
            found[job, version] = StoredSpec(msgspec.json.decode(spec), packages)
    for stored in own_checkpoints(cell):
        if wanted <= found.keys():
            break
        try:
            with stored.open() as source:
                _, tables = file.read(source)
        except (NotThere, CheckpointError):
            continue  # deleted meanwhile, or damaged
        found = {version: one for version, one in specs_in(tables["specs"]).items() if version in wanted} | found
    return found


def original_in(source: BinaryIO) -> Original:
    """Return the state in the file of a checkpoint. Raises `Rejected`, which names the section, if the file is damaged,
    too new, or does not describe a cell.
    """
    try:
        header, tables = file.read(source)
    except CheckpointError as error:
        raise Rejected("checkpoint-damaged", str(error), fields={"section": error.section}) from error
    if len(header.extra_resources) > MAX_EXTRA_RESOURCES:
        problem = (
            f"the file lists {len(header.extra_resources)} resources beyond the built-in ones (such as CPU and RAM),"
            f" but a cell can have at most {MAX_EXTRA_RESOURCES}; use a checkpoint of another cell"
        )
        raise _unusual("header", problem)
    for section in _SECTIONS:
        tables[section] = _checked(section, tables)
    _check_tasks(tables)
    for section, column in _NAMES:
        for name in tables[section][column].to_pylist():
            if not re.fullmatch(DNS_LABEL, name):
                problem = (
                    f"column {column} of section {section} contains {name[:80]!r}, which is not a valid name; export"
                    " the checkpoint again"
                )
                raise _unusual(section, problem)
    for section, column in _TEXTS:
        for text in tables[section][column].to_pylist():
            try:
                msgspec.json.decode(text, type=dict[str, str])
            except msgspec.MsgspecError as error:
                problem = (
                    f"column {column} of section {section} contains {text[:80]!r}, which is not a JSON object; export"
                    " the checkpoint again"
                )
                raise _unusual(section, problem) from error
    section = "requirements"
    try:
        tables = with_full_limits(tables, axis=SIZE + len(header.extra_resources))
        section = "specs"
        return Original(header, tables, specs_in(tables["specs"]) if "specs" in tables else {})
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        problem = f"section {section} is not valid ({error}); export the checkpoint again"
        raise _unusual(section, problem) from error


# Columns of jobs that came later than the format, with the value in older files.
_LATER = {"max_running": 0, "start_after": 0.0, "waiting": False, "max_run_s": 0.0, "ends_within_s": 0.0}


def _checked(section: str, tables: Tables) -> pyarrow.Table:
    """Return a section with exactly the columns that it should have. Files of earlier versions lack some of them, which
    are zero or false then.
    """
    import pyarrow

    wanted = schema(section)
    if section not in tables:
        raise _unusual(section, f"section `{section}` is missing; export the checkpoint again")
    try:
        table = tables[section]
        for name, value in _LATER.items() if section == "jobs" else ():
            if name not in table.column_names:
                table = table.append_column(name, pyarrow.array([value] * len(table), type=wanted.field(name).type))
        table = table.select(wanted.names).cast(wanted)
    except (KeyError, pyarrow.ArrowException) as error:
        problem = f"section {section} is not valid ({error}); export the checkpoint again"
        raise _unusual(section, problem) from error
    _check_nulls(section, table)
    return table


def _check_tasks(tables: Tables) -> None:
    import pyarrow.types

    for section in ("tasks", "requirements", "reservations"):
        if section not in tables:
            raise _unusual(section, f"section `{section}` is missing; export the checkpoint again")
        _check_nulls(section, tables[section])
    fields = {field.name: field.type for field in tables["tasks"].schema}
    for name in _OF_TASKS:
        if name not in fields or not pyarrow.types.is_integer(fields[name]):
            problem = f"column `{name}` of section `tasks` is missing, or has no numbers; export the checkpoint again"
            raise _unusual("tasks", problem)
    if not set(tables["tasks"]["state"].unique().to_pylist()) <= {PENDING, RUNNING, DEAD}:
        problem = (
            f"column `state` of section `tasks` has other values than {PENDING}, {RUNNING} and {DEAD}; export the"
            " checkpoint again"
        )
        raise _unusual("tasks", problem)
    if not pyarrow.types.is_floating(fields.get("since")) or not pyarrow.types.is_list(fields.get("ports")):
        problem = (
            "in section `tasks`, column `since` has no numbers, or column `ports` has no lists; export the checkpoint"
            " again"
        )
        raise _unusual("tasks", problem)


def _check_nulls(section: str, table: pyarrow.Table) -> None:
    empty = [name for name in table.column_names if table[name].null_count]
    if empty:
        problem = f"column `{empty[0]}` of section `{section}` contains empty values; export the checkpoint again"
        raise _unusual(section, problem)


def _unusual(section: str, problem: str) -> Rejected:
    return Rejected("checkpoint-damaged", f"Cannot read the checkpoint: {problem}", fields={"section": section})
