"""Reads a metric from the text format of Prometheus. Pure.

The text comes from tasks, so the time is bounded: each line is read once from its beginning, and long lines are left
out.
"""

from __future__ import annotations

import math
import re

MOST_LINE = 4_096
# The name of a sample. Its labels, if there are any, and its value follow.
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# One label and what separates it from the next one. It is matched at a position, never searched for.
_LABEL = re.compile(r'[\s,]*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')


def metric_value(text: str, wanted: str) -> float | None:
    """Return the sum of the samples of a metric in `text`, or None if there is none. `wanted`: its name, and labels
    that the samples must have, such as `jobs{queue="mail"}`. Values that are not finite are left out, and a sum that is
    not finite is None.
    """
    name = wanted.partition("{")[0]
    labels = set(_labels(wanted, len(name))[0])
    total: float | None = None
    for line in text.split("\n"):
        if len(line) > MOST_LINE or not line.startswith(name):
            continue
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
