"""A checkpoint of a real cell as the beginning of a simulation (`scheduling.history.checkpoints`).

    sections of every checkpoint ──► CellState at time 0; reservations ─► usage, if nothing better is recorded
    `usage`                      ──► usage of running tasks
    `endings`, `later`           ──► how tasks ended afterwards, which jobs arrived, which machines failed

Without the last two sections no jobs arrive, and run times are random. Updates and other changes of jobs that were made
afterwards are left out: a job arrives with the tasks with which it was submitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from quota.vocabulary.errors import Rejected
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.reclamation_presets import PRESETS
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import CheckpointError
from scheduling.history.checkpoints.tables import Tables, state_of
from scheduling.policy import cell_settings
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.traces.recorded import Recorded, RecordedEnd, RecordedUsage
from scheduling.simulator.workload import MachineChange, Submissions, Workload

if TYPE_CHECKING:
    import pyarrow

_KINDS = ("cpu", "ram", "disk")


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A cell that was loaded from a checkpoint. `state`: the state at time 0 of the workload. `cell`: its settings."""

    state: CellState
    workload: Workload
    cell: CellSettings


def load(path: Path, *, seed: int = 2011) -> LoadedCell:
    """Return the cell that a checkpoint contains. Raises `CheckpointError` for a file that is not a checkpoint or is
    damaged, and `FileNotFoundError` for a file that does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give the file of a checkpoint")
    with path.open("rb") as opened:
        header, tables = file.read(opened)
    try:
        settings = cell_settings.load(header.settings)
    except Rejected as error:
        problem = (
            f"the settings of the cell in the header of the file are not valid ({error.detail}); use the release of"
            " Borg Portal that saved the file, or a later one"
        )
        raise CheckpointError("header", problem) from error
    state = state_of(tables, extra_resources=header.extra_resources, revision=header.revision)
    since = dict(zip(tables["tasks"]["id"].to_pylist(), tables["tasks"]["since"].to_pylist(), strict=True))
    for pairs in state.crashed.values():
        for machine, at in pairs.items():
            pairs[machine] = at - header.taken_at
    behaviour = Recorded(_usage(tables, PRESETS[settings.reclamation].margin), None, Drawn(seed))
    if "endings" not in tables:
        return LoadedCell(state, Workload(behaviour), settings)
    ends = _ends(tables["endings"], since, header.taken_at)
    known = {state.machines.id.item(slot): state.machines.facts[slot] for slot in state.machines.slot.values()}
    arrivals, changes = _later(tables["later"], known, header.taken_at)
    replayed = Recorded(behaviour.usage, ends, behaviour.drawn)
    return LoadedCell(state, Workload(replayed, arrivals, changes), settings)


def _usage(tables: Tables, margin: tuple[float, float, float]) -> RecordedUsage:
    """Return the usage of tasks: the recorded usage or, for tasks without a record, an estimate from the reservation:
    the reservation without its safety margin (§5.5). `margin`: the safety margins of CPU, RAM and disk, as shares of
    the usage.
    """
    reserved = tables["reservations"]
    ids = reserved["id"].to_numpy()
    mean = np.stack([reserved[f"r{place}"].to_numpy() for place in range(3)], axis=1) / (1 + np.array(margin))
    mean = mean.astype(np.int64)
    most = mean
    if "usage" in tables:
        table = tables["usage"]
        measured = table["task"].to_numpy()
        rest = ~np.isin(ids, measured)
        ids = np.concatenate([measured, ids[rest]])
        mean = np.concatenate([_columns(table, "mean"), mean[rest]])
        most = np.concatenate([_columns(table, "most"), most[rest]])
    order = np.argsort(ids)
    return RecordedUsage(ids[order], mean[order], most[order])


def _columns(table: pyarrow.Table, what: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.stack([table[f"{what}_{kind}"].to_numpy() for kind in _KINDS], axis=1).astype(np.int64)


def _ends(table: pyarrow.Table, since: dict[int, float], taken_at: float) -> dict[int, RecordedEnd]:
    """Return the last recorded end of each task, by task id. `since`: by task id, when the tasks of the checkpoint were
    placed. `taken_at`: the time of the checkpoint. All times are in seconds since the epoch.
    """
    ends: dict[int, RecordedEnd] = {}
    for row in table.to_pylist():
        task, at, placed_at = row["task"], row["at"], row["placed_at"]
        began = placed_at if placed_at is not None else since.get(task, taken_at)
        left_s = at - (placed_at if placed_at is not None else taken_at)
        ends[task] = RecordedEnd(row["incarnation"], max(0.001, left_s), max(0.001, at - began), row["how"])
    return ends


def _later(
    table: pyarrow.Table, known: dict[int, events.MachineSet], taken_at: float
) -> tuple[Submissions, list[MachineChange]]:
    """Return the jobs that arrived after the checkpoint, and the changes of machines. `known`: the machines of the
    checkpoint by id. `taken_at`: the time of the checkpoint, in seconds since the epoch.
    """
    facts = dict(known)
    times: list[float] = []
    jobs: list[events.JobSubmitted] = []
    changes: list[MachineChange] = []
    for at, event in _decoded(table, taken_at):
        if isinstance(event, events.JobSubmitted):
            times.append(at)
            jobs.append(event)
        elif isinstance(event, events.MachineSet):
            facts[event.machine_id] = event
            changes.append(MachineChange(at, event.machine_id, event))
        elif isinstance(event, events.MachineRemoved):
            changes.append(MachineChange(at, event.machine_id, None))
        elif isinstance(event, events.MachineState) and event.machine_id in facts:
            up = msgspec.structs.replace(facts[event.machine_id], state=MachineStatus.UP.value)
            if event.state == MachineStatus.DOWN:
                changes.append(MachineChange(at, event.machine_id, None))
            elif event.state == MachineStatus.UP:
                changes.append(MachineChange(at, event.machine_id, up))
    return Submissions(np.array(times), jobs), changes


def _decoded(table: pyarrow.Table, taken_at: float) -> Iterable[tuple[float, events.Event]]:
    for at, data in zip(table["at"].to_pylist(), table["event"].to_pylist(), strict=True):
        yield at - taken_at, events.decode(data)
