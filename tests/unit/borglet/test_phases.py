"""Tests of the table of task phases on a machine: each pair of phase and event, errors, and the README's diagram."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from borglet.messages import Phase
from borglet.state.phases import TRANSITIONS, IllegalStep, PhaseStep, after, diagram
from tests.unit.borglet.builders import key

PAIRS = list(itertools.product([None, *Phase], PhaseStep))


@pytest.mark.parametrize(("phase", "step"), PAIRS)
def test_each_pair_leads_where_the_table_says_or_is_refused(phase: Phase | None, step: PhaseStep) -> None:
    if (phase, step) in TRANSITIONS:
        assert after(key(), phase, step, ()) is TRANSITIONS[phase, step]
    else:
        with pytest.raises(IllegalStep):
            after(key(), phase, step, ())


def test_an_illegal_step_tells_its_story() -> None:
    with pytest.raises(IllegalStep) as caught:
        after(key(3), Phase.ENDED, PhaseStep.START, ["1.0 start -> starting", "2.0 finish -> ended"])
    text = str(caught.value)
    assert "/3/1: phase ended does not allow the step start; earlier steps: 1.0 start -> starting; 2.0 finish" in text


def test_no_way_leads_out_of_ended() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is Phase.ENDED]


def test_every_phase_can_be_reached() -> None:
    assert set(TRANSITIONS.values()) == set(Phase)


def test_the_readme_shows_the_table_as_it_is() -> None:
    readme = Path(__file__).parents[3] / "borglet" / "README.md"
    assert f"```mermaid\n{diagram()}\n```" in readme.read_text(), (
        "borglet/README.md is out of date; paste what `python -c 'from borglet.state.phases import diagram;"
        " print(diagram())'` prints"
    )
