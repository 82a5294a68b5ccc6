"""The rules about secrets in the specs of jobs. Pure.

spec ─► uses_of: the secrets that it uses, with their places in the job file
spec ─► plain_secrets: values in `env` that look like secrets, which new specs may not have
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.masking import ERASED, looks_secret
from scheduling.spec.schema import SecretUse
from scheduling.spec.task_spec import TaskSpec

_ERASED = (
    "the value was erased, because it looked like a secret; store it with `borgctl secret set NAME`, and use it as"
    " `secrets: [{name: NAME, env: VARIABLE}]`"
)


def uses_of(spec: JobSpecification) -> Iterator[tuple[str, SecretUse]]:
    """Yield each use of a secret in a spec, with its path in the job file, such as `task.secrets[0]`."""
    for number, use in enumerate(spec.base.secrets):
        yield f"task.secrets[{number}]", use
    for override in spec.overrides:
        if "secrets" in override.patch:
            for number, use in enumerate(override.task.secrets):
                yield f"overrides.{override.key}.secrets[{number}]", use


def names_of(spec: JobSpecification) -> list[str]:
    """Return the names of the secrets that a spec uses, sorted, for `JobSpec.secrets`."""
    return sorted({use.name for _, use in uses_of(spec)}) if uses_any(spec) else []


def uses_any(spec: JobSpecification) -> bool:
    """Return whether a task of the spec uses a secret."""
    return bool(spec.base.secrets) or any(override.task.secrets for override in spec.overrides)


def plain_secrets(spec: JobSpecification, before: JobSpecification | None = None) -> dict[str, str]:
    """Return the problems of values in `env` that look like secrets, by their path in the job file. The problems do not
    contain the values. `before`: for an update, the version before; variables that it has too are accepted.
    """
    known = frozenset() if before is None else _suspicious_names(before)
    problems: dict[str, str] = {}
    for path, task, names in _environments(spec):
        for name in sorted(names):
            if task.env.get(name) == ERASED:
                problems[f"{path}.{name}"] = _ERASED
                continue
            if name in task.plain_env or name in known or not looks_secret(name, task.env.get(name, "")):
                continue
            problems[f"{path}.{name}"] = (
                "the value looks like a secret, and job files are stored in plain text; store it with"
                f" `borgctl secret set NAME` and use it as `secrets: [{{name: NAME, env: {name}}}]`, or put {name} into"
                " task.plain_env if it is not secret"
            )
    return problems


def erased_values(spec: JobSpecification) -> dict[str, str]:
    """Return the problems of values in `env` that were erased, by their path in the job file. Also a spec that the job
    had before cannot run without them.
    """
    return {
        f"{path}.{name}": _ERASED
        for path, task, names in _environments(spec)
        for name in sorted(names)
        if task.env.get(name) == ERASED
    }


def _environments(spec: JobSpecification) -> Iterator[tuple[str, TaskSpec, frozenset[str]]]:
    """Yield each `env` of a job file: its path, the task that results from it, and the names in it."""
    yield "task.env", spec.base, frozenset(spec.base.env)
    for override in spec.overrides:
        given = override.patch.get("env")
        if isinstance(given, dict):
            yield f"overrides.{override.key}.env", override.task, frozenset(given) & override.task.env.keys()


def _suspicious_names(spec: JobSpecification) -> frozenset[str]:
    return frozenset(
        name for _, task, names in _environments(spec) for name in names if looks_secret(name, task.env[name])
    )
