"""The secrets that jobs use: do they exist, and may the jobs use them?

specs ─► names ─► read_known: one query ─► KnownSecret ─► refusal (submission), version_for (desired state)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.journal.sql import query
from scheduling.secrets import spec_rules
from scheduling.secrets.grant_rules import MAX_VARIABLE_BYTES, JobGrant, granted
from scheduling.spec.field_errors import rejection
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import LATEST, SecretUse

SecretName = tuple[str, str]  # tenant, name


class KnownVersion(NamedTuple):
    """What is known about a version. `text`: it can be the value of a variable."""

    text: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class KnownSecret:
    """What is known about a secret, without its values. `versions`: the stored versions by their number."""

    newest: int
    versions: dict[int, KnownVersion]
    grants: tuple[JobGrant, ...]

    def version_for(self, use: SecretUse, job: str, cell: str) -> int:
        """Return the number of the version that a use means, or 0 if the job may not use it or there is no such
        version.
        """
        version = self.newest if use.version == LATEST else int(use.version)
        return version if version in self.versions and granted(self.grants, job, cell) else 0


def read_known(names: Collection[SecretName], *, lock: bool = False) -> dict[SecretName, KnownSecret]:
    """Return what is known about secrets, by tenant and name. Secrets that do not exist are left out. Makes one query,
    or none if `names` is empty. `lock`: no secret changes until the end of the caller's transaction; this needs a
    second query.
    """
    if not names:
        return {}
    values = [sorted({tenant for tenant, _ in names}), sorted({name for _, name in names})]
    chosen = (
        " FROM scheduling_secret AS s JOIN quota_tenant AS o ON o.id = s.tenant_id"
        " WHERE o.name = ANY(%s) AND s.name = ANY(%s) AND s.deleted_at IS NULL ORDER BY s.id"
    )
    if lock:  # by a statement of its own: after a wait for a lock, a statement still reads other rows as they were
        query(f"SELECT s.id{chosen} FOR SHARE OF s", values)
    rows = query(
        "SELECT o.name, s.name, s.newest_version,"
        " (SELECT coalesce(json_agg(json_build_array(v.version, v.is_text, v.size_bytes)), '[]')::text"
        " FROM scheduling_secretversion AS v WHERE v.secret_id = s.id),"
        " (SELECT coalesce(json_agg(json_build_array(g.jobs, g.cell)), '[]')::text"
        f" FROM scheduling_secretgrant AS g WHERE g.secret_id = s.id){chosen}",
        values,
    )
    found: dict[SecretName, KnownSecret] = {}
    for tenant, name, newest, versions, grants in rows:
        stored = msgspec.json.decode(versions, type=list[tuple[int, bool, int]])
        by_number = {number: KnownVersion(text, size) for number, text, size in stored}
        of_jobs = msgspec.json.decode(grants, type=list[tuple[str, str]])
        found[tenant, name] = KnownSecret(newest, by_number, tuple(JobGrant(*grant) for grant in of_jobs))
    return found


def refusals(cell: str, specs: Sequence[JobSpecification], *, lock: bool = True) -> list[Rejected | None]:
    """Return for each spec its rejection if it uses a secret that does not exist or that its job may not use, else
    None. Each spec has its tenant. Makes at most two queries.

    `lock`: a change of these secrets waits for the end of the caller's transaction. So it finds the caller's new jobs.
    """
    wanted = {(spec.tenant, use.name) for spec in specs for _, use in spec_rules.uses_of(spec)}
    known = read_known(wanted, lock=lock)
    return [_refusal(cell, spec, known) for spec in specs]


def _refusal(cell: str, spec: JobSpecification, known: dict[SecretName, KnownSecret]) -> Rejected | None:
    problems = {}
    for path, use in spec_rules.uses_of(spec):
        problem = problem_of(use, known.get((spec.tenant, use.name)), tenant=spec.tenant, job=spec.name, cell=cell)
        if problem is not None:
            field, text = problem
            problems[f"{path}.{field}"] = text
    return rejection(problems) if problems else None


def problem_of(
    use: SecretUse, known: KnownSecret | None, *, tenant: str, job: str, cell: str
) -> tuple[str, str] | None:
    """Return why a job cannot use a secret now: the wrong field of `use`, and a text. Return None if it can."""
    if known is None:
        cure = f"create it with `borgctl secret set {use.name}`, or use one from `borgctl secret list`"
        return "name", f"tenant {tenant} has no secret {use.name!r}; {cure}"
    if not granted(known.grants, job, cell):
        cure = f"grant it with `borgctl secret grant {use.name} {job}`"
        return "name", f"secret {use.name} is not granted to job {job} in cell {cell}; {cure}"
    version = known.version_for(use, job, cell)
    if not version:
        numbers = ", ".join(str(number) for number in sorted(known.versions, reverse=True)[:10])
        cure = f"give {LATEST}, or one of {numbers}"
        return "version", f"secret {use.name} has no version {use.version}; {cure}"
    if use.env and known.versions[version].size_bytes > MAX_VARIABLE_BYTES:
        size = known.versions[version].size_bytes
        return "env", f"version {version} of secret {use.name} has {size} bytes; deliver it as a file" + (
            f", or set a value of at most {MAX_VARIABLE_BYTES} bytes"
        )
    if use.env and not known.versions[version].text:
        cure = "deliver it as a file, or set a value in UTF-8 without NUL characters"
        return "env", f"version {version} of secret {use.name} is not text; {cure}"
    return None
