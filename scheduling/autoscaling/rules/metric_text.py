"""Reads a metric from the text format of Prometheus. Pure."""

from __future__ import annotations

import math
import re

# A sample: the name, labels in braces if there are any, and the value. A time stamp after it is left out.
_SAMPLE = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')


def metric_value(text: str, wanted: str) -> float | None:
    """Return the sum of the samples of a metric in `text`, or None if there is none. `wanted`: its name, and labels
    that the samples must have, such as `jobs{queue="mail"}`. Values that are not finite are left out.
    """
    name, brace, rest = wanted.partition("{")
    labels = set(_LABEL.findall(rest)) if brace else set()
    total: float | None = None
    for line in text.splitlines():
        if not line.lstrip().startswith(name):
            continue
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] != name or not labels <= set(_LABEL.findall(sample[2] or "")):
            continue
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if math.isfinite(value):
            total = value + (total or 0.0)
    return total
