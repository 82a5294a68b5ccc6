"""What tasks get as files: packages (§3.2) and config files. A package is an archive of a tenant in the package store
of a cell. Tags are names for packages. A config file is a small text of a tenant with versions.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
from quota.models.fields import DnsLabelField
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


class ConfigFile(models.Model):
    """A config file of a tenant: a name with versions. `newest_version`: the number of the newest version.

    A deleted file (`deleted_at`) has no versions. Its row stays, so that the next version gets a new number, and
    machines notice that the content is another one.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="config_files", db_index=False)
    name = DnsLabelField(_("name"))
    newest_version = models.PositiveIntegerField(_("newest version"), default=0)
    labels = models.JSONField(_("labels"), default=dict, db_default={}, blank=True)
    created_by = models.CharField(_("created by"), max_length=200)
    created_at = models.DateTimeField(_("created"))
    deleted_at = models.DateTimeField(_("deleted"), null=True, blank=True)

    class Meta:
        ordering = ["tenant", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="one_config_file_per_name")]
        verbose_name = _("config file")
        verbose_name_plural = _("config files")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class ConfigVersion(models.Model):
    """A version of a config file. It never changes. `restored_from`: the version with the same content that a rollback
    wrote again.
    """

    file = models.ForeignKey(ConfigFile, models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField(_("version"))
    content = models.TextField(_("content"))
    size_bytes = models.PositiveIntegerField(_("size in bytes"))
    comment = models.CharField(_("comment"), max_length=200, blank=True)
    restored_from = models.PositiveIntegerField(_("restored from"), null=True, blank=True)
    created_by = models.CharField(_("written by"), max_length=200)
    created_at = models.DateTimeField(_("written"))

    class Meta:
        ordering = ["file", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["file", "version"], name="one_content_per_version"),
            models.CheckConstraint(condition=Q(version__gt=0), name="versions_of_configs_begin_at_one"),
        ]
        verbose_name = _("version of a config file")
        verbose_name_plural = _("versions of config files")

    def __str__(self) -> str:
        return f"{self.file_id} v{self.version}"


class ConfigDelivery(models.Model):
    """The version of a config file that a task has got, as a machine has received it last. `job_id`: the id of a job;
    the row stays for at most an hour after the end of the job. `path`: the name of the file for the task.
    """

    file = models.ForeignKey(ConfigFile, models.CASCADE, related_name="deliveries", db_index=False)
    job_id = models.BigIntegerField(_("job"))
    index = models.PositiveIntegerField(_("task"))
    path = models.CharField(_("file"), max_length=100)
    incarnation = models.PositiveIntegerField(_("incarnation"))
    version = models.PositiveIntegerField(_("version"))
    sent_at = models.DateTimeField(_("sent"))

    class Meta:
        ordering = ["file", "job_id", "index", "path"]
        constraints = [
            models.UniqueConstraint(fields=["file", "job_id", "index", "path"], name="one_config_delivery_per_task")
        ]
        verbose_name = _("delivery of a config file")
        verbose_name_plural = _("deliveries of config files")

    def __str__(self) -> str:
        return f"{self.file_id} to {self.job_id}/{self.index}"
