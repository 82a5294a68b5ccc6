"""Tests of usage charts: lines stay inside their frame, break at missing windows, and are scaled to the limit."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from portal.plots import HEIGHT, WIDTH, Plot
from portal.sigma.jobs.usage_charts import Sample, usage_charts
from quota.vocabulary.resources import CPU, RAM

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
FIVE = dt.timedelta(minutes=5)
MIB = 2**20


@dataclass
class Window:
    start_time: dt.datetime
    average_usage_cpus: float
    average_usage_memory: int = MIB
    maximum_usage_memory: int = 2 * MIB
    page_cache_memory: int = 0
    cpu_usage_distribution: list[float] = field(default_factory=lambda: [0.0] * 11)

    @property
    def end_time(self) -> dt.datetime:
        return self.start_time + FIVE


def drawn(*numbers: int, cores: float = 0.1, limit: int = 500, sample: Sample | None = None) -> list[Plot]:
    windows: Any = [Window(NOON + number * FIVE, cores) for number in numbers]
    vector = [0] * 6
    vector[CPU], vector[RAM] = limit, 64 * MIB
    return usage_charts(windows, sample, limit=vector, until=NOON + 12 * FIVE)


def points(plot: Plot, line: int = 0) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in piece.split())]
        for piece in plot.lines[line].pieces
    ]


def test_lines_stay_inside_their_frame() -> None:
    for plot in drawn(*range(12), cores=0.7):
        for number in range(len(plot.lines)):
            (piece,) = points(plot, number)
            assert piece == sorted(piece, key=lambda point: point[0])
            assert piece[-1][0] == WIDTH
            assert all(0 <= y <= HEIGHT for _, y in piece)


def test_one_window_is_a_line_that_can_be_seen() -> None:
    cpu, ram = drawn(11)
    ((left, right),) = points(cpu)
    assert right[0] - left[0] > 100
    assert not cpu.empty
    assert not ram.empty


def test_a_line_breaks_where_windows_are_missing() -> None:
    assert len(points(drawn(0, 1, 5, 6)[0])) == 2


def test_the_limit_is_the_upper_edge_until_use_is_above_it() -> None:
    cpu, ram = drawn(10, 11, cores=0.1)
    assert (cpu.top, cpu.limit, ram.limit) == ("0.5 cores", "0.5 cores", "64 MiB")
    assert points(cpu)[0][0][1] == HEIGHT * 0.8
    assert float(cpu.limit_y) <= 1.0
    above, _ = drawn(10, 11, cores=1.0)
    assert 0 < float(above.limit_y) < HEIGHT
    assert points(above)[0][0][1] < float(above.limit_y)


def test_the_first_sample_shows_before_the_first_window() -> None:
    sample = Sample(NOON + 12 * FIVE - dt.timedelta(seconds=2), 250, 32 * MIB)
    cpu, ram = drawn(sample=sample)
    ((left, right),) = points(cpu)
    assert right[0] - left[0] > 10
    assert [key.last for key in cpu.keys][0] == "0.25 cores"
    assert [key.last for key in ram.keys][0] == "32 MiB"
    assert points(ram, 1) == []


def test_a_sample_continues_the_line_after_the_last_window() -> None:
    sample = Sample(NOON + 12 * FIVE, 250, 32 * MIB)
    (piece,) = points(drawn(9, 10, sample=sample)[0])
    assert (piece[-1][0], piece[-1][1]) == (WIDTH, HEIGHT * 0.5)


def test_nothing_is_drawn_where_nothing_is_known() -> None:
    assert drawn() == []
