"""Packages (§3.2). A package is an archive of a tenant in the package store of a cell. Tags are names for packages."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
from scheduling.models.cells import Cell
from scheduling.spec.package_names import FORMATS


class Package(models.Model):
    """A package: a name and an archive. A package never changes. The package store keeps the archive under the
    `digest`.

    `digest`: `sha256:` and 64 hexadecimal digits.
    """

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="packages")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="packages")
    name = models.CharField(_("name"), max_length=63)
    digest = models.CharField(_("digest"), max_length=71)
    size_bytes = models.BigIntegerField(_("size in bytes"))
    format = models.CharField(_("format"), max_length=16, choices=[(name, name) for name in FORMATS])
    uploaded_by = models.CharField(_("uploaded by"), max_length=200)
    uploaded_at = models.DateTimeField(_("uploaded"), auto_now_add=True)

    class Meta:
        ordering = ["cell", "tenant", "name", "-uploaded_at"]
        constraints = [
            models.UniqueConstraint(fields=["cell", "tenant", "name", "digest"], name="one_package_per_digest"),
            models.CheckConstraint(condition=Q(size_bytes__gt=0), name="packages_hold_something"),
        ]
        indexes = [models.Index(fields=["cell", "digest"], name="package_by_digest")]
        verbose_name = _("package")
        verbose_name_plural = _("packages")

    def __str__(self) -> str:
        return f"{self.name}@{self.digest[:19]}"


class PackageTag(models.Model):
    """A tag of a package. Users may move the tag to another package with the same name. Each move is recorded."""

    package = models.ForeignKey(Package, models.CASCADE, related_name="tags")
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="+")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    name = models.CharField(_("name"), max_length=63)
    tag = models.CharField(_("tag"), max_length=63)
    moved_by = models.CharField(_("tag set by"), max_length=200)
    moved_at = models.DateTimeField(_("tag set"), auto_now=True)

    class Meta:
        ordering = ["cell", "tenant", "name", "tag"]
        constraints = [models.UniqueConstraint(fields=["cell", "tenant", "name", "tag"], name="one_package_per_tag")]
        verbose_name = _("tag of a package")
        verbose_name_plural = _("tags of packages")

    def __str__(self) -> str:
        return f"{self.name}@{self.tag}"
