"""Journal events as sentences for users: one small function per kind. Pure, except for translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from scheduling.models import Event

_Data = Mapping[str, Any]
_Hosts = Mapping[int, str]


def of(event: Event, hostnames: _Hosts) -> str:
    """Return the sentence of an event. `hostnames`: by machine id; an unknown machine is shown by its number."""
    sentence = _SENTENCES.get(event.kind)
    return sentence(event.data, hostnames) if sentence else event.kind


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


def _host(data: _Data, hostnames: _Hosts) -> str:
    return hostnames.get(data.get("machine_id", 0)) or _("machine %s") % data.get("machine_id", "?")


def _task(data: _Data) -> str:
    return str(_("task %d") % data["index"])


def _tail(*parts: str | None) -> str:
    details = "; ".join(part for part in parts if part)
    return f": {details}" if details else ""


def _job_submitted(data: _Data, hosts: _Hosts) -> str:
    return _("job %(name)s was submitted at priority %(priority)d") % data


def _job_rejected(data: _Data, hosts: _Hosts) -> str:
    return _("a submission of %(name)s was rejected: %(detail)s") % data


def _job_changed(data: _Data, hosts: _Hosts) -> str:
    return _("the job follows version %(spec_version)d of its spec, at priority %(priority)d") % data


def _job_ended(data: _Data, hosts: _Hosts) -> str:
    return str(_("the job ended: %s") % data["how"])


def _tasks_added(data: _Data, hosts: _Hosts) -> str:
    return str(_("tasks were added by version %d of the spec") % data["spec_version"])


def _task_placed(data: _Data, hosts: _Hosts) -> str:
    given = {"task": _task(data), "machine": _host(data, hosts), "number": data["incarnation"]}
    text = _("%(task)s was placed on %(machine)s as incarnation %(number)d") % given
    if data.get("victims"):
        number = len(data["victims"])
        text += ngettext(", preempting %d other", ", preempting %d others", number) % number
    return text


def _task_evicted(data: _Data, hosts: _Hosts) -> str:
    given = {"task": _task(data), "machine": _host(data, hosts), "cause": data["cause"].replace("-", " ")}
    text = (
        _("%(task)s was evicted from %(machine)s") % given
        if data["cause"] == "other"
        else _("%(task)s was evicted from %(machine)s by %(cause)s") % given
    )
    return text + _tail(data.get("detail"), exit_of(data.get("exit")))


def _task_ended(data: _Data, hosts: _Hosts) -> str:
    text = _("%(task)s ended: %(how)s") % {"task": _task(data), "how": data["how"]}
    return text + _tail(data.get("detail"), exit_of(data.get("exit")))


def _task_gone(data: _Data, hosts: _Hosts) -> str:
    given = {"number": data["incarnation"], "task": _task(data), "machine": _host(data, hosts)}
    text = _("the processes of incarnation %(number)d of %(task)s are gone from %(machine)s") % given
    return text + _tail(exit_of(data.get("exit")))


def _task_revived(data: _Data, hosts: _Hosts) -> str:
    return _("%s will run again") % _task(data)


def _task_updated(data: _Data, hosts: _Hosts) -> str:
    return _("%(task)s follows version %(version)d") % {"task": _task(data), "version": data["spec_version"]}


def _task_reported(data: _Data, hosts: _Hosts) -> str:
    given = {"task": _task(data), "machine": _host(data, hosts), "phase": data["phase"]}
    text = _("%(task)s is %(phase)s on %(machine)s") % given
    if data["phase"] == "backoff":
        text = _("the processes of %(task)s ended on %(machine)s and will restart after a pause") % given
    health = "" if data.get("health") in ("", "unknown") else data["health"]
    restarts = _("%d restarts") % data["restarts"] if data.get("restarts") else ""
    return text + _tail(health, restarts, exit_of(data.get("exit")))


def _update_started(data: _Data, hosts: _Hosts) -> str:
    words = (
        _("version %(from_version)d is being undone by version %(to_version)d")
        if data.get("undo")
        else _("an update from version %(from_version)d to %(to_version)d started")
    )
    return words % data


def _update_ended(data: _Data, hosts: _Hosts) -> str:
    return str(_("the update ended: %s") % data["how"] + _tail(data.get("detail")))


def _shell_opened(data: _Data, hosts: _Hosts) -> str:
    given = {"task": _task(data), "machine": _host(data, hosts)}
    command = " ".join(data.get("command", ()))
    return _("a shell in %(task)s on %(machine)s was granted") % given + _tail(data.get("peer"), command[:200])


def _shell_closed(data: _Data, hosts: _Hosts) -> str:
    given = {"task": _task(data), "seconds": data.get("seconds", 0.0), "how": data["how"]}
    text = _("the shell in %(task)s ended after %(seconds).0f s: %(how)s") % given
    bytes_ = {"typed": data.get("bytes_typed", 0), "printed": data.get("bytes_printed", 0)}
    return text + _tail(_("%(typed)d bytes typed, %(printed)d printed") % bytes_)


def _machine_set(data: _Data, hosts: _Hosts) -> str:
    return _("machine %(hostname)s joined or changed") % data


def _machine_state(data: _Data, hosts: _Hosts) -> str:
    text = _("%(machine)s is %(state)s") % {"machine": _host(data, hosts), "state": data["state"]}
    return text + _tail(data.get("reason"))


def _machine_removed(data: _Data, hosts: _Hosts) -> str:
    return _("%s was removed") % _host(data, hosts) + _tail(data.get("reason"))


def _alloc_kept(data: _Data, hosts: _Hosts) -> str:
    return _("%(alloc)s is no longer on %(machine)s; its disk is kept there for %(number)d log savers") % {
        "alloc": _task(data),
        "machine": _host(data, hosts),
        "number": len(data.get("savers", ())),
    }


def _alloc_released(data: _Data, hosts: _Hosts) -> str:
    words = {
        "saved": _("the files of %(alloc)s on %(machine)s are saved"),
        "too-late": _("the files of %(alloc)s on %(machine)s were not saved in time and are removed"),
    }.get(data["how"], _("an SRE removed the files of %(alloc)s on %(machine)s"))
    return words % {"alloc": _task(data), "machine": _host(data, hosts)}


def _alloc_gone(data: _Data, hosts: _Hosts) -> str:
    return _("%(machine)s has removed everything of %(alloc)s") % {"alloc": _task(data), "machine": _host(data, hosts)}


def _machine_credential(data: _Data, hosts: _Hosts) -> str:
    words = {
        "asked": _("a new secret is due for %s"),
        "offered": _("%s has a new secret; the old one is valid until it is used"),
        "renewed": _("%s uses its new secret; the old one is no longer valid"),
        "revoked": _("the secret of %s was revoked"),
    }
    sentence = words.get(data["step"], _("the secret of %s changed"))
    return sentence % _host(data, hosts) + _tail(data.get("reason"))


def _lease_taken(data: _Data, hosts: _Hosts) -> str:
    return _("%(holder)s took the lease %(scheduler)s, epoch %(epoch)d") % data


def _brake_set(data: _Data, hosts: _Hosts) -> str:
    what = {
        "lost": _("placing tasks of lost machines elsewhere"),
        "stops": _("stopping tasks on the cell's own decision"),
    }[data["brake"]]
    text = _("the brake on %(what)s is %(state)s") % {"what": what, "state": data["state"]}
    return text + _tail(data.get("detail"))


def _cell_set(data: _Data, hosts: _Hosts) -> str:
    return _("the settings of the cell changed")


def _packages_held(data: _Data, hosts: _Hosts) -> str:
    came, went = (
        {machine for machines in data.get(name, {}).values() for machine in machines} for name in ("came", "went")
    )
    return _("%(came)d machines have new packages, %(went)d removed packages") % {"came": len(came), "went": len(went)}


def _reservations_set(data: _Data, hosts: _Hosts) -> str:
    return _("reservations of %d tasks changed") % len(data.get("tasks", ()))


_SENTENCES: dict[str, Callable[[_Data, _Hosts], str]] = {
    "cell.set": _cell_set,
    "cell.lease": _lease_taken,
    "cell.brake": _brake_set,
    "machine.set": _machine_set,
    "machine.state": _machine_state,
    "machine.removed": _machine_removed,
    "alloc.kept": _alloc_kept,
    "alloc.released": _alloc_released,
    "alloc.gone": _alloc_gone,
    "machine.credential": _machine_credential,
    "packages.held": _packages_held,
    "job.submitted": _job_submitted,
    "job.rejected": _job_rejected,
    "job.changed": _job_changed,
    "job.ended": _job_ended,
    "tasks.added": _tasks_added,
    "task.placed": _task_placed,
    "task.evicted": _task_evicted,
    "task.ended": _task_ended,
    "task.gone": _task_gone,
    "task.revived": _task_revived,
    "task.updated": _task_updated,
    "task.reported": _task_reported,
    "reservations.set": _reservations_set,
    "update.started": _update_started,
    "update.ended": _update_ended,
    "shell.opened": _shell_opened,
    "shell.closed": _shell_closed,
}
