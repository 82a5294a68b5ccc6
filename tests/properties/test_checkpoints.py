"""Property tests of checkpoints: a loaded state equals the state that was saved, whatever happened before."""

from __future__ import annotations

import io

from hypothesis import given, settings

from scheduling.history.checkpoints.file import Header, read, write
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.tables import state_of, tables_of
from tests.builders import World
from tests.examples import examples
from tests.properties.worlds import full, worlds


def recorded(world: World) -> RecordedState:
    state = RecordedState()
    state.apply_all((event, revision, at) for revision, (event, at) in enumerate(world.journal, start=1))
    return state


def saved_and_loaded(state: RecordedState) -> RecordedState:
    file = io.BytesIO()
    header = Header(cell="cc", revision=state.revision, taken_at=0.0, history="h")
    write(file, header, tables_of(state))
    file.seek(0)
    header, tables = read(file)
    return state_of(tables, extra_resources=(), revision=header.revision)


@settings(max_examples=examples(40))
@given(worlds(steps=20) | full())
def test_a_loaded_state_equals_the_saved_state(world: World) -> None:
    state = recorded(world)
    loaded = saved_and_loaded(state)
    assert loaded.diff(state) == []
    assert loaded.validate() == state.validate() == []
    assert loaded.revision == state.revision
    assert tables_of(loaded) == tables_of(state)
    for name in ("reserved", "limits", "prod_limit", "ports_free", "devices", "tasks"):
        for machine_id, slot in state.machines.slot.items():
            ours, theirs = getattr(loaded.machines, name), getattr(state.machines, name)
            assert (ours[loaded.machines.slot[machine_id]] == theirs[slot]).all(), name
    assert loaded.tasks.job_pending.sum() == state.tasks.job_pending.sum()


@settings(max_examples=examples(25))
@given(worlds(steps=20))
def test_a_loaded_state_follows_the_journal_as_the_original_does(world: World) -> None:
    half = len(world.journal) // 2
    original, first = RecordedState(), RecordedState()
    news = [(event, revision, at) for revision, (event, at) in enumerate(world.journal, start=1)]
    original.apply_all(news)
    first.apply_all(news[:half])
    loaded = saved_and_loaded(first)
    loaded.apply_all(news[half:])
    assert loaded.diff(original) == []
    assert loaded.validate() == []
    assert tables_of(loaded) == tables_of(original)
