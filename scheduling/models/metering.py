"""Metering of usage for `quota`: which hours were reported, and the sums of reservations in hours that are not reported
yet.
"""

from __future__ import annotations

from django.db import models

from quota.models.fields import VectorField
from scheduling.models.cells import Cell


class MeteringHour(models.Model):
    """One hour of one cell. `looks`: how many samples of reservations were taken in the hour. `metered_at`: when the
    hour's usage was reported to `quota`.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="metering_hours")
    hour = models.DateTimeField()
    looks = models.PositiveIntegerField(default=0)
    looked_at = models.DateTimeField(null=True)
    metered_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["cell", "hour"]
        constraints = [models.UniqueConstraint(fields=["cell", "hour"], name="one_metering_per_cell_hour")]

    def __str__(self) -> str:
        return f"{self.cell} at {self.hour:%F %H}h"


class ReservedInHour(models.Model):
    """The reservations of a job's running tasks in one hour, summed over all samples. The row is deleted when the hour
    is reported.

    `job_id` is a plain number, because the row may exist longer than the job.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="+", db_index=False)
    hour = models.DateTimeField()
    job_id = models.BigIntegerField()
    reserved = VectorField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["cell", "hour", "job_id"], name="one_reserved_per_job_hour")]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.hour:%F %H}h"
