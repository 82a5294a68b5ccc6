"""Locks of tenants, and the sessions that hold them."""

import uuid

import django.db.models.deletion
from django.db import migrations, models

_SEQUENCE = "CREATE SEQUENCE scheduling_lock_token"


class Migration(migrations.Migration):
    dependencies = [
        ("quota", "0020_metered_hours_have_partitions"),
        ("scheduling", "0056_specs_name_their_secrets"),
    ]

    operations = [
        migrations.CreateModel(
            name="LockSession",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ("owner", models.CharField(max_length=200, verbose_name="owner")),
                ("lease_s", models.FloatField(verbose_name="lease, s")),
                ("expires_at", models.DateTimeField(verbose_name="ends")),
                ("machine", models.BigIntegerField(blank=True, null=True)),
                ("job", models.UUIDField(blank=True, null=True)),
                ("index", models.PositiveIntegerField(blank=True, null=True)),
                ("incarnation", models.PositiveIntegerField(blank=True, null=True)),
                ("run", models.PositiveIntegerField(blank=True, null=True)),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="lock_sessions",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="lock_sessions", to="quota.tenant"
                    ),
                ),
            ],
            options={"verbose_name": "session of locks", "verbose_name_plural": "sessions of locks"},
        ),
        migrations.CreateModel(
            name="LockFile",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(db_collation="C", max_length=200, verbose_name="name")),
                ("content", models.TextField(blank=True, default="", verbose_name="content")),
                ("sequence", models.BigIntegerField(default=0, verbose_name="sequence number")),
                ("changed_by", models.CharField(max_length=200, verbose_name="changed by")),
                ("changed_at", models.DateTimeField(verbose_name="changed")),
                ("token", models.BigIntegerField(default=0, verbose_name="fencing token")),
                ("session", models.BigIntegerField(blank=True, null=True)),
                ("acquired_at", models.DateTimeField(blank=True, null=True, verbose_name="acquired")),
                ("deleted_at", models.DateTimeField(blank=True, null=True, verbose_name="deleted")),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="locks",
                        to="scheduling.cell",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="locks", to="quota.tenant"
                    ),
                ),
            ],
            options={"verbose_name": "lock", "verbose_name_plural": "locks", "ordering": ["cell", "tenant", "name"]},
        ),
        migrations.AddIndex(
            model_name="locksession",
            index=models.Index(
                condition=models.Q(("machine__isnull", False)), fields=["machine"], name="lock_session_by_machine"
            ),
        ),
        migrations.AddConstraint(
            model_name="locksession",
            constraint=models.UniqueConstraint(
                fields=("job", "index", "incarnation", "run"), name="one_lock_session_per_run"
            ),
        ),
        migrations.AddIndex(
            model_name="lockfile",
            index=models.Index(condition=models.Q(("session__isnull", False)), fields=["session"], name="lock_by_session"),
        ),
        migrations.AddConstraint(
            model_name="lockfile",
            constraint=models.UniqueConstraint(fields=("cell", "tenant", "name"), name="one_lock_per_name"),
        ),
        migrations.RunSQL(_SEQUENCE, "DROP SEQUENCE scheduling_lock_token"),
    ]
