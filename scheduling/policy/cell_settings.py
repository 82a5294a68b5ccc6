"""The settings of a cell, stored in `Cell.settings`. SREs change them in the console."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from quota.vocabulary.errors import Rejected
from quota.vocabulary.months import LEAST_METERED_DAYS
from scheduling.core.vocabulary.reclamation_presets import PRESETS
from scheduling.policy.cpu_factors import parse_cpu_factors

_CHOICES = {
    "scorer": ("hybrid", "best-fit", "e-pvm"),
    "schedulers": ("one", "by-workload"),
    "reclamation": tuple(PRESETS),
}
# A machine may miss one poll before it counts as silent. A poll takes at most a tenth longer than its interval.
POLLS_MISSED = 2.2
# The longest interval if it depends on the number of machines (`link.pace`).
LONGEST_POLL_S = 5.0
# The usage of a job's last day is archived, and its costs are charged, after this time.
LEAST_ENDED_DAYS = 2.0
MOST_START_S = 30 * 86400
# An eviction is credited with the price of a month at most.
MOST_EVICTION_HOURS = 720


class CellSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a cell. A setting that is not stored has its default value."""

    scorer: str = "hybrid"
    """How machines are scored (§3.2): hybrid, best-fit or e-pvm."""

    schedulers: str = "one"
    """Schedulers of the cell (§3.4): `one`, or `by-workload`: one for services and one for batch, at the same time."""

    batch_in_prod_by_reservation: bool = False
    """Whether batch tasks in prod bands may be placed on reclaimed resources (footnote 4 of §5.5)."""

    crashed_pair_s: float = 600.0
    """For how many seconds a task is not placed on a machine on which it crashed (§4)."""

    poll_interval_s: float = 0.0
    """Seconds between polls of one Borglet; 0: from 2 to 5, depending on the number of machines."""

    down_after_s: float = 12.0
    """Seconds without a report after which a machine is marked down."""

    suspect_share: float = 0.5
    """If more than this share of all machines, or of the machines of one shard, falls silent at the same time, the
    cell suspects the link first."""

    suspect_hold_s: float = 60.0
    """For how many seconds no machine is marked down after the link is suspected. Machines of a dead shard have the
    same time to reconnect."""

    believed_share: float = 0.05
    """If at most this share of the machines (or at most three machines) is lost at the same time, their tasks are
    placed elsewhere at once."""

    vanished_share_per_min: float = 0.05
    """If more than `believed_share` of the machines is lost, at most this share of the running tasks is placed
    elsewhere per minute, because a network partition looks like many dead machines (§4)."""

    vanished_most_share: float = 0.5
    """If more than this share of the machines is lost, their tasks are placed elsewhere only after an SRE allows it."""

    evictions_per_s: float = 100.0
    """Upper limit for placing tasks of lost machines elsewhere, in tasks per second; 0: none is placed elsewhere."""

    stop_share: float = 0.3
    """Largest share of the running tasks that the cell itself stops within five minutes (preemption, shortages,
    superseded tasks). It may always stop 500 tasks. Further stops wait for an SRE."""

    confirm_share: float = 0.2
    """A person who kills or drains more than this share of the cell's running tasks at once (and more than 500) has to
    confirm the number."""

    drain_per_s: float = 50.0
    """Number of tasks per second that leave draining machines."""

    drain_patience_s: float = 600.0
    """A task that has been down for longer than this no longer delays the drain of other tasks of its job."""

    maintenance_horizon_s: float = 86400.0
    """So many seconds before a maintenance window of a machine, tasks without a time limit prefer other machines, and
    tasks whose time limit crosses the start of the window do not start there."""

    maintenance_lead_s: float = 900.0
    """The machines of a maintenance window are drained at least this many seconds before it starts, and earlier if the
    disruption budgets of the jobs there need more time."""

    rotate_secrets_s: float = 86400.0
    """A machine's secret is replaced at this age, varied at random by up to 20 %; 0: only on request."""

    cpu_factors: str = ""
    """Normalised CPU: how many normalised cores one core of a platform counts as, for example
    `haswell=1, skylake=1.25`. From 0.1 to 10, with at most three decimals. Other platforms count as 1."""

    reclamation: str = "medium"
    """How closely reservations follow usage (§5.5): off, baseline, medium or aggressive (Figure 12)."""

    package_max_gib: float = 4.0
    """The size of the largest package, in GiB, that the cell's store accepts."""

    packages_per_tenant_gib: float = 100.0
    """Largest total size of one tenant's packages in the store, in GiB."""

    package_keep_days: float = 30.0
    """Age in days at which packages without a tag are deleted if no live job can use them."""

    journal_keep_days: float = 14.0
    """Days for which PostgreSQL keeps the events of the journal. Older events are only in the archive."""

    ended_jobs_keep_days: float = 30.0
    """Days for which PostgreSQL keeps ended jobs, with their tasks and specs, and replaced specs of live jobs.
    Older ones are only in the archive. At least 2, because the usage and the costs of the last hours are still being
    written."""

    metered_hours_keep_days: float = 35.0
    """Days for which PostgreSQL keeps metered hours after the end of their month (UTC). Older ones are only in the
    archive, for ever. At least 31, so that the current and the last month are in PostgreSQL."""

    archive_keep_days: float = 400.0
    """Days for which the archive keeps events, usage and ended jobs."""

    checkpoint_interval_h: float = 1.0
    """Hours between checkpoints of a cell that changes; 0: only on request."""

    checkpoint_events: float = 100_000.0
    """A checkpoint is also saved after this number of events, so that every past moment is near a checkpoint; 0: only
    by time."""

    checkpoint_keep_days: float = 60.0
    """Days for which checkpoints are kept. Of checkpoints older than 24 hours, only the first of each day is kept, and
    those that are needed so that at most `checkpoint_events` events are between two checkpoints."""

    shortage_at: float = 0.97
    """If tasks use more than this share of a machine's RAM or disk, some of them are evicted (§6.2); 0: never."""

    promise_start_s: float = 0.0
    """The published promise: a prod task within quota starts within this many seconds if only missing capacity
    delays it; 0: no promise. The time beyond it is credited on the invoice."""

    promise_share: float = 1.0
    """Which share of the price of a task's quota is credited for the time that it was pending beyond the promise; at
    most 1."""

    promise_evictions: float = 0.0
    """The published promise: the cell evicts each prod task at most this many times in 30 days; 0: no promise. Each
    further eviction is credited on the invoice."""

    promise_eviction_hours: float = 1.0
    """For how many hours the price of the task is credited per eviction beyond the promise; at most 720."""


def load(settings: dict[str, object]) -> CellSettings:
    """Return the stored settings of a cell as a `CellSettings`. Raises `Rejected` if a setting is wrong; the error
    names the setting and the values that it may have.
    """
    try:
        loaded = msgspec.convert(settings, CellSettings)
    except msgspec.ValidationError as error:
        detail, fields = _misread(settings, error)
        raise Rejected("invalid-settings", detail, fields=fields) from error
    problems = {
        name: f"{name} must be 0 or more"
        for name in CellSettings.__struct_fields__
        if isinstance(value := getattr(loaded, name), float) and value < 0
    }
    for name, known in _CHOICES.items():
        if getattr(loaded, name) not in known:
            problems[name] = f"{name} must be {' or '.join(known)}"
    try:
        parse_cpu_factors(loaded.cpu_factors)
    except ValueError as error:
        problems["cpu_factors"] = f"cpu_factors: {error}"
    if loaded.shortage_at > 1:
        problems["shortage_at"] = "shortage_at must be between 0 and 1"
    if loaded.metered_hours_keep_days < LEAST_METERED_DAYS:
        problems["metered_hours_keep_days"] = f"metered_hours_keep_days must be at least {LEAST_METERED_DAYS}"
    if loaded.promise_evictions != int(loaded.promise_evictions):
        problems["promise_evictions"] = "promise_evictions must be a whole number"
    if loaded.promise_start_s > MOST_START_S:
        problems["promise_start_s"] = f"promise_start_s must be at most {MOST_START_S}, which is 30 days"
    if abs(loaded.promise_share * 1000 - round(loaded.promise_share * 1000)) > 1e-6:
        problems["promise_share"] = "promise_share must have at most three decimals"
    if loaded.promise_eviction_hours > MOST_EVICTION_HOURS:
        problems["promise_eviction_hours"] = f"promise_eviction_hours must be at most {MOST_EVICTION_HOURS}"
    shares = ("suspect_share", "believed_share", "vanished_most_share", "stop_share", "confirm_share", "promise_share")
    for name in shares:
        if not 0 < getattr(loaded, name) <= 1:
            problems[name] = f"{name} must be greater than 0 and at most 1"
    if problems:
        raise _rejection(problems)
    return loaded


def _rejection(problems: Mapping[str, str]) -> Rejected:
    detail = "; ".join(problems.values())
    return Rejected("invalid-settings", detail, fields={f"settings.{name}": what for name, what in problems.items()})


def accept(settings: dict[str, object]) -> CellSettings:
    """Check new settings, and return them as a `CellSettings`. Raises `Rejected` if a setting is wrong, or if two
    settings contradict each other.
    """
    loaded = load(settings)
    least = POLLS_MISSED * (loaded.poll_interval_s or LONGEST_POLL_S)
    if loaded.down_after_s < least:
        what = (
            f"down_after_s is {loaded.down_after_s:g}, which is too short for a poll every {least / POLLS_MISSED:g} s;"
            f" give at least {least:g}, or lower poll_interval_s"
        )
        raise _rejection({"down_after_s": what})
    if loaded.ended_jobs_keep_days < LEAST_ENDED_DAYS:
        raise _rejection({"ended_jobs_keep_days": f"ended_jobs_keep_days must be at least {LEAST_ENDED_DAYS:g}"})
    for name in ("journal_keep_days", "ended_jobs_keep_days"):
        if loaded.archive_keep_days < getattr(loaded, name):
            what = f"archive_keep_days must be at least {name}, which is {getattr(loaded, name):g}"
            raise _rejection({"archive_keep_days": what})
    if loaded.vanished_most_share < loaded.believed_share:
        what = f"vanished_most_share must be at least believed_share, which is {loaded.believed_share:g}"
        raise _rejection({"vanished_most_share": what})
    return loaded


def _misread(settings: object, error: msgspec.ValidationError) -> tuple[str, dict[str, str]]:
    """Return why the settings cannot be read: one message for all settings, and one message per wrong field."""
    known = CellSettings.__struct_fields__
    every = f"the settings of a cell are {', '.join(known)}"
    if not isinstance(settings, dict):
        detail = f"the settings must be a JSON object such as {{}}; {every}"
        return detail, {"settings": detail}
    if unknown := sorted(map(str, settings.keys() - set(known))):
        detail = f"the settings contain unknown names: {', '.join(unknown)}; {every}"
        return detail, {"settings": detail}
    name = str(error).rpartition("`$.")[2].rstrip("`")
    default = getattr(CellSettings(), name)
    wanted = {bool: "true or false", float: "a number", str: "text"}[type(default)]
    detail = f"{name} must be {wanted}, such as {json.dumps(default)}; remove it to use the default"
    return detail, {f"settings.{name}": detail}
