"""Make the pictures of the documentation from a running system: `make screenshots`.

An installation with simulated machines runs the examples. Chromium visits its pages and writes `docs/pictures/`.
"""

from __future__ import annotations

import json
import shutil
import sys

from playwright.sync_api import Page, expect, sync_playwright

from tests.acceptance.conftest import installation_in_a_folder
from tests.acceptance.installation import ROOT, Installation, wait_for

PICTURES = ROOT / "docs" / "pictures"
SIZE = {"width": 1280, "height": 800}
JOBS = ("hello.jsonnet", "batch.yaml", "canary.jsonnet", "pending.yaml")
# Picture, account, path of the page.
PAGES = (
    ("home", "demo", "/"),
    ("job", "demo", "/jobs/dev/demo/hello/"),
    ("task", "demo", "/jobs/dev/demo/hello/0/"),
    ("why", "demo", "/jobs/dev/demo/giant/"),
    ("quota", "demo", "/quota/"),
    ("shop", "demo", "/shop/?cell=dev&band=production&cpu=2&ram=4Gi&days=7"),
    ("machines", "sre", "/admin/scheduling/machine/"),
)
LIVE_MS = 15_000.0


def main() -> None:
    with installation_in_a_folder() as installation:
        installation.settings["MACHINES"] = "simulated:24"
        installation.start()
        _run_examples(installation)
        secrets = json.loads((installation.home / "secrets.json").read_text())
        chromium = shutil.which("chromium-headless-shell")
        if chromium is None:
            sys.exit("make screenshots needs Chromium; install the Debian package chromium-headless-shell.")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for account in dict.fromkeys(each for _, each, _ in PAGES):
                context = browser.new_context(base_url=installation.url, viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
                page = context.new_page()
                _sign_in(page, secrets[account]["username"], secrets[account]["password"])
                for name, owner, path in PAGES:
                    if owner == account:
                        page.goto(path)
                        page.wait_for_load_state("load")
                        if page.locator("[data-live-text]").count():
                            expect(page.locator("[data-live-text]")).to_have_text("Live", timeout=LIVE_MS)
                        page.screenshot(path=PICTURES / f"{name}.png")
                        print(f"docs/pictures/{name}.png")
                context.close()
            browser.close()


def _run_examples(installation: Installation) -> None:
    for name in JOBS:
        installation.borgctl("submit", str(ROOT / "examples" / name))
    wait_for(lambda: installation.up("hello"), 90.0, story=lambda: installation.borgctl("why", "hello"))


def _sign_in(page: Page, username: str, password: str) -> None:
    page.goto("/accounts/login/")
    page.get_by_label("Username").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/")


if __name__ == "__main__":
    main()
