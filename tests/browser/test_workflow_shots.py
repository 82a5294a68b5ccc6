"""Tests that no page of workflows is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import pytest

from quota.vocabulary.permissions import Role
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import workflow_rows
from tests.integration import world as people
from tests.integration.workflow_rows import advance, after, end, node

PAGES = {
    "workflows": "/workflows/",
    "workflow": "/workflows/cc/ubar/nightly-build/",
    "workflow-cancel": "/workflows/cc/ubar/nightly-build/",
    "workflow-large": "/workflows/cc/ubar/large/",
    "workflow-failed": "/workflows/cc/ubar/failed/",
    "workflows-empty": "/workflows/?q=nothing",
}


@pytest.fixture
def furnished(world):
    who = people.principal("ann", tenant=world.tenant, role=Role.OPERATOR)
    build = {
        "checkout": node(),
        "lint": after("checkout"),
        "compile-with-a-long-name": after("checkout"),
        "unit-tests": after("compile-with-a-long-name", for_each=list(range(6))),
        "browser-tests": after("compile-with-a-long-name"),
        "package": after("lint", "unit-tests", "browser-tests"),
        "publish": after("package"),
        "clean": after("package", "publish", condition="ended"),
        "report-failure": after("browser-tests", condition="failed"),
    }
    row = workflow_rows.submit(who, world.cell, build, name="nightly-build", parameters={"BRANCH": "main"})
    large = {"start": node(), **{f"n{i}": after("start") for i in range(240)}, "end": after("start")}
    workflow_rows.submit(who, world.cell, large, name="large", parallel=40)
    failed = workflow_rows.submit(who, world.cell, {"a": node(), "b": after("a")}, name="failed")
    advance(world.cell)
    for name in ("checkout", "lint", "compile-with-a-long-name"):
        if name != "checkout":
            advance(world.cell)
        end(row, name)
    advance(world.cell)
    end(row, "browser-tests", "failed")
    end(row, "unit-tests", branch=0)
    end(failed, "a", "failed")
    advance(world.cell)


def test_every_page_of_workflows_fits_its_screen(furnished, page) -> None:
    sign_in(page, "operator")
    for name, path in PAGES.items():
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 200, path
        if name == "workflow-cancel":
            page.get_by_text("Cancel the workflow…").click()
        look_at(page, name)
