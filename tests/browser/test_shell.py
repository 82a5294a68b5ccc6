"""Tests of the portal's terminal: a real browser types into a shell in a real task on a real Borglet."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from playwright.sync_api import Page, expect

from quota.models import Capability
from scheduling.machines import last_contact
from scheduling.machines.joining import join_token_issue
from scheduling.models import Machine, ShellSession
from tests.browser.conftest import sign_in
from tests.browser.looks import assert_fits, save
from tests.integration import rows
from tests.integration.link_world import running_link, task, until
from tests.integration.real_borglet import Borglet

TASK = "/jobs/cc/ubar/jfoo/0/"


@pytest.fixture
def running(world, tmp_path: Path) -> Iterator[None]:
    """Run task 0 of the job on a real Borglet, and give the operator the capability to open shells."""
    tmp_path.chmod(0o711)
    Capability.objects.create(
        user=get_user_model().objects.get(username="operator"), kind="shell", cell="cc", reason="on call"
    )
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(running_link())
        borglet = stack.enter_context(contextlib.closing(Borglet(tmp_path / "home", link)))
        borglet.start(join_token_issue(principal=rows.ME, cell=world.cell))
        machine = until(lambda: Machine.objects.filter(session__gt=0).first(), seconds=20, what="connected")
        until(lambda: task(world.job).up, seconds=20, what="up")
        until(lambda: last_contact.holder_of(world.cell.id, machine.id), what="holder known")
        yield


def screen(page: Page):
    return page.locator(".xterm-rows")


def test_a_shell_answers_and_is_in_the_history(page: Page, world, running) -> None:
    sign_in(page)
    page.goto(TASK)
    page.get_by_role("link", name="Shell").click()
    expect(page.get_by_role("status")).to_have_text("Open")
    page.keyboard.type("echo zw$((10+2))lf $BORG_TASK; ls --color=always -la /usr/\n")
    expect(screen(page)).to_contain_text("zw12lf cc/ubar/jfoo/0")
    # The terminal shows colours outside the palette by `style` attributes, which the policy forbids in HTML texts.
    page.keyboard.type("printf '\\033[38;2;12;200;34m%s\\033[0m\\n' gr''een\n")
    expect(screen(page).locator("span", has_text="green").last).to_have_css("color", "rgb(12, 200, 34)")
    save(page, "shell-1280", full_page=False)
    page.keyboard.type("stty size\n")
    wide = screen(page).inner_text()
    page.set_viewport_size({"width": 600, "height": 700})
    page.keyboard.type("clear; stty size; seq 1 20000 | tail -1\n")
    expect(screen(page)).to_contain_text("20000")
    assert wide != screen(page).inner_text()
    assert_fits(page, "the shell")
    save(page, "shell-600", full_page=False)
    page.keyboard.type("exit 4\n")
    expect(page.get_by_role("status")).to_have_text("The shell has ended: status 4")
    expect(page.get_by_role("button", name="Open a new shell")).to_be_visible()
    until(lambda: ShellSession.objects.get().state == "closed", seconds=10, what="closed")
    page.goto(TASK)
    expect(page.get_by_text("a shell was opened in task 0 on m1")).to_be_visible()
    expect(page.get_by_text("status 4")).to_be_visible()


def test_a_user_who_may_not_sees_no_button_and_gets_no_page(page: Page, world) -> None:
    sign_in(page, "owner")
    page.goto(TASK)
    expect(page.get_by_role("heading", name="Task 0 of jfoo")).to_be_visible()
    expect(page.get_by_role("link", name="Shell", exact=True)).to_have_count(0)
    page.goto(TASK + "shell/")
    expect(page.get_by_text("Shells need the capability shell")).to_be_visible()
