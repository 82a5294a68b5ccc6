"""Journal events as sentences for users. The dictionary `SENTENCES` has an entry for each kind of event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from scheduling.models import Event

_Data = Mapping[str, Any]
_Hosts = Mapping[int, str]


def of(event: Event, hostnames: _Hosts) -> str:
    """Return the sentence of an event. It shows machines by their hostname in `hostnames`, or else by their id."""
    if event.kind not in SENTENCES:
        return event.kind
    sentence, *details = SENTENCES[event.kind]
    data = event.data
    facts = {
        **data,
        "task": _("task %d") % data["index"] if "index" in data else "",
        "machine": hostnames.get(data.get("machine_id", 0)) or _("machine %s") % data.get("machine_id", "?"),
        "exit": exit_of(data.get("exit")),
        "cause": str(data.get("cause", "")).replace("-", " "),
        "shares": ", ".join(f"{track} {weight}" for track, weight in sorted(data.get("weights", {}).items())),
        "command": " ".join(data.get("command", ()))[:200],
    }
    text = sentence(facts) if callable(sentence) else str(sentence) % facts
    return text + _tail(*(facts.get(str(name)) for name in details))


def exit_of(exit: _Data | None) -> str:
    """Return a text that says how the processes of a task ended: "exit status 1", "signal 9 (out of memory)"."""
    if not exit:
        return ""
    cause = str(exit.get("cause", "")).replace("-", " ")
    if exit.get("signal"):
        text = _("signal %d") % exit["signal"]
    elif exit.get("status") is not None:
        text = _("exit status %d") % exit["status"]
    else:
        return " – ".join(part for part in (cause, exit.get("detail", "")) if part)
    if cause not in ("exited", "signaled"):
        text = f"{text} ({cause})"
    return f"{text} – {exit['detail']}" if exit.get("detail") else text


def _tail(*parts: str | None) -> str:
    details = "; ".join(part for part in parts if part)
    return f": {details}" if details else ""


def _task_placed(facts: _Data) -> str:
    if not (victims := len(facts.get("victims") or ())):
        return _("%(task)s was placed on %(machine)s as incarnation %(incarnation)d") % facts
    text = ngettext(
        "%(task)s was placed on %(machine)s as incarnation %(incarnation)d, and preempted %(number)d task",
        "%(task)s was placed on %(machine)s as incarnation %(incarnation)d, and preempted %(number)d tasks",
        victims,
    )
    return text % {**facts, "number": victims}


def _task_reported(facts: _Data) -> str:
    text = _("%(task)s is %(phase)s on %(machine)s")
    if facts["phase"] == "backoff":
        text = _("the processes of %(task)s ended on %(machine)s, and the Borglet restarts them after a pause")
    health = "" if facts.get("health") in ("", "unknown") else facts["health"]
    restarts = _("%d restarts") % facts["restarts"] if facts.get("restarts") else ""
    return text % facts + _tail(health, restarts, facts["exit"])


def _update_started(facts: _Data) -> str:
    if restarted := facts.get("restarted"):
        text = ngettext(
            "a restart of %(restarted)d task started", "a restart of %(restarted)d tasks started", restarted
        )
    elif facts.get("undo"):
        text = _("an undo of version %(from_version)d of the spec started; the new version is %(to_version)d")
    else:
        text = _("an update from version %(from_version)d of the spec to version %(to_version)d started")
    return text % facts


def _shell_closed(facts: _Data) -> str:
    zeros = {"seconds": 0.0, "bytes_typed": 0, "bytes_printed": 0}
    text = _("the shell in %(task)s ended after %(seconds).0f s: %(how)s") + ": "
    return (text + _("%(bytes_typed)d bytes were typed and %(bytes_printed)d bytes were printed")) % {**zeros, **facts}


def _alloc_kept(facts: _Data) -> str:
    text = _(
        "%(task)s left %(machine)s, which keeps the task's files until %(number)d tasks that save logs have copied them"
    )
    return text % {**facts, "number": len(facts.get("savers", ()))}


def _packages_held(facts: _Data) -> str:
    came, went = (
        len({machine for machines in facts.get(name, {}).values() for machine in machines}) for name in ("came", "went")
    )
    return _("%(came)d machines installed packages, and %(went)d machines removed packages") % {
        "came": came,
        "went": went,
    }


def _by(field: str, sentences: Mapping[Any, Promise], other: Promise | str = "") -> Callable[[_Data], str]:
    """Return a function that chooses the sentence for an event by the value of the event's field `field`.

    `other`: the sentence for all values that `sentences` does not contain.
    """
    return lambda facts: str(sentences.get(facts.get(field), other)) % facts


# Per kind: the sentence or a function that returns the sentence, then the fields that follow after a colon.
SENTENCES: dict[str, tuple[str | Promise | Callable[[_Data], str], *tuple[str, ...]]] = {
    "cell.set": (gettext_lazy("the settings of the cell changed"),),
    "cell.deleted": (gettext_lazy("cell %(cell)s was deleted"),),
    "cell.copied": (gettext_lazy("the cell was created as a copy of cell %(cell)s at revision %(revision)d"),),
    "cell.restored": (gettext_lazy("the cell was restored to its state at revision %(revision)d"),),
    "cell.lease": (gettext_lazy("%(holder)s took the lease of scheduler %(scheduler)s (epoch %(epoch)d)"),),
    "cell.brake": (
        _by(
            "brake",
            {
                "lost": gettext_lazy("the safety brake on moving tasks away from lost machines is %(state)s"),
                "stops": gettext_lazy("the safety brake on stopping tasks automatically is %(state)s"),
            },
        ),
        "detail",
    ),
    "cell.repacking": (
        _by(
            "step",
            {
                "moving": gettext_lazy("re-packing %(repacking)d moves %(tasks)d tasks away from %(machine)s"),
                "freed": gettext_lazy("the tasks of re-packing %(repacking)d have left %(machine)s"),
                "skipped": gettext_lazy("re-packing %(repacking)d skipped %(machine)s"),
            },
            gettext_lazy("re-packing %(repacking)d is %(state)s"),
        ),
        "detail",
    ),
    "cell.pool": (
        _by(
            "deleted",
            {True: gettext_lazy("machine pool %(pool)s was deleted")},
            gettext_lazy("machine pool %(pool)s was written or changed"),
        ),
    ),
    "cell.maintenance": (gettext_lazy("maintenance window %(window)d is %(state)s"), "reason"),
    "machine.set": (gettext_lazy("machine %(hostname)s joined the cell, or its properties changed"), "reason"),
    "machine.state": (gettext_lazy("%(machine)s is %(state)s"), "reason"),
    "machine.removed": (gettext_lazy("%(machine)s was removed"), "reason"),
    "machine.credential": (
        _by(
            "step",
            {
                "asked": gettext_lazy("%(machine)s was asked to create a new secret"),
                "offered": gettext_lazy(
                    "%(machine)s has a new secret; the old one is valid until the first use of the new one"
                ),
                "renewed": gettext_lazy("%(machine)s uses its new secret; the old secret is no longer valid"),
                "revoked": gettext_lazy("the secret of %(machine)s was revoked"),
            },
            gettext_lazy("the secret of %(machine)s changed"),
        ),
        "reason",
    ),
    "alloc.kept": (_alloc_kept,),
    "alloc.released": (
        _by(
            "how",
            {
                "saved": gettext_lazy("the files of %(task)s on %(machine)s are saved"),
                "too-late": gettext_lazy("the files of %(task)s on %(machine)s were deleted before they were saved"),
            },
            gettext_lazy("an SRE removed the files of %(task)s on %(machine)s"),
        ),
    ),
    "alloc.gone": (gettext_lazy("%(machine)s has removed all files of %(task)s"),),
    "packages.held": (_packages_held,),
    "job.submitted": (gettext_lazy("job %(name)s was submitted with priority %(priority)d"),),
    "job.rejected": (gettext_lazy("a submission of %(name)s was rejected: %(detail)s"),),
    "cron.set": (
        _by(
            "suspended",
            {True: gettext_lazy("cron job %(name)s was changed to version %(version)d, and is suspended")},
            gettext_lazy("cron job %(name)s was changed to version %(version)d: %(schedule)s, %(time_zone)s"),
        ),
    ),
    "cron.deleted": (gettext_lazy("cron job %(name)s was deleted"), "reason"),
    "template.set": (gettext_lazy("template %(name)s has version %(version)d"),),
    "template.deleted": (gettext_lazy("template %(name)s was deleted"), "reason"),
    "service.set": (
        _by(
            "change",
            {
                "stopped": gettext_lazy("service %(service)s was stopped (jobs: %(jobs)d)"),
                "started": gettext_lazy("service %(service)s was started (jobs: %(jobs)d)"),
            },
            gettext_lazy("the stopped jobs of service %(service)s were forgotten (jobs: %(jobs)d)"),
        ),
        "reason",
    ),
    "service.weighed": (
        _by(
            "change",
            {
                "set": gettext_lazy("the weights of service %(service)s were set: %(shares)s"),
                "cleared": gettext_lazy("the weights of service %(service)s were removed"),
                "begun": gettext_lazy("a switch of service %(service)s to track %(track)s has begun"),
                "moved": gettext_lazy("the switch of service %(service)s to track %(track)s moved clients: %(shares)s"),
                "stopping": gettext_lazy(
                    "all clients of service %(service)s use track %(track)s, and the old tracks are being stopped"
                ),
                "done": gettext_lazy("the switch of service %(service)s to track %(track)s is done"),
            },
            gettext_lazy(
                "the switch of service %(service)s to track %(track)s was undone, and the weights are again: %(shares)s"
            ),
        ),
        "reason",
    ),
    "cron.skipped": (gettext_lazy("a run of cron job %(name)s was %(outcome)s"), "detail"),
    "workflow.set": (
        _by(
            "change",
            {
                "submitted": gettext_lazy("workflow %(name)s was submitted: %(nodes)d nodes"),
                "paused": gettext_lazy("workflow %(name)s was paused"),
                "resumed": gettext_lazy("workflow %(name)s was resumed"),
                "cancelled": gettext_lazy("workflow %(name)s was cancelled"),
            },
            gettext_lazy("workflow %(name)s was retried"),
        ),
    ),
    "workflow.ended": (gettext_lazy("workflow %(name)s ended: %(how)s"), "detail"),
    "job.secret": (
        _by(
            "change",
            {
                "granted": gettext_lazy("secret %(secret)s was granted to jobs"),
                "revoked": gettext_lazy("a grant of secret %(secret)s was revoked"),
                "deleted": gettext_lazy("secret %(secret)s was deleted"),
            },
            gettext_lazy("secret %(secret)s has version %(version)d now"),
        ),
    ),
    "job.config": (gettext_lazy("config file %(config)s has version %(version)d now"),),
    "job.changed": (gettext_lazy("the job now has version %(spec_version)d of its spec and priority %(priority)d"),),
    "job.ended": (gettext_lazy("the job ended: %(how)s"),),
    "tasks.added": (gettext_lazy("version %(spec_version)d of the spec added tasks"),),
    "task.placed": (_task_placed,),
    "task.evicted": (
        _by(
            "cause",
            {"other": gettext_lazy("%(task)s was evicted from %(machine)s")},
            gettext_lazy("%(task)s was evicted from %(machine)s by %(cause)s"),
        ),
        "detail",
        "exit",
    ),
    "task.ended": (gettext_lazy("%(task)s ended: %(how)s"), "detail", "exit"),
    "task.gone": (
        gettext_lazy("%(machine)s no longer runs processes of incarnation %(incarnation)d of %(task)s"),
        "exit",
    ),
    "task.revived": (gettext_lazy("%(task)s was dead and is pending again"),),
    "task.updated": (gettext_lazy("%(task)s now has version %(spec_version)d of the spec"),),
    "task.reported": (_task_reported,),
    "reservations.set": (
        lambda facts: _("the reservations of %d tasks changed") % (facts.get("number") or len(facts.get("tasks", ()))),
    ),
    "job.released": (gettext_lazy("the job no longer waits for other jobs, and its tasks may start"),),
    "update.started": (_update_started,),
    "update.paused": (
        _by("paused", {True: gettext_lazy("the update was paused")}, gettext_lazy("the update was resumed")),
    ),
    "update.promoted": (gettext_lazy("the canary tasks were promoted, and the other tasks change now"),),
    "update.ended": (gettext_lazy("the update ended: %(how)s"), "detail"),
    "shell.opened": (gettext_lazy("a shell was opened in %(task)s on %(machine)s"), "peer", "command"),
    "shell.closed": (_shell_closed,),
}
