"""Formats the answers to questions about a simulated cell, such as the effect of a drain, as sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduling.core.explaining.wording import sentence
from scheduling.core.vocabulary.reasons import Why
from scheduling.simulator.questions.alternatives import Alternative
from scheduling.simulator.questions.capacity import Fit, Victims
from scheduling.simulator.questions.machines import Drained, GivenBack

Answer = dict[str, Any]
"""A JSON object: `text` is a list of sentences. `columns` and `rows` are a table; both are optional."""


def answer(text: Sequence[str], columns: Sequence[str] = (), rows: Sequence[Sequence[Any]] = ()) -> Answer:
    return {"text": list(text), "columns": list(columns), "rows": [list(row) for row in rows]}


def format_fit(found: Fit) -> Answer:
    text = [f"{found.without_evictions} tasks fit into the free capacity now, on {found.machines} machines."]
    if found.with_evictions > found.without_evictions:
        more = found.with_evictions - found.without_evictions
        text.append(f"The scheduler would place {more} more by evicting {found.evicted} running tasks.")
    if found.with_evictions == found.most:
        text.append(f"More than {found.most} tasks were not tried.")
    return answer([*text, *_reason("The next task does not fit", found.why)])


def format_victims(found: Victims) -> Answer:
    if not found.evicted:
        text = [f"The submission would evict no task. {found.placed} of its {found.tasks} tasks would be placed."]
    else:
        jobs = len(found.victims)
        text = [
            f"The submission would evict {found.evicted} tasks of {jobs} jobs.",
            f"{found.placed} of its {found.tasks} tasks would be placed.",
        ]
    rows = [(job, priority, number) for job, priority, number in found.victims]
    columns = ("JOB", "PRIORITY", "EVICTED TASKS") if rows else ()
    return answer([*text, *_reason("Other tasks would stay pending", found.why)], columns, rows)


def format_drained(found: Drained) -> Answer:
    moved = f"{found.moved} tasks would leave {found.machines} machines."
    if found.left_pending:
        end = f"{found.left_pending} more tasks than before would be pending."
    else:
        end = "All of them would find another machine."
    text = [moved, end]
    if found.preempted:
        text.append(f"{found.preempted} tasks on other machines would be evicted for them.")
    return answer(text)


def format_given_back(found: GivenBack) -> Answer:
    number = len(found.hostnames)
    text = [
        f"{number} of {found.of} machines could be given back; {found.empty} of them have no task now.",
        *format_drained(found.drained)["text"],
    ]
    return answer(text, ("MACHINE",) if number else (), [(name,) for name in found.hostnames])


def format_alternative(found: Alternative) -> Answer:
    changes = ", ".join(f"{name}={value}" for name, value in found.changes)
    text = [f"Figures of the next {found.hours:g} hours: without a change, and with {changes}."]
    return answer(text, ("FIGURE", "AS IT IS", "CHANGED", "DIFFERENCE"), differences(found.rows))


def differences(rows: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float, float]]:
    """Return the rows of a comparison with a further column. `rows`: (name, first value, second value). The further
    column is the second value minus the first.
    """
    return [(name, first, second, round(second - first, 3)) for name, first, second in rows]


def _reason(what: str, why: Why | None) -> list[str]:
    return [f"{what}. {sentence(why, name='question')}"] if why is not None else []
