"""Fixtures for browser tests: Playwright controls a real Chromium, which visits a real web process on the test
database."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.integration import portal_server, portal_world

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
WAIT_MS = 15_000


def pytest_configure(config: pytest.Config) -> None:
    if "BORG_DATABASE_URL" not in os.environ:
        raise pytest.UsageError(
            "Browser tests need PostgreSQL and Redis: run them with "
            "`pytest -p tests.engines --ds=portal.settings.test tests/browser`, or run `make test`."
        )
    # Playwright's event loop runs in the thread of the tests, and Django rejects queries in such a thread.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    expect.set_options(timeout=WAIT_MS)  # the same bound as for other waits


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    # The headless build of the same source takes 40 % of the CPU time: it has no user interface of its own.
    path = shutil.which("chromium-headless-shell")
    if path is None:
        raise RuntimeError("Install the Debian package chromium-headless-shell, or run `make test`.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def portal(django_db_setup, tmp_path_factory) -> Iterator[str]:
    same = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}  # especially the fast password hasher
    with portal_server.running(tmp_path_factory.mktemp("portal") / "log", **same) as url:
        yield url


@pytest.fixture
def world(transactional_db):
    return portal_world.make()


def faults_of(context: BrowserContext) -> list[str]:
    """Return a list to which script errors and policy violations of the context's pages are added as they happen."""
    faults: list[str] = []
    context.on("weberror", lambda error: faults.append(str(error.error)))
    context.on(
        "console",
        lambda message: (
            faults.append(f"{message.page.url if message.page else '?'}: {message.text}")
            if any(word in message.text for word in ("Content Security Policy", "Trusted", "Permissions-Policy"))
            else None
        ),
    )
    context.add_init_script(
        "addEventListener('securitypolicyviolation', (event) =>"
        " console.error(`Content Security Policy: ${event.effectiveDirective} stopped ${event.blockedURI} in"
        " ${event.sourceFile}:${event.lineNumber} ${event.sample}`));"
    )
    return faults


@pytest.fixture
def context(chromium, portal, world) -> Iterator[BrowserContext]:
    """Yield a new browser profile. The test fails if a page has a script error or violates its
    Content-Security-Policy."""
    context = chromium.new_context(base_url=portal, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)
    faults = faults_of(context)
    yield context
    context.close()
    assert faults == []


@pytest.fixture
def page(context) -> Page:
    return context.new_page()


def sign_in(page: Page, name: str = "operator") -> None:
    page.goto("/accounts/login/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(portal_world.PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")
