"""Check whether the Borglet may apply a new desired state. Pure. A rejection is returned as a value, not raised; the
next report contains it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from borglet.messages import Desired, Refusal, RunTask, TaskKey

# A task gets the values of these fields when it starts. A change of one of them needs a new incarnation.
FIXED_FIELDS = ("name", "command", "env", "ports", "user", "working_dir", "packages")


def refusal_of(desired: Desired, in_force: Desired | None, present: Mapping[TaskKey, RunTask]) -> Refusal | None:
    """Return the reason to reject the desired state `desired`, or None if the Borglet can accept it. `in_force`: the
    desired state that the Borglet accepted last. `present`: the incarnations on this machine that have not ended.
    """
    return _fence(desired, in_force) or _contradiction(desired) or _changed_in_place(desired, present)


def _fence(desired: Desired, in_force: Desired | None) -> Refusal | None:
    """Return a rejection if `desired` is older than `in_force`, or belongs to another history with the same ordinal;
    otherwise None. The age is compared by (history ordinal, revision, epoch). A cell that is restored from a backup
    begins a new history with a higher ordinal.
    """
    if in_force is None or desired.history_ordinal > in_force.history_ordinal:
        return None
    if desired.history_ordinal < in_force.history_ordinal:
        return _older("history_ordinal", desired.history_ordinal, in_force.history_ordinal)
    if desired.history_id != in_force.history_id:
        return Refusal(
            "foreign-history",
            "desired.history_id",
            f"history {desired.history_id!r} has the same ordinal {desired.history_ordinal} as"
            f" {in_force.history_id!r}, which this machine serves; a restored cell must raise its ordinal",
            retry=False,
        )
    if (desired.revision, desired.epoch) < (in_force.revision, in_force.epoch):
        if desired.revision < in_force.revision:
            return _older("revision", desired.revision, in_force.revision)
        return _older("epoch", desired.epoch, in_force.epoch)
    return None


def _older(field: str, found: int, wanted: int) -> Refusal:
    return Refusal(
        "older-desired-state",
        f"desired.{field}",
        f"{field} {found} is older than {wanted}, which this machine already has; send a newer desired state",
    )


def _contradiction(desired: Desired) -> Refusal | None:
    run: set[TaskKey] = set()
    for position, task in enumerate(desired.run):
        if task.key in run:
            return Refusal(
                "listed-twice",
                f"desired.run[{position}].key",
                f"task {task.key} is twice in the list `run`; list it once",
            )
        run.add(task.key)
        if not task.command:
            detail = f"the command of task {task.key} is empty; give a program"
            return Refusal("no-command", f"desired.run[{position}].command", detail)
    for position, stop in enumerate(desired.stop):
        if stop.key in run:
            detail = f"task {stop.key} is in both lists `run` and `stop`; list it in one of them"
            return Refusal("run-and-stop", f"desired.stop[{position}].key", detail)
    return None


def _changed_in_place(desired: Desired, present: Mapping[TaskKey, RunTask]) -> Refusal | None:
    for position, task in enumerate(desired.run):
        before = present.get(task.key)
        if before is None or before is task:
            continue
        for field in FIXED_FIELDS:
            if getattr(before, field) != getattr(task, field):
                return Refusal(
                    "changed-in-place",
                    f"desired.run[{position}].{field}",
                    f"{field} of {task.key} cannot change while the incarnation runs; stop it and list a"
                    " new incarnation",
                )
    return None


def differs_in_place(before: RunTask, task: RunTask) -> bool:
    """Return whether `before` and `task`, two descriptions of a running task, differ. A difference in the field
    `waits_for` does not count, because this field has no effect on a running task.
    """
    return msgspec.structs.replace(before, waits_for=[]) != msgspec.structs.replace(task, waits_for=[])
