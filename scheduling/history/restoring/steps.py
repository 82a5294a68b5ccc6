"""The steps of a restore in place, in the transaction of the caller, which has locked the cell's row.

    stop jobs ─► submit jobs ─► update jobs ─► revive tasks ─► end tasks

Each step is a revision of the journal. The steps use the functions that users' requests use. So quota, names, limits
and alloc sets are checked as usual, and a job that they reject becomes a problem of the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.changes import Ending
from scheduling.core.vocabulary.requirement import Requirement, task_id
from scheduling.history.restoring.differences import Differences, Pair, RequestedJob
from scheduling.history.restoring.outcome import Problem
from scheduling.jobs import jobs, updates
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import ArchivedJob, Cell, Job, JobSpec, Update
from scheduling.spec import job_spec, parser
from scheduling.tasks import counters, transitions

Version = tuple[int, int]  # job id, version of the spec
FINISHED = "finished"
_ONLY_ARCHIVED = (
    "its job file of that time is only in the archive, without secret values; submit the job again from its own file"
)


class Steps:
    """What a restore changes in a cell. `to`: the revision of the moment to which the cell is set back.

    `stop`: jobs that the cell did not have, or not with this spec. `submit`: jobs to submit again. `change`: live jobs
    whose spec differs. `ended`, `revived`: how many tasks of other live jobs have to end or to become pending.
    `finished`: how many tasks have finished since, and are not repeated. `problems`: jobs that cannot be set back;
    `run` adds some.
    """

    def __init__(self, principal: Principal, cell: Cell, found: Differences, *, to: int) -> None:
        self._principal, self._cell = principal, cell
        self._to, self._detail = to, f"the cell was set back to revision {to}"
        other = [pair for pair in found.pairs if (pair.then.id, pair.then.version) != (pair.now.id, pair.now.version)]
        earlier = [*found.submit, *(pair.then for pair in other)]
        self._outcomes = _outcomes({job.id for job in earlier} | {pair.now.id for pair in found.pairs if pair.back})
        archived = _archived([job.id for job in earlier])
        known = [*(job for job in earlier if job.id not in archived), *(pair.now for pair in other)]
        self._specs = _stored({(job.id, job.version) for job in known})
        self.problems: list[Problem] = []
        differing = {pair.now.id for pair in other if self._differs(pair)}
        pairs = [pair for pair in found.pairs if pair.now.id not in differing or self._has_spec(pair.then)]
        replaced = self._replaced(pairs, differing)
        self._pairs = [pair for pair in pairs if pair.now.id not in replaced]
        self.change = [pair for pair in self._pairs if pair.now.id in differing]
        self.stop = [*found.stop, *(pair.now for pair in pairs if pair.now.id in replaced)]
        ended = [*found.submit, *(pair.then for pair in pairs if pair.now.id in replaced)]
        self.submit = [job for job in ended if job.alive - self._finished(job.id) and self._has_spec(job)]
        self.ended = sum(len(pair.over) for pair in self._pairs)
        self.finished = sum(len(pair.back & self._finished(pair.now.id)) for pair in self._pairs)
        self.revived = sum(len(pair.back) for pair in self._pairs) - self.finished
        self.finished += sum(len(job.alive & self._finished(job.id)) for job in ended)

    def __bool__(self) -> bool:
        """Return whether anything has to change."""
        return bool(self.stop or self.submit or self.change or self.ended or self.revived)

    def run(self, *, ended_history: str) -> None:
        """Change the cell. `ended_history`: the id of the history that has just ended."""
        self._stop(ended_history)
        again = self._submit()
        changing = {pair.now.id for pair in self.change}
        changed = {pair.now.id: pair.then for pair in self._update()}
        same = [pair for pair in self._pairs if pair.now.id not in changing and (pair.back or pair.over)]
        live = {pair.now.id: pair.then for pair in same}
        # A job whose tasks are all dead ends, so tasks are revived before others end.
        self._revive(live | changed, set(changed))
        self._end(live | changed | again, set(again))

    def _stop(self, ended_history: str) -> None:
        """Begin the new history, and end the jobs that the cell did not have."""
        with journal.write(self._cell.id, self._principal) as entry:
            cause = entry.append(events.CellRestored(revision=self._to, history=ended_history))
            stopped = [job.id for job in self.stop]
            creating = Update.objects.filter(job_id__in=stopped, state=Update.OPEN).order_by("job_id")
            for job_id in creating.values_list("job_id", flat=True):  # they would add tasks to a job that ends
                updates.update_close(entry, job_id, self._detail)
            for inside in (True, False):  # tasks inside allocs end before their allocs
                endings = [
                    Ending(task_id(job.id, index), "killed", detail=self._detail, caused_by=cause)
                    for job in self.stop
                    if bool(job.alloc_set) is inside
                    for index in sorted(job.alive)
                ]
                transitions.tasks_end(entry, endings)
            counters.jobs_end_if_over(entry, stopped)

    def _submit(self) -> dict[int, RequestedJob]:
        """Submit jobs again. Return them by their new ids."""
        wanted = sorted(self.submit, key=lambda job: bool(job.alloc_set))
        specs = [self._spec(job.id, job.version) for job in wanted]
        done = jobs.jobs_submit_specs(principal=self._principal, cell=self._cell, specs=specs)
        found = {}
        for job, verdict in zip(wanted, done, strict=True):
            if verdict.job is not None:
                found[verdict.job.id] = job
            elif verdict.problem is not None:
                self.problems.append(Problem(job.title, verdict.problem.detail))
        return found

    def _update(self) -> list[Pair]:
        """Start updates of jobs to their earlier specs, and return these jobs. The master continues the updates."""
        rows = Job.objects.select_related("cell", "tenant").in_bulk([pair.now.id for pair in self.change])
        done = []
        for pair in self.change:
            spec = self._spec(pair.then.id, pair.then.version)
            try:
                updates.job_update(
                    principal=self._principal,
                    job=rows[pair.now.id],
                    job_spec=spec,
                    undo=True,
                    reason=self._detail,
                    later=True,
                )
            except Rejected as problem:
                self.problems.append(Problem(pair.now.title, problem.detail))
            else:
                done.append(pair)
        return done

    def _revive(self, live: Mapping[int, RequestedJob], changed: Set[int]) -> None:
        """Make tasks pending again that were alive, and have been killed or have failed since. `live`: the earlier job
        by the id of the live one. `changed`: the ids of updated jobs. Their other dead tasks get the new version at
        once, so that the update does not revive them.
        """
        dead: dict[Version, list[tuple[int, bool]]] = defaultdict(list)
        rows = query(
            "SELECT t.job_id, t.index, t.outcome, j.spec_version FROM scheduling_task AS t JOIN scheduling_job AS j"
            " ON j.id = t.job_id WHERE t.job_id = ANY(%s) AND t.state = 'dead' ORDER BY t.id",
            [sorted(live)],
        )
        for job_id, index, outcome, version in rows:
            back = index in live[job_id].alive and outcome != FINISHED
            if back or job_id in changed:
                dead[job_id, version].append((index, back))
        stored = _stored(dead)
        follow: list[tuple[int, int, Requirement]] = []
        revived: dict[int, list[int]] = defaultdict(list)
        for (job_id, version), tasks in dead.items():
            spec = _parsed(stored[job_id, version], self._cell)
            for index, back in tasks:
                if index < spec.tasks:  # a task that the spec does not have was about to end
                    follow.append((task_id(job_id, index), version, spec.requirement(index)))
                    if back:
                        revived[version].append(task_id(job_id, index))
        with journal.write(self._cell.id, self._principal) as entry:
            for version, ids in sorted(revived.items()):
                transitions.tasks_revive(entry, ids, spec_version=version)
            transitions.tasks_follow(entry, follow)

    def _end(self, live: Mapping[int, RequestedJob], again: Set[int]) -> None:
        """End the tasks that were dead, and those that have finished since. `live`: the earlier job by the id of the
        live one. `again`: the ids of jobs that were submitted again.
        """
        statement = "SELECT job_id, index FROM scheduling_task WHERE job_id = ANY(%s) AND state <> 'dead' ORDER BY id"
        endings = []
        for job_id, index in query(statement, [sorted(live)]):
            then = live[job_id]
            how = self._outcomes[then.id].get(index) if job_id in again else None
            if index in then.dead or how == FINISHED:
                endings.append(Ending(task_id(job_id, index), how or "killed", detail=self._detail))
        with journal.write(self._cell.id, self._principal) as entry:
            transitions.tasks_end(entry, endings)

    @staticmethod
    def _replaced(pairs: Sequence[Pair], differing: Set[int]) -> set[int]:
        """Return the ids of jobs that were submitted since under the name of an earlier job, and have to end before it
        comes back: those with another spec, and those inside such an alloc set.
        """
        replaced = {pair.now.id for pair in pairs if pair.now.id in differing and pair.then.id != pair.now.id}
        sets = {(pair.now.tenant, pair.now.name) for pair in pairs if pair.now.id in replaced}
        return replaced | {pair.now.id for pair in pairs if (pair.now.tenant, pair.now.alloc_set) in sets}

    def _finished(self, job_id: int) -> set[int]:
        return {index for index, outcome in self._outcomes[job_id].items() if outcome == FINISHED}

    def _differs(self, pair: Pair) -> bool:
        then, now = (self._specs.get((one.id, one.version)) for one in (pair.then, pair.now))
        return then is None or now is None or then.digest != now.digest

    def _has_spec(self, job: RequestedJob) -> bool:
        """Return whether the spec of an earlier job is known. If it is not, add a problem."""
        known = (job.id, job.version) in self._specs
        if not known:
            self.problems.append(Problem(job.title, _ONLY_ARCHIVED))
        return known

    def _spec(self, job_id: int, version: int) -> job_spec.JobSpecification:
        return _parsed(self._specs[job_id, version], self._cell)


def _parsed(row: JobSpec, cell: Cell) -> job_spec.JobSpecification:
    return parser.load(row.spec, extra=cell.extra_resources, packages=row.packages)


def _stored(wanted: Collection[Version]) -> dict[Version, JobSpec]:
    """Return those of the versions of specs that PostgreSQL has."""
    rows = JobSpec.objects.filter(job_id__in={job for job, _ in wanted}, version__in={version for _, version in wanted})
    return {(row.job_id, row.version): row for row in rows if (row.job_id, row.version) in wanted}


def _archived(job_ids: Sequence[int]) -> set[int]:
    """Return the jobs that are in the archive. If somebody has opened such a job, PostgreSQL has its spec again, but
    with masks instead of secret values.
    """
    return set(ArchivedJob.objects.filter(pk__in=job_ids).values_list("pk", flat=True))


def _outcomes(job_ids: Set[int]) -> defaultdict[int, dict[int, str]]:
    """Return the outcomes of dead tasks, by job id and index."""
    found: defaultdict[int, dict[int, str]] = defaultdict(dict)
    statement = "SELECT job_id, index, outcome FROM scheduling_task WHERE job_id = ANY(%s) AND state = 'dead'"
    for job_id, index, outcome in query(statement, [sorted(job_ids)]):
        found[job_id][index] = outcome
    return found
