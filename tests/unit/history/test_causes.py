"""Tests of which events are searched as the cause, and as the effects, of an event."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.history.causes.rules import JournalFacts, Link, Search, Where, cause_of, concerns, effects_of

HERE = (40, 2)


def fact(kind: str, index: int | None = 3, *, caused_by: tuple[int, int] | None = None, **data: Any) -> JournalFacts:
    return JournalFacts(HERE, kind, 7, index, data, caused_by)


@pytest.mark.parametrize(
    "event, cause",
    [
        (
            fact("task.evicted", incarnation=2, cause="preemption", preemptor=[9, 1]),
            Search(Link.PREEMPTED_BY, Where.SAME, HERE, ("task.placed",), 9, 1),
        ),
        (
            fact("task.evicted", incarnation=2, cause="machine-shutdown", caused_by=(39, 0)),
            Search(Link.REQUESTED, Where.AT, (39, 0)),
        ),
        (
            fact("task.evicted", incarnation=2, cause="update"),
            Search(Link.UPDATED_BY, Where.BEFORE, HERE, ("update.started",), 7),
        ),
        (
            fact("task.ended", incarnation=2, how="failed"),
            Search(Link.PLACED_BY, Where.BEFORE, HERE, ("task.placed",), 7, 3, data=(("incarnation", 2),)),
        ),
        (
            fact("update.ended", None, update_id=5, how="done"),
            Search(Link.UPDATED_BY, Where.BEFORE, HERE, ("update.started",), 7, data=(("update_id", 5),)),
        ),
        (fact("job.ended", None, how="killed"), Search(Link.LAST_TASK, Where.BEFORE, HERE, ("task.ended",), 7)),
        (fact("job.submitted", None), None),
        (fact("task.ended", incarnation=0, how="killed"), None),
    ],
    ids=lambda one: one.kind if isinstance(one, JournalFacts) else "",
)
def test_the_cause_of_an_event_is_searched(event, cause) -> None:
    assert cause_of(event) == cause


def test_a_placement_follows_what_made_its_task_pending() -> None:
    search = cause_of(fact("task.placed", incarnation=1))
    assert search is not None
    assert (search.link, search.where, search.job_id, search.index) == (Link.QUEUED_BY, Where.BEFORE, 7, 3)
    assert search.of_job
    added = fact("tasks.added", None, groups=[{"ranges": [[0, 1], [4, 6]]}])
    assert [index for index in range(8) if concerns(added, index)] == [0, 1, 4, 5, 6]
    assert concerns(fact("job.submitted", None), 3)
    assert concerns(fact("task.evicted"), 3)
    assert not concerns(fact("task.evicted"), 4)


def links(event: JournalFacts) -> list[Link]:
    return [search.link for search in effects_of(event)]


def test_the_effects_of_an_event_are_searched() -> None:
    assert links(fact("task.placed", incarnation=1)) == [Link.CAUSED, Link.PREEMPTED, Link.ENDED]
    assert links(fact("task.evicted", incarnation=1)) == [Link.CAUSED, Link.PLACED, Link.GONE]
    assert links(fact("task.evicted", incarnation=1, gone=True)) == [Link.CAUSED, Link.PLACED]
    assert links(fact("job.submitted", None)) == [Link.CAUSED, Link.PLACED]
    assert links(fact("update.started", None, update_id=5)) == [Link.CAUSED, Link.UPDATE_ENDED]
    assert links(fact("machine.state", None, state="down")) == [Link.CAUSED]
    victims = effects_of(fact("task.placed", incarnation=1))[1]
    assert victims.data == (("preemptor", [7, 3]),)
