"""Metered hours have fewer and smaller indexes, which stay small while old hours are deleted and new ones are added.

The unique index begins with cell and hour, so new rows are at its end and its pages stay full. It replaces the index by
cell and hour. Nothing searches hours by band only. Hours that are not charged need no entry in the index by posting.

Readers go on while the indexes are made, and writers wait: some seconds per million rows.
"""

import django.db.models.deletion
from django.db import migrations, models

# The operations AddConstraint and AlterField would make readers wait too, and check the foreign keys of all rows.
_FORWARD = [
    "CREATE UNIQUE INDEX metered_once_per_hour ON quota_meteredhour (cell, hour, job_uid, band_id) NULLS NOT DISTINCT",
    "CREATE INDEX metered_by_posting ON quota_meteredhour (posting_id) WHERE posting_id IS NOT NULL",
    "ALTER TABLE quota_meteredhour ADD CONSTRAINT metered_once_per_hour UNIQUE USING INDEX metered_once_per_hour,"
    " DROP CONSTRAINT metered_once_an_hour",
    "DROP INDEX metered_by_hour, quota_meteredhour_band_id_f1c6e797, quota_meteredhour_posting_id_124e31a1",
]
_BACK = [
    "CREATE INDEX metered_by_hour ON quota_meteredhour (cell, hour)",
    "CREATE INDEX quota_meteredhour_band_id_f1c6e797 ON quota_meteredhour (band_id)",
    "CREATE INDEX quota_meteredhour_posting_id_124e31a1 ON quota_meteredhour (posting_id)",
    "ALTER TABLE quota_meteredhour DROP CONSTRAINT metered_once_per_hour,"
    " ADD CONSTRAINT metered_once_an_hour UNIQUE NULLS NOT DISTINCT (cell, job_uid, band_id, hour)",
    "DROP INDEX metered_by_posting",
]
_PROTECT = django.db.models.deletion.PROTECT


class Migration(migrations.Migration):
    dependencies = [("quota", "0018_tokens_have_successors")]

    operations = [
        migrations.RunSQL(
            _FORWARD,
            _BACK,
            state_operations=[
                migrations.RemoveIndex("meteredhour", "metered_by_hour"),
                migrations.RemoveConstraint("meteredhour", "metered_once_an_hour"),
                migrations.AddConstraint(
                    "meteredhour",
                    models.UniqueConstraint(
                        fields=("cell", "hour", "job_uid", "band"), nulls_distinct=False, name="metered_once_per_hour"
                    ),
                ),
                migrations.AlterField(
                    "meteredhour",
                    "band",
                    models.ForeignKey(
                        db_index=False, null=True, on_delete=_PROTECT, related_name="+", to="quota.priorityband"
                    ),
                ),
                migrations.AlterField(
                    "meteredhour",
                    "posting",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=_PROTECT,
                        related_name="metered",
                        to="quota.posting",
                    ),
                ),
                migrations.AddIndex(
                    "meteredhour",
                    models.Index(
                        fields=["posting"], condition=models.Q(posting__isnull=False), name="metered_by_posting"
                    ),
                ),
            ],
        ),
    ]
