"""The content of a cell's state without ids, so that tests can compare a copy of a cell with the original."""

from __future__ import annotations

from typing import Any

from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary.requirement import split_task_id


def by_rank(state: CellState) -> dict[str, dict[Any, Any]]:
    """Return the content of a state. Each id of a machine or job is replaced by its position among all ids."""
    content = state.fingerprint()
    machine = {identity: place for place, identity in enumerate(sorted(content["machine"]))}
    job = {identity: place for place, identity in enumerate(sorted(content["job"]))}

    def task(identity: int) -> tuple[int, int] | None:
        of, index = split_task_id(identity)
        return (job[of], index) if identity else None

    def held(ports: dict[int, list[tuple[int, int]]]) -> dict[int, list[Any]]:
        return {port: sorted((task(one), incarnation) for one, incarnation in who) for port, who in ports.items()}

    return {
        "machine": {
            machine[identity]: {**facts, "held": held(facts["held"])} for identity, facts in content["machine"].items()
        },
        "job": {
            job[identity]: {**facts, "alloc_set": job.get(facts["alloc_set"])}
            for identity, facts in content["job"].items()
        },
        "task": {
            (job[of], index): {
                **facts,
                "machine": machine.get(facts.get("machine")),
                "alloc": task(facts.get("alloc", 0)),
            }
            for (of, index), facts in content["task"].items()
        },
        "departure": {
            (task(identity), incarnation): (machine[where], ports)
            for (identity, incarnation), (where, ports) in content["departure"].items()
        },
        "crash": {(task(identity), machine[where]): at for (identity, where), at in content["crash"].items()},
    }
