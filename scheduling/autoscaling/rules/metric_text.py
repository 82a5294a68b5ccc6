"""Reads a metric from the text format of Prometheus. Pure.

The text comes from tasks, so the time is bounded: only lines with the name are read, each once from its beginning, and
only this many of them. Long lines are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

MOST_LINE = 4_096
# Characters of lines with the name of the metric that are read at most, and how many a line counts besides its own.
MOST_PARSED, LINE_COST = 64 * 2**10, 32
# The name of a sample. Its labels, if there are any, and its value follow.
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# One label and what separates it from the next one. It is matched at a position, never searched for.
_LABEL = re.compile(r'[\s,]*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')


def metric_value(text: str, wanted: str) -> float | None:
    """Return the sum of the samples of a metric in `text`, or None if there is none. `wanted`: its name, and labels
    that the samples must have, such as `jobs{queue="mail"}`. Values that are not finite are left out, and a sum that is
    not finite is None, and so is the sum of more samples than may be read.
    """
    name = wanted.partition("{")[0]
    labels = set(_labels(wanted, len(name))[0])
    total: float | None = None
    left = MOST_PARSED
    for line in _lines(text, name):
        left -= len(line) + LINE_COST
        if left < 0:
            return None
        found = _NAME.match(line)
        if found is None or found[0] != name:
            continue
        has, end = _labels(line, len(name))
        parts = line[end:].split(maxsplit=2)
        if not parts or not labels <= set(has):
            continue
        try:
            value = float(parts[0])
        except ValueError:
            continue
        if math.isfinite(value):
            total = value + (total or 0.0)
    return total if total is not None and math.isfinite(total) else None


def _lines(text: str, name: str) -> Iterator[str]:
    """Yield the lines that begin with `name`, without long ones."""
    begin = 0 if text.startswith(name) else text.find(f"\n{name}") + 1
    while begin or text.startswith(name, begin):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        if end - begin <= MOST_LINE:
            yield text[begin:end]
        begin = text.find(f"\n{name}", end) + 1
        if not begin:
            return


def _labels(text: str, begin: int) -> tuple[list[tuple[str, str]], int]:
    """Return the labels in braces at the position `begin`, and the position after them. Without braces, there are no
    labels.
    """
    found: list[tuple[str, str]] = []
    if text[begin : begin + 1] != "{":
        return found, begin
    at = begin + 1
    while (label := _LABEL.match(text, at)) is not None:
        found.append((label[1], label[2]))
        at = label.end()
    end = text.find("}", at)
    return found, len(text) if end < 0 else end + 1
