"""Compiles the kernels of the scheduler at installation. To do so, it runs passes over a small cell (§3.4)."""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import numpy as np

from quota.vocabulary.resources import SIZE
from scheduling.core.cell.state import CellState
from scheduling.core.pass_ import schedule_pass
from scheduling.core.reclamation.usage_history import Samples, UsageHistory
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reclamation_presets import MEDIUM
from scheduling.core.vocabulary.requirement import Group, Requirement

_LLVM = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*libllvmlite")  # a part that the process only reads
_DIRTY = re.compile(r"(?:Shared|Private)_Dirty: +[1-9]")  # a fork shares the pages that its parent has changed


def compile_kernels() -> None:
    """Run every kernel once, on a small cell. In this cell, one task is placed, one preempts another, one fits on no
    machine, one is placed in an alloc, and capacity is booked for a gang.
    """
    state = CellState()
    vector = (1000,) * SIZE
    machine = events.MachineSet(machine_id=1, hostname="m1", address="127.0.0.1", capacity=vector, rack="r1")
    state.apply(machine, revision=1, time=0.0)
    for job, (priority, cpu, alloc_set) in enumerate(
        ((0, 600, 0), (200, 600, 0), (201, 600, 0), (200, 100, 0), (200, 50, 4), (200, 700, 0)), start=1
    ):
        asked = Requirement(limit=tuple(cpu if r == 0 else 1 for r in range(SIZE)), max_per_machine=int(job == 6))
        submitted = events.JobSubmitted(
            job_id=job,
            uid=f"{job:032x}",
            tenant_id=1,
            tenant="t",
            name=f"j{job}",
            job_kind="alloc-set" if job == 4 else "job",
            priority=priority,
            latency_sensitive=True,
            spec_version=1,
            groups=(Group(asked, ((0, 1),)),),
            alloc_set=alloc_set,
            gang=job == 6,
            ends_within_s=60.0,
        )
        state.apply(submitted, revision=state.revision + 1, time=0.0)
        plan = schedule_pass(state, Policy(), now=0.0, rng=np.random.default_rng(0))
        for assignment in plan.assignments:
            for victim_job, victim in assignment.victims:
                evicted = events.TaskEvicted(
                    job_id=victim_job, index=victim, machine_id=1, incarnation=1, cause="preemption"
                )
                state.apply(evicted, revision=state.revision + 1, time=0.0)
            placed = events.TaskPlaced(
                job_id=assignment.job_id,
                index=assignment.index,
                machine_id=assignment.machine_id,
                incarnation=1,
                ports=assignment.ports,
                alloc=assignment.alloc,
                devices=assignment.devices,
            )
            state.apply(placed, revision=state.revision + 1, time=0.0)
    UsageHistory().look(state.tasks, Samples.none(), MEDIUM, passed_s=1.0)


def release_compiler() -> None:
    """Release the memory that the code of LLVM (the compiler behind Numba) occupies, about 65 MiB. Compiled kernels run
    without LLVM. If its code is needed again, the operating system reads it from the file.
    """
    libc = ctypes.CDLL(None)
    for part in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text()):
        found = _LLVM.match(part)
        if found and not _DIRTY.search(part):  # a page that was changed cannot be read from the file
            begin, end = int(found[1], 16), int(found[2], 16)
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
