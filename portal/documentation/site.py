"""Hooks that MkDocs calls (`mkdocs.yml` names them). They add generated pages, and move scripts out of the pages.

The Content-Security-Policy of the portal forbids scripts inside a page, but the theme has such scripts. So the hooks
write these scripts to separate files.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Pages of the site that are documents outside docs/: path in the repository, and path in the site.
DOCUMENTS = {
    "deploy/README.md": "guides/sre.md",
    "portal/cli/README.md": "guides/cli.md",
    "examples/README.md": "guides/examples.md",
    "scheduling/README.md": "architecture/scheduling.md",
    "scheduling/core/README.md": "architecture/core.md",
    "scheduling/link/README.md": "architecture/link.md",
    "scheduling/history/README.md": "architecture/history.md",
    "scheduling/simulator/README.md": "architecture/simulator.md",
    "scheduling/recording/README.md": "architecture/recording.md",
    "borglet/README.md": "architecture/borglet.md",
    "quota/README.md": "architecture/quota.md",
    "naming/README.md": "architecture/naming.md",
    "portal/README.md": "architecture/portal.md",
    "portal/up/README.md": "architecture/up.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_ALIGNMENT = re.compile(r'(<t[hd]) style="text-align: (left|right|center);"')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add files to the site: the reference pages, the documents of the packages, and the list of decisions."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.base")
    import django

    django.setup()
    from portal.documentation.reference import PAGES

    for name, make in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    for source, target in DOCUMENTS.items():
        files.append(File.generated(config, target, content=moved((ROOT / source).read_text(), source, target)))
    files.append(File.generated(config, "decisions/index.md", content=decisions()))
    return files


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Return the page with its inline scripts moved to separate files. In tables, inline styles for the alignment of
    cells are replaced by `align` attributes.
    """
    return _ALIGNMENT.sub(r'\1 align="\2"', _INLINE_SCRIPT.sub(lambda m: _script(m[1], config), output))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Return an empty page for 404.html, because the portal has its own page for unknown URLs."""
    return "" if template_name == "404.html" else output_content


def _script(source: str, config: MkDocsConfig) -> str:
    """Write a script to a file of the documentation site. Return the HTML element that loads the file."""
    name = f"assets/inline/{hashlib.sha256(source.encode()).hexdigest()[:16]}.js"
    path = Path(config.site_dir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return f'<script src="/docs/{name}"></script>'


def moved(text: str, source: str, target: str) -> str:
    """Return the document `text` with changed links, so that it can move from the path `source` to the path `target`.
    Links to code become plain text.
    """

    def link(match: re.Match[str]) -> str:
        words, address = match[1], match[2]
        path, _, anchor = address.partition("#")
        if not path or "://" in address:
            return match[0]
        found = os.path.normpath(PurePosixPath(source).parent / path)
        page = DOCUMENTS.get(found) or DOCUMENTS.get(f"{found}/README.md")
        if page is None and found.startswith("docs/"):
            page = found.removeprefix("docs/") + ("" if found.endswith(".md") else "/index.md")
        if page is None:
            return words
        return f"[{words}]({os.path.relpath(page, PurePosixPath(target).parent)}{'#' + anchor if anchor else ''})"

    return _LINK.sub(link, text)


def decisions() -> str:
    """Return the documentation page that lists all decisions, sorted by number."""
    lines = ["# Decisions", "Each page describes one decision: its date, the rejected alternatives, and its cost."]
    area = ""
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        text = path.read_text()
        title = text.partition("\n")[0].removeprefix("# ")
        found = re.search(r"^\*\*Area:\*\* `([^`]+)`", text, re.MULTILINE)
        if found and found[1] != area:
            area = found[1]
            lines.append(f"\n## {area}\n")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"
