"""What Celery runs. Each task only calls a function that holds its own lease or is idempotent."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.core.management import call_command
from kombu.exceptions import OperationalError as BrokerAway
from redis import RedisError

from scheduling import journal, lease, notices
from scheduling.master import master_of
from scheduling.models import Cell

log = structlog.get_logger(__name__)

SLICE_S = 30.0
ENSURE_EVERY_S = 2.0
# A slice that nobody took by then is pointless: `masters_ensure` has asked again.
_STALE_S = 60.0


def queue_of(cell: str) -> str:
    """A cell's master runs on a queue of its own, with concurrency one."""
    return f"cell.{cell}"


@shared_task(name="scheduling.master_run", acks_late=False)
def master_run(cell: str) -> None:
    """One slice of a cell's master, then the next. While Redis is away the slice just goes on."""
    cell_id = Cell.objects.values_list("id", flat=True).get(name=cell)
    master = master_of(cell_id)
    while master.run(SLICE_S):
        if _enqueue(cell):
            return
        log.warning("the broker is away; the master goes on", cell=cell)


@shared_task(name="scheduling.masters_ensure", ignore_result=True)
def masters_ensure() -> None:
    """Start a master wherever none holds the lease."""
    for _, cell in lease.unheld("default"):
        master_run.apply_async(args=[cell], queue=queue_of(cell), expires=2 * ENSURE_EVERY_S)


@shared_task(name="scheduling.journal_partitions", ignore_result=True)
def journal_partitions() -> None:
    made = journal.ensure_partitions()
    if made:
        log.info("journal partitions made", number=made)


@shared_task(name="scheduling.sessions_clear", ignore_result=True)
def sessions_clear() -> None:
    call_command("clearsessions")


def _enqueue(cell: str) -> bool:
    """Ask for the next slice, unless it is asked for already. False when the broker can't be reached."""
    try:
        if notices.client().llen(queue_of(cell)) == 0:
            master_run.apply_async(args=[cell], queue=queue_of(cell), retry=False, expires=_STALE_S)
    except (RedisError, BrokerAway, OSError):
        return False
    return True
