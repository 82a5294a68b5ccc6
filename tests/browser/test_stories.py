"""Stories in a real browser, from the first page to the goal. Each test counts the clicks."""

from __future__ import annotations

from playwright.sync_api import expect

from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.models import Job
from scheduling.tasks import pending_verdicts, transitions
from tests.browser.accessibility import faults
from tests.browser.clicks import ClickCounter
from tests.browser.conftest import sign_in
from tests.integration import portal_world, rows
from tests.integration.simulated_cell import SimulatedCell


def test_an_update_is_followed_and_rolled_back(page, world) -> None:
    """The goal: the new version of job big is bad. Look how far its update is, and return to the version before."""
    job = rows.a_job(world.cell, world.tenant, "big", tasks=12)
    for index in range(12):
        portal_world.place(job, index, world.machine, port=21_000)
        portal_world.report(job, index)
    wanted = updates.spec_of(job).to_json()
    wanted["task"]["command"] = ["sleep", "1000"]
    read = submit_and_kill.spec_for(principal=rows.ME, cell=world.cell, file=wanted, tenant="ubar")
    updates.job_update(principal=rows.ME, job=job, job_spec=read)
    sign_in(page)
    clicks = ClickCounter(page)
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    page.get_by_role("link", name="big", exact=True).click()
    expect(page.get_by_role("progressbar", name="Progress of the update")).to_be_visible()
    grid = page.get_by_role("group", name="Tasks by state")
    expect(grid.get_by_role("link")).to_have_count(12)
    assert faults(page) == []
    page.get_by_role("button", name="Roll back to version 1…").first.click()
    plan = page.get_by_role("region", name="Planned changes")
    expect(plan.get_by_role("row", name="task.command")).to_contain_text("1000")
    assert faults(page) == []
    page.get_by_role("button", name="Roll back to version 1", exact=True).click()
    expect(page.get_by_text("Job big is being updated.")).to_be_visible()
    newest = page.get_by_role("listitem").filter(has=page.get_by_text("current version", exact=True))
    expect(newest).to_contain_text("version 3")
    assert clicks.total <= 4
    assert updates.spec_of(Job.objects.get(pk=job.pk)).to_json()["task"]["command"] == ["sleep", "infinity"]
    # The cells of the grid follow the arrow keys, and lead to the pages of the tasks.
    grid.get_by_role("link").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/cc/ubar/big/1/*")


def test_last_nights_eviction_and_its_cause_are_found(page, world) -> None:
    """The goal: task 0 of jfoo was down last night. Find out why."""
    portal_world.report(world.job, 0)
    with journal.write(world.cell.id, rows.ME) as entry:
        drained = entry.append(events.MachineState(machine_id=world.machine.id, state="draining", reason="new disk"))
        evicted = task_events.Eviction(task_id(world.job.id, 0), 1, "machine-shutdown", caused_by=drained)
        transitions.tasks_evict(entry, [evicted])
    portal_world.place(world.job, 1, world.machine)
    for number in range(40):  # other tasks have had many events since
        portal_world.report(world.job, 1, phase="up" if number % 2 else "starting", up=bool(number % 2))
    sign_in(page)
    clicks = ClickCounter(page)
    page.get_by_role("link", name="Jobs", exact=True).first.click()
    page.get_by_role("link", name="jfoo", exact=True).click()
    page.get_by_role("link", name="0", exact=True).click()
    eviction = page.get_by_role("listitem").filter(has_text="task 0 was evicted")
    expect(eviction).to_contain_text("new disk")
    assert faults(page) == []
    assert clicks.total <= 4
    eviction.get_by_role("link").first.click()
    page.wait_for_url("**/events/**")
    assert clicks.total == 4


def test_the_reason_why_a_job_is_pending_is_found_and_cured(page, world) -> None:
    """The goal: job greedy does not start. Find out why, and change it so that it can start."""
    greedy = rows.a_job(world.cell, world.tenant, "greedy", tasks=1, limit=(90_000, 2**30, 2**30, 0, 0, 1))
    pending_verdicts.store(world.cell.id, SimulatedCell(world.cell).decide())
    sign_in(page)
    clicks = ClickCounter(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("greedy")
    expect(page.get_by_role("option", name="greedy").first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Why tasks are pending")).to_be_visible()
    expect(page.locator("#job-status")).to_contain_text("90 cores")
    page.get_by_role("link", name="Update the job").click()
    text = page.get_by_label("Job spec of version 1")
    text.click()
    text.fill(text.input_value().replace("cpu: '90'", "cpu: '2'").replace("cpu: 90", "cpu: 2"))
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("row", name="task.limit.cpu")).to_contain_text("90")
    expect(page.get_by_text("per 30 days at the list price")).to_be_visible()
    page.get_by_role("button", name="Update the job").click()
    expect(page.get_by_text("Job greedy is being updated.")).to_be_visible()
    assert clicks.total <= 4  # the key Enter in the search is not one of them
    greedy.refresh_from_db()
    assert greedy.spec_version == 2
