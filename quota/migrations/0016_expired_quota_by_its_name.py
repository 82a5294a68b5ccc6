"""The model of expired quota gets a plain name. The table keeps its name, so the database does not change."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quota", "0015_tokens_have_parents")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("Lapse", "QuotaExpiry"),
                migrations.AlterModelTable("QuotaExpiry", "quota_lapse"),
                migrations.AlterModelOptions(
                    "QuotaExpiry",
                    {
                        "ordering": ["began_at", "id"],
                        "verbose_name": "expired quota",
                        "verbose_name_plural": "expired quota",
                    },
                ),
                migrations.AlterField(
                    "QuotaExpiry",
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="quota_expiries", to="quota.tenant"
                    ),
                ),
            ]
        )
    ]
