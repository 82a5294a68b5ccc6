"""Gives new ids to the jobs, machines and tasks of a checkpoint, so that a copy of a cell can be stored beside the
original. Pure.

The order of ids stays the same, so ties between machines or tasks are decided in the same way as in the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Requirement, padded
from scheduling.history.checkpoints.tables import Tables

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class NewIds:
    """A mapping from old ids to new ids. `before`: the old ids, ascending. `after`: the new ids, in the same order."""

    before: Ints
    after: Ints

    def of(self, ids: Ints) -> Ints:
        """Return the new ids of `ids`; 0 for ids that are 0 or unknown."""
        if not len(self.before):
            return np.zeros(len(ids), dtype=np.int64)
        place = np.minimum(np.searchsorted(self.before, ids), len(self.before) - 1)
        return np.where(self.before[place] == ids, self.after[place], 0)

    def of_tasks(self, ids: Ints) -> Ints:
        """Return the new ids of tasks, if this mapping is one of jobs: the id of a task contains the id of its job. 0
        for tasks of unknown jobs.
        """
        job = self.of(ids >> INDEX_BITS)
        return np.where(job > 0, job << INDEX_BITS | ids & (MAX_TASKS - 1), 0)


def with_full_limits(tables: Tables, *, axis: int) -> Tables:
    """Return the tables with `axis` amounts in each requirement and reservation. Amounts of resources that were added
    to the cell later are missing in older tables, and become 0.
    """
    import pyarrow

    texts = []
    for text in tables["requirements"]["requirement"].to_pylist():
        read = msgspec.json.decode(text, type=Requirement)
        full = msgspec.structs.replace(read, limit=padded(read.limit, axis))
        texts.append(msgspec.json.encode(full).decode())
    reservations = tables["reservations"]
    for name in (f"r{r}" for r in range(axis)):
        if name not in reservations.column_names:
            zeros = pyarrow.array(np.zeros(reservations.num_rows, dtype=np.int64))
            reservations = reservations.append_column(name, zeros)
    requirements = _replaced(tables["requirements"], "requirement", texts)
    return {**tables, "requirements": requirements, "reservations": reservations}


def renumbered(
    tables: Tables, *, jobs: NewIds, machines: NewIds, tenants: Mapping[str, int], uids: Sequence[str]
) -> Tables:
    """Return copies of the tables with the new ids. `tenants`: the ids of tenants by name. `uids`: the new UIDs of the
    jobs, in the order of their ids. Raises `KeyError` for an unknown tenant.
    """
    changed = dict(tables)
    changed.pop("windows", None)  # nothing happens in a study cell

    def change(section: str, **columns: Any) -> None:
        table = changed[section]
        for name, values in columns.items():
            table = _replaced(table, name, values)
        changed[section] = table

    def column(section: str, name: str) -> Ints:
        return np.asarray(tables[section][name].to_numpy(), dtype=np.int64)

    change("machines", machine_id=machines.of(column("machines", "machine_id")))
    change("packages", machines=_lists(tables["packages"]["machines"].to_pylist(), machines))
    change(
        "jobs",
        job_id=jobs.of(column("jobs", "job_id")),
        alloc_set=jobs.of(column("jobs", "alloc_set")),
        tenant_id=[tenants[name] for name in tables["jobs"]["tenant"].to_pylist()],
        uid=list(uids),
    )
    change(
        "tasks",
        id=jobs.of_tasks(column("tasks", "id")),
        machine_id=machines.of(column("tasks", "machine_id")),
        last=machines.of(column("tasks", "last")),
        alloc=jobs.of_tasks(column("tasks", "alloc")),
    )
    change("reservations", id=jobs.of_tasks(column("reservations", "id")))
    for section in ("departures", "crashes"):
        change(
            section, task=jobs.of_tasks(column(section, "task")), machine_id=machines.of(column(section, "machine_id"))
        )
    change("updates", job_id=jobs.of(column("updates", "job_id")))
    return changed


def _lists(rows: Sequence[Sequence[int]], ids: NewIds) -> list[list[int]]:
    return [[one for one in ids.of(np.array(row, dtype=np.int64)).tolist() if one] for row in rows]


def _replaced(table: pyarrow.Table, name: str, values: Any) -> pyarrow.Table:
    import pyarrow

    place, field = table.column_names.index(name), table.schema.field(name)
    return table.set_column(place, field, pyarrow.array(values, field.type))
