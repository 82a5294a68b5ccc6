from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('scheduling', '0025_machines_come_back_to_what_was_granted'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('restarts__gt', 1)), fields=['job'], name='task_restarted'),
        ),
    ]
