"""What each person prefers on pages: the time zone, and whether the first steps are shown."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def hide_steps(apps, schema_editor):
    """Hide the first steps from people who have signed in before: they are no newcomers."""
    preferences = apps.get_model('quota', 'Preferences')
    users = apps.get_model(settings.AUTH_USER_MODEL).objects.filter(last_login__isnull=False)
    preferences.objects.bulk_create(
        (preferences(user_id=pk, first_steps='hidden') for pk in users.values_list('pk', flat=True)), batch_size=1000
    )


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
                ('steps_done_at', models.DateTimeField(blank=True, null=True, verbose_name='first steps done at')),
            ],
            options={
                'verbose_name': 'preferences',
                'verbose_name_plural': 'preferences',
            },
        ),
        migrations.RunPython(hide_steps, migrations.RunPython.noop),
    ]
