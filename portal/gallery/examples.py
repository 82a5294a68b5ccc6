"""Examples of the shared parts of pages (such as tables and filters), one function per state of a part. The gallery
shows the source of each function beside its result. Pure.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from zoneinfo import ZoneInfo

from portal import plots
from portal.parts import filters, meters, paging, tables, timelines
from portal.parts.empty import Empty, EmptyAction
from portal.parts.meters import Meter, Share, SplitMeter
from portal.parts.moments import Moment, moment_of
from portal.parts.state_grids import GridState, StateGrid, state_grid
from portal.parts.tables import Cell, Column, Table
from portal.parts.timelines import Mark, State, Timeline, Track
from quota.vocabulary.resources import CPU, describe

Given = Mapping[str, str]
BEGIN, END = dt.datetime(2026, 11, 27, 8, tzinfo=dt.UTC), dt.datetime(2026, 11, 27, 14, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
NO_JOBS = Empty(
    "Your tenants have no jobs yet.",
    "A job appears here as soon as it is submitted.",
    (EmptyAction("Submit a job", link="/submit/"),),
    "borgctl submit examples/hello.jsonnet",
)

JOBS = (("web", "running", 12, 4_000), ("indexer", "pending", 0, 32_000), ("crawler", "failed", None, 500))
TONES = {"running": "good", "pending": "wait", "failed": "bad"}


def at(hours: float) -> dt.datetime:
    return BEGIN + dt.timedelta(hours=hours)


def sortable(given: Given) -> Table:
    columns = (
        Column("Job", order="name"),
        Column("State"),
        Column("Tasks", number=True, order="tasks", descending=True),
        Column("CPU", number=True, order="cpu", descending=True),
    )
    sorting = tables.sorting_of(given, columns, default="-tasks")
    keys = {"name": lambda job: job[0], "tasks": lambda job: job[2], "cpu": lambda job: job[3]}
    return Table(
        "Jobs of the tenant ubar",
        columns,
        [
            (Cell(name, "/jobs/", "cc/ubar"), Cell(state, tone=TONES[state]), tasks, describe(CPU, cpu))
            for name, state, tasks, cpu in tables.ordered(JOBS, sorting, keys)
        ],
        NO_JOBS,
        sorting=sorting,
        paging=paging.by_number(2, 3, 109),
        total=("Total", "", "12", "36.5 cores"),
    )


def counted_by_cursor(given: Given) -> Table:
    columns = (Column("Time"), Column("Event"), Column("Digest"))
    rows = [("2026-11-27 13:59:02", "Task 3 of web started", Cell("sha256:5b8f1c09", code=True))]
    return Table(
        "Events", columns, rows, NO_JOBS, paging=paging.by_cursor(newer="1024.0", older="980.2"), captioned=True
    )


def without_rows(given: Given) -> Table:
    return Table("Jobs", (Column("Job"), Column("Tasks", number=True)), [], NO_JOBS)


def lines(given: Given) -> plots.Plot:
    times = [BEGIN + number * HOUR / 4 for number in range(24)]
    used = [None if 9 < number < 12 else int(2_000 + 900 * math.sin(number / 3)) for number in range(24)]
    series = [plots.Series("used", used), plots.Series("reserved", [3_300] * 24)]
    return plots.lines(
        "CPU of the job web",
        times,
        series,
        since=BEGIN,
        until=END,
        step=HOUR / 4,
        format_value=lambda milli: describe(CPU, milli),
        limit=4_000,
    )


def bars(given: Given) -> plots.Plot:
    series = [plots.Series("preemption", [4, 0, 7, 2, 1, 3]), plots.Series("machine failure", [0, 1, 0, 5, 0, 0])]
    return plots.bars(
        "Evictions per hour",
        [BEGIN + number * HOUR for number in range(6)],
        series,
        since=BEGIN,
        until=END,
        step=HOUR,
        format_value=str,
        label=lambda at: f"{at:%H:%M}",
    )


def no_data(given: Given) -> plots.Plot:
    return plots.lines("RAM of the job web", [], [], since=BEGIN, until=END, step=HOUR, format_value=str)


def story_of_a_job(given: Given) -> Timeline:
    first = Track(
        "web/0",
        [
            State("pending", at(0), at(0.6), "wait"),
            State("running", at(0.6), at(3.2), "good"),
            State("crashing", at(3.2), at(3.9), "bad"),
            State("running", at(3.9), None, "good", "/jobs/"),
        ],
        [Mark("placed on node-7", at(0.6), "good"), *(Mark("exit 3", at(3.2 + 0.02 * n), "bad") for n in range(12))],
    )
    second = Track(
        "web/1",
        [State("running", at(-2), at(2), "good"), State("dead", at(2), None)],
        [Mark("updated", at(1)), Mark("preempted", at(1.98), "wait"), Mark("killed", at(2), "plain", "/jobs/")],
    )
    return timelines.timeline(
        "Tasks of the job web",
        [first, second],
        name="story",
        since=BEGIN,
        until=END,
        format_time=lambda moment: f"{moment:%H:%M:%S}",
        cursor=at(2.5),
    )


def without_events(given: Given) -> Timeline:
    return timelines.timeline(
        "Tasks of the job idle", [Track("idle/0")], name="idle", since=BEGIN, until=END, format_time=str
    )


def filters_in_force(given: Given) -> filters.Filters:
    return filters.Filters(
        (
            filters.search("q", "Search", given.get("q", "web"), placeholder="part of a name"),
            filters.choice("state", "State", given.get("state", "dead"), ["live", "dead"], default="live"),
            filters.choice("cell", "Cell", given.get("cell", ""), ["cc", "dd"], everything="any"),
            filters.day("since", "Since", given.get("since", "yesterday"), problem="Write a day such as 2026-11-27."),
            filters.check("teams", "include teams", True),
        ),
        "Filter",
        kept={"sort": given.get("sort", "-tasks")},
    )


def no_filter_in_force(given: Given) -> filters.Filters:
    fields = (filters.search("name", "Find a name", ""), filters.choice("band", "Band", "", [], everything="any"))
    return filters.Filters(fields, "Find")


def section(given: Given) -> Empty:
    return NO_JOBS


def reclaimed(given: Given) -> Meter:
    return meters.meter(
        "CPU",
        capacity=640_000,
        used=288_000,
        reserved=384_000,
        limit=704_000,
        format_value=lambda milli: describe(CPU, milli),
    )


def nearly_full(given: Given) -> Meter:
    return meters.meter("Disk", capacity=100, used=95, reserved=None, limit=None, format_value=str)


def by_task(given: Given) -> SplitMeter:
    tasks = [("web/3", 8_000), ("indexer/0", 4_000), ("crawler/7", 500)]
    return meters.split_meter(
        "Limits",
        [Share(name, cpu, meters.colour_of(place)) for place, (name, cpu) in enumerate(tasks)],
        scale=16_000,
        capacity=16_000,
        format_value=lambda milli: describe(CPU, milli),
    )


def by_cause(given: Given) -> SplitMeter:
    shares = [Share("preemption", 40, 1), Share("machine failure", 0, 2), Share("other", 3, 3)]
    return meters.split_meter("Evictions", shares, scale=100, format_value=str)


def states_of_tasks(given: Given) -> StateGrid:
    return _grid("r" * 40 + "R" * 20 + "p" * 12 + "fdd")


def many_states(given: Given) -> StateGrid:
    return _grid("rrrrrrp" * 150)


def _grid(letters: str) -> StateGrid:
    known = [
        GridState("r", "running", "good"),
        GridState("p", "pending", "wait"),
        GridState("f", "failed", "bad"),
        GridState("d", "dead", "plain"),
    ]
    old = "still has the earlier version"
    return state_grid("Tasks by state", letters, known, noun="Task", before="/jobs/cc/ubar/web/", after="/", old=old)


def whole_page(given: Given) -> Empty:
    return Empty(
        "Nothing is archived yet.",
        "The archiver writes events to the archive when they are older than a day. This cell is younger.",
        (EmptyAction("Show the events of today", link="/jobs/"), EmptyAction("Show all cells", changes={"cell": None})),
        page=True,
    )


def no_match(given: Given) -> Empty:
    return Empty("No job matches the filters.", actions=(EmptyAction("Show all live jobs", changes={"q": None}),))


def past(given: Given) -> Moment:
    events = [BEGIN + 2 * HOUR, BEGIN + 4 * HOUR]
    given = {"at": "2026-11-27T12:20:05", **given}
    return moment_of(given, since=BEGIN, until=END, zone=ZoneInfo("Europe/Zurich"), events=events)


def present(given: Given) -> Moment:
    return moment_of({}, since=BEGIN, until=END, zone=dt.UTC, parameter="now")


def outside(given: Given) -> Moment:
    return moment_of({"then": "2020-01-01"}, since=BEGIN, until=END, zone=dt.UTC, parameter="then")


# For each part: its title, its template, the name of its value in the template, and its states.
EXAMPLES: tuple[tuple[str, str, str, tuple[Callable[[Given], object], ...]], ...] = (
    ("Table", "parts/table.html", "table", (sortable, counted_by_cursor, without_rows)),
    ("Chart", "parts/plot.html", "plot", (lines, bars, no_data)),
    ("Meter", "parts/meter.html", "meter", (reclaimed, nearly_full)),
    ("Split meter", "parts/split_meter.html", "split_meter", (by_task, by_cause)),
    ("State grid", "parts/state_grid.html", "grid", (states_of_tasks, many_states)),
    ("Timeline", "parts/timeline.html", "timeline", (story_of_a_job, without_events)),
    ("Filters", "parts/filters.html", "filters", (filters_in_force, no_filter_in_force)),
    ("Empty", "parts/empty.html", "empty", (section, no_match, whole_page)),
    ("Moment", "parts/moment.html", "moment", (past, present, outside)),
)
