"""Pins of packages: each package that a spec names gets a digest. Pure.

A stored spec contains `web@v2@sha256:…`, so equal specs run equal bytes. A tag that moves has no effect before the next
submission or update, which writes the digest that the tag then has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from scheduling.spec import package_names
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.package_names import Reference
from scheduling.spec.problems import rejection
from scheduling.spec.task_spec import TaskSpec


def mentions(spec: JobSpecification) -> dict[str, Reference]:
    """Return every package that the spec names. The keys are the texts in the job file. Raises `Rejected`, with the
    place in the spec, if a text is not a valid reference or a task lists a package twice.
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
    """Return the first path at which the spec names the package `text`."""
    for path, task in _tasks(spec):
        if text in task.packages:
            return f"{path}.packages[{task.packages.index(text)}]"
    raise LookupError(text)


def pinned(spec: JobSpecification, digests: Mapping[str, str]) -> JobSpecification:
    """Return a copy of the spec in which each package has its digest. `digests`: by the text that names the package
    in the spec.
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
