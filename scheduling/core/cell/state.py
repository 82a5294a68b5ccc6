"""The state of a cell in memory: arrays that are updated with each event of the journal.

    journal, or synthetic events made from rows ─► apply(event) ─► MachineTable, TaskTable ─► schedule_pass

**These synthetic events rebuild a state** (`scheduling.master.snapshot` creates them): one `MachineSet` per machine
with its present state; one `PackagesHeld` for all installed packages; one `MaintenanceSet` per open maintenance window;
one `PoolSet` per machine pool; one `JobSubmitted` per live job, and per ended job with tasks that are still being
stopped on a machine, with the present requirements of all its tasks; then for each task, in this order:

* for each pair of task and machine that crashed: `TaskPlaced` there and `TaskEvicted(avoid=True, gone=True)`,
  at the time of the crash;
* for each incarnation that has left a machine but is still being stopped there: `TaskPlaced` with its ports, and
  `TaskEvicted(gone=False)`;
* for a task that does not run and has another version of the spec than its job: `TaskUpdated`;
* running: `TaskPlaced` with its incarnation and ports; dead: `TaskEnded(machine_id=0)`; pending: nothing;

then one `TaskReported` for each running task that is up, one `ReservationsSet` for the tasks whose reservation differs
from their limit, and `JobEnded` for ended jobs. These events rebuild everything that `diff` compares. They do not
rebuild the incarnation of a pending task, which is stored only in its row. They also do not rebuild a pending task's
last machine and a machine's next port number, which are only preferences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.resources import PORTS, SIZE
from scheduling.core.cell import audit, comparing
from scheduling.core.cell.calendar import Calendar
from scheduling.core.cell.machines import STATUS_CODES
from scheduling.core.cell.pools import Pools
from scheduling.core.cell.sums import MachineSums
from scheduling.core.cell.tasks import DEAD, PENDING, RUNNING, STATES, LiveJob
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Group, padded, split_task_id, task_id
from scheduling.core.vocabulary.states import Transition, next_state

# For fewer events, arrays are slower.
_FEW = 8
_STOPPING = "stopping"  # the phase, as Borglets report it
_ENDINGS = {"finished": Transition.FINISH, "failed": Transition.FAIL}


class CellState(MachineSums):
    """The state of a cell as arrays in memory. `revision`: the revision of the newest event that was applied.
    `changes`: the number of batches of events that changed the state. While this number stays the same, a pass makes
    the same decisions.

    Some tasks are placed by their limit, and the others by their reservation (§5.5). The policy decides which tasks are
    placed by limit, and the policy can change. So each pass first calls `count_by_limit` with its policy.
    """

    def __init__(self, extra_resources: Iterable[str] = ()) -> None:
        self.extra_resources = tuple(extra_resources)
        self.axis = SIZE + len(self.extra_resources)
        self.revision = self.changes = 0
        super().__init__(self.axis)
        # (task id, incarnation) -> (machine id, ports): sent away, not yet reported gone.
        self.departed: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        # task id -> {machine id: when it crashed there, seconds since the epoch}
        self.crashed: dict[int, dict[int, float]] = {}
        self.calendar = Calendar()
        self.pools = Pools()
        self._rule = Policy(bands=DEFAULT_BANDS)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            events.MachineSet: self._machine_set,
            events.MachineState: self._machine_state,
            events.MachineRemoved: self._machine_removed,
            events.PackagesHeld: self._packages_held,
            events.MaintenanceSet: self._maintenance_set,
            events.PoolSet: self._pool_set,
            events.JobSubmitted: self._job_submitted,
            events.JobChanged: self._job_changed,
            events.JobReleased: self._job_released,
            events.JobEnded: self._job_ended,
            events.TasksAdded: self._tasks_added,
            events.TaskPlaced: self._task_placed,
            events.TaskEvicted: self._task_evicted,
            events.TaskEnded: self._task_ended,
            events.TaskGone: self._task_gone,
            events.TaskRevived: self._task_revived,
            events.TaskUpdated: self._task_updated,
            events.ReservationsSet: self._reservations_set,
        }

    def limit_disruptions(self, left: Mapping[int, int]) -> None:
        """Set how many more tasks a pass may preempt of each job that limits its disruptions within a window of time.
        `left`: by job id. These numbers change with the time, so the events do not contain them.
        Each change lets the next pass decide again.
        """
        if left != self.tasks.disruptions_left:
            self.tasks.disruptions_left = left
            self.changes += 1

    def apply_all(self, news: Iterable[tuple[events.Event, int, float]]) -> None:
        """Apply many events, given as (event, revision, time). The sums of machines are updated once, at the end.

        Raises the same errors as `apply`.
        """
        run: list[Any] = []  # events of one kind in a row: most of what happens in a busy cell
        times: list[float] = []
        changed = False
        placed, ended, reported = events.TaskPlaced, events.TaskEnded, events.TaskReported
        before: type | None = None
        try:
            for event, revision, time in news:
                kind = type(event)
                in_run = not event.alloc if isinstance(event, placed) else isinstance(event, ended) and event.gone
                if run and not (in_run and kind is before):
                    self._apply_run(run, times)
                    run, times = [], []
                before = kind
                if in_run:
                    run.append(event)
                    times.append(time)
                    changed = True
                elif kind is reported:
                    changed |= self._task_reported(event, time)
                elif (handler := self._handlers.get(kind)) is not None:
                    handler(event, time)
                    changed = True
                if revision > self.revision:
                    self.revision = revision
            self._apply_run(run, times)
        finally:
            self.changes += changed
            self._settle()

    def _apply_run(self, run: list[Any], times: list[float]) -> None:
        """Apply events of one kind, with their times: either `TaskEnded` events whose processes have ended (`gone`), or
        `TaskPlaced` events outside of allocs.
        """
        if len(run) < _FEW:
            for event, time in zip(run, times, strict=True):
                self._handlers[type(event)](event, time)
        elif isinstance(run[0], events.TaskEnded):
            self._tasks_ended(run)
        else:
            self._tasks_placed(run, times)

    def apply(self, event: events.Event, *, revision: int, time: float) -> None:
        """Apply one event that happened at `time`, seconds since the epoch.

        Events about leases, settings, reports, updates and rejections change the revision only. Raises `LookupError`
        for an unknown job or task. Raises `IllegalTransition` for a step that is not in Figure 2 of the paper. Raises
        `ValueError` for a vector with too many resources. After an error the state must not be used any more.
        """
        self.apply_all([(event, revision, time)])

    def load(self, stream: Iterable[tuple[events.Event, float]], *, revision: int) -> None:
        """Apply events that were made from database rows instead of the journal, given as (event, time). Afterwards the
        state is that of the rows at `revision`.
        """
        self.apply_all((event, 0, time) for event, time in stream)
        self.revision = revision

    @property
    def pending(self) -> int:
        """Return how many tasks wait for a machine."""
        return self.tasks.pending

    @property
    def running(self) -> int:
        return self.tasks.running

    def where(self, job_id: int, index: int) -> int | None:
        """Return the id of the machine on which a task runs, or None if it does not run. Raises `LookupError` for an
        unknown task.
        """
        machine = self.tasks.machine[self._slot(self._job(job_id), index)]
        return int(self.machines.id[machine]) if machine >= 0 else None

    def validate(self) -> list[str]:
        """Return one sentence for each broken invariant, or an empty list."""
        return audit.problems(self)

    def fingerprint(self) -> dict[str, dict[Any, Any]]:
        """Return the content of the state by ids, without slots. Equal states return equal content."""
        return comparing.content(self, comparing.live_tasks(self))

    def diff(self, other: CellState) -> list[str]:
        """Return the differences between two states as sentences; empty if they are equal."""
        return comparing.differences(self, other)

    def count_by_limit(self, policy: Policy) -> None:
        """Mark the tasks that `policy` places by limit (§5.5), and store the sum of their limits per machine. The bands
        of the policy decide which tasks these are. If the bands are the same as in the last call, nothing changes.
        """
        if (policy.bands, policy.batch_in_prod_by_reservation) == (
            self._rule.bands,
            self._rule.batch_in_prod_by_reservation,
        ):
            return
        self._rule = policy
        tasks, machines = self.tasks, self.machines
        for job in tasks.jobs.values():
            by_limit = policy.by_limit(job.priority, job.latency_sensitive)
            tasks.set_priority(job, job.priority, latency_sensitive=job.latency_sensitive, by_limit=by_limit)
        machines.prod_limit[:] = 0
        machines.tick += 1
        machines.changed[:] = machines.tick
        held = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0) & (tasks.alloc < 0))
        held = held[tasks.job_by_limit[tasks.job[held]]]
        np.add.at(machines.prod_limit, tasks.machine[held], tasks.shapes.limit[tasks.shape[held]])

    # --- machines

    def _machine_set(self, event: events.MachineSet, time: float) -> None:
        vector = list(padded(event.capacity, self.axis))
        vector[PORTS] = event.port_high - event.port_low + 1  # ports are counted by their range
        self.machines.touch(self.machines.set(event, vector))

    def _machine_state(self, event: events.MachineState, time: float) -> None:
        slot = self.machines.slot.get(event.machine_id)
        if slot is None:
            raise LookupError(
                f"machine {event.machine_id} became {event.state}, but the cell does not contain it; report this as "
                "a bug"
            )
        self.machines.status[slot] = STATUS_CODES[event.state]
        self.machines.touch(slot)

    def _machine_removed(self, event: events.MachineRemoved, time: float) -> None:
        slot = self.machines.slot.get(event.machine_id)
        if slot is None:
            return
        # Tasks that still run there are lost. `validate` reports them until they are evicted.
        for task in np.flatnonzero((self.tasks.machine == slot) & (self.tasks.state == RUNNING)).tolist():
            job = self._job(split_task_id(int(self.tasks.id[task]))[0])
            self._move(job, task, slot, -1)
            self.tasks.machine[task] = -1
        self._settle()
        for key in [key for key, (machine, _) in self.departed.items() if machine == event.machine_id]:
            self._forget_departure(key)
        for pairs in self.crashed.values():
            pairs.pop(event.machine_id, None)
        self.machines.remove(event.machine_id)

    def _packages_held(self, event: events.PackagesHeld, time: float) -> None:
        """Store which packages machines have installed. Removed machines are ignored."""
        machines = self.machines
        for detail, change in ((event.went, machines.installed.went), (event.came, machines.installed.came)):
            for digest, ids in detail.items():
                slots = [machines.slot[machine] for machine in ids if machine in machines.slot]
                change(digest, np.array(slots, dtype=np.int64))

    def _maintenance_set(self, event: events.MaintenanceSet, time: float) -> None:
        self.calendar.set(event)

    def _pool_set(self, event: events.PoolSet, time: float) -> None:
        self.pools.set(event)

    # --- jobs

    def _job_submitted(self, event: events.JobSubmitted, time: float) -> None:
        if event.job_id in self.tasks.jobs:
            raise ValueError(f"job {event.name} ({event.job_id}) was submitted twice; report this as a bug")
        job = LiveJob(
            event.job_id,
            tenant_id=event.tenant_id,
            tenant=event.tenant,
            name=event.name,
            kind=event.job_kind,
            alloc_set=event.alloc_set,
        )
        job.port_names, job.waiting = event.port_names, event.waiting
        self.tasks.add_job(job)
        self._set_placing(job, event)
        self._set_priority(job, event.priority, event.latency_sensitive)
        self._add(job, event.groups)

    def _tasks_added(self, event: events.TasksAdded, time: float) -> None:
        self._add(self._job(event.job_id), event.groups)

    def _add(self, job: LiveJob, groups: Sequence[Group]) -> None:
        for group in groups:
            spans = [np.arange(first, last + 1) for first, last in group.ranges]
            indexes = spans[0] if len(spans) == 1 else np.concatenate(spans)
            self.tasks.add_tasks(job, indexes, self.tasks.shapes.of(group.requirement))

    def _job_changed(self, event: events.JobChanged, time: float) -> None:
        job = self._job(event.job_id)
        job.port_names = event.port_names
        before = job.by_limit
        self._settle()
        self._set_priority(job, event.priority, event.latency_sensitive)
        self._set_placing(job, event)
        tasks, machines = self.tasks, self.machines
        slots = job.tasks[job.tasks >= 0]
        slots = slots[(tasks.machine[slots] >= 0) & (tasks.alloc[slots] < 0)]
        machines.tick += 1
        machines.changed[tasks.machine[slots]] = machines.tick  # who may preempt them is another question now
        if job.by_limit != before:
            change = tasks.shapes.limit[tasks.shape[slots]] * (1 if job.by_limit else -1)
            np.add.at(machines.prod_limit, tasks.machine[slots], change)

    def _job_released(self, event: events.JobReleased, time: float) -> None:
        self.tasks.set_waiting(self._job(event.job_id), waiting=False)

    def _set_placing(self, job: LiveJob, event: events.JobSubmitted | events.JobChanged) -> None:
        self.tasks.set_placing(
            job,
            gang=event.gang,
            disruption_budget=event.disruption_budget,
            max_running=event.max_running,
            start_after=event.start_after,
            max_run_s=event.max_run_s,
            ends_within_s=event.ends_within_s,
        )

    def _set_priority(self, job: LiveJob, priority: int, latency_sensitive: bool) -> None:
        by_limit = self._rule.by_limit(priority, latency_sensitive)
        self.tasks.set_priority(job, priority, latency_sensitive=latency_sensitive, by_limit=by_limit)

    def _job_ended(self, event: events.JobEnded, time: float) -> None:
        job = self._job(event.job_id)
        alive = self.tasks.job_pending.item(job.slot) + self.tasks.job_running.item(job.slot)
        if alive:
            raise ValueError(f"job {job.name} ({job.id}) ended, but {alive} of its tasks did not; report this as a bug")
        job.ended = True
        for identity in [task for task in self.crashed if split_task_id(task)[0] == job.id]:
            del self.crashed[identity]
        self._forget_if_over(job)

    def _forget_if_over(self, job: LiveJob) -> None:
        if job.ended and job.departures == 0:
            self.tasks.remove_job(job)

    # --- tasks

    def _task_placed(self, event: events.TaskPlaced, time: float) -> None:
        tasks = self.tasks
        job = self._job(event.job_id)
        task = self._slot(job, event.index)
        self._check(job, event.index, task, PENDING, Transition.SCHEDULE)
        tasks.state[task] = RUNNING
        tasks.incarnation[task] = event.incarnation
        tasks.since[task], tasks.up[task] = time, False
        tasks.waits(job.slot, -1)
        tasks.runs(job.slot, 1)
        if event.ports:
            tasks.ports[task] = event.ports
        if event.alloc:
            tasks.alloc[task] = self._slot_of(event.alloc)
        if event.devices:
            tasks.devices[task] = sum(1 << device for device in event.devices)
        machine = self.machines.slot.get(event.machine_id, -1)
        tasks.machine[task] = machine
        if machine < 0 or event.alloc:
            self._settle()  # the task that had the slot before may still be leaving
            tasks.reservation[task] = tasks.shapes.limit[tasks.shape[task]]
        if machine < 0:
            return  # a machine that has been removed since: `validate` tells, if it stays so
        self._move(job, task, machine, 1)
        if event.ports:
            self.machines.hold(machine, task_id(job.id, event.index), event.incarnation, event.ports)

    def _tasks_placed(self, many: Sequence[events.TaskPlaced], times: Sequence[float]) -> None:
        """Place many tasks outside of allocs. If one of the events cannot be applied, the tasks are placed one by one
        instead, which raises the error of the first such event.
        """
        tasks, machines = self.tasks, self.machines
        slots = self._slots(many)
        get = machines.slot.get
        where = np.array([get(event.machine_id, -1) for event in many], dtype=np.int64)
        if (tasks.state[slots] != PENDING).any() or where.min() < 0 or len(np.unique(slots)) < len(slots):
            for event, time in zip(many, times, strict=True):
                self._task_placed(event, time)
            return
        self._settle()
        tasks.state[slots] = RUNNING
        tasks.incarnation[slots] = [event.incarnation for event in many]
        tasks.since[slots], tasks.up[slots] = times, False
        tasks.machine[slots] = where
        tasks.pending -= len(many)
        tasks.running += len(many)
        np.subtract.at(tasks.job_pending, tasks.job[slots], 1)
        np.add.at(tasks.job_running, tasks.job[slots], 1)
        self._hold_ports(many, slots, where)
        for place, event in enumerate(many):
            if event.devices:
                tasks.devices[slots[place]] = sum(1 << device for device in event.devices)
        self._move_all(slots, 1)

    def _hold_ports(self, many: Sequence[events.TaskPlaced], slots: Ints, where: Ints) -> None:
        """Store the ports of many placed tasks. `slots`, `where` [N]: the slots of the tasks and of their machines."""
        held = np.fromiter((bool(event.ports) for event in many), np.bool_, len(many))
        if not held.any():
            return
        tasks, machines = self.tasks, self.machines
        columns = (held.nonzero()[0], slots[held], tasks.id[slots[held]], where[held])
        for place, slot, identity, machine in zip(*(column.tolist() for column in columns), strict=True):
            event = many[place]
            tasks.ports[slot] = event.ports
            machines.ports[machine].hold((identity, event.incarnation), event.ports)
        machines.count_free_ports(np.unique(where[held]))

    def _task_evicted(self, event: events.TaskEvicted, time: float) -> None:
        job = self._job(event.job_id)
        task = self._slot(job, event.index)
        self._check(job, event.index, task, RUNNING, Transition.EVICT)
        self._leave(job, task, event.machine_id, gone=event.gone)
        self.tasks.state[task] = PENDING
        self.tasks.waits(job.slot, 1)
        self.tasks.last[task] = event.machine_id
        if event.avoid and event.machine_id in self.machines.slot:
            self.crashed.setdefault(task_id(job.id, event.index), {})[event.machine_id] = time

    def _task_ended(self, event: events.TaskEnded, time: float) -> None:
        job = self._job(event.job_id)
        task = self._slot(job, event.index)
        if self.tasks.state.item(task) == RUNNING:
            self._leave(job, task, event.machine_id, gone=event.gone)
        else:
            # One that never ran can't finish; what a synthetic stream tells of is over, however it ended.
            how = _ENDINGS.get(event.how, Transition.KILL)
            step = Transition.KILL if how is Transition.FINISH else how
            self._check(job, event.index, task, PENDING, step)
            self.tasks.waits(job.slot, -1)
        self.tasks.state[task] = DEAD

    def _tasks_ended(self, many: Sequence[events.TaskEnded]) -> None:
        """End many tasks. Tasks that have no ports and are not inside an alloc are removed together, for speed."""
        tasks = self.tasks
        slots = self._slots(many)
        plain = (tasks.state[slots] == RUNNING) & (tasks.machine[slots] >= 0) & (tasks.alloc[slots] < 0)
        if tasks.ports:
            plain &= ~np.fromiter(map(tasks.ports.__contains__, slots.tolist()), np.bool_, len(slots))
        for place in np.flatnonzero(~plain).tolist():
            self._task_ended(many[place], 0.0)
        leaving, first = np.unique(slots[plain], return_index=True)
        again = np.delete(np.flatnonzero(plain), first)
        self._settle()
        self._move_all(leaving, -1)
        tasks.state[leaving] = DEAD
        tasks.machine[leaving] = -1
        tasks.devices[leaving] = 0
        tasks.running -= len(leaving)
        np.subtract.at(tasks.job_running, tasks.job[leaving], 1)
        for place in again.tolist():
            self._task_ended(many[place], 0.0)  # which tells what is wrong with it

    def _leave(self, job: LiveJob, task: int, machine_id: int, *, gone: bool) -> None:
        """Release the resources of a running task. `gone`: whether its processes have ended. If they have not, the task
        keeps its ports until they end.
        """
        tasks = self.tasks
        machine = tasks.machine.item(task)
        ports = tasks.ports.pop(task, ())
        tasks.runs(job.slot, -1)
        tasks.machine[task] = -1
        if machine >= 0:
            self._move(job, task, machine, -1)
            if not gone or ports:
                key = (tasks.id.item(task), tasks.incarnation.item(task))
                if not gone:
                    self.departed[key] = (machine_id, ports)
                    job.departures += 1
                else:
                    self.machines.release(machine, *key, ports)
        if tasks.alloc.item(task) >= 0:
            tasks.alloc[task] = -1
        if tasks.devices.item(task):
            tasks.devices[task] = 0

    def _task_gone(self, event: events.TaskGone, time: float) -> None:
        self._forget_departure((task_id(event.job_id, event.index), event.incarnation))

    def _forget_departure(self, key: tuple[int, int]) -> None:
        departure = self.departed.pop(key, None)
        if departure is None:
            return  # it ended together with its eviction, or its machine was removed
        machine_id, ports = departure
        machine = self.machines.slot.get(machine_id)
        if machine is not None and ports:
            self.machines.release(machine, *key, ports)
        job = self._job(split_task_id(key[0])[0])
        job.departures -= 1
        self._forget_if_over(job)

    def _task_reported(self, event: Any, time: float) -> bool:
        """Store when a running task came up or went down. Return whether this changes a booking: whether the task ends
        by a known time, and a gang is pending. Such a task keeps its time while it is being stopped, so that it does
        not seem to end later. The rows have the same rule (`tasks.reported_states`).
        """
        tasks = self.tasks
        job = tasks.jobs.get(event.job_id)
        task = job.tasks.item(event.index) if job is not None and 0 <= event.index < len(job.tasks) else -1
        if job is None or task < 0 or tasks.up.item(task) == event.up or tasks.state.item(task) != RUNNING:
            return False
        tasks.up[task] = event.up
        if event.phase == _STOPPING and job.ends_within_s > 0.0:
            return False
        tasks.since[task] = time
        if not tasks.gangs or job.ends_within_s <= 0.0:
            return False
        return bool((tasks.job_gang & tasks.job_there & (tasks.job_pending > 0)).any())

    def _task_revived(self, event: events.TaskRevived, time: float) -> None:
        job = self._job(event.job_id)
        task = self._slot(job, event.index)
        self._check(job, event.index, task, DEAD, Transition.RESUBMIT)
        self.tasks.state[task] = PENDING
        self.tasks.waits(job.slot, 1)

    def _task_updated(self, event: events.TaskUpdated, time: float) -> None:
        """Apply an update of a task. A running task stays on its machine. It keeps its reservation, unless its limit
        changes.
        """
        tasks = self.tasks
        job = self._job(event.job_id)
        task = self._slot(job, event.index)
        shape = tasks.shapes.of(event.requirement)
        before = tasks.shapes.limit[tasks.shape[task]]
        after = tasks.shapes.limit[shape]
        machine = int(tasks.machine[task])
        if tasks.state[task] != RUNNING or np.array_equal(before, after):
            tasks.shape[task] = shape
            return
        if machine >= 0:
            self._move(job, task, machine, -1)
        tasks.shape[task] = shape
        if machine >= 0:
            self._move(job, task, machine, 1)
        if machine < 0 or tasks.alloc[task] >= 0:
            tasks.reservation[task] = after

    def _reservations_set(self, event: events.ReservationsSet, time: float) -> None:
        self._settle()
        tasks, machines = self.tasks, self.machines
        new: dict[int, tuple[int, ...]] = {}
        for (job_id, index), reservation in zip(event.tasks, event.reservations, strict=True):
            job = tasks.jobs.get(job_id)
            if job is not None and index < len(job.tasks) and job.tasks[index] >= 0:
                new[int(job.tasks[index])] = padded(reservation, self.axis)
        slots = np.fromiter(new, dtype=np.int64, count=len(new))
        rows = np.array(list(new.values()), dtype=np.int64).reshape(len(new), self.axis)
        there = (tasks.state[slots] == RUNNING) & (tasks.machine[slots] >= 0)
        slots, rows = slots[there], rows[there]
        bare = tasks.alloc[slots] < 0
        on = tasks.machine[slots[bare]]
        np.add.at(machines.reserved, on, rows[bare] - tasks.reservation[slots[bare]])
        tasks.reservation[slots] = rows
        machines.tick += 1
        machines.changed[on] = machines.tick

    # --- what they share

    def _job(self, job_id: int) -> LiveJob:
        try:
            return self.tasks.jobs[job_id]
        except KeyError:
            raise LookupError(f"job {job_id} is not in this cell, or has ended; report this as a bug") from None

    def _slot(self, job: LiveJob, index: int) -> int:
        slot = job.tasks.item(index) if 0 <= index < len(job.tasks) else -1
        if slot < 0:
            raise LookupError(f"job {job.name} ({job.id}) has no task {index}; report this as a bug")
        return slot

    def _slots(self, many: Sequence[events.TaskPlaced | events.TaskEnded]) -> Ints:
        """Return the slots [N] of the tasks of many events. Raises the same errors as `_slot` and `_job`."""
        jobs = self.tasks.jobs
        try:
            slots = np.array([jobs[event.job_id].tasks.item(event.index) for event in many], dtype=np.int64)
        except (KeyError, IndexError):
            slots = np.full(1, -1, dtype=np.int64)
        if slots.min() < 0 or min(map(attrgetter("index"), many)) < 0:
            slots = np.array([self._slot(self._job(event.job_id), event.index) for event in many], dtype=np.int64)
        return slots

    def _check(self, job: LiveJob, index: int, task: int, wanted: int, step: Transition) -> None:
        """Raise `IllegalTransition` if the task is not in the state `wanted`. `step`: the transition that starts in
        this state.
        """
        code = self.tasks.state.item(task)
        if code != wanted:
            next_state(f"task {index} of job {job.name} ({job.id})", STATES[code], step)
            raise LookupError(
                f"task {index} of job {job.name} ({job.id}): {step} is not possible while it is "
                f"{STATES[code]}; report this as a bug"
            )

    def _slot_of(self, identity: int) -> int:
        """Return the slot of the task whose id is `identity`."""
        job_id, index = split_task_id(identity)
        return self._slot(self._job(job_id), index)
