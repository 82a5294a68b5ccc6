"""Tests of the Borglet's decisions about allocs, which are reserved parts of a machine.

Listed allocs are held, dropped ones are removed, and others are left alone.
"""

from __future__ import annotations

import msgspec

from borglet.messages import AllocReport, Desired, RunAlloc, StopTask, TaskKey, opened
from borglet.state.agent_state import AgentState
from borglet.state.events import Adopted, AllocsHeld, Polled, Saved
from borglet.state.instructions import HoldAllocs, Instruction, Remembered
from tests.unit.borglet.builders import desired

SHELF = TaskKey("cd" * 16, 0, 1)


def an_alloc(*, ended: bool = False) -> RunAlloc:
    return RunAlloc(SHELF, "aa/ada/shelf/0", {"disk": 5}, 200, True, True, ended)


def reported(state: AgentState, wanted: Desired) -> list[HoldAllocs]:
    """Handle a desired state and its save, and return the instructions about allocs."""
    out: list[Instruction] = state.handle(Polled(1, wanted.revision, wanted), now=1.0)
    out += state.handle(Saved(wanted.generation), now=1.0)
    return [instruction for instruction in out if isinstance(instruction, HoldAllocs)]


def started(*allocs: AllocReport) -> AgentState:
    state = AgentState()
    state.handle(Adopted(Remembered(), (), allocs), now=1.0)
    return state


def with_allocs(revision: int, *allocs: RunAlloc, stop: bool = False) -> Desired:
    plain = desired(revision, [], [StopTask(SHELF, "kill")] if stop else [])
    return msgspec.structs.replace(plain, allocs=list(allocs))


def test_an_alloc_is_held_and_reported() -> None:
    state = started()
    assert reported(state, with_allocs(1, an_alloc())) == [HoldAllocs((an_alloc(),), frozenset())]
    before = state.version
    state.handle(AllocsHeld((AllocReport(SHELF, "aa/ada/shelf/0"),)), now=1.0)
    assert state.version > before
    assert [alloc.key for alloc in opened(state.wire_report(session=1, sequence=1)).allocs] == [SHELF]


def test_more_bytes_in_it_are_not_news_worth_a_report_at_once() -> None:
    state = started(AllocReport(SHELF, "aa/ada/shelf/0"))
    before = state.version
    state.handle(AllocsHeld((AllocReport(SHELF, "aa/ada/shelf/0", 5),)), now=1.0)
    assert state.version == before
    assert opened(state.wire_report(session=1, sequence=1)).allocs[0].disk_bytes == 5


def test_one_in_stop_goes_and_one_in_neither_list_stays() -> None:
    state = started(AllocReport(SHELF, "aa/ada/shelf/0"))
    assert reported(state, with_allocs(1)) == []
    assert reported(state, with_allocs(2, stop=True)) == [HoldAllocs((), frozenset({SHELF}))]


def test_one_that_has_left_and_is_kept_stays() -> None:
    state = started(AllocReport(SHELF, "aa/ada/shelf/0"))
    assert reported(state, with_allocs(1, an_alloc(ended=True), stop=True)) == [
        HoldAllocs((an_alloc(ended=True),), frozenset())
    ]


def test_a_borglet_that_starts_again_holds_what_it_remembers() -> None:
    state = AgentState()
    remembered = Remembered(with_allocs(1, an_alloc()))
    assert HoldAllocs((an_alloc(),), frozenset()) in state.handle(Adopted(remembered, ()), now=1.0)
