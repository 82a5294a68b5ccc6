"""Tests of the pure rules of the autoscaler: histograms, limits, numbers of tasks, metrics and replays."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from scheduling.autoscaling.rules import histograms, vertical_rules
from scheduling.autoscaling.rules.histograms import CPU_BUCKETS, RAM_BUCKETS
from scheduling.autoscaling.rules.horizontal_rules import Load, ScaleState, decide, scheduled_tasks
from scheduling.autoscaling.rules.largest_limits import largest_limits
from scheduling.autoscaling.rules.loads import combined, load_by_metric
from scheduling.autoscaling.rules.metric_text import metric_value
from scheduling.autoscaling.rules.replay import STEP_S, RecordedUse, replay_limits, replay_tasks
from scheduling.autoscaling.rules.vertical_rules import BATCH, LimitRules
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.spec.autoscaling.fields import Horizontal, ScheduledTasks, TaskMetric

MIB = 2**20


def weights_of(values: list[float], buckets: histograms.Buckets) -> histograms.Weights:
    result = histograms.empty(1, buckets)
    np.add.at(result, (0, buckets.of(np.array(values))), 1.0)
    return result


def rules(jobs: int = 1, *, low=(0.0, 0.0), high=(np.inf, np.inf), every_s: float = 3600.0) -> LimitRules:
    return LimitRules((BATCH,) * jobs, np.array([low] * jobs), np.array([high] * jobs), np.full(jobs, every_s))


def test_a_bucket_ends_at_most_five_percent_above_its_values() -> None:
    values = np.geomspace(5, 1_000_000, 2_000)
    ends = CPU_BUCKETS.ends[CPU_BUCKETS.of(values)]
    assert (ends >= values * (1 - 1e-9)).all()
    assert (ends <= values * 1.05 * (1 + 1e-9)).all()


def test_values_outside_of_the_buckets_are_in_the_first_and_the_last_one() -> None:
    assert CPU_BUCKETS.of(np.array([0.0, 1e12])).tolist() == [0, CPU_BUCKETS.number - 1]


def test_percentiles_leave_out_the_largest_values() -> None:
    weights = weights_of([100.0] * 95 + [1000.0] * 5, CPU_BUCKETS)
    at = [float(histograms.percentiles(weights, np.array([share]), CPU_BUCKETS)[0]) for share in (0.5, 0.95, 0.96)]
    assert at[:2] == pytest.approx([100, 100], rel=0.05)
    assert at[2] == pytest.approx(1000, rel=0.05)


def test_a_peak_counts_until_it_has_decayed_however_many_other_values_there_are() -> None:
    weights = weights_of([64.0 * MIB] * 1000 + [512.0 * MIB], RAM_BUCKETS)
    least = np.array([2.0**-3])
    half_life_s = np.array([3600.0])
    histograms.decay(weights, np.array([3 * 3600.0]), half_life_s)
    assert histograms.peaks(weights, least, RAM_BUCKETS)[0] == pytest.approx(512 * MIB, rel=0.05)
    histograms.decay(weights, np.array([600.0]), half_life_s)
    assert histograms.peaks(weights, least, RAM_BUCKETS)[0] == pytest.approx(64 * MIB, rel=0.05)


def test_an_empty_histogram_recommends_nothing() -> None:
    cpu, ram = histograms.empty(1, CPU_BUCKETS), histograms.empty(1, RAM_BUCKETS)
    assert vertical_rules.recommended(cpu, ram, rules()).tolist() == [[0.0, 0.0]]
    limits = np.array([[1000, 64 * MIB]])
    assert vertical_rules.bounded(np.zeros((1, 2)), np.zeros((1, 2)), rules(), limits).tolist() == limits.tolist()


def test_stored_histograms_are_read_again() -> None:
    weights = weights_of([10.0, 20.0], CPU_BUCKETS)
    assert (histograms.unpack(histograms.pack(weights), CPU_BUCKETS) == weights).all()
    assert not histograms.unpack([b"", b"short"], CPU_BUCKETS).any()


def test_limits_stay_above_what_reclamation_knows_and_within_the_bounds() -> None:
    limits, wanted = np.array([[1000, 1024 * MIB]]), np.array([[100.0, 100.0 * MIB]])
    floor = np.array([[400.0, 300.0 * MIB]])
    assert vertical_rules.bounded(wanted, floor, rules(), limits).tolist() == [[400, 300 * MIB]]
    burst = np.array([[16_000.0, 4096.0 * MIB]])
    assert vertical_rules.bounded(wanted, burst, rules(), limits).tolist() == limits.tolist(), (
        "it does not raise a limit"
    )
    bounds = rules(low=(500.0, 0.0), high=(np.inf, 200.0 * MIB))
    assert vertical_rules.bounded(wanted, floor, bounds, limits).tolist() == [[500, 200 * MIB]]


@pytest.mark.parametrize(
    ("target", "since_s", "oom", "expected"),
    [
        pytest.param((1000, 950), 9e9, False, None, id="a small difference"),
        pytest.param((400, 1024), 3599, False, None, id="falls too early"),
        pytest.param((600, 1024), 3600, False, (600, 1024), id="falls"),
        pytest.param((100, 1024), 3600, False, (500, 1024), id="falls at most by half"),
        pytest.param((1300, 1024), 299, False, None, id="rises too early"),
        pytest.param((1300, 1024), 300, False, (1300, 1024), id="rises earlier than it falls"),
        pytest.param((9000, 1024), 300, False, (2000, 1024), id="rises at most to the double"),
        pytest.param((400, 1300), 300, False, (1000, 1300), id="what may not fall yet stays"),
        pytest.param((1000, 1040), 1, True, (1000, 1040), id="rises at once after it ran out of memory"),
    ],
)
def test_limits_change_by_bounded_steps(target, since_s: float, oom: bool, expected) -> None:
    limits = np.array([[1000, 1024 * MIB]])
    wanted = np.array([[target[0], target[1] * MIB]])
    decided = vertical_rules.decide(limits, wanted, rules(), since_s=np.array([since_s]), oom=np.array([oom]))
    assert decided.due.tolist() == [expected is not None]
    if expected is not None:
        assert decided.limits.tolist() == [[expected[0], expected[1] * MIB]]


def follow(
    loads: list[float | None], tasks: int, settings: Horizontal, *, every_s: float = 5.0, scheduled: int | None = None
) -> list[int]:
    """Return the number of tasks after each load."""
    state, found = ScaleState(), []
    for place, load in enumerate(loads):
        measured = None if load is None else Load(load)
        decision = decide(state, tasks, measured, scheduled, settings, now=1e9 + place * every_s)
        state, tasks = decision.state, decision.tasks
        found.append(tasks)
    return found


def test_tasks_are_added_at_once_and_removed_when_fewer_have_been_enough_for_some_time() -> None:
    settings = Horizontal(max=10, cpu=0.5, window_s=5.0, up_s=0.0, down_s=60.0)
    up = follow([6.0] * 20, 2, settings)
    assert up[-1] == 6
    assert up[0] == 6
    down = follow([6.0] * 3 + [2.0] * 40, 6, settings)
    first_low = next(place for place, tasks in enumerate(down) if tasks < 6)
    assert first_low * 5 >= 15 + 60
    assert down[-1] == 2


def test_a_short_dip_removes_no_task() -> None:
    settings = Horizontal(max=10, cpu=0.5, window_s=5.0, down_s=60.0)
    assert set(follow(([6.0] * 10 + [1.0] * 8) * 5, 6, settings)) == {6}


def test_differences_within_the_tolerance_change_nothing() -> None:
    settings = Horizontal(max=20, cpu=0.5, tolerance=0.1, up_s=0.0, down_s=0.0)
    assert set(follow([10.9, 9.1] * 10, 10, settings)) == {10}


def test_one_change_adds_at_most_as_many_tasks_as_there_are() -> None:
    settings = Horizontal(max=1000, cpu=0.5, window_s=5.0, up_s=0.0)
    assert follow([900.0] * 4, 10, settings) == [20, 40, 80, 160]


def test_an_unknown_load_changes_nothing() -> None:
    settings = Horizontal(max=10, cpu=0.5, down_s=0.0)
    assert set(follow([None] * 20, 6, settings)) == {6}


def test_unmeasured_tasks_count_as_busy_before_tasks_are_removed() -> None:
    settings = Horizontal(max=10, cpu=0.5, down_s=0.0, up_s=0.0)
    decision = decide(ScaleState(), 6, Load(2.0, unmeasured=4), None, settings, now=1e9)
    assert decision.tasks == 6


def test_the_schedule_is_a_lower_bound_of_the_load() -> None:
    settings = Horizontal(max=10, cpu=0.5, down_s=0.0, up_s=0.0, schedule=(ScheduledTasks("0 8 * * *", 4),))
    assert follow([1.0] * 3, 4, settings, scheduled=4) == [4, 4, 4]
    assert follow([1.0] * 3, 2, settings, scheduled=4)[-1] == 4


def test_a_schedule_follows_its_time_zone_over_the_change_of_clocks() -> None:
    lines = (ScheduledTasks("0 8 * * *", 10, "Europe/Berlin"), ScheduledTasks("0 20 * * *", 2, "Europe/Berlin"))
    summer, winter = dt.datetime(2026, 10, 24, 6, 30, tzinfo=dt.UTC), dt.datetime(2026, 10, 25, 6, 30, tzinfo=dt.UTC)
    assert scheduled_tasks(lines, summer) == (10, dt.datetime(2026, 10, 24, 18, tzinfo=dt.UTC))
    assert scheduled_tasks(lines, winter) == (2, dt.datetime(2026, 10, 25, 7, tzinfo=dt.UTC))


def test_a_schedule_without_a_past_time_keeps_the_number_of_tasks() -> None:
    line = (ScheduledTasks("0 0 29 2 *", 10),)
    assert scheduled_tasks(line, dt.datetime(2027, 6, 1, tzinfo=dt.UTC))[0] is None
    assert set(follow([None] * 200, 7, Horizontal(max=10, schedule=line, down_s=0.0))) == {7}


def test_the_last_time_of_a_schedule_may_be_long_ago() -> None:
    line = (ScheduledTasks("0 0 1 1 *", 10),)
    assert scheduled_tasks(line, dt.datetime(2026, 12, 1, tzinfo=dt.UTC))[0] == 10


TEXT = """# HELP jobs Jobs in queues.
# TYPE jobs gauge
jobs{queue="mail",zone="a"} 7
jobs{queue="mail",zone="b"} 5 1700000000000
jobs{queue="other"} 100
jobs_total 9
broken
depth 3.5e1
bad NaN
"""


@pytest.mark.parametrize(
    ("wanted", "value"),
    [("jobs", 112.0), ('jobs{queue="mail"}', 12.0), ("depth", 35.0), ("missing", None), ("bad", None)],
)
def test_a_metric_is_read_from_the_text_format(wanted: str, value: float | None) -> None:
    assert metric_value(TEXT, wanted) == value


@pytest.mark.parametrize("over", ["sum", "mean", "max"])
@pytest.mark.parametrize("values", [[1e308], [1e308, 1e308]])
def test_a_metric_that_is_not_finite_is_not_measured(values: list[float], over: str) -> None:
    assert load_by_metric(values, 5, 5, TaskMetric("queue", 1e-6, "http", over=over)) is None
    assert metric_value("queue 1e308\nqueue 1e308", "queue") is None


def test_the_average_of_an_absurd_load_fades_soon() -> None:
    settings = Horizontal(max=10, metric=TaskMetric("queue", 1, "http"), window_s=60)
    absurd = decide(ScaleState(), 10, Load(1e300), None, settings, now=0.0)
    assert decide(absurd.state, 10, Load(1.0), None, settings, now=300.0).wanted < 10


def test_tasks_that_were_not_asked_are_like_the_others() -> None:
    metric = TaskMetric("queue", 10, "http")
    assert load_by_metric([20.0] * 10, 10, 50, metric) == Load(100.0)
    assert load_by_metric([20.0] * 5, 10, 50, metric) == Load(50.0, 25)


def test_an_unknown_signal_removes_no_task_and_hides_no_load() -> None:
    settings = Horizontal(max=20, cpu=0.5, metric=TaskMetric("queue", 1, "http"), down_s=20, window_s=5)
    state = ScaleState()
    for now in range(0, 100, 5):
        found = decide(state, 10, combined([Load(1.0), None]), None, settings, now=float(now))
        state = found.state
        assert found.tasks == 10
    assert decide(state, 10, combined([Load(16.0), None]), None, settings, now=1e4).tasks == 16
    assert combined([None, None]) is None


def test_unmeasured_tasks_of_one_signal_count_as_busy_before_tasks_are_removed() -> None:
    assert combined([Load(3.0, 6), Load(4.0)]) == Load(4.0, 5)
    assert combined([Load(4.0), Load(3.0)]) == Load(4.0)


def test_an_answer_with_very_many_samples_is_not_read() -> None:
    begun = time.process_time()
    assert metric_value("queue 1\n" * 100_000, "queue") is None
    assert time.process_time() - begun < 0.2
    assert metric_value("other 1\n" * 30_000 + "queue 5", "queue") == 5


@pytest.mark.parametrize(
    "text",
    [
        "queue{" + "a" * 2**20 + "} 1",
        "queue{" + 'a="b",' * 2**17 + "} 1",
        'queue{a="' + "\\" * 2**20,
        ("queue{" + "a" * 4_000 + "} 1\n") * 256,
        "queue" + " " * 2**20,
    ],
)
@pytest.mark.timeout(20)
def test_a_hostile_answer_takes_no_time(text: str) -> None:
    begun = time.process_time()
    metric_value(text, 'queue{queue="mail"}')
    assert time.process_time() - begun < 2.0


def recorded(cpu: float, ram: float, *, days: int = 3, tasks: int = 2) -> RecordedUse:
    size = (1, tasks, days * 288)
    return RecordedUse(np.full(size, cpu), np.full(size, cpu), np.full(size, ram))


def test_a_replay_lowers_the_slack_of_idle_tasks_and_kills_none() -> None:
    use = recorded(200.0, 100.0 * MIB)
    limits = np.array([[2000, 1024 * MIB]])
    arguments = (use, limits, rules(), np.array([86_400.0]), np.array([86_400.0]))
    before, after = (replay_limits(*arguments, fixed=fixed) for fixed in (True, False))
    assert before.slack.tolist() == pytest.approx([0.9, 1 - 100 / 1024])
    assert (after.slack < before.slack).all()
    assert after.oom_days.tolist() == [0]
    used = np.array([200 * 1.05, 100 * 1.15 * MIB])
    assert (after.last[0] >= used).all()
    assert (after.last[0] <= used * 1.05 / 0.85 + np.array([10, MIB])).all(), "a bucket and the hysteresis"
    assert all(step >= 287 for step, *_ in after.changes[0]), "the first day is history"


def test_a_replay_raises_the_limit_of_a_task_that_runs_out_of_memory() -> None:
    use = recorded(100.0, 300.0 * MIB, days=1)
    result = replay_limits(use, np.array([[100, 256 * MIB]]), rules(), np.array([86_400.0]), np.array([86_400.0]))
    assert result.oom_days.tolist() == [2], "one day of each of the two tasks"
    assert [step for step, *_ in result.changes[0]] == [0]
    assert result.last[0, 1] > 300 * MIB


def test_a_replay_of_the_number_of_tasks_follows_the_load() -> None:
    needed = np.concatenate([np.full(20, 2.0), np.full(20, 8.0), np.full(20, 2.0)])
    settings = Horizontal(max=10, cpu=0.5, window_s=300.0, up_s=0.0, down_s=600.0)
    result = replay_tasks(needed, [None] * 60, 2, settings, begins_at=1e9)
    assert result.tasks[[10, 39, 59]].tolist() == [2, 8, 2]
    assert 0 < result.beyond < 0.2


def test_rules_survive_json() -> None:
    settings = Horizontal(max=3, schedule=(ScheduledTasks("@daily", 2),))
    assert msgspec.convert(msgspec.to_builtins(settings), Horizontal) == settings
    assert STEP_S == 300


LARGE = [(16_000, 64 * 1024 * MIB + 5, 100), (64_000, 16 * 1024 * MIB, 100), (99_000, 99 * 1024 * MIB, 9)]
TASK = Requirement((1000, 1024 * MIB, 50))


@pytest.mark.parametrize(
    ("wanted", "tasks", "found"),
    [
        ((15_000, 15 * 1024 * MIB), 1, (15_000, 15 * 1024 * MIB)),
        ((20_000, 15 * 1024 * MIB), 1, (20_000, 15 * 1024 * MIB)),  # only the machine with more CPU
        ((20_000, 20 * 1024 * MIB), 1, (16_000, 20 * 1024 * MIB)),  # RAM counts first
        ((20_000, 99 * 1024 * MIB), 1, (16_000, 64 * 1024 * MIB)),
        ((500, 99 * 1024 * MIB), 1, (500, 64 * 1024 * MIB)),
        ((1000, 64 * 1024 * MIB), 2, (1000, 32 * 1024 * MIB)),  # there must be places for all tasks
        ((1000, 64 * 1024 * MIB), 3, (1000, 16 * 1024 * MIB)),
        ((1000, 64 * 1024 * MIB), 1000, (1000, 8 * 1024 * MIB)),  # no fewer places than now
    ],
)
def test_limits_rise_as_far_as_machines_hold_all_tasks(wanted: tuple[int, int], tasks: int, found: Any) -> None:
    assert largest_limits(wanted, (1000, 1024 * MIB), TASK, tasks, np.array(LARGE)) == found


def test_limits_rise_as_far_as_the_number_of_tasks_per_machine_allows() -> None:
    task = Requirement(TASK.limit, max_per_machine=1)
    found = largest_limits((1000, 64 * 1024 * MIB), (1000, 1024 * MIB), task, 2, np.array(LARGE))
    assert found == (1000, 16 * 1024 * MIB)


def test_without_a_machine_that_holds_a_task_limits_only_fall() -> None:
    for machines in (np.array([(16_000, 512 * MIB, 100)]), np.zeros((0, 3), dtype=np.int64)):
        assert largest_limits((500, 2048 * MIB), (1000, 1024 * MIB), TASK, 3, machines) == (500, 1024 * MIB)
