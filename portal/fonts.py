"""Creates small copies of the fonts in the library unfold. The copies contain only the icons and characters that pages
use.

Unfold contains 4,000 icons (290 KB) and four weights of the font Inter (115 KB each). Each copy has about 20 KB. The
copies are in `portal/static/` under the same paths as in unfold, so Django serves them instead of unfold's files.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import unfold

UNFOLD = Path(unfold.__file__).parent
OWN = Path(__file__).parent / "static"
ICONS = Path("unfold/fonts/material-symbols/Material-Symbols-Outlined.woff2")
TEXT = tuple(Path(f"unfold/fonts/inter/Inter-{weight}.woff2") for weight in ("Regular", "Medium", "SemiBold", "Bold"))
# Latin letters with all their accents, punctuation, arrows and comparisons. Browsers take others from the system.
CHARACTERS = (
    *range(0x20, 0x7F),
    *range(0xA0, 0x180),
    *range(0x2010, 0x2028),
    0x2030,
    0x2032,
    0x2033,
    0x20AC,
    0x2122,
    *range(0x2190, 0x2194),
    0x2212,
    0x2248,
    0x2264,
    0x2265,
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"
_WORD = re.compile(r"(?<![\w/-])[a-z][a-z0-9_]*(?![\w-])")
_NAMED = re.compile(r"""material-symbols-outlined[^>]*>\s*([a-z0-9_]+)\s*<|icon=["']([a-z0-9_]+)["']""")
_QUOTED = re.compile(r'"([a-z0-9_]+)"')
_IN_STYLES = re.compile(r'content:"([a-z0-9_\\]+)"')


def icons_named(project: Path) -> set[str]:
    """Return the names of the icons that the project uses. The set also contains every word in unfold's templates that
    could be such a name; a word without an icon has no effect.
    """
    words: set[str] = set()
    for path in _unfold_sources():
        words.update(_WORD.findall(path.read_text()))
    styles = (UNFOLD / "static/unfold/css/styles.css").read_text()
    words.update(name.replace("\\", "") for name in _IN_STYLES.findall(styles))
    for path in _own_sources(project):
        words.update(name for pair in _NAMED.findall(path.read_text()) for name in pair if name)
    for path in ("portal/console/navigation.py", "portal/settings/base.py"):  # type: ignore[assignment]
        words.update(_QUOTED.findall((project / path).read_text()))
    return words


def ligatures(font: Any) -> dict[str, str]:
    """Return the glyph of each icon in the font: the name of the glyph, by the name of the icon."""
    letters: dict[str, str] = {}
    for code, glyph in font.getBestCmap().items():
        letters.setdefault(glyph, chr(code))
    found = {}
    for lookup in font["GSUB"].table.LookupList.Lookup:
        for table in (getattr(table, "ExtSubTable", table) for table in lookup.SubTable):
            for first, rows in getattr(table, "ligatures", {}).items():
                for row in rows:
                    found["".join(letters[one] for one in (first, *row.Component)).lower()] = row.LigGlyph
    return found


def cut_icons(project: Path) -> bytes:
    """Return the icon font in the format WOFF2, with only the icons that `icons_named` returns."""
    from fontTools.ttLib import TTFont

    font = TTFont(UNFOLD / "static" / ICONS)
    known = ligatures(font)
    glyphs = sorted(known[name] for name in icons_named(project) if name in known)
    return _cut(font, unicodes=map(ord, _LETTERS), glyphs=glyphs, layout_closure=False)


def cut_text(path: Path) -> bytes:
    """Return the text font at `path` in the format WOFF2, with only the characters in `CHARACTERS`. It includes digits
    of equal width.
    """
    from fontTools.ttLib import TTFont

    features = ["kern", "liga", "calt", "tnum", "ccmp", "locl", "mark", "mkmk"]
    return _cut(TTFont(UNFOLD / "static" / path), unicodes=CHARACTERS, layout_features=features)


def _cut(font: Any, *, unicodes: Iterable[int], glyphs: Iterable[str] = (), **options: Any) -> bytes:
    from fontTools.subset import Options, Subsetter

    logging.getLogger("fontTools").setLevel(logging.WARNING)
    given = Options(hinting=False, name_IDs=[0, 1, 2, 13, 14], **options)
    given.drop_tables += ["FFTM"]
    subsetter = Subsetter(given)
    subsetter.populate(unicodes=unicodes, glyphs=glyphs)
    subsetter.subset(font)
    font.flavor = "woff2"
    font["head"].modified = font["head"].created  # equal input gives equal bytes
    font.recalcTimestamp = False
    written = BytesIO()
    font.save(written)
    return written.getvalue()


def _unfold_sources() -> Iterator[Path]:
    for folder in (UNFOLD / "templates", UNFOLD / "contrib/filters", UNFOLD / "contrib/forms"):
        yield from folder.rglob("*.html")
    yield from UNFOLD.glob("*.py")
    yield UNFOLD / "static/unfold/js/app.js"


def _own_sources(project: Path) -> Iterator[Path]:
    for app in ("portal", "quota", "scheduling"):
        yield from (project / app / "templates").rglob("*.html")
        yield from (project / app / "admin").rglob("*.py")
