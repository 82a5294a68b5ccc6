"""Journal events as sentences for users: one entry of a table per kind. Pure, except for translation."""

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
    """Return the sentence of an event. `hostnames`: by machine id; an unknown machine is shown by its number."""
    if event.kind not in _SENTENCES:
        return event.kind
    sentence, *details = _SENTENCES[event.kind]
    data = event.data
    facts = {
        **data,
        "task": _("task %d") % data["index"] if "index" in data else "",
        "machine": hostnames.get(data.get("machine_id", 0)) or _("machine %s") % data.get("machine_id", "?"),
        "exit": exit_of(data.get("exit")),
    }
    text = sentence(facts) if callable(sentence) else str(sentence) % facts
    return text + _tail(*(facts.get(str(name)) for name in details))


def with_actor(event: Event, hostnames: _Hosts) -> str:
    return _("%(what)s (by %(actor)s)") % {"what": of(event, hostnames), "actor": event.actor}


def exit_of(exit: _Data | None) -> str:
    """Return how the processes ended, in words: "exit status 1", "signal 9 (out of memory)"."""
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
    text = _("%(task)s was placed on %(machine)s as incarnation %(incarnation)d") % facts
    if victims := len(facts.get("victims") or ()):
        text += ngettext(", preempting %d other", ", preempting %d others", victims) % victims
    return text


def _task_evicted(facts: _Data) -> str:
    if facts["cause"] == "other":
        return _("%(task)s was evicted from %(machine)s") % facts
    return _("%(task)s was evicted from %(machine)s by %(cause)s") % {
        **facts,
        "cause": facts["cause"].replace("-", " "),
    }


def _task_reported(facts: _Data) -> str:
    text = _("%(task)s is %(phase)s on %(machine)s")
    if facts["phase"] == "backoff":
        text = _("the processes of %(task)s ended on %(machine)s and will restart after a pause")
    health = "" if facts.get("health") in ("", "unknown") else facts["health"]
    restarts = _("%d restarts") % facts["restarts"] if facts.get("restarts") else ""
    return text % facts + _tail(health, restarts, facts["exit"])


def _update_started(facts: _Data) -> str:
    if facts.get("undo"):
        return _("version %(from_version)d is being undone by version %(to_version)d") % facts
    return _("an update from version %(from_version)d to %(to_version)d started") % facts


def _shell_opened(facts: _Data) -> str:
    command = " ".join(facts.get("command", ()))
    text = _("a shell in %(task)s on %(machine)s was granted") % facts
    return text + _tail(facts.get("peer"), command[:200])


def _shell_closed(facts: _Data) -> str:
    zeros = {"seconds": 0.0, "bytes_typed": 0, "bytes_printed": 0}
    text = _("the shell in %(task)s ended after %(seconds).0f s: %(how)s") + ": "
    return (text + _("%(bytes_typed)d bytes typed, %(bytes_printed)d printed")) % {**zeros, **facts}


def _alloc_kept(facts: _Data) -> str:
    text = _("%(task)s is no longer on %(machine)s; its disk is kept there for %(number)d log savers")
    return text % {**facts, "number": len(facts.get("savers", ()))}


def _alloc_released(facts: _Data) -> str:
    words = {
        "saved": _("the files of %(task)s on %(machine)s are saved"),
        "too-late": _("the files of %(task)s on %(machine)s were not saved in time and are removed"),
    }
    return words.get(facts["how"], _("an SRE removed the files of %(task)s on %(machine)s")) % facts


def _machine_credential(facts: _Data) -> str:
    words = {
        "asked": _("a new secret is due for %(machine)s"),
        "offered": _("%(machine)s has a new secret; the old one is valid until it is used"),
        "renewed": _("%(machine)s uses its new secret; the old one is no longer valid"),
        "revoked": _("the secret of %(machine)s was revoked"),
    }
    return words.get(facts["step"], _("the secret of %(machine)s changed")) % facts


def _brake_set(facts: _Data) -> str:
    what = {
        "lost": _("placing tasks of lost machines elsewhere"),
        "stops": _("stopping tasks on the cell's own decision"),
    }[facts["brake"]]
    return _("the brake on %(what)s is %(state)s") % {**facts, "what": what}


def _packages_held(facts: _Data) -> str:
    came, went = (
        len({machine for machines in facts.get(name, {}).values() for machine in machines}) for name in ("came", "went")
    )
    return _("%(came)d machines have new packages, %(went)d removed packages") % {"came": came, "went": went}


def _reservations_set(facts: _Data) -> str:
    return _("reservations of %d tasks changed") % len(facts.get("tasks", ()))


# Per kind: the sentence, or a function that returns it, and the facts that follow it after a colon.
_SENTENCES: dict[str, tuple[str | Promise | Callable[[_Data], str], *tuple[str, ...]]] = {
    "cell.set": (gettext_lazy("the settings of the cell changed"),),
    "cell.lease": (gettext_lazy("%(holder)s took the lease %(scheduler)s, epoch %(epoch)d"),),
    "cell.brake": (_brake_set, "detail"),
    "machine.set": (gettext_lazy("machine %(hostname)s joined or changed"),),
    "machine.state": (gettext_lazy("%(machine)s is %(state)s"), "reason"),
    "machine.removed": (gettext_lazy("%(machine)s was removed"), "reason"),
    "machine.credential": (_machine_credential, "reason"),
    "alloc.kept": (_alloc_kept,),
    "alloc.released": (_alloc_released,),
    "alloc.gone": (gettext_lazy("%(machine)s has removed everything of %(task)s"),),
    "packages.held": (_packages_held,),
    "job.submitted": (gettext_lazy("job %(name)s was submitted at priority %(priority)d"),),
    "job.rejected": (gettext_lazy("a submission of %(name)s was rejected: %(detail)s"),),
    "job.changed": (gettext_lazy("the job follows version %(spec_version)d of its spec, at priority %(priority)d"),),
    "job.ended": (gettext_lazy("the job ended: %(how)s"),),
    "tasks.added": (gettext_lazy("tasks were added by version %(spec_version)d of the spec"),),
    "task.placed": (_task_placed,),
    "task.evicted": (_task_evicted, "detail", "exit"),
    "task.ended": (gettext_lazy("%(task)s ended: %(how)s"), "detail", "exit"),
    "task.gone": (
        gettext_lazy("the processes of incarnation %(incarnation)d of %(task)s are gone from %(machine)s"),
        "exit",
    ),
    "task.revived": (gettext_lazy("%(task)s will run again"),),
    "task.updated": (gettext_lazy("%(task)s follows version %(spec_version)d"),),
    "task.reported": (_task_reported,),
    "reservations.set": (_reservations_set,),
    "update.started": (_update_started,),
    "update.ended": (gettext_lazy("the update ended: %(how)s"), "detail"),
    "shell.opened": (_shell_opened,),
    "shell.closed": (_shell_closed,),
}
