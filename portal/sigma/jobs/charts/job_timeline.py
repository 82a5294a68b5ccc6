"""The timeline of a job: its newest events on three tracks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.parts.timelines import Mark, Timeline, Track, timeline
from portal.sigma.reads.journal import EventSentence
from scheduling.models import Job

_TONES = {"task.placed": "good", "task.evicted": "wait", "job.submitted": "good", "update.ended": "good"}
# The shortest period that a timeline covers.
SHORTEST = dt.timedelta(minutes=1)


def job_timeline(job: Job, events: Sequence[EventSentence]) -> Timeline | None:
    """Return the timeline of the events of a job, newest first, until now or until the end of the job. Return None if
    there are no events.
    """
    if not events:
        return None
    until = job.ended_at or timezone.now()
    tracks: dict[str, list[Mark]] = {_("job"): [], _("tasks"): [], _("evictions and failures"): []}
    names = list(tracks)
    for one in events:
        link = reverse("sigma:event", args=[job.cell.name, one.place])
        tracks[names[_track(one)]].append(Mark(one.sentence, one.event.time, _tone(one), link))
    return timeline(
        _("Newest events over time"),
        [Track(name, (), marks) for name, marks in tracks.items() if marks],
        name="job-events",
        since=timezone.localtime(min(events[-1].event.time, until - SHORTEST)),
        until=timezone.localtime(max(until, events[0].event.time)),
        format_time=lambda at: f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}",
    )


def _track(one: EventSentence) -> int:
    if not one.event.kind.startswith("task"):
        return 0
    return 2 if one.event.kind == "task.evicted" or _failed(one) else 1


def _failed(one: EventSentence) -> bool:
    return one.event.kind == "task.ended" and one.event.data.get("how") == "failed"


def _tone(one: EventSentence) -> str:
    return "bad" if _failed(one) else _TONES.get(one.event.kind, "plain")
