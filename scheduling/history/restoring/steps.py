"""The steps of a restore in place, in the transaction of the caller, which has locked the cell's row.

    end new jobs ─► rounds: submit jobs, update jobs, replace jobs ─► revive tasks ─► end tasks

The steps use the functions that users' requests use. So quota, names, limits and alloc sets are checked as usual. A job
that they reject is tried again in the next round, because another job may have released the quota or become the alloc
set that was missing. A job that the last round rejects is a problem of the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from django.db import transaction

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Requirement, task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.history.restoring.differences import Differences, Pair, RequestedJob
from scheduling.history.restoring.outcome import Problem
from scheduling.history.restoring.replacements import Replacement, replacements
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.submission.outcomes import Submission, rejected_event
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import ArchivedJob, Cell, Job, JobSpec
from scheduling.spec import job_spec, parser
from scheduling.tasks import counters, transitions

Version = tuple[int, int]  # job id, version of the spec
FINISHED = "finished"
# Rounds at most. Two are enough unless jobs wait for each other in a chain.
ROUNDS = 10
_UNKNOWN = "job-file-unknown"
_ONLY_ARCHIVED = "its job file of that time is only in the archive, without secret values; "
_SUBMIT_IT, _APPLY_IT = "submit the job again from its own file", "apply your own copy of it"
_ERASED = "its tenant was erased from the history, so its jobs do not come back"


def _without_workflows(cell: Cell, found: Differences) -> Differences:
    """Return the differences without jobs of workflows. A workflow goes on as it is, and its nodes know their jobs: if
    a restore ended or repeated these, nodes would fail or run twice.
    """
    named = [*found.stop, *found.submit, *(pair.now for pair in found.pairs)]
    rows = query(
        "SELECT DISTINCT t.name, n.job_name FROM unnest(%s::text[], %s::text[]) AS c(tenant, name)"
        " JOIN quota_tenant AS t ON t.name = c.tenant"
        " JOIN scheduling_workflow AS w ON w.cell_id = %s AND w.tenant_id = t.id"
        " JOIN scheduling_workflownode AS n ON n.workflow_id = w.id AND n.job_name = c.name",
        [[job.tenant for job in named], [job.name for job in named], cell.id],
    )
    own = set(rows)
    return replace(
        found,
        stop=[job for job in found.stop if (job.tenant, job.name) not in own],
        submit=[job for job in found.submit if (job.tenant, job.name) not in own],
        pairs=[pair for pair in found.pairs if (pair.now.tenant, pair.now.name) not in own],
    )


class Steps:
    """What a restore changes in a cell. `to`: the revision of the moment to which the cell is set back.

    After `run`: `stopped`: jobs that ended, because the cell did not have them, or not with this spec. `submitted`:
    earlier jobs that were submitted again, with the tasks that are not finished. `changed`: live jobs that are updated.
    `revived`, `ended`: how many tasks of other live jobs became pending or dead. `finished`: how many tasks have
    finished since, and are not repeated. `problems`: jobs that cannot be set back.
    """

    def __init__(self, principal: Principal, cell: Cell, found: Differences, *, to: int) -> None:
        self._principal, self._cell = principal, cell
        found = _without_workflows(cell, found)
        self._to, self._detail = to, f"the cell was set back to revision {to}"
        other = [pair for pair in found.pairs if (pair.then.id, pair.then.version) != (pair.now.id, pair.now.version)]
        earlier = [*found.submit, *(pair.then for pair in other)]
        self._outcomes = _outcomes({job.id for job in earlier} | {pair.now.id for pair in found.pairs if pair.back})
        self._archived = _archived([job.id for job in earlier])
        known = [*(job for job in earlier if job.id not in self._archived), *(pair.now for pair in other)]
        self._specs = _stored({(job.id, job.version) for job in known})
        differing = {pair.now.id for pair in other if self._differs(pair)}
        self._same = [pair for pair in found.pairs if pair.now.id not in differing]
        again = [pair for pair in found.pairs if pair.now.id in differing and pair.then.id != pair.now.id]
        self._stop, self._replace = replacements(found.stop, again, self._same)
        ending = {job.id for one in self._replace for job in one.stop}
        self._same = [pair for pair in self._same if pair.now.id not in ending]
        self._update = [pair for pair in found.pairs if pair.now.id in differing and pair.then.id == pair.now.id]
        self._rows = Job.objects.select_related("cell", "tenant").in_bulk([pair.now.id for pair in self._update])
        lasting = [*self._same, *self._update]
        self.finished = sum(len(pair.back & self._finished(pair.now.id)) for pair in lasting)
        self._submit = self._unfinished(found.submit)
        for one in self._replace:
            one.submit = self._unfinished(one.submit)
        self._rejected: dict[int, Rejected] = {}  # by the id of the earlier job
        self._again: dict[int, RequestedJob] = {}  # earlier jobs by the id of the new one
        self.stopped: list[RequestedJob] = []
        self.submitted: list[RequestedJob] = []
        self.changed: list[RequestedJob] = []
        self.problems: list[Problem] = []
        self.revived = self.ended = 0

    def __bool__(self) -> bool:
        """Return whether anything has changed."""
        return bool(self.stopped or self.submitted or self.changed or self.ended or self.revived)

    def run(self, *, ended_history: str) -> None:
        """Change the cell. `ended_history`: the id of the history that has just ended."""
        with journal.write(self._cell.id, self._principal) as entry:
            self._cause = entry.append(events.CellRestored(revision=self._to, history=ended_history))
            self._end_jobs(entry, self._stop)
        self.stopped += self._stop
        changed: dict[int, RequestedJob] = {}  # the earlier job by the id of the live one
        for _ in range(ROUNDS):
            before = len(self._submit) + len(self._update) + len(self._replace)
            self._again |= self._submit_jobs([job for job in self._submit if not job.waiting])
            changed |= {pair.now.id: pair.then for pair in self._update if self._update_job(pair)}
            self.changed += [pair.now for pair in self._update if pair.now.id in changed]
            self._update = [pair for pair in self._update if pair.now.id not in changed]
            self._replace = [one for one in self._replace if not self._replace_jobs(one)]
            # The jobs that they wait for have come back by now.
            self._again |= self._submit_jobs([job for job in self._submit if job.waiting])
            back = {job.id for job in self._again.values()}
            self._submit = [job for job in self._submit if job.id not in back]
            if len(self._submit) + len(self._update) + len(self._replace) in (0, before):
                break
        self.submitted += self._again.values()
        live = {pair.now.id: pair.then for pair in self._same if pair.back or pair.over} | changed
        # A job whose tasks are all dead ends, so tasks are revived before others end.
        self._revive(live, changed.keys())
        self._end(live)
        self._report()

    def _end_jobs(self, entry: journal.JournalEntry, ending: Sequence[RequestedJob]) -> None:
        ids = [job.id for job in ending]
        updates.updates_close(entry, ids, self._detail)  # they would add tasks to a job that ends
        for inside in (True, False):  # tasks inside allocs end before their allocs
            endings = [
                Ending(task_id(job.id, index), "killed", detail=self._detail, caused_by=self._cause)
                for job in ending
                if bool(job.alloc_set) is inside
                for index in sorted(job.alive)
            ]
            transitions.tasks_end(entry, endings)
        counters.jobs_end_if_over(entry, ids)

    def _submit_jobs(self, wanted: Sequence[RequestedJob]) -> dict[int, RequestedJob]:
        """Submit jobs again. Return those that are accepted, by their new ids. A job that did not wait for other jobs
        at the moment to which the cell is set back does not wait for them again. A job that waited is rejected as long
        as one of its other jobs has not come back: a newer job of that name may be about to end.
        """
        known = [job for job in wanted if self._is_known(job, _SUBMIT_IT)]
        found: dict[int, RequestedJob] = {}
        for waiting in (False, True):
            wanted = sorted((job for job in known if job.waiting is waiting), key=_in_order)
            if not wanted:
                continue
            everything = [*self._submit, *(job for one in self._replace for job in one.submit)]
            back = {job.id for job in (*self._again.values(), *found.values(), *wanted)}
            done = submit_and_kill.jobs_submit_specs(
                principal=self._principal,
                cell=self._cell,
                specs=[self._spec(job) for job in wanted],
                binds=waiting,
                missing={job.key for job in everything if job.id not in back},
            )
            found |= self._accepted(wanted, done)
        return found

    def _accepted(self, wanted: Sequence[RequestedJob], done: Sequence[Submission]) -> dict[int, RequestedJob]:
        """Return the accepted jobs by their new ids, and record the rejections of the others."""
        found = {}
        for job, verdict in zip(wanted, done, strict=True):
            if verdict.job is not None:
                found[verdict.job.id] = job
                self._rejected.pop(job.id, None)
            elif verdict.problem is not None:
                self._rejected[job.id] = verdict.problem
        return found

    def _update_job(self, pair: Pair) -> bool:
        """Start the update of a job to its earlier spec, which the master continues. Return whether it is accepted."""
        if not self._is_known(pair.then, _APPLY_IT):
            return False
        try:
            updates.job_update(
                principal=self._principal,
                job=self._rows[pair.now.id],
                job_spec=self._spec(pair.then),
                undo=True,
                reason=self._detail,
                later=True,
                quiet=True,
            )
        except Rejected as problem:
            self._rejected[pair.then.id] = problem
            return False
        return True

    def _replace_jobs(self, one: Replacement) -> bool:
        """End live jobs and submit the earlier ones. If one of these is rejected, all live jobs stay as they are.
        Return whether all were accepted.
        """
        if not all(self._is_known(job, _APPLY_IT) for job in one.submit):
            return False
        with transaction.atomic():
            with journal.write(self._cell.id, self._principal) as entry:
                self._end_jobs(entry, one.stop)
            found = self._submit_jobs(one.submit)
            if len(found) < len(one.submit):
                transaction.set_rollback(True)  # to the savepoint
                return False
        self.stopped += one.stop
        self._again |= found
        return True

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
                self.revived += len(transitions.tasks_revive(entry, ids, spec_version=version))
            transitions.tasks_follow(entry, follow)

    def _end(self, live: Mapping[int, RequestedJob]) -> None:
        """End the tasks that were dead, and those of new jobs that have finished since. `live`: the earlier job by the
        id of the live one.
        """
        earlier = {**live, **self._again}
        statement = "SELECT job_id, index FROM scheduling_task WHERE job_id = ANY(%s) AND state <> 'dead' ORDER BY id"
        endings = []
        for job_id, index in query(statement, [sorted(earlier)]):
            then = earlier[job_id]
            how = self._outcomes[then.id].get(index) if job_id in self._again else None
            if index in then.dead or how == FINISHED:
                endings.append(Ending(task_id(job_id, index), how or "killed", detail=self._detail))
        with journal.write(self._cell.id, self._principal) as entry:
            ended = transitions.tasks_end(entry, endings)
        self.ended = sum(task.job_id not in self._again for task in ended)

    def _report(self) -> None:
        """Set the problems, and record the rejections in the journal."""
        left = [*self._submit, *(pair.then for pair in self._update)]
        self.problems = [Problem(job.title, self._rejected[job.id].detail) for job in left]
        for one in self._replace:
            left += one.submit
            first = next(job for job in sorted(one.submit, key=_in_order) if job.id in self._rejected)
            for job in one.stop:
                same = job.key == first.key
                reason = self._rejected[first.id].detail if same else f"{first.title} cannot be restored"
                self.problems.append(Problem(job.title, f"the restore left this job unchanged: {reason}"))
        self.problems.sort(key=lambda problem: problem.job)
        with journal.write(self._cell.id, self._principal) as entry:
            for job in left:
                problem = self._rejected.get(job.id)
                if problem is not None and problem.code != _UNKNOWN:
                    entry.append(rejected_event(job.tenant, job.name, problem))

    def _finished(self, job_id: int) -> set[int]:
        return {index for index, outcome in self._outcomes[job_id].items() if outcome == FINISHED}

    def _unfinished(self, earlier: Sequence[RequestedJob]) -> list[RequestedJob]:
        """Return the jobs with work to do, without the tasks that have finished since. Count these tasks."""
        found = []
        for job in earlier:
            all_finished = self._archived.get(job.id) == FINISHED
            left = frozenset() if all_finished else job.alive - self._finished(job.id)
            self.finished += len(job.alive) - len(left)
            if left:
                found.append(replace(job, alive=left))
        return found

    def _differs(self, pair: Pair) -> bool:
        then, now = (self._specs.get((one.id, one.version)) for one in (pair.then, pair.now))
        return then is None or now is None or then.digest != now.digest

    def _is_known(self, job: RequestedJob, cure: str) -> bool:
        """Return whether the spec of an earlier job is known and may be used. If it is not, the job is rejected."""
        row = self._specs.get((job.id, job.version))
        if row is None:
            self._rejected[job.id] = Rejected(_UNKNOWN, _ONLY_ARCHIVED + cure)
        elif row.spec["tenant"] != job.tenant:
            self._rejected[job.id] = Rejected(_UNKNOWN, _ERASED)
        else:
            return True
        return False

    def _spec(self, job: RequestedJob) -> job_spec.JobSpecification:
        return _parsed(self._specs[job.id, job.version], self._cell)


def _in_order(job: RequestedJob) -> tuple[bool, int]:
    """Sort alloc sets before the jobs inside them, and jobs before those that wait for them, which are newer."""
    return bool(job.alloc_set), job.id


def _parsed(row: JobSpec, cell: Cell) -> job_spec.JobSpecification:
    return parser.load(row.spec, extra=cell.extra_resources, packages=row.packages)


def _stored(wanted: Collection[Version]) -> dict[Version, JobSpec]:
    """Return those of the versions of specs that PostgreSQL has."""
    rows = JobSpec.objects.filter(job_id__in={job for job, _ in wanted}, version__in={version for _, version in wanted})
    return {(row.job_id, row.version): row for row in rows if (row.job_id, row.version) in wanted}


def _archived(job_ids: Sequence[int]) -> dict[int, str]:
    """Return the outcomes of those jobs that are in the archive. If somebody has opened such a job, PostgreSQL has its
    spec again, but with masks instead of secret values.
    """
    return dict(ArchivedJob.objects.filter(pk__in=job_ids).values_list("pk", "outcome"))


def _outcomes(job_ids: Set[int]) -> defaultdict[int, dict[int, str]]:
    """Return the outcomes of dead tasks, by job id and index."""
    found: defaultdict[int, dict[int, str]] = defaultdict(dict)
    statement = "SELECT job_id, index, outcome FROM scheduling_task WHERE job_id = ANY(%s) AND state = 'dead'"
    for job_id, index, outcome in query(statement, [sorted(job_ids)]):
        found[job_id][index] = outcome
    return found
