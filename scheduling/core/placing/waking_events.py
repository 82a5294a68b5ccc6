"""The events of the journal after which a pending task may fit on a machine."""

from __future__ import annotations

from collections.abc import Container

from scheduling.core.vocabulary import events

# Events after which a pending task fits no better than before. A placement is one of them: it only uses capacity.
_CHANGES_NO_PLACEMENT = (
    events.TaskReported,
    events.TaskPlaced,
    events.CellDeleted,
    events.CellCopied,
    events.CellRestored,
    events.LeaseTaken,
    events.BrakeSet,
    events.RepackingSet,
    events.PackagesHeld,
    events.JobRejected,
    events.UpdateStarted,
    events.UpdatePaused,
    events.UpdatePromoted,
    events.UpdateEnded,
    events.JobSecretChanged,
    events.JobConfigChanged,
    events.CronSet,
    events.CronDeleted,
    events.CronSkipped,
    events.TemplateSet,
    events.TemplateDeleted,
    events.ServiceSet,
    events.ServiceWeighed,
    events.WorkflowSet,
    events.WorkflowEnded,
    events.ShellOpened,
    events.ShellClosed,
)


def may_let_place(event: events.Event, alloc_sets: Container[int]) -> bool:
    """Return whether a pending task that fitted on no machine before `event` may fit after it. `alloc_sets`: the ids of
    the alloc sets in which jobs run; a placed alloc of such a set offers a place.
    """
    if isinstance(event, events.TaskPlaced):
        return event.job_id in alloc_sets
    return not isinstance(event, _CHANGES_NO_PLACEMENT)
