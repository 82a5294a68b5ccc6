"""The manifest of the archive: which rows of a cell are in which Parquet file (`scheduling.history.archive`)."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from scheduling.models.cells import Cell


class ArchiveState(models.TextChoices):
    """The state of a file of the archive."""

    STORED = "stored", _("stored")  # PostgreSQL has the rows too
    SOLE = "sole", _("only copy")  # PostgreSQL has dropped the rows, or drops them now
    DELETED = "deleted", _("deleted")  # the file was older than the cell's `archive_keep_days`


class ArchiveFile(models.Model):
    """A file of the archive with rows of one cell, one table and one day (UTC).

    `first`, `last`: the revisions (events) or the seconds since the epoch (usage) that the file covers. The files of a
    table follow each other without a gap, so that no row is in two files. `sha256`: of the file. `content`: a checksum
    of the rows (`scheduling.history.archive.content`).
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="archive_files")
    table = models.CharField(_("table"), max_length=63)
    day = models.DateField(_("day"))
    first = models.BigIntegerField(_("first"))
    last = models.BigIntegerField(_("last"))
    rows = models.BigIntegerField(_("rows"))
    bytes = models.BigIntegerField(_("bytes"))
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    content = models.CharField(_("checksum of the rows"), max_length=64)
    schema_version = models.PositiveSmallIntegerField(_("version of the schema"))
    state = models.CharField(_("state"), max_length=16, choices=ArchiveState.choices, default=ArchiveState.STORED.value)
    written_at = models.DateTimeField(_("written"))

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
        """The name of the file in the store."""
        return f"{self.cell.name}/{self.table}/day={self.day:%Y-%m-%d}/{self.first}-{self.last}.parquet"
