"""Confirmation of requests that stop many tasks of a cell: the caller must repeat the request with the number of tasks
that it will stop.
"""

from __future__ import annotations

from quota.vocabulary.errors import Conflict
from scheduling.brakes.stored_brakes import tasks_running
from scheduling.models import Cell
from scheduling.policy import brake_rules, cell_settings


def require(cell: Cell, number: int, confirmed: int | None, *, what: str) -> None:
    """Raise `Conflict` with code `confirm` if `number` is too many tasks to stop at once, unless `confirmed` is at
    least `number`.

    `confirmed`: how many tasks the caller agrees to stop. `what`: the request as text, such as "drain 40 machines".
    """
    if number <= brake_rules.ALWAYS_STOPPED or (confirmed is not None and confirmed >= number):
        return
    running = tasks_running(cell.id)
    settings = cell_settings.load(Cell.objects.values_list("settings", flat=True).get(pk=cell.pk))
    most = max(brake_rules.ALWAYS_STOPPED, settings.confirm_share * running)
    if number <= most:
        return
    detail = (
        f"this would {what}: {number} of the {running} running tasks of cell {cell.name} would stop. More than"
        f" {most:.0f} at once must be confirmed. To confirm, repeat the request with confirm={number}"
    )
    raise Conflict(
        "confirm",
        detail,
        fields={"confirm": f"{number} tasks would stop; to confirm, repeat the request with confirm={number}"},
        figures={"tasks": number, "running": running, "unconfirmed_most": int(most)},
    )
