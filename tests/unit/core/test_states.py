"""Tests of the table of task states: each pair of state and event, and the diagram that is made from the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling.core.vocabulary.states import TASK_TRANSITIONS, IllegalTransition, TaskState, Transition, next_state

PAIRS = [(state, event) for state in (None, *TaskState) for event in Transition]


def task_diagram() -> str:
    """Return the table of transitions as text, in the form in which `README.md` shows it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), target in TASK_TRANSITIONS.items():
        arrows.setdefault((state.value if state else "-", target.value), []).append(event.value)
    return "\n".join(f"{source:>8} -> {target:<8} {', '.join(names)}" for (source, target), names in arrows.items())


@pytest.mark.parametrize("state, event", PAIRS)
def test_every_pair_goes_where_the_table_says_or_raises(state: TaskState | None, event: Transition) -> None:
    expected = TASK_TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(IllegalTransition, match=f"task 7 is {state or 'not there'}: {event} is not possible"):
            next_state("task 7", state, event)
    else:
        assert next_state("task 7", state, event) is expected


def test_history_is_reported() -> None:
    with pytest.raises(IllegalTransition, match="before: killed at 12"):
        next_state("task 7", TaskState.DEAD, Transition.EVICT, history="killed at 12")


def test_readme_shows_the_table() -> None:
    readme = (Path(next_state.__code__.co_filename).parents[1] / "README.md").read_text()
    assert task_diagram() in readme, "core/README.md: replace the diagram by what task_diagram() returns"
