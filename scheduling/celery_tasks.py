"""The Celery tasks of `scheduling`. Each may run twice: the function that it calls is idempotent or takes a lease."""

from __future__ import annotations

import os
import subprocess
import sys

import structlog
from celery import shared_task
from celery.signals import worker_ready
from celery.worker.consumer import Consumer
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone

from quota.billing.credits.breach_reports import breaches_report
from quota.billing.metering import meter
from quota.market.quota_expiry import expiries_watch
from scheduling.cells.capacity_samples import capacity_sample, samples_drop_old
from scheduling.config_files import files
from scheduling.demotion import quota_expiry, spent_budgets
from scheduling.history.archive import child, ended_jobs, metered, old_specs, retention
from scheduling.history.checkpoints import saving
from scheduling.history.statistics import reader
from scheduling.history.statistics.retention import statistics_drop_old, statistics_fold_old
from scheduling.jobs.notices.condition_notices import conditions_notify
from scheduling.jobs.notices.event_notices import events_notify
from scheduling.journal import journal, partitions
from scheduling.models import Cell
from scheduling.packages import sweep
from scheduling.promises.breach_watch import breaches_watch
from scheduling.recording.requests import record_in_child
from scheduling.shells import shells
from scheduling.storage.files import StoreAway
from scheduling.usage import metering

log = structlog.get_logger(__name__)

_MASTER_QUEUE = "cell."


@worker_ready.connect
def become_master(sender: Consumer, **_: object) -> None:
    """Replace a worker of the queue `cell.NAME` by `python -m scheduling.master NAME`. Up to release 0.2, masters were
    Celery workers, so service files of that time still start such a worker after an upgrade.
    """
    queues = list(sender.app.amqp.queues.consume_from)
    names = [queue.removeprefix(_MASTER_QUEUE) for queue in queues if queue.startswith(_MASTER_QUEUE)]
    if names and len(queues) > 1:
        log.error("masters are no longer Celery workers; start `python -m scheduling.master NAME`", names=names)
    elif names:
        (name,) = names
        log.warning("a master is no longer a Celery worker; start `python -m scheduling.master`", process=name)
        os.execv(sys.executable, [sys.executable, "-m", "scheduling.master", name])  # noqa: S606 - no shell


@shared_task(name="scheduling.archive", ignore_result=True)
def archive_run() -> None:
    """Start the archiver if there is something to archive, and do not wait for it. It copies events and usage of past
    days, old ended jobs and old metered hours to the archive. Then it deletes their rows.
    """
    now = timezone.now()
    if any(part.due(now=now) for part in (retention, ended_jobs, old_specs, metered)):
        child.start()


@shared_task(name="scheduling.capacity_samples", ignore_result=True)
def capacity_samples() -> None:
    """For capacity planning, store a sample of the capacity and usage of every cell. Delete samples older than a
    year.
    """
    now = timezone.now()
    for cell in Cell.operated.order_by("id"):
        capacity_sample(cell, now=now)
    if dropped := samples_drop_old(now=now):
        log.info("old capacity samples deleted", rows=dropped)


@shared_task(name="scheduling.metering", ignore_result=True)
def metering_run() -> None:
    """Take a sample of the reservations of every cell, and report the usage of each past hour to `quota`. The last
    hours of a deleted cell are reported after its deletion. An error in one cell does not affect the others.
    """
    now = timezone.now()
    for cell in Cell.with_history.order_by("id"):
        try:
            if cell.deleted_at is None:
                metering.look(cell, now=now)
            for hour in metering.meter_due(cell, now=now, keep_hours=settings.BORG_USAGE_KEEP_HOURS, meter=meter):
                log.info("hour metered", cell=cell.name, hour=hour.isoformat())
        except Exception:
            log.exception("usage of a cell not metered; the next run tries again", cell=cell.name)
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


@shared_task(name="scheduling.job_notices", ignore_result=True)
def job_notices() -> None:
    """Notify tenants of jobs that have failed, and of updates that have stopped. Also notify them of jobs that are
    failing, crash-looping, pending for too long or near their deadline, and of their recovery. An error in the
    conditions of jobs, or in the events of one cell, does not affect the rest.
    """
    named = 0
    try:
        named += conditions_notify(now=timezone.now())
    except Exception:
        log.exception("tenants not notified of failing, pending or late jobs; the next run tries again")
    for cell in Cell.operated.order_by("id"):
        try:
            named += events_notify(cell)
        except Exception:
            log.exception(
                "tenants not notified of failed jobs and stopped updates; the next run tries again", cell=cell.name
            )
    if named:
        log.info("the worker notified tenants of jobs whose problems began or ended", jobs=named)


@shared_task(name="scheduling.promises", ignore_result=True)
def promises_run() -> None:
    """Report to `quota` which pending times and evictions break the published promise of a cell. An error in one cell
    does not affect the others.
    """
    for cell in Cell.operated.order_by("id"):
        try:
            if rows := breaches_watch(cell, now=timezone.now(), report=breaches_report):
                log.info("a cell broke its promise; the next invoices give credits for it", cell=cell.name, rows=rows)
        except Exception:
            log.exception(
                "the broken promises of a cell were not read from its journal; the next run tries again", cell=cell.name
            )


@shared_task(name="scheduling.statistics", ignore_result=True)
def statistics() -> None:
    """Add the new events of every cell to its statistics of evictions, starts and delays."""
    now = timezone.now()
    for cell in Cell.with_history.order_by("id"):
        reader.statistics_read(cell, now=now)


@shared_task(name="scheduling.statistics_forget", ignore_result=True)
def statistics_forget() -> None:
    """Replace old statistics of hours by statistics of days, and delete those that are older than 400 days."""
    now = timezone.now()
    folded, dropped = statistics_fold_old(now=now), statistics_drop_old(now=now)
    if folded or dropped:
        log.info(
            "old hourly statistics were combined into daily statistics, and the oldest statistics were deleted",
            days=folded,
            deleted=dropped,
        )


@shared_task(name="scheduling.journal_partitions", ignore_result=True)
def journal_partitions() -> None:
    """Create the next partitions of the journal, and drop the partitions of cells that no longer exist."""
    made = journal.ensure_partitions()
    if made:
        log.info("journal partitions made", number=made)
    try:
        if dropped := partitions.drop_orphans():
            log.info("dropped journal partitions of cells that no longer exist", names=dropped)
    except DatabaseError as error:  # for example, another process drops the same partition
        log.warning(
            "cannot drop journal partitions of cells that no longer exist; the next run tries again",
            error=str(error).strip(),
        )


@shared_task(name="scheduling.checkpoints", ignore_result=True)
def checkpoints_run() -> None:
    """Save a checkpoint of each cell whose newest one is too old, and delete old checkpoints."""
    now = timezone.now()
    for cell in Cell.with_history.order_by("id"):
        try:
            if cell.deleted_at is None and saving.due(cell, now=now):
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
        log.error("cannot save a checkpoint", cell=cell, error=str(error))


@shared_task(name="scheduling.record", ignore_result=True)
def record(name: str, machines: int, days: float, seed: int) -> None:
    """Record a study cell whose machines and jobs are chosen at random from `seed`, with a history of `days` days. If a
    worker receives this task twice, the second recording is rejected, because the cell exists.
    """
    try:
        done = record_in_child(name=name, machines=machines, days=days, seed=seed)
        log.info("study cell with a simulated history created", cell=name, result=done)
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        log.error("cannot create a study cell with a simulated history", cell=name, error=str(error))


@shared_task(name="scheduling.sessions_clear", ignore_result=True)
def sessions_clear() -> None:
    call_command("clearsessions")


@shared_task(name="scheduling.packages_sweep", ignore_result=True)
def packages_sweep() -> None:
    for cell in sweep.cells_to_sweep(now=timezone.now()):
        try:
            gone = sweep.packages_sweep(cell)
        except StoreAway as error:
            log.warning("package store unreachable", cell=cell.name, error=str(error))
            return
        if gone:
            log.info("packages swept", cell=cell.name, archives=gone)


@shared_task(name="scheduling.config_deliveries_sweep", ignore_result=True)
def config_deliveries_sweep() -> None:
    """Forget which versions of config files the tasks of ended jobs had."""
    if gone := files.deliveries_sweep():
        log.info("deliveries of config files to ended jobs were deleted", rows=gone)


@shared_task(name="scheduling.shells_sweep", ignore_result=True)
def shells_sweep() -> None:
    closed = shells.shells_sweep()
    if closed:
        log.info("the worker closed shells whose portal process has ended", number=closed)
