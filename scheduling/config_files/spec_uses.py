"""The uses of config files in the specs of jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import ConfigUse


def uses_of(spec: JobSpecification) -> Iterator[tuple[str, ConfigUse]]:
    """Yield each use of a config file in a spec, with its path in the job file, such as `task.configs[0]`."""
    for number, use in enumerate(spec.base.configs):
        yield f"task.configs[{number}]", use
    for override in spec.overrides:
        if "configs" in override.patch:
            for number, use in enumerate(override.task.configs):
                yield f"overrides.{override.key}.configs[{number}]", use


def uses_any(spec: JobSpecification) -> bool:
    """Return whether a task of the spec uses a config file."""
    return bool(spec.base.configs) or any(override.task.configs for override in spec.overrides)


def names_of(spec: JobSpecification) -> list[str]:
    """Return the names of the config files that a spec uses, sorted, for `JobSpec.configs`."""
    return sorted({use.name for _, use in uses_of(spec)}) if uses_any(spec) else []


def versions_of(specs: list[JobSpecification]) -> dict[str, list[str]]:
    """Return the config files that jobs use, with the versions that they name, for `Workflow.configs`."""
    found: dict[str, list[str]] = {}
    for name, version in sorted({(use.name, str(use.version)) for spec in specs for _, use in uses_of(spec)}):
        found.setdefault(name, []).append(version)
    return found


def restarted_by(spec: JobSpecification, name: str) -> list[tuple[int, int]]:
    """Return the ranges of task indexes of a job that a new version of the config file `name` restarts."""
    return [
        (first, last)
        for first, last, task in spec.segments()
        if any(use.name == name and use.restarts for use in task.configs)
    ]
