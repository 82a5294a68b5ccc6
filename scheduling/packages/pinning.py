"""Pinning: add the digest of the archive to each package reference in a job's spec, when the job is submitted or
updated.

spec: web@v2 ─► pin ─► spec: web@v2@sha256:…  ─► JobSpec.spec, its digest
                  └──► {digest: size, format} ─► JobSpec.packages ─► RunTask.packages
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quota.models import Tenant
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.spec import job_spec as spec
from scheduling.spec import package_pins, parser
from scheduling.spec.field_errors import rejection
from scheduling.spec.package_names import Reference


@dataclass(frozen=True, slots=True)
class Pins:
    """A spec with digests, and facts about its packages. `spec`: the spec with a digest in each package reference.
    `packages`: the size and format of each package, by digest, for `JobSpec.packages`.
    """

    spec: spec.JobSpecification
    packages: dict[str, dict[str, object]]


def pin(cell: Cell, asked: Sequence[tuple[int, spec.JobSpecification]]) -> list[Pins | Rejected]:
    """Add digests to the package references of several specs. Return for each (tenant id, spec) its `Pins`, or its
    rejection if a package does not exist or a reference is wrong. Makes at most one query.
    """
    mentioned: list[dict[str, Reference] | Rejected] = []
    for _, job_spec in asked:
        try:
            mentioned.append(package_pins.mentions(job_spec) if _names_any(job_spec) else {})
        except Rejected as problem:
            mentioned.append(problem)
    known = _resolve(
        cell,
        {
            (tenant, reference)
            for (tenant, _), found in zip(asked, mentioned, strict=True)
            if not isinstance(found, Rejected)
            for reference in found.values()
        },
    )
    return [
        found if isinstance(found, Rejected) else _pinned(job_spec, tenant, found, known)
        for (tenant, job_spec), found in zip(asked, mentioned, strict=True)
    ]


def pin_one(cell: Cell, tenant_id: int, job_spec: spec.JobSpecification) -> Pins:
    """Add digests to the package references of one spec. Raises `Rejected` if a package does not exist or a reference
    is wrong; the error names the place of each wrong reference in the job file.
    """
    (done,) = pin(cell, [(tenant_id, job_spec)])
    if isinstance(done, Rejected):
        raise done
    return done


def pinned_for(principal: Principal, cell: Cell, job_spec: spec.JobSpecification) -> spec.JobSpecification:
    """Return the spec with a digest in each package reference. Raises `Forbidden` if the caller may not write the job,
    `NotFound` if the tenant does not exist or the caller may not see it, and `Rejected` if a package does not exist or
    a reference is wrong.
    """
    if not _names_any(job_spec):
        return job_spec
    require_tenant(principal, Action.JOB_WRITE, job_spec.tenant, cell.name)
    owner = Tenant.objects.filter(name=job_spec.tenant).first()
    if owner is None:
        raise NotFound("tenant", job_spec.tenant)
    return pin_one(cell, owner.pk, job_spec).spec


_Known = dict[tuple[int, str, str], tuple[str, int, str]]  # (tenant, name, tag or digest) -> digest, size, format


def _names_any(job_spec: spec.JobSpecification) -> bool:
    return bool(job_spec.base.packages) or any(override.task.packages for override in job_spec.overrides)


def _resolve(cell: Cell, wanted: set[tuple[int, Reference]]) -> _Known:
    if not wanted:
        return {}
    known: _Known = {}
    rows = query(
        "SELECT p.tenant_id, p.name, t.tag, p.digest, p.size_bytes, p.format FROM scheduling_package AS p"
        " LEFT JOIN scheduling_packagetag AS t ON t.package_id = p.id AND t.tag = ANY(%s)"
        " WHERE p.cell_id = %s AND p.tenant_id = ANY(%s) AND p.name = ANY(%s)"
        " AND (t.id IS NOT NULL OR p.digest = ANY(%s))",
        [
            sorted({reference.wanted_tag for _, reference in wanted}),
            cell.pk,
            sorted({tenant for tenant, _ in wanted}),
            sorted({reference.name for _, reference in wanted}),
            sorted({reference.digest for _, reference in wanted}),
        ],
    )
    for tenant, name, tag, *facts in rows:
        known[tenant, name, facts[0]] = known[tenant, name, tag or ""] = tuple(facts)
    return known


def _pinned(
    job_spec: spec.JobSpecification, tenant: int, found: dict[str, Reference], known: _Known
) -> Pins | Rejected:
    digests: dict[str, str] = {}
    packages: dict[str, dict[str, object]] = {}
    problems: dict[str, str] = {}
    for text, reference in found.items():
        facts = known.get((tenant, reference.name, reference.digest or reference.wanted_tag))
        if facts is None:
            tagged = "" if reference.digest else f" --tag {reference.wanted_tag}"
            wanted = reference.digest or f"tag {reference.wanted_tag!r}"
            problems[package_pins.path_of(job_spec, text)] = (
                f"tenant {job_spec.tenant} has no package {reference.name!r} with {wanted} in this cell; upload it "
                f"with `borgctl package upload FILE --name {reference.name}{tagged}`, or use one from `borgctl package"
                " list`"
            )
            continue
        digests[text] = facts[0]
        packages[facts[0]] = {"size_bytes": facts[1], "format": facts[2]}
    if problems:
        return rejection(problems)
    return Pins(parser.with_sizes(package_pins.pinned(job_spec, digests), packages), packages)
