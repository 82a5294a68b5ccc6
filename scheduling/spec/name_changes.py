"""Describe how a new version of a job affects clients that find the job by name (§2.6). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.spec.job_spec import JobSpecification, compared, joined
from scheduling.spec.schema import SERVICE_LABEL, Names

MOST_RANGES = 5  # ranges of changed weights that are listed one by one


def format_name_changes(old: JobSpecification | None, new: JobSpecification, *, ttl_s: int) -> tuple[str, ...]:
    """Return sentences that describe what changes for clients of the job's names. `old`: None for a new job. `ttl_s`:
    for how many seconds clients may cache an answer by default.
    """
    return (*_times(old, new, ttl_s), *_service(old, new), *_weights(old, new))


def _times(old: JobSpecification | None, new: JobSpecification, ttl_s: int) -> Iterator[str]:
    if old is None and new.names == Names():
        return
    lives = [spec.names.ttl_s or ttl_s for spec in (old, new) if spec is not None]
    if old is None or lives[0] != lives[-1]:
        yield f"Clients may cache the addresses of its tasks for {lives[-1]} s{_before(lives)}."
    leaves = [f"{spec.leave_s(spec.base, ttl_s=ttl_s):g}" for spec in (old, new) if spec is not None]
    if old is None or leaves[0] != leaves[-1]:
        yield f"DNS stops naming a task {leaves[-1]} s before its SIGTERM{_before(leaves)}."


def _before(values: list[int] | list[str]) -> str:
    return f", {values[0]} s until now" if len(values) > 1 else ""


def _service(old: JobSpecification | None, new: JobSpecification) -> Iterator[str]:
    before, after = (None if spec is None else spec.labels.get(SERVICE_LABEL) for spec in (old, new))
    if before == after:
        return
    if before is not None:
        yield f"Its tasks no longer appear under the service name {before}."
    if after is not None:
        yield f"Its tasks appear under the service name {after}."


def _weights(old: JobSpecification | None, new: JobSpecification) -> Iterator[str]:
    changed = _changed(old, new)
    for first, last, (before, after) in changed[:MOST_RANGES]:
        which = f"Task {first} has" if first == last else f"Tasks {first}-{last} have"
        until = "" if before is None else f", {before} until now"
        yield f"{which} weight {after} in the choice of a task for clients{until}."
    if len(changed) > MOST_RANGES:
        yield f"The weights of {len(changed) - MOST_RANGES} more ranges of tasks change too."


def _changed(old: JobSpecification | None, new: JobSpecification) -> list[tuple[int, int, tuple[int | None, int]]]:
    """Return `(first, last, (old weight, new weight))` for each range of tasks whose weight changes. For new tasks,
    the old weight is None; they are left out if their weight is 1.
    """
    weights = (
        (first, last, (None if before is None else before.weight, after.weight))
        for first, last, before, after in compared(old, new)
    )
    return joined(change for change in weights if change[2][0] != change[2][1] and change[2] != (None, 1))
