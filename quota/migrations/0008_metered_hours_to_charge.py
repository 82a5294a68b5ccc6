"""What is not charged yet is found without reading what is."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quota", "0007_what_orders_wait_for")]

    operations = [
        migrations.AddIndex(
            model_name="meteredhour",
            index=models.Index(
                condition=models.Q(("posting", None), ("price__gt", 0)),
                fields=["tenant", "cell", "hour"],
                name="metered_to_charge",
            ),
        ),
    ]
