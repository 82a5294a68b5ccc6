"""Tests of grids of states: their text stays small, and their legend counts every object."""

from __future__ import annotations

import random

from portal.parts.state_grids import GridState, StateGrid, run_lengths, state_grid

KNOWN = [GridState("r", "running", "good"), GridState("p", "pending", "wait"), GridState("f", "failed", "bad")]


def grid_of(letters: str) -> StateGrid:
    return state_grid("Tasks", letters, KNOWN, noun="Task", before="/jobs/", after="/?uid=1", old="earlier version")


def test_runs_of_equal_letters_are_short() -> None:
    assert run_lengths("rrrp") == "3rp"
    assert run_lengths("") == ""
    assert len(run_lengths("r" * 10_000)) == 6


def test_the_legend_counts_letters_of_both_cases() -> None:
    grid = grid_of("rrRp.f")
    assert [(key.title, key.count) for key in grid.keys] == [("running", 3), ("pending", 1), ("failed", 1)]
    assert grid.old_count == 1
    assert grid.summary == "3 running, 1 pending, 1 failed, 1 earlier version"


def test_ten_thousand_objects_take_few_bytes() -> None:
    letters = "".join(random.Random(1).choices("rpfR", k=10_000))
    grid = grid_of(letters)
    assert grid.size == "many"
    assert len(grid.states) < 20_000
