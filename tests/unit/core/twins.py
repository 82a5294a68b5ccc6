"""The pass again, slow and obvious: no arrays, no caches, no walks. Kernels must agree with it."""

from __future__ import annotations

from dataclasses import dataclass

from quota.bands import may_preempt
from quota.resources import PORTS
from scheduling.core.attributes import holds
from scheduling.core.audit import tasks_on
from scheduling.core.policy import Policy
from scheduling.core.requirement import Requirement, split_task_id
from scheduling.core.state import CellState
from scheduling.core.tasks import PENDING, Job

EPVM_BASE = 10.0


@dataclass
class Tenancy:
    """One task on one machine. `new`: put there by this pass."""

    identity: int
    job: Job
    limit: tuple[int, ...]
    reservation: tuple[int, ...]
    new: bool = False


class Twin:
    """Scores every feasible machine for every task: what `Search(randomise=False)` decides."""

    def __init__(self, state: CellState, policy: Policy, now: float) -> None:
        self.state, self.policy, self.now = state, policy, now
        state.count_by_limit(policy)
        self.there: dict[int, list[Tenancy]] = {}
        self.ports_free: dict[int, int] = {}
        tasks = state.tasks
        for machine_id, slot in sorted(state.machines.slot.items()):
            self.ports_free[machine_id] = state.machines.ports[slot].free
            self.there[machine_id] = [
                Tenancy(
                    int(tasks.id[t]),
                    self._job(t),
                    tasks.shapes.requirement[tasks.shape[t]].limit,
                    tuple(tasks.reservation[t].tolist()),
                )
                for t in tasks_on(state, slot)
            ]

    def _job(self, task: int) -> Job:
        job = self.state.tasks.job_at[self.state.tasks.job[task]]
        assert job is not None
        return job

    def run(self) -> dict[tuple[int, int], tuple[int, list[tuple[int, int]]]]:
        """(job id, index) -> (machine id, victims)."""
        result = {}
        for task in self._queue():
            choice = self._choose(task)
            if choice is not None:
                machine_id, victims = choice
                self._take(task, machine_id, victims)
                result[split_task_id(int(self.state.tasks.id[task]))] = (
                    machine_id,
                    [split_task_id(victim.identity) for victim in victims],
                )
        return result

    def _queue(self) -> list[int]:
        """One by one: of the highest priority the tenant served least, of its jobs the one served least."""
        tasks = self.state.tasks
        waiting = [t for t in range(len(tasks.id)) if tasks.state[t] == PENDING]
        served: dict[tuple[int, int], int] = {}
        served_job: dict[int, int] = {}
        order = []
        while waiting:

            def turn(t: int) -> tuple[int, int, int, int, int]:
                job = self._job(t)
                key = (-job.priority, job.tenant_id)
                mine = int(tasks.id[t])
                return (-job.priority, served.get(key, 0), job.tenant_id, served_job.get(job.id, 0), mine)

            task = min(waiting, key=turn)
            job = self._job(task)
            key = (-job.priority, job.tenant_id)
            served[key] = served.get(key, 0) + 1
            served_job[job.id] = served_job.get(job.id, 0) + 1
            waiting.remove(task)
            order.append(task)
        return order

    def _requirement(self, task: int) -> Requirement:
        return self.state.tasks.shapes.requirement[self.state.tasks.shape[task]]

    def _choose(self, task: int) -> tuple[int, list[Tenancy]] | None:
        options = [m for m in self.there if self._may_hold(task, m)]
        direct = [(self._score(task, m, []), m) for m in options if self._fits(task, m, [])]
        if direct:
            return max(direct, key=lambda option: (option[0], -option[1]))[1], []
        preempting = []
        for machine_id in options:
            victims = self._victims(task, machine_id)
            if victims is not None:
                preempting.append((self._score(task, machine_id, victims), machine_id, victims))
        if not preempting:
            return None
        _, machine_id, victims = max(preempting, key=lambda option: (option[0], -option[1]))
        return machine_id, victims

    def _may_hold(self, task: int, machine_id: int) -> bool:
        state, requirement, job = self.state, self._requirement(task), self._job(task)
        slot = state.machines.slot[machine_id]
        attributes = state.machines.attributes.of(slot)
        crashed = state.crashed.get(int(state.tasks.id[task]), {}).get(machine_id)
        return (
            bool(state.machines.up[slot])
            and all(holds(c, attributes.get(c.attribute)) for c in requirement.constraints if c.hard)
            and (crashed is None or self.now - crashed >= self.policy.crashed_pair_s)
            and not 0 < requirement.max_per_machine <= self._siblings(job, machine_id, "machine")
            and not 0 < requirement.max_per_rack <= self._siblings(job, machine_id, "rack")
            and not 0 < requirement.max_per_power_domain <= self._siblings(job, machine_id, "power_domain")
        )

    def _siblings(self, job: Job, machine_id: int, kind: str) -> int:
        def domain(m: int) -> object:
            facts = self.state.machines.facts[self.state.machines.slot[m]]
            return m if kind == "machine" else getattr(facts, kind)

        if not domain(machine_id):
            return 0  # a machine in no known rack shares it with nobody
        return sum(
            tenancy.job is job
            for m, there in self.there.items()
            if domain(m) == domain(machine_id)
            for tenancy in there
        )

    def _fits(self, task: int, machine_id: int, without: list[Tenancy]) -> bool:
        job, limit = self._job(task), self._requirement(task).limit
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        stay = [tenancy for tenancy in self.there[machine_id] if tenancy not in without]
        for r, want in enumerate(limit):
            if want == 0:
                continue
            if sum(t.reservation[r] for t in stay) + want > capacity[r]:
                return False
            if job.by_limit and sum(t.limit[r] for t in stay if t.job.by_limit) + want > capacity[r]:
                return False
        return limit[PORTS] <= self.ports_free[machine_id]

    def _victims(self, task: int, machine_id: int) -> list[Tenancy] | None:
        job, limit = self._job(task), self._requirement(task).limit
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        there = self.there[machine_id]
        short = [sum(t.reservation[r] for t in there) + limit[r] - capacity[r] for r in range(len(limit))]

        def relief(t: Tenancy) -> float:
            return sum(min(s, t.reservation[r]) / s for r, s in enumerate(short) if s > 0 and limit[r] > 0)

        lower = sorted(
            (t for t in there if may_preempt(job.priority, t.job.priority, self.policy.bands)),
            key=lambda t: (t.job.priority, -relief(t), t.identity),
        )
        if not self._fits(task, machine_id, lower):
            return None
        chosen: list[Tenancy] = []
        while not self._fits(task, machine_id, chosen):
            chosen.append(lower[len(chosen)])
        for victim in reversed(list(chosen)):
            spared = [t for t in chosen if t is not victim]
            if self._fits(task, machine_id, spared):
                chosen = spared
        return chosen

    def _score(self, task: int, machine_id: int, victims: list[Tenancy]) -> float:
        w, job, requirement = self.policy.weights, self._job(task), self._requirement(task)
        own = w.packing * self._packing(task, machine_id)
        wishes = [c for c in requirement.constraints if not c.hard]
        if wishes:
            slot = self.state.machines.slot[machine_id]
            attributes = self.state.machines.attributes.of(slot)
            total = sum(c.weight for c in wishes)
            share = sum(c.weight / total for c in wishes if holds(c, attributes.get(c.attribute)))
            own += w.soft_constraints * share
        own += w.mixing * self._mixing(job, machine_id)
        own += w.preemption * -sum(1.0 + v.job.priority / 100.0 for v in victims)
        size = int((job.tasks >= 0).sum())
        overlay = 0.0
        if size > 1:
            overlay = (
                w.spread_machine * -self._siblings(job, machine_id, "machine") / size
                + w.spread_rack * -self._siblings(job, machine_id, "rack") / size
                + w.spread_power_domain * -self._siblings(job, machine_id, "power_domain") / size
            )
        packages = w.packages if self.state.tasks.last[task] == machine_id else 0.0
        return own + overlay + packages

    def _weights(self) -> list[float]:
        known = self.policy.resource_weights
        return [weight / sum(known) for weight in known]

    def _packing(self, task: int, machine_id: int) -> float:
        job, limit = self._job(task), self._requirement(task).limit
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        total, left, least, cost = 0.0, 0.0, 1.0, 0.0
        for r, weight in enumerate(self._weights()):
            if weight == 0 or capacity[r] == 0:
                continue
            if job.by_limit:
                used = sum(t.limit[r] for t in self.there[machine_id] if t.job.by_limit)
            else:
                used = sum(t.reservation[r] for t in self.there[machine_id])
            after = max(0.0, (capacity[r] - used - limit[r]) / capacity[r])
            total += weight
            left += weight * after
            least = min(least, after)
            cost += weight * (EPVM_BASE ** (1.0 - after) - EPVM_BASE ** min(1.0, used / capacity[r]))
        if total == 0:
            return 0.0
        if self.policy.scorer == "e-pvm":
            return -cost / (total * EPVM_BASE)
        left /= total
        if self.policy.scorer == "best-fit":
            return -left
        return -(0.25 * left + 0.75 * (left - least) / (left + 0.05))

    def _mixing(self, job: Job, machine_id: int) -> float:
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        share = 0.0
        for r, weight in enumerate(self._weights()):
            if weight > 0 and capacity[r] > 0:
                prod = sum(t.limit[r] for t in self.there[machine_id] if t.job.by_limit)
                reserved = sum(t.reservation[r] for t in self.there[machine_id])
                share += weight * min(1.0, (prod if job.by_limit else max(0, reserved - prod)) / capacity[r])
        return -share

    def _take(self, task: int, machine_id: int, victims: list[Tenancy]) -> None:
        limit = self._requirement(task).limit
        self.there[machine_id] = [t for t in self.there[machine_id] if t not in victims]
        identity = int(self.state.tasks.id[task])
        self.there[machine_id].append(Tenancy(identity, self._job(task), limit, limit, new=True))
        self.ports_free[machine_id] -= limit[PORTS]
