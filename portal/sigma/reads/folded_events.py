"""Lists of events in which repeats are folded: events of one kind in a row become one line that can be opened. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from portal.sigma.reads.journal import EventSentence

# Fewer repeats in a row are shown one by one.
LEAST = 2


@dataclass(frozen=True, slots=True)
class FoldedEvents:
    """A line of a list of events. `row`: the newest event. `rest`: the older events in the line, newest first."""

    row: EventSentence
    rest: tuple[EventSentence, ...] = ()

    @property
    def oldest(self) -> EventSentence:
        return self.rest[-1]


def folded(events: Sequence[EventSentence]) -> list[FoldedEvents]:
    """Return the lines of a list of events, in the order of the events. Events of tasks in a row with the same kind,
    the same actor and the same cause or ending are one line, if they are more than `LEAST`. Changes of the job and of
    its updates are never folded.
    """
    runs: list[list[EventSentence]] = []
    for one in events:
        if runs and one.event.kind.startswith("task.") and _likeness(runs[-1][0]) == _likeness(one):
            runs[-1].append(one)
        else:
            runs.append([one])
    lines: list[FoldedEvents] = []
    for run in runs:
        if len(run) > LEAST:
            lines.append(FoldedEvents(run[0], tuple(run[1:])))
        else:
            lines += [FoldedEvents(one) for one in run]
    return lines


def _likeness(one: EventSentence) -> tuple[str, ...]:
    data = one.event.data
    same = (data.get(name) for name in ("cause", "how", "exit", "spec_version"))
    return one.event.kind, one.event.actor, *map(str, same)
