"""The rule for reserving whole CPU cores (§6.2). Borglets follow the same rule on each machine
(`borglet/runtimes/cgroups/reserved_cores.py`).

A latency-sensitive task can reserve whole cores, which no other latency-sensitive task uses. Latency-sensitive tasks
without reserved cores share the other cores. While a machine has such a task, at least one of its cores stays
unreserved. Batch tasks run on all cores and reserve none.
"""

from __future__ import annotations

from scheduling.core.kernels.compiled import inlined, kernel
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32, MachineArrays, Running


@inlined
def cores_of(running: Running, t: int) -> int:
    """Return how many whole cores the running task `t` has reserved. Return 0 if it shares cores, and -1 for a batch
    task.
    """
    if not running.job_sensitive[running.job[t]]:
        return -1
    return int(running.shape_cores[running.shape[t]])


@inlined
def cores_suit(want: int, cores: int, owned: int, sharing: int) -> bool:
    """Return whether a machine has enough cores for one more task. `want`: how many whole cores the task asks for; 0 if
    it shares cores, -1 for a batch task. `cores`: how many cores the machine has. `owned`: how many of these cores are
    reserved. `sharing`: how many tasks share the other cores.
    """
    if want < 0:
        return True
    if want == 0:
        return owned == 0 or owned < cores
    return want <= cores - owned - (1 if sharing > 0 else 0)


@inlined
def cores_suffice(
    machines: MachineArrays, running: Running, m: int, want: int, leaving: Ints, number: int, spared: int
) -> bool:
    """Return whether machine `m` would have enough cores for a task if other tasks were preempted. These are the tasks
    in the slots `leaving[:number]`, without the slot `spared`. `want`: how many whole cores the new task asks for; 0 if
    it shares cores, -1 for a batch task.
    """
    if want < 0:
        return True
    owned = machines.owned[m]
    sharing = machines.sharing[m]
    for k in range(number):
        if leaving[k] != spared:
            has = cores_of(running, leaving[k])
            if has > 0:
                owned -= has
            elif has == 0:
                sharing -= 1
    return cores_suit(want, machines.cores[m], owned, sharing)


@inlined
def hold_cores(machines: MachineArrays, m: int, has: int, by: int) -> None:
    """Add a task to the core counts of machine `m` (`by` = 1), or remove it (`by` = -1). `has`: how many whole cores
    the task has reserved; 0 if it shares cores, -1 for a batch task.
    """
    if has > 0:
        machines.owned[m] += by * has
    elif has == 0:
        machines.sharing[m] += by


@kernel
def judge_cores(machines: MachineArrays, running: Running, want: int, ceiling: int, few: Bools, most: Ints32) -> None:
    """Write two values for each machine into the arrays `few` [P] and `most` [P]. Tasks with a priority below `ceiling`
    count as preempted.

    `few`: whether the machine has too few cores for one more task. `most`: the largest number of whole cores that a
    task could get. `want`: how many whole cores the task asks for; 0 if it shares cores, -1 for a batch task.
    """
    for m in range(few.shape[0]):
        owned = machines.owned[m]
        sharing = machines.sharing[m]
        t = machines.head[m] if ceiling > 0 else -1
        while t >= 0:
            if running.job_priority[running.job[t]] < ceiling and not running.gone[t]:
                has = cores_of(running, t)
                if has > 0:
                    owned -= has
                elif has == 0:
                    sharing -= 1
            t = running.next[t]
        few[m] = not cores_suit(want, machines.cores[m], owned, sharing)
        most[m] = max(0, machines.cores[m] - owned - (1 if sharing > 0 else 0))
