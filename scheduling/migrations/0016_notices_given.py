"""How often tasks that had to leave got their notice."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0015_brakes_open_when_calm'),
    ]

    operations = [
        migrations.CreateModel(
            name='NoticeCount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField(verbose_name='day')),
                ('cause', models.CharField(max_length=32, verbose_name='cause of the stop')),
                ('delivered', models.CharField(max_length=16, verbose_name='notice before SIGKILL')),
                ('number', models.PositiveBigIntegerField(default=0, verbose_name='tasks')),
                ('cell', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notice_counts', to='scheduling.cell')),
            ],
            options={
                'verbose_name': 'notice before SIGKILL',
                'verbose_name_plural': 'notices before SIGKILL',
                'ordering': ['-day', 'cause', 'delivered'],
                'constraints': [models.UniqueConstraint(fields=('cell', 'day', 'cause', 'delivered'), name='one_notice_count')],
            },
        ),
    ]
