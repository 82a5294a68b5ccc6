"""The timeline of a task: when it ran and when it was pending, with the events that changed this."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from django.utils import timezone
from django.utils.translation import gettext as _

from portal.parts.timelines import Mark, State, Timeline, Track, timeline
from portal.sigma.reads.journal import EventSentence

_TONES = {"task.placed": "good", "task.evicted": "wait"}
# The shortest period that a timeline covers.
SHORTEST = dt.timedelta(minutes=1)


def timeline_of(history: Sequence[EventSentence], *, until: dt.datetime) -> Timeline | None:
    """Return the timeline of a task until the time `until`, or None if it has no events. `history`: the events that
    began or ended a placement of the task, newest first.
    """
    if not history:
        return None
    states, marks = [], []
    state, begin, tone = "", history[-1].event.time, ""
    for one in reversed(history):
        event = one.event
        marks.append(Mark(one.sentence, event.time, _tone(one)))
        following = _state_after(one)
        if following is None:
            continue
        if state:
            states.append(State(state, begin, event.time, tone))
        (state, tone), begin = following, event.time
    if state:
        states.append(State(state, begin, None, tone))
    return timeline(
        _("Placements (incarnations) over time"),
        [Track(_("task"), states, marks)],
        name="incarnations",
        since=timezone.localtime(min(history[-1].event.time, until - SHORTEST)),
        until=timezone.localtime(until),
        format_time=lambda at: f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}",
    )


def _state_after(one: EventSentence) -> tuple[str, str] | None:
    """Return the title and the tone of the state of the task after an event, or None if the event begins no state. The
    tone is the colour of the state: `good`, `wait`, `bad` or `plain`.
    """
    if one.event.kind == "task.placed":
        return _("incarnation %d") % one.event.data["incarnation"], "good"
    if one.event.kind == "task.evicted":
        return _("pending"), "wait"
    return (_("dead"), "plain") if one.event.kind == "task.ended" else None


def _tone(one: EventSentence) -> str:
    failed = one.event.kind == "task.ended" and one.event.data.get("how") == "failed"
    return "bad" if failed else _TONES.get(one.event.kind, "plain")
