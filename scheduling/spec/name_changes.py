"""The effect of a job's change on clients that find it by name (§2.6), as sentences for plans. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import SERVICE_LABEL, Names

MOST_RANGES = 5  # of weights that are listed one by one


def format_name_changes(old: JobSpecification | None, new: JobSpecification, *, ttl_s: int) -> tuple[str, ...]:
    """Describe changes of a job's names, which take effect at once. `old` None: the job is new. `ttl_s`: the
    installation's.
    """
    return (*_times(old, new, ttl_s), *_service(old, new), *_weights(old, new))


def _times(old: JobSpecification | None, new: JobSpecification, ttl_s: int) -> Iterator[str]:
    if old is None and new.names == Names():
        return
    lives = [spec.names.ttl_s or ttl_s for spec in (old, new) if spec is not None]
    if old is None or lives[0] != lives[-1]:
        yield f"Clients may remember where its tasks are for {lives[-1]} s{_before(lives)}."
    leaves = [f"{spec.leave_s(spec.base, ttl_s=ttl_s):g}" for spec in (old, new) if spec is not None]
    if old is None or leaves[0] != leaves[-1]:
        yield f"Tasks that are to stop leave the answers {leaves[-1]} s before SIGTERM{_before(leaves)}."


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
    changed = list(_changed(old, new))
    for first, last, before, after in changed[:MOST_RANGES]:
        which = f"Task {first} has" if first == last else f"Tasks {first}-{last} have"
        until = "" if before is None else f", {before} until now"
        yield f"{which} weight {after} among the tasks that clients are sent to{until}."
    if len(changed) > MOST_RANGES:
        yield f"The weights of {len(changed) - MOST_RANGES} more ranges of tasks change too."


def _changed(old: JobSpecification | None, new: JobSpecification) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield `(first, last, before, after)` in order, neighbours joined. New tasks have no weight before, and are listed
    when theirs is not 1."""
    run: tuple[int, int, int | None, int] | None = None
    for first, last, before, after in _pieces(old, new):
        if before == after or (before is None and after == 1):
            continue
        if run is not None and (run[1] + 1, *run[2:]) == (first, before, after):
            run = (run[0], last, before, after)
            continue
        if run is not None:
            yield run
        run = (first, last, before, after)
    if run is not None:
        yield run


def _pieces(old: JobSpecification | None, new: JobSpecification) -> Iterator[tuple[int, int, int | None, int]]:
    """Yield all tasks of `new` as ranges that have one weight before and one after."""
    before = [] if old is None else [(last, task.weight) for _, last, task in old.segments()]
    position = 0
    for first, last, task in new.segments():
        while first <= last:
            while position < len(before) and before[position][0] < first:
                position += 1
            if position == len(before):
                yield first, last, None, task.weight
                break
            end = min(last, before[position][0])
            yield first, end, before[position][1], task.weight
            first = end + 1
