"""The manifest of the archive, the index of archived jobs, erasures, and saved SQL queries (`scheduling.history`)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
from quota.models.fields import DnsLabelField
from scheduling.core.vocabulary.states import JobState
from scheduling.models.cells import Cell
from scheduling.models.jobs import Job


class ArchiveState(models.TextChoices):
    """The state of a file of the archive."""

    STORED = "stored", _("also in PostgreSQL")  # PostgreSQL has the rows too
    SOLE = "sole", _("only in the archive")  # PostgreSQL has dropped the rows, or drops them now
    DELETED = "deleted", _("deleted")  # the file was older than the cell's `archive_keep_days`


class ArchiveFile(models.Model):
    """A file of the archive with rows of one cell, one table and one day (UTC).

    `first`, `last`: the revisions (events) or the seconds since the epoch (usage) that the file covers. The files of
    these tables follow each other without a gap, so that no row is in two files. For `ended_jobs`, `old_specs` and
    `metered_hours` they are the smallest and the largest id of the rows in the file. `tenant_first`, `tenant_last`: the
    smallest and the largest id of the tenants in a file of `metered_hours`. `sha256`: the digest of the file.
    `content`: a checksum of the rows (`scheduling.history.archive.parquet`). `generation`: how often an erasure has
    replaced the file.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="archive_files")
    table = models.CharField(_("table"), max_length=63)
    day = models.DateField(_("day"))
    first = models.BigIntegerField(_("first revision, time or id"))
    last = models.BigIntegerField(_("last revision, time or id"))
    tenant_first = models.BigIntegerField(_("first tenant"), null=True, blank=True)
    tenant_last = models.BigIntegerField(_("last tenant"), null=True, blank=True)
    generation = models.PositiveIntegerField(_("number of rewrites"), default=0, db_default=0)
    rows = models.BigIntegerField(_("number of rows"))
    bytes = models.BigIntegerField(_("size in bytes"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    content = models.CharField(_("checksum of the rows"), max_length=64)
    schema_version = models.PositiveSmallIntegerField(_("version of the schema"))
    state = models.CharField(_("state"), max_length=16, choices=ArchiveState.choices, default=ArchiveState.STORED.value)
    written_at = models.DateTimeField(_("written at"))

    class Meta:
        ordering = ["cell", "table", "first"]
        constraints = [
            models.UniqueConstraint(fields=["cell", "table", "first"], name="archived_once"),
            models.CheckConstraint(condition=models.Q(last__gte=models.F("first")), name="archive_range_is_forward"),
        ]
        verbose_name = _("file of the archive")
        verbose_name_plural = _("files of the archive")

    def __str__(self) -> str:
        return self.key

    @property
    def key(self) -> str:
        """Return the name of the file in the store."""
        generation = f".{self.generation}" if self.generation else ""
        return f"{self.cell.folder}/{self.table}/day={self.day:%Y-%m-%d}/{self.first}-{self.last}{generation}.parquet"


class Erasure(models.Model):
    """A request to erase a person or a tenant from the history: a pseudonym replaces the name
    (`scheduling.history.erasure`).

    `kind`: `person` or `tenant`. `name`: the identity; empty once it is erased. `tenant`: the row of the tenant. If
    jobs of the tenant are archived later, the pseudonym replaces the name in their rows too.
    """

    kind = models.CharField(
        _("kind of name"), max_length=16, choices=[("person", _("person")), ("tenant", _("tenant"))]
    )
    name = models.CharField(_("name"), max_length=200, blank=True)
    tenant = models.OneToOneField(Tenant, models.SET_NULL, null=True, blank=True, related_name="erasure")
    pseudonym = models.CharField(_("pseudonym"), max_length=63, unique=True)
    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "name"], condition=~Q(name=""), name="one_open_erasure_per_name"),
            models.CheckConstraint(
                condition=Q(name="", ended_at__isnull=False) | (~Q(name="") & Q(ended_at__isnull=True)),
                name="an_ended_erasure_forgets_the_name",
            ),
        ]
        verbose_name = _("erasure of a name")
        verbose_name_plural = _("erasures of names")

    def __str__(self) -> str:
        return str(self.pseudonym)


class ArchivedJob(models.Model):
    """The entry of an archived job in the index: the columns by which readers find the job, and the file with its rows.

    `id`: the id of the job. `recalled_at`: when the rows of the job were last copied back to PostgreSQL, because
    somebody opened the job (`scheduling.history.archive.recall`); None if they never were.
    """

    id = models.BigIntegerField(primary_key=True)
    uid = models.UUIDField()
    cell = models.ForeignKey(Cell, models.CASCADE, related_name="archived_jobs", db_index=False)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="archived_jobs", db_index=False)
    name = DnsLabelField(_("name"))
    kind = models.CharField(_("kind"), max_length=16)
    alloc_set_id = models.BigIntegerField(null=True)
    priority = models.PositiveIntegerField(_("priority"))
    latency_sensitive = models.BooleanField(_("latency-sensitive"))
    labels = models.JSONField(_("labels"))
    outcome = models.CharField(_("outcome"), max_length=16)
    created_at = models.DateTimeField(_("submitted"))
    ended_at = models.DateTimeField(_("ended"))
    file = models.ForeignKey(ArchiveFile, models.CASCADE, related_name="jobs")
    recalled_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["id"]
        indexes = [models.Index(fields=["tenant", "name"], name="archived_job_by_name")]
        verbose_name = _("archived job")
        verbose_name_plural = _("archived jobs")

    def __str__(self) -> str:
        return str(self.name)

    def brief(self) -> Job:
        """Return the job with the columns that the index contains. It cannot be saved."""
        same = ("id", "uid", "cell_id", "tenant_id", "name", "kind", "priority", "latency_sensitive", "labels")
        how = {"outcome": self.outcome, "created_at": self.created_at, "ended_at": self.ended_at}
        return Job(**{name: getattr(self, name) for name in same}, **how, state=JobState.DEAD.value)


class SavedQuery(models.Model):
    """A query that a person saved. `owner`: the name of the person. `tenant`: the tenant whose members may use the
    query too; None if it is not shared.
    """

    owner = models.CharField(_("owner"), max_length=200)
    tenant = models.ForeignKey(
        Tenant,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="saved_queries",
        verbose_name=_("shared with tenant"),
    )
    title = models.CharField(_("title"), max_length=100)
    query = models.TextField(_("query"))
    changed_at = models.DateTimeField(_("last changed"))

    class Meta:
        ordering = ["title", "id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "title"], name="one_query_per_title"),
            models.CheckConstraint(condition=~Q(title=""), name="query_has_title"),
        ]
        verbose_name = _("saved query")
        verbose_name_plural = _("saved queries")

    def __str__(self) -> str:
        return str(self.title)
