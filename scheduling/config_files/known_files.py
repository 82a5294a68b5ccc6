"""The config files that jobs use: do they exist, and which version does a use mean?

specs ─► names ─► read_known: one query ─► KnownFile ─► refusal (submission), version_for (desired state)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from quota.vocabulary.errors import Rejected
from scheduling.config_files import spec_uses
from scheduling.journal.sql import query
from scheduling.spec.field_errors import rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import LATEST, ConfigUse

FileName = tuple[str, str]  # tenant, name


@dataclass(frozen=True, slots=True)
class KnownFile:
    """What is known about a config file. `versions`: the numbers of the stored versions."""

    file_id: int
    newest: int
    versions: frozenset[int]

    def version_for(self, use: ConfigUse) -> int:
        """Return the number of the version that a use means, or 0 if there is no such version."""
        version = self.newest if use.version == LATEST else int(use.version)
        return version if version in self.versions else 0


def read_known(names: Collection[FileName], *, lock: bool = False) -> dict[FileName, KnownFile]:
    """Return what is known about config files, by tenant and name. Files that do not exist are left out. Makes one
    query, or none if `names` is empty. `lock`: no file changes until the end of the caller's transaction; this needs a
    second query.
    """
    if not names:
        return {}
    values = [sorted({tenant for tenant, _ in names}), sorted({name for _, name in names})]
    chosen = (
        " FROM scheduling_configfile AS f JOIN quota_tenant AS o ON o.id = f.tenant_id"
        " WHERE o.name = ANY(%s) AND f.name = ANY(%s) AND f.deleted_at IS NULL ORDER BY f.id"
    )
    if lock:  # by a statement of its own: after a wait for a lock, a statement still reads other rows as they were
        query(f"SELECT f.id{chosen} FOR SHARE OF f", values)
    rows = query(
        "SELECT o.name, f.name, f.id, f.newest_version,"
        f" ARRAY(SELECT v.version FROM scheduling_configversion AS v WHERE v.file_id = f.id){chosen}",
        values,
    )
    return {(tenant, name): KnownFile(key, newest, frozenset(have)) for tenant, name, key, newest, have in rows}


def refusals(specs: Sequence[JobSpecification], *, lock: bool = True) -> list[Rejected | None]:
    """Return for each spec its rejection if it uses a config file or a version that does not exist, else None. Each
    spec has its tenant. Makes at most two queries.

    `lock`: a change of these files waits for the end of the caller's transaction. So it finds the caller's new jobs.
    """
    known = read_known({(spec.tenant, use.name) for spec in specs for _, use in spec_uses.uses_of(spec)}, lock=lock)
    return [_refusal(spec, known) for spec in specs]


def _refusal(spec: JobSpecification, known: dict[FileName, KnownFile]) -> Rejected | None:
    problems = {}
    for path, use in spec_uses.uses_of(spec):
        problem = problem_of(use, known.get((spec.tenant, use.name)), tenant=spec.tenant)
        if problem is not None:
            field, text = problem
            problems[f"{path}.{field}"] = text
    return rejection(problems) if problems else None


def problem_of(use: ConfigUse, known: KnownFile | None, *, tenant: str) -> tuple[str, str] | None:
    """Return why a task cannot get a config file now: the wrong field of `use`, and a text. Return None if it can."""
    if known is None:
        cure = f"create it with `borgctl config put {use.name} FILE`, or use one from `borgctl config list`"
        return "name", f"tenant {tenant} has no config file {use.name!r}; {cure}"
    if not known.version_for(use):
        numbers = ", ".join(str(number) for number in sorted(known.versions, reverse=True)[:10])
        cure = f"give {LATEST}, or one of {numbers}"
        return "version", f"config file {use.name} has no version {use.version}; {cure}"
    return None
