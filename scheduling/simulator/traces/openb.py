"""Alibaba's GPU cell of 2023 (openb, Apache-2.0) as machines and arrivals, from a folder with its files.

The files are not part of this project: `openb_node_list_all_node.csv` and `openb_pod_list_default.csv`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, CPU, DEVICE, RAM, SIZE, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints
from scheduling.core.vocabulary.requirement import Constraint, Group, Relation, Requirement, split_task_id
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.workload import Ending, Workload

MACHINES = "openb_node_list_all_node.csv"
PODS = "openb_pod_list_default.csv"
MIB = 2**20
PRIORITIES = {"LS": 200, "Guaranteed": 200, "Burstable": 110, "BE": 25}
"""Our priority for each class of service of the trace. Unknown classes are batch."""

_BATCH = 110


def vector(*, cpu_milli: int, memory_mib: int, accelerators: int) -> Vector:
    """Return a resource vector. `accelerators`: in thousandths of a GPU."""
    amounts = [0] * SIZE
    amounts[CPU], amounts[RAM], amounts[ACCELERATORS] = cpu_milli, memory_mib * MIB, accelerators
    return tuple(amounts)


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file. Raises `FileNotFoundError` with the cure."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder with the files of the openb trace")
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def cell_machines(folder: Path, name: str = MACHINES) -> list[events.MachineSet]:
    """Return the machines; the model of a machine's GPUs is its attribute `gpu`."""
    return [
        events.MachineSet(
            machine_id=number,
            hostname=row["sn"],
            address="127.0.0.1",
            capacity=vector(
                cpu_milli=int(row["cpu_milli"]),
                memory_mib=int(row["memory_mib"]),
                accelerators=int(row["gpu"]) * DEVICE,
            ),
            attributes={"gpu": row["model"]} if row["model"] else {},
        )
        for number, row in enumerate(rows(folder / name), start=1)
    ]


def requirement(row: dict[str, str]) -> Requirement:
    """Return what a pod asks for. Raises `ValueError` for a pod that accepts one of several GPU models."""
    number = int(row["num_gpu"])
    gpus = int(row["gpu_milli"]) if number == 1 else number * DEVICE
    model = row["gpu_spec"]
    if "|" in model:
        raise ValueError(
            f"pod {row['name']} accepts several GPU models ({model}), but a constraint can name only one; use the"
            " default list of pods"
        )
    constraints = (Constraint("gpu", Relation.EQUAL, model),) if model else ()
    limit = vector(cpu_milli=int(row["cpu_milli"]), memory_mib=int(row["memory_mib"]), accelerators=gpus)
    return Requirement(limit, constraints)


@dataclass(frozen=True, eq=False)
class Pods:
    """The pods of the trace as jobs of one task each: when they arrive (`Arrivals`), and how they behave (`Behaviour`).
    `run_s` [A]: the run times of the A pods.
    """

    times: Floats
    run_s: Floats
    requirements: tuple[Requirement, ...]
    priorities: tuple[int, ...]
    usage: Drawn

    def job(self, number: int) -> events.JobSubmitted:
        priority = self.priorities[number]
        return events.JobSubmitted(
            job_id=number + 1,
            uid=f"{number + 1:032x}",
            tenant_id=1,
            tenant="openb",
            name=f"pod{number + 1}",
            job_kind="job",
            priority=priority,
            latency_sensitive=priority >= 120,
            spec_version=1,
            groups=(Group(self.requirements[number], ((0, 0),)),),
        )

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        number = split_task_id(task_id)[0] - 1
        if number >= len(self.times):
            return self.usage.ending(task_id, incarnation, priority)
        run_s = self.run_s.item(number)
        return None if math.isinf(run_s) else Ending(run_s, "finished")

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        return self.usage.demand(task_id, limit, priority, now)


def trace(folder: Path, *, seed: int = 2011) -> tuple[list[events.MachineSet], Workload]:
    """Return the machines, and the pods in the order of their creation. Times begin at 0."""
    listed = sorted(rows(folder / PODS), key=lambda row: (int(row["creation_time"]), row["name"]))
    created = np.array([float(row["creation_time"]) for row in listed])
    run_s = [
        max(1.0, float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"]))
        if row["deletion_time"]
        else math.inf
        for row in listed
    ]
    pods = Pods(
        times=created - created.min(initial=0.0) if len(created) else created,
        run_s=np.array(run_s),
        requirements=tuple(map(requirement, listed)),
        priorities=tuple(PRIORITIES.get(row["qos"], _BATCH) for row in listed),
        usage=Drawn(seed),
    )
    return cell_machines(folder), Workload(pods, pods)
