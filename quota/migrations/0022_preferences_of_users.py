"""What each person prefers on pages: the time zone, and whether the first steps are shown."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('quota', '0021_credits_for_broken_promises'),
    ]

    operations = [
        migrations.CreateModel(
            name='Preferences',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='+', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('time_zone', models.CharField(blank=True, db_default='', default='', max_length=64, verbose_name='time zone')),
                ('first_steps', models.CharField(blank=True, choices=[('shown', 'shown'), ('hidden', 'hidden')], db_default='', default='', max_length=8, verbose_name='first steps')),
                ('log_opened_at', models.DateTimeField(blank=True, null=True, verbose_name='first log opened at')),
            ],
            options={
                'verbose_name': 'preferences',
                'verbose_name_plural': 'preferences',
            },
        ),
    ]
