"""Tests of Sigma, the user interface, in a browser: forms, links and keys, and pages that update themselves."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from scheduling.jobs import submit_and_kill, updates
from tests.browser.conftest import sign_in
from tests.integration import portal_world, rows

JOB = "/jobs/cc/ubar/jfoo/"
GOOD = "name: web\ntasks: 2\npriority: 200\ntask: {command: [sleep, '9'], limit: {cpu: 100m}}"


def live(page: Page) -> None:
    """Wait until the page receives live updates, and set a mark that a reload of the page would remove."""
    expect(page.locator("[data-live-status].on")).to_be_visible()
    page.evaluate("window.marked = true")


def unloaded(page: Page) -> bool:
    return not page.evaluate("window.marked === true")


def test_a_cell_page_follows_its_machines_without_a_reload(page, world) -> None:
    sign_in(page)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Cells").click()
    page.get_by_role("link", name="cc").click()
    live(page)
    row = page.locator(f"#machine-{world.machine.id}")
    expect(row.locator("td.num")).to_have_text("1")
    portal_world.place(world.job, 1, world.machine)
    expect(row.locator("td.num")).to_have_text("2")
    expect(page.locator("#cell-counts")).to_contain_text("Tasks placed2")
    rows.a_machine(world.cell, "newcomer")
    expect(page.get_by_role("row", name="newcomer")).to_be_visible()
    assert not unloaded(page)


def test_a_past_moment_of_a_cell_leads_to_the_causes_of_an_event(page, world) -> None:
    sign_in(page)
    page.goto("/cells/cc/")
    page.get_by_role("link", name="Show a past moment").click()
    tasks = page.get_by_role("table", name="Tasks", exact=True)
    expect(tasks.get_by_role("row", name="ubar/jfoo/0")).to_contain_text("running")
    page.get_by_role("link", name="Previous event").click()
    expect(tasks.get_by_role("row", name="ubar/jfoo/0")).to_contain_text("pending")
    page.get_by_role("link", name="Next event").click()
    expect(tasks.get_by_role("row", name="ubar/jfoo/0")).to_contain_text("running")
    page.get_by_role("link", name="task 0 was placed on m1").click()
    expect(page.get_by_role("table", name="Causes")).to_contain_text("job jfoo was submitted")
    page.get_by_role("link", name="Show the cell at the time of this event").click()
    expect(tasks.get_by_role("row", name="ubar/jfoo/0")).to_contain_text("running")


def test_a_job_page_follows_its_tasks_without_a_reload(page, world) -> None:
    sign_in(page)
    page.goto(JOB)
    live(page)
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="0", exact=True))
    expect(row).to_contain_text("assigned")
    portal_world.report(world.job, 0, phase="starting", up=False)
    expect(row).to_contain_text("starting")
    portal_world.report(world.job, 0)
    expect(row).to_contain_text("running")
    expect(page.locator("#job-status")).to_contain_text("Running tasks1")
    expect(page.locator("#job-events")).to_contain_text("task 0 is up on m1")
    assert not unloaded(page)


def test_a_page_whose_connection_was_lost_catches_up(page, world) -> None:
    sockets, cut, refused = [], [], []

    def through(socket) -> None:
        if cut:
            refused.append(socket)
            socket.close(code=1011)
            return
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket("**/live/**", through)
    sign_in(page)
    page.goto(JOB)
    live(page)
    cut.append(True)
    sockets[-1].close(code=1011)
    expect(page.locator("[data-live-status].off")).to_be_visible()
    portal_world.report(world.job, 0)
    # The page reconnects long after the change: two attempts take more than a second.
    missed = len(refused) + 2
    for _poll in range(100):
        if len(refused) >= missed:
            break
        page.wait_for_timeout(100)
    expect(page.locator("#job-status")).to_contain_text("Running tasks0")
    cut.clear()
    expect(page.locator("#job-status")).to_contain_text("Running tasks1")
    assert not unloaded(page)


def test_the_focus_stays_where_it_is_while_rows_change(page, world) -> None:
    sign_in(page)
    page.goto(JOB)
    live(page)
    link = page.get_by_role("link", name="0", exact=True)
    link.focus()
    portal_world.report(world.job, 0)
    expect(page.get_by_role("row").filter(has=link)).to_contain_text("running")
    expect(link).to_be_focused()


def test_a_spec_with_a_mistake_is_reported_by_its_field_then_planned_then_submitted(page, world) -> None:
    sign_in(page)
    page.goto("/submit/")
    text = page.get_by_label("Job file (YAML or JSON)")
    text.fill(GOOD.replace("100m", "-3"))
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("alert")).to_contain_text("task.limit.cpu")
    expect(text).to_have_value(GOOD.replace("100m", "-3"))
    expect(page.get_by_role("button", name="Submit the job")).to_have_count(0)
    text.fill(GOOD)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("region", name="Planned changes")).to_contain_text("2 tasks will be added")
    page.get_by_role("button", name="Submit the job").click()
    expect(page.get_by_role("heading", name="web")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Job web was submitted.")).to_be_visible()


def test_a_job_is_killed_after_a_second_look_by_keyboard_alone(page, world) -> None:
    sign_in(page)
    page.goto(JOB)
    page.locator("summary", has_text="Kill the job").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").fill("not needed any more")
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 tasks are being killed.")).to_be_visible()
    expect(page.locator("#job-status")).to_contain_text("killed")


def test_actions_follow_an_update_and_forms_stay_open(page, world) -> None:
    sign_in(page)
    page.goto(JOB)
    live(page)
    expect(page.get_by_text("Undo the last change")).to_have_count(0)
    page.locator("summary", has_text="Kill the job").click()
    page.get_by_label("Reason").fill("half a sentence")
    wanted = updates.spec_of(world.job).to_json() | {"tasks": 4}
    read = submit_and_kill.spec_for(principal=rows.ME, cell=world.cell, file=wanted, tenant="ubar")
    updates.job_update(principal=rows.ME, job=world.job, job_spec=read)
    expect(page.get_by_text("Undo the last change")).to_be_visible()
    expect(page.get_by_label("Reason")).to_have_value("half a sentence")
    expect(page.get_by_label("Reason")).to_be_focused()
    expect(page.locator("[data-live-status]")).to_have_text("Live")
    assert not unloaded(page)


def test_the_log_of_a_task_that_has_none_is_asked_for_once(page, world) -> None:
    asked = []
    page.route(
        "**/logs/?*",
        lambda route: (
            asked.append(1),
            route.fulfill(status=409, json={"code": "log-simulated", "detail": "Simulated tasks write no log."}),
        ),
    )
    sign_in(page)
    page.goto(JOB + "0/")
    expect(page.get_by_role("log")).to_have_text("Simulated tasks write no log.")
    page.wait_for_timeout(3500)
    assert len(asked) == 1


def test_a_secret_is_shown_once(page, world) -> None:
    sign_in(page)
    page.goto("/tokens/")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Issue the token").click()
    secret = page.locator("#secret").inner_text()
    assert secret.startswith("borg_")
    page.goto("/tokens/")
    expect(page.get_by_role("row", name="laptop")).to_be_visible()
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke token laptop").click()
    expect(page.get_by_role("row", name="laptop")).to_contain_text("revoked")


def test_pages_read_without_scripts(chromium, portal, world) -> None:
    context = chromium.new_context(base_url=portal, java_script_enabled=False)
    try:
        page = context.new_page()
        sign_in(page)
        page.goto(JOB)
        expect(page.get_by_role("heading", name="jfoo")).to_be_visible()
        expect(page.get_by_role("link", name="2", exact=True)).to_be_visible()
    finally:
        context.close()


def test_light_and_dark_are_chosen_and_kept(page, world) -> None:
    sign_in(page)
    dark = page.locator("html.dark")
    expect(dark).to_have_count(0)
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(dark).to_have_count(1)
    page.reload()
    expect(dark).to_have_count(1)


def test_sres_get_from_the_portal_to_the_console_and_others_do_not(page, context, world) -> None:
    sign_in(page, "sre")
    page.locator("summary", has_text="sre").click()
    page.get_by_role("link", name="SRE console").click()
    expect(page.get_by_role("link", name="Machines").first).to_be_visible()
    page.goto("/admin/scheduling/machine/")
    page.get_by_role("row", name="m1").get_by_role("checkbox").check()
    page.locator("select[name=action]").select_option("drain")
    page.get_by_role("button", name="Run").click()
    page.get_by_label("Reason").fill("new disk")
    page.get_by_role("button", name="Drain machines").click()
    expect(page.get_by_role("row", name="m1")).to_contain_text("new disk")
    world.machine.refresh_from_db()
    assert (world.machine.state, world.machine.reason) == ("draining", "new disk")


def test_a_log_is_followed_and_its_stream_chosen(page, world) -> None:
    asked = []

    def answer(route) -> None:
        asked.append(route.request.url.split("?")[1])
        first = "offset=-65536" in route.request.url
        text = "hello\n" if first else "again\n" if len(asked) == 2 else ""
        if "stream=stderr" in route.request.url:
            text = "oops\n"
        end = 6 if first else 12
        route.fulfill(json={"offset": 0, "end": end, "text": text})

    page.route("**/tasks/0/logs/**", answer)
    sign_in(page)
    page.goto(JOB + "0/")
    log = page.get_by_role("log")
    expect(log).to_have_text("hello\nagain\n")
    assert asked[:2] == ["stream=stdout&offset=-65536", "stream=stdout&offset=6"]
    page.get_by_label("Output stream").select_option("stderr")
    expect(log).to_contain_text("oops")
    page.unroute("**/tasks/0/logs/**")
    page.route("**/tasks/0/logs/**", lambda route: route.fulfill(status=503, json={"detail": "the machine is away"}))
    page.reload()
    expect(log).to_have_text("The portal cannot read the log now: the machine is away")


def test_what_a_task_prints_can_not_become_part_of_the_page(page, world) -> None:
    evil = "<img src=x onerror='window.hacked = true'>"
    page.route("**/tasks/0/logs/**", lambda route: route.fulfill(json={"offset": 0, "end": 1, "text": evil}))
    sign_in(page)
    page.goto(JOB + "0/")
    expect(page.get_by_role("log")).to_contain_text(evil)
    assert page.evaluate("window.hacked") is None
