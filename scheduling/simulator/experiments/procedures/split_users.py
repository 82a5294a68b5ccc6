"""Figure 6: private cells for large users."""

from __future__ import annotations

from collections import Counter

from quota.vocabulary.resources import RAM
from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    Results,
    Row,
    additional,
    result_of,
)
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.compaction import compact
from scheduling.simulator.experiments.procedures.compaction import WHOLE

THRESHOLDS_TIB = (10, 100)
FULL_CELL = 12_477
"""The thresholds are for a cell with this number of machines. For a smaller cell, they are smaller in proportion."""


def large_users(work: CellWork, threshold_bytes: float) -> list[str]:
    """Return the tenants whose tasks together ask for at least `threshold_bytes` of memory, sorted by name."""
    asked: Counter[str] = Counter()
    for job in work.jobs:
        asked[job.tenant] += sum(group.requirement.limit[RAM] * group.size for group in job.groups)
    return sorted(tenant for tenant, amount in asked.items() if amount >= threshold_bytes)


def _split(threshold_tib: int) -> Case:
    def split(given: ExperimentInput, seed: int) -> Figures:
        work = given.work
        large = large_users(work, threshold_tib * 2**40 * len(work.machines) / FULL_CELL)
        cells = [work.only(lambda job, tenant=tenant: job.tenant == tenant) for tenant in large]  # type: ignore[misc]
        rest = work.only(lambda job: job.tenant not in large)
        cells += [rest] if rest.jobs else []
        machines = [compact(cell, given.packing(), seed=seed).machines for cell in cells]
        return {"machines": sum(machines), "cells": len(cells)}

    return split


CASES: dict[str, Case] = {f"split-users-{threshold}-tib": _split(threshold) for threshold in THRESHOLDS_TIB}


def _rows(results: Results) -> list[Row]:
    rows = []
    for case, threshold in zip(CASES, THRESHOLDS_TIB, strict=True):
        # The paper's text gives ranges for the larger threshold only.
        low, high = (2.0, 16.0) if threshold == max(THRESHOLDS_TIB) else (None, None)
        cells = [one["cells"] for one in results[case]]
        rows.append(
            result_of(f"cells, users of {threshold} TiB", "times the cells", cells, paper_low=low, paper_high=high)
        )
        low, high = (20.0, 150.0) if threshold == max(THRESHOLDS_TIB) else (None, None)
        label = f"machines, users of {threshold} TiB"
        rows.append(additional(label, results[case], results[WHOLE], paper_low=low, paper_high=high))
    return rows


EXPERIMENT = Experiment(
    name="split-users",
    figure=6,
    title="Private cells for large users",
    paper="With the threshold of 100 TiB: 2–16 times as many cells, and 20–150 % additional machines (5 cells).",
    differs=f"Thresholds are in proportion to a full cell of {FULL_CELL:,} machines. Users are those of the trace. Jobs"
    " with one task per machine decide the sizes of many of the private cells.",
    cases=(WHOLE, *CASES),
    rows=_rows,
)
