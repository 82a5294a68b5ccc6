import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0023_how_names_are_published'),
    ]

    operations = [
        migrations.AddField(
            model_name='machine',
            name='packages',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=71), blank=True, db_default=[], default=list, size=None),
        ),
    ]
