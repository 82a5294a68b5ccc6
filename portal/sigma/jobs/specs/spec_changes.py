"""The differences between two specs of a job: a list of changed fields, and the changed lines of the job file. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import yaml

from portal.cli import plainyaml

# A list of changes with more fields ends after this many. The changed lines show all of them.
MOST_FIELDS = 60
# The lines of larger job files, in bytes of JSON, are not compared, because to write YAML takes long.
MOST_COMPARED = 64 * 1024
MOST_LINES = 1_000
# A longer value is cut in the list of fields.
LONGEST = 160

_FIXED = ("name", "tenant", "cell")
# The fields that come first in a job file on a page, because users change them most often.
_FIRST = ("name", "cell", "tenant", "kind", "tasks", "priority", "appclass", "task")
_FIRST_OF_TASK = ("command", "limit", "ports", "env")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of a job file that differs between two specs. `field`: its path, such as `task.limit.cpu`. `before`,
    `after`: its values as text; "" if a spec does not have the field.
    """

    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SpecDiff:
    """The differences between two specs. `fields`: the changed fields, at most `MOST_FIELDS`. `more`: the number of
    further changed fields. `lines`: the changed lines of the job file, each with its kind: `added`, `removed`, `same`,
    or `place` (line numbers).
    """

    fields: tuple[FieldChange, ...]
    more: int
    lines: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.fields)


def spec_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> SpecDiff:
    """Return the differences between two job files of one job. Its name, its tenant and its cell are left out, because
    they cannot change.
    """
    old, new = ({key: value for key, value in file.items() if key not in _FIXED} for file in (old, new))
    fields = list(_changed("", old, new))
    return SpecDiff(tuple(fields[:MOST_FIELDS]), max(0, len(fields) - MOST_FIELDS), tuple(_lines(old, new)))


def _lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the changed lines of a job file, at most `MOST_LINES`, or [] if a file is too large to be compared."""
    if any(len(json.dumps(file)) > MOST_COMPARED for file in (old, new)):
        return []
    kinds = {"+": "added", "-": "removed", "@": "place", " ": "same"}
    lines = difflib.unified_diff(job_file_text(old).splitlines(), job_file_text(new).splitlines(), lineterm="", n=3)
    found = ((kinds[line[0]], line) for line in lines if not line.startswith(("+++", "---")))
    return list(islice(found, MOST_LINES))


def job_file_text(spec: Mapping[str, Any]) -> str:
    """Return a job file as YAML, with the most used fields first."""
    task = spec.get("task")
    spec = {**spec, "task": _first(_FIRST_OF_TASK, task)} if isinstance(task, dict) else spec
    return plainyaml.dump(_first(_FIRST, spec))


def _first(keys: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `given` with the keys in `keys` first."""
    return {key: given[key] for key in keys if key in given} | dict(given)


def _changed(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FieldChange]:
    for key in dict.fromkeys((*_FIRST, *old, *new)):
        if key not in old and key not in new:
            continue
        before, after = old.get(key), new.get(key)
        field = f"{path}.{key}" if path else str(key)
        if before == after and (key in old) == (key in new):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changed(field, before, after)
        else:
            yield FieldChange(
                field, _format_value(before) if key in old else "", _format_value(after) if key in new else ""
            )


def _format_value(value: Any) -> str:
    """Return a value as YAML in one line, or the beginning of a long one as JSON."""
    if len(long := json.dumps(value, ensure_ascii=False)) > LONGEST:
        return f"{long[:LONGEST]} …"
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf")).strip()
    return text.removesuffix("...").strip()
