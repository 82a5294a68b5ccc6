import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0026_restarted_tasks_are_found_quickly'),
    ]

    operations = [
        migrations.CreateModel(
            name='FailingJob',
            fields=[
                ('job', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='failing', serialize=False, to='scheduling.job')),
                ('since', models.DateTimeField(verbose_name='failing since')),
                ('told_at', models.DateTimeField(blank=True, null=True, verbose_name='tenant notified')),
            ],
            options={
                'verbose_name': 'failing job',
                'verbose_name_plural': 'failing jobs',
            },
        ),
    ]
