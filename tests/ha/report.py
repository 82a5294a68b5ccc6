"""`python -m tests.ha.report FILE` prints the output of a run (`python -m tests.ha > FILE`) as Markdown."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ha.faults import FAULTS

Row = Mapping[str, Any]


def summary(rows: Iterable[Row]) -> dict[str, Any]:
    """Return the numbers of a run. `rows`: the objects that it has printed so far.

    By kind and by target: `tried`, and `survived`: after these the cell was complete again. Also the median and the
    longest `complete_s`, and for faults of control hosts the median and the longest pause of writes through web.
    """
    faults = [row for row in rows if "fault" in row]
    by_kind, by_target = defaultdict(list), defaultdict(list)
    for row in faults:
        target, kind = FAULTS[row["fault"]]
        by_kind[kind].append(row)
        by_target[target].append(row)
    return {
        "tried": len(faults),
        "survived": sum(row["survived"] for row in faults),
        "kinds": {kind: _numbers(of_kind) for kind, of_kind in sorted(by_kind.items())},
        "targets": {target: _numbers(of_target) for target, of_target in sorted(by_target.items())},
    }


def _numbers(rows: Sequence[Row]) -> dict[str, Any]:
    found: dict[str, Any] = {"tried": len(rows), "survived": sum(row["survived"] for row in rows)}
    found |= _median_and_worst("complete_s", [row["complete_s"] for row in rows if row["survived"]])
    for what in ("postgres", "redis", "web"):
        found |= _median_and_worst(f"{what}_gap_s", [row["gap_s"][what] for row in rows if what in row["gap_s"]])
    return found


def _median_and_worst(name: str, values: Sequence[float]) -> dict[str, list[float]]:
    return {name: [round(statistics.median(values), 1), round(max(values), 1)]} if values else {}


def markdown(rows: Sequence[Row]) -> str:
    """Return a run as Markdown: what it ran, a table by kind, a table by target, and what the checker found."""
    last = rows[-1]
    numbers = last if "kinds" in last else {**last, **summary(rows)}
    start = next((row for row in rows if "seed" in row), {})
    lines = [
        f"{numbers['tried']} faults in {numbers.get('minutes', '?')} minutes, {numbers['survived']} survived; seed"
        f" {start.get('seed', '?')}, {start.get('machines', '?')} machines. Violations: {_number(last, 'violations')}.",
        "",
        *_table("kind", numbers["kinds"]),
        "",
        *_table("target", numbers["targets"]),
    ]
    for action, outcomes in last.get("requests", {}).items():
        counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
        lines += ["", f"* {action}: {counts}"] if lines[-1][:1] == "|" else [f"* {action}: {counts}"]
    lines += ["", *[f"* {violation}" for violation in last.get("violations", [])]]
    return "\n".join(lines).rstrip() + "\n"


def _number(row: Row, name: str) -> str:
    return str(len(row[name])) if name in row else "not checked"


def _table(what: str, numbers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    columns = ("complete_s", "postgres_gap_s", "redis_gap_s", "web_gap_s")
    titles = ("complete again (s)", "no write to PostgreSQL (s)", "Redis (s)", "web (s)")
    lines = [f"| {what} | tried | survived | {' | '.join(titles)} |", "|---|" + "---:|" * (2 + len(columns))]
    for name, one in numbers.items():
        cells = [f"{one[column][0]} / {one[column][1]}" if column in one else "" for column in columns]
        lines.append(f"| {name} | {one['tried']} | {one['survived']} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print(markdown([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]), end="")
