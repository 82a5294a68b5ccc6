"""Cures of a pending job: the changes with which its tasks would start, each tried by a master (§2.6).

    job, reasons ─► candidates ─► the masters of its cell and of other cells try them ─► prices, quota ─► cures

Nothing changes. The number of queries does not depend on the number of candidates. It depends only on the number of
orders, of which there are at most `cure_prices.MOST_ORDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from django.utils import timezone

from quota.admission import admission
from quota.vocabulary.bands import FREE_PRIORITY, band_of
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import SIZE
from scheduling.access import selectors
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.core.vocabulary.trials import (
    MOST_TASKS,
    MOST_VARIANTS,
    TrialAnswer,
    TrialQuestion,
    TrialResult,
    Variant,
)
from scheduling.cures import cure_texts
from scheduling.cures.asking import WITHIN_S, ask
from scheduling.cures.candidates import (
    Candidate,
    lowered_candidate,
    lowerings,
    priority_candidates,
    request_candidates,
    trial_job,
)
from scheduling.cures.cure_list import Cure, CureKind, Cures, ranked, without_dominated
from scheduling.cures.cure_prices import Tried, with_prices, without_prices
from scheduling.cures.waiting import held_cure, waiting_cure
from scheduling.jobs.fit_guidance import guidance
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import spec_limits
from scheduling.jobs.updates import spec_of
from scheduling.jobs.why import is_held
from scheduling.models import Cell, Job, JobSpec, PendingVerdict, Task
from scheduling.spec import parser
from scheduling.spec.autoscaling.fields import AUTO
from scheduling.spec.job_spec import JobSpecification
from scheduling.tasks import pending_verdicts

# This many other cells are compared by their published free capacity, and this many of them try the job.
MOST_COMPARED, MOST_OTHER_CELLS = 20, 5
_CELL = "cell:"
# Larger job files, and jobs with more kinds of pending tasks, are not tried.
MOST_BYTES, MOST_GROUPS = 65_536, 50
# Among equally cheap cures, a smaller request comes first, then another band, then another cell.
_BAND_SIZE, _CELL_SIZE = 100.0, 200.0

Ask = Callable[[Mapping[Cell, TrialQuestion]], dict[int, TrialAnswer]]


def cures_of(principal: Principal, job: Job, *, index: int | None = None, ask_masters: Ask = ask) -> Cures:
    """Return the cures of a pending job, or of its pending task `index`, the cheapest first. Waits for the answers of
    masters for at most `asking.WITHIN_S` seconds. Changes nothing.

    Only cells that the caller may see and use for the tenant are tried. Prices are left out if the caller may not see
    the tenant's quota. `ask_masters`: sends the questions to the masters.
    """
    pending = _pending(job, index)
    if job.state == JobState.DEAD or not pending:
        return Cures()
    if is_held(job):
        return Cures([held_cure(job, len(pending))])
    verdict = PendingVerdict.objects.filter(job=job).first()
    whys = pending_verdicts.read(verdict.whys) if verdict is not None else []
    waiting = waiting_cure(job, verdict, whys, len(pending))
    if job.alloc_set_id is not None:
        return Cures([waiting], ["The tasks run inside an alloc set, so only the alloc set can change where they fit."])
    return _Search(principal, job, pending, whys, waiting).run(ask_masters)


class _Search:
    def __init__(self, principal: Principal, job: Job, pending: list[int], whys: list[Why], waiting: Cure) -> None:
        self.principal, self.job, self.whys, self.waiting = principal, job, whys, waiting
        self.spec = spec_of(job)
        self.bands = admission.bands()
        self.notes: list[str] = []
        left = job.max_running - job.tasks_running if job.max_running else len(pending)
        self.pending = pending[: min(left, MOST_TASKS)]
        self.tasks = len(self.pending)
        if self.tasks < min(left, len(pending)):
            self.notes.append(f"Only {MOST_TASKS} of the {len(pending)} pending tasks were tried.")
        self.parse = partial(parser.parse, limits=spec_limits(job.cell, self.bands))
        self.base = trial_job(self.spec, self.pending, job_id=job.id)

    def run(self, ask_masters: Ask) -> Cures:
        self.now = timezone.now()
        if any(why.never for why in self.whys):
            self.notes.append("Waiting does not help: some of the tasks never start without a change.")
        if len(self.spec.canonical) > MOST_BYTES or len(self.base.groups) > MOST_GROUPS:
            return self._listed([], "The job file is too large, or its tasks are too different, to try changes.")
        if self.spec.gang and self.tasks < self.job.tasks_pending:
            return self._listed([], f"A gang of more than {MOST_TASKS} tasks is not tried.")
        changes = [change for why in self.whys for change in why.changes]
        requests = request_candidates(self.spec, changes, self.parse)
        bands = priority_candidates(self.spec, self.bands, self.parse, before=self._priority_before())
        candidates = {one.key: one for one in (*bands, *requests)}
        variants = [
            Variant(one.key, trial_job(one.spec, self.pending, job_id=self.job.id))
            for one in list(candidates.values())[:MOST_VARIANTS]
        ]
        cuts = lowerings(self.base)
        if self._is_scaled():
            cuts = ()
            self.notes.append("The autoscaler sets the limits of the tasks, so no smaller limits were tried.")
        if len(candidates) > MOST_VARIANTS:
            self.notes.append(f"{len(candidates) - MOST_VARIANTS} changes of the request were not tried.")
        own = TrialQuestion("", self.base, tuple(variants), cuts)
        others = self._other_cells()
        questions = {self.job.cell: own}
        for cell, moved in others.items():
            questions[cell] = TrialQuestion("", trial_job(moved, range(self._tasks_there), job_id=0))
        answers = ask_masters(questions)
        tried = self._tried_here(answers.get(self.job.cell_id), candidates) + self._tried_there(answers, others)
        return self._listed(with_prices(self.job, self._with_quota(self.waiting, self.spec), tried, notes=self.notes))

    def _listed(self, cures: list[Cure], *notes: str) -> Cures:
        """Return the list. Waiting is left out if it does not help."""
        helps = self.waiting.places or not any(why.never for why in self.whys)
        found = ranked([*([self.waiting] if helps else []), *cures])
        return Cures([without_prices(self.principal, self.job, one) for one in found], [*self.notes, *notes])

    @property
    def _tasks_there(self) -> int:
        """Return how many tasks of the job would run at once in another cell."""
        return min(self.spec.tasks, self.job.max_running or self.spec.tasks)

    def _is_scaled(self) -> bool:
        rules = self.spec.autoscale
        return rules is not None and rules.vertical is not None and rules.vertical.mode == AUTO

    def _priority_before(self) -> int | None:
        """Return the last priority of the job above the free one, as before a demotion."""
        if self.job.spec_version < 2 or self.job.priority != FREE_PRIORITY:
            return None
        rows = JobSpec.objects.filter(job=self.job, spec__priority__gt=FREE_PRIORITY).order_by("-version")
        return rows.values_list("spec__priority", flat=True).first()

    def _other_cells(self) -> dict[Cell, JobSpecification]:
        """Return the other cells that try the job, and its spec there: of those that the caller may use, the ones in
        which most of its tasks would fit by their published free capacity.
        """
        if self._tasks_there > MOST_TASKS:
            self.notes.append(f"The job has more than {MOST_TASKS} tasks, so no other cell was tried.")
            return {}
        rows = selectors.cells_visible(self.principal).filter(study_of__isnull=True).exclude(pk=self.job.cell_id)
        rows = rows.order_by("name")
        tenant = self.job.tenant.name
        cells = [cell for cell in rows if may(self.principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name)]
        found: list[tuple[int, str, Cell, JobSpecification]] = []
        for cell in cells[:MOST_COMPARED]:
            try:
                moved = parser.parse(self.spec.to_json() | {"cell": cell.name}, limits=spec_limits(cell, self.bands))
            except Rejected:  # for example, it requests a resource that this cell does not have
                continue
            fits = guidance(cell, moved, self.bands)
            if fits and all(fit.shapes.machines for fit in fits):
                found.append((-min(fit.shapes.room for fit in fits), cell.name, cell, moved))
        found.sort(key=lambda one: one[:2])
        if len(cells) > MOST_COMPARED or len(found) > MOST_OTHER_CELLS:
            self.notes.append(f"Not all other cells were tried; `borgctl fit` compares up to 200 of {len(cells)}.")
        return {cell: moved for _, _, cell, moved in found[:MOST_OTHER_CELLS]}

    def _tried_here(self, answer: TrialAnswer | None, candidates: Mapping[str, Candidate]) -> list[Tried]:
        if answer is None:
            self.notes.append(
                f"The master of cell {self.job.cell.name} did not answer within {WITHIN_S:g} s, so no change was tried"
                " there. It is busy or does not run. Ask again in a moment, and ask an SRE if this lasts."
            )
            return []
        if answer.untried:
            self.notes.append(
                f"{len(answer.untried)} of the changes were not tried, because the time for trials was over; ask again."
            )
        if answer.base.placed >= self.tasks:
            self.waiting = replace(
                self.waiting,
                places=self.tasks,
                verified=True,
                revision=answer.revision,
                starts_at=self.now,
                start="The tasks fit now, so the next pass of the scheduler places them.",
            )
            return []
        by_key = {one.key: one for one in lowerings(self.base)}
        requests: list[Cure] = []
        specs: dict[str, JobSpecification] = {}
        tried: list[Tried] = []
        for result in answer.results:
            if result.placed <= answer.base.placed:
                continue
            candidate = candidates.get(result.key) or lowered_candidate(
                self.spec, self.base, by_key[result.key], result.parts, self.pending, self.parse
            )
            if candidate is None:
                continue
            cure = self._update(candidate, result, answer)
            specs[cure.key] = candidate.spec
            if candidate.kind == "band":
                tried.append(self._with_quota(cure, candidate.spec))
            else:
                requests.append(cure)
        tried += [self._with_quota(cure, specs[cure.key]) for cure in without_dominated(requests)]
        return tried

    def _update(self, candidate: Candidate, result: TrialResult, answer: TrialAnswer) -> Cure:
        job, patch, new = self.job, candidate.patch, candidate.spec
        name = f"{job.cell.name}/{job.tenant.name}/{job.name}"
        path = f"/jobs/{name}/update/"
        kind = CureKind.REQUEST
        if candidate.kind == "band":
            kind = CureKind.BAND
            change = cure_texts.priority_change(job.priority, new.priority, band_of(new.priority, self.bands).name)
        else:
            change = cure_texts.request_change(self.spec, new, patch)
        restarts = sum(
            last - first + 1
            for first, last, what in restart_rule.changes(self.spec, new)
            if what is restart_rule.SpecChange.RESTART
        )
        return Cure(
            key=candidate.key,
            kind=kind,
            cell=job.cell.name,
            change=change,
            tasks=self.tasks,
            places=result.placed,
            preempts=result.preempted,
            restarts=min(restarts, job.tasks_running),
            patch=patch,
            verified=True,
            revision=answer.revision,
            starts_at=self.now,
            start="At once, in the next pass of the scheduler after the change.",
            commands=(cure_texts.patch_command(name, patch, revision_of(job)),),
            path=cure_texts.patch_path(path, str(job.uid), patch),
            subject=candidate.subject,
            size=_BAND_SIZE if candidate.kind == "band" else _size(self.spec, new),
        )

    def _tried_there(self, answers: Mapping[int, TrialAnswer], others: Mapping[Cell, JobSpecification]) -> list[Tried]:
        tried = []
        job = self.job
        name = f"{job.cell.name}/{job.tenant.name}/{job.name}"
        for cell, moved in others.items():
            answer = answers.get(cell.id)
            if answer is None:
                self.notes.append(f"The master of cell {cell.name} did not answer, so the job was not tried there.")
                continue
            tasks = self._tasks_there
            if answer.base.placed < tasks:
                continue  # a move must let all tasks of the job run
            cure = Cure(
                key=f"{_CELL}{cell.name}",
                kind=CureKind.CELL,
                cell=cell.name,
                change=cure_texts.cell_change(moved, cell.name),
                tasks=tasks,
                places=answer.base.placed,
                preempts=answer.base.preempted,
                restarts=job.tasks_running,
                verified=True,
                revision=answer.revision,
                starts_at=self.now,
                start="At once, in the next pass of that cell's scheduler after the submission.",
                commands=cure_texts.copy_commands(name, cell.name),
                path=cure_texts.copy_path("/submit/", cell.name, job.tenant.name, name),
                size=_CELL_SIZE,
            )
            tried.append(self._with_quota(cure, moved))
        return tried

    def _with_quota(self, cure: Cure, new: JobSpecification) -> Tried:
        """Return the cure with the quota that it needs in its band and cell."""
        band, charged = self._band(new.priority), new.charged()[:SIZE]
        change = charged
        if cure.cell == self.job.cell.name and band == self._band(self.job.priority):
            change = tuple(now - was for now, was in zip(charged, self.spec.charged(), strict=False))
        return Tried(cure, band, charged, change)

    def _band(self, priority: int) -> str:
        """Return the name of the band whose quota a priority needs, or "" for the free priority."""
        return "" if priority == FREE_PRIORITY else band_of(priority, self.bands).name


def _pending(job: Job, index: int | None) -> list[int]:
    rows = Task.objects.filter(job=job, state=TaskState.PENDING.value).order_by("index")
    if index is not None and not job.gang:
        rows = rows.filter(index=index)
    return list(rows.values_list("index", flat=True))


def _size(old: JobSpecification, new: JobSpecification) -> float:
    """Return how much smaller the request is: the largest part of a limit that is given up, or 1 for each constraint
    that is dropped or replaced.
    """
    cuts = [1.0 - now / was for was, now in zip(old.base.limit, new.base.limit, strict=True) if was]
    gone = [one for one in old.base.constraints if one not in new.base.constraints]
    return max((*cuts, 0.0)) + len(gone)
