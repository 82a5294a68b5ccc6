"""Makes events from rows of the database, for the journal and for snapshots."""

from __future__ import annotations

import datetime as dt

import msgspec

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group
from scheduling.models import Job, Machine, MaintenanceWindow, Pool, Update


def machine_set_event(machine: Machine, *, reason: str = "") -> events.MachineSet:
    """Return the event with all facts of a machine. The capacity in the event does not include what kept allocs use:
    allocs that have ended, but whose files are still on the machine. `reason`: why a person changed
    the facts.
    """
    kept = [*machine.kept, *[0] * (len(machine.capacity) - len(machine.kept))]
    return events.MachineSet(
        machine_id=machine.id,
        hostname=machine.hostname,
        address=machine.address,
        capacity=tuple([max(0, has - held) for has, held in zip(machine.capacity, kept, strict=False)]),
        attributes=dict(machine.attributes),
        platform=machine.platform,
        rack=machine.rack,
        power_domain=machine.power_domain,
        port_low=machine.port_low,
        port_high=machine.port_high,
        state=machine.state,
        reason=reason,
    )


def maintenance_event(window: MaintenanceWindow) -> events.MaintenanceSet:
    """Return the event with all facts of a maintenance window that readers of the journal need."""
    return events.MaintenanceSet(
        window=window.pk,
        state=window.state,
        starts_at=window.starts_at.timestamp(),
        ends_at=window.ends_at.timestamp(),
        machines=tuple(window.machines),
        rack=window.rack,
        power_domain=window.power_domain,
        reason=window.reason,
    )


def pool_event(pool: Pool, *, deleted: bool = False) -> events.PoolSet:
    """Return the event with all facts of a machine pool. `deleted`: the pool does not exist any more."""
    return events.PoolSet(
        pool=pool.name,
        description=pool.description,
        selector=pool.selector,
        tenants=tuple(pool.tenants),
        dedicated=pool.dedicated,
        use=pool.use,
        others=pool.others,
        deleted=deleted,
    )


def job_submitted_event(job: Job, groups: tuple[Group, ...]) -> events.JobSubmitted:
    """Return the event with the properties of a job. `groups`: the requirements of its tasks."""
    return events.JobSubmitted(
        job_id=job.id,
        uid=job.uid.hex,
        tenant_id=job.tenant_id,
        tenant=job.tenant.name,
        name=job.name,
        job_kind=job.kind,
        priority=job.priority,
        latency_sensitive=job.latency_sensitive,
        spec_version=job.spec_version,
        groups=groups,
        labels=dict(job.labels),
        port_names=tuple(job.port_names),
        alloc_set=job.alloc_set_id or 0,
        gang=job.gang,
        disruption_budget=job.disruption_budget,
        max_running=job.max_running,
        start_after=seconds(job.start_after),
        waiting=job.waiting,
        max_run_s=job.max_run_s or 0.0,
        ends_within_s=job.ends_within_s or 0.0,
        published=msgspec.convert(job.published, Published),
    )


def seconds(time: dt.datetime | None) -> float:
    """Return a time of a row as events contain it: in seconds since the epoch, and 0 for None."""
    return 0.0 if time is None else time.timestamp()


def update_started_event(update: Update) -> events.UpdateStarted:
    return events.UpdateStarted(
        job_id=update.job_id,
        update_id=update.id,
        from_version=update.from_version,
        to_version=update.to_version,
        max_down=update.max_down,
        undo=update.undo,
        restarted=update.tasks_to_replace,
    )
