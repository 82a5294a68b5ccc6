"""Tests of the Content-Security-Policy in a real browser: no page violates it, and injected scripts do not run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.urls import reverse
from playwright.sync_api import Error, Page, expect

from portal.admin_site import site
from tests.browser.conftest import sign_in
from tests.browser.test_shots import PAGES, furnished  # noqa: F401  (a fixture)
from tests.contracts.routes import routes
from tests.integration import rows

JOB = "/jobs/cc/ubar/jfoo/"
PLANT = "<img src=x onerror='window.ran = 1'><script>window.ran = 1</script>"
DOCUMENTATION = ("/docs/", "/docs/tutorial/", "/docs/reference/job-file/", "/docs/decisions/")
# Addresses that end the session, or that other tests visit with a form.
ELSEWHERE = ("accounts/logout/", "accounts/inactive/", "admin/logout/")


def plain_routes() -> list[str]:
    """Return the path of every page whose address has no variable part."""
    found = {
        f"/{route.path}"
        for route in routes()
        if "{" not in route.path
        and "\\" not in route.path
        and route.path not in ELSEWHERE
        and not route.path.startswith(("api/", "bns/", "v3/", "metrics", ".well-known/", "healthz", "readyz"))
    }
    return sorted(found)


@pytest.fixture
def attacked(chromium, portal, world) -> Iterator[Page]:
    """Yield a page of a signed-in user in a context where violations of the policy do not fail the test."""
    context = chromium.new_context(base_url=portal)
    page = context.new_page()
    sign_in(page)
    yield page
    context.close()


@pytest.mark.timeout(600)
def test_no_page_violates_its_policy(page, furnished) -> None:  # noqa: F811
    sign_in(page, "sre")
    changes = [
        reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[row.pk])
        for model, admin in site._registry.items()
        if (row := model._default_manager.first()) is not None
        and f"{model._meta.app_label}_{model._meta.model_name}_change" in {u.name for u in admin.urls}
    ]
    seen = set(PAGES.values())  # `test_pages_look_right` visits these, with the same checks
    for path in dict.fromkeys([*plain_routes(), *changes, *DOCUMENTATION]):
        if path in seen:
            continue
        try:
            answer = page.goto(path)
        except Error:  # a file, or an address that accepts only POST
            asked = page.request.get(path)
            assert asked.status < 500, path
            assert "text/html" not in asked.headers.get("content-type", "") or not asked.body(), path
        else:
            assert answer is not None
            assert answer.status < 500, path


def test_what_is_planted_in_names_and_reasons_does_not_run(page, world) -> None:
    rows.a_machine(world.cell, "m2")
    type(world.machine).objects.update(reason=PLANT, state="draining")
    type(world.tenant).objects.update(title=PLANT)
    sign_in(page, "sre")
    for path in ("/", "/cells/cc/", JOB, "/admin/scheduling/machine/", "/admin/quota/tenant/"):
        page.goto(path)
        assert page.evaluate("window.ran") is None, path


def test_a_live_row_brings_no_script_into_the_page(attacked) -> None:
    page = attacked
    for html in (
        f"<tr id=row><td>{PLANT}</td></tr>",
        "<p id=row><a href='javascript:window.ran=1'>x</a></p>",
        "<p id=row><svg><animate onbegin='window.ran=1' attributeName=x dur=1s /></svg></p>",
        "<p id=row><iframe srcdoc='<script>parent.ran=1</script>'></iframe></p>",
        "<p id=row></template><img src=x onerror='window.ran=1'></p>",
        "<p id=row><math><mtext><style><img src=x onerror='window.ran=1'></style></mtext></math></p>",
        "<form id=row><input name=attributes><input name=localName>"
        "<button formaction='javascript:window.ran=1'>x</button></form>",
    ):
        page.goto(JOB)
        left = page.evaluate(
            """(html) => {
                const fresh = safe.element(html);
                document.querySelector("main").append(fresh);
                fresh.querySelector("a, button")?.click();
                return document.querySelector("main").innerHTML;
            }""",
            html,
        )
        page.wait_for_timeout(200)
        assert page.evaluate("window.ran") is None, html
        assert not any(word in left for word in ("onerror", "onbegin", "javascript:", "<script", "srcdoc")), html


def test_rows_of_tables_and_links_survive_the_cleaning(page, world) -> None:
    sign_in(page)
    page.goto(JOB)
    html = (
        '<tr id="r" class="x" data-live="1"><td class="num"><a href="/jobs/">0</a><time datetime="2026">t</time>'
        "</td></tr>"
    )
    assert page.evaluate("(html) => safe.element(html).outerHTML", html) == html


def test_text_becomes_elements_only_by_way_of_the_cleaning(attacked) -> None:
    page = attacked
    page.goto(JOB)
    page.evaluate("(html) => { document.querySelector('main').innerHTML = html; }", PLANT)
    page.wait_for_timeout(200)
    assert page.evaluate("window.ran") is None
    assert "onerror" not in page.evaluate("document.querySelector('main').innerHTML")


def test_unsafe_sources_do_not_run_in_sigma(attacked) -> None:
    ran = attacked.evaluate(
        """() => new Promise((resolve) => {
            setTimeout(() => { // as the page's own script: evaluate() itself stands above the policy
                const script = document.createElement("script");
                try { script.text = "window.ran = 1"; document.head.append(script); } catch { }
                try { new Function("window.ran = 1")(); } catch { }
                try { setTimeout("window.ran = 1"); } catch { }
            });
            setTimeout(() => resolve(window.ran ?? null), 300);
        })"""
    )
    assert ran is None
    expect(attacked.get_by_role("heading").first).to_be_visible()
