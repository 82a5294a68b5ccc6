"""Pins of packages: a digest is added to each package reference in a spec. Pure.

A stored spec contains `web@v2@sha256:…`, so equal specs run equal archives. If a tag is moved, this has no effect on a
job before the job's next update. The update then uses the digest that the tag has at that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from scheduling.spec import package_names
from scheduling.spec.field_errors import rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.package_names import Reference
from scheduling.spec.task_spec import TaskSpec


def mentions(spec: JobSpecification) -> dict[str, Reference]:
    """Return the package references in a spec, by their text in the job file. Raises `Rejected` if a text is not a
    valid reference or a task lists a package twice; the error names the place in the spec.
    """
    found: dict[str, Reference] = {}
    problems: dict[str, str] = {}
    for path, task in _tasks(spec):
        seen: dict[str, str] = {}
        for number, text in enumerate(task.packages):
            here = f"{path}.packages[{number}]"
            try:
                reference = found.get(text) or package_names.parse(text)
            except ValueError as error:
                problems.setdefault(here, str(error))
                continue
            if reference.name in seen:
                found_at = f"the package {reference.name!r} is already listed at {seen[reference.name]}"
                problems.setdefault(here, f"{text[:100]!r}: {found_at}; list each package once")
            found[text], seen[reference.name] = reference, here
    if problems:
        raise rejection(problems)
    return found


def path_of(spec: JobSpecification, text: str) -> str:
    """Return the path of the first place in the spec that lists the package `text`."""
    for path, task in _tasks(spec):
        if text in task.packages:
            return f"{path}.packages[{task.packages.index(text)}]"
    raise LookupError(text)


def pinned(spec: JobSpecification, digests: Mapping[str, str]) -> JobSpecification:
    """Return a copy of the spec in which each package reference has a digest. `digests`: for each reference in the
    spec, the digest to add.
    """
    written = {text: str(package_names.parse(text).pinned(digest)) for text, digest in digests.items()}
    if all(text == pin for text, pin in written.items()):
        return spec

    def with_pins(task: TaskSpec) -> TaskSpec:
        return msgspec.structs.replace(task, packages=tuple(written[text] for text in task.packages))

    overrides = []
    for override in spec.overrides:
        task = with_pins(override.task)
        patch = override.patch | ({"packages": list(task.packages)} if "packages" in override.patch else {})
        overrides.append(msgspec.structs.replace(override, task=task, patch=patch))
    return msgspec.structs.replace(spec, base=with_pins(spec.base), overrides=tuple(overrides))


def _tasks(spec: JobSpecification) -> Iterator[tuple[str, TaskSpec]]:
    yield "task", spec.base
    for override in spec.overrides:
        if "packages" in override.patch:
            yield f"overrides.{override.key}", override.task
