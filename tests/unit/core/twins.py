"""A slow and simple version of the scheduling pass, without arrays or caches. The kernels must agree with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from quota.vocabulary.bands import DEFAULT_BANDS, Band, band_of
from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.cell.attributes import holds
from scheduling.core.cell.audit import tasks_on
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING, RUNNING, LiveJob
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Requirement, split_task_id

EPVM_BASE = 10.0
WHOLE = 1000
RUNNERS_UP = 3
ATTEMPTS, TIGHT = 8, 0.75


def may_preempt(preemptor: int, victim: int, bands: Sequence[Band] = DEFAULT_BANDS) -> bool:
    """Return whether a task of priority `preemptor` may preempt one of priority `victim` (§2.5)."""
    if preemptor <= victim:
        return False
    band = band_of(preemptor, bands)
    return band.preempts_within or not band.low <= victim <= band.high


@dataclass
class Tenancy:
    """One task on one machine and what it holds. `new`: whether this pass placed it."""

    identity: int
    job: LiveJob
    limit: tuple[int, ...]
    reservation: tuple[int, ...]
    devices: tuple[int, ...] = ()
    new: bool = False
    cores: int = 0

    def holds(self, device: int) -> int:
        """Return the milli-units that the task holds of one accelerator."""
        return min(WHOLE, self.limit[ACCELERATORS]) if device in self.devices else 0


@dataclass
class Option:
    """A machine on which a task could be placed, with its score and the victims to preempt."""

    score: float
    machine_id: int
    victims: list[Tenancy] = field(default_factory=list)

    @property
    def merit(self) -> tuple[float, int]:
        return self.score, -self.machine_id


@dataclass
class Decision:
    machine_id: int
    victims: list[tuple[int, int]]
    devices: tuple[int, ...]
    runners_up: list[int]


class Twin:
    """A slow scheduler that scores every feasible machine for every task, as `Search(randomise=False)` does."""

    def __init__(self, state: CellState, policy: Policy, now: float) -> None:
        self.state, self.policy, self.now = state, policy, now
        state.count_by_limit(policy)
        self.there: dict[int, list[Tenancy]] = {}
        self.ports_free: dict[int, int] = {}
        self.down: dict[int, int] = {}  # by job id: number of pending tasks and victims of this pass
        tasks = state.tasks
        for job in tasks.jobs.values():
            slots = job.tasks[job.tasks >= 0]
            self.down[job.id] = sum(int(tasks.state[t]) == PENDING for t in slots)
        for machine_id, slot in sorted(state.machines.slot.items()):
            self.ports_free[machine_id] = state.machines.ports[slot].free
            self.there[machine_id] = [
                Tenancy(
                    int(tasks.id[t]),
                    self._job(t),
                    tasks.shapes.requirement[tasks.shape[t]].limit,
                    tuple(tasks.reservation[t].tolist()),
                    tuple(d for d in range(64) if int(tasks.devices[t]) >> d & 1),
                    cores=tasks.shapes.requirement[tasks.shape[t]].whole_cores,
                )
                for t in tasks_on(state, slot)
            ]

    def _job(self, task: int) -> LiveJob:
        job = self.state.tasks.job_at[self.state.tasks.job[task]]
        assert job is not None
        return job

    def run(self) -> dict[tuple[int, int], Decision]:
        """Return the decisions by (job id, index).

        If the free capacity is scarce but enough for all, keep the best result of several orders.
        """
        order = self._hardest_first(self._turns())
        retried = self._enough(order, 1.0) and not self._enough(order, TIGHT)
        fresh = self._copy()
        best: tuple[list[int], dict[tuple[int, int], Decision]] = ([], {})
        for number in range(ATTEMPTS):
            self.there, self.ports_free, self.down = fresh
            fresh = self._copy()
            result = self._attempt(order)
            left = [t for t in order if split_task_id(int(self.state.tasks.id[t])) not in result]
            priorities = sorted({self._job(t).priority for t in order}, reverse=True)
            placed = [sum(self._job(t).priority == p for t in order if t not in left) for p in priorities]
            if number == 0 or placed > best[0]:
                best, end = (placed, result), self._copy()
            if not left or not retried or (number == 0 and 2 * len(result) < len(order)):
                break
            jobs = {self._job(t).id for t in left}
            order = sorted(order, key=lambda t: (-self._job(t).priority, self._job(t).id not in jobs))
        self.there, self.ports_free, self.down = end
        return best[1]

    def _copy(self) -> tuple[dict[int, list[Tenancy]], dict[int, int], dict[int, int]]:
        return {m: list(there) for m, there in self.there.items()}, dict(self.ports_free), dict(self.down)

    def _attempt(self, order: list[int]) -> dict[tuple[int, int], Decision]:
        result: dict[tuple[int, int], Decision] = {}
        for together in self._queue(order):
            before = self._copy()
            decided = {}
            for task in together:
                options = self.options(task)
                if not options:
                    # All or nothing: the tasks already placed are removed again, and their victims stay.
                    (self.there, self.ports_free, self.down), decided = before, {}
                    break
                decided[split_task_id(int(self.state.tasks.id[task]))] = self._decide(task, options)
            result |= decided
        return result

    def _decide(self, task: int, options: list[Option]) -> Decision:
        best, *others = sorted(options, key=lambda option: option.merit, reverse=True)
        devices = self.take(task, best.machine_id, best.victims)
        victims = [split_task_id(victim.identity) for victim in best.victims]
        return Decision(best.machine_id, victims, devices, [o.machine_id for o in others[:RUNNERS_UP]])

    def _queue(self, order: list[int]) -> list[list[int]]:
        """Return the units to place, in order: single tasks, and each gang at the position of its first task. The
        three oldest gangs of each priority come first in their priority, if at least two of their tasks wait.
        """
        waiting = Counter(self._job(task).id for task in order)
        gangs_of: dict[int, set[int]] = {}
        for task in order:
            job = self._job(task)
            if job.gang and waiting[job.id] > 1:
                gangs_of.setdefault(job.priority, set()).add(job.id)
        ages = {job: age for own in gangs_of.values() for age, job in enumerate(sorted(own)[:3])}
        order = sorted(order, key=lambda task: (-self._job(task).priority, ages.get(self._job(task).id, 3)))
        result: list[list[int]] = []
        gangs: dict[int, list[int]] = {}
        for task in order:
            job = self._job(task)
            if job.gang and job.id in gangs:
                gangs[job.id].append(task)
            else:
                result.append([task])
                if job.gang:
                    gangs[job.id] = result[-1]
        return result

    def _hardest_first(self, turns: list[int]) -> list[int]:
        """Sort tasks by priority, and then the hardest to place first, if the free capacity is enough for all."""
        if not turns or not self._enough(turns, 1.0):
            return turns
        hardness = {t: max(self._hardness(t, turns), 1 / 32) for t in turns}
        for t in turns:
            if self._job(t).gang:
                gang = [other for other in turns if self._job(other) is self._job(t)]
                hardness[t] = max(max(self._hardness(other, turns) for other in gang), 1 / 32)
        return sorted(turns, key=lambda t: (-self._job(t).priority, -hardness[t]))

    def _counted(self) -> list[int]:
        return [r for r, weight in enumerate(self.policy.resource_weights) if weight > 0]

    def _up(self) -> list[int]:
        return [slot for slot in self.state.machines.slot.values() if self.state.machines.up[slot]]

    def _enough(self, turns: list[int], part: float) -> bool:
        """Return whether `part` of the free capacity is enough for all tasks.

        Free capacity is counted by limits for the tasks that need guaranteed limits, and by reservations for all tasks.
        """
        machines = self.state.machines
        for kind, used in ((True, machines.prod_limit), (False, machines.reserved)):
            if not any(self._job(t).by_limit == kind for t in turns):
                continue
            for r in self._counted():
                room = sum(max(0, int(machines.capacity[m, r] - used[m, r])) for m in self._up())
                asked = sum(self._requirement(t).limit[r] for t in turns if self._job(t).by_limit or not kind)
                if asked > part * room:
                    return False
        return True

    def _hardness(self, t: int, turns: list[int]) -> float:
        """Return how hard a task is to place.

        This is its share of an average machine, or of the domains that its job needs, over the share of machines that
        satisfy its constraints.
        """
        machines, requirement, up = self.state.machines, self._requirement(t), self._up()
        share = 0.0
        for r in self._counted():
            mean = sum(int(machines.capacity[m, r]) for m in up) / len(up) if up else 0
            share = max(share, requirement.limit[r] / mean if mean else 0.0)
        size = sum(self._job(other) is self._job(t) for other in turns)
        for bound, domains in (
            (requirement.max_per_machine, len(up)),
            (requirement.max_per_rack, len({int(machines.rack[m]) for m in up})),
            (requirement.max_per_power_domain, len({int(machines.power[m]) for m in up})),
        ):
            if bound and up:
                share = max(share, size / bound / domains)
        demand = [c for c in requirement.constraints if c.hard]
        able = [m for m in up if all(holds(c, machines.attributes.of(m).get(c.attribute)) for c in demand)]
        return share / (max(1, len(able)) / len(up)) if up else 0.0

    def _turns(self) -> list[int]:
        """Return pending tasks in fair order: by priority, then the tenant served least, then its job served least."""
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

    def options(self, task: int) -> list[Option]:
        """Return the machines to choose from: those with free capacity, or else those where preemption helps.

        Preemption beyond disruption budgets is considered only if nothing else helps.
        """
        return self.direct(task) or self.preempting(task, budgets=True) or self.preempting(task, budgets=False)

    def direct(self, task: int) -> list[Option]:
        """Return the machines that have enough free capacity."""
        return [
            Option(self._score(task, m, []), m)
            for m in self.there
            if self._may_hold(task, m) and self._fits(task, m, [])
        ]

    def preempting(self, task: int, *, budgets: bool) -> list[Option]:
        """Return the machines on which the task fits after preemption. `budgets`: whether to respect disruption
        budgets.
        """
        found = []
        for m in self.there:
            if self._may_hold(task, m):
                victims = self._victims(task, m, budgets=budgets)
                if victims is not None:
                    found.append(Option(self._score(task, m, victims), m, victims))
        return found

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

    def _siblings(self, job: LiveJob, machine_id: int, kind: str) -> int:
        def domain(m: int) -> object:
            facts = self.state.machines.facts[self.state.machines.slot[m]]
            return m if kind == "machine" else getattr(facts, kind)

        if not domain(machine_id):
            return 0  # a machine without a known rack shares its rack with no other
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
        if limit[ACCELERATORS] and not self._devices(limit[ACCELERATORS], machine_id, without):
            return False
        return limit[PORTS] <= self.ports_free[machine_id] and self._cores(task, machine_id, stay)

    def _cores(self, task: int, machine_id: int, stay: list[Tenancy]) -> bool:
        """Return whether the machine has enough whole cores for a task beside the tasks in `stay`.

        The rules are those of `borglet.runtimes.cgroups.reserved_cores`. An evicted task keeps its cores until its
        processes have ended.
        """
        if not self._job(task).latency_sensitive:
            return True
        want, jobs = self._requirement(task).whole_cores, self.state.tasks.jobs
        there = [t.cores for t in stay if t.job.latency_sensitive]
        for (identity, _), (machine, _) in self.state.departed.items():
            job_id, index = split_task_id(identity)
            if machine == machine_id and jobs[job_id].latency_sensitive:
                there.append(self._requirement(int(jobs[job_id].tasks[index])).whole_cores)
        left = int(self.state.machines.cores[self.state.machines.slot[machine_id]]) - sum(there)
        if want == 0:
            return not sum(there) or left > 0
        return want <= left - (0 in there)

    def _devices(self, want: int, machine_id: int, without: list[Tenancy]) -> tuple[int, ...]:
        """Return the accelerators for `want` milli-units, or none if they are not free once the tasks in `without` are
        gone.

        A share goes to the fullest device that has enough left.
        """
        free = self._free_devices(machine_id, without)
        if want < WHOLE:
            return min(((left, d) for d, left in enumerate(free) if left >= want), default=(0,))[1:]
        whole = [d for d, left in enumerate(free) if left == WHOLE]
        number = -(-want // WHOLE)
        return tuple(whole[:number]) if len(whole) >= number else ()

    def _free_devices(self, machine_id: int, without: list[Tenancy]) -> list[int]:
        capacity = int(self.state.machines.capacity[self.state.machines.slot[machine_id], ACCELERATORS])
        stay = [tenancy for tenancy in self.there[machine_id] if tenancy not in without]
        return [
            min(WHOLE, capacity - d * WHOLE) - sum(tenancy.holds(d) for tenancy in stay)
            for d in range(-(-capacity // WHOLE))
        ]

    def _within_budgets(self, tenancies: list[Tenancy]) -> list[Tenancy]:
        down = dict(self.down)
        kept = []
        for tenancy in tenancies:
            job = tenancy.job
            if job.disruption_budget == 0 or down[job.id] < job.disruption_budget:
                down[job.id] += 1
                kept.append(tenancy)
        return kept

    def _victims(self, task: int, machine_id: int, *, budgets: bool = False) -> list[Tenancy] | None:
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
        if budgets:
            lower = self._within_budgets(lower)
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
        if requirement.packages:
            own += w.packages * self._present(requirement, machine_id)
        own += w.preemption * -sum(1.0 + v.job.priority / 100.0 for v in victims)
        size = int((job.tasks >= 0).sum())
        overlay = 0.0
        if size > 1:
            overlay = (
                w.spread_machine * -self._siblings(job, machine_id, "machine") / size
                + w.spread_rack * -self._siblings(job, machine_id, "rack") / size
                + w.spread_power_domain * -self._siblings(job, machine_id, "power_domain") / size
            )
        before = not requirement.packages and self.state.tasks.last[task] == machine_id
        packages = w.packages if before else 0.0
        return own + overlay + packages

    def _present(self, requirement: Requirement, machine_id: int) -> float:
        """Return the share, 0 to 1, of the bytes of the task's packages that the machine already has."""
        there = self.state.machines.installed.by_slot().get(self.state.machines.slot[machine_id], [])
        has = sum(size for digest, size in requirement.packages if digest in there)
        return has / sum(size for _, size in requirement.packages)

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
            part = 1.0 / capacity[r]  # kernels multiply: equal to the last bit, so that ties are ties
            after = max(0.0, (capacity[r] - used - limit[r]) * part)
            total += weight
            left += weight * after
            least = min(least, after)
            cost += weight * (EPVM_BASE ** (1.0 - after) - EPVM_BASE ** min(1.0, used * part))
        if total == 0:
            return 0.0
        if self.policy.scorer == "e-pvm":
            return -cost / (total * EPVM_BASE)
        left /= total
        if self.policy.scorer == "best-fit":
            return -left
        return -(0.25 * left + 0.75 * (left - least) / (left + 0.05)) + self._devices_kept(task, machine_id)

    def _devices_kept(self, task: int, machine_id: int) -> float:
        seen = self._typical()
        if not seen:
            return 0.0
        limit = self._requirement(task).limit
        if limit[ACCELERATORS] == 0:
            return -0.25 * sum(max(0, left) for left in self._free_devices(machine_id, [])) / WHOLE
        taken = self._devices(limit[ACCELERATORS], machine_id, [])
        if not taken:
            return 0.0
        before = self._fragments(task, machine_id, seen, ())
        return -1.25 * (self._fragments(task, machine_id, seen, taken) - before) / max(1.0, limit[ACCELERATORS] / WHOLE)

    def _typical(self) -> list[tuple[tuple[int, ...], float]]:
        """Return the 32 most frequent requests of tasks with accelerators, without ports, each with its share."""
        tasks, found = self.state.tasks, Counter[tuple[int, ...]]()
        if any(self.state.machines.capacity[slot, ACCELERATORS] for slot in self.state.machines.slot.values()):
            for job in tasks.jobs.values():
                for slot in job.tasks[job.tasks >= 0].tolist():
                    limit = self._requirement(slot).limit
                    if tasks.state[slot] in (PENDING, RUNNING) and limit[ACCELERATORS]:
                        found[(*limit[:PORTS], 0, *limit[PORTS + 1 :])] += 1
        most = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:32]
        return [(limit, number / found.total()) for limit, number in most]

    def _fragments(
        self, task: int, machine_id: int, seen: list[tuple[tuple[int, ...], float]], taken: tuple[int, ...]
    ) -> float:
        """Return the expected number of free accelerators that tasks like those in `seen` could not use.

        `seen`: requests with their shares. `taken`: the accelerators that the task would get.
        """
        job, limit = self._job(task), self._requirement(task).limit
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        there = self.there[machine_id]
        used = [
            sum(t.limit[r] for t in there if t.job.by_limit) if job.by_limit else sum(t.reservation[r] for t in there)
            for r in range(len(limit))
        ]
        free = self._free_devices(machine_id, [])
        for device in taken:
            free[device] -= min(WHOLE, limit[ACCELERATORS])
        free = [left for left in free if left > 0]
        total = 0.0
        for wanted, share in seen:
            enough = all(
                capacity[r] - used[r] - (limit[r] if taken else 0) >= want
                for r, want in enumerate(wanted)
                if want and r != ACCELERATORS
            )
            usable = [left for left in free if left >= min(WHOLE, wanted[ACCELERATORS])]
            if enough and len(usable) * min(WHOLE, wanted[ACCELERATORS]) >= wanted[ACCELERATORS]:
                total += share * (sum(free) - sum(usable))
            else:
                total += share * sum(free)
        return total / WHOLE

    def _mixing(self, job: LiveJob, machine_id: int) -> float:
        capacity = self.state.machines.capacity[self.state.machines.slot[machine_id]].tolist()
        share = 0.0
        for r, weight in enumerate(self._weights()):
            if weight > 0 and capacity[r] > 0:
                prod = sum(t.limit[r] for t in self.there[machine_id] if t.job.by_limit)
                reserved = sum(t.reservation[r] for t in self.there[machine_id])
                mine = prod if job.by_limit else max(0, reserved - prod)
                share += weight * min(1.0, mine * (1.0 / capacity[r]))
        return -share

    def take(self, task: int, machine_id: int, victims: list[Tenancy]) -> tuple[int, ...]:
        """Evict the victims, place the task, and return the accelerators that it gets."""
        limit = self._requirement(task).limit
        for victim in victims:
            self.down[victim.job.id] += 1
        self.there[machine_id] = [t for t in self.there[machine_id] if t not in victims]
        devices = self._devices(limit[ACCELERATORS], machine_id, []) if limit[ACCELERATORS] else ()
        identity = int(self.state.tasks.id[task])
        cores = self._requirement(task).whole_cores
        self.there[machine_id].append(Tenancy(identity, self._job(task), limit, limit, devices, new=True, cores=cores))
        self.ports_free[machine_id] -= limit[PORTS]
        return devices
