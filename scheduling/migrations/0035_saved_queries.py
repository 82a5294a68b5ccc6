"""People save and share SQL queries over the history."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0016_expired_quota_by_its_name"),
        ("scheduling", "0034_usage_is_dropped_by_the_archive"),
    ]

    operations = [
        migrations.CreateModel(
            "SavedQuery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("owner", models.CharField(max_length=200, verbose_name="owner")),
                ("title", models.CharField(max_length=100, verbose_name="title")),
                ("query", models.TextField(verbose_name="query")),
                ("changed_at", models.DateTimeField(verbose_name="last changed")),
                (
                    "tenant",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="saved_queries",
                        to="quota.tenant",
                        verbose_name="shared with tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "saved query",
                "verbose_name_plural": "saved queries",
                "ordering": ["title", "id"],
                "constraints": [
                    models.UniqueConstraint(fields=("owner", "title"), name="one_query_per_title"),
                    models.CheckConstraint(condition=models.Q(("title", ""), _negated=True), name="query_has_title"),
                ],
            },
        ),
    ]
