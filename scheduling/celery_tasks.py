"""The Celery tasks of `scheduling`. Each may run twice: the function that it calls is idempotent or takes a lease."""

from __future__ import annotations

import subprocess
import time

import structlog
from celery import shared_task
from celery.signals import worker_ready
from celery.worker.consumer import Consumer
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerAway
from redis import RedisError

from quota.billing.metering import meter
from quota.market.quota_expiry import expiries_watch
from quota.vocabulary.errors import Rejected
from scheduling.cells import capacity
from scheduling.demotion import quota_expiry, spent_budgets
from scheduling.history.archive import child, ended, metered, old_specs, ranges
from scheduling.history.checkpoints import saving
from scheduling.history.statistics import reader, retention
from scheduling.jobs.health_watch import failing_jobs_watch
from scheduling.journal import journal, partitions, wakeups
from scheduling.master import schedulers
from scheduling.master.schedulers import DEFAULT, Scheduler
from scheduling.models import Cell
from scheduling.packages import sweep
from scheduling.policy import cell_settings
from scheduling.recording.requests import record_in_child
from scheduling.shells import shells
from scheduling.storage.files import StoreAway
from scheduling.usage import metering

log = structlog.get_logger(__name__)

SLICE_S = 30.0
# A slice that no worker has taken by then is dropped, because `masters_ensure` has requested another one.
_STALE_S = 60.0
_PASSED_ON = 5
_PASS_ON_S = 0.1


@shared_task(name="scheduling.master_run", acks_late=False)
def master_run(cell: str, scheduler: str = DEFAULT.name, passed_on: int = _PASSED_ON) -> None:
    """Run a cell's scheduler for `SLICE_S` seconds, then queue this Celery task again. Continue while Redis is
    unreachable.

    If several workers serve the queue, a worker without the lease may receive the Celery task. This worker queues it
    again for the worker that has the lease. `passed_on`: how often the task was queued again in this way.
    """
    from scheduling.master.loop import master_of  # compiled kernels: 70 MB that other workers need not hold

    cell_id = Cell.objects.values_list("id", flat=True).get(name=cell)
    wanted = schedulers.BY_NAME[scheduler]
    master = master_of(cell_id, wanted)
    while master.run(SLICE_S):
        if _ask_for(cell, wanted, expires=_STALE_S, passed_on=0):
            return
        log.warning("the Celery broker is unreachable; the master continues", cell=cell, scheduler=scheduler)
    if master.wanted and passed_on < _PASSED_ON:
        time.sleep(_PASS_ON_S)  # the other waits for work by then
        _ask_for(cell, wanted, expires=_STALE_S, passed_on=passed_on + 1)
    masters_ensure()  # where another kind of scheduler is wanted now, it starts at once


@worker_ready.connect
def master_begin(sender: Consumer, **_: object) -> None:
    """When a worker for a scheduler has started, load the state of the cell and queue the first `master_run`."""
    queues = sender.app.amqp.queues.consume_from
    try:
        wanted = [
            (cell, scheduler)
            for cell in Cell.operated.all()
            for scheduler in schedulers.wanted(cell_settings.load(cell.settings))
            if schedulers.queue_of(cell.name, scheduler) in queues
        ]
        for cell, scheduler in wanted:
            from scheduling.master.loop import master_of  # compiled kernels, which other workers need not hold

            master_of(cell.id, scheduler).prepare()
            _ask_for(cell.name, scheduler, expires=_STALE_S)
    except (DatabaseError, Rejected) as error:
        log.warning("the state is loaded later", error=str(error).strip())


@shared_task(name="scheduling.masters_ensure", ignore_result=True)
def masters_ensure() -> None:
    """Queue `master_run` for each scheduler that a cell needs and whose lease no process holds."""
    for cell, scheduler in schedulers.unheld():
        # The request lives longer than a slice, because a queued request replaces the next one (`_ask_for`). If it
        # were stale by then, no scheduler would continue.
        _ask_for(cell, scheduler, expires=_STALE_S)


@shared_task(name="scheduling.archive", ignore_result=True)
def archive_run() -> None:
    """Start the archiver if there is something to archive, and do not wait for it. It copies events and usage of past
    days, old ended jobs and old metered hours to the archive. Then it deletes their rows.
    """
    now = timezone.now()
    if any(part.due(now=now) for part in (ranges, ended, old_specs, metered)):
        child.start()


@shared_task(name="scheduling.capacity_samples", ignore_result=True)
def capacity_samples() -> None:
    """For capacity planning, store a sample of the capacity and usage of every cell. Delete samples older than a
    year.
    """
    now = timezone.now()
    for cell in Cell.operated.order_by("id"):
        capacity.capacity_sample(cell, now=now)
    if dropped := capacity.samples_drop_old(now=now):
        log.info("old capacity samples deleted", rows=dropped)


@shared_task(name="scheduling.metering", ignore_result=True)
def metering_run() -> None:
    """Take a sample of the reservations of every cell, and report the usage of each past hour to `quota`."""
    now = timezone.now()
    for cell in Cell.operated.order_by("id"):
        metering.look(cell, now=now)
        for hour in metering.meter_due(cell, now=now, keep_hours=settings.BORG_USAGE_KEEP_HOURS, meter=meter):
            log.info("hour metered", cell=cell.name, hour=hour.isoformat())
    metering.forget_old(now=now)


@shared_task(name="scheduling.lapses", ignore_result=True)
def lapses_run() -> None:
    """Notify tenants of expired quota. Lower the priority of jobs whose grace period has ended or whose budget is used
    up.
    """
    expiries_watch()
    for cell in Cell.operated.order_by("id"):
        if dropped := [*quota_expiry.expiries_drop(cell), *spent_budgets.spent_budgets_drop(cell)]:
            log.info("jobs demoted to the free priority", cell=cell.name, jobs=[job.name for job in dropped])


@shared_task(name="scheduling.failing_jobs", ignore_result=True)
def failing_jobs() -> None:
    """Notify tenants of jobs that are failing, and of their recovery."""
    if named := failing_jobs_watch(now=timezone.now()):
        log.info("tenants notified of failing jobs", jobs=named)


@shared_task(name="scheduling.statistics", ignore_result=True)
def statistics() -> None:
    """Add the new events of every cell to its statistics of evictions, starts and delays."""
    now = timezone.now()
    for cell in Cell.operated.order_by("id"):
        reader.statistics_read(cell, now=now)


@shared_task(name="scheduling.statistics_forget", ignore_result=True)
def statistics_forget() -> None:
    """Replace old statistics of hours by statistics of days, and delete those that are older than 400 days."""
    now = timezone.now()
    folded, dropped = retention.statistics_fold_old(now=now), retention.statistics_drop_old(now=now)
    if folded or dropped:
        log.info("old statistics folded and deleted", days=folded, deleted=dropped)


@shared_task(name="scheduling.journal_partitions", ignore_result=True)
def journal_partitions() -> None:
    """Create the next partitions of the journal, and drop the partitions of cells that no longer exist."""
    made = journal.ensure_partitions()
    if made:
        log.info("journal partitions made", number=made)
    try:
        if dropped := partitions.drop_orphans():
            log.info("journal partitions of missing cells dropped", names=dropped)
    except DatabaseError as error:  # for example, another process drops the same partition
        log.warning("journal partitions of missing cells are dropped later", error=str(error).strip())


@shared_task(name="scheduling.checkpoints", ignore_result=True)
def checkpoints_run() -> None:
    """Save a checkpoint of each cell whose newest one is too old, and delete old checkpoints."""
    now = timezone.now()
    for cell in Cell.operated.order_by("id"):
        try:
            if saving.due(cell, now=now):
                checkpoint_save(cell.name)
            if dropped := saving.checkpoints_drop_old(cell, now=now):
                log.info("old checkpoints deleted", cell=cell.name, files=dropped)
        except StoreAway as error:
            log.warning("store of checkpoints unreachable", cell=cell.name, error=str(error))


@shared_task(name="scheduling.checkpoint_save", ignore_result=True)
def checkpoint_save(cell: str) -> None:
    try:
        saving.checkpoint_save(Cell.objects.get(name=cell))
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        log.error("no checkpoint saved", cell=cell, error=str(error))


@shared_task(name="scheduling.record", ignore_result=True)
def record(name: str, machines: int, days: float, seed: int) -> None:
    """Record a study cell whose machines and jobs are chosen at random from `seed`, with a history of `days` days. If a
    worker receives this task twice, the second recording is rejected, because the cell exists.
    """
    try:
        done = record_in_child(name=name, machines=machines, days=days, seed=seed)
        log.info("cell recorded", cell=name, result=done)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        log.error("no cell recorded", cell=name, error=str(error))


@shared_task(name="scheduling.sessions_clear", ignore_result=True)
def sessions_clear() -> None:
    call_command("clearsessions")


@shared_task(name="scheduling.packages_sweep", ignore_result=True)
def packages_sweep() -> None:
    for cell in Cell.operated.order_by("id"):
        try:
            gone = sweep.packages_sweep(cell)
        except StoreAway as error:
            log.warning("package store unreachable", cell=cell.name, error=str(error))
            return
        if gone:
            log.info("packages swept", cell=cell.name, archives=gone)


@shared_task(name="scheduling.shells_sweep", ignore_result=True)
def shells_sweep() -> None:
    closed = shells.shells_sweep()
    if closed:
        log.info("shells of dead portals closed", number=closed)


def _ask_for(cell: str, scheduler: Scheduler, *, expires: float, passed_on: int = _PASSED_ON) -> bool:
    """Queue `master_run` unless it is queued already. Return False if the Celery broker is unreachable."""
    queue = schedulers.queue_of(cell, scheduler)
    waiting: list[int] = []
    if not wakeups.send("slice", lambda redis: waiting.append(redis.llen(queue))):
        return False
    try:
        if waiting == [0]:
            args = [cell, scheduler.name, passed_on]
            master_run.apply_async(args=args, queue=queue, retry=False, expires=expires)  # type: ignore[arg-type]
    except (RedisError, BrokerAway, OSError):
        return False
    return True
