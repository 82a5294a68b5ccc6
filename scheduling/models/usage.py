"""The usage of tasks in windows of five minutes (`scheduling.usage.usage_windows`), and its metering for `quota`: which
hours were reported, and the sums of reservations in hours that are not reported yet.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models

from quota.models.fields import VectorField
from scheduling.models.cells import Cell


class InstanceUsage(models.Model):
    """The usage of one incarnation in one window of about five minutes. The table is partitioned by the hour of
    `start_time`.

    Table, columns and units are those of `instance_usage` in Google's trace of 2019 where possible: CPU in cores,
    memory in bytes. Ids are plain numbers, because the usage stays when a task is deleted. `sample_rate`: samples per
    second.
    """

    pk = models.CompositePrimaryKey("collection_id", "instance_index", "start_time", "incarnation")
    collection_id = models.BigIntegerField()  # the job
    instance_index = models.IntegerField()
    start_time = models.DateTimeField()
    end_time = models.DateTimeField()
    incarnation = models.IntegerField()
    cell_id = models.BigIntegerField()
    machine_id = models.BigIntegerField()
    average_usage_cpus = models.FloatField()
    average_usage_memory = models.BigIntegerField()
    maximum_usage_cpus = models.FloatField()
    maximum_usage_memory = models.BigIntegerField()
    random_sample_usage_cpus = models.FloatField()
    assigned_cpus = models.FloatField()
    assigned_memory = models.BigIntegerField()
    page_cache_memory = models.BigIntegerField()
    sample_rate = models.FloatField()
    cpu_usage_distribution = ArrayField(models.FloatField())
    tail_cpu_usage_distribution = ArrayField(models.FloatField())
    throttled_cpus = models.FloatField()
    disk_bytes = models.BigIntegerField()
    read_bytes_s = models.BigIntegerField()
    written_bytes_s = models.BigIntegerField()
    received_bytes_s = models.BigIntegerField()
    sent_bytes_s = models.BigIntegerField()
    threads = models.IntegerField()
    oom_kills = models.IntegerField()

    class Meta:
        db_table = "scheduling_instance_usage"
        ordering = ["start_time"]

    def __str__(self) -> str:
        return f"{self.collection_id}/{self.instance_index} at {self.start_time:%F %T}"


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
