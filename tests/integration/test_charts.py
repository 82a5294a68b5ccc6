"""Charts of usage: lines inside their frame, broken where windows are missing, beside their limit."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from portal.sigma.charts import HEIGHT, WIDTH, chart

NOON = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
FIVE = dt.timedelta(minutes=5)


@dataclass
class Window:
    start_time: dt.datetime

    @property
    def end_time(self) -> dt.datetime:
        return self.start_time + FIVE


def drawn(*numbers: int, values: list[float], limit: float = 0.0):
    windows = [Window(NOON + number * FIVE) for number in numbers]
    return chart(windows, [("mean", values)], limit=limit, since=NOON, until=NOON + 12 * FIVE)  # type: ignore[arg-type]


def test_a_line_runs_from_left_to_right_inside_its_frame() -> None:
    (line,) = drawn(*range(12), values=[float(n) for n in range(12)]).lines
    (piece,) = line.pieces
    points = [tuple(map(float, point.split(","))) for point in piece.split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert points[-1][0] == WIDTH
    assert all(0 <= y <= HEIGHT for _, y in points)
    assert points[0][1] == HEIGHT


def test_a_line_breaks_where_windows_are_missing() -> None:
    (line,) = drawn(0, 1, 5, 6, values=[1.0] * 4).lines
    assert len(line.pieces) == 2


def test_the_limit_shows_when_it_is_near() -> None:
    assert drawn(0, values=[1.0], limit=2.0).limit_y is not None
    assert drawn(0, values=[3.0], limit=2.0).limit_y is not None
    assert drawn(0, values=[1.0], limit=100.0).limit_y is None  # the line would lie on the ground
    assert drawn(0, values=[1.0], limit=0.0).limit_y is None


def test_a_task_that_did_nothing_has_a_line_on_the_ground() -> None:
    made = drawn(0, 1, values=[0.0, 0.0], limit=1.0)
    assert made.lines[0].pieces[0].endswith(f",{HEIGHT:.1f}")
