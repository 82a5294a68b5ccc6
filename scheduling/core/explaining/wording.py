"""Turns `Why`, the explanation of why tasks are pending, into sentences for REST, CLI and portal (§2.6).

The sentences say what was requested, what was found, and what to do. The portal passes its translations as arguments.
This module does not import Django.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from quota.vocabulary.resources import NAMES, describe
from scheduling.core.vocabulary.reasons import (
    WHOLE_CORES,
    Ahead,
    Basis,
    ChangeKind,
    Conforming,
    ExpectedStart,
    Nearest,
    ReasonCode,
    RuledOut,
    Shape,
    SuggestedChange,
    Why,
)
from scheduling.core.vocabulary.requirement import POOL, PROTOCOL, Constraint, Relation, spelled


@dataclass(frozen=True, slots=True)
class Words:
    """Functions that translate texts into the reader's language."""

    gettext: Callable[[str], str]
    ngettext: Callable[[str, str, int], str]


# If a machine holds this number of tasks or more, another shape is not suggested.
FEW = 4
# Reasons for which another shape of the request would help.
_SHAPED = (ReasonCode.RESOURCE, ReasonCode.MACHINE_STATE, ReasonCode.GANG)
ENGLISH = Words(lambda text: text, lambda one, many, number: one if number == 1 else many)


@dataclass(frozen=True, slots=True)
class VerdictText:
    """The explanation of why tasks are pending, as text. `summary`: the problem. `reasons`: each reason, with the
    number of machines that it excludes. `cures`: the expected start, and changes that would help. `notes`: further
    facts.
    """

    summary: str
    reasons: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Return one paragraph: why the tasks are pending, and what would help."""
        first = f"{self.summary}: {'; '.join(self.reasons)}." if self.reasons else self.summary
        return " ".join((first, *self.cures))

    @property
    def text(self) -> str:
        """Return the summary, reasons, cures and notes as one text."""
        return " ".join((self.head, *self.notes))


def sentence(why: Why, *, name: str = "", job_id: int | None = None, extra: Sequence[str] = ()) -> str:
    """Return why tasks are pending as one English paragraph. `name`: the name of the job. `job_id`: count only the
    tasks of this job. `extra`: names of the cell's own resources.
    """
    return format_why(why, name=name, job_id=job_id, extra=extra).text


def format_why(
    why: Why,
    *,
    name: str = "",
    job_id: int | None = None,
    extra: Sequence[str] = (),
    hostnames: Mapping[int, str] | None = None,
    words: Words = ENGLISH,
) -> VerdictText:
    """Return why tasks are pending as text for people.

    `name`: the name of the job. `job_id`: count only this job's tasks. `extra`: names of the cell's own resources.
    `hostnames`: by machine id, the names of the machines that the reader may see.
    """
    return _Wording(words, tuple(extra), hostnames or {}).explain(why, name, job_id)


def format_expected_start(why: Why, *, words: Words = ENGLISH) -> str:
    """Return a sentence that says when the next of the pending tasks is likely to start, or that this cannot be
    estimated. It is empty if only a change of the request helps.
    """
    return _Wording(words, (), {}).expected(why.expected) if why.expected is not None else ""


def format_set_time(why: Why, *, words: Words = ENGLISH) -> str:
    """Return the same sentence if it names the time of the start. Otherwise return an empty text."""
    return format_expected_start(why, words=words) if why.expected is not None and why.expected.at is not None else ""


def format_fit(shapes: Conforming, *, tasks: int, extra: Sequence[str] = (), words: Words = ENGLISH) -> list[str]:
    """Return sentences that say whether `tasks` equal tasks would fit into the cell, and with which limits more tasks
    would fit. `shapes`: the advice about limits for these tasks.
    """
    return _Wording(words, tuple(extra), {}).fit(shapes, tasks)


def _format_time(seconds: float) -> str:
    """Return a time, given in seconds since the epoch, as text in UTC."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


class _Wording:
    def __init__(self, words: Words, extra: tuple[str, ...], hostnames: Mapping[int, str]) -> None:
        self._, self.ngettext = words.gettext, words.ngettext
        self.extra, self.hostnames = extra, hostnames
        self.names = (*NAMES, *extra)

    def explain(self, why: Why, name: str, job_id: int | None) -> VerdictText:
        who = self.who(sum(number for job, number in why.tasks if job_id is None or job == job_id), name)
        if why.machines == 0:
            text = self._(
                "%s can't be placed: the cell has no machine. Add one with a token from `borgctl machine join-token`."
            )
            return VerdictText(text % who)
        if not why.ruled_out:
            return VerdictText(
                self._("%s can't be placed in this pass; the scheduler tries again in the next one.") % who
            )
        if why.code == ReasonCode.NO_SUCH_RESOURCE:
            return VerdictText(self._("%s can't be placed") % who, *self.absent([one.subject for one in why.ruled_out]))
        given = {"tasks": who, "machines": self.machines(why.machines)}
        cures = [*self.outlook(why), *dict.fromkeys(self.cure(change) for change in why.changes)]
        if why.shapes is not None and why.code in _SHAPED:
            # If a request is too large for every machine, `why.changes` already names the largest machine.
            cures += self.shapes(why.shapes) if why.shapes.asked is not None or not why.changes else []
        pools = any(one.code in (ReasonCode.DEDICATED_POOL, ReasonCode.OUTSIDE_POOL) for one in why.ruled_out)
        if why.never and pools:
            cures.append(self._("Or ask an SRE of the cell for more machines that jobs of the tenant may use."))
        elif why.never and len(cures) == 1:
            cures.append(self._("Request less, or ask an SRE for larger machines."))
        return VerdictText(
            self._("%(tasks)s can't be placed on any of %(machines)s") % given,
            tuple(self.reason(one) for one in why.ruled_out),
            tuple(cures),
            tuple(self.notes(why)),
        )

    def absent(self, names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (explanations, advice) for the requested resources `names`, which no machine has."""
        given = {"names": self._(" and ").join(name.replace("_", " ") for name in names)}
        reason = self._("no machine of the cell has any %(names)s") % given
        cure = self._("Remove %(names)s from the request, or submit the job to a cell that has them.") % given
        return (reason,), (cure,)

    def who(self, tasks: int, name: str) -> str:
        detail = self.ngettext("%d task", "%d tasks", tasks) % tasks
        return self._("%(tasks)s of job %(name)s") % {"tasks": detail, "name": name} if name else detail

    def outlook(self, why: Why) -> list[str]:
        """Return sentences that say when the next task is expected to start if nobody changes its request."""
        if why.never and why.shapes is not None and why.shapes.asked is not None:
            return [self._("Even the empty cell could not hold all of these tasks.")]
        if why.never:
            return [self._("No machine of the cell could hold one of these tasks, even if it were empty.")]
        if why.code in (ReasonCode.DEDICATED_POOL, ReasonCode.OUTSIDE_POOL):
            text = self._(
                "Ask an SRE of the cell for more machines that jobs of the tenant may use, or use another cell."
            )
            return [text]
        if self.crashed(why):
            return [self._("Look at the log of the task, and correct the cause of its crashes.")]
        if why.expected is not None and why.expected.basis is Basis.MAINTENANCE:
            if why.expected.fills_s is None:
                return [self._("The job waits until the maintenance has ended.")]
            text = self._(
                "A task whose max_run_s, notice_s and leave_s are together at most %s would end before the maintenance,"
                " and may start now."
            )
            return [text % f"{why.expected.fills_s:.0f}"]
        if why.expected is not None and why.expected.fills_s is not None:
            text = self._(
                "A task would use this capacity before the gang starts if its restart policy is 'never', it has no"
                " health check, and its max_run_s, notice_s and leave_s add up to at most %s seconds."
            )
            return [text % f"{why.expected.fills_s:.0f}"]
        if why.code == ReasonCode.MACHINE_STATE:
            return [self._("The job waits until machines are up again.")]
        if why.code in (ReasonCode.RESOURCE, ReasonCode.CORES, "") and not why.changes:
            return [self._("The job waits for capacity that tasks of the same or a higher priority use.")]
        return []

    @staticmethod
    def crashed(why: Why) -> bool:
        return any(one.code == ReasonCode.CRASHED_PAIR for one in why.ruled_out)

    def notes(self, why: Why) -> list[str]:
        detail = []
        near = why.nearest
        # If tasks crash, a machine that only a constraint rules out does not help.
        hint = near is not None and not (near.fails and self.crashed(why))
        if near is not None and hint and (near.lacks or near.fails or near.bounds):
            detail.append(self.nearest(near))
        if why.preemption.held and not why.never:
            detail.append(
                self.ngettext(
                    "On %d machine, tasks that this job may not preempt use the capacity.",
                    "On %d machines, tasks that this job may not preempt use the capacity.",
                    why.preemption.held,
                )
                % why.preemption.held
            )
        if why.preemption.not_enough:
            detail.append(
                self.ngettext(
                    "On %d machine, it would not be enough to preempt all tasks of lower priority.",
                    "On %d machines, it would not be enough to preempt all tasks of lower priority.",
                    why.preemption.not_enough,
                )
                % why.preemption.not_enough
            )
        if why.reclamation.machines:
            detail.append(
                self.ngettext(
                    "On %d machine, a non-prod task would fit, but the limits of prod tasks leave too little for a "
                    "prod task.",
                    "On %d machines, a non-prod task would fit, but the limits of prod tasks leave too little for a "
                    "prod task.",
                    why.reclamation.machines,
                )
                % why.reclamation.machines
            )
        if why.ahead:
            detail.append(self.ahead(why.ahead, why.ahead_of, why.ahead_tenants))
        if why.expected is not None and (expected := self.expected(why.expected)):
            detail.append(expected)
        return detail

    def reason(self, one: RuledOut) -> str:
        given = {
            "machines": self.machines(one.machines),
            "subject": one.subject,
            "bound": one.wanted,
            "wanted": self.quantity(one.subject, one.wanted),
            "amount": self.amount(one.subject, one.wanted),
            "most": self.quantity(one.subject, one.largest),
            "until": _format_time(one.until),
        }
        texts = {
            ReasonCode.NO_MACHINES: self._("the cell has no machine"),
            ReasonCode.NO_SUCH_RESOURCE: self._("no machine of the cell has any %(subject)s"),
            ReasonCode.CONSTRAINT: self._("%(machines)s without %(subject)s"),
            ReasonCode.DEDICATED_POOL: self._(
                "%(machines)s in the pool %(subject)s, which is dedicated to other tenants"
            ),
            ReasonCode.OUTSIDE_POOL: self._(
                "%(machines)s outside of the pool %(subject)s, in which all jobs of the tenant have to run"
            ),
            ReasonCode.MACHINE_STATE: self._("%(machines)s not up"),
            ReasonCode.MAINTENANCE: self._(
                "%(machines)s in maintenance, or that would go into maintenance before the task ends (until %(until)s)"
            ),
            ReasonCode.RESOURCE: self._("%(machines)s with less than %(amount)s free (at most %(most)s)"),
            ReasonCode.PORTS: self._("%(machines)s with less than %(wanted)s free (at most %(most)s)"),
            ReasonCode.MAX_PER_MACHINE: self._(
                "%(machines)s with %(bound)d tasks of the job already, the limit per machine"
            ),
            ReasonCode.MAX_PER_RACK: self._(
                "%(machines)s in racks with %(bound)d tasks of the job already, the limit per rack"
            ),
            ReasonCode.MAX_PER_POWER_DOMAIN: self._(
                "%(machines)s in power domains with %(bound)d tasks of the job already, the limit per power domain"
            ),
            ReasonCode.CRASHED_PAIR: self._("%(machines)s where the task crashed a short while ago"),
            ReasonCode.CORES: self._("%(machines)s with less than %(bound)d whole cores free (at most %(most)s)")
            if one.wanted
            else self._("%(machines)s whose cores all belong to tasks that reserve whole cores"),
            ReasonCode.BOOKED: self._("%(machines)s whose free capacity is booked for a gang"),
            ReasonCode.GANG: self._(
                "%(machines)s where one task fits, but not all tasks of the gang fit at the same time"
            ),
        }
        if one.code == ReasonCode.CONSTRAINT and one.subject.startswith(f"{PROTOCOL} "):
            return (
                self._(
                    "%(machines)s whose Borglet is too old for packages, root filesystems, networks or time limits of"
                    " tasks"
                )
                % given
            )
        if one.code == ReasonCode.ALLOC:
            return self.in_allocs(one)
        return texts[one.code] % given

    def in_allocs(self, one: RuledOut) -> str:
        """Return a sentence that explains why no alloc of the task's alloc set can hold the task."""
        if one.machines == 0:
            return self._("no alloc of the alloc set runs")
        allocs = self.ngettext("%d alloc of the alloc set", "%d allocs of the alloc set", one.machines) % one.machines
        if not one.subject:
            return (
                self._(
                    "%s cannot hold the task: the job already has as many tasks there as allowed, or the task "
                    "crashed there"
                )
                % allocs
            )
        return self._("%(allocs)s with less than %(amount)s left (at most %(most)s)") % {
            "allocs": allocs,
            "amount": self.amount(one.subject, one.wanted),
            "most": self.quantity(one.subject, one.largest),
        }

    def cure(self, change: SuggestedChange) -> str:
        given = {"change": self.how(change), "machines": self.machines(change.machines)}
        return self._("A task would fit with %(change)s (on %(machines)s).") % given

    def how(self, change: SuggestedChange) -> str:
        if change.kind is ChangeKind.COMBINED:
            return self._(" and ").join(self.how(part) for part in change.parts)
        if change.subject == PROTOCOL:
            return self._("a newer Borglet on the machine")  # the job file does not contain this constraint
        if change.kind is ChangeKind.RELAX and change.instead is not None and change.constraint is not None:
            given = {"instead": spelled(change.instead), "constraint": spelled(change.constraint)}
            return self._("%(instead)s instead of %(constraint)s") % given
        if isinstance(change.to, str):
            asked = spelled(change.constraint) if change.constraint is not None else change.subject
            return self._("the constraint %s removed") % asked
        given = {"subject": change.subject, "to": self.quantity(change.subject, change.to)}
        if change.subject == WHOLE_CORES:
            return self._("at most %(to)s whole cores") % given
        if change.subject in self.names:
            return self._("at most %s") % self.amount(change.subject, change.to)
        return self._("%(subject)s raised to %(to)s") % given

    def nearest(self, nearest: Nearest) -> str:
        parts = []
        for lack in nearest.lacks:
            if lack.resource == WHOLE_CORES:
                detail = self._("%(left)d whole cores left, %(short)d missing")
                parts.append(detail % {"left": lack.left, "short": lack.short})
                continue
            given = {"left": self.amount(lack.resource, lack.left), "short": self.quantity(lack.resource, lack.short)}
            parts.append(self._("%(left)s left, %(short)s missing") % given)
        parts += [self.unmet(constraint) for constraint in nearest.fails]
        parts += [self._("the limit %s is reached") % bound.value for bound in nearest.bounds]
        host = self.hostnames.get(nearest.machine_id) or self._("machine %d") % nearest.machine_id
        return self._("The best candidate is %(host)s: %(reasons)s.") % {"host": host, "reasons": ", ".join(parts)}

    def unmet(self, constraint: Constraint) -> str:
        """Return a text for a constraint that a machine does not satisfy. Pools imply constraints, too."""
        if constraint.attribute != POOL or constraint.relation not in (Relation.EQUAL, Relation.NOT_EQUAL):
            return self._("does not meet %s") % spelled(constraint)
        if constraint.relation is Relation.EQUAL:
            return self._("is not in the pool %s") % constraint.value
        return self._("is in the pool %s") % constraint.value

    def ahead(self, tasks: int, of: tuple[Ahead, ...], tenants: int) -> str:
        detail = self.ngettext("%d task is ahead in the queue", "%d tasks are ahead in the queue", tasks) % tasks
        if tenants:
            text = self.ngettext("%(tasks)s, from %(number)d tenant", "%(tasks)s, from %(number)d tenants", tenants)
            detail = text % {"tasks": detail, "number": tenants}
        known = [f"{one.tenant} {one.tasks}" for one in of if one.tenant]
        return (
            self._("%(ahead)s (%(tenants)s).") % {"ahead": detail, "tenants": ", ".join(known)}
            if known
            else f"{detail}."
        )

    def starts_at(self, expected: ExpectedStart) -> str:
        """Return a sentence about a start that follows from bookings, time limits or measured run times."""
        given = {"at": _format_time(expected.at or 0.0), "machines": self.machines(expected.machines)}
        texts = {
            Basis.BOOKED: self._(
                "The tasks are expected to start together at %(at)s or earlier, when the tasks that use their capacity"
                " have reached their time limits. The capacity is booked on %(machines)s, but more urgent tasks may"
                " still use it, and the start is later if a machine fails or tasks use more than was reserved."
            ),
            Basis.TIME_LIMITS: self._(
                "The next start is expected at about %(at)s, when tasks have reached their time limits. This is an"
                " estimate, because no capacity is booked."
            ),
            Basis.RUN_TIMES: self._(
                "The tasks are expected to start at about %(at)s, when tasks have run as long as earlier tasks of their"
                " jobs. This is an estimate: some tasks have no time limit, so no capacity is booked."
            ),
            Basis.BOOKED_FOR_A_GANG: self._(
                "The capacity is booked on %(machines)s for tasks that are expected to start together at %(at)s."
            ),
            Basis.NO_TIME_LIMITS: self._(
                "The start time cannot be known: no end is known of tasks that use the capacity."
            ),
            Basis.MAINTENANCE: self._(
                "The first maintenance of machines that could hold the task ends at %(at)s. It concerns %(machines)s."
            ),
            Basis.BEHIND_OTHERS: self._("The start time cannot be known: other pending tasks come first."),
        }
        return texts[expected.basis] % given

    def expected(self, expected: ExpectedStart) -> str:
        if expected.at is not None or expected.basis in (Basis.NO_TIME_LIMITS, Basis.BEHIND_OTHERS):
            return self.starts_at(expected)
        if expected.low_s is None or expected.high_s is None:
            if expected.basis is not Basis.NO_HISTORY:
                return ""
            return self._(
                "The start time cannot be estimated: no task has ended recently on machines that could hold the task."
            )
        if expected.basis is Basis.CRASH_BACK_OFF:
            return self._(
                "In %s, the scheduler again considers the machines on which the task crashed."
            ) % self.duration(expected.high_s)
        span = {"low": self.duration(expected.low_s), "high": self.duration(expected.high_s)}
        detail = (
            self._("The next task is likely to start in %(high)s") % span
            if span["low"] == span["high"]
            else self._("The next task is likely to start in %(low)s to %(high)s") % span
        )
        ended = self.ngettext(
            "%(ends)d task ended in the last %(window)s on machines that could hold the next one",
            "%(ends)d tasks ended in the last %(window)s on machines that could hold the next one",
            expected.ends,
        ) % {"ends": expected.ends, "window": self.duration(expected.window_s)}
        return f"{detail}: {ended}."

    def shapes(self, shapes: Conforming) -> list[str]:
        detail = []
        few = shapes.asked is None or shapes.asked.per_machine < FEW
        if shapes.one_more is not None and shapes.one_more.machines and few:
            kind = self.ngettext("%d machine", "%d machines", shapes.one_more.machines) % shapes.one_more.machines
            given = {
                "kind": kind,
                "limit": self.limits(shapes.one_more, shapes.wanted),
                "number": shapes.one_more.per_machine,
                "held": shapes.asked.per_machine if shapes.asked is not None else 0,
            }
            detail.append(
                self._(
                    "The most common kind of machine (%(kind)s) can hold %(held)d of these tasks; with a"
                    " limit of %(limit)s, it could hold %(number)d."
                )
                % given
                if shapes.asked is not None
                else self._(
                    "The best kind of machine (%(kind)s) could hold %(number)d of these tasks"
                    " with a limit of at most %(limit)s."
                )
                % given
            )
        return detail

    def fit(self, shapes: Conforming, tasks: int) -> list[str]:
        if shapes.absent:
            reasons, cures = self.absent([self.names[r] for r in shapes.absent])
            return [f"{text[0].upper()}{text[1:]}".rstrip(".") + "." for text in (*reasons, *cures)]
        if not shapes.machines:
            detail = [self._("No machine of the cell could hold one of these tasks, even if it were empty.")]
        else:
            given = {
                "now": self.machines(shapes.now),
                "fitting": self.ngettext("%d task", "%d tasks", shapes.room) % shapes.room,
                "all": self.machines(shapes.machines),
                "tasks": tasks,
            }
            text = self._(
                "Without preemption, %(fitting)s would fit now, on %(now)s. If all machines were empty, %(all)s could"
                " hold a task."
            )
            detail = [text % given]
        detail += self.shapes(shapes)
        if shapes.fuller is not None and shapes.asked is not None and shapes.asked.per_machine < FEW:
            given = {"held": shapes.asked.per_machine, "limit": self.limits(shapes.fuller, shapes.wanted)}
            text = self._("A task could request up to %(limit)s, and one machine would still hold %(held)d such tasks.")
            detail.append(text % given)
        return detail

    def limits(self, shape: Shape, wanted: tuple[int, ...]) -> str:
        """Return, as text, the amounts in the limit of `shape` that differ from the requested amounts `wanted`."""
        return ", ".join(self.amount(self.names[r], value) for r, value in enumerate(shape.limit) if value != wanted[r])

    def amount(self, subject: str, value: int) -> str:
        """Return a quantity with the name of its resource, such as "2 cores of cpu" or "2 accelerators". `subject`:
        the resource.
        """
        many = self.quantity(subject, value)
        given = {"amount": many, "resource": subject}
        return (
            many
            if many.split()[-1].rstrip("s") == subject.rstrip("s")
            else self._("%(amount)s of %(resource)s") % given
        )

    def quantity(self, subject: str, value: int) -> str:
        if subject not in self.names:
            return str(value)
        return describe(self.names.index(subject), value, extra=self.extra)

    def machines(self, number: int) -> str:
        return self.ngettext("%d machine", "%d machines", number) % number

    def duration(self, seconds: float) -> str:
        if seconds < 90:
            return self._("%d s") % round(seconds)
        if seconds < 5400:
            return self._("%d min") % round(seconds / 60)
        if seconds < 172_800:
            return self._("%d h") % round(seconds / 3600)
        return self._("%d days") % round(seconds / 86_400)
