"""Lists of the packages that a caller may see, and of the jobs that use each package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch, Q, QuerySet

from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, Scope, may
from scheduling.models import Cell, Package, PackageTag
from scheduling.packages.jobs_using_packages import in_use
from scheduling.spec import package_names


def packages_visible(principal: Principal, *, tenant: str = "") -> QuerySet[Package]:
    """Return the packages that the caller may see in all cells, with their tags, sorted by id."""
    rows = Package.objects.select_related("cell", "tenant").prefetch_related(
        Prefetch("tags", PackageTag.objects.order_by("tag"))
    )
    if Scope.READ not in principal.scopes:
        return rows.none()
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    if not principal.sre:
        rows = rows.filter(tenant__in=tenants_visible(principal))
    return (rows.filter(tenant__name=tenant) if tenant else rows).order_by("id")


def packages_of(principal: Principal, cell: Cell, *, tenant: str = "", name: str = "") -> QuerySet[Package]:
    """Return the packages that the caller may see in one cell, with their tags, sorted by id."""
    rows = packages_visible(principal, tenant=tenant).filter(cell=cell)
    return rows.filter(name=name) if name else rows


def package_named(principal: Principal, cell: Cell, tenant: str, name: str, reference: str) -> Package:
    """Return the package with this name. `reference`: a tag or a digest. Raises `NotFound` if the package does not
    exist, or the caller may not see it.
    """
    if may(principal, Action.PACKAGE_VIEW, tenant=tenant, cell=cell.name):
        by_digest = package_names.is_digest(reference)
        rows = packages_of(principal, cell, tenant=tenant, name=name)
        found = rows.filter(Q(digest=reference) if by_digest else Q(tags__tag=reference)).first()
        if found is not None:
            return found
    raise NotFound("package", f"{cell.name}/{tenant}/{name}@{reference}")


@dataclass(frozen=True, slots=True)
class ListedPackage:
    """A package with its tags. `jobs`: the names of the live jobs that may run the package."""

    package: Package
    tags: list[str]
    jobs: list[str]


def shown(packages: Sequence[Package]) -> list[ListedPackage]:
    """Return each package with its tags and the names of the jobs that may run it. Makes one query per cell."""
    used: dict[tuple[int, int, str], list[str]] = {}
    for cell_id in {package.cell_id for package in packages}:
        digests = {package.digest for package in packages if package.cell_id == cell_id}
        for (tenant, digest), jobs in in_use(cell_id, digests).items():
            used[cell_id, tenant, digest] = jobs
    return [
        ListedPackage(
            package,
            [tag.tag for tag in package.tags.all()],
            used.get((package.cell_id, package.tenant_id, package.digest), []),
        )
        for package in packages
    ]
