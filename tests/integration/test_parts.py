"""Tests of pages that consist of shared parts: filters, empty lists, tables, and the timeline of a task."""

from __future__ import annotations

import pytest

from scheduling.core.vocabulary import task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.tasks import transitions
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in

JOB = "/jobs/cc/ubar/jfoo/"


@pytest.fixture
def world(db):
    return portal_world.make()


def test_filters_in_force_have_chips_that_remove_them(world) -> None:
    page = signed_in("viewer").get("/jobs/?state=running&cell=cc&q=j&page=2")
    assert [chip.text for chip in page.context["filters"].chips] == ["Search: j", "State: running", "Cell: cc"]
    assert 'href="?state=running&amp;cell=cc"' in page.text  # without the search, on the first page
    assert signed_in("viewer").get("/jobs/").context["filters"].chips == []


def test_an_empty_list_says_what_to_do(world) -> None:
    page = signed_in("stranger").get("/jobs/").text
    assert "Your tenants have no jobs yet." in page
    assert "borgctl submit examples/hello.jsonnet" in page
    filtered = signed_in("viewer").get("/cells/cc/?q=nothing").text
    assert "No machine matches the filters." in filtered
    assert 'href="/cells/cc/"' in filtered


def test_tables_have_a_name_and_headings(world) -> None:
    for path, name in (("/jobs/", "Jobs"), ("/cells/", "Sites and cells"), ("/cells/cc/", "Machines"), ("/", "Cells")):
        page = signed_in("viewer").get(path).text
        assert f'<caption class="implicit">{name}</caption>' in page
    assert 'data-label="Machines up">1</td>' in signed_in("viewer").get("/cells/").text


def test_the_timeline_of_a_task_shows_its_incarnations(world) -> None:
    second = rows.a_machine(world.cell, "m2")
    with journal.write(world.cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [task_events.Eviction(task_id(world.job.id, 0), 1, "preemption")])
    portal_world.place(world.job, 0, second)
    page = signed_in("viewer").get(JOB + "0/")
    timeline = page.context["timeline"]
    (track,) = timeline.tracks
    assert [(one.title, one.tone) for one in track.states] == [
        ("incarnation 1", "good"),
        ("pending", "wait"),
        ("incarnation 2", "good"),
    ]
    assert sum(mark.number for mark in track.marks) == 3
    assert [row.title for row in timeline.rows if not row.until] == [
        "task 0 was placed on m1 as incarnation 1",
        "task 0 was evicted from m1 by preemption",
        "task 0 was placed on m2 as incarnation 2",
    ]
    assert 'id="incarnations-1"' in page.text


def test_a_task_that_was_never_placed_has_no_timeline(world) -> None:
    page = signed_in("viewer").get(JOB + "1/")
    assert page.context["timeline"] is None
    assert "data-timeline" not in page.text
