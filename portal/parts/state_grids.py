"""Grids of states: one small cell per object, such as a task of a large job. The page sends one letter per object, and
`state_grid.js` makes the cells, each of which is a link. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class GridState:
    """A state that cells can have. `letter`: its lower-case letter in the text of a grid. `tone`: `good`, `wait`, `bad`
    or `plain`.
    """

    letter: str
    title: str
    tone: str


@dataclass(frozen=True, slots=True)
class GridKey:
    """An entry of the legend: a state, and how many cells have it."""

    letter: str
    title: str
    tone: str
    count: int


@dataclass(frozen=True, slots=True)
class StateGrid:
    """A grid for `parts/state_grid.html`.

    `states`: the state of each object in their order, as run-length encoded letters: `3r2p` means `rrrpp`. A letter in
    upper case marks an object that is still `old`, such as a task with the earlier version of the spec. A full stop is
    an object that does not exist. `before`, `after`: the address of an object is `before`, its number, and `after`.
    `size`: `few`, `some` or `many`, which sets the height of the grid, so that it does not move the page.
    """

    title: str
    noun: str
    states: str
    total: int
    keys: tuple[GridKey, ...]
    before: str
    after: str
    old: str
    old_count: int
    size: str

    @property
    def summary(self) -> str:
        """Return the counts as text, for screen readers and for browsers without JavaScript."""
        parts = [f"{key.count} {key.title}" for key in self.keys]
        return ", ".join(parts + ([f"{self.old_count} {self.old}"] if self.old_count else []))


def state_grid(
    title: str, letters: str, known: Sequence[GridState], *, noun: str, before: str, after: str, old: str
) -> StateGrid:
    """Return the grid of the objects with these `letters`, one per object. `noun`: what an object is called in the text
    of its link. `old`: what upper case means, as text. Letters that are not in `known` count as nothing.
    """
    counts: Mapping[str, int] = {
        one.letter: letters.count(one.letter) + letters.count(one.letter.upper()) for one in known
    }
    total = len(letters)
    return StateGrid(
        title,
        noun,
        run_lengths(letters),
        total,
        tuple(GridKey(one.letter, one.title, one.tone, counts[one.letter]) for one in known if counts[one.letter]),
        before,
        after,
        old,
        sum(letter.isupper() for letter in letters),
        "few" if total <= 200 else "some" if total <= 1000 else "many",
    )


def run_lengths(letters: str) -> str:
    """Return a text in which each run of equal letters is its length and the letter: `rrrp` becomes `3rp`."""
    runs = [(letter, len(list(run))) for letter, run in groupby(letters)]
    return "".join(f"{length if length > 1 else ''}{letter}" for letter, length in runs)
