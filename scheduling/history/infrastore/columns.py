"""The tables and columns of Infrastore (§2.6), with their descriptions. Pure, and without heavy libraries.

Names are those of Google's trace of 2019 where they fit. A time is a timestamp in UTC without a time zone, with
microseconds. The event tables also have `time_us`, the same time in microseconds since 1970, because differences of
integers are written in the same way for DuckDB and for Spark.
"""

from __future__ import annotations

from typing import NamedTuple

TEXT, INT, FLOAT, BOOL, TIME = "text", "integer", "float", "boolean", "timestamp"
FLOATS, TEXTS_BY_NAME, FLOATS_BY_NAME = "list of floats", "map of texts", "map of floats"


class Column(NamedTuple):
    """A column: its name, its type (one of the constants of this module), and its description."""

    name: str
    type: str
    about: str


class TableInfo(NamedTuple):
    """The description of a table. `time`: the column that limits on time use; empty for tables of the present state.

    `shared`: whether the table also has rows that belong to no tenant (`user` is null) and that everybody may see.
    """

    about: str
    columns: tuple[Column, ...]
    time: str = "time"
    shared: bool = False


def _columns(text: str) -> tuple[Column, ...]:
    """Return the columns that the lines of `text` describe, each as `name type: description`."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        head, _, about = line.strip().partition(": ")
        name, _, kind = head.partition(" ")
        found.append(Column(name, _TYPES[kind], about))
    return tuple(found)


_TYPES = {
    "text": TEXT,
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "time": TIME,
    "floats": FLOATS,
    "texts": TEXTS_BY_NAME,
    "numbers": FLOATS_BY_NAME,
}
_EVENT = """
    time time: when it happened, in UTC
    time_us int: the same time in microseconds since 1970, for differences
    type text: {types}
    user text: the tenant that owns the row
"""
_JOB = """
    collection_id int: the id of the job or alloc set
    collection_name text: its name
    collection_type text: job or alloc-set
    priority int: free 0-99, batch 100-119, production 120-359, monitoring from 360
    scheduling_class int: 3 latency-sensitive, 0 batch
"""
_PLACE = """
    revision int: the revision of the journal that contains the event
    seq int: the number of the event in its revision
    actor text: the person or process that caused it
"""

TABLES: dict[str, TableInfo] = {
    "collection_events": TableInfo(
        "What happened to jobs and alloc sets.",
        _columns(
            _EVENT.format(types="submit, reject, update_running, update_start, update_end, finish, fail or kill")
            + _JOB
            + """
            alloc_collection_id int: the alloc set in which its tasks run
            max_per_machine int: most tasks on one machine, 0 for no limit
            max_per_switch int: most tasks in one rack, 0 for no limit
            tasks int: the number of tasks of a submit
            spec_version int: the version of the spec
            detail text: the reason, if there is one
            """
            + _PLACE
        ),
    ),
    "instance_events": TableInfo(
        "What happened to tasks and allocs.",
        _columns(
            _EVENT.format(types="submit, schedule, report, update, evict, lost, fail, finish, kill or gone")
            + _JOB
            + """
            instance_index int: the number of the task in its job
            machine_id int: the machine, if there is one
            incarnation int: the number of the placement, counted from 1
            alloc_collection_id int: the alloc set that contains the task
            alloc_instance_index int: the alloc that contains the task
            resource_request_cpus float: the CPU limit in cores; only for submit and update
            resource_request_memory int: the memory limit in bytes; only for submit and update
            cause text: for evict, lost and fail: preemption, machine-failure, machine-shutdown, out-of-resources, …
            detail text: more about the cause
            preemptor_collection_id int: the job that preempted the task
            preemptor_instance_index int: the task that preempted it
            phase text: for report: the phase that the machine reported
            health text: for report: healthy, unhealthy or unknown
            up bool: for report: whether the task can serve
            restarts int: for report: how often the machine has restarted the task
            exit_reason text: how the last run ended
            exit_status int: the exit status of the last run
            exit_signal int: the signal that ended the last run
            score numbers: for schedule: the score of the machine, by scorer
            victims int: for schedule: how many tasks it preempted
            package_bytes int: for schedule: the size of all its packages
            package_bytes_installed int: for schedule: how much of its packages the machine already had
            spec_version int: the version of the spec
            """
            + _PLACE
        ),
    ),
    "machine_events": TableInfo(
        "What happened to machines. Everybody who may see the cell may see them.",
        _columns(
            _EVENT.format(types="add, update, up, draining, down or remove")
            + """
            machine_id int: the id of the machine
            machine_name text: its host name; only for add and update
            switch_id text: its rack
            power_domain text: its power domain
            platform_id text: its platform
            capacity_cpus float: its cores
            capacity_memory int: its memory in bytes
            detail text: the reason, if there is one
            """
            + _PLACE
        ),
        shared=True,
    ),
    "machine_attributes": TableInfo(
        "The attributes of machines, one row for each change of the machine and each attribute.",
        _columns(
            """
            time time: when the machine reported it
            time_us int: the same time in microseconds since 1970
            user text: always null
            machine_id int: the id of the machine
            name text: the name of the attribute
            value text: its value
            deleted bool: whether the machine no longer has it
            revision int: the revision of the journal that contains the event
            seq int: the number of the event in its revision
            """
        ),
        shared=True,
    ),
    "reservations": TableInfo(
        "The reservations that resource reclamation has set for tasks (§5.5).",
        _columns(
            """
            time time: when it was set
            time_us int: the same time in microseconds since 1970
            user text: the tenant that owns the task
            collection_id int: the job
            instance_index int: the task
            reserved_cpus float: reserved cores
            reserved_memory int: reserved bytes
            revision int: the revision of the journal that contains the event
            seq int: the number of the event in its revision
            """
        ),
    ),
    "instance_usage": TableInfo(
        "The usage of tasks in windows of five minutes: CPU in cores, memory in bytes.",
        _columns(
            """
            start_time time: the start of the window
            end_time time: its end
            user text: the tenant that owns the task
            collection_id int: the job
            instance_index int: the task
            incarnation int: the placement of the task
            machine_id int: the machine
            average_usage_cpus float: mean cores in use
            average_usage_memory int: mean bytes in use
            maximum_usage_cpus float: most cores in use
            maximum_usage_memory int: most bytes in use
            random_sample_usage_cpus float: cores in use in one random second
            assigned_cpus float: the CPU limit
            assigned_memory int: the memory limit
            page_cache_memory int: bytes of the page cache
            sample_rate float: samples per second
            cpu_usage_distribution floats: the percentiles 0, 10, …, 100 of the CPU usage
            tail_cpu_usage_distribution floats: the percentiles 91 to 99
            throttled_cpus float: cores that the limit denied
            disk_bytes int: bytes on disk
            read_bytes_s int: bytes read per second
            written_bytes_s int: bytes written per second
            received_bytes_s int: bytes received per second
            sent_bytes_s int: bytes sent per second
            threads int: most threads
            oom_kills int: processes that ended because memory was short
            """
        ),
        time="start_time",
    ),
    "events": TableInfo(
        "The journal of the cell as it is, one row for each event.",
        _columns(
            """
            revision int: the revision
            seq int: the number of the event in its revision
            time time: when it happened, in UTC
            time_us int: the same time in microseconds since 1970
            kind text: the kind of the event, such as task.placed
            collection_id int: the job, if the event has one
            instance_index int: the task, if the event has one
            machine_id int: the machine, if the event has one
            user text: the tenant that owns the job
            actor text: the person or process that caused it
            request_id text: the request that caused it
            caused_by_revision int: the event that caused it: its revision
            caused_by_seq int: the event that caused it: its number
            data text: the whole event as JSON
            """
        ),
        shared=True,
    ),
    "jobs": TableInfo(
        "Jobs and alloc sets as they are now, or were at their end, without jobs that are only in the archive.",
        _columns(
            """
            collection_id int: the id
            user text: the tenant
            collection_name text: the name
            collection_type text: job or alloc-set
            alloc_collection_id int: the alloc set in which its tasks run
            priority int: the priority
            band text: the priority band
            scheduling_class int: 3 latency-sensitive, 0 batch
            labels texts: the labels
            state text: pending, running or dead
            outcome text: finished, failed or killed
            tasks int: the number of tasks
            tasks_up int: how many of them can serve
            requested_cpus float: the CPU limits of all its tasks together
            requested_memory int: the memory limits of all its tasks together
            submitted_by text: the person that submitted it
            created_at time: when it was submitted
            ended_at time: when it ended
            """
        ),
        time="",
    ),
    "machines": TableInfo(
        "Machines as they are now. Everybody who may see the cell may see them.",
        _columns(
            """
            machine_id int: the id
            user text: always null
            machine_name text: the host name
            switch_id text: the rack
            power_domain text: the power domain
            platform_id text: the platform
            capacity_cpus float: cores
            capacity_memory int: bytes of memory
            state text: up, draining, down or removed
            """
        ),
        time="",
        shared=True,
    ),
    "metered_hours": TableInfo(
        "Requests, reservations and usage of each job in each hour, and the price of the usage. Only people who may see"
        " the money of a tenant see its rows.",
        _columns(
            """
            time time: the start of the hour
            user text: the tenant
            collection_name text: the job
            band text: the priority band; free for the free priority
            labels texts: the labels of the job
            limit_cpu_hours float: limit in core hours
            limit_memory_hours float: limit in byte hours
            reserved_cpu_hours float: reservation in core hours
            reserved_memory_hours float: reservation in byte hours
            used_cpu_hours float: usage in core hours
            used_memory_hours float: usage in byte hours
            price_microcredits int: the price of the usage
            """
        ),
    ),
    "orders": TableInfo(
        "Orders of quota in the shop, with their prices. Only people who may see the money of a tenant see its rows.",
        _columns(
            """
            time time: when it was placed
            user text: the tenant
            order_id int: the number of the order
            band text: the priority band
            state text: pending, approved, active, expired, rejected or cancelled
            amount_cpus float: cores
            amount_memory int: bytes of memory
            starts_at time: when its quota begins
            ends_at time: when its quota ends
            hours float: the hours from starts_at to ends_at
            price_microcredits int: the price
            refunded_microcredits int: the part of the price that was paid back
            renew bool: whether an order of the same length follows at the end
            replaces int: the order that it changes, renews or takes over
            replaced_as text: for replaces: change, renewal or transfer
            placed_by text: the person that placed it
            decided_by text: the person that approved or rejected it
            ended_at time: when it expired, was rejected or was cancelled
            """
        ),
    ),
    "capacity_samples": TableInfo(
        "The resources of the whole cell and of its bands in each hour. Only SREs see them.",
        _columns(
            """
            time time: the start of the hour
            user text: always null
            band text: the priority band; empty for the whole cell
            capacity_cpus float: cores of machines that are up
            capacity_memory int: their memory in bytes
            limit_cpus float: limits of running tasks in cores
            limit_memory int: limits of running tasks in bytes
            reserved_cpus float: reservations in cores
            reserved_memory int: reservations in bytes
            used_cpus float: usage in cores
            used_memory int: usage in bytes
            """
        ),
    ),
}
# The tables that `scheduling.history.infrastore.tables` derives from the journal, each with the kinds of events that it
# needs.
_MACHINES = ("machine.set", "machine.state", "machine.removed")
DERIVED: dict[str, tuple[str, ...]] = {
    "collection_events": (
        "job.submitted",
        "job.rejected",
        "job.changed",
        "job.released",
        "job.ended",
        "update.started",
        "update.paused",
        "update.promoted",
        "update.ended",
    ),
    "instance_events": (
        "job.submitted",
        "job.changed",
        "tasks.added",
        "task.placed",
        "task.evicted",
        "task.ended",
        "task.gone",
        "task.revived",
        "task.updated",
        "task.reported",
    ),
    "machine_events": _MACHINES,
    "machine_attributes": _MACHINES,
    "reservations": ("reservations.set",),
}
