"""Statistics of the journal (`scheduling.history.statistics`), and counts of how much notice evicted tasks received
before SIGKILL (§2.3).
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from scheduling.models.cells import Cell


class StatisticsReader(models.Model):
    """The position in the journal up to which the statistics of a cell are computed. `state`: the compressed state of
    the computation at `revision`. `read_at`: when the pending tasks were last counted.
    """

    cell = models.OneToOneField(Cell, models.CASCADE, primary_key=True, related_name="statistics_reader")
    revision = models.BigIntegerField(default=0)
    state = models.BinaryField(default=b"")
    read_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("progress of the statistics")
        verbose_name_plural = _("progress of the statistics")

    def __str__(self) -> str:
        return f"{self.cell} at revision {self.revision}"


class JournalTally(models.Model):
    """Counts from the journal for one hour: a number of occurrences, the sum of their values, and a histogram of the
    values (`scheduling.history.statistics.tallies`). `hour`: 1970-01-01 for the total of all hours.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="+", db_index=False)
    hour = models.DateTimeField(_("hour"))
    figure = models.CharField(_("statistic"), max_length=32)
    prod = models.BooleanField(_("prod tasks only"))
    label = models.CharField(_("label of the statistic"), max_length=200, blank=True)
    number = models.BigIntegerField(_("number of occurrences"))
    total = models.FloatField(_("sum of the values"))
    buckets = ArrayField(models.BigIntegerField(), verbose_name=_("histogram of the values"))

    class Meta:
        ordering = ["cell", "hour", "figure", "prod", "label"]
        constraints = [
            models.UniqueConstraint(fields=["cell", "hour", "figure", "prod", "label"], name="one_tally_per_hour")
        ]
        verbose_name = _("hourly statistic of the journal")
        verbose_name_plural = _("hourly statistics of the journal")

    def __str__(self) -> str:
        return f"{self.figure} {self.label} at {self.hour:%F %H}h"


class PromiseReader(models.Model):
    """How far broken promises of a cell were reported to quota (`scheduling.promises`). Cells without a promise have no
    row. `revision`: the journal was read for evictions up to it. `looked_at`: when the pending tasks were last
    examined.
    """

    cell = models.OneToOneField(Cell, models.CASCADE, primary_key=True, related_name="promise_reader")
    revision = models.BigIntegerField(default=0)
    looked_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("how far broken promises are reported")
        verbose_name_plural = _("how far broken promises are reported")

    def __str__(self) -> str:
        return f"{self.cell} at revision {self.revision}"


class PromisedEviction(models.Model):
    """An eviction of a prod task for which its cell answers. Rows are kept for the 30 days of the promise, because
    PostgreSQL may keep the journal for a shorter time. `revision`, `seq`: the event.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="+", db_index=False)  # the constraint serves it
    revision = models.BigIntegerField()
    seq = models.IntegerField()
    job_uid = models.UUIDField(_("job UID"))
    index = models.PositiveIntegerField(_("task index"))
    at = models.DateTimeField(_("time"))
    cause = models.CharField(_("cause"), max_length=32)

    class Meta:
        indexes = [
            models.Index(fields=["job_uid", "index", "at"], name="promised_eviction_by_task"),
            models.Index(fields=["cell", "at"], name="promised_eviction_by_time"),
        ]
        constraints = [models.UniqueConstraint(fields=["cell", "revision", "seq"], name="one_row_per_eviction")]
        verbose_name = _("eviction that counts for the promise")
        verbose_name_plural = _("evictions that count for the promise")

    def __str__(self) -> str:
        return f"{self.job_uid}/{self.index} at {self.at:%F %T}"


class NoticeCount(models.Model):
    """The number of tasks that left their machines on one day (UTC), by `cause` and by `delivered`. `delivered`: how
    much of their notice period the tasks received: full, short, none or unknown.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="notice_counts")
    day = models.DateField(_("day"))
    cause = models.CharField(_("cause of the stop"), max_length=32)
    delivered = models.CharField(_("notice before SIGKILL"), max_length=16)
    number = models.PositiveBigIntegerField(_("tasks"), default=0)

    class Meta:
        ordering = ["-day", "cause", "delivered"]
        constraints = [models.UniqueConstraint(fields=["cell", "day", "cause", "delivered"], name="one_notice_count")]
        verbose_name = _("notice before SIGKILL")
        verbose_name_plural = _("notices before SIGKILL")

    def __str__(self) -> str:
        return f"{self.day}: {self.number} × {self.delivered} ({self.cause})"
