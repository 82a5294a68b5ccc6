"""Why tasks are pending, as sentences: what was wanted, what was found, what to do (§2.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from quota.resources import NAMES, describe
from scheduling.core.reasons import Change, ReasonCode, RuledOut, Why


@dataclass(frozen=True, slots=True)
class Explained:
    """One class of pending tasks of a job: a sentence, the reasons behind it, and what would help."""

    sentence: str
    reasons: tuple[str, ...]
    cures: tuple[str, ...]


def explain(job_id: int, whys: Sequence[Why]) -> list[Explained]:
    return [_explain(job_id, why) for why in whys]


def _explain(job_id: int, why: Why) -> Explained:
    tasks = sum(count for job, count in why.tasks if job == job_id)
    given: dict[str, object] = {
        "who": ngettext("%d task", "%d tasks", tasks) % tasks,
        "machines": ngettext("%d machine", "%d machines", why.machines) % why.machines,
    }
    if why.machines == 0:
        sentence = _("%(who)s pending: the cell has no machines yet.")
    elif why.never:
        sentence = _("%(who)s can never be placed: none of %(machines)s could hold one, even empty.")
    else:
        sentence = _("%(who)s pending: none of %(machines)s can take one now.")
    if why.ahead:
        sentence += " " + ngettext(
            "%(ahead)d task is tried before.", "%(ahead)d tasks are tried before.", why.ahead
        )
        given["ahead"] = why.ahead
    return Explained(
        sentence % given,
        tuple(_ruled_out(reason) for reason in why.ruled_out),
        tuple(_cure(change) for change in why.changes),
    )


def _ruled_out(reason: RuledOut) -> str:
    subject = {"subject": reason.subject, "wanted": "", "largest": ""}
    if reason.subject in NAMES:
        position = NAMES.index(reason.subject)
        subject["wanted"] = describe(position, reason.wanted)
        subject["largest"] = describe(position, reason.largest)
    machines = ngettext("%d machine", "%d machines", reason.machines) % reason.machines
    return f"{machines}: {_PHRASES[reason.code](subject)}"


_PHRASES: dict[ReasonCode, Callable[[dict[str, str]], str]] = {
    ReasonCode.NO_MACHINES: lambda s: _("there are none"),
    ReasonCode.CONSTRAINT: lambda s: _("do not meet the constraint %(subject)s") % s,
    ReasonCode.MACHINE_STATE: lambda s: _("are %(subject)s") % s if s["subject"] else _("are not up"),
    ReasonCode.RESOURCE: lambda s: (
        _("too little %(subject)s: %(wanted)s wanted, at most %(largest)s left on one") % s
        if s["wanted"]
        else _("too little %(subject)s") % s
    ),
    ReasonCode.PORTS: lambda s: _("too few free ports"),
    ReasonCode.MAX_PER_MACHINE: lambda s: _("hold as many tasks of the job as its spread allows"),
    ReasonCode.MAX_PER_RACK: lambda s: _("stand in racks that hold as many tasks as the spread allows"),
    ReasonCode.MAX_PER_POWER_DOMAIN: lambda s: _("share power domains that are full by the job's spread"),
    ReasonCode.CRASHED_PAIR: lambda s: _("saw the task crash a short while ago"),
}


def _cure(change: Change) -> str:
    to = change.to
    if change.subject in NAMES and isinstance(to, int):
        to = describe(NAMES.index(change.subject), to)
    machines = ngettext("%d machine", "%d machines", change.machines) % change.machines
    given = {"subject": change.subject, "to": to, "machines": machines}
    return _("With %(subject)s %(to)s it would fit on %(machines)s.") % given
