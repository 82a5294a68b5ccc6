"""Tests of the documentation site: links resolve, pages are served at /docs/, and the reference lists everything."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from django.conf import settings
from django.test import Client

from portal.documentation.markdown import first_sentence, table
from portal.documentation.reference import PAGES
from portal.documentation.site import DOCUMENTS, moved
from scheduling.api.job_file_schema import schema
from scheduling.spec.field_descriptions import FIELD_TEXTS

ROOT = Path(__file__).resolve().parents[2]


class Links(HTMLParser):
    """A parser that collects the links and anchors of a page, and counts its inline styles and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.inline = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets |= {value for name in ("href", "src") if (value := found.get(name))}
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "style" or "style" in found or (tag == "script" and "src" not in found and "type" not in found):
            self.inline += 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site. `make install` has built it; build it here if a file has changed since then. The
    build fails on a link to a missing page.
    """
    built = subprocess.run(["make", "--question", ".venv/.docs"], cwd=ROOT, capture_output=True, check=False)
    if built.returncode == 0:
        return Path(settings.WHITENOISE_ROOT, "docs")
    folder = tmp_path_factory.mktemp("site") / "docs"
    done = subprocess.run(
        [Path(sys.executable).with_name("mkdocs"), "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {page: Links(page.read_text()) for page in site.rglob("*.html")}


def test_every_link_of_the_site_resolves(site: Path, pages: dict[Path, Links]) -> None:
    @cache  # most links are in the navigation of every page
    def resolves(address: str) -> bool:
        whole, anchor = urldefrag(address)
        path = site / urlsplit(whole).path.removeprefix("/docs/")
        file = path / "index.html" if path.is_dir() else path
        return file.is_file() and (not anchor or file not in pages or anchor in pages[file].anchors)

    assert len(pages) > 300
    broken = []
    for page, links in pages.items():
        address = "/docs/" + page.relative_to(site).as_posix().removesuffix("index.html")
        for target in links.targets:
            if not urlsplit(target).scheme and not resolves(urljoin(address, target)):
                broken.append((page.relative_to(site).as_posix(), target))
    assert broken == []


def test_pages_hold_nothing_that_their_policy_forbids(pages: dict[Path, Links]) -> None:
    assert {page.name: links.inline for page, links in pages.items() if links.inline} == {}


def test_the_web_process_serves_the_site_with_a_policy() -> None:
    answer = Client().get("/docs/")
    assert answer.status_code == 200
    assert b"Borg Portal" in b"".join(answer.streaming_content)
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "worker-src 'self'" in policy
    assert urljoin("/docs", Client().get("/docs")["Location"]) == "/docs/"
    assert Path(settings.WHITENOISE_ROOT, "docs", "tutorial", "index.html").is_file()


def test_pictures_that_documents_show_exist_and_are_all_shown() -> None:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        name for each in documents for name in re.findall(r"!\[[^\]]+\]\([^)]*pictures/([^)]+)\)", each.read_text())
    }
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}


def test_the_top_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert text.count("![") == 2


def test_each_field_of_a_job_file_has_a_text_and_each_text_a_field() -> None:
    found: set[str] = set()

    def walk(node: dict[str, object], prefix: str) -> None:
        for name, field in node.get("properties", {}).items():  # type: ignore[attr-defined]
            found.add(prefix + name)
            for part in (field, *field.get("anyOf", ())):
                walk(part, f"{prefix}{name}.")

    walk(schema(), "")
    assert found == FIELD_TEXTS.keys()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_pages_of_the_reference_leave_no_meaning_out(name: str) -> None:
    text = PAGES[name]()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(rows) > 20
    if name not in ("events", "errors"):  # the tables of these pages also list fields, and codes with a computed text
        assert [row for row in rows if row.endswith("|  |")] == []


def test_decisions_are_numbered_without_gaps_and_name_area_and_date() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        title, _, line = page.read_text().splitlines()[:3]
        assert title.startswith("# "), page
        area = re.fullmatch(r"\*\*Area:\*\* `([^`]+)` · \*\*Date:\*\* \d{4}-\d{2}(-\d{2})?", line)
        assert area, page
        assert (ROOT / area[1]).is_dir(), page


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](../quota/README.md#money)", "[a](quota.md#money)"),
        ("[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("[a](core/pass_.py)", "a"),
        ("[a](#here)", "[a](#here)"),
        ("[a](../docs/decisions/)", "[a](../decisions/index.md)"),
    ],
)
def test_links_of_a_readme_hold_on_its_page(link: str, expected: str) -> None:
    assert moved(link, "scheduling/README.md", DOCUMENTS["scheduling/README.md"]) == expected


def test_text_of_a_cell_stays_in_its_cell() -> None:
    assert table(["a|b"], [["x\ny"]]) == "| a\\|b |\n| --- |\n| x y |\n"
    assert first_sentence("One. Two.") == "One."
